"""The meaning of every call, on every store."""

import asyncio
import inspect
import time
from datetime import datetime, timedelta, timezone
from inspect import signature

import pytest
from workglow_limit import (
    CompositeLimiter,
    ConcurrencyLimiter,
    Decision,
    ForeignPermit,
    InvalidArgument,
    KindMismatch,
    LimitError,
    Limiter,
    ManualClock,
    NullLimiter,
    Permit,
    RateLimiter,
    Store,
    UnknownLimit,
    WeightExceedsCapacity,
)


def rate(url, n=2, window=60, **options):
    return RateLimiter(Store(url, **options), "jobs", max_executions=n, window_size_in_seconds=window)


def test_the_limit_is_exact(url):
    limiter = rate(url)
    assert isinstance(limiter.try_acquire(), Permit)
    assert isinstance(limiter.try_acquire(key=None, weight=1), Permit)
    assert limiter.try_acquire() is None
    assert isinstance(limiter.try_acquire("another key"), Permit)


def test_a_decision_has_all_fields(url):
    clock = ManualClock()
    limiter = rate(url, n=3, clock=clock)
    first = limiter.decide("k", 2)
    assert (first.admitted, first.retry_after, first.suggested_after) == (True, 0.0, 0.0)
    assert (first.remaining, first.limit, first.reset_after, first.denied_by) == (1, 3, 60.0, None)
    assert isinstance(first.permit, Permit) and bool(first)

    clock.advance(0.000001)
    second = limiter.decide("k", 2)
    assert not second and second.permit is None
    assert second.retry_after == second.suggested_after == second.reset_after == 59.999999
    assert (second.remaining, second.limit, second.denied_by) == (1, 3, "jobs")
    assert repr(second) == (
        '<Decision: denied by "jobs", retry after 59.999999 s, remaining 1 of 3, reset after 59.999999 s>'
    )
    with pytest.raises(AttributeError):
        second.admitted = True

    look = limiter.peek("k", weight=0)
    assert isinstance(look, Decision) and look.admitted and look.permit is None
    assert limiter.peek("k", 2).admitted is False


def test_a_forecast_says_when_more_starts_have_begun(url):
    clock = ManualClock()
    store = Store(url, clock=clock)
    rate, slots = store.limiter("rate", "10/1s"), store.limiter("slots", "2 concurrent")
    assert rate.try_acquire("k")
    clock.advance(0.25)
    assert [rate.forecast(n, "k") for n in (1, 9, 10, 19, 29)] == [0, 0, 0.75, 1, 2]
    assert (slots.forecast(2), slots.forecast(3)) == (0, None)
    both = store.limiter("both", "calls: 1/1s + tenant: 1/1m")
    assert both.forecast(3, {"tenant": "acme"}) == 120
    assert rate.stats("k").denied == 0

    async def main():
        return await rate.forecast_async(19, "k"), await slots.forecast_async(3)

    assert asyncio.run(main()) == (1, None)


def test_a_forecast_of_no_number_of_starts_is_refused():
    for call in (
        NullLimiter().forecast,
        RateLimiter(Store("memory:"), "jobs", max_executions=10, window_size_in_seconds=1).forecast_async,
    ):
        for starts in 0, -1, 10**9 + 1, 2**70:
            with pytest.raises(InvalidArgument, match=r"starts is .*: expected a whole number from 1 to 1000000000"):
                asyncio.run(awaited(call, starts))
        for starts in "3", 1.5, None:
            with pytest.raises(TypeError, match="starts"):
                asyncio.run(awaited(call, starts))


async def awaited(call, *args):
    result = call(*args)
    return await result if inspect.isawaitable(result) else result


def test_names_are_shared_and_attached(url):
    store = Store(url)
    assert store.url == url
    limiter = RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=timedelta(minutes=1))
    limiter.try_acquire()
    assert store.names() == ["jobs"]
    attached = store.limiter("jobs")
    assert attached.name == "jobs"
    assert attached.try_acquire() is None
    with pytest.raises(UnknownLimit, match='no limit named "mail" is declared: this store knows jobs') as caught:
        store.limiter("mail")
    assert isinstance(caught.value, LookupError)
    assert (caught.value.code, caught.value.number) == ("unknown_limit", -4)


def test_a_forgotten_name_may_be_of_another_kind(url):
    store = Store(url)
    limiter = RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=60)
    limiter.try_acquire()
    store.forget("jobs")
    assert store.names() == []
    with pytest.raises(UnknownLimit, match="jobs"):
        store.forget("jobs")
    with pytest.raises(TypeError, match="name is 1"):
        store.forget(1)
    store.limiter("jobs", "2 concurrent").try_acquire().complete()
    with pytest.raises(KindMismatch):
        limiter.try_acquire()


def test_the_six_methods(url):
    limiter = rate(url, n=1)
    assert limiter.can_proceed()
    limiter.record_job_start()
    limiter.record_job_start("k")
    assert not limiter.can_proceed() and not limiter.can_proceed("k")
    limiter.record_job_completion()
    at = limiter.get_next_available_time()
    assert at.utcoffset() == timedelta(0)
    assert timedelta(seconds=50) < at - datetime.now(timezone.utc) <= timedelta(seconds=60)
    limiter.clear("k")
    assert limiter.can_proceed("k") and not limiter.can_proceed()
    limiter.clear()
    assert limiter.can_proceed()

    limiter.set_next_available_time(datetime.now(timezone.utc) + timedelta(hours=1), "k")
    assert 3500 < limiter.peek("k").retry_after < 3601
    assert limiter.can_proceed()
    # The time zone does not matter, and a gate only moves later.
    eastern = timezone(timedelta(hours=-5))
    limiter.set_next_available_time(datetime.now(eastern) + timedelta(minutes=1), key="k")
    assert limiter.peek("k").retry_after > 3500
    limiter.set_next_available_time(datetime(1950, 1, 1, tzinfo=timezone.utc))
    assert limiter.can_proceed()
    limiter.pause(timedelta(minutes=1))
    assert 50 < limiter.peek().retry_after < 61


def test_a_permit_ends_with_its_block_also_after_an_exception():
    limiter = ConcurrencyLimiter(1)
    with limiter.try_acquire() as permit:
        assert limiter.try_acquire() is None
    with pytest.raises(KeyError), limiter.try_acquire():
        raise KeyError
    with limiter.acquire(), pytest.raises(TimeoutError):
        limiter.acquire(timeout=0)
    assert repr(permit) == '<Permit of "1 concurrent", ended>'
    assert limiter.can_proceed()


def test_a_permit_ends_once():
    limiter = ConcurrencyLimiter(2)
    first, second = limiter.try_acquire(), limiter.try_acquire()
    first.complete()
    first.complete()
    limiter.complete(first)
    assert limiter.peek().remaining == 1
    limiter.complete(second)
    assert limiter.peek().remaining == 2


def test_a_permit_of_another_limiter_is_refused():
    mine, other = ConcurrencyLimiter(1), ConcurrencyLimiter(1)
    with mine.try_acquire() as permit:
        with pytest.raises(ForeignPermit, match='not issued by limiter "1 concurrent"') as caught:
            other.complete(permit)
        assert isinstance(caught.value, LimitError)
        assert not mine.can_proceed()


@pytest.mark.parametrize("wrap", [lambda limiter: limiter, lambda limiter: CompositeLimiter([limiter])])
def test_a_dropped_permit_completes_and_warns(wrap):
    limiter = wrap(ConcurrencyLimiter(1))
    with pytest.warns(ResourceWarning, match="a permit of .* was dropped before it ended"):
        limiter.try_acquire()
    with pytest.warns(ResourceWarning):
        limiter.decide()
    assert limiter.can_proceed()


def test_a_dropped_permit_of_a_rate_limit_is_silent(url):
    limiter = rate(url)
    limiter.try_acquire()  # Warnings are errors here.
    CompositeLimiter([limiter]).try_acquire()
    assert limiter.peek().remaining == 0


def test_a_waiter_s_permit_has_its_ready_time(url):
    limiter = rate(url, n=1, window=0.05)
    assert limiter.acquire().ready_at is None
    permit = None
    while permit is None or permit.ready_at is None:  # A late call may have started at once.
        asked, asked_at = time.monotonic(), datetime.now(timezone.utc)
        permit = limiter.acquire(timeout=60)
    assert asked < permit.ready_at_monotonic <= time.monotonic()
    assert abs(permit.ready_at - asked_at) < timedelta(minutes=1)


def test_no_limit():
    limiter = NullLimiter()
    decision = limiter.decide("k", 2**64 - 1)
    assert decision and decision.limit is None and decision.remaining is None
    assert repr(decision) == "<Decision: admitted, no limit>"
    assert limiter.name == "null"


def test_several_limits(url):
    mail, running = rate(url, n=3), ConcurrencyLimiter(1)
    limiter = CompositeLimiter(child for child in [mail])
    with limiter.try_acquire() as before:
        limiter.add(running)
        with limiter.try_acquire():
            assert limiter.decide().denied_by == "1 concurrent"
        # Taken before the child was added: it ends the earlier children's units.
        before.complete()
    with limiter.try_acquire():
        pass
    assert limiter.decide().denied_by == "jobs"
    assert isinstance(limiter, Limiter)


def test_a_limit_cannot_contain_itself():
    inner, outer = CompositeLimiter([]), CompositeLimiter([])
    outer.add(inner)
    for parent, child in (inner, inner), (inner, outer):
        with pytest.raises(InvalidArgument, match="one that contains this one"):
            parent.add(child)
    assert outer.try_acquire() is not None


def test_a_manual_clock():
    clock = ManualClock()
    clock.advance(1.5)
    clock.advance(timedelta(microseconds=1))
    clock.advance(2)
    assert clock.now() == 3.500001


def test_a_weight_above_the_capacity_raises(url):
    limiter = rate(url)
    for call in limiter.try_acquire, limiter.decide, limiter.peek, limiter.acquire:
        with pytest.raises(WeightExceedsCapacity, match='weight is 3: limit "jobs" grants at most 2') as caught:
            call("k", 3)
        assert isinstance(caught.value, ValueError)
        assert (caught.value.code, caught.value.number) == ("weight_exceeds_capacity", -2)
    assert limiter.peek("k").remaining == 2


def test_every_call_takes_the_key_first_and_the_weight_second():
    arguments = {
        "try_acquire": "key=None, weight=1",
        "decide": "key=None, weight=1",
        "peek": "key=None, weight=1",
        "forecast": "starts, key=None",
        "acquire": "key=None, weight=1, timeout=None, *, priority=0, share=None, place=None, grace=None",
        "reserve": "key=None, weight=1, max_wait=None, grace=None",
        "try_acquire_async": "key=None, weight=1",
        "decide_async": "key=None, weight=1",
        "peek_async": "key=None, weight=1",
        "forecast_async": "starts, key=None",
        "acquire_async": "key=None, weight=1, timeout=None, *, priority=0, share=None, place=None, grace=None",
        "limit": "key=None, weight=1, timeout=None",
        "wrap": "function, key=None, weight=1, timeout=None",
        "present": "place",
        "permit": "text",
        "place": "text",
        "complete": "permit",
        "stats": "key=None",
        "clear": "key=None",
        "can_proceed": "key=None",
        "record_job_start": "key=None",
        "record_job_completion": "key=None",
        "get_next_available_time": "key=None",
        "set_next_available_time": "when, key=None",
        "pause": "duration, key=None",
    }
    for name, expected in arguments.items():
        assert str(signature(getattr(NullLimiter(), name))) == f"({expected})"
    permit = NullLimiter().acquire()
    of_permit = {
        "complete": "",
        "cancel": "",
        "settle": "actual",
        "complete_async": "",
        "cancel_async": "",
        "settle_async": "actual",
        "renew": "",
        "to_text": "",
    }
    for name, expected in of_permit.items():
        assert str(signature(getattr(permit, name))) == f"({expected})"
    assert NullLimiter().window is None
    assert str(signature(Store.override)) == "(self, /, name, policy, key=None)"
    assert str(signature(Store.lift)) == "(self, /, name, key=None)"


def test_errors_survive_pickling():
    import pickle

    with pytest.raises(InvalidArgument) as caught:
        NullLimiter().try_acquire(weight=0)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again), again.code, again.number) == (
        InvalidArgument, "weight is 0: expected a whole number from 1 to 18446744073709551615", "invalid_argument", -1
    )  # fmt: skip
    assert issubclass(KindMismatch, LimitError)
