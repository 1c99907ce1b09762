"""One process of several that share a limit: worker.py STORE SERVER CLIENT REQUESTS AT-ONCE [refused]"""

import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import clients
import stamps
from workglow_limit import Store, _sending

stamps.put()


async def requests(client, url, count):
    for _ in range(count):
        response = await client.open(f"{url}/x", headers={})
        await client.read(response)
        await client.close(response)


async def refuse(kind, client, limiter, url):
    """Sends a request that is refused. From the printed time on all clients are paused. Then sends some to a host without a limit."""
    response = await client.open(f"{url}/y?status=429&times=1&retry-after=1", headers={})
    print(time.monotonic_ns(), flush=True)
    await client.close(response)
    client = kind({urlsplit(url).netloc: limiter}, timeout=0)
    await requests(client, url.replace("127.0.0.1", "localhost"), 3)  # They would fail if they waited.
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
        started = [
            threads.submit(lambda: _sending.run(requests(client, url, count // at_once))) for _ in range(at_once)
        ]
        if refused:
            _sending.run(refuse(kind, client, limiter, url))
        for work in started:
            work.result()
    return _sending.run(client.end())


store, url, kind, count, at_once, *refused = sys.argv[1:]
main(store, url, kind, int(count), int(at_once), bool(refused))
