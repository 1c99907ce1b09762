"""@limiter.limit on functions and coroutine functions."""

import asyncio
import inspect

import pytest

from workglow_limit import AcquireTimeout, ConcurrencyLimiter, ManualClock, RateLimiter, Store


def rate(n=1):
    return RateLimiter(Store("memory:", clock=ManualClock()), "jobs", max_executions=n, window_size_in_seconds=60)


def test_each_call_takes_a_permit_and_ends_it():
    limiter = ConcurrencyLimiter(2)

    @limiter.limit()
    def double(x, *, plus=0):
        """Doubles."""
        assert limiter.peek().remaining == 1
        return 2 * x + plus

    assert double(2, plus=1) == 5
    assert (double.__name__, double.__doc__) == ("double", "Doubles.")
    assert limiter.peek().remaining == 2

    @limiter.limit(weight=2)
    def fail():
        assert limiter.peek().remaining == 0
        raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert limiter.peek().remaining == 2


def test_a_key_of_the_arguments():
    limiter = rate()

    @limiter.limit(key=lambda tenant, **_: tenant, timeout=0)
    def call(tenant, **_):
        return tenant

    assert [call("a"), call("b", more=1)] == ["a", "b"]
    with pytest.raises(AcquireTimeout):
        call("a")
    assert limiter.peek("a").remaining == 0
    assert limiter.peek().remaining == 1


def test_a_fixed_key():
    limiter = rate()
    limiter.limit("k")(lambda: None)()
    assert limiter.peek("k").remaining == 0


def test_coroutine_functions():
    limiter = rate(n=2)

    @limiter.limit(key=lambda tenant: tenant, weight=2, timeout=0)
    async def call(tenant):
        await asyncio.sleep(0)
        return tenant

    async def main():
        assert await call("a") == "a"
        with pytest.raises(AcquireTimeout):
            await call("a")
        return await call("b")

    assert inspect.iscoroutinefunction(call)
    assert asyncio.run(main()) == "b"


def test_generators_are_refused():
    async def asynchronous():
        yield

    def synchronous():
        yield

    for function in asynchronous, synchronous:
        with pytest.raises(TypeError, match="is a generator function: use acquire inside it"):
            rate().limit()(function)


def test_a_key_that_is_no_text():
    call = rate().limit(key=lambda: 5)(lambda: None)
    with pytest.raises(TypeError, match="^key is 5: expected a str, not int"):
        call()
