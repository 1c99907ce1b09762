"""The app of the workers of these tests. Each started task writes a line to a file."""

import json
import os
import signal
import time
from pathlib import Path

import kombu_more  # noqa: F401
from celery import Celery, shared_task
from workglow_limit import FirstOfLimiter, Store
from workglow_limit.celery import Limited, current_permit, install

#: A task that is later than this for its place loses its unit of an hour. No worker of these tests stands still for so long.
GRACE = 30

FOLDER = Path(os.environ["WORK_FOLDER"])
BROKER = os.environ["WORK_BROKER"]

app = Celery("work", broker=BROKER, backend=BROKER if BROKER.startswith("redis") else None)
app.conf.update(
    accept_content=["json", "other"],
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        # Kombu acknowledges with one connection per greenlet. Without a free one the task is delivered again.
        "max_connections": 100,
        "visibility_timeout": int(os.environ.get("WORK_VISIBILITY", 2_000_000)),
        # Restore unacknowledged messages every second, not every hundred seconds.
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
    task_default_limit_hold=360_000,
    task_annotations={"work.annotated": {"limit": "1/1h", "limit_grace": GRACE}},
    worker_disable_rate_limits=bool(os.environ.get("WORK_DISABLE_RATE_LIMITS")),
    worker_cancel_long_running_tasks_on_connection_loss=True,
)
if BROKER == "filesystem://":
    folders = {
        "data_folder_in": "queue",
        "data_folder_out": "queue",
        "processed_folder": "done",
        "control_folder": "control",
    }
    app.conf.broker_transport_options = {option: str(FOLDER / name) for option, name in folders.items()}


def group(tag):
    """The key of a test: the tags of its tasks are GROUP-NUMBER."""
    return tag.split("-")[0]


@shared_task(name="work.shared", limit="1/1h", limit_key=group, limit_grace=GRACE)
def shared(tag):
    """A task declared before the limits are installed."""
    started(tag)


install(app, os.environ["WORK_STORE"])


store = Store(os.environ["WORK_STORE"])
#: Their windows are longer than a test.
providers = FirstOfLimiter([store.limiter("first", "2/1h"), store.limiter("second", "3/1h + 4 concurrent")])


def started(tag, **more):
    """Records the start of a task as one line, with a single append."""
    permit = current_permit()
    line = {"tag": tag, "pid": os.getpid(), "at": time.monotonic(), "permit": permit and permit.started, **more}
    line["ready"] = permit and permit.ready_at_monotonic
    with open(FOLDER / "started", "a") as file:
        file.write(json.dumps(line) + "\n")


def wait_for(name):
    """Waits until the test creates the file of this name."""
    while not (FOLDER / name).exists():
        time.sleep(0.01)


@app.task
def free(tag):
    started(tag)


@app.task
def busy(tag, until):
    started(tag)
    wait_for(until)


@app.task(limit="1/1h", limit_key=group, limit_grace=GRACE)
def hourly(tag):
    started(tag)


@app.task(limit=providers, limit_key=group, limit_weight="units", limit_grace=GRACE)
def chosen(tag, units=1):
    """Does its work at one of several providers."""
    started(tag, chosen=current_permit().chosen.name)


@app.task
def annotated(tag):
    started(tag)


@app.task(limit="2/1h", limit_key="tenant", limit_grace=GRACE)
def keyed(tag, tenant):
    started(tag)


@app.task(limit="10/1h", limit_key="{tenant}:{model}", limit_weight="tokens", limit_grace=GRACE)
def weighted(tag, tenant, model="m", tokens=1):
    started(tag)


@app.task(bind=True, limit="1/1s", limit_hold=0.2)
def often(self, tag):
    started(tag, retries=self.request.retries)


@app.task(limit="100/1h + 2 concurrent")
def composite(tag, until):
    started(tag)
    wait_for(until)


@app.task(limit="1 concurrent")
def alone(tag, until):
    started(tag, fence=current_permit().fence)
    wait_for(until)


@app.task(limit="2/1h", limit_key="tenant", on_limit="raise")
def raising(tag, tenant=None):
    started(tag)


@app.task(
    limit="1/1h", on_limit="raise", autoretry_for=(Limited,), max_retries=1, retry_backoff=False, default_retry_delay=0
)
def retrying(tag):
    started(tag)


@app.task(limit="1/1h", on_limit="wait", limit_timeout=0.1)
def waiting(tag):
    started(tag)


@app.task(limit="1/1s")
def spaced(tag):
    started(tag)


@app.task(limit="1000/1h")
def together(tag, until):
    started(tag)
    wait_for(until)


@app.task(limit="1 concurrent", soft_time_limit=1)
def struck(tag):
    wait_for("never")


@app.task(limit="20/1s")
def burst(tag):
    started(tag)


@app.task(limit="20/1s", on_limit="wait")
def patient(tag):
    started(tag)


@app.task(bind=True, limit="1/1h", on_limit="retry", limit_grace=GRACE)
def returning(self, tag):
    started(tag)


@app.task(limit="5/1h", acks_late=True, reject_on_worker_lost=True, limit_grace=GRACE)
def killed(tag, what):
    first = not (FOLDER / tag).exists()
    (FOLDER / tag).touch()
    started(tag)
    if first and what == "child":
        os.kill(os.getpid(), signal.SIGKILL)
    if first and what == "worker":
        wait_for("never")


@app.task(limit="1 concurrent", limit_name="slot", acks_late=True, reject_on_worker_lost=True)
def slotted(tag, what):
    killed.run.__wrapped__(tag, what)


@app.task(bind=True, limit="100/1h", max_retries=1)
def again(self, tag):
    started(tag, headers=self.request.headers or {}, retries=self.request.retries)
    if not self.request.retries:
        raise self.retry(countdown=0)
