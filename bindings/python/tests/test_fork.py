"""A limiter works on both sides of a fork."""

import json
import os
import warnings

import pytest
from conftest import run
from workglow_limit import CompositeLimiter, ConcurrencyLimiter, RateLimiter, Store


@pytest.mark.parametrize("how", ["fork", "multiprocessing"])
@pytest.mark.parametrize("scheme", ["sqlite", "redis", "postgres"])
def test_master_and_children_share_one_limit(scheme, how, tmp_path, request):
    match scheme:
        case "sqlite":
            url = f"sqlite:{tmp_path}/limits.db"
        case "redis":
            url = request.getfixturevalue("server").url
        case "postgres":
            url = request.getfixturevalue("postgres")
    got = json.loads(run("fork_program.py", how, url))
    # The children ask for 1,000 units, and 650 remain.
    assert got == {"before": 50, "children": 650, "after": 0, "all": 700}


def in_child(check):
    """Runs a check in a forked child. An exception there fails the test here."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            check()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_forked_child_does_not_use_its_parent_s_connection(server):
    limiter = RateLimiter(Store(server.url), "jobs", max_executions=100, window_size_in_seconds=3600)
    jobs = ConcurrencyLimiter(2, store=Store(server.url), name="running")
    held = jobs.try_acquire()
    limiter.acquire()

    def check():
        held.complete()  # It belongs to the parent.
        with jobs.try_acquire():
            assert jobs.try_acquire() is None
        for _ in range(40):
            assert limiter.try_acquire()

    for _ in range(2):
        in_child(check)
    for _ in range(19):
        assert limiter.try_acquire()
    assert limiter.try_acquire() is None
    assert jobs.peek().remaining == 1
    held.complete()
    assert jobs.peek().remaining == 2


@pytest.mark.parametrize("wrap", [lambda limiter: limiter, lambda limiter: CompositeLimiter([limiter])])
def test_an_inherited_permit_does_nothing_in_the_child(wrap):
    limiter = wrap(ConcurrencyLimiter(2))
    permits = [limiter.try_acquire(), limiter.try_acquire()]

    def check():
        with limiter.try_acquire(), limiter.try_acquire():  # The child counts for itself.
            permits[0].complete()
            limiter.complete(permits[0])
            with permits[0]:
                pass
            permits[0].cancel()
            permits[0].settle(0)
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                permits.clear()
            assert warned == []
            assert not limiter.can_proceed()
        assert limiter.peek().remaining == 2

    in_child(check)
    assert not limiter.can_proceed()
    for permit in permits:
        permit.complete()
    assert limiter.peek().remaining == 2


def test_a_limiter_first_used_by_the_children(tmp_path):
    limiter = RateLimiter(Store(f"sqlite:{tmp_path}/limits.db"), "jobs", max_executions=2, window_size_in_seconds=3600)
    for _ in range(2):
        in_child(lambda: limiter.acquire(timeout=0))
    assert limiter.try_acquire() is None
