"""Those who wait in a worker: one task, and the line of those with the same limit and key."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from .. import Limiter, LimitError, Permit
from ._celery import get_logger, state
from ._message import Ticket
from ._options import TaskLimit

logger: Any = get_logger(__name__)


class Held:
    """A task in the waiting room."""

    __slots__ = (
        "extra",
        "key",
        "limit",
        "place",
        "ready",
        "request",
        "since",
        "text",
        "times",
        "told",
        "until",
        "weight",
    )

    def __init__(self, request: Any, limit: TaskLimit, key: str | None, weight: int) -> None:
        self.request, self.limit, self.key, self.weight = request, limit, key, weight
        self.since = time.monotonic()
        self.extra = False  # Whether the worker fetches one more because this one is here.
        self.place: Permit | None = None
        self.text: str | None = None
        self.ready = self.until = 0.0  # Of the place, by the monotonic clock.
        self.times = 0  # So often its message was sent back.
        self.told: str | None = None  # What monitors know of it.

    def at(self, wait: float, grace: float) -> None:
        self.ready = time.monotonic() + wait
        self.until = self.ready + grace

    @property
    def is_gone(self) -> bool:
        """Whether it was revoked or has expired. What is only known by a stamp is found when it goes to the pool."""
        request = self.request
        return request.id in state.revoked or bool(request.expires) and request.expires.timestamp() < time.time()

    def ticket(self, times: int) -> Ticket:
        ready = time.time() + self.ready - time.monotonic()
        return Ticket(self.text, ready, ready + self.until - self.ready, times)

    def give_back(self) -> None:
        """The place is free again, unless somebody has started with it."""
        try:
            if self.place is not None:
                self.place.cancel()
            elif self.text is not None:
                self.limit.limiter.place(self.text).cancel()
        except LimitError:
            logger.debug("%r of %s could not be given back", self.text, self.request, exc_info=True)
        self.place = self.text = None


class Line:
    """Those who wait for the same limit and key."""

    __slots__ = ("closed", "counted", "due", "key", "limiter", "placed", "running", "swept", "transit", "waiting")

    def __init__(self, limiter: Limiter, key: str | None) -> None:
        self.limiter, self.key = limiter, key
        self.waiting: deque[Held] = deque()
        self.placed: list[tuple[float, int, Held]] = []  # A heap: who is ready first.
        self.running: set[Any] = set()  # Requests that went to the pool and have not ended.
        self.transit: deque[tuple[float, int]] = deque()  # (until when, weight) of those that may not have started.
        self.counted = False  # Its limit has no places that can travel.
        self.due: float | None = None
        self.closed = self.swept = 0.0  # Until when it takes no places, and when it was looked through.

    def in_transit(self, now: float) -> int:
        while self.transit and self.transit[0][0] < now:
            self.transit.popleft()
        return sum(weight for _, weight in self.transit)


def watch(request: Any, accepted: Callable[[], None], ended: Callable[[], None]) -> None:
    """Calls a function when a child takes a request, and one when the pool is done with it or will not begin.

    Celery makes a class of requests for each task whose on_success does not call its base's, so that only the request
    itself is left to say it.
    """

    def after(name: str, is_end: Callable[[Any, tuple[Any, ...]], bool]) -> None:
        method = getattr(request, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            end = True
            try:
                result = method(*args, **kwargs)
                end = is_end(result, args)
                return result
            finally:
                if end:
                    ended()

        setattr(request, name, call)

    on_accepted = request.on_accepted

    def call_accepted(*args: Any, **kwargs: Any) -> Any:
        accepted()
        return on_accepted(*args, **kwargs)

    request.on_accepted = call_accepted
    after("on_success", lambda _result, _args: True)
    after("on_failure", lambda _result, _args: True)
    after("on_timeout", lambda _result, args: not args[0])  # A soft one goes on.
    after("revoked", lambda result, _args: bool(result))
