"""Who has the units of a limit, who waits for them, and whose turn is next."""

import asyncio
import os
import subprocess
import sys

import pytest
from conftest import until
from workglow_limit import InvalidArgument, ManualClock, Store, UnknownLimit, Unsupported

#: Waits twice for one unit.
OTHER = """
import asyncio, sys
from workglow_limit import Store
limiter = Store(sys.argv[1]).limiter("api")

async def main():
    await asyncio.gather(*(limiter.acquire_async(priority=priority) for priority in (-4, 9)))

asyncio.run(main())
"""


async def hold(limiter, key, weight):
    async with limiter.acquire_async(key, weight):
        pass


def while_waiting(limiter, asks, look):
    """Returns what look() returns in a thread, while tasks of this loop wait for what they ask for: (key, weight)."""

    async def main():
        jobs = [asyncio.create_task(hold(limiter, *ask)) for ask in asks]
        try:
            return await asyncio.to_thread(look)
        finally:
            for job in jobs:
                job.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    return asyncio.run(main())


def counts(line):
    return len(line.holders), len(line.heads), sum(waiting.callers for waiting in line.waiting)


def test_of_two_processes(tmp_path):
    url = f"sqlite:{tmp_path}/limits.db"
    store = Store(url)
    limiter = store.limiter("api", "3 concurrent")

    def look():
        until(lambda: counts(store.line("api")) == (1, 1, 1))
        with subprocess.Popen([sys.executable, "-c", OTHER, url]) as other:
            try:
                until(lambda: counts(store.line("api")) == (1, 2, 3))
                seen, unused = store.line("api"), store.line("api", key="unused")
            finally:
                other.kill()
        return other.pid, seen, unused, store.line("api")

    with limiter.acquire(weight=3):
        other, seen, unused, after = while_waiting(limiter, [(None, 2)], look)
    own = os.getpid()
    (holder,) = seen.holders
    assert (holder.process.pid, holder.starts, holder.units, holder.cools_down) == (own, 1, 3, False)
    assert [(head.process.pid, head.units, head.priority) for head in seen.heads] == [(other, 1, -4), (own, 2, 0)]
    assert all(head.waits >= 0 and head.tenant is None and not head.passed for head in seen.heads)
    assert [(waiting.process.pid, waiting.callers) for waiting in seen.waiting] == [(other, 2), (own, 1)]
    # Callers are counted for all keys together.
    assert counts(unused) == (0, 0, 3)
    assert seen.heads[0] == seen.heads[0] != seen.heads[1]
    for one in holder, seen.heads[0], seen.waiting[0]:  # As all snapshots that can be compared.
        with pytest.raises(TypeError, match="unhashable"):
            hash(one)
    # Who is dead waits no more.
    assert counts(after) == (1, 1, 1)
    process = repr(holder.process)
    assert repr(holder) == f"HolderSnapshot(process={process}, starts=1, units=3, cools_down=False)"
    assert repr(seen.waiting[1]) == f"WaitingSnapshot(process={seen.waiting[1].process}, callers=1)"
    assert repr(seen).startswith(
        f"LineSnapshot(holders=({holder},), heads=(HeadSnapshot(process=ProcessSnapshot(pid={other},"
    )


def test_in_memory_no_process_waits_for_another():
    store = Store("memory:")
    limiter = store.limiter("api", "2 concurrent")

    def look():
        until(lambda: counts(store.line("api", "k"))[2] == 1)
        return store.line("api", "k"), store.line("api", "k")

    with limiter.acquire("k", 2):
        seen, again = while_waiting(limiter, [("k", 1)], look)
    assert (seen.holders, seen.waiting) == (again.holders, again.waiting)
    assert seen.holders != store.line("api", "k").holders
    assert [(holder.process, holder.units) for holder in seen.holders] == [(None, 2)]
    assert seen.heads == ()
    assert repr(seen.waiting) == "(WaitingSnapshot(process=None, callers=1),)"


def test_of_tenants(url):
    store = Store(url)
    limiter = store.limiter("api", "1 concurrent shared")

    def look():
        until(lambda: counts(store.line("api")) == (1, 2, 3))
        return store.line("api"), store.line("api", "b"), store.snapshot().limits[0]

    with limiter.acquire("holder"):
        seen, one, limit = while_waiting(limiter, [("a", 1), ("a", 1), ("b", 1)], look)
    tenants = [head.tenant for head in seen.heads]
    assert tenants == [tenant.key for tenant in limit.tenants]
    (head,) = one.heads
    assert head.tenant in tenants and head.tenant[0] == "#"
    assert f"tenant={head.tenant!r}, passed=False".replace("'", '"') in repr(head)


def test_who_cools_down(url):
    clock = ManualClock()
    store = Store(url, clock=clock)
    limiter = store.limiter("api", "2 concurrent cooldown 1m")
    limiter.acquire().complete()
    (holder,) = store.line("api").holders
    assert (holder.process, holder.starts, holder.units, holder.cools_down) == (None, 1, 1, True)
    assert limiter.forecast(1) == 0


def test_nobody_has_the_units_of_a_rate(url):
    store = Store(url)
    store.limiter("api", "5/1h").acquire()
    assert counts(store.line("api")) == (0, 0, 0)


def test_bad_input(url):
    store = Store(url)
    store.limiter("api", "5/1h")
    with pytest.raises(UnknownLimit, match="nothing"):
        store.line("nothing")
    with pytest.raises(TypeError, match="^name is 5: expected a str, not int"):
        store.line(5)
    with pytest.raises(TypeError, match="^key is 5: expected a str, not int"):
        store.line("api", 5)
    with pytest.raises(InvalidArgument, match="^name is ''"):
        store.line("")
    with pytest.raises(InvalidArgument, match="^key is "):
        store.line("api", "k" * 2000)


def test_lines_on_servers_are_not_known():
    for server in "redis://localhost:1", "postgres://user@localhost:1/limits":
        with pytest.raises(Unsupported, match="line is not supported by a limit on a server"):
            Store(server).line("api")
