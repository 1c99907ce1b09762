"""Stores: operations, and answers when a store fails."""

import asyncio
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from threading import Event

import pytest
from conftest import lane_held, patiently, until
from workglow_limit import (
    InvalidArgument,
    KindMismatch,
    ManualClock,
    RateLimiter,
    Store,
    StoreError,
    StoreTimeout,
    UnknownLimit,
)


def rate(store, n=2, window=60):
    return RateLimiter(store, "jobs", max_executions=n, window_size_in_seconds=window)


def test_several_windows(url):
    clock = ManualClock()
    store = Store(url, clock=clock)
    limiter = RateLimiter(store, "jobs", windows=iter([(3, 60), [2, 1.0]]))
    assert [limiter.try_acquire() is not None for _ in range(3)] == [True, True, False]
    assert limiter.peek().retry_after == 1.0
    clock.advance(1)
    assert [limiter.try_acquire() is not None for _ in range(2)] == [True, False]
    assert limiter.peek().retry_after == 59.0
    assert store.names() == ["jobs"]


def test_an_override_holds_until_it_is_lifted(url):
    store = Store(url)
    limiter = rate(store, n=2)
    limiter.try_acquire()
    store.override("jobs", "5/1m")
    assert limiter.peek().remaining == 4
    # A worker that restarts declares its policy again, which does not undo the override.
    again = rate(store, n=3)
    assert (again.peek().limit, limiter.peek().limit) == (5, 5)
    store.override("jobs", "4/1m + 2/1s")
    assert again.peek().limit == 2
    for _ in range(2):
        store.lift("jobs")
        assert (again.peek().limit, limiter.peek().remaining) == (3, 2)


def test_calls_by_name_know_a_limiter_that_was_not_used_yet(url, tmp_path):
    # They once failed until the limiter's first use.
    databases = (f"sqlite:{tmp_path}/{i}.db" for i in count())

    def made():
        store = Store(next(databases) if url.startswith("sqlite") else url)
        return store, rate(store), store.limiter("api", "5/1h + 2 concurrent")

    store, limiter, _both = made()
    store.override("jobs", "9/1m")
    assert limiter.peek().limit == 9
    for call in "lift", "forget":
        store, *_limiters = made()
        for name in "jobs", "api":
            getattr(store, call)(name)
        assert store.names() == ([] if call == "forget" else ["api", "jobs"])
    store, *_limiters = made()
    assert [limit.name for limit in store.snapshot().limits] == ["api/concurrency", "api/rate", "jobs"]
    store, *_limiters = made()
    assert store.names() == ["api", "jobs"]
    store, *_limiters = made()
    assert store.limiter("api/concurrency").peek().limit == 2
    assert store.limiter("jobs").peek().limit == 2


def test_an_override_of_several_kinds_is_all_or_nothing(url):
    store = Store(url)
    limiter = store.limiter("api", "5/1h + 2 concurrent")

    def limits():
        return [store.limiter(f"api/{part}").peek().limit for part in ("rate", "concurrency")]

    assert limiter.can_proceed()
    store.override("api", "3 concurrent + 7/1h")
    assert limits() == [7, 3]
    for wrong, why in {
        "9/1h + 5 concurent": 'expected /, per or concurrent (such as 100/1m, "5 per second" or 5 concurrent) at character 10, not "concurent"',
        "9/1h + delay 1s": 'expected at most one policy for each part of limit "api": rate, concurrency',
    }.items():
        with pytest.raises(InvalidArgument, match=f"^policy is {re.escape(repr(wrong))}: {re.escape(why)}$"):
            store.override("api", wrong)
        assert limits() == [7, 3]
    store.lift("api")
    assert limits() == [5, 2]


def test_a_key_may_have_its_own_policy(url):
    store = Store(url)
    limiter = rate(store, n=2)
    limiter.try_acquire()
    store.override("jobs", "5/1m", key="tenant")
    store.override("jobs", "3/1m")
    assert [limiter.peek(key).limit for key in ("tenant", "other", None)] == [5, 3, 3]
    assert [limiter.try_acquire("tenant") is not None for _ in range(6)] == [True] * 5 + [False]
    store.override("jobs", "4/1m", "tenant")
    assert (limiter.decide("tenant").limit, limiter.peek("tenant").admitted) == (4, False)
    again = Store(url) if url.startswith("sqlite") else store
    assert again.limiter("jobs").peek("tenant").limit == 4
    for _ in range(2):
        again.lift("jobs", key="tenant")
        assert limiter.peek("tenant").limit == 3
    store.lift("jobs", None)
    assert limiter.peek("tenant").limit == 2
    for wrong in "", "k" * 1025:
        for call in lambda key: store.override("jobs", "5/1m", key), lambda key: store.lift("jobs", key):
            with pytest.raises(
                InvalidArgument, match=f"^key is {re.escape(repr(wrong))[:20]}.*: expected 1 to 1024 bytes|at most"
            ):
                call(wrong)
    with pytest.raises(TypeError, match="^key is 5: expected a str, not int$"):
        store.override("jobs", "5/1m", key=5)
    with pytest.raises(TypeError, match="^key is 5: expected a str, not int$"):
        store.lift("jobs", key=5)


def test_an_override_of_an_unknown_limit(url):
    store = Store(url)
    rate(store).try_acquire()
    keyed = [lambda: store.override("mail", "5/1m", "key"), lambda: store.lift("mail", "key")]
    for call in lambda: store.override("mail", "5/1m"), lambda: store.lift("mail"), *keyed:
        with pytest.raises(UnknownLimit, match="this store knows jobs"):
            call()
    with pytest.raises(KindMismatch):
        store.override("jobs", "5 concurrent")
    assert rate(store).peek().limit == 2


def test_flushing(url):
    store = Store(url, durability="commit")
    store.flush()
    limiter = rate(store)
    limiter.try_acquire()
    store.flush()
    assert (limiter.peek().remaining, store.failures) == (1, 0)


def works(store, limiter):
    """Whether a store with a short timeout answers, and has its limit open from then on."""
    failures = store.failures
    patiently(limiter.peek)
    return store.failures == failures


def test_on_error_answers_for_a_busy_store(tmp_path):
    path = tmp_path / "limits.db"
    Store(f"sqlite:{path}").open()
    stores = {how: Store(f"sqlite:{path}", timeout=0.02, on_error=how) for how in ("raise", "deny", "admit")}
    limiters = {how: rate(store) for how, store in stores.items()}
    with lane_held(path):
        with pytest.raises(StoreTimeout):
            limiters["raise"].try_acquire()
        assert limiters["deny"].try_acquire() is None
        with limiters["admit"].try_acquire() as permit:
            permit.complete()
        assert not limiters["deny"].decide() and limiters["admit"].decide()
        assert {how: store.failures for how, store in stores.items()} == {"raise": 1, "deny": 2, "admit": 2}
    # None of these starts counted, and all limiters work again.
    for how in stores:
        until(lambda how=how: works(stores[how], limiters[how]))
    assert [limiter.try_acquire() is not None for limiter in limiters.values()] == [True, True, False]


def test_calls_that_decide_nothing_raise_in_any_case(tmp_path):
    for how in "raise", "deny", "admit":
        store = Store(f"sqlite:{tmp_path}/no/limits.db", on_error=how)
        for call in store.open, store.names, lambda: store.override("jobs", "5/1m"), lambda: store.lift("jobs"):
            with pytest.raises(StoreError, match="/no"):
                call()


CALLS = {
    "try_acquire": lambda store: rate(store).try_acquire(),
    "acquire": lambda store: rate(store).acquire(),
    "acquire_async": lambda store: asyncio.run(rate(store).acquire_async()),
    "reserve": lambda store: rate(store).reserve(),
    "override": lambda store: store.override("jobs", "5/1m"),
    "lift": lambda store: store.lift("jobs"),
}


@pytest.mark.parametrize("call", CALLS)
def test_waiting_for_the_store_releases_the_gil(call, tmp_path):
    path = tmp_path / "limits.db"
    rate(Store(f"sqlite:{path}")).try_acquire()
    store = Store(f"sqlite:{path}", timeout=30)
    started = Event()

    def use():
        started.set()
        return CALLS[call](store)

    with ThreadPoolExecutor(1) as pool:
        with lane_held(path):
            first = pool.submit(use)
            started.wait()
        # If it had kept the GIL, this thread could not have released the lane before the timeout.
        first.result()


def test_problems_of_a_store_are_reported_and_repaired(tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    rate(store, window=3600).try_acquire()
    store.flush()
    assert store.verify() == store.verify(repair=True) == Store("memory:").verify() == []
    with closing(sqlite3.connect(tmp_path / "limits.db", isolation_level=None)) as stranger:
        stranger.execute("update limits set policy = 'often'")
    lane = tmp_path / "limits.db-lane"
    with lane.open("r+b") as file:
        file.write(b"x" * 4096)
    again = Store(f"sqlite:{tmp_path}/limits.db")
    policy, *others = again.verify()
    assert (policy.found, policy.repaired) == ('limit "jobs" has the policy "often"', False)
    assert repr(policy) == '<Problem: limit "jobs" has the policy "often">'
    assert all(problem.found.startswith("the lane: ") for problem in others) and others
    assert all(problem.repaired for problem in again.verify(repair=True))
    assert again.verify() == []
    assert rate(again).peek().limit == 2
    with pytest.raises(TypeError):
        store.verify(True)
