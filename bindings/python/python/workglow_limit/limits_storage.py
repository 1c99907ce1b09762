"""A storage for the `limits` package, and so for Flask-Limiter and slowapi. Import this module and change the address:

    import workglow_limit.limits_storage

    Limiter(get_remote_address, app=app, storage_uri="workglow+sqlite:limits.db")

The address is "workglow+" and the address of a Store: memory:, sqlite:PATH, redis://…, rediss://…, postgresql://…. All
three strategies, "fixed-window", "moving-window" and "sliding-window-counter", enforce the same exact limit: at most
its amount in any rolling window of its length, over all processes. A refused start does not count.
"""

from __future__ import annotations

import re
import time
from functools import lru_cache
from math import ceil
from typing import Any

from limits.errors import ConfigurationError
from limits.limits import TIME_TYPES
from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage

from ._errors import InvalidUrl, LimitError, WeightExceedsCapacity
from ._native import Limiter, RateLimiter, Store

__all__ = ["WorkglowStorage"]

PREFIX = "workglow+"
#: The end of a key of `limits`: the amount, the multiple, and the unit of time.
LIMIT = re.compile(rf"/([1-9][0-9]*)/([1-9][0-9]*)/({'|'.join(TIME_TYPES)})$")
#: The amount of keys without a known limit.
MOST = 1_000_000_000


class WorkglowStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """A Store behind the storage interface of `limits`.

    uri: "workglow+" and the address of a Store. name: the prefix of the names of its limits. The other options are
    those of a Store: timeout, on_error, durability.
    """

    STORAGE_SCHEME = [
        PREFIX + scheme
        for scheme in ("memory", "sqlite", "redis", "rediss", "redis+unix", "postgres", "postgresql")
    ]  # fmt: skip

    def __init__(self, uri: str, wrap_exceptions: bool = False, *, name: str = "limits", **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        if not name or type(name) is not str:
            raise ConfigurationError(f"name is {name!r}: expected a str, the prefix of its limits' names")
        url = uri.removeprefix(PREFIX)
        try:
            # memory:// is common with `limits`.
            self.storage = Store("memory:" if url == "memory://" else url, **options)
        except (InvalidUrl, TypeError, ValueError) as error:
            raise ConfigurationError(str(error)) from error
        self._name = name
        self._limiter = lru_cache(None)(self._new_limiter)
        #: The windows of keys that do not contain a window. The keys of the strategies do.
        self._others: dict[str, float] = {}

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """The exceptions that it raises if errors are not wrapped."""
        return LimitError

    def _new_limiter(self, amount: int, expiry: float) -> Limiter:
        name = f"{self._name} {amount}/{expiry}s"
        return RateLimiter(self.storage, name, max_executions=amount, window_size_in_seconds=expiry)

    # ---- called by all strategies ----

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """Counts if the limit at the end of the key admits it. Returns more than the limit otherwise."""
        limit = self._known(key, expiry)[0]
        used = self._take(key, limit, expiry, amount)
        return limit + 1 if used is None else used

    def get(self, key: str) -> int:
        """Returns the units of a key that count now."""
        limit, expiry = self._known(key)
        return self._used(key, limit, expiry) if expiry else 0

    def get_expiry(self, key: str) -> float:
        """Returns the time at which more units become free, in seconds since the epoch."""
        limit, expiry = self._known(key)
        return time.time() + (self._reset(key, limit, expiry) if expiry else 0.0)

    def check(self) -> bool:
        """Returns whether the store can be used."""
        try:
            self.storage.open()
        except LimitError:
            return False
        return True

    def reset(self) -> int | None:
        """Clears all keys of all limits of this name."""
        names = [name for name in self.storage.names() if name.startswith(f"{self._name} ")]
        for name in names:
            RateLimiter.attach(self.storage, name).clear()
        return len(names)

    def clear(self, key: str) -> None:
        """Clears a key."""
        limit, expiry = self._known(key)
        if expiry:
            self._limiter(limit, expiry).clear(key)

    # ---- moving windows ----

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts if the limit admits it."""
        return self._take(key, limit, expiry, amount) is not None

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """Returns the start of the window, in seconds since the epoch, and the units that count in it."""
        used = self._used(key, limit, expiry)
        return time.time() + (self._reset(key, limit, expiry) - expiry if used else 0.0), used

    # ---- counters ----

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts if the limit admits it."""
        return self.acquire_entry(key, limit, expiry, amount)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Returns the units as those of the current window. They are exact, so no part of the previous window is
        estimated."""
        limit = self._known(key, expiry)[0]
        return 0, 0.0, self._used(key, limit, expiry), self._reset(key, limit, expiry)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Clears a key."""
        self._limiter(self._known(key, expiry)[0], expiry).clear(key)

    # ---- the limiters behind them ----

    def _known(self, key: str, expiry: float = 0) -> tuple[int, float]:
        """Returns the limit and the window from the end of a key. Other keys have the window of their last use (0:
        never used)."""
        found = LIMIT.search(key)
        if found:
            return int(found[1]), expiry or int(found[2]) * TIME_TYPES[found[3]].seconds
        if expiry:
            self._others[key] = expiry
        return MOST, self._others.get(key, 0)

    def _take(self, key: str, limit: int, expiry: float, amount: float) -> int | None:
        """Takes units. Returns the units in use afterwards, or None if denied."""
        if amount <= 0:
            return self._used(key, limit, expiry)
        try:
            # Other storages accept fractional costs.
            decision = self._limiter(limit, expiry).decide(key, ceil(amount))
        except WeightExceedsCapacity:
            return None
        return limit - (decision.remaining or 0) if decision.admitted else None

    def _used(self, key: str, limit: int, expiry: float) -> int:
        return limit - (self._limiter(limit, expiry).peek(key, 0).remaining or 0)

    def _reset(self, key: str, limit: int, expiry: float) -> float:
        """Returns the seconds until more units become free; 0.0 if none are in use."""
        limiter = self._limiter(limit, expiry)
        left = limiter.peek(key, 0).remaining or 0
        return limiter.peek(key, left + 1).retry_after if left < limit else 0.0
