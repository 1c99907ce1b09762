"""One limit, shared by every process and language on the machine, and never exceeded.

    from workglow_limit import RateLimiter, Store

    store = Store("sqlite:limits.db")  # or "memory:" for one process
    limiter = RateLimiter(store, "openai", max_executions=100, window_size_in_seconds=60)

    with limiter.acquire("tenant-7", timeout=30):
        ...
"""

from ._errors import (
    AcquireTimeout,
    ForeignPermit,
    InvalidArgument,
    InvalidUrl,
    KindMismatch,
    LimitError,
    NotAStore,
    StoreError,
    StoreFull,
    StoreTimeout,
    UnknownLimit,
    Unsupported,
    UnsupportedFileSystem,
    UnsupportedVersion,
    WeightExceedsCapacity,
)
from ._native import (
    CompositeLimiter,
    ConcurrencyLimiter,
    Decision,
    Limiter,
    ManualClock,
    NullLimiter,
    Permit,
    RateLimiter,
    Store,
    __version__,
)

__all__ = [
    "AcquireTimeout",
    "CompositeLimiter",
    "ConcurrencyLimiter",
    "Decision",
    "ForeignPermit",
    "InvalidArgument",
    "InvalidUrl",
    "KindMismatch",
    "LimitError",
    "Limiter",
    "ManualClock",
    "NotAStore",
    "NullLimiter",
    "Permit",
    "RateLimiter",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreTimeout",
    "UnknownLimit",
    "Unsupported",
    "UnsupportedFileSystem",
    "UnsupportedVersion",
    "WeightExceedsCapacity",
    "__version__",
]
