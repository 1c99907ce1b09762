"""Limits for arq jobs that hold across all workers, processes and languages.

    from workglow_limit.arq import limited

    @limited(openai, key="tenant")
    async def ask(ctx, tenant, prompt): ...

    class WorkerSettings:
        functions = [ask]

A job that cannot start now takes a place and is deferred until then. The worker runs others, and `job_try` does not
change.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar, cast

from arq import ArqRedis, Retry
from arq.constants import retry_key_prefix

from ._decorator import is_awaited
from ._derived import KeyOf, WeightOf
from ._native import Limiter
from ._queueing import Later, Limited, Timing, Turn, current_permit, gate_of, limiting
from ._return_schedule import RedisSchedule

__all__ = ["Limited", "current_permit", "limited"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: The prefix of the Redis key of a job's place, before the job's id.
PREFIX = "arq:workglow-limit:"

#: The prefix of the Redis key of a schedule of jobs without a place, before its name.
SCHEDULE = "arq:workglow-limit-line:"

#: Workers poll every half a second by default.
TIMING = Timing(grace=0.5, early=0.15)

#: How long a place remains in Redis after its time if its job does not return, in seconds.
KEPT = 60


def limited(
    limiter: Limiter,
    key: KeyOf | None = None,
    *,
    weight: WeightOf = 1,
    hold: float | timedelta = 0.15,
    grace: float | timedelta | None = None,
    on_limited: Callable[[dict[Any, Any], Limited], object] | None = None,
) -> Callable[[_F], _F]:
    """Decorates a coroutine function. Its jobs start when `limiter` admits them.

    `key` and `weight` are the name of an argument, a format of arguments such as `"{tenant}:{model}"` (keys only), or a
    function of the arguments, `ctx` included; or a mapping with one of these for each of some parts of a composite. A
    job waits up to `hold` seconds in the worker, as one of its `max_jobs`; a longer wait defers it. `grace` is how late
    a job may be at its place, in seconds; by default a 40th of the limit's window, from 0.5 s to 10 s. `on_limited(ctx,
    limited)` is called after each job that was deferred.

    Raises InvalidArgument or TypeError for invalid arguments. A call without a worker waits for its start.
    """
    decorate = limiting(limiter, key, weight, hold, grace, on_limited, TIMING)

    def decorated(function: _F) -> _F:
        if not is_awaited(function):
            raise TypeError(f"{function!r} is not a coroutine function: arq runs only coroutine functions")
        body = decorate(function)
        gate = gate_of(body)
        assert gate is not None

        @wraps(body)
        async def job(ctx: dict[Any, Any], /, *args: Any, **kwargs: Any) -> Any:
            if "job_id" not in ctx:
                return await body(ctx, *args, **kwargs)
            gate.schedule = RedisSchedule(ctx["redis"], SCHEDULE)
            answer = await gate.admit_async(((ctx, *args), kwargs), await _ticket(ctx))
            if isinstance(answer, Later):
                await _keep(ctx, answer)
                gate.notify(ctx, answer)
                raise Retry(answer.delay)
            with Turn(gate, answer):
                return await body(ctx, *args, **kwargs)

        return cast(_F, job)

    return decorated


async def _ticket(ctx: dict[Any, Any]) -> str | None:
    """Removes and returns the ticket of a job. A place starts once."""
    if ctx["score"] <= ctx["enqueue_time"].timestamp() * 1000:
        return None  # It was never deferred.
    name = PREFIX + ctx["job_id"]
    async with cast("ArqRedis", ctx["redis"]).pipeline(transaction=True) as pipeline:
        pipeline.get(name)
        pipeline.delete(name)
        kept, _ = await pipeline.execute()
    return None if kept is None else kept.decode()


async def _keep(ctx: dict[Any, Any], later: Later) -> None:
    """Keeps the ticket of a job, and does not count this run as a try."""
    async with cast("ArqRedis", ctx["redis"]).pipeline(transaction=True) as pipeline:
        pipeline.psetex(PREFIX + ctx["job_id"], int((later.limited.wait + KEPT) * 1000), later.ticket)
        pipeline.decr(retry_key_prefix + ctx["job_id"])
        await pipeline.execute()
