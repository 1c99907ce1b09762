"""Store.close: what it refuses, which waits it ends, and what it leaves alone."""

import asyncio
import contextlib
import os
import pickle
import threading
from pathlib import Path

import pytest
from conftest import patiently, until
from workglow_limit import (
    CompositeLimiter,
    ConcurrencyLimiter,
    LimitError,
    RateLimiter,
    Store,
    StoreClosed,
    StoreError,
)


def names_of_threads():
    names = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may end after it was listed.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            names.append((task / "comm").read_text())
    return [name for name in names if name.startswith("workglow")]


@pytest.fixture
def start():
    """Starts, and completes all starts at the end: permits end after their store was closed."""
    permits = []

    def start(limiter):
        permits.append(patiently(limiter.try_acquire))
        assert permits[-1]

    yield start
    for permit in permits:
        permit.complete()


def limiters(store):
    rate = RateLimiter(store, "calls", max_executions=1, window_size_in_seconds=3600)
    return rate, ConcurrencyLimiter(1, store=store, name="jobs"), store.limiter("both", "1/1h + 1 concurrent")


def test_later_calls_raise_and_permits_still_end(url):
    with Store(url, on_error="admit") as store:
        rate, jobs, both = limiters(store)
        permits = [limiter.try_acquire() for limiter in (rate, jobs, both)]
        assert all(permits)
    for limiter in (rate, jobs, both, CompositeLimiter([jobs])):
        for call in (
            limiter.try_acquire,
            limiter.decide,
            limiter.peek,
            limiter.acquire,
            limiter.stats,
            limiter.clear,
            lambda limiter=limiter: limiter.pause(1),
        ):
            with pytest.raises(StoreClosed, match="make another store") as raised:
                call()
            assert (raised.value.code, raised.value.number) == ("store_closed", -21)
            assert isinstance(raised.value, LimitError)
            assert not isinstance(raised.value, StoreError)
    for call in (
        store.open,
        store.names,
        store.flush,
        store.snapshot,
        store.metrics,
        store.verify,
        lambda: store.line("jobs"),
    ):
        with pytest.raises(StoreClosed):
            call()
    with pytest.raises(StoreClosed):
        store.limiter("new", "1/1h")
    permits[0].settle(0)
    permits[1].complete()
    permits[2].cancel()
    assert store.failures == 0
    store.close()
    assert pickle.loads(pickle.dumps(raised.value)).code == "store_closed"


def test_with_closes_after_an_exception_too(url):
    store = Store(url)
    with pytest.raises(KeyError), store as entered:
        assert entered is store
        raise KeyError
    with pytest.raises(StoreClosed):
        store.names()


def test_waiting_threads_end(url, start):
    store = Store(url)
    for limiter in limiters(store):
        start(limiter)
    ended = []

    def wait(limiter):
        with pytest.raises(StoreClosed):
            limiter.acquire()
        ended.append(limiter)

    started = threading.Barrier(7)
    threads = [
        threading.Thread(target=lambda limiter=limiter: (started.wait(), wait(limiter)))
        for limiter in limiters(store) * 2
    ]
    for thread in threads:
        thread.start()
    started.wait()
    store.close()
    for thread in threads:
        thread.join()
    assert len(ended) == 6


def test_tasks_that_wait_end(url, start):
    async def main():
        store = Store(url)
        await store.open_async()
        all = limiters(store)
        for limiter in all:
            start(limiter)
        waits = [asyncio.ensure_future(limiter.acquire_async()) for limiter in all * 2]
        await asyncio.wait(waits, timeout=0.05)
        assert not any(wait.done() for wait in waits)
        await store.close_async()
        for answer in await asyncio.gather(*waits, return_exceptions=True):
            assert isinstance(answer, StoreClosed)
        with pytest.raises(StoreClosed):
            await all[0].acquire_async()
        with pytest.raises(StoreClosed):
            await all[0].try_acquire_async()
        await store.close_async()

    asyncio.run(main())


def test_a_store_that_another_thread_closes_ends_the_tasks_of_a_loop(url, start):
    async def main():
        store = Store(url)
        await store.open_async()
        _, jobs, _ = limiters(store)
        start(jobs)
        wait = asyncio.ensure_future(jobs.acquire_async())
        await asyncio.wait([wait], timeout=0.05)
        threading.Thread(target=store.close).start()
        with pytest.raises(StoreClosed):
            await wait

    asyncio.run(main())


def test_a_trio_task_ends(url, start):
    trio = pytest.importorskip("trio")

    async def wait(limiter, ended):
        with pytest.raises(StoreClosed):
            await limiter.acquire_async()
        ended.append(limiter)

    async def main():
        store, ended = Store(url), []
        await store.open_async()
        _, jobs, _ = limiters(store)
        start(jobs)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, jobs, ended)
            await trio.sleep(0.05)
            await store.close_async()
        assert ended == [jobs]

    trio.run(main)


def test_a_hook_may_close(url):
    store = Store(url)
    _, jobs, _ = limiters(store)
    permit = jobs.try_acquire()
    jobs.on("throttled", lambda _: store.close())
    with pytest.raises(StoreClosed):
        jobs.acquire()
    permit.complete()


def test_another_store_of_the_address_goes_on(tmp_path):
    one, two = (Store(f"sqlite:{tmp_path}/limits.db") for _ in range(2))
    permit = limiters(one)[1].try_acquire()
    jobs = limiters(two)[1]
    one.close()
    assert jobs.try_acquire() is None
    permit.complete()
    jobs.try_acquire().complete()


def test_a_child_closes_its_own_use_only(url, start):
    store = Store(url)
    rate, _, _ = limiters(store)
    start(rate)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            store.close()
            with pytest.raises(StoreClosed):
                rate.try_acquire()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert rate.try_acquire() is None
    store.close()


def test_threads_and_descriptors_go(tmp_path):
    before = os.listdir("/proc/self/fd")
    with Store(f"sqlite:{tmp_path}/limits.db") as store:

        async def main():
            await (await limiters(store)[0].try_acquire_async()).complete_async()

        asyncio.run(main())
    until(lambda: not names_of_threads())
    # (A thread of an earlier test's store may have a file open for a moment.)
    until(lambda: len(os.listdir("/proc/self/fd")) <= len(before))
