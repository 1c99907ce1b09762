"""Prints what a server counts behind each limiter, for Python; arrivals.mjs does the same for Node.

    python3 -m venv target/rivals
    target/rivals/bin/pip install target/dist/*.whl -r bench/clients/requirements.txt
    target/rivals/bin/python bench/clients/arrivals.py [ROUNDS] [h2]

120 coroutines ask at once, under a limit of 20 per 500 ms, with an event loop that has nothing else to do, and with one that is busy half
of the time. A request's way to the server takes up to 50 ms, and so does the way back.

began     the most calls of the sending function in any half-open window of 500 ms
arrived   the most arrivals at the server, by its clock; both are the most of all rounds
seconds   from the first arrival to the last, the median of the rounds
"""

import asyncio
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median

import httpx
from aiolimiter import AsyncLimiter
from pyrate_limiter import InMemoryBucket, Limiter, Rate
from workglow_limit import Store
from workglow_limit.httpx import AsyncLimitedTransport

LIMIT, WINDOW, REQUESTS, JITTER = 20, 0.5, 120, 50
IS_H2 = sys.argv[2:] == ["h2"]
SERVER = Path(__file__).parents[2] / "bindings/node/test/clients/counting.mjs"


class Noting(httpx.AsyncHTTPTransport):
    """Notes when each request is sent."""

    def __init__(self):
        super().__init__(http1=not IS_H2, http2=IS_H2, limits=httpx.Limits(max_connections=None))
        self.begun = []

    async def handle_async_request(self, request):
        self.begun.append(time.monotonic_ns())
        return await super().handle_async_request(request)


def ours(policy):
    def made(noting):
        transport = AsyncLimitedTransport(Store("memory:").limiter("api", policy), transport=noting)
        client = httpx.AsyncClient(transport=transport, timeout=60)
        return client.get

    return made


def of_aiolimiter(noting):
    limiter, client = AsyncLimiter(LIMIT, WINDOW), httpx.AsyncClient(transport=noting, timeout=60)

    async def get(url):
        async with limiter:
            return await client.get(url)

    return get


def of_pyrate(noting):
    limiter, client = (
        Limiter(InMemoryBucket([Rate(LIMIT, int(WINDOW * 1000))])),
        httpx.AsyncClient(transport=noting, timeout=60),
    )

    async def get(url):
        await limiter.try_acquire_async("api")
        return await client.get(url)

    return get


CONTENDERS = {
    f"**ours**, `{LIMIT} concurrent cooldown 500ms`": ours(f"{LIMIT} concurrent cooldown 500ms"),
    f"**ours**, `{LIMIT}/500ms`": ours(f"{LIMIT}/500ms"),
    f"aiolimiter {version('aiolimiter')}": of_aiolimiter,
    f"pyrate-limiter {version('pyrate-limiter')}": of_pyrate,
}


def most_within(moments, window):
    moments, most, first = sorted(moments), 0, 0
    for at, moment in enumerate(moments):
        while moments[first] <= moment - window:
            first += 1
        most = max(most, at - first + 1)
    return most


async def measure(contender, origin, path, is_busy):
    async def busy():
        while True:
            time.sleep(0.01)
            await asyncio.sleep(0.01)

    noting = Noting()
    get = contender(noting)
    blocks = asyncio.ensure_future(busy()) if is_busy else None
    await asyncio.gather(*(get(origin + path) for _ in range(REQUESTS)))
    if blocks:
        blocks.cancel()
    async with httpx.AsyncClient(transport=Noting(), timeout=60) as client:
        arrived = [int(at) for at in (await client.get(f"{origin}/arrivals?of={path}")).json()]
    return (
        most_within(noting.begun, WINDOW * 1e9),
        most_within(arrived, WINDOW * 1e9),
        (max(arrived) - min(arrived)) / 1e9,
    )


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    server = subprocess.Popen(["node", SERVER, str(JITTER), "h2" if IS_H2 else "h1"], stdout=subprocess.PIPE, text=True)
    origin = f"http://127.0.0.1:{server.stdout.readline().strip()}"
    found = {name: ([], []) for name in CONTENDERS}
    for number in range(rounds):
        for is_busy in (False, True):
            for at, (name, contender) in enumerate(CONTENDERS.items()):
                path = f"/{number}-{is_busy}-{at}"
                found[name][is_busy].append(asyncio.run(measure(contender, origin, path, is_busy)))
    server.kill()
    print("| limiter | began | arrived | began, busy loop | arrived, busy loop | seconds, idle and busy |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, both in found.items():
        most = [max(run[column] for run in runs) for runs in both for column in (0, 1)]
        seconds = " and ".join(f"{median(run[2] for run in runs):.2f}" for runs in both)
        print(f"| {name} | {' | '.join(map(str, most))} | {seconds} |")


if __name__ == "__main__":
    main()
