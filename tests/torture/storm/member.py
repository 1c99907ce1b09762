"""A Python member of the storm: member.py STORE LIMIT WINDOW_SECONDS FOLDER."""

import sys
import time
from pathlib import Path

from workglow_limit import RateLimiter, Store

sys.path.append(str(Path(__file__).resolve().parents[3] / "examples/fleet"))
from evidence import Recorder

store, limit, window, folder = sys.argv[1:]
limiter = RateLimiter(Store(store), "storm", max_executions=int(limit), window_size_in_seconds=float(window))
recorder = Recorder(folder, "python")
while True:
    asked = time.monotonic_ns()
    permit = limiter.try_acquire()
    if permit is None:
        time.sleep(0.0002)
    else:
        recorder.start(asked, permit)
        time.sleep(0.002)  # the job
        permit.complete()
