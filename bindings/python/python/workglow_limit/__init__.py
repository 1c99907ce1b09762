"""Rate and concurrency limits that all processes of a machine share, in any language, and that are never exceeded.

from workglow_limit import RateLimiter, Store

store = Store("sqlite:limits.db")  # or "memory:" for one process
limiter = RateLimiter(store, "openai", max_executions=100, window_size_in_seconds=60)

with limiter.acquire("tenant-7", timeout=30):
    ...
"""

from sys import modules as _modules

from ._errors import (
    AcquireTimeout,
    Damaged,
    ForeignPermit,
    InvalidArgument,
    InvalidUrl,
    KindMismatch,
    LeaseLost,
    LimitError,
    NotAStore,
    StoreClosed,
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
    DelayLimiter,
    EvenlySpacedRateLimiter,
    Finding,
    FirstOfLimiter,
    FixedWindowLimiter,
    FlowControl,
    GrantSnapshot,
    HeadSnapshot,
    HolderSnapshot,
    KeySnapshot,
    LeakyBucketLimiter,
    Limiter,
    LimitEvent,
    LimitSnapshot,
    LineSnapshot,
    ManualClock,
    NullLimiter,
    Permit,
    Problem,
    ProcessSnapshot,
    RateLimiter,
    SlidingWindowCounterLimiter,
    Snapshot,
    Stats,
    Store,
    TenantSnapshot,
    TokenBucketLimiter,
    Usage,
    WaitingSnapshot,
    Waits,
    __version__,
    doctor,
    metrics_content_type,
    postgres_schema,
)

if "gevent" in _modules or "eventlet" in _modules:
    from ._loops import hub as _hub

    # Import the hub now, because greenlets of several threads cannot wait for each other's imports.
    _hub()

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ._custom import CustomLimiter, JobLimiter
else:

    def __getattr__(name):
        # Imported lazily: they are for annotations only, and typing takes longer to import than everything else.
        if name in ("CustomLimiter", "JobLimiter"):
            from . import _custom

            return getattr(_custom, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "AcquireTimeout",
    "CompositeLimiter",
    "ConcurrencyLimiter",
    "CustomLimiter",
    "Damaged",
    "Decision",
    "DelayLimiter",
    "EvenlySpacedRateLimiter",
    "Finding",
    "FirstOfLimiter",
    "FixedWindowLimiter",
    "FlowControl",
    "ForeignPermit",
    "GrantSnapshot",
    "HeadSnapshot",
    "HolderSnapshot",
    "InvalidArgument",
    "InvalidUrl",
    "JobLimiter",
    "KeySnapshot",
    "KindMismatch",
    "LeakyBucketLimiter",
    "LeaseLost",
    "LimitError",
    "LimitEvent",
    "LimitSnapshot",
    "Limiter",
    "LineSnapshot",
    "ManualClock",
    "NotAStore",
    "NullLimiter",
    "Permit",
    "Problem",
    "ProcessSnapshot",
    "RateLimiter",
    "SlidingWindowCounterLimiter",
    "Snapshot",
    "Stats",
    "Store",
    "StoreClosed",
    "StoreError",
    "StoreFull",
    "StoreTimeout",
    "TenantSnapshot",
    "TokenBucketLimiter",
    "UnknownLimit",
    "Unsupported",
    "UnsupportedFileSystem",
    "UnsupportedVersion",
    "Usage",
    "WaitingSnapshot",
    "Waits",
    "WeightExceedsCapacity",
    "__version__",
    "doctor",
    "metrics_content_type",
    "postgres_schema",
]
