"""Waiters in three languages on one limit are served in the order in which they ask, and a waiter that gives up loses no units."""

import time
from datetime import datetime, timedelta, timezone
from itertools import cycle, islice

import pytest
from conftest import LANGUAGES, most_in_any_window, ns, until
from evidence import Recorder, read
from workglow_limit import RateLimiter, Store

HOUR = 3600


# With a grace this long, in seconds, no waiter can be late: it starts with the place that it took, even on a machine that
# stands still. With the default grace a waiter that wakes up late queues again, so no order is promised.
GRACE = 60


class Line:
    """20 waiters on a limit that the conductor has used up start by start: each start's unit becomes a waiter's place."""

    WAITERS = 20
    APART = 0.02  # seconds between two that start or ask
    TICK = 1_000  # ns

    def __init__(self, gather, folder, window):
        folder.mkdir()
        store = Store(f"sqlite:{folder}/limits.db")
        self.limiter = RateLimiter(store, "queue", max_executions=self.WAITERS, window_size_in_seconds=window)
        self.limiter.peek()
        self.window = ns(window)
        # Two in Python and in C for each in Node, which is the largest.
        languages = islice(cycle(("python", "c", "node", "c", "python")), self.WAITERS)
        self.members = gather(languages, store, "queue")
        recorder = Recorder(folder, "conductor")
        for _ in self.members:
            asked = time.monotonic_ns()
            recorder.start(asked, self.limiter.try_acquire())
            time.sleep(self.APART)
        self.before = read(folder)
        is_full = self.limiter.try_acquire() is None
        assert is_full or self.is_over()
        # Waiters that ask in turn get a place after one of these, and before the next.
        self.comes = [0, *(start.b + self.window + self.TICK for start in self.before)]

    def is_over(self):
        """Returns whether a unit may have come back by now."""
        return time.monotonic_ns() >= self.before[0].a + self.window

    def is_taken(self, place):
        """Returns whether no unit is free before the next place. Too late, if this process is stopped in between."""
        now = time.monotonic()
        return ns(now + self.limiter.peek().retry_after) > self.comes[place + 1]

    def queue(self, ask):
        """Lets the members ask in turn. Returns whether all of them have asked before a unit came back."""
        for place, member in enumerate(self.members):
            was_taken = self.is_taken(place)
            assert not was_taken or self.is_over()
            ask(member)
            until("the place is taken", lambda: self.is_taken(place) or self.is_over())
            time.sleep(self.APART)
        return not self.is_over()

    def check(self):
        """Checks that each waiter had its place, that none was early, and that all kept the limit, whenever they woke up."""
        starts = [start for member in self.members for start in member.starts()]
        assert len(starts) == self.WAITERS
        assert all(start.b >= start.a for start in starts)
        for place, start in enumerate(starts):
            assert self.comes[place] < start.a <= self.comes[place + 1], place
        assert most_in_any_window(self.before + starts, self.window) <= self.WAITERS


def line_up(gather, folder, ask):
    """Returns a line whose members have asked in turn. That takes a tenth of the first window. On a machine that stood still
    for so long that a unit came back, others try with longer ones."""
    for window in 8, 20, 50:
        line = Line(gather, folder / f"{window}", window)
        if line.queue(ask):
            return line
    pytest.fail("this machine stands still")


def test_reserved_places_come_in_the_order_in_which_they_were_taken(gather, tmp_path):
    def ask(member):
        # It answers when its place is taken, and continues on its own.
        assert member.ask("queue", GRACE)[0] == "place"

    line = line_up(gather, tmp_path, ask)
    for member in line.members:
        # One decision that took the place, one sleep (none if it was stopped until then), and one decision that started.
        answer, _, decisions, sleeps = member.receive()
        assert (answer, decisions) == ("started", "2") and int(sleeps) <= 1, member.language
    line.check()


def test_waiters_are_served_in_the_order_in_which_they_asked(gather, tmp_path):
    # Once, waiters with the default grace woke up too late for their places, which looked like another order.
    line = line_up(gather, tmp_path, lambda member: member.send("acquire", "-", GRACE))
    for member in line.members:
        assert member.receive()[0] == "started"
    line.check()


@pytest.mark.parametrize("language", ["python", "node"])
def test_an_interrupted_waiter_returns_its_place(language, gather, tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    limiter = RateLimiter(store, "hourly", max_executions=1, window_size_in_seconds=HOUR)
    holder = limiter.try_acquire()
    waiter, *others = gather([language, *LANGUAGES], store, "hourly")

    def next_wait():
        return limiter.peek().retry_after

    def wait_and_give_up():
        waiter.send("acquire", "-", "-")
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

    def wait_until_a_gate_closes(waiter):
        limiter.clear()
        limiter.try_acquire()
        waiter.send("acquire", 30, "-")
        until("the place is taken, or it has started", lambda: limiter.peek().retry_after > 1 or waiter.has_answered())
        gate = datetime.now(timezone.utc) + timedelta(seconds=HOUR)
        limiter.set_next_available_time(gate)
        return gate, waiter.receive()

    for waiter in waiters:
        # Its place is ready within a second, but by then a gate has closed: it has to queue again, and has no time left.
        for _ in range(20):
            gate, answer = wait_until_a_gate_closes(waiter)
            # On a machine that stands still it may start before.
            if answer[0] != "started":
                break
        assert answer == ["denied"]
        # Nothing of it is left: the first caller starts when the gate opens, and not a window later.
        place = limiter.reserve()
        assert abs(place.ready_at - gate) < timedelta(seconds=0.5)
        # A waiter that knows at once that it will time out takes nothing either.
        assert waiter.ask("acquire", 1, "-") == ["denied"]
        place.cancel()
        assert abs(limiter.get_next_available_time() - gate) < timedelta(seconds=0.5)
