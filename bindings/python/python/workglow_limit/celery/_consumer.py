"""The waiting room of a worker: tasks that cannot start yet are held here while others pass them by. Who is next, and when,
is for the core's lines to say.

All of it happens in one thread, the alarm's. Others only append to `_arrived` and `_news`, and ring it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from .. import Limiter, LimitError
from .._native import Pool
from ._alarm import Alarm, LoopAlarm, ThreadAlarm
from ._celery import get_logger, state
from ._errors import SentBack
from ._message import HEADER, Ticket, formats, patience, send_back
from ._options import TaskLimit
from ._window import Window

logger: Any = get_logger(__name__)

#: How often to look for tasks that were revoked or have expired, in seconds.
SWEEP = 1.0

#: So many leave in one go: each of them is a message.
AT_ONCE = 20

#: So long a worker sees to its tasks at a time, in seconds: then others have their turn.
TURN = 0.02

#: Brokers to which the smallest priority is the first; to all others it is the largest.
SMALLEST_FIRST = ("redis",)

#: No timer rings sooner than this, in seconds: what is due meanwhile is done in one go.
SOON = 0.001


class Held:
    """A task in the waiting room."""

    __slots__ = "extra", "key", "limit", "request", "since", "times", "told", "weight"

    def __init__(self, request: Any, limit: TaskLimit, key: str | None, weight: int, extra: bool) -> None:
        self.request, self.limit, self.key, self.weight = request, limit, key, weight
        self.since = time.monotonic()
        self.extra = extra  # Whether the worker fetches one more because this one is here.
        self.times = 0  # So often its message was sent back.
        self.told = False  # Monitors know that it is held.

    def __str__(self) -> str:
        key = "" if self.key is None else f" (key {self.key!r})"
        return f"Task {self.request.name}[{self.request.id}], limited by {self.limit.limiter.name!r}{key},"

    @property
    def is_gone(self) -> bool:
        """Whether it was revoked or has expired. What is only known by a stamp is found when it goes to the pool."""
        request = self.request
        return request.id in state.revoked or bool(request.expires) and request.expires.timestamp() < time.time()

    def tell(self, action: str, wait: float) -> None:
        """The event for monitors."""
        limit = self.limit.limiter.name
        self.request.send_event("task-limited", limit=limit, key=self.key, wait=wait or None, action=action)


#: Who is told what: see `Pool.advance`.
Told = tuple[Pool, int, str, str | None, float]


class Room:
    """The waiting room of one consumer."""

    def __init__(self, consumer: Any, most: int) -> None:
        self._consumer, self._most = consumer, most
        self._patience = patience(consumer.app)
        self._is_smallest_first = False
        self._arrived: deque[tuple[Any, TaskLimit, bool]] = deque()
        self._news: deque[Callable[[], None]] = deque()
        self._pools: dict[tuple[Limiter, float | None], Pool] = {}
        self._held: dict[tuple[Pool, int], Held] = {}
        self._running: dict[tuple[Pool, int], Any] = {}  # Requests that went to the pool and have not ended.
        self._told: deque[Told] = deque()
        self._stuck: list[Held] = []  # They could not be sent back.
        self._extra = 0
        self._waits: deque[Held] = deque()  # For them the worker would fetch one more each, if it held less.
        self._swept = 0.0
        self._lock = threading.Lock()
        self._alarm: Alarm | None = None

    # ---- what others call ----

    def start(self) -> None:
        hub = self._consumer.hub
        self._is_smallest_first = self._consumer.connection.transport.driver_type in SMALLEST_FIRST
        if Window.is_needed(self._consumer):
            Window(self._consumer)
        self._alarm = LoopAlarm(hub, self._tick_in_loop) if hub else ThreadAlarm(self._tick)
        self._alarm.wake()

    def stop(self) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.close()
        self.clear()

    def clear(self) -> None:
        """Gives all places back and forgets all tasks: their messages were not acknowledged, so the broker has them."""
        with self._lock:
            for pool in self._pools.values():
                pool.clear()
            for pool, number, _, place, _ in self._told:
                self._give_back(self._held[pool, number], place)
            for pool, number in [of for of, request in self._running.items() if request not in state.active_requests]:
                self._end(pool, number)  # Of these the pool may not hear any more.
            self._arrived.clear()
            self._held.clear()
            self._told.clear()
            self._stuck.clear()
            self._waits.clear()
            self._extra = 0

    def add(self, request: Any, limit: TaskLimit) -> None:
        # A worker without an event loop that has fetched all that it may takes seconds to see that it may fetch more.
        extra = self._consumer.hub is None and self._extra + len(self._arrived) < self._most
        if extra:
            self._consumer.qos.increment_eventually()
        self._arrived.append((request, limit, extra))
        self._wake()

    def renew(self, name: str) -> None:
        """The limit of this name has another policy: places that were taken under the old one are taken anew."""
        self._tell_us(partial(self._renew, name))

    def waiting(self) -> dict[str, dict[str, int]]:
        """How many tasks wait here, by limit and key."""
        counts: dict[str, Counter[str]] = {}
        with self._lock:
            for (limiter, _), pool in self._pools.items():
                counts.setdefault(limiter.name, Counter()).update(pool.waiting())
        return {name: dict(of) for name, of in counts.items() if of}

    def _tell_us(self, news: Callable[[], None]) -> None:
        self._news.append(news)
        self._wake()

    def _wake(self) -> None:
        if self._alarm is not None:
            self._alarm.wake()

    # ---- what the alarm calls ----

    def _tick_in_loop(self) -> float | None:
        wait = self._tick()
        qos = self._consumer.qos
        if self._alarm is not None and qos.prev != qos.value:
            qos.update()  # The loop itself does it only after its next event.
        return SOON if self._arrived else wait  # What came while the broker was asked.

    def _tick(self) -> float | None:
        with self._lock:
            if self._alarm is None:
                return None  # It rang before it was stopped.
            end = time.monotonic() + TURN
            while self._news:
                self._news.popleft()()
            while self._arrived:
                self._seat(*self._arrived.popleft())
            wait = self._sweep()
            for of, pool in list(self._pools.items()):
                workers = max(1, int(self._consumer.pool.num_processes or 1))
                told, again = pool.advance(workers, max(0, workers - len(self._running)))
                for number, turn, place, after in told:
                    if turn == "go":
                        self._running[pool, number] = self._held[pool, number].request
                    self._told.append((pool, number, turn, place, after))
                if again is not None:
                    wait = min(again, wait)
                if told:
                    self._pools[of] = self._pools.pop(of)  # The others come first next time.
            while self._told:
                if time.monotonic() > end:
                    return 0.0
                self._do(*self._told.popleft())
            return max(wait, SOON) if self._held or self._stuck else None

    def _seat(self, request: Any, limit: TaskLimit, extra: bool) -> None:
        try:
            arguments = request.args, request.kwargs
            held = Held(request, limit, limit.key(arguments), limit.weight(arguments), extra)
            ticket = Ticket.of(request.request_dict.get(HEADER))
            place = None
            if ticket is not None:
                # One with a place said that it waits when it was sent back.
                held.times, held.told, place = ticket.times, ticket.place is not None, ticket.place
                # A message that comes a second time may have used its place the first time.
                if request.delivery_info.get("redelivered"):
                    self._give_back(held, place)
                    place = None
            self._join(held, place)
            self._extra += extra
        except Exception:
            # What is wrong is said by the task, when it runs into it.
            logger.debug("limit of %s", request, exc_info=True)
            if extra:
                self._consumer.qos.decrement_eventually()
            self._consumer._limit_move_to_pool(request)

    def _join(self, held: Held, place: str | None) -> None:
        limit = held.limit
        pool = self._pools.get((limit.limiter, limit.grace))
        if pool is None:
            pool = self._pools[limit.limiter, limit.grace] = Pool(limit.limiter, limit.grace)
        # Ahead of its equals that were never sent back, or it might be overtaken again and again.
        priority = 2 * self._rank(held.request) - bool(held.times)
        # The old protocol keeps what we would change in the body, so its messages stay.
        hold = limit.longest if "task" in held.request.message.headers else None
        self._held[pool, pool.join(held.key, held.weight, priority, hold, place)] = held

    def _rank(self, request: Any) -> int:
        """The priority of a message as lines have it: the smallest is first."""
        priority = (request.delivery_info or {}).get("priority") or 0
        return int(priority) if self._is_smallest_first else -int(priority)

    def _renew(self, name: str) -> None:
        for (limiter, _), pool in self._pools.items():
            if f"{name}/".startswith(f"{limiter.name}/"):  # It, or a part of it.
                pool.renew()

    def _sweep(self) -> float:
        """Lets those leave who were revoked or have expired, and those whom the broker would soon take for lost. Returns
        when to do it again."""
        now = time.monotonic()
        if now - self._swept < SWEEP:
            return self._swept + SWEEP - now
        stuck, self._stuck = self._stuck, []
        for held in stuck:
            self._join(held, None)
        oldest = now - self._patience
        told = {(pool, number) for pool, number, *_ in self._told}
        due = (of for of, held in self._held.items() if (held.is_gone or held.since < oldest) and of not in told)
        leaving = list(islice(due, AT_ONCE))
        for pool, number in leaving:
            held = self._held.pop((pool, number))
            if held.is_gone:
                pool.leave(number)
                held.request.revoked()  # Says so, and acknowledges.
                self._left(held)
            else:
                self._send_back(held, *pool.take_along(number))
        if len(leaving) == AT_ONCE:
            return 0.0
        self._swept = now
        return SWEEP

    def _do(self, pool: Pool, number: int, turn: str, place: str | None, wait: float) -> None:
        try:
            if turn == "held":
                self._wait(self._held[pool, number], wait)
            elif turn == "away":
                self._send_back(self._held.pop((pool, number)), place, wait)
            else:
                self._go(pool, number, place)
        except Exception:  # A result backend that is gone, say: the others go on.
            logger.exception("limits: a task could not leave")
            self._end(pool, number)

    def _wait(self, held: Held, wait: float) -> None:
        """It waits for its limit, and does not keep the worker from fetching others, as far as its memory goes. Those who
        only wait for the pool do, as always in Celery: they are for other workers to fetch."""
        if not held.extra:
            self._waits.append(held)
            self._fetch_past()
        if not held.told:
            held.told = True
            held.tell("held", wait)
            logger.info("%s waits%s", held, f" for {wait:.3g} s" if wait else "")

    def _fetch_past(self) -> None:
        while self._waits and self._extra < self._most:
            held = self._waits.popleft()
            held.extra = True
            self._extra += 1
            self._consumer.qos.increment_eventually()

    def _left(self, held: Held) -> None:
        if held.extra:
            held.extra = False
            self._extra -= 1
            self._consumer.qos.decrement_eventually()
            self._fetch_past()
        elif held in self._waits:
            self._waits.remove(held)

    def _go(self, pool: Pool, number: int, place: str | None) -> None:
        """To the pool of processes: the place is the child's now."""
        held = self._held.pop((pool, number))
        request = held.request
        self._left(held)
        if request.revoked():
            self._give_back(held, place)
            self._end(pool, number)
            return
        request.request_dict[HEADER] = Ticket(place, time.time(), held.times, formats(request.message)).header()
        arrived, ended = partial(pool.arrive, number), partial(self._end, pool, number)
        watch(request, partial(self._news.append, arrived), partial(self._tell_us, ended), held.tell)
        self._consumer._limit_move_to_pool(request)

    def _end(self, pool: Pool, number: int) -> None:
        if self._running.pop((pool, number), None) is not None:
            pool.end(number)

    def _send_back(self, held: Held, place: str | None, wait: float) -> None:
        """To its queue, with its place. First published, then acknowledged: dying in between makes one too many."""
        request = held.request
        try:
            send_back(self._consumer.app, request, Ticket(place, time.time() + wait, held.times + 1))
        except Exception:
            logger.warning("%s could not be sent back, and stays", request, exc_info=True)
            self._give_back(held, place)
            self._stuck.append(held)
            return
        held.tell("republished", wait)
        logger.info("%s goes back to its queue%s", held, f" for {wait:.3g} s" if wait else "")
        request.acknowledge()
        state.task_ready(request)
        self._left(held)

    @staticmethod
    def _give_back(held: Held, place: str | None) -> None:
        """A place is free again, unless somebody has started with it."""
        if place is not None:
            try:
                held.limit.limiter.place(place).cancel()
            except LimitError:
                logger.debug("%r of %s could not be given back", place, held.request, exc_info=True)


def watch(
    request: Any, accepted: Callable[[], None], ended: Callable[[], None], tell: Callable[[str, float], None]
) -> None:
    """Calls a function when a child takes a request, and one when the pool is done with it or will not begin. Monitors,
    which have heard by then that the task has started, are told if the child sent it back.

    Celery makes a class of requests for each task whose on_success does not call its base's, so that only the request
    itself is left to say it.
    """

    def after(name: str, is_end: Callable[[Any, tuple[Any, ...]], bool]) -> None:
        method = getattr(request, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            end = True
            try:
                result = method(*args, **kwargs)
                end = is_end(result, args)
                return result
            finally:
                if end:
                    ended()

        setattr(request, name, call)

    def failed(_result: Any, args: tuple[Any, ...]) -> bool:
        if args and isinstance(back := args[0].exception, SentBack):
            tell("republished", back.wait)
        return True

    on_accepted = request.on_accepted

    def call_accepted(*args: Any, **kwargs: Any) -> Any:
        accepted()
        return on_accepted(*args, **kwargs)

    request.on_accepted = call_accepted
    after("on_success", lambda _result, _args: True)
    after("on_failure", failed)
    after("on_timeout", lambda _result, args: not args[0])  # A soft one goes on.
    after("revoked", lambda result, _args: bool(result))
