"""A Python member of the storm: member.py STORE LIMIT WINDOW_SECONDS FOLDER [NAME WAIT]

With NAME and WAIT it is a site of a fleet: its limiter has that name, an error of the store is a denial, and it waits up to WAIT
seconds for each start, or not at all (0).
"""

import random
import sys
import time
from pathlib import Path

from workglow_limit import AcquireTimeout, RateLimiter, Store

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples/fleet"))
from evidence import Recorder

store, limit, window, folder, *site = sys.argv[1:]
name, wait = (site[0], float(site[1])) if site else ("storm", 0)
options = {"timeout": 0.3, "on_error": "deny"} if site else {}
limiter = RateLimiter(Store(store, **options), name, max_executions=int(limit), window_size_in_seconds=float(window))
recorder = Recorder(folder, "python")


def attempt():
    if not wait:
        return limiter.try_acquire()
    try:
        return limiter.acquire(timeout=random.uniform(0, wait))
    except AcquireTimeout:
        return None


while True:
    asked = time.monotonic_ns()
    permit = attempt()
    if permit is None:
        time.sleep(0.001 if site else 0.0002)
        continue
    # (The time at which a waiter's place was ready is uncertain where the clock follows a server's: see fleet.py.)
    recorder.start(asked, None if site else permit)
    if not site:
        time.sleep(0.002)  # the job
    elif random.random() < 0.025:
        time.sleep(random.uniform(0, float(window) / 40))  # so that some granted units start late
    permit.complete()
