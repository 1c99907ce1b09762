"""Waiters in three languages on one limit are served in the order in which they ask, and a waiter that gives up loses no units."""

import time
from datetime import datetime, timedelta, timezone
from itertools import cycle, islice

import pytest
from conftest import LANGUAGES, most_in_any_window, ns, until
from evidence import Recorder, read
from workglow_limit import RateLimiter, Store

HOUR = 3600


class Line:
    """20 waiters on a limit that the conductor has used up start by start: each start's unit becomes a waiter's place."""

    WAITERS = 20
    # In seconds. The last waiter must ask before the first unit comes back: that takes a tenth of it, or more on a busy machine.
    WINDOW = 8
    APART = 0.02  # seconds between two that start or ask
    TICK = 1_000  # ns

    def __init__(self, gather, folder):
        store = Store(f"sqlite:{folder}/limits.db")
        self.limiter = RateLimiter(store, "queue", max_executions=self.WAITERS, window_size_in_seconds=self.WINDOW)
        self.limiter.peek()
        # Two in Python and in C for each in Node, which is the largest.
        languages = islice(cycle(("python", "c", "node", "c", "python")), self.WAITERS)
        self.members = gather(languages, store, "queue")
        recorder = Recorder(folder, "conductor")
        for _ in self.members:
            asked = time.monotonic_ns()
            recorder.start(asked, self.limiter.try_acquire())
            time.sleep(self.APART)
        self.before = read(folder)
        assert self.limiter.try_acquire() is None
        # Waiters that ask in turn get a place after one of these, and before the next.
        self.comes = [0, *(start.b + ns(self.WINDOW) + self.TICK for start in self.before)]

    def is_taken(self, place):
        """Returns whether no unit is free before the next place."""
        now = time.monotonic()
        return ns(now + self.limiter.peek().retry_after) > self.comes[place + 1]

    def served(self):
        """Returns when each waiter's place was ready. Checks that no waiter was early and that all kept the limit."""
        starts = [start for member in self.members for start in member.starts()]
        assert len(starts) == self.WAITERS
        assert all(start.b >= start.a for start in starts)
        assert most_in_any_window(self.before + starts, ns(self.WINDOW)) <= self.WAITERS
        return [start.a for start in starts]


def test_reserved_places_come_in_the_order_in_which_they_were_taken(gather, tmp_path):
    line = Line(gather, tmp_path)
    for place, member in enumerate(line.members):
        # It answers when its place is taken, and continues on its own. With a long grace, no waiter can be late.
        assert member.ask("queue", 60)[0] == "place"
        assert line.is_taken(place)
        time.sleep(line.APART)
    for member in line.members:
        # One decision that took the place, one sleep, and one decision that started.
        answer, _, decisions, sleeps = member.receive()
        assert (answer, decisions, sleeps) == ("started", "2", "1"), member.language
    for place, came in enumerate(line.served()):
        assert line.comes[place] < came <= line.comes[place + 1]


def test_waiters_are_served_in_the_order_in_which_they_asked(gather, tmp_path):
    line = Line(gather, tmp_path)
    for place, member in enumerate(line.members):
        assert not line.is_taken(place)
        member.send("acquire", "-")
        until("the place is taken", lambda: line.is_taken(place))
        time.sleep(line.APART)
    for member in line.members:
        assert member.receive()[0] == "started"
    for place, came in enumerate(line.served()):
        # Each in its turn, or after it: a waiter that missed its grace, 50 ms, has queued again.
        assert came > line.comes[place]


@pytest.mark.parametrize("language", ["python", "node"])
def test_an_interrupted_waiter_returns_its_place(language, gather, tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    limiter = RateLimiter(store, "hourly", max_executions=1, window_size_in_seconds=HOUR)
    holder = limiter.try_acquire()
    waiter, *others = gather([language, *LANGUAGES], store, "hourly")

    def next_wait():
        return limiter.peek().retry_after

    def wait_and_give_up():
        waiter.send("acquire", "-")
        until("the place is taken", lambda: next_wait() > HOUR)
        waiter.interrupt()
        assert waiter.receive() == ["interrupted"]
        assert next_wait() <= HOUR

    # The next caller has the place, in any language.
    for other in others:
        wait_and_give_up()
        answer, text, wait = other.ask("reserve", "-")
        assert answer == "place" and float(wait) <= HOUR
        assert other.ask("cancel", text) == ["done"]
    # And once no caller holds a unit, the limit is free.
    wait_and_give_up()
    holder.cancel()
    assert others[0].ask("try")[0] == "started"
    assert others[1].ask("try") == ["denied"]


def test_a_waiter_that_times_out_returns_its_place(gather, tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    limiter = RateLimiter(store, "gated", max_executions=1, window_size_in_seconds=1)
    limiter.try_acquire()
    waiters = gather(LANGUAGES, store, "gated")
    for waiter in waiters:
        # Its place is ready within seconds, but by then a gate has closed: it has to queue again, and has no time left.
        limiter.clear()
        limiter.try_acquire()
        waiter.send("acquire", 30)
        until("the place is taken", lambda: limiter.peek().retry_after > 1)
        gate = datetime.now(timezone.utc) + timedelta(seconds=HOUR)
        limiter.set_next_available_time(gate)
        assert waiter.receive() == ["denied"]
        # Nothing of it is left: the first caller starts when the gate opens, and not a window later.
        place = limiter.reserve()
        assert abs(place.ready_at - gate) < timedelta(seconds=0.5)
        # A waiter that knows at once that it will time out takes nothing either.
        assert waiter.ask("acquire", 1) == ["denied"]
        place.cancel()
        assert abs(limiter.get_next_available_time() - gate) < timedelta(seconds=0.5)
