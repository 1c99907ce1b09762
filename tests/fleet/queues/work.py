"""What the jobs of each queue do, whichever queue it is; and what sends them. Told by the environment, see fleet.py.

A limited job writes down in which interval it started, as examples/fleet/evidence.py says: [a, b], on the clock of the
machine, where a is the clock just before the call that admitted it, or when its place came.
"""

import os
import sys
import time
from contextvars import ContextVar
from pathlib import Path

FOLDER = Path(os.environ["FLEET_FOLDER"])
WHO = os.environ["FLEET_WHO"]
BROKER = os.environ["FLEET_BROKER"]
REDIS = os.environ["FLEET_REDIS"]
LIMIT, WINDOW = int(os.environ["FLEET_LIMIT"]), int(os.environ["FLEET_WINDOW"])
JOB_SECONDS = float(os.environ["FLEET_JOB_SECONDS"])

# A record is a single append: it is in the file as a whole or not at all.
LOG = os.open(FOLDER / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
asked = ContextVar("asked")


def limiter():
    """Ours, on one file for all workers; planted: one of each process."""
    from workglow_limit import Store

    return Store(os.environ["FLEET_STORE"]).limiter("fleet", os.environ["FLEET_POLICY"])


def key(*_, **__):
    """Called just before a limiter of ours is asked."""
    asked.set(time.monotonic_ns())


def note(*words):
    os.write(LOG, f"{' '.join(map(str, words))}\n".encode())


def limited(job, why):
    note("limited", job, round(why.wait, 3), why.has_place)


def worker():
    """Who runs this: RQ forks a process for each job."""
    return os.environ.get("RQ_WORKER_ID") or os.getpid()


def started(job, attempts, a=None):
    """First thing in a job. `a` is the clock before another limiter was asked."""
    b = time.monotonic_ns()
    if a is None:
        from workglow_limit._queueing import current_permit

        permit = current_permit()
        waited = None if permit is None else permit.ready_at_monotonic
        a = b if permit is None else max(asked.get(), int((waited or 0) * 1e9))
    note("started", job, a, b, attempts, worker(), os.getpid())


def until_told(job):
    """A job whose name says so runs until it is told to end."""
    if job.startswith("long"):
        while not (FOLDER / "end").exists():
            time.sleep(0.02)
    else:
        time.sleep(JOB_SECONDS)
    note("ended", job, time.monotonic_ns())


def wanted():
    """What is to be sent: kinds and names of jobs, as they come."""
    note("sender")
    for line in sys.stdin:
        yield line.split()


def moving_window(asynchronous=False):
    """What many put into a job today: the moving window of the package `limits`, on Redis."""
    from limits import RateLimitItemPerSecond, aio, storage, strategies

    item = RateLimitItemPerSecond(LIMIT, WINDOW)
    if asynchronous:
        return aio.strategies.MovingWindowRateLimiter(storage.storage_from_string(f"async+{REDIS}", implementation="redispy")), item
    return strategies.MovingWindowRateLimiter(storage.storage_from_string(REDIS)), item
