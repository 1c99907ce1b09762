"""Processes of a pool share one pickled limiter: python pool_program.py METHOD URL."""

import multiprocessing
import sys
import time

from workglow_limit import RateLimiter, Store

LIMIT, WINDOW = 20, 0.25


class Tenant(RateLimiter):
    """A subclass whose constructor takes other arguments."""

    def __new__(cls, store, tenant):
        made = super().__new__(cls, store, f"of {tenant}", max_executions=LIMIT, window_size_in_seconds=WINDOW)
        made.tenant = tenant
        return made


def hammer(of_minute, of_hour, windows):
    """The times of starts over some windows, and the number of starts under a limit that admits only the first ones."""
    assert (type(of_minute), of_minute.tenant) == (Tenant, "acme")
    of_minute.peek()  # opens the store, which takes its time on a busy machine
    starts, first, is_full, end = [], 0, False, time.monotonic_ns() + windows * WINDOW * 1e9
    # On a machine that stands still, the time may be over after a single window: some starts of each process are needed.
    while (before := time.monotonic_ns()) < end or not is_full or len(starts) < LIMIT // 2:
        if permit := of_minute.try_acquire():
            starts.append((before, time.monotonic_ns()))
            permit.complete()
        is_full = of_hour.try_acquire() is None
        first += not is_full
    return starts, first


if __name__ == "__main__":
    method, url = sys.argv[1:]
    store = Store(url, timeout=60)
    shared = Tenant(store, "acme"), store.limiter("hour", f"{LIMIT} per hour")
    with multiprocessing.get_context(method).Pool(4) as pool:
        answers = pool.starmap(hammer, [(*shared, 4)] * 4)
    assert shared[1].peek().remaining == 0
    print(sum(first for _, first in answers), [start for starts, _ in answers for start in starts])
