"""The records that members write about their starts, and the measurement of them.

A start lies somewhere in [a, b]: a is the clock just before the call that admitted it (for a call that had to wait, the
moment when its place was ready), b the clock just after that call returned. Both are nanoseconds on CLOCK_MONOTONIC, which
all processes of a machine share. Each start is one line, `a b`, in `<member>-<process id>.log`.
"""

import os
import time
from bisect import bisect_left, insort
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

SECOND = 1_000_000_000


class Start(NamedTuple):
    a: int
    b: int
    member: str


class Waited(Protocol):
    """A permit, or another object that knows when its place was ready."""

    @property
    def ready_at_monotonic(self) -> float | None: ...


class Recorder:
    """The log of one process. Each start is a single append: the file has all of it or nothing."""

    def __init__(self, folder: Path | str, member: str) -> None:
        path = Path(folder, f"{member}-{os.getpid()}.log")
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def start(self, asked: int, permit: Waited | None) -> None:
        """Records a start. Call it right after the call that admitted; `asked` is time.monotonic_ns() just before that call.
        Without a permit, `asked` is the earliest time of the start."""
        returned = time.monotonic_ns()
        waited_until = None if permit is None else permit.ready_at_monotonic
        a = asked if waited_until is None else int(waited_until * SECOND)
        os.write(self._file, b"%d %d\n" % (a, returned))


def read(folder: Path | str) -> list[Start]:
    """Returns all starts of all members, in the order in which their calls returned."""
    starts: list[Start] = []
    for path in Path(folder).glob("*.log"):
        member = path.name.rsplit("-", 1)[0]
        # The last line may be on its way.
        for line in path.read_text().splitlines(keepends=True):
            if not line.endswith("\n"):
                continue
            a, b = line.split()
            starts.append(Start(int(a), int(b), member))
    return sorted(starts, key=lambda start: start.b)


def most_in_any_window(starts: Iterable[Start], window: int) -> int:
    """Returns the most starts that surely lie in one window [s, s + window), for any s: their whole [a, b] is in it.

    A window that holds the most can be moved right until it begins at some a. So going through the starts from the
    latest a to the earliest, with the ends b of those already seen in order, the answer is the largest number of ends
    before a + window.
    """
    most = 0
    ends: list[int] = []
    for a, b, *_ in sorted(starts, reverse=True):
        insort(ends, b)
        most = max(most, bisect_left(ends, a + window))
    return most


def rolling_count(starts: Iterable[Start], window: int) -> list[tuple[int, int]]:
    """Returns how many starts surely lie in [t - window, t), as steps (t, count): the count is valid from just after t on."""
    steps: list[tuple[int, int]] = []
    for a, b, *_ in starts:
        if b < a + window:
            steps += [(b, 1), (a + window, -1)]
    count = 0
    counts: list[tuple[int, int]] = []
    for t, step in sorted(steps):
        count += step
        counts.append((t, count))
    return counts


def allowed(limit: int, window: int, length: int) -> int:
    """Returns the most starts that the limit allows in a half-open span: `limit` at its beginning and after every window."""
    return limit * -(-length // window)
