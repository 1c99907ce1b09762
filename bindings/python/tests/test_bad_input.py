"""Errors name the parameter, the value and the expectation. Nothing crashes, and nothing is created."""

import asyncio
import os
import re
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta, timezone
from decimal import Decimal

import pytest
from conftest import lane_held, patiently
from workglow_limit import (
    CompositeLimiter,
    ConcurrencyLimiter,
    DelayLimiter,
    EvenlySpacedRateLimiter,
    FixedWindowLimiter,
    FlowControl,
    InvalidArgument,
    InvalidUrl,
    LeakyBucketLimiter,
    ManualClock,
    NotAStore,
    NullLimiter,
    RateLimiter,
    SlidingWindowCounterLimiter,
    Store,
    StoreError,
    StoreTimeout,
    TokenBucketLimiter,
    Unsupported,
)

NAN, INF = float("nan"), float("inf")
HUGE = 2**70


@pytest.fixture
def store(tmp_path):
    """A store in a directory that must remain empty."""
    (tmp_path / "empty").mkdir()
    yield Store(f"sqlite:{tmp_path}/empty/limits.db")
    assert os.listdir(tmp_path / "empty") == []


def rate(store, n=2, window=60, name="jobs"):
    return RateLimiter(store, name, max_executions=n, window_size_in_seconds=window)


@pytest.mark.parametrize("n", [0, -1, 1_000_000_001, 2**64, HUGE, -HUGE, pytest.param(10**5000, id="enormous")])
def test_max_executions_out_of_range(store, n):
    shown = "too large to print" if n > 10**4000 else n
    with pytest.raises(
        InvalidArgument, match=f"^max_executions is {shown}: expected a whole number from 1 to 1000000000$"
    ):
        rate(store, n=n)


@pytest.mark.parametrize("n", [True, 1.0, "1", [1]])
def test_max_executions_of_another_type(store, n):
    with pytest.raises(TypeError, match="^max_executions is .*: expected a whole number, not "):
        rate(store, n=n)


@pytest.mark.parametrize(
    "window", [0, 0.0, -1, -0.5, NAN, INF, -INF, 31622401, HUGE, 10**400, timedelta(0), timedelta(-1), timedelta.max]
)
def test_windows_out_of_range(store, window):
    with pytest.raises(InvalidArgument, match="^window_size_in_seconds is .*: expected .*366 days") as caught:
        rate(store, window=window)
    assert repr(window)[:20] in str(caught.value)


@pytest.mark.parametrize("window", [True, False, "1", datetime.now()])
def test_windows_of_another_type(store, window):
    expected = "expected seconds as a number, or a timedelta, not "
    with pytest.raises(TypeError, match=f"^window_size_in_seconds is .*: {expected}"):
        rate(store, window=window)


def test_the_bounds_of_a_range_are_valid(store):
    for n in 1, 4096, 4097, 1_000_000_000:
        for window in 1e-6, 366 * 86400, timedelta(days=366), timedelta(microseconds=1), Decimal("0.5"):
            rate(store, n, window)
    ConcurrencyLimiter(65535)


EITHER = "^expected either max_executions and window_size_in_seconds, or windows$"


@pytest.mark.parametrize("given", ["", "max_executions", "window_size_in_seconds", "max_executions windows", "all"])
def test_one_window_and_several_exclude_each_other(store, given):
    values = {"max_executions": 1, "window_size_in_seconds": 1, "windows": [(1, 1)]}
    with pytest.raises(TypeError, match=EITHER):
        RateLimiter(store, "jobs", **{name: value for name, value in values.items() if name in given or given == "all"})


@pytest.mark.parametrize("windows", [[], [(5, 1)] * 5])
def test_the_number_of_windows_is_limited(store, windows):
    with pytest.raises(InvalidArgument, match=f"^windows is {len(windows)} of them: expected 1 to 4 windows$"):
        RateLimiter(store, "jobs", windows=windows)


@pytest.mark.parametrize("windows", [5, True, [5], (5, 1), [(5,)], [(5, 1, 1)], [None], [(100, 60), 5]])
def test_windows_must_be_pairs(store, windows):
    with pytest.raises(TypeError, match=r"^windows is .*: expected pairs such as \[\(100, 60\), \(5, 1.0\)\], not "):
        RateLimiter(store, "jobs", windows=windows)


def test_an_invalid_window_among_several_is_quoted(store):
    for wrong, error, text in [
        ((0, 1), InvalidArgument, "^max_executions is 0: expected a whole number from 1 to 1000000000$"),
        ((-HUGE, 1), InvalidArgument, f"^max_executions is {-HUGE}: expected a whole number from 1 to 1000000000$"),
        ((5, 0), InvalidArgument, "^window_size_in_seconds is 0: expected .*366 days"),
        ((5, timedelta.max), InvalidArgument, "^window_size_in_seconds is datetime.timedelta.*: expected .*366 days"),
        (("5", 1), TypeError, "^max_executions is '5': expected a whole number, not str$"),
        ((5, "1s"), TypeError, "^window_size_in_seconds is '1s': expected seconds as a number, or a timedelta"),
    ]:
        with pytest.raises(error, match=text):
            RateLimiter(store, "jobs", windows=[(100, 60), wrong])


@pytest.mark.parametrize("most", [0, -1, 65536, HUGE])
def test_max_concurrent_jobs_out_of_range(most):
    expected = "expected a whole number from 1 to 65535"
    with pytest.raises(InvalidArgument, match=f"^max_concurrent_jobs is {most}: {expected}$"):
        ConcurrencyLimiter(most)


#: Every other parameter of the family: a call that passes it, its name, and its range (None: it is a duration).
MOST = 1_000_000_000
FAMILY = [
    (lambda s, v: RateLimiter(s, "jobs", max_executions=1, window_size_in_seconds=1, initial_backoff_delay=v),
     "initial_backoff_delay", None),
    (lambda s, v: RateLimiter(s, "jobs", max_executions=1, window_size_in_seconds=1, max_backoff_delay=v),
     "max_backoff_delay", None),
    (lambda s, v: ConcurrencyLimiter(v, store=s, name="jobs"), "max_concurrent_jobs", 65535),
    (lambda s, v: ConcurrencyLimiter(1, store=s, name="jobs", lease=v), "lease", None),
    (lambda s, v: DelayLimiter(v), "delay", None),
    (lambda s, v: DelayLimiter(v, store=s, name="jobs"), "delay", None),
    (lambda s, v: EvenlySpacedRateLimiter(max_executions=v, window_size_in_seconds=1), "max_executions", 4096),
    (lambda s, v: EvenlySpacedRateLimiter(max_executions=v, window_size_in_seconds=1, adaptive=False, store=s, name="jobs"),
     "max_executions", MOST),
    (lambda s, v: EvenlySpacedRateLimiter(max_executions=1, window_size_in_seconds=v), "window_size_in_seconds", None),
    (lambda s, v: TokenBucketLimiter(s, "jobs", rate=v, burst=1), "rate", MOST),
    (lambda s, v: TokenBucketLimiter(s, "jobs", rate=v), "rate", MOST),
    (lambda s, v: TokenBucketLimiter(s, "jobs", rate=1, period=v), "period", None),
    (lambda s, v: TokenBucketLimiter(s, "jobs", rate=MOST, burst=v), "burst", MOST),
    (lambda s, v: LeakyBucketLimiter(s, "jobs", rate=v), "rate", MOST),
    (lambda s, v: LeakyBucketLimiter(s, "jobs", rate=1, period=v), "period", None),
    (lambda s, v: LeakyBucketLimiter(s, "jobs", rate=MOST, queue=v), "queue", MOST),
    (lambda s, v: FixedWindowLimiter(s, "jobs", max_executions=v, window_size_in_seconds=1), "max_executions", MOST),
    (lambda s, v: FixedWindowLimiter(s, "jobs", max_executions=1, window_size_in_seconds=v), "window_size_in_seconds", None),
    (lambda s, v: SlidingWindowCounterLimiter(s, "jobs", max_executions=v, window_size_in_seconds=1), "max_executions", MOST),
    (lambda s, v: SlidingWindowCounterLimiter(s, "jobs", max_executions=1, window_size_in_seconds=v),
     "window_size_in_seconds", None),
    (lambda s, v: FlowControl("jobs", rate=v), "rate", MOST),
    (lambda s, v: FlowControl("jobs", rate=1, period=v), "period", None),
    (lambda s, v: FlowControl("jobs", parallelism=1, period=v), "period", None),
    (lambda s, v: FlowControl("jobs", parallelism=v), "parallelism", 65535),
]  # fmt: skip


@pytest.mark.parametrize(("make", "name", "most"), FAMILY)
def test_numbers_out_of_range(store, make, name, most):
    if most is None:
        for span in (
            0,
            0.0,
            -1,
            -1e-9,
            NAN,
            INF,
            -INF,
            31622401,
            HUGE,
            -HUGE,
            10**400,
            timedelta(0),
            timedelta(-1),
            timedelta.max,
        ):
            with pytest.raises(
                InvalidArgument, match=f"^{name} is .*: expected .*(366 days|at least initial)"
            ) as caught:
                make(store, span)
            assert repr(span)[:20] in str(caught.value)
        for span in True, "1", b"1", [1], datetime.now():
            with pytest.raises(TypeError, match=f"^{name} is .*: expected seconds as a number, or a timedelta, not "):
                make(store, span)
    else:
        for number in 0, -1, most + 1, 2**64, HUGE, -HUGE:
            with pytest.raises(
                InvalidArgument, match=f"^{name} is {number}: expected a whole number from 1 to {most}$"
            ):
                make(store, number)
        for number in True, 1.0, NAN, "1", [1]:
            with pytest.raises(TypeError, match=f"^{name} is .*: expected a whole number, not "):
                make(store, number)
        make(store, most)


def test_multipliers(store):
    def limiter(multiplier):
        return RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=1, backoff_multiplier=multiplier)

    for multiplier in 0, 1, 1.0, 0.5, 1.0001, -2, NAN, INF, 1000.1, HUGE, 10**400:
        with pytest.raises(InvalidArgument, match="^backoff_multiplier is .*: expected more than 1 .*, at most 1000$"):
            limiter(multiplier)
    for multiplier in True, "2", b"2", timedelta(2):
        with pytest.raises(TypeError, match="^backoff_multiplier is .*: expected a number, not "):
            limiter(multiplier)
    for multiplier in 1.001, 2, 1000:
        limiter(multiplier)


def test_the_longest_backoff_is_at_least_the_first(store):
    with pytest.raises(InvalidArgument, match="^max_backoff_delay is 1: expected at least initial_backoff_delay$"):
        RateLimiter(
            store, "jobs", max_executions=1, window_size_in_seconds=1, initial_backoff_delay=2, max_backoff_delay=1
        )
    with pytest.raises(InvalidArgument, match="^max_backoff_delay is .*: expected at least initial_backoff_delay$"):
        RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=1, initial_backoff_delay=601)


def test_jitters(store):
    for word in "", "Full", "random":
        expected = "expected 'scaled', 'full', 'equal' or 'none'"
        with pytest.raises(InvalidArgument, match=f"^jitter is '{word}': {expected}$"):
            RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=1, jitter=word)
    for word in 5, b"full", True:
        with pytest.raises(TypeError, match="^jitter is .*: expected a str, not "):
            RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=1, jitter=word)


def test_a_bucket_that_would_take_longer_than_a_year(store):
    for kind, size in (TokenBucketLimiter, "burst"), (LeakyBucketLimiter, "queue"):
        with pytest.raises(
            InvalidArgument, match=f"^{size} is 367: expected at most 366, the amount that drips in 366 days$"
        ):
            kind(store, "jobs", rate=1, period=timedelta(days=1), **{size: 367})


HOMES = {
    ConcurrencyLimiter: lambda **home: ConcurrencyLimiter(5, **home),
    DelayLimiter: lambda **home: DelayLimiter(5, **home),
    EvenlySpacedRateLimiter: lambda **home: EvenlySpacedRateLimiter(max_executions=5, window_size_in_seconds=5, **home),
}


@pytest.mark.parametrize("kind", HOMES)
def test_store_and_name_belong_together(store, kind):
    make = HOMES[kind]
    for home, text in [
        ({"store": store}, "store needs a name"),
        ({"store": store, "clock": ManualClock()}, "store needs a name"),
        ({"name": "jobs"}, "name needs a store"),
        (
            {"store": store, "name": "jobs", "clock": ManualClock()},
            "clock must not be given with a store, which has its own",
        ),
        ({"store": 5, "name": "jobs"}, "store"),
        ({"clock": 5}, "clock"),
        ({"store": store, "name": 5}, "name is 5: expected a str, not int"),
    ]:
        with pytest.raises(TypeError, match=text):
            make(**home)
    with pytest.raises(InvalidArgument, match="^name is .*: expected 1 to 1024 bytes"):
        make(store=store, name="")


def test_a_lease_needs_a_store():
    with pytest.raises(TypeError, match="^lease needs a store and a name$"):
        ConcurrencyLimiter(5, lease=60)


def test_flow_control(store):
    with pytest.raises(TypeError, match="^expected rate, parallelism, or both$"):
        FlowControl("jobs")
    with pytest.raises(TypeError, match="^key is 5: expected a str, not int"):
        FlowControl(5, rate=1)
    with pytest.raises(TypeError, match="^policy must not be given with a FlowControl, which is one$"):
        store.limiter(FlowControl("jobs", rate=1), "5/1m")
    for key in "", "k" * 1025:
        with pytest.raises(InvalidArgument, match="^(name|key) is .*: expected 1 to 1024 bytes of UTF-8$"):
            store.limiter(FlowControl(key, rate=1))


def test_limiters_by_policy(store):
    with pytest.raises(TypeError, match="name"):
        store.limiter()
    with pytest.raises(InvalidArgument, match="^policy is 'jobs': "):
        store.limiter("5/1m", "jobs")
    for policy in 5, b"5/1m", NullLimiter():
        with pytest.raises(TypeError, match="^policy is .*: expected a str, not "):
            store.limiter("jobs", policy)
    for policy in "", "5", "5/1m +", "5 concurrent lease", "0/1m", "5/1m burst 0", "delay 0s", "70000 concurrent", "\0":
        with pytest.raises(InvalidArgument, match="^policy is .*: expected .*character [0-9]+"):
            store.limiter("jobs", policy)
    with pytest.raises(InvalidArgument, match="^name is .*: expected 1 to 1024 bytes of UTF-8$"):
        store.limiter("", "5/1m")
    with pytest.raises(TypeError, match="^name is 5: expected a str, not int$"):
        store.limiter(5, "5/1m")


def test_files_of_limits(store, tmp_path):
    for path in 5, None, 1.5:
        with pytest.raises(TypeError, match="^path is .*: expected a str or an os.PathLike, not "):
            store.load(path)
    with pytest.raises((InvalidArgument, StoreError), match="missing.toml"):
        store.load(tmp_path / "missing.toml")
    for text in (
        "[jobs",
        "[jobs]\nallowed = 0\nperiod = '1m'\n",
        "[jobs]\nallowed = 'many'\n",
        "[jobs]\nfrequency = 5\n",
        "jobs = 5\n",
    ):
        (tmp_path / "limits.toml").write_text(text)
        with pytest.raises(InvalidArgument):
            store.load(tmp_path / "limits.toml")


@pytest.mark.parametrize("weight", [0, -1, 2**64, HUGE])
def test_weights_out_of_range(store, weight):
    for limiter in rate(store), ConcurrencyLimiter(5), NullLimiter(), CompositeLimiter([]):
        waiting = limiter.acquire, limiter.acquire_async, limiter.limit, limiter.reserve
        for call in limiter.try_acquire, limiter.decide, *waiting:
            with pytest.raises(InvalidArgument, match=f"^weight is {weight}: expected a whole number from 1 to "):
                call(weight=weight)


@pytest.mark.parametrize("weight", [True, 1.0, "1", None])
def test_weights_of_another_type(store, weight):
    for call in rate(store).try_acquire, NullLimiter().peek:
        with pytest.raises(TypeError, match="^weight is .*: expected a whole number, not "):
            call("k", weight)


def test_peek_accepts_weight_zero():
    assert NullLimiter().peek(weight=0)
    with pytest.raises(InvalidArgument, match="^weight is -1: expected a whole number from 0 to "):
        NullLimiter().peek(weight=-1)


def test_actual_units_out_of_range():
    limiter = ConcurrencyLimiter(1)
    with limiter.acquire() as permit:
        for actual in -1, 2**64, -HUGE:
            with pytest.raises(InvalidArgument, match=f"^actual is {actual}: expected a whole number from 0 to 18446"):
                permit.settle(actual)
        for actual in True, 1.0, "1", None:
            with pytest.raises(TypeError, match="^actual is .*: expected a whole number, not "):
                permit.settle(actual)
        # The permit has not ended.
        assert not limiter.can_proceed()


def calls(limiter):
    """Returns every call that takes a key."""
    return [
        limiter.try_acquire, limiter.decide, limiter.peek, limiter.acquire, limiter.can_proceed, limiter.clear,
        limiter.reserve,
        limiter.record_job_start, limiter.record_job_completion, limiter.get_next_available_time,
        lambda key: limiter.pause(1, key),
        lambda key: limiter.set_next_available_time(datetime.now(timezone.utc), key),
    ]  # fmt: skip


def test_keys_are_text(store):
    for call in [*calls(rate(store)), rate(store).limit, rate(store).acquire_async]:
        for key in 5, b"k", ("k",), 1.5:
            with pytest.raises(TypeError, match="^key is .*: expected a str, not "):
                call(key)
        with pytest.raises(InvalidArgument, match="^key is '.ud800': expected text that UTF-8 can encode"):
            call("\ud800")


def test_keys_have_a_maximum_length(store):
    for call in calls(rate(store)):
        with pytest.raises(InvalidArgument, match="^key is 2048 bytes long: expected at most 1024 bytes of UTF-8$"):
            call("k" * 2048)
        with pytest.raises(InvalidArgument, match="^key is 1026 bytes long"):
            call("é" * 513)
    assert NullLimiter().try_acquire("é" * 512)


def test_names(store):
    for make in rate, lambda store, name: store.limiter(name):
        for name, shown in ("", "(empty|'')"), ("n" * 1025, "('nnn|1025 bytes long)"):
            with pytest.raises(InvalidArgument, match=f"^name is {shown}.*: expected 1 to 1024 bytes of UTF-8$"):
                make(store, name=name)
        with pytest.raises(InvalidArgument, match="^name is '.udfff'"):
            make(store, name="\udfff")
        with pytest.raises(TypeError, match="^name is 5: expected a str, not int$"):
            make(store, name=5)


@pytest.mark.parametrize("timeout", [-1, NAN, INF, HUGE, timedelta(-1)])
def test_timeouts_out_of_range(store, timeout):
    limiter = rate(store)
    for call in limiter.acquire, limiter.acquire_async, limiter.limit:
        with pytest.raises(InvalidArgument, match="^timeout is .*: expected seconds, from 0 to 31622400 "):
            call(timeout=timeout)
    with pytest.raises(InvalidArgument, match="^timeout is "):
        Store("memory:", timeout=timeout)


@pytest.mark.parametrize("timeout", [True, "1", None, b""])
def test_timeouts_of_another_type(store, timeout):
    with pytest.raises(TypeError, match="^timeout is .*: expected seconds as a number, or a timedelta, not "):
        Store("memory:", timeout=timeout)
    if timeout is not None:
        with pytest.raises(TypeError, match="^timeout is "):
            rate(store).acquire(timeout=timeout)


@pytest.mark.parametrize(
    ("call", "name"), [("reserve", "max_wait"), ("reserve", "grace"), ("acquire", "grace"), ("acquire_async", "grace")]
)
def test_durations_of_a_place(store, call, name):
    for limiter in rate(store), NullLimiter():
        call_it = getattr(limiter, call)
        for span in -1, NAN, INF, HUGE, timedelta(-1), timedelta(days=367):
            with pytest.raises(InvalidArgument, match=f"^{name} is .*: expected seconds, from 0 to 31622400 "):
                call_it(**{name: span})
        for span in True, "1", b"":
            with pytest.raises(TypeError, match=f"^{name} is .*: expected seconds as a number, or a timedelta, not "):
                call_it(**{name: span})


def test_a_place_from_reserve_has_its_own_grace(store):
    for call in rate(store).acquire, rate(store).acquire_async:
        with pytest.raises(InvalidArgument, match="^grace is 0.5: expected none with a place, which has its own$"):
            call(place="x", grace=0.5)


def test_places(store):
    for limiter in rate(store), NullLimiter():
        for call in limiter.present, lambda place: limiter.acquire(place=place):
            for place in 5, b"text", 1.5, limiter:
                with pytest.raises(TypeError, match="^place is .*: expected a Permit or its text, not "):
                    call(place)
        with pytest.raises(TypeError, match="^place is 5: expected a Permit or its text, not int$"):
            limiter.acquire_async(place=5)
        with pytest.raises(TypeError, match="^text is 5: expected a str, not int$"):
            limiter.permit(5)
        for text in "\ud800", "wgl-\udfff":
            with pytest.raises(InvalidArgument, match="^place is '.*ud.*': expected text that UTF-8 can encode$"):
                limiter.present(text)


@pytest.mark.parametrize("text", ["", "rubbish", "wgl-", "é" * 5000, "\0"])
@pytest.mark.parametrize("make", [NullLimiter, lambda: rate(Store("memory:"))])
def test_invalid_texts_of_places(text, make):
    limiter = make()
    for name, call in ("place", limiter.present), ("text", limiter.permit):
        with pytest.raises(InvalidArgument, match=f"^{name} is '.*: expected the text of a permit or place$"):
            call(text)
    with pytest.raises(InvalidArgument, match="^place is '"):
        limiter.acquire(place=text)
    with pytest.raises(InvalidArgument, match="^place is '"):
        asyncio.run(limiter.acquire_async(place=text))


def test_a_place_has_its_own_key_and_weight():
    limiter = NullLimiter()
    place = limiter.reserve("k", 2)
    for call in limiter.acquire, limiter.acquire_async:
        with pytest.raises(InvalidArgument, match='^key is "k": expected none with a place, which has its own$'):
            call("k", place=place)
        with pytest.raises(InvalidArgument, match="^weight is 2: expected none with a place, which has its own$"):
            call(weight=2, place=place)
    assert repr(place) == '<Permit of "null", not started>'


def test_a_started_permit_is_not_a_place():
    limiter = ConcurrencyLimiter(2)
    with limiter.acquire() as permit:
        for call in limiter.acquire, limiter.acquire_async:
            with pytest.raises(InvalidArgument, match="^place is <Permit .*>: expected a place that has not started$"):
                call(place=permit)
        assert limiter.peek().remaining == 1


def test_a_place_cannot_be_entered():
    with pytest.raises(Unsupported, match="^a place that has not started cannot be entered: present it"):
        with NullLimiter().reserve():
            pytest.fail("it has not started")


def test_a_concurrency_limit_has_no_places():
    limiter = ConcurrencyLimiter(1)
    for call in limiter.reserve, lambda: limiter.present("wgl-null"), lambda: limiter.permit("wgl-null"):
        with pytest.raises(Unsupported, match="is not supported by a "):
            call()
    with limiter.acquire() as permit:
        for call in permit.to_text, lambda: limiter.present(permit), lambda: limiter.acquire(place="wgl-null"):
            with pytest.raises(Unsupported, match="is not supported by a "):
                call()
        # None of the calls ended the permit.
        assert repr(permit) == f'<Permit of "{limiter.name}">'


def test_pauses(store):
    for limiter in rate(store), NullLimiter(), ConcurrencyLimiter(1):
        for pause in -1, NAN, INF, HUGE, timedelta(-1), timedelta(days=367):
            with pytest.raises(InvalidArgument, match="^duration is .*: expected seconds, from 0 to 31622400 "):
                limiter.pause(pause)
        with pytest.raises(TypeError, match="^duration is True: "):
            limiter.pause(True)


def test_instants(store):
    limiter = rate(store)
    with pytest.raises(InvalidArgument, match=r"^when is datetime.*: expected an aware datetime, with a tzinfo"):
        limiter.set_next_available_time(datetime.now())
    for when in 5, None, "tomorrow", datetime.now().date():
        with pytest.raises(TypeError, match="^when is .*: expected an aware datetime, not "):
            limiter.set_next_available_time(when)


def test_instants_too_far_away():
    for when in datetime.max.replace(tzinfo=timezone.utc), datetime.now(timezone.utc) + timedelta(400):
        with pytest.raises(InvalidArgument, match=r"^when is datetime.*: expected at most 366 days from now$"):
            rate(Store("memory:")).set_next_available_time(when)


def test_clocks():
    for by in -1, NAN, INF, HUGE:
        with pytest.raises(InvalidArgument, match="^by is "):
            ManualClock().advance(by)
    with pytest.raises(TypeError):
        Store("memory:", clock=5)


@pytest.mark.parametrize("mode", [0, 0o400, 0o1000, -1, HUGE])
def test_modes_out_of_range(mode):
    with pytest.raises(InvalidArgument, match="^mode is .*: expected 0o600 to 0o777"):
        Store("memory:", mode=mode)


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, (4 << 30) + 1, -1, HUGE])
def test_sizes_out_of_range(size):
    with pytest.raises(InvalidArgument, match="^max_size is .*: expected 1048576 to 4294967296 bytes"):
        Store("memory:", max_size=size)


def test_sizes_of_another_type():
    for size in True, "64", 1.5:
        with pytest.raises(TypeError, match="^max_size is .*: expected a whole number, not "):
            Store("memory:", max_size=size)


def test_modes_of_another_type():
    for mode in True, "600", 1.5:
        with pytest.raises(TypeError, match="^mode is .*: expected a whole number, not "):
            Store("memory:", mode=mode)


@pytest.mark.parametrize(
    ("name", "words"), [("on_error", "'raise', 'deny' or 'admit'"), ("durability", "'budget' or 'commit'")]
)
def test_options_of_a_store(name, words):
    for word in "", "Raise", "raise ", "budgets", "\0":
        with pytest.raises(InvalidArgument, match=f"^{name} is {re.escape(repr(word))}: expected {words}"):
            Store("memory:", **{name: word})
    for word in None, 1, b"raise":
        with pytest.raises(TypeError, match=f"^{name} is .*: expected a str, not "):
            Store("memory:", **{name: word})


@pytest.mark.parametrize("policy", ["", "100", "100/", "/1m", "100/1y", "-1/1s", "100/1m +", "100/1m, 5/1s", "many"])
def test_unreadable_policies(store, policy):
    with pytest.raises(
        InvalidArgument, match=f"^policy is {re.escape(repr(policy))}: expected .* at character [0-9]+, not "
    ):
        store.override("jobs", policy)


def test_policies_out_of_range(store):
    for name, at, policies in ("max_executions", 1, ["0/1m", "1000000001/1m"]), ("window", 3, ["5/367d", "5/0s"]):
        for policy in policies:
            with pytest.raises(
                InvalidArgument, match=f"^policy is '{policy}': expected {name} at character {at} to be "
            ):
                store.override("jobs", policy)
    for policy in None, 5, b"100/1m":
        with pytest.raises(TypeError, match="^policy is .*: expected a str, not "):
            store.override("jobs", policy)


def test_names_of_overrides(store):
    for call in lambda name: store.override(name, "100/1m"), store.lift:
        with pytest.raises(TypeError, match="^name is 5: expected a str, not int$"):
            call(5)
        with pytest.raises(InvalidArgument, match="^name is '.udfff'"):
            call("\udfff")


@pytest.mark.parametrize("url", ["", "limits.db", "mysql://x", "sqlite:", "sqlite:dir/", "memory:x", "sqlite:a\0b"])
def test_addresses(url):
    with pytest.raises(InvalidUrl, match="memory:|sqlite:") as caught:
        Store(url)
    assert isinstance(caught.value, ValueError)
    assert caught.value.code == "invalid_url"


def test_addresses_of_another_type():
    with pytest.raises(TypeError, match="^url is 5: expected a str, or the path of a file as an os.PathLike, not int$"):
        Store(5)


def test_limiters_of_a_composite():
    for bad in 5, None, NullLimiter():
        with pytest.raises(
            TypeError,
            match="^limiters is .*: expected an iterable of limiters, or a mapping of names to limiters, not ",
        ):
            CompositeLimiter(bad)
    for bad in 5, None, Store("memory:"), RateLimiter:
        with pytest.raises(TypeError, match="^limiters? is .*: expected a limiter, not "):
            CompositeLimiter([bad])
        with pytest.raises(TypeError, match="^limiter is .*: expected a limiter, not "):
            CompositeLimiter([]).add(bad)


def test_wrong_arguments_of_methods_that_bypass_pyo3():
    limiter = NullLimiter()
    permit = limiter.try_acquire(weight=2, key="k")
    for call, message in [
        (lambda: limiter.try_acquire("k", 1, 2), "takes from 0 to 2 positional arguments but 3 were given"),
        (lambda: limiter.try_acquire("k", key="k"), "got multiple values for argument 'key'"),
        (lambda: limiter.try_acquire(keys="k"), "got an unexpected keyword argument 'keys'"),
        (lambda: permit.settle(), "missing 1 required positional argument: 'actual'"),
        (lambda: permit.settle(1, 2), "takes 1 positional arguments but 2 were given"),
        (lambda: permit.complete(1), "takes no arguments (1 given)"),
    ]:
        with pytest.raises(TypeError, match=re.escape(f"() {message}") + "$"):
            call()
    permit.settle(actual=2)


def test_base_classes_cannot_be_instantiated():
    from workglow_limit import Decision, Limiter, Permit

    for kind in Decision, Limiter, Permit:
        with pytest.raises(TypeError):
            kind()
    with pytest.raises(TypeError):
        NullLimiter().complete(5)
    with pytest.raises(TypeError, match="max_executions"):
        RateLimiter(Store("memory:"), "jobs")


def test_a_file_that_is_not_a_store(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database " * 1000)
    foreign = tmp_path / "foreign.db"
    with closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE t (x)")
    for path in path, foreign:
        before = path.read_bytes()
        store = Store(f"sqlite:{path}")
        for call in store.open, store.names, rate(store).try_acquire, lambda: store.limiter("x"):
            with pytest.raises(NotAStore, match=str(path)) as caught:
                call()
            assert isinstance(caught.value, OSError) and caught.value.code == "not_a_store"
        assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["foreign.db", "notes.txt"]


def test_a_missing_directory(tmp_path):
    limiter = rate(Store(f"sqlite:{tmp_path}/no/limits.db"))
    for _ in range(2):
        with pytest.raises(StoreError, match=f"{tmp_path}/no") as caught:
            limiter.try_acquire()
        assert caught.value.code == "store_failure"
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError):
        rate(Store(f"sqlite:{tmp_path}/limits.db")).try_acquire()
    assert os.listdir(tmp_path) == []


def test_an_unwritable_file_system():
    with pytest.raises(StoreError, match="/proc"):
        rate(Store("sqlite:/proc/limits.db")).try_acquire()


def test_a_busy_store_raises_after_its_timeout(tmp_path):
    path = tmp_path / "limits.db"
    Store(f"sqlite:{path}").open()
    limiter = rate(Store(f"sqlite:{path}", timeout=0.02))
    with lane_held(path), pytest.raises(StoreTimeout, match="the store was busy for ") as caught:
        limiter.try_acquire()
    assert isinstance(caught.value, OSError) and caught.value.code == "store_timeout"
    assert patiently(limiter.try_acquire)
