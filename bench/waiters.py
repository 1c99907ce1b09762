"""Many waiters on one limit, in asyncio and in threads: waiters.py [asyncio|busy|threads] [WAITERS [STARTS_PER_SECOND]].

Says how much of the limit was delivered, whether the order was kept, and what it cost. `busy`: the loop is blocked for 60 of
every 120 ms.
"""

import asyncio
import resource
import sys
import threading
import time

from workglow_limit import Store

how, waiters, rate = (sys.argv[1:] + ["asyncio", "100000", "10000"][len(sys.argv) - 1 :])[:3]
waiters, rate = int(waiters), int(rate)
limiter = Store("memory:").limiter("bench", f"{rate}/1s")
started = []  # (when it could start, who)


def start(number, permit):
    started.append((permit.ready_at_monotonic or time.monotonic(), number))


async def job(number):
    start(number, await limiter.acquire_async())


async def block():
    while len(started) < waiters:
        time.sleep(0.06)
        await asyncio.sleep(0.06)


async def loop():
    tasks = [asyncio.create_task(job(number)) for number in range(waiters)]
    await asyncio.sleep(0)
    await asyncio.gather(*tasks, *([block()] if how == "busy" else []))


def threads():
    all_of_them = []
    for number in range(waiters):
        all_of_them.append(threading.Thread(target=lambda number=number: start(number, limiter.acquire())))
        all_of_them[-1].start()
        time.sleep(0.0005)  # It asks before the next one does.
    for thread in all_of_them:
        thread.join()


before, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
threads() if how == "threads" else asyncio.run(loop())
cpu = time.process_time() - cpu
kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
took = max(at for at, _ in started) - min(at for at, _ in started)
numbers = [number for _, number in sorted(started)]
overtaken = sum(a > b for a, b in zip(numbers, numbers[1:]))
# The first window's starts are there at once.
delivered = (waiters - rate) / (rate * took) if waiters > rate else 1.0
print(
    f"{how}: {waiters} waiters on {rate}/s took {took:.2f} s: {delivered:.1%} of the limit, {cpu / took:.1%} of a core, "
    f"{overtaken} overtaken, {kilobytes / waiters:.2f} KB each"
)
