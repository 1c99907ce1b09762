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
order = []


async def job(number):
    await limiter.acquire_async()
    order.append(number)


async def block():
    while len(order) < waiters:
        time.sleep(0.06)
        await asyncio.sleep(0.06)


async def loop():
    tasks = [asyncio.create_task(job(number)) for number in range(waiters)]
    await asyncio.sleep(0)
    await asyncio.gather(*tasks, *([block()] if how == "busy" else []))


def threads():
    def one(number):
        limiter.acquire()
        order.append(number)

    all_of_them = [threading.Thread(target=one, args=[number]) for number in range(waiters)]
    for thread in all_of_them:
        thread.start()
    for thread in all_of_them:
        thread.join()


before, began, cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic(), time.process_time()
threads() if how == "threads" else asyncio.run(loop())
took, cpu = time.monotonic() - began, time.process_time() - cpu
kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
in_order = sum(a < b for a, b in zip(order, order[1:]))
# The first window's starts are there at once.
delivered = (waiters - rate) / (rate * took) if waiters > rate else 1.0
print(
    f"{how}: {waiters} waiters on {rate}/s took {took:.2f} s: {delivered:.1%} of the limit, {cpu / took:.1%} of a core, "
    f"{in_order + 1} of {waiters} in order, {kilobytes / waiters:.2f} KB each"
)
