"""Waiting in an event loop."""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from conftest import until
from workglow_limit import (
    AcquireTimeout,
    ConcurrencyLimiter,
    InvalidArgument,
    LimitError,
    ManualClock,
    NullLimiter,
    Permit,
    RateLimiter,
    Store,
    Unsupported,
)


def test_acquire_async_returns_a_coroutine():
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
            # A caller that is denied or cancelled has no body and no permit.
            with pytest.raises(AcquireTimeout):
                async with limiter.acquire_async(timeout=0):
                    pytest.fail("the start was admitted")
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(limiter.acquire_async().__aenter__(), 0.01)
            permit.cancel()
            assert limiter.peek().remaining == 1
        assert limiter.peek().remaining == 1

    asyncio.run(main(), debug=True)


@pytest.mark.parametrize("durability", ["budget", "commit"])
@pytest.mark.parametrize("policy", ["100/1m", "100/1m + 2 concurrent"])
def test_many_new_keys_start(tmp_path, durability, policy):
    """What was made for one key was once taken back for another, in turn, and none of them started."""
    limiter = Store(f"sqlite:{tmp_path}/s.db", durability=durability).limiter("api", policy)

    async def start(key):
        (await limiter.acquire_async(key)).complete()

    async def main():
        await asyncio.gather(*(start(f"k{i}") for i in range(300)))

    asyncio.run(main())
    assert limiter.stats().admitted == 300


def test_a_permit_ends_in_an_event_loop(url):
    rate, jobs = Store(url).limiter("rate", "5/1h"), ConcurrencyLimiter(2)

    async def main():
        decision = await rate.decide_async("k", weight=3)
        assert (decision.admitted, decision.remaining) == (True, 2)
        await decision.permit.settle_async(actual=1)
        assert (await rate.peek_async("k")).remaining == 4
        async with await rate.try_acquire_async("k") as permit:
            assert isinstance(permit, Permit)
            await permit.cancel_async()
            await permit.complete_async()
        assert (await rate.peek_async("k", 0)).remaining == 4
        denied = await rate.decide_async("k", 5)
        assert (denied.admitted, denied.denied_by, denied.permit) == (False, "rate", None)

        with pytest.raises(KeyError):
            async with jobs.try_acquire() as permit:
                raise KeyError
        assert jobs.peek().remaining == 2
        place = await asyncio.to_thread(rate.reserve, "k")  # In this loop it would give a busy disk 40 ms.
        with pytest.raises(Unsupported, match="^a place that has not started"):
            async with place:
                pytest.fail("it has not started")
        await place.cancel_async()
        assert (await rate.peek_async("k")).remaining == 4

    asyncio.run(main(), debug=True)


def test_the_end_of_a_permit_wakes_a_waiter():
    limiter = ConcurrencyLimiter(1)

    async def main():
        for end in Permit.complete_async, Permit.cancel_async:
            permit = await limiter.acquire_async()
            waiter = asyncio.create_task(limiter.acquire_async())
            await asyncio.sleep(0)
            await end(permit)
            (await waiter).complete()

    asyncio.run(main())


def test_event_loops_accept_it_as_a_coroutine():
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


def test_a_missing_await_warns():
    with pytest.warns(RuntimeWarning, match="coroutine 'acquire' was never awaited"):
        NullLimiter().acquire_async()


def test_an_acquisition_can_be_awaited_once():
    async def main():
        asked = NullLimiter().acquire_async()
        await asked
        with pytest.raises(RuntimeError, match="^cannot reuse already awaited coroutine$"):
            await asked
        with pytest.raises(KeyError):
            NullLimiter().acquire_async().throw(KeyError())
        with pytest.raises(InvalidArgument):
            await NullLimiter().acquire_async("k" * 1025)

    asyncio.run(main())


def test_a_new_caller_does_not_overtake_a_waiter():
    limiter, started = ConcurrencyLimiter(1), []

    async def start(name):
        async with limiter.acquire_async():
            started.append(name)

    async def main():
        held = await limiter.acquire_async()
        waiter = asyncio.create_task(start("first"))
        await asyncio.sleep(0)
        held.complete()
        # A unit is free, and the first waiter has not been notified yet.
        await start("second")
        await waiter

    asyncio.run(main())
    assert started == ["first", "second"]


def test_many_waiters_do_not_exceed_the_limit():
    limiter = ConcurrencyLimiter(3)
    running = most = done = 0

    async def job(all_run):
        nonlocal running, most, done
        with await limiter.acquire_async():
            running += 1
            most = max(most, running)
            if running == 3:
                all_run.set()
            await all_run.wait()
            await asyncio.sleep(0)
            running -= 1
            done += 1

    async def main():
        all_run = asyncio.Event()
        await asyncio.wait_for(asyncio.gather(*(job(all_run) for _ in range(30))), 60)

    asyncio.run(main())
    assert (most, done) == (3, 30)


def test_waiters_of_a_rate_limit_start_over_time(url):
    limiter = RateLimiter(Store(url), "jobs", max_executions=2, window_size_in_seconds=0.2)

    async def main():
        return await asyncio.gather(*(limiter.acquire_async("k", timeout=60) for _ in range(6)))

    for _ in range(20):
        permits = asyncio.run(main())
        assert len(permits) == 6
        if any(permit.ready_at for permit in permits):
            return
        # The loop stood still for so long that nobody had to wait.
    pytest.fail("nobody ever waited")


def test_a_timeout_is_raised_by_await(url):
    limiter = RateLimiter(Store(url, clock=ManualClock()), "jobs", max_executions=1, window_size_in_seconds=60)

    async def main():
        await limiter.acquire_async()
        with pytest.raises(AcquireTimeout) as caught:
            await limiter.acquire_async(timeout=1)
        return caught.value.retry_after

    assert asyncio.run(main()) == 60.0


def test_timeouts_of_one_line_name_their_keys(url):
    limiter = ConcurrencyLimiter(1, store=Store(url), name="jobs")
    keys = ["a", "b", None, "a"]

    async def main():
        held = [await limiter.acquire_async(key) for key in keys[:3]]
        for timeout in 0, 0.01:  # Without a wait, and after one.
            waits = [limiter.acquire_async(key, timeout=timeout) for key in keys]
            errors = await asyncio.gather(*waits, return_exceptions=True)
            assert [type(error) for error in errors] == [AcquireTimeout] * 4
            assert [error.key for error in errors] == keys
        for permit in held:
            permit.complete()

    asyncio.run(main())


def test_a_cancelled_waiter_holds_nothing():
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


def test_each_start_is_decided_when_its_work_begins():
    """Once all waiters were decided first, and the work of all of them followed, later than the limit knew."""
    clock = ManualClock()
    limiter = RateLimiter(Store("memory:", clock=clock), "jobs", max_executions=3, window_size_in_seconds=1)
    begun = []

    async def job():
        async with limiter.acquire_async():
            begun.append(clock.now())
            clock.advance(0.005)

    async def main():
        for _ in range(3):
            assert limiter.try_acquire()
        jobs = [asyncio.create_task(job()) for _ in range(3)]
        await asyncio.sleep(0.001)
        assert not begun
        clock.advance(1)
        await asyncio.gather(*jobs)

    asyncio.run(main())
    # The first two began at least a second ago, the third one less than that.
    clock.advance(0.994)
    assert limiter.peek().remaining == 2


@pytest.mark.parametrize("waits", [True, False])
def test_a_start_in_a_busy_loop_counts_from_its_work(waits):
    """Its task was woken after the decision, and the loop did other work before it went on. The first start of some keys, which need
    more space, was even decided in another thread."""
    clock = ManualClock()
    limiter = RateLimiter(Store("memory:", clock=clock), "jobs", max_executions=1, window_size_in_seconds=60)
    counted = []

    async def job(key):
        async with limiter.acquire_async(key, grace=30):
            counted.append(limiter.peek(key).retry_after)

    async def main():
        jobs = [asyncio.create_task(job(f"key {n}")) for n in range(5 if waits else 100)]
        while not all(task.done() for task in jobs):
            clock.advance(0.01)
            await asyncio.sleep(0)

    if waits:
        for n in range(5):
            assert limiter.try_acquire(f"key {n}")
    asyncio.run(main())
    assert set(counted) == {60}


def test_starts_that_were_asked_for_before_the_store_was_open_are_decided_one_by_one(url):
    """Once they were all decided in the thread that opened it, and the work of all of them followed later."""
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=4, window_size_in_seconds=1)

    async def job():
        async with limiter.acquire_async():
            clock.advance(0.005)

    async def main():
        await asyncio.gather(*(job() for _ in range(4)))

    asyncio.run(main())
    # They began 20, 15, 10 and 5 ms ago.
    clock.advance(0.987)
    assert limiter.peek().remaining == 2


@pytest.mark.parametrize("how", ["cancelled", "timed out", "thrown away"])
def test_a_cancelled_waiter_returns_its_place(how, url):
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
        # In the executor, because other tasks may hold the key.
        while limiter.peek().retry_after != 60.0:
            await asyncio.sleep(0.001)

    asyncio.run(main())


@pytest.mark.parametrize("grace", [None, timedelta(milliseconds=500)])
def test_a_late_waiter_keeps_its_place_within_its_grace(url, grace):
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=1, window_size_in_seconds=60)

    async def until(condition):
        while not condition():
            await asyncio.sleep(0)

    async def main():
        await limiter.acquire_async()
        waiter = asyncio.create_task(limiter.acquire_async(grace=grace))
        await until(lambda: limiter.peek().retry_after > 60)  # It has its place now.
        limiter.reserve()
        clock.advance(60.3)  # The clock jumps, so the waiter is late.
        if grace is None:
            await until(lambda: limiter.peek().retry_after > 150)  # It waits for a second place, behind the other one.
            assert not waiter.done()
            waiter.cancel()
        else:
            assert (await waiter).ready_at is not None

    asyncio.run(asyncio.wait_for(main(), 100))


def test_a_store_opens_while_the_loop_runs(tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")

    async def main():
        assert await store.open_async() is None
        assert store.names() == []
        with pytest.raises(LimitError):
            await Store(f"sqlite:{tmp_path}/none/limits.db").open_async()

    asyncio.run(main())
    assert (tmp_path / "limits.db").exists()


def test_acquire_refuses_to_stop_its_loop():
    """The task that would end the permit may be of this loop."""
    limiter = ConcurrencyLimiter(1)
    says = "^acquire would stop the event loop while it waits: use acquire_async, or async with the limiter$"

    def in_a_function(timeout):
        return limiter.acquire(timeout=timeout)

    async def main():
        async with limiter.acquire():  # It need not wait.
            with pytest.raises(RuntimeError, match=says):
                async with limiter.acquire():
                    pass
            with pytest.raises(RuntimeError, match=says), limiter:
                pass
            with pytest.raises(AcquireTimeout):
                limiter.acquire(timeout=0)
            with pytest.raises(AcquireTimeout):
                in_a_function(0.001)  # Blocking code that a loop runs may block it.
        assert limiter.peek().remaining == 1
        async with limiter.acquire_async():
            pass

    asyncio.run(main())


def test_an_unusable_store_raises(tmp_path):
    limiter = RateLimiter(Store(f"sqlite:{tmp_path}/no/x.db"), "jobs", max_executions=1, window_size_in_seconds=1)
    with pytest.raises(OSError, match="/no"):
        asyncio.run(limiter.acquire_async())


def test_a_manual_clock_wakes_the_loop(url):
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=1, window_size_in_seconds=3600)

    async def main():
        await limiter.acquire_async()
        waiter = asyncio.create_task(limiter.acquire_async())
        while limiter.peek().retry_after <= 3600:  # It has no place yet.
            await asyncio.sleep(0.001)
        clock.advance(3600)
        assert (await waiter).ready_at is not None

    asyncio.run(main())


def in_order_of(limiter, asks, when_all_wait=None):
    """Returns the names of waiters in the order of their starts. asks are (name, arguments of acquire_async)."""
    order = []

    async def job(name, arguments):
        with await limiter.acquire_async(**arguments):
            order.append(name)
            await asyncio.sleep(0)

    async def main():
        jobs = asyncio.gather(*(job(name, arguments) for name, arguments in asks))
        if when_all_wait is not None:
            await when_all_wait(order)
        await jobs

    asyncio.run(main())
    return order


@pytest.mark.parametrize("policy", ["10/100ms", "1 concurrent", "10/100ms + 1 concurrent"])
def test_waiters_start_in_the_order_of_their_calls(policy, url):
    # The limit is not open yet.
    assert in_order_of(Store(url).limiter("jobs", policy), [(n, {}) for n in range(50)]) == list(range(50))


@pytest.mark.parametrize("policy", ["1/1m", "1 concurrent"])
def test_lower_priorities_start_first(policy, url):
    clock = ManualClock()
    store = Store(url, clock=clock)
    limiter = store.limiter("jobs", policy)
    asks = [(n, {"priority": -n % 5 - 2}) for n in range(10)]
    held = limiter.acquire()

    async def starts_one_by_one(order):
        while store.snapshot().limits[0].waiting < len(asks):
            await asyncio.sleep(0.001)
        assert order == []
        held.complete()
        for started in range(1, 11):
            clock.advance(60)
            while len(order) < started:
                await asyncio.sleep(0.001)

    expected = sorted(range(10), key=lambda n: (asks[n][1]["priority"], n))
    assert in_order_of(limiter, asks, starts_one_by_one) == expected


def test_waiters_move_up_when_one_leaves(url):
    clock = ManualClock()
    limiter = RateLimiter(Store(url, clock=clock), "jobs", max_executions=2, window_size_in_seconds=60)
    order = []

    async def job(n):
        await limiter.acquire_async()
        order.append(n)

    async def main():
        tasks = [asyncio.create_task(job(n)) for n in range(20)]
        await asyncio.sleep(0)
        for task in tasks[2::2]:
            task.cancel()
        while len(order) < 11:
            before = len(order)
            while len(order) < min(before + 2, 11):
                await asyncio.sleep(0.001)
            clock.advance(60)
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())
    assert order == [0, *range(1, 20, 2)]


def test_a_waiter_that_is_cancelled_when_it_has_been_woken_leaves_its_turn_to_the_next_one():
    limiter = ConcurrencyLimiter(1)

    async def main():
        permit = limiter.try_acquire()
        waiter, behind = (asyncio.create_task(limiter.acquire_async()) for _ in range(2))
        await asyncio.sleep(0)
        permit.complete()
        while not waiter._fut_waiter.done():  # Until it is woken.
            await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        (await behind).complete()

    asyncio.run(main())
    assert limiter.can_proceed()


def test_a_completion_in_another_thread_wakes_the_loop():
    limiter = ConcurrencyLimiter(1)

    async def main():
        for _ in range(50):
            permit = limiter.try_acquire("k")
            waiter = asyncio.create_task(limiter.acquire_async("k"))
            await asyncio.sleep(0)
            await asyncio.to_thread(permit.complete)
            (await waiter).complete()

    asyncio.run(main())


def test_each_loop_has_a_line_only_while_it_has_waiters():
    limiter = ConcurrencyLimiter(1)

    async def main():
        waiters = [asyncio.create_task(limiter.acquire_async(key)) for key in "aabbcc"]
        for waiter in asyncio.as_completed(waiters):
            (await waiter).complete()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: asyncio.run(main()), range(8)))
    assert all(limiter.can_proceed(key) for key in "abc")


@pytest.mark.parametrize("end", ["closed", "collected"])
@pytest.mark.parametrize("policy", ["1 concurrent", "1/1h"])
@pytest.mark.filterwarnings("ignore:unclosed")
def test_an_ended_loop_has_no_waiters(policy, end, url):
    store = Store(url)
    limiter = store.limiter("jobs", policy)
    held = limiter.acquire()

    def waiting():
        return store.snapshot().limits[0].waiting

    async def join(count):
        tasks = [asyncio.create_task(limiter.acquire_async()) for _ in range(3)]
        while waiting() < count:
            await asyncio.sleep(0.001)
        return tasks

    loop, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    tasks, others = loop.run_until_complete(join(3)), other.run_until_complete(join(6))
    for task in (*tasks, *others):
        task._log_destroy_pending = False
    if end == "closed":
        loop.close()  # The program still has the tasks.
    else:
        del loop, tasks, task
        gc.collect()
    until(lambda: waiting() == 3)
    if policy == "1 concurrent":
        held.complete()
        other.run_until_complete(others[0]).complete()
    other.close()
    until(lambda: waiting() == 0)
    # They held places.
    until(lambda: limiter.peek().reset_after < 3700)


def test_waiters_of_different_keys_are_independent(url):
    limiter = RateLimiter(Store(url), "jobs", max_executions=2, window_size_in_seconds=0.05)
    asks = [((key, n), {"key": key}) for n in range(6) for key in "abcd"]
    order = in_order_of(limiter, asks)
    for key in "abcd":
        assert [n for of, n in order if of == key] == list(range(6))
