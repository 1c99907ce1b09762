"""The waiting room of a worker: tasks that cannot start yet are held here, in the order in which they came, while
others pass them by.

All of it happens in one thread, the alarm's. Others only append to `_arrived`, `_ended` and `_changed`, and ring it.
"""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count, takewhile
from typing import Any

from .. import Limiter, Unsupported
from ._alarm import Alarm, LoopAlarm, ThreadAlarm
from ._celery import get_logger, state
from ._line import Held, Line, watch
from ._message import HEADER, Ticket, patience, send_back
from ._options import GRACE, SHORT, TaskLimit

logger: Any = get_logger(__name__)

#: A task goes to the pool so long before its place is ready, in seconds: it needs a few milliseconds to get there.
LEAD = 0.02

#: Where only a completion makes room, and another worker's is not heard of, this is how often to look, in seconds.
LOOK_AGAIN = 0.1

#: A task that was sent to the pool has been admitted or not after so long, in seconds: until then its units count as
#: taken, though the limit may not know.
IN_TRANSIT = 0.05

#: How often a line is looked through for tasks that were revoked or have expired, in seconds.
SWEEP = 1.0

#: So many leave a line in one go: each of them is a message.
AT_ONCE = 20

#: After a change of the policy all workers give their places back. So long they wait for the others to do it.
RENEWAL = 0.3

#: So long a worker sees to its lines at a time, in seconds: then others have their turn.
TURN = 0.02

#: Nobody has to be told about a task any more.
GONE = "gone"

#: A key that nobody uses: what it is asked to wait for is a gate that binds all keys.
NOBODY = "workglow-limit: nobody"


class Room:
    """The waiting room of one consumer."""

    def __init__(self, consumer: Any, slots: Callable[[Limiter], Limiter | None], most: int) -> None:
        self._consumer, self._slots, self._most = consumer, slots, most
        self._extra = 0
        self._patience = patience(consumer.app)
        self._arrived: deque[tuple[Any, TaskLimit, bool]] = deque()
        self._ended: deque[tuple[Line, Any]] = deque()
        self._changed: deque[str] = deque()
        self._lines: dict[tuple[Limiter, str | None], Line] = {}
        self._due: list[tuple[float, int, Line]] = []
        self._blocked: dict[Line, None] = {}  # Those with a task that is due, while the pool is full.
        self._number = count()
        self._running = 0
        self._late = 0.0  # How long tasks lately took from here to a child, in seconds.
        self._turn = 0.0  # Until when this turn lasts.
        self._lock = threading.Lock()
        self._alarm: Alarm | None = None

    # ---- what others call ----

    def start(self) -> None:
        hub = self._consumer.hub
        self._alarm = LoopAlarm(hub, self._tick) if hub else ThreadAlarm(self._tick)
        self._alarm.wake()

    def stop(self) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.close()
        self.clear()

    def clear(self) -> None:
        """Gives all places back and forgets all tasks: their messages were not acknowledged, so the broker has them."""
        with self._lock:
            self._arrived.clear()
            self._running = self._extra = 0
            for line in self._lines.values():
                # Of the others the pool may not hear any more.
                line.running.intersection_update(state.active_requests)
                self._running += len(line.running)
                for *_, held in line.placed:
                    held.give_back()
                line.placed.clear()
                line.waiting.clear()
            self._lines = {of: line for of, line in self._lines.items() if line.running}
            self._due.clear()
            self._blocked.clear()

    def add(self, request: Any, limit: TaskLimit) -> None:
        # A worker without an event loop that has fetched all that it may takes seconds to see that it may fetch more.
        extra = self._consumer.hub is None and self._extra + len(self._arrived) < self._most
        if extra:
            self._consumer.qos.increment_eventually()
        self._arrived.append((request, limit, extra))
        self._wake()

    def renew(self, name: str) -> None:
        """The limit of this name has another policy: places that were taken under the old one are taken anew."""
        self._changed.append(name)
        self._wake()

    def waiting(self) -> dict[str, dict[str, int]]:
        """How many tasks wait here, by limit and key."""
        counts: dict[str, dict[str, int]] = {}
        with self._lock:
            for line in self._lines.values():
                if waiting := len(line.waiting) + len(line.placed):
                    counts.setdefault(line.limiter.name, {})[line.key or ""] = waiting
        return counts

    def _wake(self) -> None:
        if self._alarm is not None:
            self._alarm.wake()

    # ---- what the alarm calls ----

    def _tick(self) -> float | None:
        with self._lock:
            if self._alarm is None:
                return None  # It rang before it was stopped.
            self._turn = time.monotonic() + TURN
            touched: dict[Line, None] = {}
            while self._ended:
                line, request = self._ended.popleft()
                if request in line.running:
                    line.running.discard(request)
                    self._running -= 1
                touched[line] = None
            for line in list(self._blocked)[: max(0, self._capacity - self._running)]:
                del self._blocked[line]
                touched[line] = None
            while self._changed:
                name = self._changed.popleft()
                for line in self._lines.values():
                    if f"{name}/".startswith(f"{line.limiter.name}/"):  # It, or a part of it.
                        self._renew(line)
                        touched[line] = None
            seated = []
            while self._arrived:
                held = self._seat(*self._arrived.popleft(), touched)
                if held is not None:
                    seated.append(held)
            while self._due and self._due[0][0] <= time.monotonic():
                due, _, line = heapq.heappop(self._due)
                if line.due == due:
                    touched[line] = None
            for line in touched:
                try:
                    self._serve(line)
                except Exception:  # A result backend that is gone, say: the other lines go on.
                    logger.exception("limit %s: looking again in a second", line.limiter.name)
                    self._see_again(line, 1.0)
            for held in seated:
                self._tell(held, None, "held")  # Those of them that are still here.
            return max(0.0, self._due[0][0] - time.monotonic()) if self._due else None

    @property
    def _capacity(self) -> int:
        return max(1, int(self._consumer.pool.num_processes or 1))

    def _seat(self, request: Any, limit: TaskLimit, extra: bool, touched: dict[Line, None]) -> Held | None:
        try:
            arguments = request.args, request.kwargs
            held = Held(request, limit, limit.key(arguments), limit.weight(arguments))
        except Exception:
            if extra:
                self._consumer.qos.decrement_eventually()
            self._consumer._limit_move_to_pool(request)  # The task says so itself when it runs.
            return None
        held.extra = extra
        self._extra += extra
        of = limit.limiter, held.key
        line = self._lines.get(of)
        if line is None:
            line = self._lines[of] = Line(limit.limiter, held.key)
        touched[line] = None
        ticket = Ticket.of(request.request_dict.get(HEADER))
        if ticket is None:
            line.waiting.append(held)
            return held
        if ticket.place is None:
            # Ahead of those that were never sent back, or it might be overtaken again and again.
            held.times = ticket.times
            line.waiting.insert(sum(1 for _ in takewhile(lambda other: other.times, line.waiting)), held)
            return held
        held.times, held.text = ticket.times, ticket.place
        # A message that comes a second time may have used its place the first time.
        if request.delivery_info.get("redelivered") or ticket.until < time.time():
            held.give_back()
            line.waiting.appendleft(held)
        else:
            held.told = "held"  # It said so when it was sent back.
            held.at(ticket.ready - time.time(), ticket.until - ticket.ready)
            self._place(line, held)
        return held

    def _renew(self, line: Line) -> None:
        line.closed = time.monotonic() + RENEWAL
        for *_, held in sorted(line.placed, reverse=True):
            held.give_back()
            line.waiting.appendleft(held)
        line.placed.clear()

    def _sweep(self, line: Line) -> bool:
        """Lets those leave who were revoked or have expired, and those whom the broker would soon take for lost.
        Returns whether that were all of them."""
        now = time.monotonic()
        if now - line.swept < SWEEP:
            return True
        line.swept = now
        oldest = now - self._patience
        leave = [held for held in line.waiting if held.is_gone or held.since < oldest]
        leave += [held for *_, held in line.placed if held.is_gone or held.since < oldest and held.ready > now + SWEEP]
        if not leave:
            return True
        leaving = set(leave[:AT_ONCE])
        line.placed = [entry for entry in line.placed if entry[2] not in leaving]
        heapq.heapify(line.placed)
        line.waiting = deque(held for held in line.waiting if held not in leaving)
        for held in leave[:AT_ONCE]:
            if held.is_gone:
                self._drop(held)
            else:
                self._send_back(line, held, None)
        if len(leave) > AT_ONCE:
            line.swept = 0.0
        return len(leave) <= AT_ONCE

    def _serve(self, line: Line) -> None:
        """Does for a line what can be done now, and notes when to look again."""
        swept = self._sweep(line)
        wait = self._advance(line)
        if not swept:
            wait = 0.0
        if line.waiting or line.placed:
            wait = SWEEP if wait is None else min(wait, SWEEP)
            self._fetch_past(line)
        if wait is None:
            line.due = None
            if not line.running:
                self._lines.pop((line.limiter, line.key), None)
        else:
            self._see_again(line, wait)

    def _see_again(self, line: Line, wait: float) -> None:
        line.due = time.monotonic() + wait
        heapq.heappush(self._due, (line.due, next(self._number), line))

    def _fetch_past(self, line: Line) -> None:
        """Those who wait for their limit do not keep the worker from fetching others, as far as its memory goes.
        Those who only wait for the pool do, as always in Celery: they are for other workers to fetch."""
        if line.placed:
            if line.placed[0][0] - LEAD <= time.monotonic():
                return
        elif line.limiter.peek(line.key).admitted:
            return
        for held in [*line.waiting, *(held for *_, held in line.placed)]:
            if not held.extra and self._extra < self._most:
                held.extra = True
                self._extra += 1
                self._consumer.qos.increment_eventually()

    def _advance(self, line: Line) -> float | None:
        """Returns in how many seconds there is more to do; None if something else has to happen first."""
        while True:
            if time.monotonic() > self._turn:
                return 0.0
            wait = None
            if line.placed:
                wait = line.placed[0][0] - LEAD - time.monotonic()
                if wait <= 0:
                    if self._running >= self._capacity:
                        self._blocked[line] = None
                        return None
                    self._send(line, heapq.heappop(line.placed)[2])
                    continue
            if not line.waiting:
                return wait
            held = line.waiting[0]
            if held.is_gone:
                line.waiting.popleft()
                self._drop(held)
                continue
            if (closed := line.closed - time.monotonic()) > 0:
                return closed
            if held.limit.on_limit == "hold" and len(line.placed) + len(line.running) >= self._capacity:
                return wait
            again = self._take(line, held)
            if again is not None:
                return again if wait is None else min(again, wait)

    def _send(self, line: Line, held: Held) -> None:
        """To the pool, if nothing has happened since the place was taken."""
        now = time.monotonic()
        if held.is_gone:
            self._drop(held)
        elif now > held.until or _is_paused(line.limiter):
            # Too late: the pool was busy. Or somebody paused the limit.
            held.give_back()
            line.waiting.appendleft(held)
        else:
            self._dispatch(line, held)

    def _take(self, line: Line, held: Held) -> float | None:
        """Takes a place for the head of a line. Returns None if that is dealt with, else when to look again."""
        try:
            if line.counted:
                return self._count(line, held)
            slots = self._slots(line.limiter)
            if slots is not None:
                free = slots.peek(line.key).remaining
                if free is not None and free - line.in_transit(time.monotonic()) < held.weight:
                    return _look_again()
            return self._reserve(line, held)
        except Unsupported:
            line.counted = True
            return None
        except Exception:
            # What is wrong is said by the task, when it runs into it.
            logger.debug("limit %s", line.limiter.name, exc_info=True)
            line.waiting.popleft()
            self._dispatch(line, held)
            return None

    def _reserve(self, line: Line, held: Held) -> float | None:
        limiter, limit = line.limiter, held.limit
        near, far = self._grace(line, held)
        place, grace = limiter.reserve(line.key, held.weight, limit.longest, near), near
        if place is None:
            place, grace = limiter.reserve(line.key, held.weight, grace=far), far
        if place is None:
            return _look_again()
        held.place = place
        try:
            held.text = place.to_text()
        except Unsupported:
            held.give_back()
            raise
        return self._hold(line, held, place.wait, grace)

    def _count(self, line: Line, held: Held) -> float | None:
        """For limits without places: look whether there is room, and let the child find out."""
        decision = line.limiter.peek(line.key, held.weight)
        now = time.monotonic()
        if decision.admitted:
            if decision.remaining is not None and decision.remaining - line.in_transit(now) < held.weight:
                return IN_TRANSIT
            return self._hold(line, held, 0.0, GRACE)
        if decision.retry_after > held.limit.longest:
            return self._hold(line, held, decision.retry_after, 0.0)
        return max(decision.retry_after, _look_again())

    def _hold(self, line: Line, held: Held, wait: float, grace: float) -> float | None:
        """The head of a line knows how long it has to wait: here, or in its queue."""
        line.waiting.popleft()
        held.at(wait, grace)
        if wait > held.limit.longest and "task" in held.request.message.headers:
            return self._send_back(line, held, wait)
        # The old protocol keeps what we would change in the body, so its messages stay.
        self._place(line, held)
        if wait > LEAD:
            self._tell(held, wait, "held")
        return None

    def _place(self, line: Line, held: Held) -> None:
        heapq.heappush(line.placed, (held.ready, next(self._number), held))

    def _grace(self, line: Line, held: Held) -> tuple[float, float]:
        """How long places of this limit stay good: those that are used from here, and those that travel."""
        if held.limit.grace is not None:
            return held.limit.grace, held.limit.grace
        window = line.limiter.window
        if window is None:
            near = far = GRACE
        else:
            near = min(max(window / 40, min(GRACE, window / 20)), 1.0)
            far = min(max(window / 20, 0.25), 10.0)
        # Where the pool is busy with others, a place has to wait for it.
        return max(near, min(2 * self._late, 10.0)), far

    # ---- ways to leave ----

    def _dispatch(self, line: Line, held: Held) -> None:
        request = held.request
        if request.revoked():
            held.give_back()
            self._left(held)
            return
        request.request_dict[HEADER] = held.ticket(held.times).header()
        held.place, held.told = None, GONE  # It is the child's now.
        line.transit.append((time.monotonic() + IN_TRANSIT, held.weight))
        line.running.add(request)
        self._running += 1
        watch(request, partial(self._accepted, time.monotonic()), partial(self._end, line, request))
        self._left(held)
        self._consumer._limit_move_to_pool(request)

    def _accepted(self, sent: float) -> None:
        self._late = max(time.monotonic() - sent, 0.5 * self._late)

    def _end(self, line: Line, request: Any) -> None:
        self._ended.append((line, request))
        self._wake()

    def _left(self, held: Held) -> None:
        if held.extra:
            held.extra = False
            self._extra -= 1
            self._consumer.qos.decrement_eventually()

    def _drop(self, held: Held) -> None:
        """It was revoked or has expired."""
        held.told = GONE
        held.give_back()
        held.request.revoked()  # Says so, and acknowledges.
        self._left(held)

    def _send_back(self, line: Line, held: Held, wait: float | None) -> float | None:
        """To its queue, with its place. First published, then acknowledged: dying in between makes one too many."""
        request = held.request
        try:
            send_back(self._consumer.app, request, held.ticket(held.times + 1))
        except Exception:
            logger.warning("%s could not be sent back, and stays", request, exc_info=True)
            held.give_back()
            line.waiting.appendleft(held)
            return 1.0
        self._tell(held, wait, "republished")
        held.told = GONE
        request.acknowledge()
        state.task_ready(request)
        self._left(held)
        return None

    def _tell(self, held: Held, wait: float | None, action: str) -> None:
        """The event for monitors, once for each thing that happens to it."""
        if held.told not in (action, GONE):
            held.told = action
            limit = held.limit.limiter.name
            held.request.send_event("task-limited", limit=limit, key=held.key, wait=wait, action=action)


def _is_paused(limiter: Limiter) -> bool:
    with suppress(Exception):  # What is wrong is said by the task.
        return limiter.peek(NOBODY).retry_after > SHORT
    return False


def _look_again() -> float:
    return LOOK_AGAIN * (0.5 + random.random())
