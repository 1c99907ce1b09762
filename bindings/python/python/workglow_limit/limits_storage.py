"""A storage for the `limits` package, and so for Flask-Limiter and slowapi. Import this module and change the address:

    import workglow_limit.limits_storage

    Limiter(get_remote_address, app=app, storage_uri="workglow+sqlite:limits.db")

The address is "workglow+" and the address of a Store: memory:, sqlite:PATH, redis://…, rediss://…, postgresql://…; for
limits.aio it is "async+workglow+" and that address. All
three strategies, "fixed-window", "moving-window" and "sliding-window-counter", enforce the same exact limit: at most
its amount in any rolling window of its length, over all processes. A refused start does not count.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from math import ceil
from typing import Any

from limits.aio import storage as aio
from limits.errors import ConfigurationError
from limits.limits import TIME_TYPES
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage

from ._errors import InvalidUrl, LimitError, WeightExceedsCapacity
from ._loops import in_thread
from ._native import Decision, Limiter, RateLimiter, Store
from ._steps import Call, Steps, run, run_async

__all__ = ["AsyncWorkglowStorage", "WorkglowStorage"]

PREFIX = "workglow+"
SCHEMES = [
    PREFIX + scheme for scheme in ("memory", "sqlite", "redis", "rediss", "redis+unix", "postgres", "postgresql")
]
#: The end of a key of `limits`: the amount, the multiple, and the unit of time.
LIMIT = re.compile(rf"/([1-9][0-9]*)/([1-9][0-9]*)/({'|'.join(TIME_TYPES)})$")
#: The amount of keys without a known limit.
MOST = 1_000_000_000


class Windows:
    """The windows of all keys in a Store, for a synchronous and an asynchronous storage."""

    def __init__(self, uri: str, name: str, options: dict[str, Any]) -> None:
        if not name or type(name) is not str:
            raise ConfigurationError(f"name is {name!r}: expected a str, the prefix of its limits' names")
        url = uri.removeprefix("async+").removeprefix(PREFIX)
        try:
            # memory:// is common with `limits`.
            self.store = Store("memory:" if url == "memory://" else url, **options)
        except (InvalidUrl, TypeError, ValueError) as error:
            raise ConfigurationError(str(error)) from error
        self._name = name
        self._limiter = lru_cache(None)(self._new_limiter)
        #: The windows of keys that do not contain a window. The keys of the strategies do.
        self._others: dict[str, float] = {}

    def _new_limiter(self, amount: int, expiry: float) -> Limiter:
        name = f"{self._name} {amount}/{expiry}s"
        return RateLimiter(self.store, name, max_executions=amount, window_size_in_seconds=expiry)

    def incr(self, key: str, expiry: float, amount: int) -> Steps[int]:
        """Counts if the limit at the end of the key admits it. Returns more than the limit otherwise."""
        limit = self._known(key, expiry)[0]
        used = yield from self.take(key, limit, expiry, amount)
        return limit + 1 if used is None else used

    def get(self, key: str) -> Steps[int]:
        """Returns the units of a key that count now."""
        limit, expiry = self._known(key)
        return (yield from self.used(key, limit, expiry)) if expiry else 0

    def get_expiry(self, key: str) -> Steps[float]:
        """Returns the time at which more units become free, in seconds since the epoch."""
        limit, expiry = self._known(key)
        return time.time() + ((yield from self.reset_after(key, limit, expiry)) if expiry else 0.0)

    def check(self) -> Steps[bool]:
        """Returns whether the store can be used."""
        try:
            yield Call(self.store, "open")
        except LimitError:
            return False
        return True

    def reset(self) -> int:
        """Clears all keys of all limits of this name."""
        names = [name for name in self.store.names() if name.startswith(f"{self._name} ")]
        for name in names:
            self.store.limiter(name).clear()
        return len(names)

    def clear(self, key: str, expiry: float = 0) -> Steps[None]:
        """Clears a key."""
        limit, expiry = self._known(key, expiry)
        if expiry:
            yield Call(self._limiter(limit, expiry), "clear", (key,))

    def window(self, key: str, limit: int, expiry: int) -> Steps[tuple[float, int]]:
        """Returns the start of a moving window, in seconds since the epoch, and the units that count in it."""
        used = yield from self.used(key, limit, expiry)
        return time.time() + ((yield from self.reset_after(key, limit, expiry)) - expiry if used else 0.0), used

    def counts(self, key: str, expiry: int) -> Steps[tuple[int, float, int, float]]:
        """Returns the units as those of the current window of a counter. They are exact, so no part of the previous
        window is estimated."""
        limit = self._known(key, expiry)[0]
        return 0, 0.0, (yield from self.used(key, limit, expiry)), (yield from self.reset_after(key, limit, expiry))

    def _known(self, key: str, expiry: float = 0) -> tuple[int, float]:
        """Returns the limit and the window from the end of a key. Other keys have the window of their last use (0:
        never used)."""
        found = LIMIT.search(key)
        if found:
            return int(found[1]), expiry or int(found[2]) * TIME_TYPES[found[3]].seconds
        if expiry:
            self._others[key] = expiry
        return MOST, self._others.get(key, 0)

    def take(self, key: str, limit: int, expiry: float, amount: float) -> Steps[int | None]:
        """Takes units. Returns the units in use afterwards, or None if denied."""
        if amount <= 0:
            return (yield from self.used(key, limit, expiry))
        try:
            # Other storages accept fractional costs.
            decision: Decision = yield Call(self._limiter(limit, expiry), "decide", (key, ceil(amount)))
        except WeightExceedsCapacity:
            return None
        return limit - (decision.remaining or 0) if decision.admitted else None

    def used(self, key: str, limit: int, expiry: float) -> Steps[int]:
        """Returns the units that count now."""
        decision = yield Call(self._limiter(limit, expiry), "peek", (key, 0))
        return limit - (decision.remaining or 0)

    def reset_after(self, key: str, limit: int, expiry: float) -> Steps[float]:
        """Returns the seconds until more units become free; 0.0 if none are in use."""
        limiter = self._limiter(limit, expiry)
        left = (yield Call(limiter, "peek", (key, 0))).remaining or 0
        if left >= limit:
            return 0.0
        after: float = (yield Call(limiter, "peek", (key, left + 1))).retry_after
        return after


class WorkglowStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """A Store behind the storage interface of `limits`.

    uri: "workglow+" and the address of a Store. name: the prefix of the names of its limits. The other options are
    those of a Store: timeout, on_error, durability.
    """

    STORAGE_SCHEME = SCHEMES

    def __init__(self, uri: str, wrap_exceptions: bool = False, *, name: str = "limits", **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._windows = Windows(uri, name, options)

    @property
    def storage(self) -> Store:
        """The store behind it."""
        return self._windows.store

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """The exceptions that it raises if errors are not wrapped."""
        return LimitError

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """Counts if the limit at the end of the key admits it. Returns more than the limit otherwise."""
        return run(self._windows.incr(key, expiry, amount))

    def get(self, key: str) -> int:
        """Returns the units of a key that count now."""
        return run(self._windows.get(key))

    def get_expiry(self, key: str) -> float:
        """Returns the time at which more units become free, in seconds since the epoch."""
        return run(self._windows.get_expiry(key))

    def check(self) -> bool:
        """Returns whether the store can be used."""
        return run(self._windows.check())

    def reset(self) -> int | None:
        """Clears all keys of all limits of this name."""
        return self._windows.reset()

    def clear(self, key: str) -> None:
        """Clears a key."""
        return run(self._windows.clear(key))

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts if the limit admits it."""
        return run(self._windows.take(key, limit, expiry, amount)) is not None

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Returns the start of the window, in seconds since the epoch, and the units that count in it."""
        return run(self._windows.window(key, limit, expiry))

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts if the limit admits it."""
        return run(self._windows.take(key, limit, expiry, amount)) is not None

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns the units as those of the current window."""
        return run(self._windows.counts(key, expiry))

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Clears a key."""
        return run(self._windows.clear(key, expiry))


class AsyncWorkglowStorage(aio.Storage, aio.MovingWindowSupport, aio.SlidingWindowCounterSupport):
    """A Store behind the storage interface of `limits.aio`. The event loop never waits for the store.

    uri: "workglow+" and the address of a Store, after "async+". name: the prefix of the names of its limits. The other options are
    those of a Store: timeout, on_error, durability.
    """

    STORAGE_SCHEME = [f"async+{scheme}" for scheme in SCHEMES]

    def __init__(self, uri: str, wrap_exceptions: bool = False, *, name: str = "limits", **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        self._windows = Windows(uri, name, options)

    @property
    def storage(self) -> Store:
        """The store behind it."""
        return self._windows.store

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """The exceptions that it raises if errors are not wrapped."""
        return LimitError

    async def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """Counts if the limit at the end of the key admits it. Returns more than the limit otherwise."""
        return await run_async(self._windows.incr(key, expiry, amount))

    async def get(self, key: str) -> int:
        """Returns the units of a key that count now."""
        return await run_async(self._windows.get(key))

    async def get_expiry(self, key: str) -> float:
        """Returns the time at which more units become free, in seconds since the epoch."""
        return await run_async(self._windows.get_expiry(key))

    async def check(self) -> bool:
        """Returns whether the store can be used."""
        return await run_async(self._windows.check())

    async def reset(self) -> int | None:
        """Clears all keys of all limits of this name."""
        cleared: int = await in_thread(id(self), self._windows.reset)
        return cleared

    async def clear(self, key: str) -> None:
        """Clears a key."""
        return await run_async(self._windows.clear(key))

    async def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts if the limit admits it."""
        return await run_async(self._windows.take(key, limit, expiry, amount)) is not None

    async def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Returns the start of the window, in seconds since the epoch, and the units that count in it."""
        return await run_async(self._windows.window(key, limit, expiry))

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts if the limit admits it."""
        return await run_async(self._windows.take(key, limit, expiry, amount)) is not None

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns the units as those of the current window."""
        return await run_async(self._windows.counts(key, expiry))

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Clears a key."""
        return await run_async(self._windows.clear(key, expiry))
