"""10,000 tasks that wait for one limit, in asyncio: how long they take, and what that costs."""

import asyncio
import time
from typing import Any

import aiolimiter
from timing import show
from workglow_limit import RateLimiter, Store

# Without a limiter's own delays they would take three quarters of a second.
WAITERS, LIMIT, WINDOW = 10_000, 2_500, 0.25
AT_MOST = 4.0


async def crowd(acquire) -> dict[str, Any]:
    started = []

    async def one():
        await acquire()
        started.append(time.perf_counter_ns())

    begin, cpu = time.perf_counter_ns(), time.process_time_ns()
    tasks = [asyncio.create_task(one()) for _ in range(WAITERS)]
    done, late = await asyncio.wait(tasks, timeout=AT_MOST)
    cpu = time.process_time_ns() - cpu
    for task in late:
        task.cancel()
    took, count = max(started) - begin, len(started)
    told = {"ns": round(took / count, 1), "cpu_ns": round(cpu / count, 1), "per_s": round(count * 1e9 / took)}
    return told | {"waiters": WAITERS, "started": count, "limit": LIMIT, "window_ms": int(WINDOW * 1e3)}


def measure(is_wanted) -> None:
    ours = lambda: RateLimiter(Store("memory:"), "crowd", max_executions=LIMIT, window_size_in_seconds=WINDOW).acquire_async
    theirs = lambda: aiolimiter.AsyncLimiter(LIMIT, WINDOW).acquire
    for name, package, make in [("memory 10,000 waiters", "workglow-limit", ours), ("aiolimiter: 10,000 waiters", "aiolimiter", theirs)]:
        if is_wanted(name):
            show(name, package, asyncio.run(crowd(make())))
