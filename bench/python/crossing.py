"""The most starts within any window: 100 per second, from all that may share the limit.

After one start it is left alone for most of a window, so that the next boundary comes soon, and then hammered for 2.5 windows.
That is what a program does that has been quiet. A start lies between the clock just before its call and the clock just after it;
those are counted that lie wholly within one window.
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
from evidence import most_in_any_window  # noqa: E402

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
    """A tenth after a full second of the wall clock: fixed windows may begin there, too."""
    now = time.time_ns()
    time.sleep((SECOND + SECOND // 10 - now % SECOND) / SECOND)
    return time.monotonic_ns()


def in_threads(decide, count: int) -> list[tuple[int, int]]:
    start = begin()
    decide()
    time.sleep(QUIET / SECOND)
    seen: list[tuple[int, int]] = []
    running = [threading.Thread(target=lambda: seen.extend(starts(decide, start + QUIET + HAMMERED))) for _ in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return seen


def serve(pipe) -> None:
    decide = None
    while (told := pipe.recv()) is not None:
        if decide is None:
            name, path = told
            decide = {name: make for name, _, make in peers.ON_DISK}[name](path, LIMIT, WINDOW / SECOND).decider()
            pipe.send("open")
        elif told == "first":
            pipe.send(decide())
        else:
            begins, until = told
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
    """It has no call that does not wait: it is asked whether there is room, and then for it. Nothing comes between the two."""
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
            tell(full, package, in_threads(decide, count), {"threads": count})
    for name, package, _ in peers.ON_DISK:
        if is_wanted(f"{name}: most"):
            tell(f"{name}: most", package, in_processes(where, name, 4), {"processes": 4})


def tell(full: str, package: str, seen: list[tuple[int, int]], told: dict[str, int]) -> None:
    show(full, package, {"limit": LIMIT, "most": most_in_any_window(seen, WINDOW), "starts": len(seen)} | told)
