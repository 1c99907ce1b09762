"""The jobs of all queues, and their sender. The environment configures them: see fleet.py.

A limited job records the interval of its start, as in examples/fleet/evidence.py: [a, b], on the clock of the
machine, where a is the clock just before the call that admitted it, or the ready time of its place.
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

# A record is a single append, so that the file has the whole record or nothing.
LOG = os.open(FOLDER / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
asked = ContextVar("asked")


def limiter():
    """Ours, on one file for all workers; planted: one per process."""
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
    """The process id of the worker: RQ forks a process per job."""
    return os.environ.get("RQ_WORKER_ID") or os.getpid()


def started(job, attempts, a=None):
    """Called first in a job. `a` is the clock before another limiter decided."""
    b = time.monotonic_ns()
    if a is None:
        from workglow_limit._queueing import current_permit

        permit = current_permit()
        waited = None if permit is None else permit.ready_at_monotonic
        a = b if permit is None else max(asked.get(), int((waited or 0) * 1e9))
    note("started", job, a, b, attempts, worker(), os.getpid())


def until_told(job):
    """A job with this name runs as long as its worker. Some queues redeliver it later: then it is short."""
    first = FOLDER / f"{job}.began"
    if job.startswith("long") and not first.exists():
        first.touch()
        while True:
            time.sleep(60)
    time.sleep(JOB_SECONDS)
    note("ended", job, time.monotonic_ns())


def wanted():
    """Yields the kinds and names of jobs to send, as they arrive."""
    note("sender")
    for line in sys.stdin:
        yield line.split()


def moving_window(asynchronous=False):
    """The usual code in a job today: the moving window of the package `limits`, on Redis."""
    from limits import RateLimitItemPerSecond, aio, storage, strategies

    item = RateLimitItemPerSecond(LIMIT, WINDOW)
    if asynchronous:
        return aio.strategies.MovingWindowRateLimiter(
            storage.storage_from_string(f"async+{REDIS}", implementation="redispy")
        ), item
    return strategies.MovingWindowRateLimiter(storage.storage_from_string(REDIS)), item
