"""The Celery member: two prefork children, each with a task that waits for a start.

The limiter is made at import, in the worker's main process, and used in the children that it forks.
"""

import functools
import os
import time

from celery import Celery  # type: ignore[import-untyped]
from evidence import Recorder
from workglow_limit import RateLimiter, Store

LIMITER = RateLimiter(
    Store(os.environ["FLEET_STORE"]),
    "fleet",
    max_executions=int(os.environ["FLEET_LIMIT"]),
    window_size_in_seconds=float(os.environ["FLEET_WINDOW"]),
)
JOB_SECONDS = int(os.environ["FLEET_JOB_MS"]) / 1000

# A broker without a server: messages are files. The conductor moves each message from the outbox to the inbox, so that
# a worker never finds half of one.
BROKER = os.environ["FLEET_BROKER"]
app = Celery("fleet", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": f"{BROKER}/inbox",
        "data_folder_out": f"{BROKER}/outbox",
        "processed_folder": f"{BROKER}/processed",
        "control_folder": f"{BROKER}/control",
        "store_processed": True,
        "polling_interval": 0.01,
    },
    task_ignore_result=True,
    worker_enable_remote_control=False,
)


@functools.cache
def begin() -> Recorder:
    """Runs once in each child: reports that it is ready, and waits for the start of the run."""
    recorder = Recorder(os.environ["FLEET_STARTS"], "celery")
    os.write(1, b"celery\n")
    open(os.environ["FLEET_GO"]).close()
    return recorder


@app.task  # type: ignore[untyped-decorator]
def job() -> None:
    recorder = begin()
    asked = time.monotonic_ns()
    with LIMITER.acquire(timeout=30) as permit:
        recorder.start(asked, permit)
        time.sleep(JOB_SECONDS)
