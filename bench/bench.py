"""What a decision costs in Python. Prints `case<TAB>ns per decision` lines; bench/run.py runs all languages in turn."""

import sys
from statistics import median
from timeit import repeat

from workglow_limit import RateLimiter, Store

BATCH, BATCHES = 1_000, 200

for kind, url in [("memory", "memory:"), ("sqlite", f"sqlite:{sys.argv[1]}/python.db")]:
    store = Store(url)
    # Always room: 100 in a window shorter than 100 decisions take; and never room, after the first.
    open_ = RateLimiter(store, "open", max_executions=100, window_size_in_seconds=1e-6)
    shut = RateLimiter(store, "shut", max_executions=1, window_size_in_seconds=3600)
    shut.try_acquire()
    open_.try_acquire()
    for what, limiter in [("admit", open_), ("deny", shut)]:
        seconds = repeat("f()", globals={"f": limiter.try_acquire}, repeat=BATCHES, number=BATCH)
        print(f"python {kind} {what}\t{median(seconds) / BATCH * 1e9:.1f}")
