"""Permits of a shared concurrency limit are leases."""

import select
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from workglow_limit import (
    CompositeLimiter,
    ConcurrencyLimiter,
    LeaseLost,
    LimitError,
    ManualClock,
    NullLimiter,
    RateLimiter,
    Store,
)

HOLDER = """
import sys
from workglow_limit import ConcurrencyLimiter, Store
permit = ConcurrencyLimiter(1, store=Store(sys.argv[1]), name="gpu").acquire()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(url):
    """A process that holds the only slot. It ends when its input ends; at the end of the block it is killed."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert select.select([process.stdout], [], [], 60)[0], "it is still waiting"
        assert process.stdout.readline() == b"held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_killed_holder_returns_its_lease(tmp_path):
    url = f"sqlite:{tmp_path}/limits.db"
    limiter = ConcurrencyLimiter(1, store=Store(url), name="gpu")
    for kill in signal.SIGKILL, signal.SIGTERM:
        with holder(url) as process:
            assert limiter.try_acquire() is None
            process.send_signal(kill)
            process.wait()
            # The next attempt gets the slot without a wait.
            with limiter.try_acquire():
                assert limiter.try_acquire() is None


def test_a_lease_is_held_while_its_process_lives(tmp_path):
    url = f"sqlite:{tmp_path}/limits.db"
    limiter = ConcurrencyLimiter(1, store=Store(url), name="gpu")
    with holder(url) as process:
        for _ in range(100):
            assert limiter.try_acquire() is None
        process.stdin.close()
        process.wait()
        process.stdin = None
        with limiter.acquire(timeout=60):
            pass


def leased(url, clock, wrap=lambda limiter: limiter):
    return wrap(ConcurrencyLimiter(1, store=Store(url, clock=clock), name="gpu", lease=10))


@pytest.mark.parametrize("wrap", [lambda limiter: limiter, lambda limiter: CompositeLimiter([limiter])])
def test_a_renewed_lease_is_held(url, wrap):
    clock = ManualClock()
    limiter = leased(url, clock, wrap)
    permit = limiter.acquire()
    for _ in range(3):
        clock.advance(9)
        permit.renew()
        assert limiter.try_acquire() is None
    clock.advance(10)
    second = limiter.try_acquire()
    assert second is not None
    with pytest.raises(LeaseLost, match='the lease of limit "gpu" has ended') as caught:
        permit.renew()
    assert isinstance(caught.value, LimitError) and (caught.value.code, caught.value.number) == ("lease_lost", -14)
    # Ending the first lease does not end the second.
    permit.complete()
    assert limiter.try_acquire() is None
    second.renew()
    second.complete()
    assert limiter.can_proceed()


def test_fences_increase(url):
    clock = ManualClock()
    limiter = leased(url, clock)
    fences = []
    for _ in range(3):
        with limiter.try_acquire() as permit:
            fences.append(permit.fence)
        permit = limiter.try_acquire()
        fences.append(permit.fence)
        clock.advance(10)  # The lease is lost.
        permit.complete()
    assert all(isinstance(fence, int) for fence in fences)
    assert sorted(set(fences)) == fences


def test_a_permit_that_is_not_a_lease_has_no_fence():
    rate = RateLimiter(Store("memory:"), "jobs", max_executions=5, window_size_in_seconds=60)
    for limiter in NullLimiter(), rate:
        with limiter.acquire() as permit:
            assert permit.fence is None
            permit.renew()


def test_a_dropped_lease(url):
    limiter = leased(url, ManualClock())
    with pytest.warns(
        ResourceWarning, match='a permit of "gpu" was dropped before it ended: use it in a with statement'
    ):
        limiter.acquire()
    assert limiter.can_proceed()
