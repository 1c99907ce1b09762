from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime, timedelta
from os import PathLike
from typing import Literal, ParamSpec, TypeAlias, TypeVar, final, overload

from typing_extensions import Self, disjoint_base

from ._aio import Acquiring, Waiters
from ._custom import CustomLimiter, JobLimiter

_Duration: TypeAlias = float | timedelta  # A number of seconds.
_Happening: TypeAlias = Literal["throttled", "unknown_limit", "store_error"]
_Jitter: TypeAlias = Literal["scaled", "full", "equal", "none"]

_P = ParamSpec("_P")
_R = TypeVar("_R")

__all__ = [
    "CompositeLimiter",
    "ConcurrencyLimiter",
    "Decision",
    "DelayLimiter",
    "EvenlySpacedRateLimiter",
    "FixedWindowLimiter",
    "FlowControl",
    "LeakyBucketLimiter",
    "LimitEvent",
    "Limiter",
    "Line",
    "ManualClock",
    "NullLimiter",
    "Permit",
    "RateLimiter",
    "SlidingWindowCounterLimiter",
    "Stats",
    "Store",
    "TokenBucketLimiter",
    "Waiter",
    "__version__",
]

__version__: str

@final
class ManualClock:
    def __new__(cls) -> Self: ...
    def advance(self, by: _Duration) -> None: ...
    def now(self) -> float: ...

@final
class Store:
    def __new__(
        cls,
        url: str,
        *,
        timeout: _Duration = 5.0,
        mode: int = 0o600,
        on_error: Literal["raise", "deny", "admit"] = "raise",
        durability: Literal["budget", "commit"] = "budget",
        clock: ManualClock | None = None,
    ) -> Self: ...
    def open(self) -> None: ...
    def names(self) -> list[str]: ...
    def override(self, name: str, policy: str, key: str | None = None) -> None: ...
    def lift(self, name: str, key: str | None = None) -> None: ...
    def flush(self) -> None: ...
    @property
    def failures(self) -> int: ...
    @property
    def url(self) -> str: ...
    @overload
    def limiter(self, name: str, policy: str | None = None) -> Limiter: ...
    @overload
    def limiter(self, name: FlowControl, policy: None = None) -> Limiter: ...
    def load(self, path: str | PathLike[str]) -> list[str]: ...
    def on(self, event: _Happening, function: Callable[[LimitEvent], object]) -> Callable[[], None]: ...

@final
class FlowControl:
    def __new__(
        cls,
        key: str,
        *,
        rate: int | None = None,
        period: _Duration = 1.0,
        parallelism: int | None = None,
    ) -> Self: ...
    @property
    def key(self) -> str: ...
    @property
    def rate(self) -> int | None: ...
    @property
    def period(self) -> float: ...
    @property
    def parallelism(self) -> int | None: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class LimitEvent:
    @property
    def event(self) -> _Happening: ...
    @property
    def limit(self) -> str: ...
    @property
    def key(self) -> str | None: ...
    @property
    def wanted(self) -> int: ...
    @property
    def granted(self) -> int: ...
    @property
    def wait(self) -> float: ...
    @property
    def error(self) -> Exception | None: ...

@final
class Stats:
    @property
    def admitted(self) -> int: ...
    @property
    def denied(self) -> int: ...
    @property
    def units_wanted(self) -> int: ...
    @property
    def units_granted(self) -> int: ...
    @property
    def waited(self) -> int: ...
    @property
    def wait_time(self) -> float: ...
    @property
    def cancelled(self) -> int: ...
    @property
    def store_errors(self) -> int: ...
    @property
    def policy_changes(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...
    __hash__: None  # type: ignore[assignment]

@final
class Permit:
    def complete(self) -> None: ...
    def cancel(self) -> None: ...
    def settle(self, actual: int) -> None: ...
    def renew(self) -> None: ...
    @property
    def fence(self) -> int | None: ...
    def to_text(self) -> str: ...
    @property
    def started(self) -> bool: ...
    @property
    def wait(self) -> float: ...
    @property
    def ready_at(self) -> datetime | None: ...
    @property
    def ready_at_monotonic(self) -> float | None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_exception: object) -> None: ...

@final
class Decision:
    @property
    def admitted(self) -> bool: ...
    @property
    def retry_after(self) -> float: ...
    @property
    def suggested_after(self) -> float: ...
    @property
    def remaining(self) -> int | None: ...
    @property
    def limit(self) -> int | None: ...
    @property
    def reset_after(self) -> float: ...
    @property
    def denied_by(self) -> str | None: ...
    @property
    def permit(self) -> Permit | None: ...
    def __bool__(self) -> bool: ...

@disjoint_base
class Limiter:
    @property
    def name(self) -> str: ...
    @property
    def window(self) -> float | None: ...
    def try_acquire(self, key: str | None = None, weight: int = 1) -> Permit | None: ...
    def decide(self, key: str | None = None, weight: int = 1) -> Decision: ...
    def peek(self, key: str | None = None, weight: int = 1) -> Decision: ...
    def acquire(
        self,
        key: str | None = None,
        weight: int = 1,
        timeout: _Duration | None = None,
        *,
        priority: int = 0,
        place: Permit | str | None = None,
    ) -> Permit: ...
    def try_acquire_async(self, key: str | None = None, weight: int = 1) -> Coroutine[None, None, Permit | None]: ...
    def acquire_async(
        self,
        key: str | None = None,
        weight: int = 1,
        timeout: _Duration | None = None,
        *,
        priority: int = 0,
        place: Permit | str | None = None,
    ) -> Acquiring: ...
    def reserve(
        self,
        key: str | None = None,
        weight: int = 1,
        max_wait: _Duration | None = None,
        grace: _Duration | None = None,
    ) -> Permit | None: ...
    def present(self, place: Permit | str) -> Permit: ...
    def permit(self, text: str) -> Permit: ...
    def place(self, text: str) -> Permit: ...
    def limit(
        self,
        key: str | Callable[..., object] | None = None,
        weight: int | str | Callable[..., int] = 1,
        timeout: _Duration | None = None,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]: ...
    def complete(self, permit: Permit) -> None: ...
    def can_proceed(self, key: str | None = None) -> bool: ...
    def record_job_start(self, key: str | None = None) -> None: ...
    def record_job_completion(self, key: str | None = None) -> None: ...
    def get_next_available_time(self, key: str | None = None) -> datetime: ...
    def set_next_available_time(self, when: datetime, key: str | None = None) -> None: ...
    def pause(self, duration: _Duration, key: str | None = None) -> None: ...
    def clear(self, key: str | None = None) -> None: ...
    def stats(self, key: str | None = None) -> Stats: ...
    def on(self, event: _Happening, function: Callable[[LimitEvent], object]) -> Callable[[], None]: ...

class NullLimiter(Limiter):
    def __new__(cls) -> Self: ...

class RateLimiter(Limiter):
    @overload
    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        max_executions: int,
        window_size_in_seconds: _Duration,
        windows: None = None,
        initial_backoff_delay: _Duration = 1.0,
        backoff_multiplier: float = 2.0,
        max_backoff_delay: _Duration = 600.0,
        jitter: _Jitter = "scaled",
    ) -> Self: ...
    @overload
    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        max_executions: None = None,
        window_size_in_seconds: None = None,
        windows: Iterable[tuple[int, _Duration]],
        initial_backoff_delay: _Duration = 1.0,
        backoff_multiplier: float = 2.0,
        max_backoff_delay: _Duration = 600.0,
        jitter: _Jitter = "scaled",
    ) -> Self: ...
    @classmethod
    def attach(cls, store: Store, name: str) -> RateLimiter: ...

class ConcurrencyLimiter(Limiter):
    def __new__(
        cls,
        max_concurrent_jobs: int,
        *,
        store: Store | None = None,
        name: str | None = None,
        lease: _Duration | None = None,
        clock: ManualClock | None = None,
    ) -> Self: ...
    @classmethod
    def attach(cls, store: Store, name: str) -> ConcurrencyLimiter: ...

class DelayLimiter(Limiter):
    def __new__(
        cls,
        delay: _Duration = 0.05,
        *,
        store: Store | None = None,
        name: str | None = None,
        clock: ManualClock | None = None,
    ) -> Self: ...
    @classmethod
    def attach(cls, store: Store, name: str) -> DelayLimiter: ...

class EvenlySpacedRateLimiter(Limiter):
    def __new__(
        cls,
        *,
        max_executions: int,
        window_size_in_seconds: _Duration,
        adaptive: bool = True,
        store: Store | None = None,
        name: str | None = None,
        clock: ManualClock | None = None,
    ) -> Self: ...
    @classmethod
    def attach(cls, store: Store, name: str) -> EvenlySpacedRateLimiter: ...

class TokenBucketLimiter(Limiter):
    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        rate: int,
        period: _Duration = 1.0,
        burst: int | None = None,
    ) -> Self: ...
    @classmethod
    def attach(cls, store: Store, name: str) -> TokenBucketLimiter: ...

class LeakyBucketLimiter(Limiter):
    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        rate: int,
        period: _Duration = 1.0,
        queue: int | None = None,
    ) -> Self: ...
    @classmethod
    def attach(cls, store: Store, name: str) -> LeakyBucketLimiter: ...

class FixedWindowLimiter(Limiter):
    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        max_executions: int,
        window_size_in_seconds: _Duration,
    ) -> Self: ...
    @classmethod
    def attach(cls, store: Store, name: str) -> FixedWindowLimiter: ...

class SlidingWindowCounterLimiter(Limiter):
    def __new__(
        cls,
        store: Store,
        name: str,
        *,
        max_executions: int,
        window_size_in_seconds: _Duration,
    ) -> Self: ...
    @classmethod
    def attach(cls, store: Store, name: str) -> SlidingWindowCounterLimiter: ...

@disjoint_base
class CompositeLimiter(Limiter):
    def __new__(cls, limiters: Iterable[Limiter | CustomLimiter | JobLimiter], /) -> Self: ...
    def add(self, limiter: Limiter | CustomLimiter | JobLimiter) -> None: ...

@final
class Waiter:
    @property
    def lines(self) -> dict[AbstractEventLoop, Waiters]: ...
    def line(self) -> Line: ...
    def attempt(self, wait: bool) -> Permit | Literal[False] | None: ...

@final
class Line:
    def join(self, waiter: Waiter, wait: bool) -> Permit | int | None: ...
    def advance(self, wait: bool) -> list[tuple[int, Permit | Exception]]: ...
    def would_wait(self) -> bool: ...
    def next(self) -> float | None: ...
    def wake(self, key: str | None) -> None: ...
    def leave(self, waiter: Waiter) -> int | None: ...
