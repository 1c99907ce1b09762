"""Shared helpers: real servers on free loopback ports, and a parser of structured fields."""

import asyncio
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import aiohttp.web
import httpx
import hypercorn.trio
import trio
import uvicorn
from werkzeug.serving import make_server

HERE = Path(__file__).parent


@contextmanager
def asgi(app, **options):
    """Runs an app under uvicorn, in a thread with its own loop. Returns the base URL."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(512)
        config = uvicorn.Config(app, log_level="error", **({"proxy_headers": False, "lifespan": "off"} | options))
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            wait_until(lambda: server.started)
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            # An unread stream need not end. Tasks that wait for the end of the lifespan do.
            server.should_exit, server.force_exit = True, config.lifespan == "off"
            thread.join(60)
            assert not thread.is_alive(), "the server does not end"


@contextmanager
def asgi_in_trio(app):
    """As `serve`, under hypercorn in trio's event loop."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config, ends = hypercorn.Config(), threading.Event()
        config.errorlog = None
        config.bind, config.graceful_timeout = [f"fd://{os.dup(listening.fileno())}"], 1

        async def until_it_ends():
            while not ends.is_set():
                await trio.sleep(0.01)

        async def main():
            await hypercorn.trio.serve(app, config, shutdown_trigger=until_it_ends)

        thread = threading.Thread(target=trio.run, args=(main,), daemon=True)
        thread.start()
        try:
            base = f"http://127.0.0.1:{listening.getsockname()[1]}"
            wait_until(lambda: is_up(base))
            yield base
        finally:
            ends.set()
            thread.join(60)
            assert not thread.is_alive(), "the server does not end"


@contextmanager
def aiohttp_web(app):
    """As `serve`, for an app of aiohttp under its own server."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        started = queue.SimpleQueue()

        async def main():
            ends = asyncio.Event()
            runner = aiohttp.web.AppRunner(app, shutdown_timeout=1)
            await runner.setup()
            await aiohttp.web.SockSite(runner, listening).start()
            started.put(partial(asyncio.get_running_loop().call_soon_threadsafe, ends.set))
            await ends.wait()
            await runner.cleanup()

        thread = threading.Thread(target=asyncio.run, args=(main(),), daemon=True)
        thread.start()
        end = started.get(timeout=60)
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            end()
            thread.join(60)
            assert not thread.is_alive(), "the server does not end"


@contextmanager
def wsgi(app):
    """As `serve`, for a WSGI app under werkzeug's server, with a thread per request."""
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join(60)
        server.server_close()


@contextmanager
def program(*command, **environment):
    """Runs a server in other processes. Returns its base URL. `command` has PORT in place of the port."""
    for _ in range(5):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", *(part.replace("PORT", str(port)) for part in command)],
            cwd=HERE, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        base = f"http://127.0.0.1:{port}"
        try:
            wait_until(lambda: process.poll() is not None or is_up(base))
            if process.poll() is None:
                yield base
                return
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            _, said = process.communicate()
        # It has ended: another program may have taken the port.
    raise AssertionError(said.decode())


def is_up(base):
    try:
        return httpx.get(f"{base}/up", timeout=30).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(is_so, why=lambda: "", seconds=60):
    """Sets a deadline for a test that hangs."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, why() or "it has not happened"
        time.sleep(0.005)


def ask_in_turn(base, limiter, *requests):
    """Sends requests, each (path, expected status, the units that remain). A unit may be returned just after the response."""
    for path, status, remaining in requests:
        assert httpx.get(base + path).status_code == status, path
        wait_until(lambda remaining=remaining: limiter.peek().remaining == remaining)


# ---- structured fields (RFC 9651): a list of strings with parameters ----

KEY = re.compile(r"[a-z*][a-z0-9_.*-]*")
NUMBER = re.compile(r"-?[0-9]{1,15}(?![0-9.])")
STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')


def structured(field):
    """Returns [(string, {parameter: value}), …] of a field, which must be well-formed to the last character."""
    items, at = [], 0
    while True:
        name, at = value_of(field, at)
        assert isinstance(name, str), field
        parameters = {}
        while field[at : at + 1] == ";":
            at = re.compile(";[ ]*").match(field, at).end()
            key = KEY.match(field, at)
            assert key and key[0] not in parameters, field
            assert field[key.end()] == "=", field
            parameters[key[0]], at = value_of(field, key.end() + 1)
        items.append((name, parameters))
        if at == len(field):
            assert len({name for name, _ in items}) == len(items), field
            return items
        comma = re.compile("[ \t]*,[ \t]*(?=.)").match(field, at)
        assert comma, field
        at = comma.end()


def value_of(field, at):
    if string := STRING.match(field, at):
        return re.sub(r"\\(.)", r"\1", string[1]), string.end()
    number = NUMBER.match(field, at)
    assert number, f"{field!r} at {at}"
    return int(number[0]), number.end()


def fields(response):
    """Returns the policies and the states of a response, by name."""
    policies, states = (structured(response.headers[name]) for name in ("RateLimit-Policy", "RateLimit"))
    return dict(policies), dict(states)
