"""Runs tasks side by side: two at a time, and three while the processors are idle.

Most tests wait most of the time, for windows, servers and other processes. How much of a processor is left for another one depends on
the machine, so it is measured.
"""

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

LEAST, MOST = 2, 3
# The idle share of all processors for one more task, measured over this many seconds after the last one began.
IDLE, SECONDS = 0.25, 3.0


def ticks() -> tuple[int, int]:
    """The processors' ticks since boot, idle ones and all; zeros where the system does not say."""
    try:
        with open("/proc/stat") as file:
            counts = [int(count) for count in file.readline().split()[1:9]]
    except OSError:
        return 0, 0
    return counts[3] + counts[4], sum(counts)


class Idleness:
    """How idle the processors were, measured over at least `SECONDS`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.began, (self.idle, self.all) = time.monotonic(), ticks()

    def were_idle(self) -> bool:
        """Whether the processors were idle enough since the last answer. False until `SECONDS` have passed."""
        if time.monotonic() - self.began < SECONDS:
            return False
        idle, all = self.idle, self.all
        self.restart()
        return self.idle - idle > IDLE * (self.all - all)


def side_by_side(tasks: Iterable[Callable[[], Result]]) -> list[Result]:
    """Calls each task in a thread, in order. Returns their results, in the same order."""
    begun: list[Future[Result]] = []
    idleness = Idleness()
    with ThreadPoolExecutor(MOST) as pool:
        for task in tasks:
            while (running := sum(not one.done() for one in begun)) >= LEAST:
                if running < MOST and idleness.were_idle():
                    break
                time.sleep(0.1)
            begun.append(pool.submit(task))
            idleness.restart()
    return [one.result() for one in begun]
