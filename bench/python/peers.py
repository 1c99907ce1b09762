"""The measured limiters and their cases.

*Admit*: the limit is 100 and admits every decision. If a peer can have a window shorter than 100 of its decisions take,
it has such a window. Then its log is in its usual state: full, with one entry leaving per new one. A peer whose
shortest window is a second is emptied after every 100 decisions, outside the measurement. *Deny*: 1 per hour, after the
first start. Each peer is called as in its README, without waiting.
"""

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from time import monotonic, time_ns

import aiolimiter
import limits
import pyrate_limiter
import throttled
from timing import Peer
from workglow_limit import RateLimiter, Store

numbers = count()


def ours(url: str, limit: int, window: float, key: bool) -> Peer:
    """RateLimiter: an exact log. Other cases share the store, like other limits."""
    limiter = RateLimiter(store(url), f"limit-{next(numbers)}", max_executions=limit, window_size_in_seconds=window)
    f = limiter.try_acquire
    return Peer("f(key)" if key else "f()", {"f": f}, "answer is not None")


stores: dict[str, Store] = {}


def store(url: str) -> Store:
    if url not in stores:
        stores[url] = Store(url)
    return stores[url]


def shared(path: str, limit: int, window: float) -> Peer:
    """The same limit in several processes."""
    limiter = RateLimiter(Store(f"sqlite:{path}"), "shared", max_executions=limit, window_size_in_seconds=window)
    return Peer("f()", {"f": limiter.try_acquire}, "answer is not None")


def hand_written(limit: int, window: float, key: bool) -> Peer:
    """A hand-written exact log: a deque under a lock; with keys, a dictionary of deques."""
    lock, logs = threading.Lock(), {}

    def keyed(key):
        now = monotonic()
        with lock:
            log = logs.get(key)
            if log is None:
                log = logs[key] = deque()
            while log and log[0] <= now - window:
                log.popleft()
            if len(log) >= limit:
                return False
            log.append(now)
            return True

    log: deque[float] = deque()

    def single():
        now = monotonic()
        with lock:
            while log and log[0] <= now - window:
                log.popleft()
            if len(log) >= limit:
                return False
            log.append(now)
            return True

    return Peer("f(key)", {"f": keyed}) if key else Peer("f()", {"f": single})


def of_limits(strategy: type[limits.strategies.RateLimiter], limit: int, window: float, key: bool) -> Peer:
    """limits, in memory. Its windows are whole seconds, so it is emptied after every 100."""
    storage = limits.storage.MemoryStorage()
    strategy = strategy(storage)
    item = limits.RateLimitItemPerSecond(limit, max(1, int(window)))
    identifiers = ("tenant-7",) if key else ()
    renew = (lambda: strategy.clear(item, *identifiers)) if window < 1 else None
    call = "hit(item, key)" if key else "hit(item)"
    names = {"hit": strategy.hit, "item": item}
    return Peer(call, names, renew=renew, capacity=100 if renew else 1_000, settle=lambda: storage.timer.join())


class PerName(pyrate_limiter.BucketFactory):
    """A bucket per name, as in its README."""

    def __init__(self, rate: pyrate_limiter.Rate) -> None:
        self.clock, self.rate, self.buckets = pyrate_limiter.MonotonicClock(), rate, {}

    def wrap_item(self, name: str, weight: int = 1) -> pyrate_limiter.RateItem:
        return pyrate_limiter.RateItem(name, self.clock.now(), weight=weight)

    def get(self, item: pyrate_limiter.RateItem) -> pyrate_limiter.AbstractBucket:
        if item.name not in self.buckets:
            self.buckets[item.name] = self.create(pyrate_limiter.InMemoryBucket, [self.rate])
        return self.buckets[item.name]

    def flush(self) -> None:
        for bucket in self.buckets.values():
            bucket.flush()


def pyrate(limit: int, window: float, key: bool) -> Peer:
    """pyrate-limiter's exact log in memory. It makes more than 100 decisions per ms, its unit of time, so it is emptied
    after every 100."""
    rate = pyrate_limiter.Rate(limit, max(1_000, int(window * 1_000)))
    factory = PerName(rate) if key else pyrate_limiter.InMemoryBucket([rate])
    limiter = pyrate_limiter.Limiter(factory)
    renew = factory.flush if window < 1 else None
    call = "f(key, blocking=False)" if key else "f(blocking=False)"
    return Peer(call, {"f": limiter.try_acquire}, renew=renew, capacity=100 if renew else 1_000)


def pyrate_sqlite(path: str, limit: int, window: float, is_shared: bool = False) -> Peer:
    """pyrate-limiter in a database; between processes with its file lock, as in its README. 100 per ms, as it is slower
    than that.

    Without waiting it denies whenever another process has the lock. So it may wait where the limit admits, as it does
    by default.
    """
    rate = pyrate_limiter.Rate(limit, max(1, int(window * 1_000)))
    bucket = pyrate_limiter.SQLiteBucket.init_from_file([rate], db_path=path, use_file_lock=is_shared)
    call = "f()" if is_shared and window < 1 else "f(blocking=False)"
    return Peer(call, {"f": pyrate_limiter.Limiter(bucket).try_acquire})


TOKENS, SLIDING = throttled.RateLimiterType.TOKEN_BUCKET.value, throttled.RateLimiterType.SLIDING_WINDOW.value


def of_throttled(kind: str, limit: int, window: float, key: bool) -> Peer:
    """throttled-py, in memory: the token bucket of its README, and its closest match to ours. It cannot be emptied, so
    every 100 decisions have a new key."""
    quota = throttled.per_duration(timedelta(seconds=max(1, window)), limit, burst=limit)
    # By default it drops keys above 1,024.
    memory = throttled.MemoryStore(options={"MAX_SIZE": 1_000_000})
    throttle = throttled.Throttled(using=kind, quota=quota, store=memory)
    renew = (lambda: f"tenant-{next(numbers)}") if window < 1 else None
    call = "f(key)" if key or renew else "f('tenant-7')"
    return Peer(call, {"f": throttle.limit}, "not answer.limited", renew, 100 if renew else 1_000)


def transaction(path: str, limit: int, window: float) -> Peer:
    """A hand-written shared exact log: one row per start, in one immediate transaction (WAL)."""
    db = sqlite3.connect(path, isolation_level=None, timeout=10)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute("CREATE TABLE IF NOT EXISTS log (at INTEGER NOT NULL)")
    db.execute("CREATE INDEX IF NOT EXISTS log_at ON log (at)")
    window_us, run = int(window * 1_000_000), db.execute

    def f():
        run("BEGIN IMMEDIATE")
        now = time_ns() // 1_000
        run("DELETE FROM log WHERE at <= ?", (now - window_us,))
        admitted = run("SELECT count(*) FROM log").fetchone()[0] < limit
        if admitted:
            run("INSERT INTO log VALUES (?)", (now,))
        run("COMMIT")
        return admitted

    return Peer("f()", {"f": f})


def served(url: str, name: str, limit: int, window: float) -> Peer:
    """Ours on a server that machines share. Granted units start without a request."""
    limiter = RateLimiter(store(url), name, max_executions=limit, window_size_in_seconds=window)
    return Peer("f()", {"f": limiter.try_acquire}, "answer is not None")


def direct(url: str, name: str, limit: int, window: float) -> Peer:
    """The same, but the server decides each start."""
    return served(f"{url}?grants=never", name, limit, window)


def limits_on_redis(
    strategy: type[limits.strategies.RateLimiter], url: str, name: str, limit: int, window: float
) -> Peer:
    """limits: its exact log, or fixed windows. Both have whole seconds."""
    item = limits.RateLimitItemPerSecond(limit, int(window))
    hit = strategy(limits.storage.RedisStorage(url)).hit
    return Peer("hit(item, name)", {"hit": hit, "item": item, "name": name})


def throttled_on_redis(kind: str, url: str, name: str, limit: int, window: float) -> Peer:
    quota = throttled.per_duration(timedelta(seconds=window), limit, burst=limit)
    throttle = throttled.Throttled(using=kind, quota=quota, store=throttled.RedisStore(server=url))
    return Peer("f(name)", {"f": throttle.limit, "name": name}, "not answer.limited")


def awaited(limit: int, window: float) -> Peer:
    """Ours, awaited like a call that may wait."""
    limiter = RateLimiter(
        store("memory:"), f"limit-{next(numbers)}", max_executions=limit, window_size_in_seconds=window
    )
    return Peer("await f()", {"f": limiter.acquire_async})


def of_aiolimiter(limit: int, window: float) -> Peer:
    """aiolimiter's leaky bucket, which can only wait: 100 per µs, so that it never waits."""
    return Peer("await f()", {"f": aiolimiter.AsyncLimiter(limit, window).acquire})


# Name, package, and constructor: from a limit, a window in seconds, and whether it has keys.
Make = Callable[[int, float, bool], Peer]
IN_MEMORY: list[tuple[str, str, Make]] = [
    ("memory", "workglow-limit", partial(ours, "memory:")),
    ("limits moving window, memory", "limits", partial(of_limits, limits.strategies.MovingWindowRateLimiter)),
    ("limits fixed window, memory", "limits", partial(of_limits, limits.strategies.FixedWindowRateLimiter)),
    ("pyrate-limiter, memory", "pyrate-limiter", pyrate),
    ("throttled-py token bucket, memory", "throttled-py", partial(of_throttled, TOKENS)),
    ("throttled-py sliding window, memory", "throttled-py", partial(of_throttled, SLIDING)),
    ("deque and lock", "hand-written", hand_written),
]


# From a file, a limit and a window.
ON_DISK: list[tuple[str, str, Callable[[str, int, float], Peer]]] = [
    ("sqlite", "workglow-limit", shared),
    ("pyrate-limiter, SQLite and file lock", "pyrate-limiter", partial(pyrate_sqlite, is_shared=True)),
    ("sqlite3 transaction", "hand-written", transaction),
]

# From a server's URL, a name, a limit and a window.
ON_SERVER: list[tuple[str, str, Callable[[str, str, int, float], Peer]]] = [
    ("granted", "workglow-limit", served),
    ("direct", "workglow-limit", direct),
    ("limits moving window, Redis", "limits", partial(limits_on_redis, limits.strategies.MovingWindowRateLimiter)),
    ("limits fixed window, Redis", "limits", partial(limits_on_redis, limits.strategies.FixedWindowRateLimiter)),
    ("throttled-py sliding window, Redis", "throttled-py", partial(throttled_on_redis, SLIDING)),
    ("throttled-py token bucket, Redis", "throttled-py", partial(throttled_on_redis, TOKENS)),
]
