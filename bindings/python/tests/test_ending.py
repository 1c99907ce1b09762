"""The three ends of a permit: complete, cancel, settle. The first one counts."""

import pytest
from workglow_limit import (
    CompositeLimiter,
    ConcurrencyLimiter,
    ManualClock,
    NullLimiter,
    RateLimiter,
    Store,
    Unsupported,
)

ENDS = [
    lambda permit: permit.complete(),
    lambda permit: permit.cancel(),
    lambda permit: permit.settle(0),
    lambda permit: permit.settle(9),
]


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def limiter(url, clock):
    """Ten units a minute."""
    return RateLimiter(Store(url, clock=clock), "tokens", max_executions=10, window_size_in_seconds=60)


@pytest.mark.parametrize("end", ENDS)
def test_no_limit(end):
    with NullLimiter().acquire() as permit:
        end(permit)
        assert repr(permit) == '<Permit of "null", ended>'


def test_a_cancelled_job_returns_its_slot():
    limiter = ConcurrencyLimiter(2)
    with limiter.acquire(), limiter.acquire() as permit:
        permit.cancel()
        assert limiter.peek().remaining == 1
        with limiter.acquire():
            # This was its second end, which does not end the other permit.
            permit.cancel()
            permit.complete()
            assert limiter.peek().remaining == 0
    assert limiter.peek().remaining == 2


@pytest.mark.parametrize("wrap", [lambda limiter: limiter, lambda limiter: CompositeLimiter([limiter])])
def test_a_cancelled_permit_needs_no_block(wrap):
    limiter = wrap(ConcurrencyLimiter(1))
    limiter.acquire().cancel()  # Warnings are errors here.
    assert limiter.can_proceed()


def test_a_permit_whose_end_failed_can_end_again():
    limiter = ConcurrencyLimiter(1)
    permit = limiter.acquire()
    with pytest.raises(Unsupported, match="settle is not supported by a concurrency limit"):
        permit.settle(1)
    assert not limiter.can_proceed()
    permit.complete()
    permit.settle(1)
    assert limiter.can_proceed()


def test_a_job_that_never_ran_frees_its_units(limiter):
    with limiter.acquire("k", 4) as kept, limiter.acquire("k", 6) as permit:
        permit.cancel()
        assert limiter.peek("k").remaining == 6
        kept.complete()
    assert limiter.peek("k").remaining == 6
    assert limiter.peek().remaining == 10


@pytest.mark.parametrize(("actual", "remaining"), [(0, 10), (1, 9), (4, 6), (9, 1), (10, 0), (12, 0), (2**64 - 1, 0)])
def test_settle_corrects_the_units(actual, remaining, limiter, clock):
    limiter.acquire(weight=4).settle(actual)
    assert limiter.peek(weight=0).remaining == remaining
    # A debt is at most one whole capacity.
    clock.advance(120)
    assert limiter.peek().remaining == 10


@pytest.mark.parametrize("end", ENDS)
def test_the_first_end_counts(end, limiter):
    permit = limiter.acquire(weight=4)
    permit.settle(2)
    end(permit)
    assert limiter.peek().remaining == 8
    permit = limiter.acquire(weight=4)
    permit.complete()
    end(permit)
    limiter.complete(permit)
    assert limiter.peek().remaining == 4


def test_a_with_block_completes_unless_the_permit_has_ended(limiter):
    with pytest.raises(KeyError), limiter.acquire(weight=4):
        raise KeyError
    assert limiter.peek().remaining == 6
    with pytest.raises(KeyError), limiter.acquire(weight=4) as permit:
        permit.cancel()
        raise KeyError
    assert limiter.peek().remaining == 6
    with limiter.acquire(weight=4) as permit:
        permit.settle(1)
    assert limiter.peek().remaining == 5


def test_several_limits(limiter):
    both = CompositeLimiter([limiter, running := ConcurrencyLimiter(4)])
    with both.acquire(weight=4) as permit:
        permit.settle(1)
        assert (limiter.peek().remaining, running.peek().remaining) == (9, 4)
    with both.acquire(weight=4) as permit:
        permit.cancel()
    assert (limiter.peek().remaining, running.peek().remaining) == (9, 4)
