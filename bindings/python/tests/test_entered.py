"""`with limiter:`, which waits without a key and completes at its end."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from workglow_limit import AcquireTimeout, CompositeLimiter, ConcurrencyLimiter, NullLimiter, Permit, RateLimiter, Store


def test_the_body_of_with_holds_a_permit():
    limiter = ConcurrencyLimiter(2)
    with limiter as permit:
        assert isinstance(permit, Permit) and limiter.peek().remaining == 1
        with limiter as inner:
            assert inner is not permit and limiter.peek().remaining == 0
        assert limiter.peek().remaining == 1 and "ended" not in repr(permit)
    assert limiter.peek().remaining == 2
    with pytest.raises(KeyError), limiter:
        raise KeyError
    assert limiter.peek().remaining == 2
    with limiter as permit:
        permit.cancel()
    assert limiter.peek().remaining == 2


def test_with_uses_no_key(url):
    with Store(url).limiter("jobs", "2/1h") as permit:
        assert permit.started
    limiter = RateLimiter(Store(url), "other", max_executions=2, window_size_in_seconds=3600)
    both = CompositeLimiter([limiter, ConcurrencyLimiter(1)])
    with both:
        assert (limiter.peek().remaining, both.can_proceed(), both.can_proceed("k")) == (1, False, True)
    assert both.can_proceed()


def test_each_thread_exits_with_its_own_permit():
    limiter, turns = ConcurrencyLimiter(8), threading.Barrier(4, timeout=60)

    def work(n):
        with limiter as outer:
            with limiter as inner:
                turns.wait()  # All eight units are held.
                assert limiter.peek().remaining == 0
                turns.wait()
            ended = "ended" in repr(inner), "ended" in repr(outer)
            turns.wait()  # No thread has left its outer block.
            assert limiter.peek().remaining == 4
            turns.wait()
        return ended

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [(True, False)] * 4
    assert limiter.peek().remaining == 8


def test_each_task_exits_with_its_own_permit(url):
    limiter = ConcurrencyLimiter(6, store=Store(url), name="jobs")

    async def work(n):
        async with limiter as outer:
            async with limiter as inner:
                await asyncio.sleep(0)
                assert outer.fence != inner.fence
            # Other tasks entered later, and one left earlier.
            assert "ended" in repr(inner) and "ended" not in repr(outer)
            await asyncio.sleep(n % 3 / 1000)
            outer.renew()
        assert "ended" in repr(outer)

    async def main():
        for _ in range(5):
            await asyncio.gather(*(work(n) for n in range(3)))
        with limiter:  # This does not wait here.
            async with limiter:
                assert limiter.peek().remaining == 4

    asyncio.run(main(), debug=True)
    assert limiter.peek().remaining == 6


def test_many_waiters_that_enter_do_not_exceed_the_limit():
    limiter, running, most = ConcurrencyLimiter(3), 0, 0

    async def work(all_run):
        nonlocal running, most
        async with limiter:
            running += 1
            most = max(most, running)
            if running == 3:
                all_run.set()
            # Which of them enter in the same turn of the loop depends on the machine; that three run at last does not.
            await all_run.wait()
            await asyncio.sleep(0)
            running -= 1

    async def main():
        all_run = asyncio.Event()
        await asyncio.wait_for(asyncio.gather(*(work(all_run) for _ in range(60))), 60)

    asyncio.run(main())
    assert (most, limiter.peek().remaining) == (3, 3)


def test_a_cancelled_task_has_not_entered():
    limiter = ConcurrencyLimiter(1)

    async def enter():
        async with limiter:
            pytest.fail("the start was admitted")

    async def main():
        async with limiter:
            waiter = asyncio.create_task(enter())
            await asyncio.sleep(0.01)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
            assert limiter.peek().remaining == 0
        assert limiter.peek().remaining == 1

    asyncio.run(main())


def test_another_thread_or_task_may_exit():
    # Like frameworks whose dependencies are generators.
    limiter = ConcurrencyLimiter(2)
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(limiter.__enter__).result()
        with limiter as permit:
            other.submit(limiter.__exit__, None, None, None).result()
            assert limiter.peek().remaining == 1
        assert "ended" in repr(permit) or limiter.peek().remaining == 2
    assert limiter.peek().remaining == 2

    async def main():
        await asyncio.create_task(limiter.__aenter__())
        await asyncio.create_task(limiter.__aexit__(None, None, None))

    asyncio.run(main())
    assert limiter.peek().remaining == 2


def test_interleaved_generators_hold_one_permit_per_open_body():
    limiter = ConcurrencyLimiter(3)

    def body():
        with limiter:
            yield

    first, second = body(), body()
    next(first), next(second)
    first.close()
    assert limiter.peek().remaining == 2
    with ExitStack() as stack:
        stack.enter_context(limiter)
        second.close()
        assert limiter.peek().remaining == 2
    assert limiter.peek().remaining == 3


def test_exit_without_enter_raises():
    with pytest.raises(RuntimeError, match="^the limiter was exited, but not entered$"):
        NullLimiter().__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="not entered"):
        NullLimiter().__aexit__(None, None, None)


def test_an_error_is_raised_by_with(tmp_path):
    limiter = Store(f"sqlite:{tmp_path}/no/x.db").limiter("jobs", "1/1h")
    with pytest.raises(OSError, match="/no"), limiter:
        pytest.fail("the exit succeeded")
    with pytest.raises(RuntimeError, match="not entered"):
        limiter.__exit__(None, None, None)


def test_wrap_decorates_an_existing_function():
    limiter = Store("memory:").limiter("jobs", "3/1h")
    call = limiter.wrap(str.upper, key=lambda text: text, timeout=0)
    assert (call("a"), call.__name__) == ("A", "upper")
    assert limiter.peek("a").remaining == 2

    def ask(tenant, tokens=1):
        return f"{tenant}: {tokens}"

    asked = limiter.wrap(ask, "tenant", "tokens", 0)
    assert (asked("b", 2), asked("b")) == ("b: 2", "b: 1")
    with pytest.raises(AcquireTimeout):
        asked(tenant="b")
    with pytest.raises(ValueError, match="^key is 'model': expected an argument of the function: tenant, tokens$"):
        limiter.wrap(ask, key="model")
    with pytest.raises(TypeError, match="^function is 5: expected a function, not int$"):
        limiter.wrap(5)

    async def later(tenant):
        return tenant

    assert asyncio.run(limiter.wrap(later, "tenant")("c")) == "c"
    assert limiter.peek("c").remaining == 2
