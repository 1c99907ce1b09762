"""Limits that hold across all workers, processes and languages, for taskiq.

    from workglow_limit.taskiq import Limits, limited

    broker = ListQueueBroker("redis://localhost").with_middlewares(Limits())

    @broker.task
    @limited(openai, key="tenant")
    async def ask(tenant: str, prompt: str) -> None: ...

A task that cannot start now takes its place and leaves the worker until then: that takes others, `_retries` stays.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from taskiq import NoResultError, TaskiqMessage, TaskiqMiddleware, TaskiqResult
from taskiq.labels import prepare_label

from ._line import RedisLine
from ._loops import in_thread
from ._native import Limiter, Permit
from ._queueing import Later, Limited, Turn, Usual, current_permit, gate_of, limiting

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from taskiq import AsyncBroker

__all__ = ["Limited", "Limits", "current_permit", "limited"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: The label of a message that carries its place.
LABEL = "workglow_limit"

#: Messages come back on time, but others may be before them.
USUAL = Usual(grace=0.15, early=0.03)

#: Workers look at least so often for messages whose time has come: for those of workers that are gone, in seconds.
LOOK = 0.5

#: A message that a worker took to send it, and has not sent after so many seconds, is another worker's.
LEASE = 30

_log = logging.getLogger("workglow_limit")


def limited(
    limiter: Limiter,
    key: str | Callable[..., Any] | None = None,
    *,
    weight: int | str | Callable[..., int] = 1,
    hold: float | timedelta = 0.15,
    grace: float | timedelta | None = None,
    on_limited: Callable[[TaskiqMessage, Limited], object] | None = None,
) -> Callable[[_F], _F]:
    """The messages of this task start when `limiter` admits them. It goes below `@broker.task`.

    `key` and `weight` are an argument's name, a format of arguments such as `"{tenant}:{model}"` (keys only), or a function
    of the arguments, in which dependencies are None. A wait of up to `hold` seconds is waited for in the worker, among its
    `max_async_tasks`. `grace` is how late a task may come to its place, in seconds: a 40th of the limit's window if not
    given, from 0.15 s to 10 s. `on_limited(message, limited)` is called after each task that was sent away.

    Raises InvalidArgument or TypeError for what cannot be meant. A call without a worker waits for its start.
    """
    return limiting(limiter, key, weight, hold, grace, on_limited, USUAL)


class Limits(TaskiqMiddleware):
    """What limits the tasks of a broker that are `limited`.

    With the Redis brokers of taskiq-redis, tasks that wait are kept in the same Redis. With other brokers, which cannot
    delay a message, they wait in the worker.
    """

    def __init__(self) -> None:
        super().__init__()
        self._delays: _Delays | None = None

    async def startup(self) -> None:
        """In a worker, begins to bring back tasks whose time has come."""
        if self.broker.is_worker_process and hasattr(self.broker, "connection_pool"):
            self._delays = _Delays(self.broker)

    async def shutdown(self) -> None:
        """Ends that."""
        if self._delays is not None:
            await self._delays.end()

    async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Gets the start of a task that is `limited`, or sends it away."""
        # A place starts once: what is sent again for other reasons must not carry it.
        ticket = message.labels.pop(LABEL, None)
        task = self.broker.find_task(message.task_name)
        gate = None if task is None else gate_of(task.original_func)
        if task is None or gate is None or self._delays is None:
            return message
        gate.line = self._delays.line
        outcome: Permit | Exception
        try:
            answer = await gate.admit_async(_arguments(task.original_func, message), ticket)
            if isinstance(answer, Later):
                await self._delays.add(self._again(message, answer.ticket), answer.delay)
                gate.tell(message, answer)
                outcome = NoResultError()
            else:
                outcome = answer
        except Exception as error:  # It is the task's, as if its body had raised it: taskiq would lose the message.
            outcome = error
        Turn(gate, outcome).begin()
        return message

    async def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        """Gives the start of a task back whose function was never called."""
        turn = Turn.current()
        if turn is not None:
            await in_thread(turn.gate.limiter, turn.end)

    def _again(self, message: TaskiqMessage, ticket: str) -> bytes:
        """The same message with its place. Labels were parsed when it came."""
        labels = {name: prepare_label(value) for name, value in {**message.labels, LABEL: ticket}.items()}
        texts = {name: text for name, (text, _) in labels.items()}
        types = {name: kind for name, (_, kind) in labels.items()}
        again = message.model_copy(update={"labels": texts, "labels_types": types})
        return self.broker.formatter.dumps(again).message


def _arguments(function: Callable[..., Any], message: TaskiqMessage) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What the function will be called with: what taskiq finds itself has not been found yet."""
    signature = inspect.signature(function)
    given = signature.bind_partial(*message.args, **message.kwargs).arguments
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    missing = {
        name: None
        for name, parameter in signature.parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in given and parameter.kind in kinds
    }
    return tuple(message.args), {**message.kwargs, **missing}


#: Both by Redis's clock. A message that is taken is left in the set until it was sent.
_ADD = """
local now = redis.call('TIME')
redis.call('ZADD', KEYS[1], now[1] + now[2] / 1e6 + ARGV[1], ARGV[2])
"""
_TAKE = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1e6
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.6f', now), 'LIMIT', 0, 100)
for _, message in ipairs(due) do
    redis.call('ZADD', KEYS[1], now + ARGV[1], message)
end
local next = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return {due, next[2] and string.format('%.6f', next[2] - now) or false}
"""


class _Delays:
    """Messages that come back to the queue when their time has come, in a sorted set beside it."""

    def __init__(self, broker: AsyncBroker) -> None:
        from redis.asyncio import Redis

        self._broker = broker
        self._redis: Redis = Redis(connection_pool=broker.connection_pool)  # type: ignore[attr-defined]
        self._name = f"{broker.queue_name}:workglow-limit"  # type: ignore[attr-defined]
        self._add, self._take = self._redis.register_script(_ADD), self._redis.register_script(_TAKE)
        #: The line of tasks that have no place.
        self.line = RedisLine(self._redis, f"{self._name}:")
        self._sooner = asyncio.Event()
        self._work = asyncio.create_task(self._send())

    async def add(self, message: bytes, delay: float) -> None:
        await self._add(keys=[self._name], args=[delay, message])
        self._sooner.set()

    async def end(self) -> None:
        self._work.cancel()
        with suppress(asyncio.CancelledError):
            await self._work

    async def _send(self) -> None:
        while True:
            self._sooner.clear()
            wait = LOOK
            try:
                due, soon = await self._take(keys=[self._name], args=[LEASE])
                for message in due:
                    await self._broker.kick(self._broker.formatter.dumps(self._broker.formatter.loads(message)))
                    await self._redis.zrem(self._name, message)
                if soon is not None:
                    wait = max(0.0, min(float(soon), LOOK))
            except Exception:
                _log.exception("limited tasks could not be sent; the next try is in %s s", LOOK)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._sooner.wait(), wait)
