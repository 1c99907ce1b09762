"""The most starts within any window: 100 per second, from all threads or processes that share the limit.

After one start the limiter is left alone for most of a window, so that the next boundary comes soon. Then it is called
in a loop for 2.5 windows, like a program after an idle time. A start lies between the clock just before its call and
the clock just after it. A start counts in a window if it lies wholly within it.
"""

import asyncio
import sys
import threading
import time
from pathlib import Path

import aiolimiter
import peers
from many import Processes, path_of
from timing import Peer, show

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/fleet"))
from evidence import most_in_any_window

SECOND = 1_000_000_000
LIMIT, WINDOW = 100, SECOND
QUIET, HAMMERED = int(0.8 * SECOND), int(2.5 * SECOND)


def starts(decide, until: int) -> list[tuple[int, int]]:
    seen, clock = [], time.monotonic_ns
    while (before := clock()) < until:
        if decide():
            seen.append((before, clock()))
    return seen


def begin() -> int:
    """Waits for a tenth of a second after a full second of the wall clock, where fixed windows may begin."""
    now = time.time_ns()
    time.sleep((SECOND + SECOND // 10 - now % SECOND) / SECOND)
    return time.monotonic_ns()


def in_threads(decide, count: int) -> list[tuple[int, int]]:
    start = begin()
    decide()
    time.sleep(QUIET / SECOND)
    seen: list[tuple[int, int]] = []
    running = [
        threading.Thread(target=lambda: seen.extend(starts(decide, start + QUIET + HAMMERED))) for _ in range(count)
    ]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return seen


def serve(pipe) -> None:
    decide = None
    while (order := pipe.recv()) is not None:
        if decide is None:
            name, path = order
            decide = {name: make for name, _, make in peers.ON_DISK}[name](path, LIMIT, WINDOW / SECOND).decider()
            pipe.send("open")
        elif order == "first":
            pipe.send(decide())
        else:
            begins, until = order
            time.sleep(max(0, begins - time.monotonic_ns()) / SECOND)
            pipe.send(starts(decide, until))


def in_processes(where: str, name: str, count: int) -> list[tuple[int, int]]:
    processes = Processes(count, serve)
    for pipe in processes.pipes:
        pipe.send((name, path_of(where, f"most-{name}")))
        pipe.recv()
    start = begin()
    processes.ask(1, "first")
    seen = processes.ask(count, (start + QUIET, start + QUIET + HAMMERED))
    processes.end()
    return [one for several in seen for one in several]


def of_aiolimiter(limit: int, window: float, key: bool) -> Peer:
    """aiolimiter has no call that does not wait. So check its capacity, then acquire; no other caller comes in between."""
    limiter = aiolimiter.AsyncLimiter(limit, window)

    async def f():
        if not limiter.has_capacity():
            return False
        await limiter.acquire()
        return True

    return Peer("run(f())", {"run": asyncio.new_event_loop().run_until_complete, "f": f})


def measure(where: str, is_wanted) -> None:
    for name, package, make in [*peers.IN_MEMORY, ("aiolimiter", "aiolimiter", of_aiolimiter)]:
        full, count = f"{name}: most", 1 if name == "aiolimiter" else 2
        if is_wanted(full):
            decide = make(LIMIT, WINDOW // SECOND, False).decider()
            report(full, package, in_threads(decide, count), {"threads": count})
    for name, package, _ in peers.ON_DISK:
        if is_wanted(f"{name}: most"):
            report(f"{name}: most", package, in_processes(where, name, 4), {"processes": 4})


def report(full: str, package: str, seen: list[tuple[int, int]], extra: dict[str, int]) -> None:
    show(full, package, {"limit": LIMIT, "most": most_in_any_window(seen, WINDOW), "starts": len(seen)} | extra)
