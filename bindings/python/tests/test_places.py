"""Places: future starts that are reserved, presented and returned, in this and other processes."""

import asyncio
from datetime import datetime, timedelta, timezone

import pytest
from conftest import run
from workglow_limit import (
    AcquireTimeout,
    ForeignPermit,
    InvalidArgument,
    ManualClock,
    NullLimiter,
    Permit,
    RateLimiter,
    Store,
)

MICROSECOND = timedelta(microseconds=1)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def limiter(url, clock):
    """One start a minute."""
    return RateLimiter(Store(url, clock=clock), "jobs", max_executions=1, window_size_in_seconds=60)


def wait_of(place):
    # It is never too short. It is longer by the time that the thread was delayed between two reads of the clock.
    return min(place.wait for _ in range(5))


def test_the_null_limiter_has_places():
    limiter = NullLimiter()
    place = limiter.reserve("k", weight=5, max_wait=0, grace=timedelta(seconds=1))
    assert (place.started, place.wait, place.ready_at) == (False, 0.0, None)
    permit = limiter.present(place)
    assert isinstance(permit, Permit) and permit is not place
    assert (permit.started, permit.wait) == (True, 0.0)
    assert (repr(permit), repr(place)) == ('<Permit of "null">', '<Permit of "null", not started, ended>')
    with limiter.present(permit.to_text()), limiter.acquire(place=limiter.reserve()):
        pass
    with limiter.acquire(place=limiter.reserve().to_text()) as permit:
        assert permit.started
    assert limiter.permit(permit.to_text()).started


def test_the_null_limiter_has_places_in_asyncio():
    limiter = NullLimiter()

    async def main():
        place = limiter.reserve()
        limiter.acquire_async(place=place).close()
        assert "ended" not in repr(place)  # It has not asked the store.
        with await limiter.acquire_async(place=place):
            assert "ended" in repr(place)
        with await limiter.acquire_async(timeout=0, place=limiter.reserve().to_text()) as permit:
            assert permit.started

    asyncio.run(main())


def test_the_null_limiter_refuses_other_limits_places():
    mine, other = NullLimiter(), NullLimiter()
    place = mine.reserve()
    with pytest.raises(ForeignPermit, match='not issued by limiter "null"'):
        other.present(place)
    assert mine.present(place).started


def test_a_rate_limit_refuses_another_limit_s_place(limiter):
    place = NullLimiter().reserve()
    for call in limiter.present, lambda place: limiter.acquire(place=place):
        with pytest.raises(ForeignPermit, match='not issued by limiter "jobs"'):
            call(place)
    # It still belongs to its owner.
    assert "ended" not in repr(place) and limiter.can_proceed()


def test_the_text_of_a_place_outlives_its_object():
    place = NullLimiter().reserve()
    text = place.to_text()
    del place  # Warnings are errors here.
    assert NullLimiter().present(text).started


def test_a_free_limit_gives_a_place_that_is_ready_now(limiter):
    place = limiter.reserve("k", max_wait=0)
    assert (place.started, wait_of(place)) == (False, 0.0)
    assert limiter.peek("k").remaining == 0
    permit = limiter.present(place)
    assert permit.started and not limiter.can_proceed("k")
    assert limiter.can_proceed()


def test_an_early_present_keeps_its_place(limiter, clock):
    limiter.acquire()
    place = limiter.reserve()
    assert wait_of(place) == 60.0
    assert place.ready_at.utcoffset() == timedelta(0)
    assert timedelta(seconds=50) < place.ready_at - datetime.now(timezone.utc) <= timedelta(seconds=60)
    for by in 0, 59.999999:
        clock.advance(by)
        assert limiter.present(place) is place
        assert not place.started
    clock.advance(MICROSECOND)
    assert wait_of(place) == 0.0
    permit = limiter.present(place)
    assert permit.started and permit is not place
    assert permit.ready_at is not None
    # The place has started: it can no longer be returned.
    place.cancel()
    assert not limiter.can_proceed()


def test_max_wait_bounds_the_distance_of_a_place(limiter):
    limiter.acquire()
    for most in 0, 59.999999, timedelta(seconds=60) - MICROSECOND:
        assert limiter.reserve(max_wait=most) is None
    assert limiter.peek().retry_after == 60.0  # Nothing was taken.
    assert wait_of(limiter.reserve(max_wait=60)) == 60.0


def test_a_place_counts_from_the_end_of_its_grace(limiter, clock):
    limiter.acquire()
    first, second = limiter.reserve(grace=10), limiter.reserve(grace=timedelta(seconds=10))
    assert wait_of(second) == 130.0
    clock.advance(70)
    assert limiter.present(first).started
    clock.advance(60 - 1e-6)
    assert limiter.present(second) is second
    clock.advance(MICROSECOND)
    assert limiter.present(second).started


def late(limiter, clock):
    clock.advance(70 + 1e-6)


def overtaken(limiter, clock):
    limiter.pause(100)
    clock.advance(60)


@pytest.mark.parametrize("what", [late, overtaken])
@pytest.mark.parametrize("as_text", [False, True])
def test_an_invalid_place_is_exchanged_for_a_place_not_a_start(what, as_text, limiter, clock):
    limiter.acquire()
    place = limiter.reserve(grace=10)
    what(limiter, clock)
    fresh = limiter.present(place.to_text() if as_text else place)
    assert not fresh.started and fresh is not place
    assert ("ended" in repr(place)) != as_text
    # The gate may delay it by up to 40 s, the window by up to 70 s.
    clock.advance(wait_of(fresh))
    assert limiter.present(fresh).started


def test_a_place_starts_once(limiter):
    text = limiter.reserve().to_text()
    permit = limiter.present(text)
    assert permit.started
    for place in text, permit:
        assert not limiter.present(place).started


def test_a_place_can_be_returned(limiter):
    limiter.acquire()
    place = limiter.reserve()
    assert limiter.peek().retry_after > 60
    for _ in range(2):
        place.cancel()
        assert limiter.peek().retry_after == 60.0
    assert limiter.reserve(max_wait=60) is not None
    # Returning it again does nothing: the place now belongs to the next caller.
    place.cancel()
    assert limiter.peek().retry_after > 60


@pytest.mark.parametrize("of", [lambda place: place, lambda place: place.to_text()])
def test_waiting_with_a_place(of, limiter, clock):
    limiter.acquire()
    place = limiter.reserve(grace=10)
    behind = limiter.reserve(grace=10)
    clock.advance(60)
    permit = limiter.acquire(place=of(place), timeout=0)
    assert permit.started and permit.ready_at is not None
    clock.advance(70)
    assert asyncio.run(limiter.acquire_async(place=of(behind), timeout=0)).started


@pytest.mark.parametrize("call", ["acquire", "acquire_async"])
def test_a_place_beyond_the_timeout_is_returned(call, limiter):
    limiter.acquire()
    place = limiter.reserve()
    with pytest.raises(AcquireTimeout) as caught:
        if call == "acquire":
            limiter.acquire(place=place, timeout=59)
        else:
            asyncio.run(limiter.acquire_async(place=place, timeout=59))
    assert caught.value.retry_after == 60.0
    assert limiter.peek().retry_after == 60.0
    assert "ended" in repr(place)


OTHER = """
import sys
from workglow_limit import Store
limiter = Store(sys.argv[1]).limiter("jobs")
"""


def test_another_process_starts_with_a_place(tmp_path):
    url = f"sqlite:{tmp_path}/limits.db"
    limiter = RateLimiter(Store(url), "jobs", max_executions=1, window_size_in_seconds=3600)
    text = limiter.reserve(grace=3000).to_text()
    assert isinstance(text, str) and len(text) < 200
    present = OTHER + "permit = limiter.present(sys.argv[2]); print(permit.started, permit.wait > 0)"
    assert run(present, url, text) == "True False\n"
    assert run(present, url, text) == "False True\n"


def test_a_place_that_another_process_started_is_not_returned(limiter, clock):
    text = limiter.reserve().to_text()
    start = limiter.present(text)
    assert start.started
    place = limiter.place(text)
    assert not place.started
    place.cancel()
    assert not limiter.can_proceed()
    start.cancel()
    assert limiter.can_proceed()
    # A place that has not started is returned.
    limiter.place(limiter.reserve().to_text()).cancel()
    assert limiter.can_proceed()
    with pytest.raises(TypeError, match="text is 7"):
        limiter.place(7)
    with pytest.raises(InvalidArgument, match="text"):
        limiter.place("no text")


def test_window_is_the_shortest_window(url):
    assert Store(url).limiter("several", "10/2s + 100/1m + 5 concurrent").window == 2.0
    assert Store(url).limiter("bucket", "10/2s burst 20").window == 0.2
    assert Store(url).limiter("slots", "5 concurrent").window is None
    assert NullLimiter().window is None


@pytest.mark.parametrize("end", ["cancel()", "settle(0)"])
def test_another_process_ends_a_start(end, tmp_path):
    url = f"sqlite:{tmp_path}/limits.db"
    limiter = RateLimiter(Store(url), "jobs", max_executions=5, window_size_in_seconds=3600)
    with limiter.acquire(weight=4) as permit:
        run(OTHER + f"permit = limiter.permit(sys.argv[2]); permit.{end}; permit.cancel()", url, permit.to_text())
    assert limiter.peek().remaining == 5


def test_a_text_of_another_limit_is_refused(tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    jobs, mail = (RateLimiter(store, name, max_executions=1, window_size_in_seconds=60) for name in ("jobs", "mail"))
    text = jobs.reserve().to_text()
    for call in mail.present, mail.permit:
        with pytest.raises(ForeignPermit):
            call(text)
    assert mail.can_proceed()
