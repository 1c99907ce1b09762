"""Limits that hold across all workers, processes and languages, for Dramatiq.

    from workglow_limit.dramatiq import Limits, limited

    broker.add_middleware(Limits())

    @dramatiq.actor
    @limited(openai, key="tenant")
    def ask(tenant, prompt): ...

A message that cannot start now takes its place and is delayed until then: the worker takes others, `retries` stays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dramatiq.middleware import Middleware, SkipMessage

from ._line import RedisLine
from ._native import Limiter, Permit
from ._queueing import Gate, Limited, Turn, Usual, current_permit, gate_of, limiting

if TYPE_CHECKING:
    from dramatiq import Actor, Broker
    from dramatiq.broker import MessageProxy
    from dramatiq.worker import ConsumerThread

__all__ = ["Limited", "Limits", "current_permit", "limited"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: The option of a message that carries its place.
OPTION = "workglow_limit"

#: A delayed message goes through two queues.
USUAL = Usual(grace=0.25, early=0.15)

#: Consumers that find nothing look again after so many ms. Dramatiq's own second would be too late for a place.
POLL = 100


def limited(
    limiter: Limiter,
    key: str | Callable[..., Any] | None = None,
    *,
    weight: int | str | Callable[..., int] = 1,
    hold: float | timedelta = 0.15,
    grace: float | timedelta | None = None,
    on_limited: Callable[[MessageProxy, Limited], object] | None = None,
) -> Callable[[_F], _F]:
    """The messages of this actor start when `limiter` admits them. It goes below `@dramatiq.actor`.

    `key` and `weight` are an argument's name, a format of arguments such as `"{tenant}:{model}"` (keys only), or a function
    of the arguments. A wait of up to `hold` seconds is waited for in the worker. `grace` is how late a message may come to
    its place, in seconds: a 40th of the limit's window if not given, from 0.25 s to 10 s. `on_limited(message, limited)` is
    called after each message that was delayed.

    Raises InvalidArgument or TypeError for what cannot be meant. A call without a worker waits for its start.
    """
    return limiting(limiter, key, weight, hold, grace, on_limited, USUAL)


class Limits(Middleware):
    """What limits the actors of a broker that are `limited`. Add it to the broker of producers and workers alike."""

    def __init__(self) -> None:
        self._message: ContextVar[MessageProxy | None] = ContextVar("workglow_limit_message", default=None)

    def after_declare_actor(self, broker: Broker, actor: Actor[..., Any]) -> None:
        """Limits it, if it is `limited`."""
        gate = gate_of(actor.fn)
        if gate is not None:
            client = getattr(broker, "client", None)
            if hasattr(client, "register_script"):  # The broker is Redis: one line for all workers.
                gate.line = RedisLine(client, f"{broker.namespace}:workglow-limit:")  # type: ignore[attr-defined]
            actor.fn = self._limited(broker, actor.actor_name, gate, actor.fn)

    def _limited(self, broker: Broker, name: str, gate: Gate, body: Callable[..., Any]) -> Callable[..., Any]:
        # Here and not in before_process_message, whose errors Dramatiq would log, and then call the actor.
        @wraps(body)
        def process(*args: Any, **kwargs: Any) -> Any:
            message = self._message.get()
            if message is None or message.actor_name != name:
                return body(*args, **kwargs)
            self._message.set(None)
            # A place starts once: what is sent again for other reasons must not carry it.
            answer = gate.admit((args, kwargs), message.options.pop(OPTION, None))
            if isinstance(answer, Permit):
                with Turn(gate, answer):
                    return body(*args, **kwargs)
            # First sent, then acknowledged: who dies in between leaves one too many, which waits for a start of its own.
            cast("Any", broker).enqueue(message.copy(options={OPTION: answer.ticket}), delay=int(answer.delay * 1000) or None)
            # A skipped message has the result None; this one has none yet.
            message.options["store_results"] = False
            gate.tell(message, answer)
            raise SkipMessage(f"limit {gate.limiter.name!r} is full")

        return process

    def before_process_message(self, broker: Broker, message: MessageProxy) -> None:
        """Notes which message it is."""
        self._message.set(message)

    def after_process_message(
        self,
        broker: Broker,
        message: MessageProxy,
        *,
        result: Any | None = None,
        exception: BaseException | None = None,
    ) -> None:
        """Forgets it."""
        self._message.set(None)

    def after_skip_message(self, broker: Broker, message: MessageProxy) -> None:
        """Gives its place back: it is too old, say."""
        self._message.set(None)
        gate = gate_of(cast("Any", broker).get_actor(message.actor_name).fn)
        if gate is not None:
            gate.give_back(message.options.pop(OPTION, None))

    def after_consumer_thread_boot(self, broker: Broker, thread: ConsumerThread) -> None:
        """Has it look often enough for places."""
        thread.worker_timeout = min(thread.worker_timeout, POLL)
