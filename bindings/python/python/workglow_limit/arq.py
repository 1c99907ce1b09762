"""Limits that hold across all workers, processes and languages, for arq.

    from workglow_limit.arq import limited

    @limited(openai, key="tenant")
    async def ask(ctx, tenant, prompt): ...

    class WorkerSettings:
        functions = [ask]

A job that cannot start now takes its place and is deferred until then: the worker takes others, `job_try` stays.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import wraps
from typing import Any, TypeVar, cast

from arq import ArqRedis, Retry
from arq.constants import retry_key_prefix

from ._decorator import is_awaited
from ._line import RedisLine
from ._native import Limiter
from ._queueing import Later, Limited, Turn, Usual, current_permit, gate_of, limiting

__all__ = ["Limited", "current_permit", "limited"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: With the id of a job, the Redis key of its place.
PREFIX = "arq:workglow-limit:"

#: With what it is for, the Redis key of a line of jobs that have no place.
LINE = "arq:workglow-limit-line:"

#: Workers look every half a second, if their settings do not say otherwise.
USUAL = Usual(grace=0.5, early=0.15)

#: For how long a place that nobody comes for is kept in Redis, in seconds: it has long passed then.
KEPT = 60


def limited(
    limiter: Limiter,
    key: str | Callable[..., Any] | None = None,
    *,
    weight: int | str | Callable[..., int] = 1,
    hold: float | timedelta = 0.15,
    grace: float | timedelta | None = None,
    on_limited: Callable[[dict[Any, Any], Limited], object] | None = None,
) -> Callable[[_F], _F]:
    """The jobs of this coroutine function start when `limiter` admits them.

    `key` and `weight` are an argument's name, a format of arguments such as `"{tenant}:{model}"` (keys only), or a function
    of the arguments, `ctx` included. A wait of up to `hold` seconds is waited for in the worker, among its `max_jobs`.
    `grace` is how late a job may come to its place, in seconds: a 40th of the limit's window if not given, from 0.5 s to
    10 s. `on_limited(ctx, limited)` is called after each job that was deferred.

    Raises InvalidArgument or TypeError for what cannot be meant. A call without a worker waits for its start.
    """
    decorate = limiting(limiter, key, weight, hold, grace, on_limited, USUAL)

    def decorated(function: _F) -> _F:
        if not is_awaited(function):
            raise TypeError(f"{function!r} is no coroutine function, and arq runs no others")
        body = decorate(function)
        gate = gate_of(body)
        assert gate is not None

        @wraps(body)
        async def job(ctx: dict[Any, Any], /, *args: Any, **kwargs: Any) -> Any:
            if "job_id" not in ctx:
                return await body(ctx, *args, **kwargs)
            gate.line = RedisLine(ctx["redis"], LINE)
            answer = await gate.admit_async(((ctx, *args), kwargs), await _ticket(ctx))
            if isinstance(answer, Later):
                await _keep(ctx, answer)
                gate.tell(ctx, answer)
                raise Retry(answer.delay)
            with Turn(gate, answer):
                return await body(ctx, *args, **kwargs)

        return cast(_F, job)

    return decorated


async def _ticket(ctx: dict[Any, Any]) -> str | None:
    """What a job has brought back, once: a place starts once."""
    if ctx["score"] <= ctx["enqueue_time"].timestamp() * 1000:
        return None  # It was never deferred.
    name = PREFIX + ctx["job_id"]
    async with cast("ArqRedis", ctx["redis"]).pipeline(transaction=True) as pipeline:
        pipeline.get(name)
        pipeline.delete(name)
        kept, _ = await pipeline.execute()
    return None if kept is None else kept.decode()


async def _keep(ctx: dict[Any, Any], later: Later) -> None:
    """Notes its ticket, and that this run of it was no try."""
    async with cast("ArqRedis", ctx["redis"]).pipeline(transaction=True) as pipeline:
        pipeline.psetex(PREFIX + ctx["job_id"], int((later.limited.wait + KEPT) * 1000), later.ticket)
        pipeline.decr(retry_key_prefix + ctx["job_id"])
        await pipeline.execute()
