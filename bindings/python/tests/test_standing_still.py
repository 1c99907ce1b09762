"""Other threads, the event loop and Ctrl-C continue to work, whatever another program does to the database."""

import asyncio
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from conftest import run, until
from workglow_limit import AcquireTimeout, InvalidArgument, RateLimiter, Store, UnknownLimit


@contextmanager
def locked(path, how):
    """The database while another program writes or reads it. It runs in its own process: the locks of SQLite in this process end
    as soon as any code here closes the file."""
    begin = "begin immediate" if how == "begin immediate" else "begin; select * from sqlite_master"
    stranger = subprocess.Popen(["sqlite3", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        stranger.stdin.write(f"{begin};\nselect 'ready';\n")
        stranger.stdin.flush()
        while stranger.stdout.readline().strip() != "ready":
            pass
        yield
    finally:
        stranger.kill()
        stranger.communicate()


@pytest.fixture
def store(tmp_path):
    # Every start waits for the database. A call that blocked the rest of the program would also block the end of the lock,
    # and raise after this timeout.
    store = Store(f"sqlite:{tmp_path}/limits.db", timeout=100, durability="commit")
    store.open()
    return store


@pytest.mark.parametrize("how", ["begin immediate", "select"])
def test_other_threads_continue(how, store, tmp_path):
    limiter = RateLimiter(store, "jobs", max_executions=1000, window_size_in_seconds=3600)
    limiter.peek()
    begins = threading.Event()

    def use():
        begins.set()
        return limiter.try_acquire()

    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path / "limits.db", how):
            started = pool.submit(use)
            begins.wait()
            for _ in range(50):
                time.sleep(0.001)
        assert started.result() is not None


@pytest.mark.parametrize("how", ["begin immediate", "select"])
@pytest.mark.parametrize("call", ["acquire_async", "try_acquire_async", "decide_async"])
def test_the_event_loop_is_not_blocked(how, call, store, tmp_path):
    limiter = RateLimiter(store, "jobs", max_executions=1000, window_size_in_seconds=3600)
    limiter.peek()

    async def main():
        with locked(tmp_path / "limits.db", how):
            tasks = [asyncio.create_task(getattr(limiter, call)()) for _ in range(5)]
            for _ in range(50):
                await asyncio.sleep(0.001)
        assert all(await asyncio.gather(*tasks))

    asyncio.run(main())


def commits(path):
    """The number of commits of a store, read by another process: see `locked`."""
    return int(subprocess.check_output(["sqlite3", path, "select sequence from store"]))


@pytest.mark.parametrize("policy", ["1000/1h", "1000/1h + 1000/2h"])
@pytest.mark.parametrize("call", ["acquire_async", "try_acquire_async", "decide_async"])
@pytest.mark.parametrize("keys", [1, 400])
def test_calls_that_wait_share_a_commit(call, policy, keys, store, tmp_path):
    """Each thread of the pool once had a commit for the call that it ran."""
    limiter = store.limiter("jobs", policy)
    limiter.peek()

    async def main():
        before = commits(tmp_path / "limits.db")
        with locked(tmp_path / "limits.db", "begin immediate"):
            tasks = [asyncio.create_task(getattr(limiter, call)(f"key {i % keys}")) for i in range(400)]
            await asyncio.sleep(0.05)
        assert all(await asyncio.gather(*tasks))
        # One that was on its way, one for the others, and one is due once a second.
        assert commits(tmp_path / "limits.db") - before < 15

    asyncio.run(main())


@pytest.mark.parametrize("policy", ["10/1h", "10/1h + 10/2h"])
@pytest.mark.parametrize("call", ["acquire_async", "try_acquire_async", "decide_async"])
def test_a_call_that_is_cancelled_during_its_commit_holds_nothing(call, policy, store, tmp_path):
    limiter = store.limiter("jobs", policy)
    limiter.peek()

    async def main():
        with locked(tmp_path / "limits.db", "begin immediate"):
            tasks = [asyncio.create_task(getattr(limiter, call)()) for _ in range(5)]
            await asyncio.sleep(0.05)
            for task in tasks[:4]:
                task.cancel()
            await asyncio.sleep(0)
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(answer, asyncio.CancelledError) for answer in answers[:4])
        assert answers[4]
        while limiter.peek().remaining != 9 or any(limit.waiting for limit in store.snapshot().limits):
            await asyncio.sleep(0.005)

    asyncio.run(main())


def test_a_stalled_store_does_not_use_up_other_stores_threads(store, tmp_path):
    stuck = Store(f"sqlite:{tmp_path}/stuck.db", timeout=100, durability="commit")
    full = RateLimiter(stuck, "jobs", max_executions=1000, window_size_in_seconds=3600)
    free = RateLimiter(store, "jobs", max_executions=1000, window_size_in_seconds=3600)
    full.peek(), free.peek()

    async def main():
        with locked(tmp_path / "stuck.db", "begin immediate"):
            # More calls than there are threads.
            waiting = [asyncio.create_task(full.try_acquire_async()) for _ in range(300)]
            await asyncio.sleep(0.05)
            assert all(await asyncio.wait_for(asyncio.gather(*(free.try_acquire_async() for _ in range(50))), 60))
            assert not any(task.done() for task in waiting)
        assert all(await asyncio.gather(*waiting))

    asyncio.run(main())


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "forgotten"])
@pytest.mark.parametrize("call", ["acquire_async", "try_acquire_async", "decide_async"])
def test_the_end_of_a_loop_leaves_nothing_behind(call, is_cancelled, store, tmp_path):
    limiter = RateLimiter(store, "jobs", max_executions=10, window_size_in_seconds=3600)
    limiter.peek()
    loop = asyncio.new_event_loop()
    with locked(tmp_path / "limits.db", "begin immediate"):
        tasks = [loop.create_task(getattr(limiter, call)()) for _ in range(3)]
        loop.run_until_complete(asyncio.sleep(0.05))
        if is_cancelled:
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        else:
            for task in tasks:
                task._log_destroy_pending = False
        loop.close()
    until(lambda: limiter.peek().remaining == 10)


@pytest.mark.parametrize("how", ["begin immediate", "select"])
@pytest.mark.parametrize("call", ["acquire", "acquire_async"])
def test_a_wait_for_the_database_ends_with_the_timeout_of_the_call(how, call, tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db", timeout=30.0, durability="commit")
    limiter = RateLimiter(store, "jobs", max_executions=1, window_size_in_seconds=0.01)
    limiter.peek()

    async def wait(key, timeout):
        if call == "acquire_async":
            return await limiter.acquire_async(key, timeout=timeout)
        return await asyncio.to_thread(limiter.acquire, key, timeout=timeout)

    async def main():
        with locked(tmp_path / "limits.db", how):
            patient = [asyncio.create_task(wait(key, None)) for key in ("a", "b")]
            await asyncio.sleep(0.01)
            hasty = [asyncio.create_task(wait(key, 0.1)) for key in ("a", "a", "b", "c")]
            for answer in await asyncio.gather(*hasty, return_exceptions=True):
                assert isinstance(answer, AcquireTimeout), repr(answer)
            assert not any(task.done() for task in patient)
        assert all(await asyncio.gather(*patient))

    asyncio.run(main())


def test_ctrl_c_ends_a_call_that_waits_for_the_database(tmp_path):
    said = run("""
import os, signal, sqlite3, sys, threading, time
from workglow_limit import AcquireTimeout, LimitError, RateLimiter, Store
signal.signal(signal.SIGINT, signal.default_int_handler)  # A background job inherits that it is ignored.
store = Store(f"sqlite:{sys.argv[1]}/limits.db", timeout=1.0, durability="commit")
limiter = RateLimiter(store, "jobs", max_executions=9, window_size_in_seconds=3600)
limiter.peek()
stranger = sqlite3.connect(f"{sys.argv[1]}/limits.db", isolation_level=None)
stranger.execute("begin immediate")
try:
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
    while True:
        try:
            limiter.try_acquire()
        except LimitError:
            pass
except KeyboardInterrupt:
    print("interrupted")
stranger.rollback()
""", tmp_path)  # fmt: skip
    assert said == "interrupted\n"


def test_rare_calls_leave_the_loop_running(store, tmp_path):
    limiter = RateLimiter(store, "api", max_executions=5, window_size_in_seconds=60)
    assert limiter.peek("k").limit == 5

    async def main():
        with locked(tmp_path / "limits.db", "begin immediate"):
            change = asyncio.create_task(store.override_async("api", "9/1m"))
            for _ in range(20):
                await asyncio.sleep(0.001)
            assert not change.done()
        await change
        assert limiter.peek("k").limit == 9
        await store.override_async("api", "3/1m", key="k")
        assert (limiter.peek("k").limit, limiter.peek().limit) == (3, 9)
        await store.lift_async("api", "k")
        await store.lift_async("api")
        assert limiter.peek("k").limit == 5
        await limiter.pause_async(3600, "k")
        assert not limiter.peek("k").admitted
        waiting = asyncio.create_task(limiter.acquire_async("k", timeout=7200))
        await asyncio.sleep(0)
        await limiter.clear_async("k")
        await (await waiting).cancel_async()
        with pytest.raises(InvalidArgument, match="policy"):
            await store.override_async("api", "nonsense")
        with pytest.raises(UnknownLimit, match="nobody"):
            await store.override_async("nobody", "1/1s")
        with pytest.raises(TypeError, match="duration"):
            limiter.pause_async("x")

    asyncio.run(main())
