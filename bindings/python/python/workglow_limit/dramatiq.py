"""Limits for Dramatiq actors that hold across all workers, processes and languages.

    from workglow_limit.dramatiq import Limits, limited

    broker.add_middleware(Limits())

    @dramatiq.actor
    @limited(openai, key="tenant")
    def ask(tenant, prompt): ...

A message that cannot start now takes a place and is delayed until then. The worker runs others, and `retries` does not
change.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dramatiq.middleware import Middleware, SkipMessage

from ._derived import KeyOf, WeightOf
from ._native import Limiter, Permit
from ._queueing import Gate, Limited, Timing, Turn, current_permit, gate_of, limiting
from ._return_schedule import RedisSchedule

if TYPE_CHECKING:
    from dramatiq import Actor, Broker
    from dramatiq.broker import MessageProxy
    from dramatiq.worker import ConsumerThread

__all__ = ["Limited", "Limits", "current_permit", "limited"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: The option of a message that holds its place.
OPTION = "workglow_limit"

#: A delayed message passes through two queues.
TIMING = Timing(grace=0.25, early=0.15)

#: The interval in ms at which idle consumers poll. Dramatiq's default of 1 s would be too late for a place.
POLL = 100


def limited(
    limiter: Limiter,
    key: KeyOf | None = None,
    *,
    weight: WeightOf = 1,
    hold: float | timedelta = 0.15,
    grace: float | timedelta | None = None,
    on_limited: Callable[[MessageProxy, Limited], object] | None = None,
) -> Callable[[_F], _F]:
    """Decorates an actor's function, below `@dramatiq.actor`. Its messages start when `limiter` admits them.

    `key` and `weight` are the name of an argument, a format of arguments such as `"{tenant}:{model}"` (keys only), or a
    function of the arguments; or a mapping with one of these for each of some parts of a composite. A message waits up
    to `hold` seconds in the worker; a longer wait delays it. `grace` is how late a message may be at its place, in
    seconds; by default a 40th of the limit's window, from 0.25 s to 10 s. `on_limited(message, limited)` is called
    after each message that was delayed.

    Raises InvalidArgument or TypeError for invalid arguments. A call without a worker waits for its start.
    """
    return limiting(limiter, key, weight, hold, grace, on_limited, TIMING)


class Limits(Middleware):
    """Limits the `limited` actors of a broker. Add it to the broker of producers and of workers."""

    def __init__(self) -> None:
        self._message: ContextVar[MessageProxy | None] = ContextVar("workglow_limit_message", default=None)

    def after_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        """Limits the actor, if it is `limited`."""
        gate = gate_of(actor.fn)
        if gate is not None:
            client = getattr(broker, "client", None)
            if hasattr(client, "register_script"):  # The broker is Redis: all workers share a schedule.
                gate.schedule = RedisSchedule(client, f"{broker.namespace}:workglow-limit:")  # type: ignore[attr-defined]
            actor.fn = self._limited(broker, actor.actor_name, gate, actor.fn)

    def _limited(self, broker: Broker, name: str, gate: Gate, body: Callable[..., Any]) -> Callable[..., Any]:
        # Not in before_process_message: Dramatiq would log its errors and still call the actor.
        @wraps(body)
        def process(*args: Any, **kwargs: Any) -> Any:
            message = self._message.get()
            if message is None or message.actor_name != name:
                return body(*args, **kwargs)
            self._message.set(None)
            # A place starts once, so a message that is sent again for other reasons must not carry it.
            answer = gate.admit((args, kwargs), message.options.pop(OPTION, None))
            if isinstance(answer, Permit):
                with Turn(gate, answer):
                    return body(*args, **kwargs)
            # Send first, acknowledge afterwards: if the worker dies in between, one message too many remains, which
            # waits for a start of its own.
            cast("Any", broker).enqueue(
                message.copy(options={OPTION: answer.ticket}), delay=int(answer.delay * 1000) or None
            )
            # Dramatiq stores the result None for a skipped message. This one has no result yet.
            message.options["store_results"] = False
            gate.notify(message, answer)
            raise SkipMessage(f"limit {gate.limiter.name!r} is full")

        return process

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        """Notes the message of this thread."""
        self._message.set(message)

    def after_process_message(
        self,
        broker: Broker,
        message: MessageProxy,
        *,
        result: Any | None = None,
        exception: BaseException | None = None,
    ) -> None:
        """Drops the message of this thread."""
        self._message.set(None)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        """Returns the place of a skipped message, for example one that is too old."""
        self._message.set(None)
        gate = gate_of(cast("Any", broker).get_actor(message.actor_name).fn)
        if gate is not None:
            gate.return_place(message.options.pop(OPTION, None))

    def after_consumer_thread_boot(self, broker: Broker, thread: ConsumerThread) -> None:
        """Makes the consumer poll often enough for places."""
        thread.worker_timeout = min(thread.worker_timeout, POLL)
