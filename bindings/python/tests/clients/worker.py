"""One process of several that share a limit: worker.py STORE SERVER CLIENT REQUESTS AT-ONCE [refused]

Each request says in X-Asked when it surely had not started: the clock just before the call that admitted it, or, if that had
to wait, the moment when its place came. The server writes that down beside its own clock when the request is there.
"""

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from urllib.parse import urlsplit

import clients

from workglow_limit import Store, _sending

exchange = ContextVar("exchange")


def stamped(waits):
    """The waits of a client, which stamp the request that is about to be sent."""
    acquire = waits.acquire

    async def stamping(*arguments):
        asked = time.monotonic_ns()
        permit = await acquire(*arguments)
        ready = permit.ready_at_monotonic
        exchange.get().request.headers["X-Asked"] = str(asked if ready is None else int(ready * 10**9))
        return permit

    waits.acquire = stamping


stamped(_sending.IN_THREAD)
stamped(_sending.IN_LOOP)
attempt = _sending.Sending.attempt


async def noted(self, of):
    exchange.set(of)
    return await attempt(self, of)


_sending.Sending.attempt = noted


async def requests(client, url, count):
    for _ in range(count):
        response = await client.open(f"{url}/x", headers={})
        await client.read(response)
        await client.close(response)


async def refuse(kind, client, limiter, url):
    """A request that is refused: from what this prints on all are paused. Then some to a host without a limit."""
    response = await client.open(f"{url}/y?status=429&times=1&retry-after=1", headers={})
    print(time.monotonic_ns(), flush=True)
    await client.close(response)
    client = kind({urlsplit(url).netloc: limiter}, timeout=0)
    await requests(client, url.replace("127.0.0.1", "localhost"), 3)  # They would fail if they had to wait.
    await client.end()


async def in_loop(make, url, count, at_once):
    client = make()
    await asyncio.gather(*(requests(client, url, count // at_once) for _ in range(at_once)))
    await client.end()


def main(store, url, kind, count, at_once, refused):
    limiter, kind = Store(store).limiter("api", "20/500ms"), getattr(clients, kind)

    def make():
        return kind({urlsplit(url).netloc: limiter})

    if "Async" in kind.__name__ or kind is clients.Aiohttp:
        return asyncio.run(in_loop(make, url, count, at_once))
    client = make()
    with ThreadPoolExecutor(at_once) as threads:
        started = [threads.submit(lambda: _sending.run(requests(client, url, count // at_once))) for _ in range(at_once)]
        if refused:
            _sending.run(refuse(kind, client, limiter, url))
        for work in started:
            work.result()
    return _sending.run(client.end())


store, url, kind, count, at_once, *refused = sys.argv[1:]
main(store, url, kind, int(count), int(at_once), bool(refused))
