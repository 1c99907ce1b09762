"""10,000 asyncio tasks that wait for one limit: their duration and cost."""

import asyncio
import gc
import time
from typing import Any

import aiolimiter
from timing import label, show
from workglow_limit import RateLimiter, Store

# Without the limiter's own delays they would take 0.75 s.
WAITERS, LIMIT, WINDOW = 10_000, 2_500, 0.25
AT_MOST = 2.0


async def crowd(acquire) -> dict[str, Any]:
    started = []

    async def one():
        await acquire()
        started.append(time.perf_counter_ns())

    begin, cpu = time.perf_counter_ns(), time.process_time_ns()
    tasks = [asyncio.create_task(one()) for _ in range(WAITERS)]
    _done, late = await asyncio.wait(tasks, timeout=AT_MOST)
    cpu = time.process_time_ns() - cpu
    for task in late:
        task.cancel()
    took, count = max(started) - begin, len(started)
    result = {"ns": round(took / count, 1), "cpu_ns": round(cpu / count, 1), "per_s": round(count * 1e9 / took)}
    return result | {"waiters": WAITERS, "started": count, "limit": LIMIT, "window_ms": int(WINDOW * 1e3)}


def ours():
    limiter = RateLimiter(Store("memory:"), "crowd", max_executions=LIMIT, window_size_in_seconds=WINDOW)
    return limiter.acquire_async


def of_aiolimiter():
    return aiolimiter.AsyncLimiter(LIMIT, WINDOW).acquire


def no_limit():
    """The cost of asyncio itself: each task waits for a future, and futures are done at the rate of the limit."""
    futures: list[asyncio.Future[None]] = []

    def some() -> None:
        for future in futures[:LIMIT]:
            future.set_result(None)
        del futures[:LIMIT]
        if futures:
            asyncio.get_running_loop().call_later(WINDOW, some)

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        if not futures:
            loop.call_soon(some)
        futures.append(loop.create_future())
        await futures[-1]

    return wait


CROWDS = [
    ("memory", "workglow-limit", ours),
    ("aiolimiter", "aiolimiter", of_aiolimiter),
    ("no limit", "asyncio", no_limit),
]


def measure(is_wanted) -> None:
    gc.collect()
    gc.freeze()  # Keeps the garbage collector from scanning the objects of other cases.
    for name, package, make in CROWDS:
        full = label(name, package, "10,000 waiters")
        if is_wanted(full):

            async def run():
                return await crowd(make())

            show(full, package, asyncio.run(run()))
