"""Limits for taskiq tasks that hold across all workers, processes and languages.

    from workglow_limit.taskiq import Limits, limited

    broker = ListQueueBroker("redis://localhost").with_middlewares(Limits())

    @broker.task
    @limited(openai, key="tenant")
    async def ask(tenant: str, prompt: str) -> None: ...

A task that cannot start now takes a place and leaves the worker until then. The worker runs others, and `_retries` does
not change.
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

from ._loops import in_thread
from ._derived import KeyOf, WeightOf
from ._native import Limiter, Permit
from ._queueing import Later, Limited, Timing, Turn, current_permit, gate_of, limiting
from ._return_schedule import RedisSchedule

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from taskiq import AsyncBroker

__all__ = ["Limited", "Limits", "current_permit", "limited"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: The label of a message that holds its place.
LABEL = "workglow_limit"

#: Messages return on time, but other messages may be ahead of them.
TIMING = Timing(grace=0.15, early=0.03)

#: The longest interval between checks for messages whose time has come, including those of dead workers, in seconds.
POLL = 0.5

#: The seconds after which another worker takes over a message that a worker took but did not send.
LEASE = 30

_log = logging.getLogger("workglow_limit")


def limited(
    limiter: Limiter,
    key: KeyOf | None = None,
    *,
    weight: WeightOf = 1,
    hold: float | timedelta = 0.15,
    grace: float | timedelta | None = None,
    on_limited: Callable[[TaskiqMessage, Limited], object] | None = None,
) -> Callable[[_F], _F]:
    """Decorates a task's function, below `@broker.task`. Its messages start when `limiter` admits them.

    `key` and `weight` are the name of an argument, a format of arguments such as `"{tenant}:{model}"` (keys only), or a
    function of the arguments, in which dependencies are None; or a mapping with one of these for each of some parts of
    a composite. A task waits up to `hold` seconds in the worker, as one of its `max_async_tasks`; after a longer wait
    it leaves the worker. `grace` is how late a task may be at its place, in seconds; by default a 40th of the limit's
    window, from 0.15 s to 10 s. `on_limited(message, limited)` is called after each task that left.

    Raises InvalidArgument or TypeError for invalid arguments. A call without a worker waits for its start.
    """
    return limiting(limiter, key, weight, hold, grace, on_limited, TIMING)


class Limits(TaskiqMiddleware):
    """Limits the `limited` tasks of a broker.

    With the Redis brokers of taskiq-redis, waiting tasks are kept in the same Redis. Other brokers cannot delay a
    message, so with them tasks wait in the worker.
    """

    def __init__(self) -> None:
        super().__init__()
        self._delays: _Delays | None = None

    async def startup(self) -> None:
        """Starts returning tasks whose time has come, in a worker."""
        if self.broker.is_worker_process and hasattr(self.broker, "connection_pool"):
            self._delays = _Delays(self.broker)

    async def shutdown(self) -> None:
        """Stops returning tasks."""
        if self._delays is not None:
            await self._delays.end()

    async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Takes the start of a `limited` task, or sends the task away."""
        # A place starts once, so a message that is sent again for other reasons must not carry it.
        ticket = message.labels.pop(LABEL, None)
        task = self.broker.find_task(message.task_name)
        gate = None if task is None else gate_of(task.original_func)
        if task is None or gate is None or self._delays is None:
            return message
        gate.schedule = self._delays.schedule
        outcome: Permit | Exception
        try:
            answer = await gate.admit_async(_arguments(task.original_func, message), ticket)
            if isinstance(answer, Later):
                await self._delays.add(self._again(message, answer.ticket), answer.delay)
                gate.notify(message, answer)
                outcome = NoResultError()
            else:
                outcome = answer
        except (
            Exception
        ) as error:  # The task fails with it, as if its body had raised it. Otherwise taskiq would lose the message.
            outcome = error
        Turn(gate, outcome).begin()
        return message

    async def post_execute(self, message: TaskiqMessage, result: TaskiqResult[Any]) -> None:
        """Cancels the start of a task whose function was never called."""
        turn = Turn.current()
        if turn is not None:
            await in_thread(turn.gate.limiter, turn.end)

    def _again(self, message: TaskiqMessage, ticket: str) -> bytes:
        """Returns the same message with its place. Its labels, which were parsed on arrival, are serialized again."""
        labels = {name: prepare_label(value) for name, value in {**message.labels, LABEL: ticket}.items()}
        texts = {name: text for name, (text, _) in labels.items()}
        types = {name: kind for name, (_, kind) in labels.items()}
        again = message.model_copy(update={"labels": texts, "labels_types": types})
        return self.broker.formatter.dumps(again).message


def _arguments(function: Callable[..., Any], message: TaskiqMessage) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns the arguments of the call. Dependencies, which taskiq has not resolved yet, are None."""
    signature = inspect.signature(function)
    given = signature.bind_partial(*message.args, **message.kwargs).arguments
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    missing = {
        name: None
        for name, parameter in signature.parameters.items()
        if parameter.default is inspect.Parameter.empty and name not in given and parameter.kind in kinds
    }
    return tuple(message.args), {**message.kwargs, **missing}


#: Both scripts use Redis's clock. A taken message remains in the set until it is sent.
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
    """Messages that return to the queue when their time has come. They are in a sorted set next to it."""

    def __init__(self, broker: AsyncBroker) -> None:
        from redis.asyncio import Redis

        self._broker = broker
        self._redis: Redis = Redis(connection_pool=broker.connection_pool)  # type: ignore[attr-defined]
        self._name = f"{broker.queue_name}:workglow-limit"  # type: ignore[attr-defined]
        self._add, self._take = self._redis.register_script(_ADD), self._redis.register_script(_TAKE)
        #: The schedule of tasks without a place.
        self.schedule = RedisSchedule(self._redis, f"{self._name}:")
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
            wait = POLL
            try:
                due, soon = await self._take(keys=[self._name], args=[LEASE])
                for message in due:
                    await self._broker.kick(self._broker.formatter.dumps(self._broker.formatter.loads(message)))
                    await self._redis.zrem(self._name, message)
                if soon is not None:
                    wait = max(0.0, min(float(soon), POLL))
            except Exception:
                _log.exception("limited tasks could not be returned to their queue: the next attempt is in %s s", POLL)
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._sooner.wait(), wait)
