"""Many waiters on one limit, in asyncio and in threads: waiters.py [asyncio|busy|threads] [WAITERS
[STARTS_PER_SECOND]].

Prints the share of the limit that was used in the whole seconds after the last call, whether the order was kept, and
the cost, compared with the cost of as many tasks and futures, or threads and events, without a limit. `busy`: the loop
is blocked for 60 of every 120 ms.
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
started = []  # (ready time, waiter)
joined = 0.0  # The time at which all had called.


def start(number, permit):
    started.append((permit.ready_at_monotonic or time.monotonic(), number))


async def job(number):
    start(number, await limiter.acquire_async())


async def block():
    while len(started) < waiters:
        time.sleep(0.06)
        await asyncio.sleep(0.06)


async def loop():
    global joined
    tasks = [asyncio.create_task(job(number)) for number in range(waiters)]
    await asyncio.sleep(0)
    joined = time.monotonic()
    await asyncio.gather(*tasks, *([block()] if how == "busy" else []))


async def plain():
    """The cost of asyncio itself: as many tasks that each wait for a future."""
    futures = [asyncio.get_running_loop().create_future() for _ in range(waiters)]

    async def one(number):
        started.append((await futures[number], number))

    tasks = [asyncio.create_task(one(number)) for number in range(waiters)]
    for at in range(0, waiters, 100):
        await asyncio.sleep(0)
        for future in futures[at : at + 100]:
            future.set_result(0.0)
    await asyncio.gather(*tasks)


def threads(job):
    global joined
    all_of_them = []
    for number in range(waiters):
        all_of_them.append(threading.Thread(target=job, args=(number,)))
        all_of_them[-1].start()
        time.sleep(0.0005)  # It calls before the next one does.
    joined = time.monotonic()
    return all_of_them


def with_limit():
    for thread in threads(lambda number: start(number, limiter.acquire())):
        thread.join()


def plain_threads():
    """The cost of threads themselves: as many that each wait for an event."""
    events = [threading.Event() for _ in range(waiters)]
    all_of_them = threads(lambda number: events[number].wait())
    for event in events:
        time.sleep(1 / rate)
        event.set()
    for thread in all_of_them:
        thread.join()


before, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
with_limit() if how == "threads" else asyncio.run(loop())
cpu = time.process_time() - cpu
kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
took = max(at for at, _ in started) - min(at for at, _ in started)
# Threads wake in any order; a loop notifies its waiters in order.
numbers = [number for _, number in (sorted(started) if how == "threads" else started)]
overtaken = sum(a > b for a, b in zip(numbers, numbers[1:]))
seconds = int(max(at for at, _ in started) - joined)
delivered = sum(joined < at <= joined + seconds for at, _ in started) / (rate * seconds) if seconds > 0 else 1.0
started.clear()
before = time.process_time()
plain_threads() if how == "threads" else asyncio.run(plain())
floor = (time.process_time() - before) / took
print(
    f"{how}: {waiters} waiters on {rate}/s took {took:.2f} s: {delivered:.1%} of the limit, {cpu / took:.1%} of a core "
    f"({floor:.1%} without a limit), "
    f"{overtaken} overtaken, {kilobytes / waiters:.2f} KB each"
)
