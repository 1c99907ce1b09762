"""Waiting in an event loop."""

import asyncio

import pytest

from workglow_limit import AcquireTimeout, ConcurrencyLimiter, ManualClock, NullLimiter, Permit, RateLimiter, Store


def test_it_is_a_coroutine():
    async def main():
        with await asyncio.create_task(NullLimiter().acquire_async("k", weight=2, timeout=1)):
            pass

    asyncio.run(main())


def test_async_with_holds_a_permit_for_its_body():
    limiter = ConcurrencyLimiter(1)

    async def main():
        async with limiter.acquire_async("k", timeout=1) as permit:
            assert isinstance(permit, Permit)
            assert limiter.peek("k").remaining == 0
        assert limiter.peek("k").remaining == 1
        with pytest.raises(KeyError):
            async with limiter.acquire_async():
                raise KeyError
        async with limiter.acquire_async() as permit:
            # Whoever is turned away or cancelled has no body and no permit.
            with pytest.raises(AcquireTimeout):
                async with limiter.acquire_async(timeout=0):
                    pytest.fail("there was no room")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(limiter.acquire_async().__aenter__(), 0.01)
            permit.cancel()
            assert limiter.peek().remaining == 1
        assert limiter.peek().remaining == 1

    asyncio.run(main(), debug=True)


def test_event_loops_take_it_for_a_coroutine():
    limiter = ConcurrencyLimiter(4)

    async def main():
        asked = limiter.acquire_async(), asyncio.ensure_future(limiter.acquire_async())
        permits = await asyncio.gather(*asked, asyncio.shield(limiter.acquire_async()))
        permits.append(await asyncio.wait_for(limiter.acquire_async(), 60))
        assert limiter.peek().remaining == 0
        for permit in permits:
            permit.complete()

    asyncio.run(main(), debug=True)
    asyncio.run(limiter.acquire_async(), debug=True).complete()
    assert limiter.peek().remaining == 4


def test_who_forgets_to_await_is_warned():
    with pytest.warns(RuntimeWarning, match="coroutine 'acquire' was never awaited"):
        NullLimiter().acquire_async()


def test_many_wait_and_the_limit_holds():
    limiter = ConcurrencyLimiter(3)
    running = most = done = 0

    async def job():
        nonlocal running, most, done
        with await limiter.acquire_async():
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.001)
            running -= 1
            done += 1

    async def main():
        await asyncio.gather(*(job() for _ in range(30)))

    asyncio.run(main())
    assert (most, done) == (3, 30)


def test_a_rate_limit_opens_and_frees(url):
    limiter = RateLimiter(Store(url), "jobs", max_executions=2, window_size_in_seconds=0.2)

    async def main():
        return await asyncio.gather(*(limiter.acquire_async("k", timeout=60) for _ in range(6)))

    permits = asyncio.run(main())
    assert len(permits) == 6
    assert any(permit.ready_at for permit in permits)


def test_a_timeout_is_raised_where_it_is_awaited(url):
    limiter = RateLimiter(Store(url, clock=ManualClock()), "jobs", max_executions=1, window_size_in_seconds=60)

    async def main():
        await limiter.acquire_async()
        with pytest.raises(AcquireTimeout) as caught:
            await limiter.acquire_async(timeout=1)
        return caught.value.retry_after

    assert asyncio.run(main()) == 60.0


def test_who_is_cancelled_holds_nothing():
    limiter = ConcurrencyLimiter(1)

    async def main():
        with limiter.try_acquire():
            waiters = [asyncio.create_task(limiter.acquire_async()) for _ in range(5)]
            await asyncio.sleep(0.01)
            for waiter in waiters:
                waiter.cancel()
            answers = await asyncio.gather(*waiters, return_exceptions=True)
            assert all(isinstance(answer, asyncio.CancelledError) for answer in answers)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(limiter.acquire_async(), 0.01)
            never_awaited = limiter.acquire_async()
            never_awaited.close()
        assert limiter.can_proceed()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["cancelled", "timed out", "thrown away"])
def test_who_is_stopped_hands_its_place_back(how, url):
    limiter = RateLimiter(Store(url, clock=ManualClock()), "jobs", max_executions=1, window_size_in_seconds=60)

    async def taken():
        while limiter.peek().retry_after <= 60:
            await asyncio.sleep(0.001)

    async def main():
        await limiter.acquire_async()
        if how == "cancelled":
            waiter = asyncio.create_task(limiter.acquire_async())
            await taken()
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
        elif how == "timed out":
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(limiter.acquire_async(), 0.05)
        else:
            waiter = limiter.acquire_async()
            waiter.send(None)
            await taken()
            waiter.close()
        assert limiter.peek().retry_after == 60.0

    asyncio.run(main())


def test_a_store_that_cannot_be_opened(tmp_path):
    limiter = RateLimiter(Store(f"sqlite:{tmp_path}/no/x.db"), "jobs", max_executions=1, window_size_in_seconds=1)
    with pytest.raises(OSError, match="/no"):
        asyncio.run(limiter.acquire_async())


def test_a_manual_clock_wakes_the_loop(url):
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=1, window_size_in_seconds=3600)

    async def main():
        await limiter.acquire_async()
        waiter = asyncio.create_task(limiter.acquire_async())
        while limiter.peek().retry_after <= 3600:  # It has not taken its place yet.
            await asyncio.sleep(0.001)
        clock.advance(3600)
        assert (await waiter).ready_at is not None

    asyncio.run(main())
