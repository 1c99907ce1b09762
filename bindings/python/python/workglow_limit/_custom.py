"""Limiters written in Python, as children of a CompositeLimiter: their protocols, and the methods that the core calls.
Imported at the first use, because typing takes long to import."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from inspect import iscoroutinefunction, signature
from threading import Lock
from types import SimpleNamespace
from typing import Any, Protocol


class CustomLimiter(Protocol):
    """A limiter written in Python. Its methods are called from any thread. key is None for no key; weight is 1 or more.

    Optional attributes: name (default: the name of the class); pause(seconds, key), clear(key), record_job_start(key)
    and record_job_completion(key), which do nothing by default; settle(token, actual), which calls complete(token) by
    default.
    """

    def try_acquire(self, key: str | None, weight: int, /) -> object | None:
        """Decides and records in one atomic step. Returns None or False if denied. Any other value is a token of the
        start, which complete or cancel gets later."""
        ...

    def retry_after(self, key: str | None, weight: int, /) -> float | timedelta:
        """Returns the seconds after which a start may be admitted; 0 if try_acquire would admit it now. Records
        nothing."""
        ...

    def complete(self, token: Any, /) -> object:
        """Ends a start whose job has run."""
        ...

    def cancel(self, token: Any, /) -> object:
        """Ends a start whose job has not run, as if it had never been admitted."""
        ...


class JobLimiter(Protocol):
    """A limiter with the six methods of job queues. If can_proceed takes a key, all methods get it as their last
    argument. Otherwise all keys share one limit. It counts jobs: a start counts as one, whatever its weight."""

    def can_proceed(self) -> bool:
        """Returns whether a job may start now."""
        ...

    def record_job_start(self) -> object:
        """Records that a job has started."""
        ...

    def record_job_completion(self) -> object:
        """Records that a job has ended."""
        ...

    def get_next_available_time(self) -> datetime:
        """Returns the earliest time at which a job may start."""
        ...

    def set_next_available_time(self, when: datetime, /) -> object:
        """Sets a gate: no job starts before that time."""
        ...

    def clear(self) -> object:
        """Resets the limiter to its initial state."""
        ...


REQUIRED = "try_acquire", "retry_after", "complete", "cancel"
OPTIONAL = "settle", "pause", "clear", "record_job_start", "record_job_completion"
SIX = (
    "can_proceed", "record_job_start", "record_job_completion",
    "get_next_available_time", "set_next_available_time", "clear",
)  # fmt: skip

#: The suggested retry delay of a limiter that denies and does not know when it will admit, in seconds.
RETRY_DELAY = 0.01


def calls_of(limiter: Any) -> SimpleNamespace | str:
    """Returns the name and all methods of a limiter, with defaults for missing optional ones. Returns a text if it is
    not a limiter: the reason."""
    if isinstance(limiter, type):
        return "it is a class, not an instance"
    missing, of_six = (
        [name for name in names if not callable(getattr(limiter, name, None))] for names in (REQUIRED, SIX)
    )
    # An object with both sets is used by its try_acquire, which decides and records in one step.
    is_six = "try_acquire" in missing and len(of_six) < len(SIX)
    if missing := of_six if is_six else missing:
        return f"it has no {', '.join(missing)}"
    for method in SIX if is_six else REQUIRED + OPTIONAL:
        if iscoroutinefunction(getattr(limiter, method, None)):
            return f"{method} is a coroutine function, and is called without await"
    given = getattr(limiter, "name", None)
    name = given if isinstance(given, str) and given else type(limiter).__name__
    called = Jobs(limiter) if is_six else limiter

    def complete(token: Any, _: int) -> None:
        called.complete(token)

    instead = {"settle": complete}
    methods = {method: getattr(called, method, instead.get(method, nothing)) for method in REQUIRED + OPTIONAL}
    return SimpleNamespace(name=name, **methods)


def nothing(*_: object) -> None:
    """The default of optional methods."""


class Jobs:
    """Adapts a JobLimiter to a CustomLimiter."""

    def __init__(self, limiter: Any) -> None:
        self.limiter = limiter
        #: Held from can_proceed to record_job_start, so that no other caller decides in between.
        self.lock = Lock()
        try:
            signature(limiter.can_proceed).bind(None)
            self.takes_key = True
        except TypeError:
            self.takes_key = False

    def of(self, key: str | None) -> tuple[str, ...]:
        """Returns the arguments for a key."""
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
        return ahead.total_seconds() if ahead > timedelta(0) else RETRY_DELAY

    def complete(self, of: tuple[str, ...]) -> None:
        self.limiter.record_job_completion(*of)

    #: Job queues have only one way to end a job.
    cancel = complete

    def pause(self, seconds: float, key: str | None) -> None:
        self.limiter.set_next_available_time(datetime.now(timezone.utc) + timedelta(seconds=seconds), *self.of(key))

    def clear(self, key: str | None) -> None:
        self.limiter.clear(*self.of(key))

    def record_job_start(self, key: str | None) -> None:
        self.limiter.record_job_start(*self.of(key))

    def record_job_completion(self, key: str | None) -> None:
        self.limiter.record_job_completion(*self.of(key))
