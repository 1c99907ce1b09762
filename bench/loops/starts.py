"""Counts function starts in rolling windows, in many runs; starts.mjs does the same for Node.

    python bench/loops/starts.py [RUNS] [LIMIT] [WINDOW_MS]

400 callers ask at once, under a limit of 100 per 100 ms, and each reads the clock first of all. Prints for each kind of callers:

at most     the most of these clocks in any half-open window, of all runs, and in how many runs it was above the limit
too close   how much less than a window lay between a start and the one LIMIT later, at most
surely      the same count for starts that surely lie in one window. A start lies between two clocks: the last one that was read before its
            decision, by the function before it or by a task that ticks, and its function's. The limit counts it in between: an interruption
            of the process between the decision and the function's clock brings the two clocks of starts closer, not the starts
"""

import asyncio
import sys
import threading
import time

from workglow_limit import RateLimiter, Store

RUNS, LIMIT, WINDOW = (
    int(sys.argv[i + 1]) if len(sys.argv) > i + 1 else usual for i, usual in enumerate((100, 100, 100))
)
CALLS = 4 * LIMIT


class Run:
    def __init__(self):
        self.limiter = RateLimiter(Store("memory:"), "api", max_executions=LIMIT, window_size_in_seconds=WINDOW / 1000)
        self.starts, self.last = [], time.monotonic_ns()

    def work(self):
        began = time.monotonic_ns()
        self.starts.append((self.last, began))
        self.tick()

    def tick(self):
        self.last = time.monotonic_ns()


def with_asyncio(run):
    async def call():
        async with run.limiter.acquire_async():
            run.work()

    async def ticks():
        while True:
            run.tick()
            await asyncio.sleep(0.001)

    async def main():
        ticking = asyncio.ensure_future(ticks())
        await asyncio.gather(*(call() for _ in range(CALLS)))
        ticking.cancel()

    asyncio.run(main())


def with_trio(run):
    import trio

    async def call():
        async with run.limiter.acquire_async():
            run.work()

    async def ticks():
        while True:
            run.tick()
            await trio.sleep(0.001)

    async def main():
        async with trio.open_nursery() as ticking:
            ticking.start_soon(ticks)
            async with trio.open_nursery() as nursery:
                for _ in range(CALLS):
                    nursery.start_soon(call)
            ticking.cancel_scope.cancel()

    trio.run(main)


def with_threads(run):
    """A thread's clock before it asks, or the moment when its place was ready, is surely before its decision."""

    def calls():
        for _ in range(CALLS // 20):
            asked = time.monotonic_ns()
            with run.limiter.acquire() as permit:
                began = time.monotonic_ns()
                ready = permit.ready_at_monotonic
                run.starts.append((asked if ready is None else int(ready * 1e9), began))

    threads = [threading.Thread(target=calls) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def judge(starts):
    """The most at the functions' clocks, the most that are surely in one window, and the least distance, less than a window."""
    window, first, most = WINDOW * 1_000_000, 0, 0
    began = sorted(at for _, at in starts)
    for i, at in enumerate(began):
        while began[first] <= at - window:
            first += 1
        most = max(most, i - first + 1)
    surely = max(sum(before >= a and at < a + window for before, at in starts) for a, _ in starts)
    short = max(window - (began[i] - began[i - LIMIT]) for i in range(LIMIT, len(began)))
    return most, surely, short


def main():
    for name, way in [("asyncio", with_asyncio), ("trio", with_trio), ("threads", with_threads)]:
        found = []
        for _ in range(RUNS):
            run = Run()
            way(run)
            found.append(judge(run.starts))
        most, surely, short = (max(one[i] for one in found) for i in range(3))
        over = sum(one[0] > LIMIT for one in found)
        print(
            f"Python, {name}: {RUNS} runs, at most {most} of {LIMIT} by the functions' clocks ({over} runs above it; "
            f"{max(short, 0) / 1000:.0f} µs too close), {surely} surely"
        )


if __name__ == "__main__":
    main()
