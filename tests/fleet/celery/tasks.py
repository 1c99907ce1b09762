"""The worker's side: a task under a limit and one without, and a log of what happens to both.

The conductor selects the limiter of the task by the environment: ours, Celery's own `rate_limit`, or the usual recipe
of a shared counter and `retry`.

Each process appends lines to its own log, with times in nanoseconds on CLOCK_MONOTONIC:

    ready                                  the worker takes messages
    received JOB TIME RETRIES              its main process has got a message of the job
    started JOB A B RETRIES                the job's code runs: it was admitted in [A, B]
    ended JOB TIME                         it has run to its end
"""

import functools
import os
import time

from brokers import settings
from celery import Celery, signals

WHO = os.environ["FLEET_WHO"]
LIMIT, WINDOW = int(os.environ["FLEET_LIMIT"]), float(os.environ["FLEET_WINDOW"])
JOB_SECONDS = float(os.environ["FLEET_JOB_SECONDS"])
UNTIL = os.environ.get("FLEET_UNTIL")  # a file that all running jobs wait for
STORE = os.environ["FLEET_STORE"]

app = Celery("fleet")
app.conf.update(settings(os.environ["FLEET_BROKER"]), task_ignore_result=True)
app.conf.worker_disable_rate_limits = "FLEET_CHILD_ALONE" in os.environ
if visibility := os.environ.get("FLEET_VISIBILITY"):
    # A worker may be killed: its messages are redelivered this many seconds after it got them.
    app.conf.task_acks_late = True
    app.conf.broker_transport_options = {
        "visibility_timeout": float(visibility),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        # A worker that is killed while it looks for such messages keeps others from that for so long; usually for 300 s.
        "unacked_mutex_expire": 5,
    }


@functools.cache
def log(process):
    return os.open(f"{os.environ['FLEET_LOG']}/{process}.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)


def note(*words):
    """Writes one line with a single append, so that the file has the whole line or nothing."""
    os.write(log(os.getpid()), (" ".join(map(str, words)) + "\n").encode())


@signals.worker_ready.connect
def ready(**_):
    note("ready")


@signals.task_received.connect
def received(request, **_):
    note("received", request.id, time.monotonic_ns(), request.request_dict.get("retries", 0))


# A time surely before the admission in the child, for every limiter: the beginning of the call that runs the task.
asked = 0


@signals.task_prerun.connect
def about_to_run(**_):
    global asked
    asked = time.monotonic_ns()


def run(request, ready=None):
    """The job. `ready`: the ready time of its place, if it had one."""
    a = max(asked, int((ready or 0) * 1_000_000_000))
    note("started", request.id, a, time.monotonic_ns(), request.retries)
    time.sleep(JOB_SECONDS)
    wait_until_told()
    note("ended", request.id, time.monotonic_ns())


def wait_until_told():
    while UNTIL and not os.path.exists(UNTIL):
        time.sleep(0.01)


@app.task(bind=True)
def free(self):
    """A task without a limit."""
    note("started", self.request.id, asked, time.monotonic_ns(), self.request.retries)
    wait_until_told()


if WHO == "ours":
    from workglow_limit.celery import current_permit, install

    install(app, STORE)

    @app.task(
        bind=True,
        limit=os.environ["FLEET_POLICY"],
        limit_name="fleet",
        limit_key="tenant" if os.environ.get("FLEET_TENANTS") else None,
        on_limit="hold",
        limit_hold=float(os.environ["FLEET_HOLD"]),
        limit_grace=float(os.environ["FLEET_GRACE"]) if "FLEET_GRACE" in os.environ else None,
    )
    def job(self, tenant=None):
        run(self.request, current_permit().ready_at_monotonic)

elif WHO == "stock":
    # Celery counts per second, in each worker separately.
    @app.task(bind=True, rate_limit=f"{LIMIT / WINDOW:g}/s")
    def job(self):
        run(self.request)

elif WHO == "retry":
    if STORE.startswith("redis:"):
        from limits import RateLimitItemPerSecond, storage, strategies

        LIMITER = strategies.MovingWindowRateLimiter(storage.storage_from_string(STORE))
        ITEM = RateLimitItemPerSecond(LIMIT, int(WINDOW))

        def hit():
            return LIMITER.hit(ITEM, "fleet")

        def wait():
            return max(0, LIMITER.get_window_stats(ITEM, "fleet").reset_time - time.time())
    else:
        from workglow_limit import RateLimiter, Store

        LIMITER = RateLimiter(Store(STORE), "fleet", max_executions=LIMIT, window_size_in_seconds=WINDOW)

        def hit():
            return LIMITER.try_acquire() is not None

        def wait():
            return LIMITER.peek().retry_after

    @app.task(bind=True, max_retries=None)
    def job(self):
        if not hit():
            raise self.retry(countdown=wait())
        run(self.request)

else:
    raise ValueError(f"FLEET_WHO is {WHO!r}: expected ours, stock or retry")
