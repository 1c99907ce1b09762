"""Measures the longest stall of a hub of greenlets, or of an event loop, while a thousand tasks wait for one limit.

    python bench/loops/gaps.py gevent|eventlet|trio|asyncio [WAITERS]

A task sleeps for a millisecond again and again, and records how long that took. The same is measured first without waiters: that is
the share of the machine and the library. Prints one line of JSON.
"""

import json
import os
import sys
import time
import warnings

LIBRARY, WAITERS = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000
LIMIT, WINDOW = 250, 0.5

if LIBRARY == "gevent":
    import gevent as green
elif LIBRARY == "eventlet":
    # Its own look-up of names imports every HTTP client that is installed.
    os.environ["EVENTLET_NO_GREENDNS"] = "yes"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import eventlet as green
else:
    import anyio

from workglow_limit import RateLimiter, Store


class Gaps:
    def __init__(self) -> None:
        self.last, self.longest, self.count = time.perf_counter(), 0.0, 0

    def tick(self) -> None:
        now = time.perf_counter()
        self.longest, self.last, self.count = max(self.longest, now - self.last), now, self.count + 1

    def restart(self) -> float:
        longest, self.longest, self.last, self.count = self.longest, 0.0, time.perf_counter(), 0
        return longest


def limiter() -> RateLimiter:
    return RateLimiter(Store("memory:"), "crowd", max_executions=LIMIT, window_size_in_seconds=WINDOW)


def in_greenlets() -> dict[str, float]:
    gaps, limit = Gaps(), limiter()

    def watch() -> None:
        while True:
            green.sleep(0.001)
            gaps.tick()

    def job() -> None:
        with limit.acquire():
            pass

    green.spawn(watch)
    green.sleep(1)
    idle = gaps.restart()
    jobs = [green.spawn(job) for _ in range(WAITERS)]
    for each in jobs:
        each.join() if LIBRARY == "gevent" else each.wait()
    return {"idle_ms": idle * 1e3, "longest_ms": gaps.longest * 1e3, "ticks": gaps.count}


async def in_tasks() -> dict[str, float]:
    gaps, limit = Gaps(), limiter()

    async def watch() -> None:
        while True:
            await anyio.sleep(0.001)
            gaps.tick()

    async def job() -> None:
        async with limit.acquire_async():
            pass

    async with anyio.create_task_group() as others:
        others.start_soon(watch)
        await anyio.sleep(1)
        idle = gaps.restart()
        async with anyio.create_task_group() as jobs:
            for _ in range(WAITERS):
                jobs.start_soon(job)
        others.cancel_scope.cancel()
    return {"idle_ms": idle * 1e3, "longest_ms": gaps.longest * 1e3, "ticks": gaps.count}


result = anyio.run(in_tasks, backend=LIBRARY) if LIBRARY in ("trio", "asyncio") else in_greenlets()
print(json.dumps({"library": LIBRARY, "waiters": WAITERS} | {name: round(value, 2) for name, value in result.items()}))
