"""The repr of stores and limiters: policy, name and address, whatever the state of the store."""

import pytest
from workglow_limit import (
    CompositeLimiter,
    ConcurrencyLimiter,
    DelayLimiter,
    FlowControl,
    ManualClock,
    NullLimiter,
    RateLimiter,
    Store,
)


class Tenant(RateLimiter):
    """A subclass."""


class Rude:
    """A custom limiter whose repr fails."""

    name = "rude"

    def try_acquire(self, key, weight):
        return object()

    def retry_after(self, key, weight):
        return 0.0

    def complete(self, permit):
        pass

    cancel = complete

    def __repr__(self):
        raise ValueError("no")


def test_a_limiter_s_repr_shows_its_policy_and_store(tmp_path):
    url = f"sqlite:{tmp_path}/none/limits.db"  # The store is never opened.
    store = Store(url)
    made = {
        RateLimiter(store, "a", windows=[(100, 60), (5, 1)]): f'<RateLimiter "a": 100/1m + 5/1s in {url}>',
        Tenant(store, "a", max_executions=1, window_size_in_seconds=60): f'<Tenant "a": 1/1m in {url}>',
        store.limiter(
            '"b"', "5 per second + 2 concurrent"
        ): f'<Limiter "\\"b\\"": 5 per second + 2 concurrent in {url}>',
        ConcurrencyLimiter(
            3, store=store, name="c", lease=90
        ): f'<ConcurrencyLimiter "c": 3 concurrent lease 90s in {url}>',
        ConcurrencyLimiter(3): "<ConcurrencyLimiter: 3 concurrent>",
        DelayLimiter(): "<DelayLimiter: delay 50ms>",
        NullLimiter(): "<NullLimiter>",
        store: f'Store("{url}")',
        ManualClock(): "<ManualClock at 0 s>",
        FlowControl("k", rate=5): 'FlowControl("k", rate=5, period=1, parallelism=None)',
    }
    assert [repr(thing) for thing in made] == list(made.values())
    assert [str(thing) for thing in made] == list(made.values())
    with pytest.raises(OSError, match="none"):
        store.open()


def test_a_composite_s_repr_shows_its_children():
    both = CompositeLimiter([NullLimiter()])
    both.add(DelayLimiter(1))
    assert repr(both) == "<CompositeLimiter of [<NullLimiter>, <DelayLimiter: delay 1s>]>"
    both.add(Rude())
    assert repr(both) == "<CompositeLimiter of […]>"
    assert repr(NullLimiter().decide()) == "<Decision: admitted, no limit>"


def test_repr_asks_no_server(server):
    store = Store(f"{server.url}&pass=secret")
    limiter = RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=60)
    with server.stopped():
        assert repr(limiter) == f'<RateLimiter "jobs": 1/1m in {server.url}>'
        assert repr(store) == f'Store("{server.url}")'
