"""Prints a table that compares this library, in front of HTTP clients, with the alternatives. It takes some ten minutes.

    python3 -m venv target/rivals
    target/rivals/bin/pip install target/dist/*.whl -r bench/clients/requirements.txt
    npm install --prefix bench/clients --no-save target/dist/*.tgz
    target/rivals/bin/python bench/clients/rivals.py [WHO ...] [--language Python|Node]

Five processes (and one alone) send as fast as their limiter lets them to one server, 8 requests at a time each. The limit is 20 per
second for all of them together (the package `limits` counts in whole seconds). Each also sends a request to another host, which is not
limited, every 50 ms. After 5.2 s one request gets a 429 with `Retry-After: 2`. It needs a redis-server.

over          the most starts that surely lie in one window, less the limit. A start lies in [a, r]: r is the server's clock when
              the request arrived; a is the clock just before the call that admitted it (ours: or the moment its place was ready),
              or, where the call cannot be observed, when the limiter returned
used          the requests that arrived within five seconds of the first start, as a share of those that the limit allows then
unrelated     the duration of requests to the other host in ms: the longest, and the median
after a 429   the number of requests that reached the server in the two seconds after the one that it refused, and when the last did
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import aiohttp
import httpx
import requests

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = ROOT / "bindings/python/tests/clients"
sys.path += [str(TESTS), str(ROOT / "examples/fleet")]

LIMIT, WINDOW = 20, 1  # requests per seconds
SENDERS = 8  # in each process
MEASURED, REFUSED, ENDS = (
    5,
    5.2,
    9.7,
)  # seconds from the beginning; requests that wait when one is to be refused may be sent before it
PAUSE = 2  # seconds
SECOND = 1_000_000_000

# ---- the clients: each returns a function for limited requests, and one for the others ----

asked = ContextVar("asked", default=None)


def stamp():
    return {"X-Asked": str(time.monotonic_ns())}


def stamped(bucket, client, method):
    """Makes a bucket of pyrate-limiter record when it was called, and a client send that time."""
    put, send = bucket.put, getattr(client, method)

    def noting(self, item):
        asked.set(time.monotonic_ns())
        return put(self, item)

    def stamping(self, request, **options):
        if asked.get():
            request.headers["X-Asked"] = str(asked.get())
        return send(self, request, **options)

    bucket.put = noting
    setattr(client, method, stamping)


def ours(at, kind, store):
    import stamps
    from workglow_limit import Store

    stamps.put()
    limits = {
        at.host: Store(at.redis if store == "Redis" else f"sqlite:{at.folder}/limits.db").limiter(
            at.name, f"{LIMIT}/{WINDOW}s"
        )
    }
    if kind == "requests":
        from workglow_limit.requests import LimitedAdapter

        session = requests.Session()
        session.mount("http://", LimitedAdapter(limits))
        get = in_thread(session.get)
    elif kind == "aiohttp":
        from workglow_limit.aiohttp import LimitedMiddleware

        get = reading(aiohttp.ClientSession(middlewares=[LimitedMiddleware(limits)]))
    else:
        from workglow_limit.httpx import AsyncLimitedTransport

        get = httpx.AsyncClient(transport=AsyncLimitedTransport(limits)).get
    return get, get


def reading(session):
    async def get(url, **options):
        async with session.get(url, **options) as response:
            await response.read()

    return get


def in_thread(send):
    return partial(asyncio.to_thread, send)


def aiolimiter(at, kind, _):
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(LIMIT, WINDOW)
    get = httpx.AsyncClient().get if kind == "httpx" else reading(aiohttp.ClientSession())

    async def send(url):
        async with limiter:
            await get(url, headers=stamp())

    return send, get


def pyrate(at, _, __):
    from pyrate_limiter import Limiter, Rate, SQLiteBucket
    from pyrate_limiter.extras.httpx_limiter import AsyncRateLimiterTransport

    stamped(SQLiteBucket, httpx.AsyncHTTPTransport, "handle_async_request")
    bucket = SQLiteBucket.init_from_file(
        [Rate(LIMIT, WINDOW * 1000)], db_path=f"{at.folder}/pyrate.db", use_file_lock=True
    )
    get = httpx.AsyncClient(mounts={f"http://{at.host}": AsyncRateLimiterTransport(Limiter(bucket))}).get
    return get, get


def requests_ratelimiter(at, _, store):
    from pyrate_limiter import InMemoryBucket, RedisBucket, SQLiteBucket
    from redis import Redis
    from requests_ratelimiter import LimiterAdapter

    buckets = {
        "memory": (InMemoryBucket, {}),
        "sqlite": (SQLiteBucket, {"path": f"{at.folder}/requests.db", "use_file_lock": True}),
        "Redis": (RedisBucket, {"redis": Redis.from_url(at.redis), "bucket_key": at.name}),
    }
    bucket, options = buckets[store]
    stamped(bucket, requests.adapters.HTTPAdapter, "send")
    session = requests.Session()
    session.mount(
        f"http://{at.host}",
        LimiterAdapter(per_second=LIMIT / WINDOW, burst=WINDOW, bucket_class=bucket, bucket_kwargs=options),
    )
    return (in_thread(session.get),) * 2


def limits(at, _, __):
    from limits import RateLimitItemPerSecond
    from limits.storage import RedisStorage
    from limits.strategies import MovingWindowRateLimiter

    limiter, item = MovingWindowRateLimiter(RedisStorage(at.redis)), RateLimitItemPerSecond(LIMIT, WINDOW)
    session = requests.Session()

    def send(url):
        headers = stamp()
        while not limiter.hit(item, at.name):
            time.sleep(max(limiter.get_window_stats(item, at.name).reset_time - time.time(), 0))
            headers = stamp()
        session.get(url, headers=headers)

    return in_thread(send), in_thread(session.get)


PYTHON = {
    "ours": (ours, "httpx sqlite", "httpx Redis", "aiohttp sqlite", "requests sqlite", "requests Redis"),
    "aiolimiter": (aiolimiter, "httpx memory", "aiohttp memory"),
    "pyrate-limiter": (pyrate, "httpx sqlite"),
    "requests-ratelimiter": (requests_ratelimiter, "requests memory", "requests sqlite", "requests Redis"),
    "limits": (limits, "requests Redis"),
}
NODE = {
    "ours": (None, "fetch sqlite", "fetch Redis", "axios sqlite"),
    "axios-rate-limit": (None, "axios memory"),
    "p-throttle": (None, "fetch memory"),
    "bottleneck": (None, "fetch memory", "fetch Redis"),
}

# ---- one Python process ----


async def work(at):
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2 * SENDERS))
    send, free = PYTHON[at.who][0](at, *at.what.split())
    free_url = f"http://{at.host.replace('127.0.0.1', 'localhost')}/free"
    await free(free_url)
    print("ready", flush=True)
    end, refuse = map(int, sys.stdin.readline().split())
    took, failed = [], []

    async def sender():
        nonlocal refuse
        while (now := time.monotonic_ns()) < end:
            path = "x"
            if now > refuse:  # The server refuses the first request to this path, of all processes.
                path, refuse = f"y?status=429&times=1&retry-after={PAUSE}", end
            try:
                await send(f"http://{at.host}/{path}")
            except Exception as error:
                failed.append(repr(error))

    tasks = [asyncio.create_task(sender()) for _ in range(SENDERS)]
    while (start := time.monotonic_ns()) < end:
        await free(free_url)
        took.append(time.monotonic_ns() - start)
        await asyncio.sleep(0.05)
    print(json.dumps([took, failed]), flush=True)
    os._exit(len(tasks) - SENDERS)  # Some still wait for their limiter.


# ---- all of them ----


@contextmanager
def started(*command):
    """Yields a process and the line that it prints when it is ready, and ends it afterwards."""
    process = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def measure(program, who, what, processes, redis):
    from evidence import most_in_any_window

    with tempfile.TemporaryDirectory(prefix="rivals-") as folder, ExitStack() as stack:
        _, url = stack.enter_context(started(sys.executable, TESTS / "fake.py", folder))
        settings = {
            "who": who, "what": what, "host": url.removeprefix("http://"), "redis": redis, "folder": folder, "name": uuid.uuid4().hex,
            "limit": LIMIT, "window": WINDOW, "senders": SENDERS, "pause": PAUSE,
        }  # fmt: skip
        begun = [stack.enter_context(started(*program, json.dumps(settings))) for _ in range(processes)]
        if [line for _, line in begun] != ["ready"] * processes:
            raise SystemExit(f"{who}, {what}: a process does not start")
        now = time.monotonic_ns()
        for process, _ in begun:
            process.stdin.write(f"{now + int(ENDS * SECOND)} {now + int(REFUSED * SECOND)}\n")
            process.stdin.flush()
        found = [json.loads(process.communicate(timeout=60)[0]) for process, _ in begun]
        lines = [tuple(map(int, line.split())) for line in Path(folder, "arrivals.log").read_text().splitlines()]
    came = [(a, r, status) for a, r, _, status in lines if a]
    first = min(a for a, _, _ in came)
    refused = next((r for _, r, status in came if status == 429), 0)
    took = [each / 1e6 for times, _ in found for each in times]
    failed = [error for _, errors in found for error in errors]
    for error in set(failed):
        print(f"{failed.count(error)} times: {error}", file=sys.stderr)
    over = max(0, most_in_any_window([(a, r) for a, r, _ in came], WINDOW * SECOND) - LIMIT)
    used = sum(r < first + MEASURED * SECOND for _, r, _ in came) / (LIMIT * MEASURED / WINDOW)
    late = [(r - refused) / SECOND for _, r, _ in came if refused < r < refused + PAUSE * SECOND]
    after = (
        "not seen"
        if not refused or refused + PAUSE * SECOND > now + ENDS * SECOND
        else f"{len(late)}, {max(late):.2f} s"
        if late
        else "0"
    )
    return over, f"{used:.0%}", f"{max(took):.0f} ms ({median(took):.1f})", after


def main():
    if sys.argv[1:2] == ["--work"]:
        return asyncio.run(work(argparse.Namespace(**json.loads(sys.argv[2]))))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("who", nargs="*", help="only these")
    parser.add_argument("--language", choices=("Python", "Node"))
    given = parser.parse_args()
    programs = {"Python": ([sys.executable, __file__, "--work"], PYTHON), "Node": (["node", HERE / "rivals.mjs"], NODE)}
    broken = 0
    with (
        tempfile.TemporaryDirectory(prefix="rivals-") as folder,
        started(sys.executable, ROOT / "tests/fleet/redis.py", folder) as (_, redis),
    ):
        for language in [given.language] if given.language else programs:
            program, everyone = programs[language]
            print(
                f"\n| {language} | processes | over the limit | used of it | unrelated: longest (median) | after a 429 |\n|{' --- |' * 6}"
            )
            for who, (_, *kinds) in everyone.items():
                for what, processes in product(kinds if who in (given.who or everyone) else (), (5, 1)):
                    over, *rest = measure(program, who, what, processes, redis)
                    print(f"| {' | '.join(map(str, [f'{who}, {what}', processes, over, *rest]))} |", flush=True)
                    broken += who == "ours" and over > 0
    return f"{broken} of ours went over the limit" if broken else None


if __name__ == "__main__":
    sys.exit(main())
