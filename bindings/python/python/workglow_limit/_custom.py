"""Limiters written in Python, as children of a CompositeLimiter: what they look like, and how the core calls them. Imported
at the first use, because typing takes long to import."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from inspect import iscoroutinefunction, signature
from threading import Lock
from types import SimpleNamespace
from typing import Any, Protocol


class CustomLimiter(Protocol):
    """A limiter of your own. Its methods are called from any thread, key is None for no key, and weight at least 1.

    It may also have a name (else its class's), and what does nothing if it is missing: pause(seconds, key), clear(key),
    record_job_start(key) and record_job_completion(key); and settle(token, actual), in whose stead complete(token) is
    called.
    """

    def try_acquire(self, key: str | None, weight: int, /) -> object | None:
        """Decides and records in one act. Anything but None and False is a start, and comes back when it ends."""
        ...

    def retry_after(self, key: str | None, weight: int, /) -> float | timedelta:
        """After how many seconds there may be room; 0 if try_acquire would start now. Records nothing."""
        ...

    def complete(self, token: Any, /) -> object:
        """The job ran."""
        ...

    def cancel(self, token: Any, /) -> object:
        """It never ran: as if it had never been admitted."""
        ...


class JobLimiter(Protocol):
    """A limiter with the six methods of job queues. If can_proceed takes a key, all of them are given it, as the last
    argument; if not, it is one limit for all keys. It counts jobs: a start is one, whatever it weighs."""

    def can_proceed(self) -> bool:
        """Would a job start now?"""
        ...

    def record_job_start(self) -> object:
        """A job has started."""
        ...

    def record_job_completion(self) -> object:
        """A job has ended."""
        ...

    def get_next_available_time(self) -> datetime:
        """When a job would start."""
        ...

    def set_next_available_time(self, when: datetime, /) -> object:
        """No job starts before that."""
        ...

    def clear(self) -> object:
        """Back to the initial state."""
        ...


REQUIRED = "try_acquire", "retry_after", "complete", "cancel"
OPTIONAL = "settle", "pause", "clear", "record_job_start", "record_job_completion"
SIX = (
    "can_proceed", "record_job_start", "record_job_completion",
    "get_next_available_time", "set_next_available_time", "clear",
)  # fmt: skip

#: Who has no room and cannot tell when, suggests to look again after this many seconds.
LOOK_AGAIN = 0.01


def calls_of(limiter: Any) -> SimpleNamespace | str:
    """The name of a limiter and all methods, those too that it does not have; or why it is none: what is missing."""
    if isinstance(limiter, type):
        return "it is a class, and not an object of it"
    missing, of_six = ([name for name in names if not callable(getattr(limiter, name, None))] for names in (REQUIRED, SIX))
    # One that has both is asked as the first: it decides and records in one act.
    is_six = "try_acquire" in missing and len(of_six) < len(SIX)
    if missing := of_six if is_six else missing:
        return f"it has no {', '.join(missing)}"
    for method in SIX if is_six else REQUIRED + OPTIONAL:
        if iscoroutinefunction(getattr(limiter, method, None)):
            return f"{method} is a coroutine function, which nobody would await"
    given = getattr(limiter, "name", None)
    name = given if isinstance(given, str) and given else type(limiter).__name__
    called = Jobs(limiter) if is_six else limiter

    def complete(token: Any, _: int) -> None:
        called.complete(token)

    instead = {"settle": complete}
    methods = {method: getattr(called, method, instead.get(method, nothing)) for method in REQUIRED + OPTIONAL}
    return SimpleNamespace(name=name, **methods)


def nothing(*_: object) -> None:
    """What a method does that a limiter does not have."""


class Jobs:
    """A JobLimiter as a CustomLimiter."""

    def __init__(self, limiter: Any) -> None:
        self.limiter = limiter
        #: From the question to the record nobody else may ask.
        self.lock = Lock()
        try:
            signature(limiter.can_proceed).bind(None)
            self.takes_key = True
        except TypeError:
            self.takes_key = False

    def of(self, key: str | None) -> tuple[str, ...]:
        """The argument that a key is."""
        return (key,) if self.takes_key and key is not None else ()

    def try_acquire(self, key: str | None, _: int) -> tuple[str, ...] | None:
        of = self.of(key)
        with self.lock:
            if not self.limiter.can_proceed(*of):
                return None
            self.limiter.record_job_start(*of)
        return of

    def retry_after(self, key: str | None, _: int) -> float:
        of = self.of(key)
        if self.limiter.can_proceed(*of):
            return 0.0
        ahead: timedelta = self.limiter.get_next_available_time(*of) - datetime.now(timezone.utc)
        return ahead.total_seconds() if ahead > timedelta(0) else LOOK_AGAIN

    def complete(self, of: tuple[str, ...]) -> None:
        self.limiter.record_job_completion(*of)

    #: There is no other way to end a job.
    cancel = complete

    def pause(self, seconds: float, key: str | None) -> None:
        self.limiter.set_next_available_time(datetime.now(timezone.utc) + timedelta(seconds=seconds), *self.of(key))

    def clear(self, key: str | None) -> None:
        self.limiter.clear(*self.of(key))

    def record_job_start(self, key: str | None) -> None:
        self.limiter.record_job_start(*self.of(key))

    def record_job_completion(self, key: str | None) -> None:
        self.limiter.record_job_completion(*self.of(key))
