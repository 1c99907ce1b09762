"""Measures what limiting costs a server: Starlette under uvicorn without limits, with ours on sqlite:, and with slowapi's in memory.

    python bench/serving/python.py [ROUNDS]

Each server is a process of one worker, started again for each turn, and warmed up by 200 other addresses; the turns of the three are
interleaved. 200 clients, each with an address of its own (127.0.1.1 to 127.0.1.200, a connection each that stays open), may send 20
requests per 60 s and send 40, 16 of them at a time: half are admitted, and the other half refused. It needs starlette, uvicorn and
slowapi. It prints the medians over the rounds as a JSON object per server, and the medians of each round's ratios to slowapi.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

CLIENTS, LIMIT, TURNS, AT_A_TIME = 200, 20, 40, 16
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


# ---- the servers ----


def app():
    """Returns the app that uvicorn runs, by the environment."""
    from starlette.applications import Starlette
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def hello(request):
        return PlainTextResponse("hello")

    kind = os.environ["KIND"]
    if kind == "slowapi":
        from slowapi import Limiter, _rate_limit_exceeded_handler
        from slowapi.errors import RateLimitExceeded
        from slowapi.util import get_remote_address

        limiter = Limiter(key_func=get_remote_address)
        made = Starlette(routes=[Route("/", limiter.limit(f"{LIMIT}/minute")(hello))])
        made.state.limiter = limiter
        made.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)
        return made
    made = Starlette(routes=[Route("/", hello)])
    if kind == "ours":
        from workglow_limit import Store
        from workglow_limit.asgi import Limit, LimitMiddleware

        limiter = Store(os.environ["STORE"]).limiter("requests", f"{LIMIT}/60s")
        made.add_middleware(LimitMiddleware, limits=[Limit(limiter, key="address")])
    return made


# ---- the clients ----


class Client:
    """One address, and its connection."""

    def __init__(self, address, port):
        self.address, self.port = address, port

    async def connect(self):
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, local_addr=(self.address, 0))

    async def ask(self):
        """Returns the status of a response, and how long it took."""
        began = time.perf_counter()
        self.writer.write(REQUEST)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        await self.reader.readexactly(length)
        return int(head[9:12]), time.perf_counter() - began


async def load(port):
    """Returns the requests per second of all and of each half, and their 99th percentiles in ms."""
    warm, clients = ([Client(f"127.0.{net}.{number + 1}", port) for number in range(CLIENTS)] for net in (2, 1))
    for client in warm:
        await client.connect()
        await client.ask()
        client.writer.close()
    for client in clients:
        await client.connect()
    figures, all_took, all_began = {}, [], time.perf_counter()
    for half, expected in ("admitted", 200), ("refused", 429) if os.environ["KIND"] != "none" else ("refused", 200):
        took = []

        async def some(of):
            for _ in range(TURNS // 2):
                for client in of:
                    status, seconds = await client.ask()
                    assert status == expected, f"{status}, not {expected}"
                    took.append(seconds)

        began = time.perf_counter()
        await asyncio.gather(*(some(clients[n::AT_A_TIME]) for n in range(AT_A_TIME)))
        figures[f"{half}_per_second"] = len(took) / (time.perf_counter() - began)
        figures[f"{half}_p99_ms"] = p99(took)
        all_took += took
    figures["per_second"] = len(all_took) / (time.perf_counter() - all_began)
    figures["p99_ms"] = p99(all_took)
    return figures


def p99(took):
    return sorted(took)[len(took) * 99 // 100] * 1e3


def turn(kind):
    """Starts a server and loads it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.environ.update(KIND=kind, STORE=f"sqlite:{folder}/limits.db")
        options = ["--port", str(port), "--log-level", "error", "--no-access-log", "--no-proxy-headers"]
        command = [
            sys.executable,
            "-m",
            "uvicorn",
            "--factory",
            "--app-dir",
            str(Path(__file__).parent),
            "python:app",
            *options,
        ]
        server = subprocess.Popen(command)
        try:
            while server.poll() is None and socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.02)
            return asyncio.run(asyncio.wait_for(load(port), 120))
        finally:
            server.terminate()
            server.wait()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    kinds = ["none", "ours", "slowapi"]
    seen = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind in kinds[number % 3 :] + kinds[: number % 3]:
            seen[kind].append(turn(kind))
    for kind in kinds:
        print(
            json.dumps(
                {"server": kind} | {name: round(median(one[name] for one in seen[kind]), 2) for name in seen[kind][0]}
            )
        )
    ratios = {
        name: round(
            median(ours[name] / theirs[name] for ours, theirs in zip(seen["ours"], seen["slowapi"], strict=True)), 3
        )
        for name in seen["ours"][0]
    }
    print(json.dumps({"ours to slowapi": ratios}))


if __name__ == "__main__":
    main()
