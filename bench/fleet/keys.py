"""Measures the memory of a key on a Redis server, and checks that unused keys expire: keys.py [KEYS]

Prints a table in Markdown: bytes of the server's memory for each of KEYS keys (100,000) of one limit, after one start each, and after
two; and when all have expired. Run it with the bench's Python (`make peers` makes it).
"""

import re
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loads import ROOT
from workglow_limit import ConcurrencyLimiter, FixedWindowLimiter, RateLimiter, Store, TokenBucketLimiter

sys.path.insert(0, str(ROOT / "tests/torture/storm"))
from servers import Redis

WINDOW = 60
PATIENCE = 6 * WINDOW  # seconds after which remaining keys count as permanent


def limiters(store):
    return {
        "rolling window, 10/1 min": RateLimiter(store, "rate", max_executions=10, window_size_in_seconds=WINDOW),
        # Slower, because it forgets a start after a tenth of the time, before all keys have started.
        "token bucket, 10/10 min": TokenBucketLimiter(store, "bucket", rate=10, period=10 * WINDOW, burst=10),
        "window of the clock, 10/1 min": FixedWindowLimiter(
            store, "fixed", max_executions=10, window_size_in_seconds=WINDOW
        ),
        "concurrency, 10": ConcurrencyLimiter(10, store=store, name="leases"),
    }


def measure(name, directory, keys):
    """Returns a row: bytes per key after one start and after two, server keys per key, when these expired, and when all others did."""
    server = Redis(Path(directory))
    store = Store(server.url(server.address[1]))
    limiter = limiters(store)[name]

    def used():
        return int(server.info("memory")["used_memory"])

    def there():
        """Returns how many keys have a time to live. The others are a few for each limit and store."""
        return int((re.search(r"expires=(\d+)", server.info("keyspace").get("db0", "")) or [0, 0])[1])

    def gone(left):
        while there() > left and time.monotonic() - began < PATIENCE:
            time.sleep(1)
        return f"{time.monotonic() - began:.0f} s" if there() <= left else f"{there()} still there after {PATIENCE} s"

    limiter.peek()
    before = used()
    bytes_each, permits = [], []
    for _ in range(2):
        permits += [limiter.try_acquire(key) for key in keys]
        bytes_each.append((used() - before) / len(keys))
    assert all(permits)
    keys_each = there() / len(keys)
    for permit in permits:
        permit.complete()
    began = time.monotonic()
    # The list of a limit's keys, which is one key, expires later.
    times = gone(1), gone(0)
    row = f"| {name} | {bytes_each[0]:.0f} | {bytes_each[1]:.0f} | {keys_each:.2f} | {times[0]} | {times[1]} |"
    return f"{row} {(used() - before) / len(keys):.1f} |"


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    keys = [f"tenant-{number}" for number in range(count)]
    print(
        f"| {count:,} keys of | bytes each | after two starts | keys of Redis each | these gone after | all gone after | bytes each then |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    # A server of its own for each, all at once: most of the time is waiting.
    with tempfile.TemporaryDirectory(prefix="keys-") as directory, ThreadPoolExecutor() as pool:
        for row in pool.map(lambda name: measure(name, directory, keys), limiters(Store("memory:"))):
            print(row, flush=True)


if __name__ == "__main__":
    main()
