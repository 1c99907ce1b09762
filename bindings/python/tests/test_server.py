"""Limits on a server: a wait for it blocks no other thread or task, processes share them, and errors are raised."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from conftest import patiently, until
from workglow_limit import (
    AcquireTimeout,
    CompositeLimiter,
    ConcurrencyLimiter,
    Finding,
    InvalidUrl,
    RateLimiter,
    Store,
    StoreError,
    StoreTimeout,
    doctor,
    postgres_schema,
)

HOUR = 3600


@pytest.fixture
def store(server):
    # Each start is a request. The timeout is longer than any of these tests, so a deadlock fails.
    return Store(f"{server.url}&grants=never", timeout=20)


def rate(store, most=100, name="api"):
    return RateLimiter(store, name, max_executions=most, window_size_in_seconds=HOUR)


def jobs(store):
    return ConcurrencyLimiter(5, store=store, name="jobs")


def of_permit(end, limiter_of):

    def ready(store, _):
        permit = limiter_of(store).try_acquire()
        return lambda: getattr(permit, end)(*[2] * (end == "settle"))

    return ready


def of_limiter(name, *arguments):

    def ready(store, _):
        limiter = CompositeLimiter([rate(store), jobs(store)]) if name in ("decide", "peek") else rate(store)
        return lambda: getattr(limiter, name)(*arguments)

    return ready


def of_store(name, *arguments):

    def ready(store, _):
        rate(store).try_acquire()
        return lambda: getattr(store, name)(*arguments)

    return ready


def present(store, _):
    limiter = rate(store)
    place = limiter.reserve()
    return lambda: limiter.present(place)


def in_time(store, _):
    return lambda: rate(store).set_next_available_time(rate(store).get_next_available_time())


def load(store, folder):
    (folder / "limits.toml").write_text('mail = "5/1h"\n')
    return lambda: store.load(folder / "limits.toml")


def recorded(store, _):
    limiter = jobs(store)
    limiter.record_job_start()
    return limiter.record_job_completion


CALLS = {
    "try_acquire": of_limiter("try_acquire", "key"),
    "decide": of_limiter("decide"),
    "peek": of_limiter("peek"),
    "acquire": of_limiter("acquire"),
    "reserve": of_limiter("reserve"),
    "present": present,
    "complete": of_permit("complete", jobs),
    "complete of a composite": of_permit("complete", lambda store: CompositeLimiter([rate(store), jobs(store)])),
    "cancel": of_permit("cancel", rate),
    "settle": of_permit("settle", rate),
    "renew": of_permit("renew", jobs),
    "pause": of_limiter("pause", 0.001, "key"),
    "clear": of_limiter("clear"),
    "stats": of_limiter("stats"),
    "can_proceed": of_limiter("can_proceed"),
    "record_job_start": of_limiter("record_job_start"),
    "record_job_completion": recorded,
    "get and set_next_available_time": in_time,
    "override": of_store("override", "api", "3/1h"),
    "override of a key": of_store("override", "api", "3/1h", "key"),
    "lift": of_store("lift", "api"),
    "names": of_store("names"),
    "limiter": of_store("limiter", "api"),
    "load": load,
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("name", CALLS)
def test_other_threads_continue(name, store, server, tmp_path):
    call = CALLS[name](store, tmp_path)
    begins, answers = threading.Event(), []

    def wait():
        begins.set()
        try:
            answers.append(("answered", call()))
        except Exception as error:
            answers.append(("failed", error))

    thread = threading.Thread(target=wait)
    with server.stopped():
        thread.start()
        begins.wait()
        # If the call held the GIL, it would never get an answer.
        for _ in range(50):
            time.sleep(0.001)
        assert answers == []
    thread.join()
    assert answers[0][0] == "answered", answers


def test_the_event_loop_is_not_blocked(store, server):
    limiter, both = rate(store), CompositeLimiter([rate(store, name="both"), jobs(store)])

    async def held(entered, leave):
        async with jobs(store).acquire_async() as permit:
            entered.set()
            await leave.wait()
        return permit

    async def main():
        entered, leave = asyncio.Event(), asyncio.Event()
        holder = asyncio.create_task(held(entered, leave))
        await entered.wait()
        with server.stopped():
            leave.set()
            asked = (
                limiter.acquire_async(),
                limiter.acquire_async("key"),
                limiter.try_acquire_async(),
                both.acquire_async(),
            )
            tasks = [holder, *map(asyncio.ensure_future, asked)]
            # A call that blocked the loop would time out before the server continues.
            done, _ = await asyncio.wait(tasks, timeout=0.2)
            assert not done
        *_, last = await asyncio.gather(*tasks)
        # The holder's permit has ended.
        assert (await jobs(store).peek_async()).remaining == 4
        await last.complete_async()

    asyncio.run(main())


def test_the_event_loop_is_not_blocked_by_a_server(store, server):
    limiter = jobs(store)

    async def main():
        # A synchronous call in a loop gives a busy server 40 ms.
        completed, cancelled, entered = [await limiter.try_acquire_async("held") for _ in range(3)]
        leave = asyncio.Event()

        async def body():
            async with entered:
                await leave.wait()

        within = asyncio.ensure_future(body())
        await asyncio.sleep(0)
        with server.stopped():
            leave.set()
            asked = (
                limiter.decide_async("a"),
                limiter.peek_async("b"),
                completed.complete_async(),
                cancelled.cancel_async(),
            )
            tasks = [within, *map(asyncio.ensure_future, asked)]
            done, _ = await asyncio.wait(tasks, timeout=0.2)
            assert not done
            given_up = asyncio.ensure_future(limiter.decide_async("a"))
            await asyncio.wait([given_up], timeout=0.01)
            given_up.cancel()
        *_, decision, seen, _, _ = await asyncio.gather(*tasks)
        assert (decision.admitted, seen.admitted, seen.permit, seen.remaining) == (True, True, None, 5)
        assert (await limiter.peek_async("held")).remaining == 5
        while (await limiter.peek_async("a")).remaining != 4:  # The cancelled task returns its start.
            await asyncio.sleep(0.001)
        await decision.permit.complete_async()

    asyncio.run(main())


def test_a_cancelled_wait_in_an_event_loop_leaves_nothing_behind(store):
    limiter = RateLimiter(store, "api", max_executions=1, window_size_in_seconds=HOUR)

    async def main():
        (await limiter.acquire_async()).complete()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(limiter.acquire_async(), 0.1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(limiter.acquire_async(), 0.1)

    asyncio.run(main())
    until(lambda: limiter.peek().retry_after <= HOUR)


def test_a_silent_server_delays_no_waiter_beyond_its_own_timeout(store, server):
    limiter = rate(store)

    async def main():
        await limiter.acquire_async("known")
        with server.stopped():
            patient = [asyncio.ensure_future(limiter.acquire_async(f"patient {i}")) for i in range(100)]
            # On keys of their own, and on one that the server has been asked for. If they waited for the others, the patient ones would
            # meet the store's timeout first.
            short = [limiter.acquire_async(key, timeout=0.001) for key in ("patient 0", *map(str, range(20)))]
            outcomes = await asyncio.gather(*short, return_exceptions=True)
            assert {type(outcome) for outcome in outcomes} == {AcquireTimeout}, outcomes
        assert all(await asyncio.gather(*patient))

    asyncio.run(main())


def test_a_loop_that_ends_while_a_server_is_asked_leaves_nothing_behind(store, server):
    limiter = rate(store, most=1)

    async def gives_up(key):
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(limiter.acquire_async(key), 0.01)

    async def leaves(key):
        waits = asyncio.ensure_future(limiter.acquire_async(key))
        await asyncio.sleep(0)
        assert not waits.done()

    assert limiter.try_acquire("known")
    with server.stopped():
        asyncio.run(gives_up("given up"))
        asyncio.run(leaves("left"))
    for key in "given up", "left":
        until(lambda key=key: limiter.try_acquire(key))


GIVES_UP = """
import asyncio, sys
from workglow_limit import RateLimiter, Store

limiter = RateLimiter(Store(sys.argv[1], timeout=20), "api", max_executions=1, window_size_in_seconds=3600)

async def main():
    await limiter.acquire_async("known " + sys.argv[2])
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        await asyncio.wait_for(limiter.acquire_async(sys.argv[2]), 0.01)
    except asyncio.TimeoutError:
        print("gives up", flush=True)

asyncio.run(main())
print("ends", flush=True)
"""


def test_a_process_that_ends_while_a_server_is_asked_leaves_nothing_behind(store, server):
    def ends(key):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen([sys.executable, "-c", GIVES_UP, store.url, key], **pipes) as process:
            assert process.stdout.readline() == "ready\n"
            with server.stopped():
                process.stdin.write("\n")
                process.stdin.flush()
                assert process.stdout.readline() == "gives up\n"
                assert process.stdout.readline() == "ends\n"
                # If it does not wait for the answer, it is gone by then, and nobody returns what it gets.
                time.sleep(0.3)
        return rate(store, most=1).try_acquire(key)

    # It waits five seconds at most, which a busy machine may exceed.
    assert any(ends(f"left {i}") for i in range(4))


def test_errors_of_a_server(server):
    for bad in "redis://", "redis://host:port":
        with pytest.raises(InvalidUrl):
            Store(bad)
    for bad in "redis://host/0?loses=soon", "postgres://me@host/?loses=2s":
        with pytest.raises(InvalidUrl, match="loses is "):
            Store(bad)
    assert rate(Store(f"{server.url}&loses=2s")).try_acquire()
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:1") as caught:
        rate(Store("redis://user:secret@127.0.0.1:1/0")).try_acquire()
    assert "secret" not in str(caught.value)
    server.command("CONFIG SET requirepass right")
    try:
        with pytest.raises(StoreError, match=re.escape(server.url)) as caught:
            rate(Store(f"{server.url}&pass=secret")).try_acquire()
        assert "secret" not in str(caught.value)
        assert rate(Store(f"{server.url}&pass=right")).try_acquire()
    finally:
        server.command('AUTH right\r\nCONFIG SET requirepass ""')


def test_on_error_answers_without_a_server(server_of_its_own):
    server = server_of_its_own
    limiters = {how: rate(Store(server.url, timeout=0.2, on_error=how)) for how in ("raise", "deny", "admit")}
    for how, limiter in limiters.items():
        if how == "deny":
            until(limiter.try_acquire)
        else:
            assert patiently(limiter.try_acquire)
    with server.stopped():
        with pytest.raises(StoreTimeout, match=re.escape(server.url)):
            limiters["raise"].try_acquire()
        assert limiters["deny"].try_acquire() is None
        assert limiters["admit"].try_acquire()
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(StoreError, match=re.escape(server.url)):
        limiters["raise"].try_acquire()
    assert limiters["deny"].try_acquire() is None
    assert limiters["admit"].try_acquire()


def test_the_doctor_finds_bad_settings_of_a_server(server):
    assert doctor("memory:") == []
    finding, *others = doctor(server.url)
    assert isinstance(finding, Finding)
    assert (finding.severity, finding.setting, finding.value, finding.instead) == ("danger", "appendonly", "no", "yes")
    assert "forgotten" in finding.what
    assert repr(finding).startswith("<Finding: danger: appendonly = no: ")
    assert all(other.severity in ("danger", "warning", "note") for other in others)
    with pytest.raises(InvalidUrl):
        doctor("nonsense:")
    with pytest.raises(StoreError):
        doctor("redis://127.0.0.1:1")
    with pytest.raises(TypeError):
        doctor(5)


def test_the_schema_and_the_doctor_of_postgres(postgres):
    finding, *_ = doctor(postgres)
    assert (finding.severity, finding.setting, finding.value, finding.instead) == ("danger", "fsync", "off", "on")
    assert "CREATE SCHEMA workglow_limit;" in postgres_schema()
    limiter = RateLimiter(Store(postgres), "api", max_executions=2, window_size_in_seconds=3600)
    assert [bool(limiter.try_acquire()) for _ in range(3)] == [True, True, False]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@127.0.0.1:1/2", "redis://…@127.0.0.1:1/2"),
        ("redis+unix:///none?db=1&pass=secret", "redis+unix:///none?db=1"),
        (
            "redis+sentinel://:secret@127.0.0.1:1,127.0.0.1:2/main/0",
            "redis+sentinel://…@127.0.0.1:1,127.0.0.1:2/main/0",
        ),
        ("redis://127.0.0.1:1", "redis://127.0.0.1:1"),
        ("postgres://user:secret@127.0.0.1:1/limits", "postgres://…@127.0.0.1:1/limits"),
    ],
)
def test_a_password_is_not_shown(url, shown):
    store = Store(url)
    assert store.url == shown
    assert repr(store) == f'Store("{shown}")'
    with pytest.raises(InvalidUrl) as error:
        Store("mysql://user:secret@host/db")
    assert "secret" not in str(error.value)
