"""A storage for the `limits` package, and so for Flask-Limiter and slowapi: import this module, and change the address.

    import workglow_limit.limits_storage

    Limiter(get_remote_address, app=app, storage_uri="workglow+sqlite:limits.db")

The address is one of a Store after "workglow+": memory:, sqlite:PATH, redis://…, rediss://…, postgresql://…. All three
strategies, "fixed-window", "moving-window" and "sliding-window-counter", keep the same exact limit: never more than its amount
in any rolling window of its length, across all processes. A start that is refused does not count.
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
#: The end of a key of `limits`: the amount, and so many of such a time.
LIMIT = re.compile(rf"/([1-9][0-9]*)/([1-9][0-9]*)/({'|'.join(TIME_TYPES)})$")
#: What counts where no limit is known.
MOST = 1_000_000_000


class WorkglowStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    """A Store behind the storage interface of `limits`.

    uri: a Store's, after "workglow+". name: what its limits are called; more is appended. The other options are those of
    a Store: timeout, on_error, durability.
    """

    STORAGE_SCHEME = [
        PREFIX + scheme
        for scheme in ("memory", "sqlite", "redis", "rediss", "redis+unix", "postgres", "postgresql")
    ]  # fmt: skip

    def __init__(self, uri: str, wrap_exceptions: bool = False, *, name: str = "limits", **options: Any) -> None:
        super().__init__(uri, wrap_exceptions=wrap_exceptions)
        if not name or type(name) is not str:
            raise ConfigurationError(f"name is {name!r}: expected what its limits are called")
        url = uri.removeprefix(PREFIX)
        try:
            # Many write memory:// here.
            self.storage = Store("memory:" if url == "memory://" else url, **options)
        except (InvalidUrl, TypeError, ValueError) as error:
            raise ConfigurationError(str(error)) from error
        self._name = name
        self._limiter = lru_cache(None)(self._new_limiter)
        #: The windows of keys that do not say it: not those of the strategies.
        self._others: dict[str, float] = {}

    @property
    def base_exceptions(self) -> type[Exception] | tuple[type[Exception], ...]:
        """What it raises where errors are not wrapped."""
        return LimitError

    def _new_limiter(self, amount: int, expiry: float) -> Limiter:
        name = f"{self._name} {amount}/{expiry}s"
        return RateLimiter(self.storage, name, max_executions=amount, window_size_in_seconds=expiry)

    # ---- what strategies ask of all storages ----

    def incr(self, key: str, expiry: float, amount: int = 1) -> int:
        """Counts, if the limit that the key ends with has room. The answer is above the limit if not."""
        limit = self._known(key, expiry)[0]
        used = self._take(key, limit, expiry, amount)
        return limit + 1 if used is None else used

    def get(self, key: str) -> int:
        """How many units of a key count now."""
        limit, expiry = self._known(key)
        return self._used(key, limit, expiry) if expiry else 0

    def get_expiry(self, key: str) -> float:
        """When there will be more room, in seconds of the epoch."""
        limit, expiry = self._known(key)
        return time.time() + (self._reset(key, limit, expiry) if expiry else 0.0)

    def check(self) -> bool:
        """Can the store be used?"""
        try:
            self.storage.open()
        except LimitError:
            return False
        return True

    def reset(self) -> int | None:
        """Forgets all keys of all limits of this name."""
        names = [name for name in self.storage.names() if name.startswith(f"{self._name} ")]
        for name in names:
            RateLimiter.attach(self.storage, name).clear()
        return len(names)

    def clear(self, key: str) -> None:
        """Forgets a key."""
        limit, expiry = self._known(key)
        if expiry:
            self._limiter(limit, expiry).clear(key)

    # ---- moving windows ----

    def acquire_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts, if there is room."""
        return self._take(key, limit, expiry, amount) is not None

    def get_moving_window(self, key: str, limit: int, expiry: int) -> tuple[float, int]:
        """When the window began, in seconds of the epoch, and how many units count in it."""
        used = self._used(key, limit, expiry)
        return time.time() + (self._reset(key, limit, expiry) - expiry if used else 0.0), used

    # ---- counters ----

    def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Counts, if there is room."""
        return self.acquire_entry(key, limit, expiry, amount)

    def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """All that counts is in the current window: it is exact, so nothing of the one before has to be estimated."""
        limit = self._known(key, expiry)[0]
        return 0, 0.0, self._used(key, limit, expiry), self._reset(key, limit, expiry)

    def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forgets a key."""
        self._limiter(self._known(key, expiry)[0], expiry).clear(key)

    # ---- what is behind them ----

    def _known(self, key: str, expiry: float = 0) -> tuple[int, float]:
        """The limit and the length of a key's window, as its end says; of another key, as it was used last (0: never)."""
        found = LIMIT.search(key)
        if found:
            return int(found[1]), expiry or int(found[2]) * TIME_TYPES[found[3]].seconds
        if expiry:
            self._others[key] = expiry
        return MOST, self._others.get(key, 0)

    def _take(self, key: str, limit: int, expiry: float, amount: float) -> int | None:
        """Takes so many units. How many are used then; None if there is no room."""
        if amount <= 0:
            return self._used(key, limit, expiry)
        try:
            # Costs of other storages may be fractions.
            decision = self._limiter(limit, expiry).decide(key, ceil(amount))
        except WeightExceedsCapacity:
            return None
        return limit - (decision.remaining or 0) if decision.admitted else None

    def _used(self, key: str, limit: int, expiry: float) -> int:
        return limit - (self._limiter(limit, expiry).peek(key, 0).remaining or 0)

    def _reset(self, key: str, limit: int, expiry: float) -> float:
        """After how many seconds there is more room than now; 0.0 if nothing is used."""
        limiter = self._limiter(limit, expiry)
        left = limiter.peek(key, 0).remaining or 0
        return limiter.peek(key, left + 1).retry_after if left < limit else 0.0
