"""Limits for RQ jobs that hold across all workers, processes and languages.

    from workglow_limit.rq import limited

    @limited(openai, key="tenant")
    def ask(tenant, prompt): ...

    $ rq worker --worker-class workglow_limit.rq.LimitedWorker

A job that cannot start now takes a place and is scheduled for then. The worker runs others, and the job's retries do
not change.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeVar, cast

from redis import ConnectionPool, Redis, RedisError
from rq import Queue, Worker, connections
from rq.job import Job
from rq.utils import now, utcformat
from rq.worker import BaseWorker

from ._derived import Arguments, KeyOf, WeightOf
from ._native import Limiter, Permit
from ._queueing import Gate, Later, Limited, Timing, Turn, current_permit, gate_of, limiting
from ._return_schedule import RedisSchedule

if TYPE_CHECKING:
    from rq.executions import Execution

__all__ = ["Limited", "LimitedWorker", "Limits", "current_permit", "limited"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: The field of a job's hash that holds its place.
FIELD = "workglow_limit"

#: A worker runs one job at a time and forks for each.
TIMING = Timing(grace=0.25, early=0.05)

#: The interval at which a worker checks for jobs whose time has come, in seconds. RQ's own scheduler checks once a
#: second.
POLL = 0.05

#: How long the lateness and duration of jobs are remembered, in seconds.
KEPT = 3600

_log = logging.getLogger("workglow_limit")


def limited(
    limiter: Limiter,
    key: KeyOf | None = None,
    *,
    weight: WeightOf = 1,
    hold: float | timedelta = 0.15,
    grace: float | timedelta | None = None,
    on_limited: Callable[[Job, Limited], object] | None = None,
) -> Callable[[_F], _F]:
    """Decorates a function. Its jobs start when `limiter` admits them. They need a `LimitedWorker`.

    `key` and `weight` are the name of an argument, a format of arguments such as `"{tenant}:{model}"` (keys only), or a
    function of the arguments; or a mapping with one of these for each of some parts of a composite. A job waits up to
    `hold` seconds in the worker; a longer wait schedules it. `grace` is how late a job may be at its place, in seconds;
    by default a 40th of the limit's window, from 0.25 s to 10 s. `on_limited(job, limited)` is called after each job
    that was scheduled.

    Raises InvalidArgument or TypeError for invalid arguments. A call without a `LimitedWorker` waits for its start.
    """
    return limiting(limiter, key, weight, hold, grace, on_limited, TIMING)


#: Sends a job away until its return, by Redis's clock. A job that was cancelled or deleted is not sent away.
_AWAY = """
if redis.call('HGET', KEYS[2], 'status') ~= 'queued' then
    return 0
end
local now = redis.call('TIME')
redis.call('HSET', KEYS[2], 'status', 'scheduled', ARGV[3], ARGV[4])
redis.call('ZADD', KEYS[1], now[1] + now[2] / 1e6 + ARGV[1], ARGV[2])
return 1
"""
#: Moves jobs whose time has come to the front of their queue, in their order, because they have already queued once.
_BACK = """
local now = redis.call('TIME')
now = string.format('%.6f', now[1] + now[2] / 1e6)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1000)
for i = #due, 1, -1 do
    local job = ARGV[1] .. due[i]
    redis.call('ZREM', KEYS[1], due[i])
    if redis.call('HGET', job, 'status') == 'scheduled' then
        redis.call('HSET', job, 'status', 'queued', 'enqueued_at', ARGV[2])
        redis.call('LPUSH', KEYS[2], due[i])
    end
end
"""


def _waiting(queue: Queue) -> str:
    """Returns the key of the sorted set of a queue's jobs that wait for their limit."""
    return f"{queue.key}:workglow-limit"


def _learned(job: Job, queue: Queue) -> str:
    """Returns the key of the recent lateness and duration of a function's jobs."""
    return f"{_waiting(queue)}:learned:{job.func_name}"


def _gate(job: Job) -> tuple[Gate | None, Arguments]:
    """Returns the gate and the arguments of a job. RQ itself fails jobs that cannot be read."""
    read = cast("Any", job)
    try:
        return gate_of(read.func), (tuple(read.args), dict(read.kwargs))
    except Exception:
        return None, ((), {})


class Limits(BaseWorker):
    """A mixin that lets a worker run `limited` jobs: `class MyWorker(Limits, SpawnWorker)`."""

    def bootstrap(self, *args: Any, **kwargs: Any) -> None:
        """Starts the thread that returns jobs whose time has come."""
        super().bootstrap(*args, **kwargs)
        self._returner = _Returner(self)
        self._returner.return_due()  # A worker in burst mode checks once.
        self._returner.start()

    def teardown(self) -> None:
        """Ends that thread."""
        self._returner.end()
        super().teardown()  # type: ignore[no-untyped-call, unused-ignore]

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Executes a job or sends it away."""
        # A decision costs less than a fork. But do not import the job's module here if the worker has not imported it.
        if (job.func_name or "").rpartition(".")[0] in sys.modules:
            gate, arguments = _gate(job)
            if gate is not None:
                with suppress(Exception):  # The work horse gets the same error and fails the job.
                    later = gate.send_away_early(arguments, self._recall(job, queue, gate))
                    if later is not None:
                        self._send_away(job, queue, None, gate, later)
                        return
        super().execute_job(job, queue)

    def perform_job(self, job: Job, queue: Queue, execution: Execution) -> bool:
        """As `execute_job`, in the work horse, which takes the start."""
        gate, arguments = _gate(job)
        if gate is None:
            return super().perform_job(job, queue, execution)
        ticket = self._recall(job, queue, gate)
        learned = gate.learned
        outcome: Permit | Exception
        try:
            answer = gate.admit(arguments, ticket)
            if isinstance(answer, Later):
                self._send_away(job, queue, execution, gate, answer)
                return True
            outcome = answer
            if ticket is not None:
                self.connection.hdel(job.key, FIELD)  # A place starts once.
        except Exception as error:  # The job fails with it, as if its function had raised it.
            outcome = error
        try:
            with Turn(gate, outcome):
                return super().perform_job(job, queue, execution)
        finally:
            if gate.learned != learned:
                text = " ".join(f"{seconds:.3f}" for seconds in gate.learned)
                self.connection.set(_learned(job, queue), text, ex=KEPT)

    def _recall(self, job: Job, queue: Queue, gate: Gate) -> str | None:
        """Returns the ticket of a job. Also restores what the gate has learned, because a work horse ends with its job."""
        gate.schedule = schedule = RedisSchedule(self.connection, f"{_waiting(queue)}:line:")
        gate.is_waiting = schedule.is_waiting
        with cast("Any", self.connection).pipeline() as pipeline:
            pipeline.hget(job.key, FIELD)
            pipeline.get(_learned(job, queue))
            kept, learned = pipeline.execute()
        if learned is not None:
            late, duration = map(float, learned.split())
            gate.learned = late, duration
        return None if kept is None else str(kept, "utf-8")

    def _send_away(self, job: Job, queue: Queue, execution: Execution | None, gate: Gate, later: Later) -> None:
        """Sends a job away and removes this execution without a trace, in one transaction."""
        away = self.connection.register_script(_AWAY)
        with cast("Any", self.connection).pipeline() as pipeline:
            away(keys=[_waiting(queue), job.key], args=[later.delay, job.id, FIELD, later.ticket], client=pipeline)
            self.cleanup_execution(job, pipeline=pipeline, execution=execution)
            pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
            was_sent = pipeline.execute()[0]
        if was_sent:
            gate.notify(job, later)
        else:
            gate.return_place(later.ticket)


class LimitedWorker(Limits, Worker):
    """RQ's worker for `limited` and all other jobs."""


class _Returner(Thread):
    """Returns jobs to a worker's queues when their time has come."""

    def __init__(self, worker: BaseWorker) -> None:
        super().__init__(name="workglow-limit", daemon=True)
        kind, connection, options = cast("Any", connections).parse_connection(worker.connection)
        # A connection pool of its own, because work horses are forked while it is in use.
        self._redis: Redis = kind(connection_pool=ConnectionPool(connection_class=connection, **options))
        self._back = self._redis.register_script(_BACK)
        self._queues = list(worker.queues)
        self._prefix = worker.job_class.redis_job_namespace_prefix
        self._over = Event()

    def return_due(self) -> None:
        for queue in self._queues:
            self._back(keys=[_waiting(queue), queue.key], args=[self._prefix, utcformat(now())])

    def run(self) -> None:
        while not self._over.wait(POLL):
            try:
                self.return_due()
            except RedisError:
                _log.exception("limited jobs could not be returned to their queues: the next attempt is in 1 s")
                self._over.wait(1)

    def end(self) -> None:
        self._over.set()
        self.join()
        with suppress(RedisError):
            self._redis.close()
