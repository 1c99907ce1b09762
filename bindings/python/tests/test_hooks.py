"""Hooks and counts."""

import asyncio
import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import lane_held, patiently, run, until
from workglow_limit import (
    AcquireTimeout,
    CompositeLimiter,
    ConcurrencyLimiter,
    InvalidArgument,
    LimitError,
    ManualClock,
    NullLimiter,
    RateLimiter,
    Stats,
    Store,
    StoreError,
    StoreTimeout,
    UnknownLimit,
)


def rate(store, n=1, name="jobs"):
    return RateLimiter(store, name, max_executions=n, window_size_in_seconds=60)


class EventLog(list):
    """A hook that records its events. Reading the record clears it."""

    def __call__(self, event):
        self.append(event)

    def taken(self):
        events = [(e.event, e.limit, e.key, e.wanted, e.granted, e.wait, e.error) for e in self]
        self.clear()
        return events


CALLS = {
    "try_acquire": lambda limiter: limiter.try_acquire("k", 2),
    "decide": lambda limiter: limiter.decide("k", 2),
    "reserve": lambda limiter: limiter.reserve("k", 2, max_wait=1),
}


@pytest.mark.parametrize("call", CALLS)
def test_denials(call, url):
    store = Store(url, clock=ManualClock())
    limiter, of_limiter, of_store = rate(store, 2), EventLog(), EventLog()
    limiter.on("throttled", of_limiter)
    store.on("throttled", of_store)
    CALLS[call](limiter)
    assert of_limiter == of_store == []
    CALLS[call](limiter)
    assert (
        of_limiter.taken() == of_store.taken() == [("throttled", "jobs", "k", 2, 0, pytest.approx(60, abs=0.1), None)]
    )
    limiter.peek("k", 2)
    limiter.can_proceed("k")
    assert of_limiter == of_store == []
    limiter.try_acquire()
    limiter.decide(weight=2)
    assert [event[2] for event in of_store.taken()] == [None]


def test_waiters(url):
    clock = ManualClock()
    store = Store(url, clock=clock)
    limiter, events = RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=60), EventLog()
    store.on("throttled", events)

    def waits():
        return store.snapshot().limits[0].waiting == 1

    with limiter.acquire():
        assert events == []
    with limiter.acquire("k"), ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(limiter.acquire, "k")
        until(waits)
        clock.advance(60)
        waiter.result().complete()
    [(event, name, key, wanted, granted, wait, error)] = events.taken()
    assert (event, name, key, wanted, granted, wait, error) == ("throttled", "jobs", "k", 1, 0, 60, None)

    async def twice():
        (await limiter.acquire_async("a")).complete()
        waiter = asyncio.create_task(limiter.acquire_async("a"))
        while not waits():
            await asyncio.sleep(0.001)
        clock.advance(60)
        (await waiter).complete()

    asyncio.run(twice())
    assert [event[:3] for event in events.taken()] == [("throttled", "jobs", "a")]
    with pytest.raises(AcquireTimeout):
        limiter.acquire("a", timeout=0)
    assert [event[:3] for event in events.taken()] == [("throttled", "jobs", "a")]


def test_the_event_names_the_limit_that_denied(url):
    store, other = Store(url), Store("memory:")
    both, events, others = CompositeLimiter([rate(store, 5), rate(other, 1, "narrow")]), EventLog(), EventLog()
    both.on("throttled", events)
    other.on("throttled", others)
    both.acquire().complete()
    both.try_acquire()
    both.decide()
    with pytest.raises(AcquireTimeout):
        both.acquire(timeout=0)
    assert [event[1] for event in events.taken()] == ["narrow"] * 3
    assert [event[1] for event in others.taken()] == ["narrow"] * 3


def test_limits_without_a_store_have_events():
    limiter, events = ConcurrencyLimiter(1), EventLog()
    limiter.on("throttled", events)
    with limiter.acquire():
        assert limiter.try_acquire() is None
    assert [(event[0], event[3]) for event in events.taken()] == [("throttled", 1)]


def test_a_removed_hook_is_not_called(url):
    store = Store(url)
    limiter, first, second = rate(store), EventLog(), EventLog()
    remove_first, _ = limiter.on("throttled", first), limiter.on("throttled", second)
    remove_last = store.on("throttled", first)
    limiter.acquire().complete()
    for remove, times in (lambda: None, 2), (remove_first, 1), (remove_first, 1), (remove_last, 0):
        remove()
        limiter.try_acquire()
        assert (len(first.taken()), len(second.taken())) == (times, 1)
    # Other limiters of the same name have no event.
    rate(store).try_acquire()
    assert second == []


def test_a_removed_hook_is_released():
    class Hook(EventLog):
        pass

    limiter, hook = NullLimiter(), Hook()
    remove, gone = limiter.on("throttled", hook), weakref.ref(hook)
    del hook
    gc.collect()
    assert gone() is not None
    remove()
    assert gone() is None


def test_an_exception_of_a_hook_decides_nothing(url, monkeypatch):
    reported, events = [], EventLog()
    monkeypatch.setattr(sys, "unraisablehook", lambda args: reported.append((args.exc_value, args.object)))
    limiter, error = rate(Store(url)), KeyError("mine")

    def fails(_):
        raise error

    limiter.on("throttled", fails)
    limiter.on("throttled", events)
    limiter.acquire().complete()
    assert limiter.try_acquire() is None and not limiter.decide()
    assert reported == [(error, fails)] * 2 and len(events) == 2


def test_a_hook_may_limit(url):
    limiter, events = rate(Store(url), 2), EventLog()

    def asks(event):
        events(event)
        if event.wanted == 2:
            limiter.try_acquire()

    remove = limiter.on("throttled", asks)
    limiter.acquire(weight=2).complete()
    limiter.try_acquire(weight=2)
    assert [event.wanted for event in events] == [2, 1]
    limiter.on("throttled", lambda _: remove())
    limiter.try_acquire()
    limiter.try_acquire()
    assert len(events) == 3


def test_unknown_limits(url):
    store, of_store = Store(url), EventLog()
    store.on("unknown_limit", of_store)
    for call in lambda: store.override("mail", "5/1m"), lambda: store.lift("mail"), lambda: store.limiter("mail"):
        with pytest.raises(UnknownLimit) as caught:
            call()
        assert of_store.taken() == [("unknown_limit", "mail", None, 0, 0, 0.0, caught.value)]


def test_stores_that_fail(tmp_path):
    for how in "raise", "deny", "admit":
        path = tmp_path / f"{how}.db"
        run("import sys, workglow_limit; workglow_limit.Store(sys.argv[1]).open()", f"sqlite:{path}")
        store, events = Store(f"sqlite:{path}", timeout=0.02, on_error=how), EventLog()
        limiter = rate(store)
        with lane_held(path):
            if how == "raise":
                with pytest.raises(StoreTimeout):
                    limiter.try_acquire()
            else:
                # No hook was registered at this time.
                limiter.try_acquire()
            store.on("store_error", events)
            for call in limiter.try_acquire, limiter.decide:
                error = None
                try:
                    call()
                except StoreTimeout as caught:
                    error = caught
                [(event, name, *_, given)] = events.taken()
                assert (
                    (event, name) == ("store_error", "jobs")
                    and given is error
                    and (error is not None) == (how == "raise")
                )
            with pytest.raises(StoreTimeout) as caught:
                store.override("jobs", "5/1m")
            assert [event[-1] for event in events.taken()] == [caught.value]
        # A busy machine may exceed so short a timeout again.
        until(lambda limiter=limiter, events=events: (patiently(limiter.try_acquire), events.taken())[1] == [])


def test_a_missing_store(tmp_path):
    store, events = Store(f"sqlite:{tmp_path}/no/limits.db"), EventLog()
    store.on("store_error", events)
    for call in store.open, store.names, store.flush:
        with pytest.raises(StoreError) as caught:
            call()
        assert [event[-1] for event in events.taken()] == [caught.value]


def test_other_errors_cause_no_event():
    store, events = Store("memory:"), EventLog()
    for event in "throttled", "unknown_limit", "store_error":
        store.on(event, events)
    with pytest.raises(LimitError):
        rate(store).try_acquire(weight=9)
    with pytest.raises(LimitError):
        store.override("jobs", "rubbish")
    assert events == []


def test_bad_hooks():
    for on in Store("memory:").on, NullLimiter().on:
        for event in "", "Throttled", "denied":
            expected = "expected 'throttled', 'unknown_limit' or 'store_error'"
            with pytest.raises(InvalidArgument, match=f"^event is '{event}': {expected}$"):
                on(event, print)
        with pytest.raises(TypeError, match="^event is 5: expected a str, not int$"):
            on(5, print)
        for function in None, 5, "print":
            with pytest.raises(TypeError, match="^function is .*: expected a callable, not "):
                on("throttled", function)


def test_the_repr_of_an_event():
    limiter, events = ConcurrencyLimiter(1), EventLog()
    limiter.on("throttled", events)
    with limiter.acquire("k"):
        limiter.try_acquire("k")
    expected = f'<LimitEvent: throttled, limit "{limiter.name}", key "k", wanted 1, wait 0.01 s>'
    assert [repr(event) for event in events] == [expected]


def counts(stats):
    return {name: getattr(stats, name) for name in ("admitted", "denied", "units_wanted", "units_granted", "cancelled")}


def test_the_counts(url):
    limiter = rate(Store(url, clock=ManualClock()), 5)
    limiter.acquire("k", 3).complete()
    limiter.acquire("k").cancel()
    assert limiter.try_acquire("k", 5) is None
    limiter.acquire("other").complete()
    of_key = {"admitted": 2, "denied": 1, "units_wanted": 9, "units_granted": 4, "cancelled": 1}
    of_all = {"admitted": 3, "denied": 1, "units_wanted": 10, "units_granted": 5, "cancelled": 1}
    assert counts(limiter.stats("k")) == of_key
    assert counts(limiter.stats()) == of_all
    stats = limiter.stats()
    assert isinstance(stats, Stats) and stats == limiter.stats() != limiter.stats("k")
    assert (stats.waited, stats.wait_time, stats.store_errors, stats.policy_changes) == (0, 0.0, 0, 0)
    assert repr(stats).startswith("Stats(admitted=3, denied=1, units_wanted=10, units_granted=5, waited=0, wait_time=0")


def test_counts_of_bad_keys():
    with pytest.raises(TypeError, match="^key is 5: expected a str, not int"):
        NullLimiter().stats(5)


HELD = {
    "a hook": "limiter.on('throttled', lambda event: limiter)",
    "a thread": """
import threading
began = threading.Event()
threading.Thread(target=lambda held=limiter: (began.set(), threading.Event().wait()), daemon=True).start()
began.wait()""",
}


@pytest.mark.parametrize("holder", HELD)
def test_the_latest_counts_are_published_at_exit(tmp_path, holder):
    program = f"""
from workglow_limit import RateLimiter, Store
limiter = RateLimiter(Store("sqlite:{tmp_path}/limits.db"), "x", max_executions=5, window_size_in_seconds=60)
{HELD[holder]}
assert limiter.try_acquire() is not None
"""
    run(program)
    assert Store(f"sqlite:{tmp_path}/limits.db").limiter("x").stats().admitted == 1
