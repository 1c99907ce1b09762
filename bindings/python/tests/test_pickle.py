"""Pickling for other processes, and copying."""

import ast
import copy
import os
import pickle
from pathlib import Path

import pytest
import workglow_limit
from conftest import run
from pool_program import LIMIT, WINDOW, Tenant
from workglow_limit import (
    AcquireTimeout,
    CompositeLimiter,
    ConcurrencyLimiter,
    DelayLimiter,
    EvenlySpacedRateLimiter,
    FixedWindowLimiter,
    FlowControl,
    InvalidUrl,
    LeakyBucketLimiter,
    LimitError,
    ManualClock,
    NullLimiter,
    RateLimiter,
    SlidingWindowCounterLimiter,
    Store,
    StoreError,
    TokenBucketLimiter,
    Unsupported,
)

FLOW = FlowControl("flow", rate=5, period=0.5, parallelism=2)


def again(value):
    return pickle.loads(pickle.dumps(value))


@pytest.fixture
def store(tmp_path):
    return Store(f"sqlite:{tmp_path}/limits.db")


def most_in_any_window(starts, length):
    """Returns the most starts whose whole [a, b] lies in one window."""
    return max(sum(a <= other and b < a + length for other, b in starts) for a, _ in starts)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_processes_of_a_pool_share_one_limit(method, tmp_path):
    first, starts = run("pool_program.py", method, f"sqlite:{tmp_path}/limits.db").split(" ", 1)
    assert int(first) == LIMIT
    starts = ast.literal_eval(starts)
    assert len(starts) > LIMIT
    assert most_in_any_window(starts, WINDOW * 1e9) <= LIMIT


MADE = {
    "rate": lambda store: RateLimiter(store, "x", max_executions=3, window_size_in_seconds=60, max_backoff_delay=60, jitter="full"),
    "windows": lambda store: RateLimiter(store, "x", windows=iter([(3, 60), (5, 0.5)])),
    "policy": lambda store: store.limiter("x", "10 per minute + 2 concurrent"),
    "found": lambda store: (store.limiter("x", "3/1h").peek(), store.limiter("x"))[1],
    "flow control": lambda store: store.limiter(FLOW),
    "concurrency": lambda store: ConcurrencyLimiter(3, store=store, name="x", lease=60),
    "delay": lambda store: DelayLimiter(60, store=store, name="x"),
    "evenly spaced": lambda store: EvenlySpacedRateLimiter(
        max_executions=5, window_size_in_seconds=60, adaptive=False, store=store, name="x"
    ),
    "token bucket": lambda store: TokenBucketLimiter(store, "x", rate=5, period=60, burst=7),
    "leaky bucket": lambda store: LeakyBucketLimiter(store, "x", rate=5, period=60),
    "fixed window": lambda store: FixedWindowLimiter(store, "x", max_executions=5, window_size_in_seconds=3600),
    "counter": lambda store: SlidingWindowCounterLimiter(store, "x", max_executions=5, window_size_in_seconds=3600),
    "subclass": lambda store: Tenant(store, "acme"),
    "composite": lambda store: composite(store),
}  # fmt: skip


def composite(store):
    both = CompositeLimiter(iter([store.limiter("x", "3/1h")]))
    both.add(ConcurrencyLimiter(2, store=store, name="y"))
    return both


@pytest.mark.parametrize("kind", MADE)
def test_a_limiter_is_unpickled_with_its_arguments(kind, store, tmp_path):
    limiter = MADE[kind](store)
    # The limiter was not used yet: the pickle holds its policy.
    other = again(limiter)
    assert (type(other), other.name, repr(other)) == (type(limiter), limiter.name, repr(limiter))
    permit = other.try_acquire()
    seen, restored = limiter.peek(), other.peek()
    assert (seen.limit, seen.remaining, seen.admitted) == (restored.limit, restored.remaining, restored.admitted)
    assert seen.remaining < seen.limit
    permit.cancel()


def test_objects_of_one_process_cannot_be_pickled(store):
    clock = ManualClock()
    alone = "^a limiter without a store counts in one process only: pass store and name$"
    memory = "^memory: is this process's: other processes share a store that has an address, such as sqlite:PATH$"
    for value, why in {
        Store("memory:"): memory,
        RateLimiter(Store("memory:"), "x", max_executions=1, window_size_in_seconds=1): memory,
        Store("memory:").limiter("x", "1/1h"): memory,
        ConcurrencyLimiter(1): alone,
        DelayLimiter(clock=clock): alone,
        EvenlySpacedRateLimiter(max_executions=1, window_size_in_seconds=1): alone,
        CompositeLimiter([store.limiter("x", "1/1h"), ConcurrencyLimiter(1)]): alone,
        clock: "^a ManualClock cannot be pickled: it exists in one process only$",
        Store("sqlite:x.db", clock=clock): "^sqlite:x.db uses a manual clock, which no other process has$",
        store.limiter("x", "1/1h").try_acquire(): r"^a permit cannot be pickled or copied: send its to_text\(\)",
    }.items():
        with pytest.raises(Unsupported, match=why) as caught:
            pickle.dumps(value)
        assert (caught.value.code, caught.value.number) == ("unsupported", -13)
    assert isinstance(again(NullLimiter()), NullLimiter)
    assert again(FLOW) == FLOW and again(FlowControl("k", parallelism=1)).rate is None


def test_a_store_is_unpickled_with_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {"timeout": 7.5, "mode": 0o640, "on_error": "admit", "durability": "commit", "max_size": 1 << 26}
    store = Store("sqlite:limits.db", **options)
    sent = pickle.dumps(store.limiter("x", "2/1h")), pickle.dumps(store)
    store.limiter("x", "2/1h").try_acquire()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert pickle.loads(sent[0]).peek().remaining == 1
    read = pickle.loads(sent[1])
    assert read.url == f"sqlite:{tmp_path}/limits.db" and os.listdir() == []
    assert again(read).__reduce__() == read.__reduce__()
    *_, (*_, named) = read.__reduce__()
    assert {**named, "timeout": named["timeout"].total_seconds()} == {
        "timeout": 7.5, "mode": 0o640, "on_error": "admit", "durability": "commit", "max_size": 1 << 26,
    }  # fmt: skip


def test_a_password_is_pickled_and_not_shown(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store("redis://user:secret@127.0.0.1:1/2?lane=lane")
    _, _, (address,), _ = store.__reduce__()[1]
    assert address == f"redis://user:secret@127.0.0.1:1/2?lane={tmp_path}/lane"
    assert "secret" not in repr(again(store)) + repr(again(store.limiter("x", "1/1h")))
    assert again(Store("postgres://me:secret@127.0.0.1:1/x")).__reduce__()[1][2] == (
        "postgres://me:secret@127.0.0.1:1/x",
    )


def test_a_copy_is_the_object_itself(store):
    clock = ManualClock()
    for value in store, clock, Store("memory:"), ConcurrencyLimiter(1), store.limiter("x", "1/1h"), Tenant(store, "a"):
        assert copy.copy(value) is value
        assert copy.deepcopy({"limits": [value]})["limits"][0] is value
    with pytest.raises(Unsupported, match="^a permit cannot be pickled or copied"):
        copy.copy(NullLimiter().try_acquire())


def test_a_path_means_sqlite(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    for url in tmp_path / "here/limits.db", "sqlite:~/here/limits.db", Path("~/here/limits.db"):
        limiter = Store(url).limiter("x", "9/1h")
        limiter.try_acquire()
    assert limiter.peek().remaining == 6
    assert Store(tmp_path / "x.db").url == f"sqlite:{tmp_path}/x.db"
    assert again(Store("sqlite:~/x.db")).url == f"sqlite:{tmp_path}/x.db"
    with pytest.raises(InvalidUrl, match="there is no scheme"):
        Store("~/limits.db")
    with pytest.raises(InvalidUrl, match="~root means a home directory to shells only"):
        Store(Path("~root/limits.db"))
    for wrong in b"limits.db", 5, None:
        with pytest.raises(
            TypeError, match="^url is .*: expected a str, or the path of a file as an os.PathLike, not "
        ):
            Store(wrong)
    monkeypatch.setenv("HOME", "nowhere")
    with pytest.raises(InvalidUrl, match="HOME is not an absolute path"):
        Store("sqlite:~/limits.db")


ERRORS = [
    error
    for error in vars(workglow_limit).values()
    if isinstance(error, type) and issubclass(error, LimitError) and error not in (LimitError, AcquireTimeout)
]


@pytest.mark.parametrize("copied", [again, copy.copy, copy.deepcopy])
def test_an_error_keeps_its_attributes(copied, store):
    with pytest.raises(AcquireTimeout) as caught:
        store.limiter("x", "1/1h").acquire("acme", timeout=0), store.limiter("x").acquire("acme", timeout=0)
    error = copied(caught.value)
    assert error.key == "acme" and type(error) is AcquireTimeout
    assert isinstance(error, LimitError) and isinstance(error, TimeoutError) and not isinstance(error, StoreError)
    assert (error.code, error.number) == ("acquire_timeout", -18)
    assert 3500 < error.retry_after <= 3600 and error.retry_after == caught.value.retry_after
    assert str(error) == str(caught.value)

    with pytest.raises(LimitError) as caught:
        Store("sqlite:")
    error = copied(caught.value)
    assert (type(error), str(error), error.code, error.number) == (InvalidUrl, str(caught.value), "invalid_url", -3)

    assert len(ERRORS) >= 15 and {kind.__module__ for kind in ERRORS} == {"workglow_limit"}
    for kind in ERRORS:
        made = kind("why")
        made.code, made.number = "code", -1
        error = copied(made)
        assert (type(error), error.args, error.code, error.number, str(error)) == (kind, ("why",), "code", -1, "why")
