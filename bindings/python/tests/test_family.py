"""The behaviour of each kind of limiter. The vectors test the rest."""

from datetime import timedelta

import pytest
from workglow_limit import (
    AcquireTimeout,
    ConcurrencyLimiter,
    DelayLimiter,
    EvenlySpacedRateLimiter,
    FixedWindowLimiter,
    FlowControl,
    KindMismatch,
    LeakyBucketLimiter,
    Limiter,
    ManualClock,
    RateLimiter,
    SlidingWindowCounterLimiter,
    Store,
    TokenBucketLimiter,
    UnknownLimit,
)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(url, clock):
    return Store(url, clock=clock)


def starts(limiter, most=20):
    """Returns how many start at once."""
    return sum(limiter.try_acquire() is not None for _ in range(most))


KINDS = {
    RateLimiter: lambda s, n: RateLimiter(s, n, max_executions=2, window_size_in_seconds=1),
    ConcurrencyLimiter: lambda s, n: ConcurrencyLimiter(2, store=s, name=n),
    DelayLimiter: lambda s, n: DelayLimiter(1, store=s, name=n),
    EvenlySpacedRateLimiter: lambda s, n: EvenlySpacedRateLimiter(
        max_executions=2, window_size_in_seconds=1, store=s, name=n
    ),
    TokenBucketLimiter: lambda s, n: TokenBucketLimiter(s, n, rate=2),
    LeakyBucketLimiter: lambda s, n: LeakyBucketLimiter(s, n, rate=2),
    FixedWindowLimiter: lambda s, n: FixedWindowLimiter(s, n, max_executions=2, window_size_in_seconds=1),
    SlidingWindowCounterLimiter: lambda s, n: SlidingWindowCounterLimiter(
        s, n, max_executions=2, window_size_in_seconds=1
    ),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_declared_limit_is_found_by_its_name(kind, url):
    clock = ManualClock()
    store = Store(url, clock=clock)
    with pytest.raises(UnknownLimit):
        store.limiter("jobs")
    limiter = KINDS[kind](store, "jobs")
    assert isinstance(limiter, kind) and repr(limiter).startswith(f'<{kind.__name__} "jobs": ')
    taken = []
    while permit := limiter.try_acquire():
        taken.append(permit)
    attached = store.limiter("jobs")
    assert taken and attached.try_acquire() is None
    assert attached.peek().denied_by == "jobs"
    other = ConcurrencyLimiter if kind is RateLimiter else RateLimiter
    with pytest.raises(KindMismatch):
        KINDS[other](store, "jobs").peek()
    for permit in taken:
        permit.complete()
    clock.advance(2)
    attached.acquire("k").complete()


def test_delays(store, clock):
    for limiter in (
        DelayLimiter(clock=clock),
        DelayLimiter(0.05, clock=clock),
        DelayLimiter(0.05, store=store, name="d"),
    ):
        assert starts(limiter) == 1
        assert limiter.peek().retry_after == 0.05
        clock.advance(0.05)
        assert starts(limiter) == 1
        # Each key has its own budget.
        assert limiter.try_acquire("k")


def test_evenly_spaced_starts(store, clock):
    numbers = {"max_executions": 4, "window_size_in_seconds": timedelta(seconds=2)}
    for home in {"clock": clock}, {"store": store, "name": "even"}:
        limiter = EvenlySpacedRateLimiter(**numbers, adaptive=False, **home)
        assert starts(limiter) == 1 and limiter.peek().retry_after == 0.5
    limiter = EvenlySpacedRateLimiter(**numbers, clock=clock)
    with limiter.acquire():
        clock.advance(0.2)
    # The distance after a start depends on the jobs before it.
    assert limiter.peek().retry_after == 0.3
    clock.advance(0.3)
    with limiter.acquire():
        assert limiter.peek().retry_after == 0.3


def test_buckets(store, clock):
    limiter = TokenBucketLimiter(store, "tokens", rate=10, period=1.0, burst=20)
    assert limiter.try_acquire(weight=20) and limiter.peek().retry_after == 0.1
    clock.advance(1)
    assert starts(limiter) == 10
    # The default burst is the rate, and the default period is a second.
    assert starts(TokenBucketLimiter(store, "plain", rate=3)) == 3
    limiter = LeakyBucketLimiter(store, "drips", rate=10, queue=2)
    assert starts(limiter) == 1 and limiter.peek().retry_after == 0.1
    places = [limiter.reserve() for _ in range(3)]
    assert [place is not None for place in places] == [True, True, False]
    assert places[1].wait == pytest.approx(0.2, abs=0.01)


def test_fixed_windows_and_counters(url, clock):
    store = Store(url, clock=clock)
    fixed = FixedWindowLimiter(store, "fixed", max_executions=3, window_size_in_seconds=60)
    smooth = SlidingWindowCounterLimiter(store, "smooth", max_executions=3, window_size_in_seconds=60)
    for limiter in fixed, smooth:
        assert starts(limiter) == 3
        assert 0 < limiter.peek().retry_after <= 120
    clock.advance(fixed.peek().retry_after)
    assert starts(fixed) == 3


def test_backoff(store, clock):
    limiter = RateLimiter(
        store, "jobs", max_executions=1, window_size_in_seconds=0.001,
        initial_backoff_delay=timedelta(seconds=1), backoff_multiplier=3, max_backoff_delay=5, jitter="none",
    )  # fmt: skip
    suggested = []
    for _ in range(4):
        limiter.acquire().complete()
        clock.advance(0.001)
    limiter.pause(100)
    for _ in range(4):
        suggested.append(limiter.decide("k").suggested_after)
        clock.advance(6)
    assert [round(after) for after in suggested] == [100, 94, 88, 82]
    limiter.clear()
    limiter.acquire().complete()
    assert limiter.decide().suggested_after == 1


@pytest.mark.parametrize(
    ("jitter", "least", "most"), [("scaled", 8, 16), ("full", 0.001, 8), ("equal", 4, 8), ("none", 8, 8)]
)
def test_jitter(jitter, least, most, clock):
    store = Store("memory:", clock=clock)
    limiter = RateLimiter(
        store, "jobs", max_executions=1, window_size_in_seconds=0.001, initial_backoff_delay=8, jitter=jitter
    )
    limiter.acquire().complete()
    seen = {limiter.peek().suggested_after for _ in range(50)}
    assert least <= min(seen) <= max(seen) <= most
    assert len(seen) == 1 if jitter == "none" else len(seen) > 10


def test_backoff_by_default(clock):
    limiter = RateLimiter(Store("memory:", clock=clock), "jobs", max_executions=1, window_size_in_seconds=0.001)
    limiter.acquire().complete()
    assert 1 <= limiter.decide().suggested_after <= 2


def test_a_policy_as_a_text(url):
    store = Store(url)
    limiter = store.limiter("openai", "100/1m + 2 concurrent")
    assert isinstance(limiter, Limiter)
    limiter.acquire("k").complete()
    with limiter.acquire(), limiter.acquire():
        denial = limiter.decide()
        assert not denial and denial.denied_by.startswith("openai")
    # The name is enough to find it.
    again = store.limiter("openai")
    assert again.peek().remaining == 2
    plain = store.limiter("mail", "5/1h")
    assert starts(plain) == 5
    assert starts(store.limiter("mail")) == 0
    with pytest.raises(UnknownLimit, match='no limit named "other" is declared: this store knows .*mail'):
        store.limiter("other")


def test_a_dropped_permit_of_a_text(url):
    store = Store(url)
    limiter = store.limiter("openai", "100/1m + 1 concurrent")
    for find in lambda: limiter, lambda: store.limiter("openai"):
        with pytest.warns(ResourceWarning, match="was dropped before it ended"):
            find().acquire()
        assert limiter.can_proceed()
    # Warnings are errors here.
    store.limiter("rates", "100/1m + 1/1ms").acquire()
    store.limiter("both", "100/1m burst 5 + 1/1ms").acquire()


def test_flow_control(url):
    flow = FlowControl("stripe", rate=5, period=60, parallelism=2)
    limiter = Store(url).limiter(flow)
    with limiter.acquire(), limiter.acquire():
        assert limiter.try_acquire() is None
    for _ in range(3):
        limiter.acquire().complete()
    assert 50 < limiter.peek().retry_after <= 60
    assert starts(Store("memory:").limiter(FlowControl("a", rate=3))) == 3
    with Store("memory:").limiter(FlowControl("a", parallelism=1)).acquire():
        pass
    assert (flow.key, flow.rate, flow.period, flow.parallelism) == ("stripe", 5, 60.0, 2)
    assert repr(flow) == 'FlowControl("stripe", rate=5, period=60, parallelism=2)'
    assert flow == FlowControl("stripe", rate=5, period=timedelta(minutes=1), parallelism=2) != FlowControl("a", rate=1)
    assert len({flow, FlowControl("stripe", rate=5, period=60.0, parallelism=2)}) == 1
    assert FlowControl("a", rate=1).period == 1.0


def test_a_file_of_limits(url, tmp_path):
    store, file = Store(url), tmp_path / "limits.toml"
    file.write_text('[stripe]\nallowed = 3\nperiod = "1m"\n\n[mail]\nallowed = 2\nperiod = "1h"\n')
    for path in file, str(file):
        assert sorted(store.load(path)) == ["mail", "stripe"]
    assert store.names() == ["mail", "stripe"]
    assert (starts(store.limiter("mail")), starts(store.limiter("stripe"))) == (2, 3)


def test_waiting_in_each_kind(url):
    store = Store(url)
    for kind, make in KINDS.items():
        limiter = make(store, kind.__name__)
        taken = []
        while permit := limiter.try_acquire("k"):
            taken.append(permit)
        with pytest.raises(AcquireTimeout):
            limiter.acquire("k", timeout=0)
        for permit in taken:
            permit.complete()
