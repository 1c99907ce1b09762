"""trio, and anyio on trio and on asyncio: the calls of test_asyncio.py, and that cancelled tasks leave nothing behind."""

import anyio
import anyio.lowlevel
import pytest
import trio
from test_standing_still import locked
from workglow_limit import AcquireTimeout, ConcurrencyLimiter, LimitError, ManualClock, Permit, RateLimiter, Store


def run_in_trio(main):
    trio.run(main)


def run_in_anyio(main):
    anyio.run(main, backend="trio")


def run_in_anyio_s_asyncio(main):
    anyio.run(main, backend="asyncio")


@pytest.fixture(params=[run_in_trio, run_in_anyio, run_in_anyio_s_asyncio])
def loop(request):
    """Runs a coroutine function."""
    return request.param


async def until(condition):
    with anyio.fail_after(100):
        while not condition():
            await anyio.sleep(0.001)


def test_async_with_holds_a_permit_for_its_body(loop):
    limiter = ConcurrencyLimiter(1)

    async def main():
        async with limiter.acquire_async("k", timeout=1) as permit:
            assert isinstance(permit, Permit)
            assert limiter.peek("k").remaining == 0
        assert limiter.peek("k").remaining == 1
        with pytest.raises(KeyError):
            async with limiter.acquire_async():
                raise KeyError
        async with await limiter.acquire_async():
            with pytest.raises(AcquireTimeout):
                await limiter.acquire_async(timeout=0.01)
            assert await limiter.try_acquire_async() is None
            assert not (await limiter.decide_async()).admitted
            with limiter.try_acquire("other"):  # It need not wait.
                pass
        assert (await limiter.peek_async()).remaining == 1
        with await limiter.try_acquire_async() as permit:
            await permit.cancel_async()

    loop(main)
    assert limiter.peek().remaining == 1


def test_each_task_exits_with_its_own_permit(loop):
    limiter = ConcurrencyLimiter(6)

    async def work(n):
        async with limiter as outer:
            async with limiter as inner:
                await anyio.sleep(0)
                assert outer is not inner
            # Other tasks entered later, and one left earlier.
            assert "ended" in repr(inner) and "ended" not in repr(outer)
            await anyio.sleep(n % 3 / 1000)
        assert "ended" in repr(outer)

    async def main():
        for _ in range(5):
            async with anyio.create_task_group() as group:
                for n in range(3):
                    group.start_soon(work, n)
        with limiter:  # This does not wait here.
            async with limiter:
                assert limiter.peek().remaining == 4
        with anyio.move_on_after(0.01):
            async with limiter:
                await anyio.sleep(100)

    loop(main)
    assert limiter.peek().remaining == 6


def test_nurseries_accept_it_as_a_coroutine(loop):
    limiter = RateLimiter(Store("memory:"), "jobs", max_executions=3, window_size_in_seconds=3600)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(limiter.acquire_async)
            group.start_soon(limiter.try_acquire_async)

    loop(main)
    assert limiter.peek().remaining == 1


# trio runs tasks that start at the same time in any order.
@pytest.mark.parametrize("policy", ["1 concurrent", "10/100ms + 1 concurrent"])
def test_waiters_start_in_the_order_of_their_calls(policy, url, loop):
    limiter, order = Store(url).limiter("jobs", policy), []

    async def job(number):
        with await limiter.acquire_async():
            order.append(number)
            await anyio.sleep(0)

    async def main():
        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(job, number)
                # trio starts tasks in any order.
                await anyio.sleep(0)
                await anyio.sleep(0)

    loop(main)
    assert order == list(range(50))


def test_a_late_waiter_keeps_its_place_within_its_grace(url, loop):
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=1, window_size_in_seconds=60)
    permits = []

    async def wait():
        permits.append(await limiter.acquire_async(grace=0.5))

    async def main():
        await limiter.acquire_async()
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await until(lambda: limiter.peek().retry_after > 60)
            limiter.reserve()
            clock.advance(60.3)  # The clock jumps, so the waiter is late.
            await until(lambda: permits)

    loop(main)
    assert permits[0].ready_at is not None


def test_a_start_in_a_busy_loop_counts_from_its_work(loop):
    clock = ManualClock()
    limiter = RateLimiter(Store("memory:", clock=clock), "jobs", max_executions=1, window_size_in_seconds=60)
    counted = []

    async def job(key):
        async with limiter.acquire_async(key, grace=30):
            counted.append(limiter.peek(key).retry_after)

    async def main():
        async with anyio.create_task_group() as group:
            for key in "abc":
                limiter.try_acquire(key)
                group.start_soon(job, key)
            while len(counted) < 3:
                clock.advance(0.01)
                await anyio.sleep(0)

    loop(main)
    assert counted == [60, 60, 60]


@pytest.mark.parametrize("how", ["scope", "timeout", "group"])
def test_a_cancelled_waiter_returns_its_place(how, url, loop):
    limiter = RateLimiter(Store(url, clock=ManualClock()), "jobs", max_executions=1, window_size_in_seconds=60)

    async def main():
        await limiter.acquire_async()
        if how == "timeout":
            with anyio.move_on_after(0.05) as scope:
                await limiter.acquire_async()
            assert scope.cancelled_caught
        else:
            async with anyio.create_task_group() as group:
                group.start_soon(limiter.acquire_async)
                await until(lambda: limiter.peek().retry_after > 60)
                if how == "group":
                    group.cancel_scope.cancel()
                else:
                    with anyio.CancelScope() as scope:
                        scope.cancel()
                        await limiter.acquire_async()
                    assert scope.cancelled_caught
                    group.cancel_scope.cancel()
        await until(lambda: limiter.peek().retry_after == 60)

    loop(main)


def test_an_admitted_waiter_that_is_cancelled_returns_its_start(loop):
    limiter = ConcurrencyLimiter(1)

    async def main():
        for _ in range(20):
            held = limiter.try_acquire()
            async with anyio.create_task_group() as group:

                async def job():
                    with await limiter.acquire_async():
                        await anyio.sleep_forever()

                group.start_soon(job)
                await anyio.sleep(0.001)
                held.complete()
                while limiter.can_proceed():  # Until it is notified.
                    await anyio.sleep(0)
                group.cancel_scope.cancel()
            await until(limiter.can_proceed)

    loop(main)


def test_a_completion_in_another_thread_wakes_the_loop(loop):
    limiter = ConcurrencyLimiter(1)

    async def main():
        for _ in range(20):
            held = limiter.try_acquire()
            async with anyio.create_task_group() as group:

                async def job():
                    (await limiter.acquire_async()).complete()

                group.start_soon(job)
                await anyio.to_thread.run_sync(held.complete)

    loop(main)


@pytest.mark.parametrize("ended", [False, True])
def test_a_locked_database_does_not_block_other_tasks(ended, tmp_path, loop):
    # A call that blocked the loop would do so until the store's timeout, and then raise.
    store = Store(f"sqlite:{tmp_path}/limits.db", timeout=100, durability="commit")
    limiter = RateLimiter(store, "jobs", max_executions=10, window_size_in_seconds=3600)
    for key in "abc":
        limiter.peek(key)
    answers = []

    async def call(function, key):
        answers.append(await function(key))

    async def main():
        async with anyio.create_task_group() as group:
            with locked(tmp_path / "limits.db", "begin immediate"):
                group.start_soon(call, limiter.acquire_async, "a")
                group.start_soon(call, limiter.try_acquire_async, "b")
                group.start_soon(call, limiter.decide_async, "c")
                for _ in range(30):
                    await anyio.sleep(0.001)
                assert answers == []
                if ended:
                    group.cancel_scope.cancel()
                    await anyio.lowlevel.cancel_shielded_checkpoint()
        if ended:
            await until(lambda: [limiter.peek(key).remaining for key in "abc"] == [10, 10, 10])

    loop(main)
    assert len(answers) == (0 if ended else 3)


def test_an_error_is_raised_by_await(tmp_path, loop):
    limiter = RateLimiter(Store(f"sqlite:{tmp_path}/no/x.db"), "jobs", max_executions=1, window_size_in_seconds=1)

    async def main():
        for call in limiter.acquire_async, limiter.try_acquire_async:
            with pytest.raises(LimitError, match="/no"):
                await call()

    loop(main)


def test_trio_in_guest_mode_of_asyncio():
    import asyncio

    limiter = ConcurrencyLimiter(1)

    async def waits():
        held = limiter.try_acquire()
        async with trio.open_nursery() as nursery:

            async def job():
                (await limiter.acquire_async()).complete()

            nursery.start_soon(job)
            await trio.sleep(0.01)
            held.complete()
        return "done"

    async def host():
        loop, ended = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
        trio.lowlevel.start_guest_run(
            waits, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=ended.set_result
        )
        outcome = await ended
        with await limiter.acquire_async():
            return outcome.unwrap()

    assert asyncio.run(host()) == "done"
