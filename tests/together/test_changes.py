"""The limit changes while four processes in three languages use all of it."""

import time

import pytest
from conftest import LANGUAGES, most_since, ns, until
from evidence import Recorder, Start, read
from storm import Member
from workglow_limit import RateLimiter, Store

WINDOW = 0.5  # seconds


class Conductor:
    """Declares the limit of the storm's members, changes it, and starts like them."""

    def __init__(self, folder):
        self.store = Store(f"sqlite:{folder}/limits.db")
        self.folder = folder / "starts"
        self.folder.mkdir()
        self._recorder = Recorder(self.folder, "conductor")
        self.declare(100)

    def declare(self, limit):
        self.limiter = RateLimiter(self.store, "storm", max_executions=limit, window_size_in_seconds=WINDOW)
        assert self.limiter.peek().limit == limit

    def override(self, limit):
        self.store.override("storm", f"{limit}/{WINDOW * 1000:g}ms")

    def lift(self, _):
        self.store.lift("storm")

    def use_up(self):
        """Starts until the limit is full. Returns the two moments between which it was full."""
        while True:
            asked = time.monotonic_ns()
            permit = self.limiter.try_acquire()
            if permit is None:
                return asked, time.monotonic_ns()
            self._recorder.start(asked, permit)

    def starts(self):
        return read(self.folder)


# How the limit changes, and to what. Below an override the declared limit remains 100.
CHANGES = {
    "declared": [("declare", 50), ("declare", 200)],
    "overridden": [("override", 50), ("override", 200), ("lift", 100)],
}


def test_most_since_counts_starts_before_and_after_a_change():
    before, after = [(0, 1), (0, 1), (2, 3)], [(5, 6), (8, 8)]
    starts = [Start(a, b, "") for a, b in before + after]
    assert most_since(starts, 4, 10) == 5
    assert most_since(starts, 4, 7) == 4  # the first three and (5, 6), or (2, 3) and the last two
    assert most_since(starts, 4, 6) == 2  # (2, 3) and (5, 6), or the last two
    assert most_since(starts, 4, 2) == 1
    assert most_since(starts, 6, 7) == 3  # (5, 6) may have started before
    assert most_since([*starts, Start(4, 5, "")], 5, 9) == 6


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_change_applies_when_its_call_returns(changes, programs, tmp_path):
    conductor = Conductor(tmp_path)
    arguments = [conductor.store.url, "100", str(WINDOW), str(conductor.folder)]
    members = []

    def in_full_swing(since, limit):
        """Returns whether all members have started since then, and together more than one window allows."""
        for member in members:
            member.check()
        starts = [start for start in conductor.starts() if start.a >= since]
        return len(starts) > limit and {start.member for start in starts}.issuperset(LANGUAGES)

    phases = []  # for each change: the limit before it and after it, and the times around it
    fulls = []  # the times around the first denial after each
    limit, returned = 100, time.monotonic_ns()
    try:
        for command in programs["storm"]:
            members.append(Member([*map(str, command), *arguments], tmp_path / "members.err"))
        for how, new in changes:
            until("all start", lambda: in_full_swing(returned, limit))
            conductor.use_up()
            began = time.monotonic_ns()
            getattr(conductor, how)(new)
            returned = time.monotonic_ns()
            fulls.append(conductor.use_up())
            phases.append((limit, new, began, returned))
            limit = new
        until("all start", lambda: in_full_swing(returned, limit))
    finally:
        for member in members:
            member.kill()

    starts = conductor.starts()
    ends = [began for _, _, began, _ in phases[1:]] + [time.monotonic_ns()]
    for (old, new, began, returned), end, (asked, denied) in zip(phases, ends, fulls):
        # Nothing is admitted while the window holds the new limit.
        assert most_since([start for start in starts if start.b <= end], returned, ns(WINDOW)) <= new
        # And nothing is denied before that: the units that a raise adds are free at once.
        assert sum(asked - ns(WINDOW) <= start.b and start.a <= denied for start in starts) >= new
        assert sum(began <= start.b and start.a <= denied for start in starts) >= new - old
