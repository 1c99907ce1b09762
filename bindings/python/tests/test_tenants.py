"""Tenants of a shared limit: one budget, in which the key names whose start it is."""

import asyncio
import threading

import pytest
from conftest import until
from workglow_limit import (
    ConcurrencyLimiter,
    InvalidArgument,
    ManualClock,
    RateLimiter,
    Store,
    UnknownLimit,
    Unsupported,
)


@pytest.fixture
def store(url):
    return Store(url)


def waiting(store):
    return sum(limit.waiting for limit in store.snapshot().limits)


def in_loop(store, limiter, asks):
    """Returns the tenants in the order of their starts, of tasks that all wait before the first of them starts. asks are (tenant,
    options of acquire)."""
    order, running = [], []

    async def job(tenant, options):
        async with limiter.acquire_async(tenant, **options):
            running.append(tenant)
            assert running == [tenant]
            order.append(tenant)
            await asyncio.sleep(0)
            running.clear()

    async def main():
        held = await limiter.acquire_async("holder")
        jobs = [asyncio.create_task(job(*ask)) for ask in asks]
        while waiting(store) < len(asks):
            await asyncio.sleep(0.001)
        assert not order
        await held.complete_async()
        await asyncio.gather(*jobs)

    asyncio.run(main())
    return order


def in_threads(store, limiter, asks):
    """The same of threads."""
    order, running, over = [], [], []

    def job(tenant, options):
        with limiter.acquire(tenant, **options):
            running.append(tenant)
            if len(running) > 1:
                over.append(list(running))
            order.append(tenant)
            running.clear()

    held = limiter.acquire("holder")
    threads = []
    for ask in asks:
        threads.append(threading.Thread(target=job, args=ask))
        threads[-1].start()
        # In the order of their asking.
        until(lambda: waiting(store) == len(threads))
    assert not order
    held.complete()
    for thread in threads:
        thread.join()
    assert not over
    return order


@pytest.mark.parametrize("starts", [in_loop, in_threads])
def test_a_tenant_with_one_job_does_not_wait_for_another_with_many(store, starts):
    limiter = store.limiter("jobs", "1 concurrent shared")
    order = starts(store, limiter, [("whale", {})] * 30 + [("small", {})])
    assert order.index("small") <= 1 and len(order) == 31


@pytest.mark.parametrize("starts", [in_loop, in_threads])
def test_starts_are_divided_by_shares(store, starts):
    limiter = store.limiter("jobs", "1 concurrent shared")
    limiter.acquire().complete()
    store.share("jobs", "b", 3)
    order = starts(store, limiter, [("a", {})] * 20 + [("b", {})] * 20 + [("c", {"share": 2})] * 20)
    # Two tenants that wait differ by one start each, per share: until one of them has no more.
    first = order[: 1 + max(i for i, tenant in enumerate(order) if tenant == "b")]
    for i in range(len(first)):
        a, b, c = (first[: i + 1].count(tenant) for tenant in "abc")
        assert abs(a - b / 3) <= 1 + 1 / 3 and abs(b / 3 - c / 2) <= 1 / 3 + 1 / 2 and abs(a - c / 2) <= 1 + 1 / 2, (
            order
        )


def test_within_a_tenant_priority_comes_before_asking(store):
    limiter = store.limiter("jobs", "1 concurrent shared")
    order = []

    async def job(number, priority):
        async with limiter.acquire_async("a", priority=priority):
            order.append(number)

    async def main():
        held = await limiter.acquire_async("a")
        jobs = [asyncio.create_task(job(number, -number % 5)) for number in range(10)]
        while waiting(store) < 10:
            await asyncio.sleep(0.001)
        await held.complete_async()
        await asyncio.gather(*jobs)

    asyncio.run(main())
    assert order == sorted(range(10), key=lambda number: (-number % 5, number))


def test_a_rate_is_one_budget_and_a_tenant_starts_in_the_next_window(url):
    clock = ManualClock()
    store = Store(url, clock=clock)
    limiter = RateLimiter(store, "calls", max_executions=4, window_size_in_seconds=60, shared=True)
    for tenant in ["whale"] * 3 + ["small"]:
        assert limiter.try_acquire(tenant)
    assert not limiter.try_acquire("another") and limiter.peek("another").remaining == 0
    order = []

    async def job(tenant):
        await limiter.acquire_async(tenant)
        order.append(tenant)

    async def main():
        jobs = [asyncio.create_task(job("whale")) for _ in range(20)]
        while waiting(store) < 20:
            await asyncio.sleep(0.001)
        jobs.append(asyncio.create_task(job("another")))
        while waiting(store) < 21:
            await asyncio.sleep(0.001)
        for window in range(1, 7):
            clock.advance(61)
            while len(order) < min(4 * window, 21):
                await asyncio.sleep(0.001)
            assert len(order) == min(4 * window, 21)
        await asyncio.gather(*jobs)

    asyncio.run(main())
    assert "another" in order[:8]


def test_a_start_without_a_wait_does_not_pass_a_tenant_that_waits(store):
    limiter = store.limiter("jobs", "2 concurrent shared")

    async def main():
        held = await limiter.acquire_async("a")
        job = asyncio.create_task(hold(limiter, "b", 2))
        while waiting(store) < 1:
            await asyncio.sleep(0.001)
        # One unit is free.
        assert limiter.try_acquire("a") is None and not limiter.peek("a").admitted
        await held.complete_async()
        await job
        limiter.try_acquire("a").complete()

    asyncio.run(main())


async def hold(limiter, key, weight):
    async with limiter.acquire_async(key, weight):
        pass


def test_a_snapshot_has_the_tenants_that_wait_and_those_with_a_share(store):
    limiter = store.limiter("jobs", "1 concurrent shared")
    limiter.acquire().complete()
    store.share("jobs", "c", 7)
    store.share("jobs", "b", 3)

    async def main():
        async with limiter.acquire_async("a"):
            jobs = [asyncio.create_task(hold(limiter, key, 1)) for key in "aabb"]
            while waiting(store) < 4:
                await asyncio.sleep(0.001)
            seen = store.snapshot(show_keys=True).limits[0]
        await asyncio.gather(*jobs)
        return seen

    seen = asyncio.run(main())
    assert (seen.kind, seen.hot_keys) == ("shared-concurrency", ())
    waits = {tenant.key: tenant for tenant in seen.tenants if tenant.waits is not None}
    assert len(waits) == 2 and waits["b"].share == 3 and waits["b"].waits >= 0
    (other,) = set(waits) - {"b"}
    assert other.startswith("#") and waits[other].share == 1
    assert [(tenant.key, tenant.share) for tenant in seen.tenants if tenant.waits is None] == [("c", 7)]
    assert all(tenant.key.startswith("#") for tenant in store.snapshot().limits[0].tenants)
    assert 'workglow_limit_tenant_share{limit="jobs",tenant="c"} 7' in store.metrics(show_keys=True)


def test_a_share_survives_a_restart(tmp_path):
    url = f"sqlite:{tmp_path}/limits.db"
    with Store(url) as store:
        store.limiter("jobs", "1 concurrent shared").acquire().complete()
        store.share("jobs", "b", 3)
    store = Store(url)
    order = in_loop(store, store.limiter("jobs"), [("a", {})] * 8 + [("b", {})] * 8)
    assert order[:8].count("b") in (5, 6, 7)


def test_constructors_declare_shared_limits(store):
    made = [
        (RateLimiter(store, "rate", max_executions=5, window_size_in_seconds=60, shared=True), "5/1m shared"),
        (ConcurrencyLimiter(5, store=store, name="jobs", shared=True), "5 concurrent shared"),
    ]
    for limiter, policy in made:
        with limiter.acquire("a"):
            (seen,) = [limit for limit in store.snapshot().limits if limit.name == limiter.name]
            assert seen.policy == policy
            assert limiter.peek("b").remaining == 4
    with pytest.raises(InvalidArgument, match="^shared is True: expected False without a store$"):
        ConcurrencyLimiter(5, shared=True)
    with pytest.raises(TypeError, match="^shared is 1: expected a bool, not int"):
        ConcurrencyLimiter(5, store=store, name="jobs", shared=1)


def test_shares_out_of_range(store):
    limiter = store.limiter("jobs", "1 concurrent shared")
    calls = [
        lambda share: limiter.acquire("a", share=share),
        lambda share: limiter.acquire_async("a", share=share),
        lambda share: store.share("jobs", "a", share),
        lambda share: store.share_async("jobs", "a", share),
    ]
    for call in calls:
        for share in 0, -1, 1001, 10**30:
            with pytest.raises(InvalidArgument, match=f"^share is {share}: expected a whole number from 1 to 1000"):
                call(share)
        for share in 1.5, "3", True:
            with pytest.raises(TypeError, match="^share is .*: expected a whole number, not "):
                call(share)
    limiter.try_acquire("a").complete()


def test_shares_of_what_is_not_shared(store):
    with pytest.raises(UnknownLimit, match="nothing"):
        store.share("nothing", "a", 3)
    store.limiter("jobs", "1 concurrent").acquire().complete()
    with pytest.raises((Unsupported, InvalidArgument), match="shared"):
        store.share("jobs", "a", 3)
    with pytest.raises(TypeError, match="^key is None: expected a str, not NoneType$"):
        store.share("jobs", None, 3)
    with pytest.raises(InvalidArgument, match="^key is '': "):
        store.share("jobs", "", 3)
    # A call's share has no meaning there.
    store.limiter("jobs").acquire("a", share=3).complete()
