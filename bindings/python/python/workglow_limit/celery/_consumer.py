"""The waiting room of a worker. It holds tasks that cannot start yet, while the worker runs others. The core's lines
decide which task is next, and when.

Everything runs in the alarm's thread. Other threads only append to `_arrived` and `_news`, and wake the alarm.
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
from .._derived import Key, Weight
from .._native import Pool
from ._alarm import Alarm, LoopAlarm, ThreadAlarm
from ._celery import get_logger, state
from ._errors import SentBack
from ._message import HEADER, Ticket, hand_over, patience, send_back
from ._options import TaskLimit
from ._prefetch import PrefetchWindow
from ._unacknowledged import Unacknowledged

logger: Any = get_logger(__name__)

#: The interval between checks for revoked and expired tasks, in seconds.
SWEEP = 1.0

#: The most tasks that leave in one pass. Each of them sends a message.
AT_ONCE = 20

#: The longest pass over the tasks of a worker, in seconds. Then the worker does other work.
TURN = 0.02

#: Brokers that deliver the smallest priority first. All others deliver the largest first.
SMALLEST_FIRST = ("redis",)

#: The shortest timer, in seconds. Work that becomes due within it is done in one pass.
SOON = 0.001


class HeldTask:
    """A task in the waiting room."""

    __slots__ = "extra", "had_at", "is_announced", "key", "limit", "request", "since", "times", "weight"

    def __init__(self, request: Any, limit: TaskLimit, key: Key, weight: Weight, extra: bool, had_at: float) -> None:
        self.request, self.limit, self.key, self.weight = request, limit, key, weight
        self.had_at = had_at  # The Unix time, after the broker noted that this worker has the message.
        self.since = time.monotonic()
        self.extra = extra  # Whether the worker fetches one more message because this one waits here.
        self.times = 0  # How often its message was sent back.
        self.is_announced = False  # Whether monitors know that it is held.

    def __str__(self) -> str:
        key = "" if self.key is None else f" (key {self.key!r})"
        return f"Task {self.request.name}[{self.request.id}], limited by {self.limit.limiter.name!r}{key},"

    @property
    def is_gone(self) -> bool:
        """Whether it was revoked or has expired. Revocation by a stamp is found when the task goes to the pool."""
        request = self.request
        return request.id in state.revoked or (bool(request.expires) and request.expires.timestamp() < time.time())

    def send_event(self, action: str, wait: float) -> None:
        """Sends the event for monitors. Events named task-… would become the task's state there, above STARTED."""
        limit = self.limit.limiter.name
        self.request.send_event("limited-task", limit=limit, key=self.key, wait=wait or None, action=action)


#: A pool, the number of a waiter in it, and its instruction: see `Pool.advance`.
Instruction = tuple[Pool, int, str, str | None, float]


class WaitingRoom:
    """The waiting room of one consumer."""

    def __init__(self, consumer: Any, most: int) -> None:
        self._consumer, self._most = consumer, most
        self._patience = patience(consumer.app)
        self._is_smallest_first = False
        self._arrived: deque[tuple[Any, TaskLimit, bool, float]] = deque()
        self._news: deque[Callable[[], None]] = deque()
        self._pools: dict[tuple[Limiter, float | None], Pool] = {}
        self._held: dict[tuple[Pool, int], HeldTask] = {}
        self._running: dict[tuple[Pool, int], Any] = {}  # Requests that went to the pool and have not ended.
        self._instructions: deque[Instruction] = deque()
        self._stuck: list[HeldTask] = []  # Could not be sent back.
        self._extra = 0
        self._waits: deque[HeldTask] = (
            deque()
        )  # The worker fetches one more message for each, as soon as it holds fewer tasks.
        self._swept = 0.0
        self._unacknowledged = Unacknowledged()
        self._lock = threading.Lock()
        self._alarm: Alarm | None = None

    # ---- called from other threads ----

    def start(self) -> None:
        hub = self._consumer.hub
        self._is_smallest_first = self._consumer.connection.transport.driver_type in SMALLEST_FIRST
        self._unacknowledged.follow(self._consumer.task_consumer.channel)
        if PrefetchWindow.is_needed(self._consumer):
            PrefetchWindow(self._consumer)
        self._alarm = LoopAlarm(hub, self._tick_in_loop) if hub else ThreadAlarm(self._tick)
        self._alarm.wake()

    def stop(self) -> None:
        alarm, self._alarm = self._alarm, None
        if alarm is not None:
            alarm.close()
        self.clear()

    def clear(self) -> None:
        """Returns all places and drops all tasks. Their messages were not acknowledged, so the broker has them."""
        with self._lock:
            for pool in self._pools.values():
                pool.clear()
            for pool, number, _, place, _ in self._instructions:
                self._return_place(self._held[pool, number], place)
            for pool, number in [of for of, request in self._running.items() if request not in state.active_requests]:
                self._end(pool, number)  # The pool may not report their end any more.
            held = [*self._held.values(), *self._stuck]
            arrived = ((request, had_at) for request, *_, had_at in self._arrived)
            self._unacknowledged.leave([*((of.request, of.had_at) for of in held), *arrived])
            self._arrived.clear()
            self._held.clear()
            self._instructions.clear()
            self._stuck.clear()
            self._waits.clear()
            self._extra = 0

    def add(self, request: Any, limit: TaskLimit) -> None:
        # A worker without an event loop takes seconds to notice that it may fetch more messages, so raise its count
        # now.
        extra = self._consumer.hub is None and self._extra + len(self._arrived) < self._most
        if extra:
            self._consumer.qos.increment_eventually()
        self._arrived.append((request, limit, extra, time.time()))
        self._wake()

    def renew(self, name: str) -> None:
        """Takes new places after a policy change of the limit of this name."""
        self._post(partial(self._renew, name))

    def waiting(self) -> dict[str, dict[str, int]]:
        """Returns the number of waiting tasks by limit and key."""
        counts: dict[str, Counter[str]] = {}
        with self._lock:
            for (limiter, _), pool in self._pools.items():
                counts.setdefault(limiter.name, Counter()).update(pool.waiting())
        return {name: dict(of) for name, of in counts.items() if of}

    def _post(self, news: Callable[[], None]) -> None:
        self._news.append(news)
        self._wake()

    def _wake(self) -> None:
        if self._alarm is not None:
            self._alarm.wake()

    # ---- called by the alarm ----

    def _tick_in_loop(self) -> float | None:
        wait = self._tick()
        qos = self._consumer.qos
        if self._alarm is not None and qos.prev != qos.value:
            qos.update()  # The loop itself would do it only after its next event.
        return SOON if self._arrived else wait  # Tasks may have arrived while the broker was called.

    def _tick(self) -> float | None:
        with self._lock:
            workers = pool_size(self._consumer.pool)
            if self._alarm is None or not workers:
                return None  # The alarm rang just before it was stopped, or a cold shutdown ended the pool first.
            end = time.monotonic() + TURN
            while self._news:
                self._news.popleft()()
            while self._arrived:
                self._seat(*self._arrived.popleft())
            wait = self._sweep()
            for of, pool in list(self._pools.items()):
                instructions, again = pool.advance(workers, max(0, workers - len(self._running)))
                for number, turn, place, after in instructions:
                    if turn == "go":
                        self._running[pool, number] = self._held[pool, number].request
                    self._instructions.append((pool, number, turn, place, after))
                if again is not None:
                    wait = min(again, wait)
                if instructions:
                    self._pools[of] = self._pools.pop(of)  # The other pools come first in the next pass.
            while self._instructions:
                if time.monotonic() > end:
                    return 0.0
                self._do(*self._instructions.popleft())
            return max(wait, SOON) if self._held or self._stuck else None

    def _seat(self, request: Any, limit: TaskLimit, extra: bool, had_at: float) -> None:
        try:
            arguments = request.args, request.kwargs
            held = HeldTask(request, limit, limit.key(arguments), limit.weight(arguments), extra, had_at)
            ticket = Ticket.of(request.request_dict.get(HEADER))
            place = None
            if ticket is not None:
                # A task with a place was announced when it was sent back.
                held.times, held.is_announced, place = ticket.times, ticket.place is not None, ticket.place
                # A redelivered message may already have used its place.
                if request.delivery_info.get("redelivered"):
                    self._return_place(held, place)
                    place = None
            self._join(held, place)
            self._extra += extra
        except Exception:
            # The task raises this error when it runs.
            logger.debug("limit of %s", request, exc_info=True)
            if extra:
                self._consumer.qos.decrement_eventually()
            hand_over(request, None)
            self._consumer._limit_move_to_pool(request)

    def _join(self, held: HeldTask, place: str | None) -> None:
        limit = held.limit
        pool = self._pools.get((limit.limiter, limit.grace))
        if pool is None:
            pool = self._pools[limit.limiter, limit.grace] = Pool(limit.limiter, limit.grace)
        # A task that was sent back goes ahead of its equals, or it might be overtaken again and again.
        priority = 2 * self._rank(held.request) - bool(held.times)
        # Messages of the old protocol hold the ETA in their body, so they cannot be sent back. Where tenants share the limit,
        # a task that waits elsewhere has no turn: its tenant would have less than its share.
        stays = "task" not in held.request.message.headers or (limit.on_limit == "hold" and limit.limiter._has_tenants)
        hold = None if stays else limit.longest
        self._held[pool, pool.join(held.key, held.weight, priority, hold, place)] = held

    def _rank(self, request: Any) -> int:
        """Returns the priority of a message for the line, where the smallest is first."""
        priority = (request.delivery_info or {}).get("priority") or 0
        return int(priority) if self._is_smallest_first else -int(priority)

    def _renew(self, name: str) -> None:
        for (limiter, _), pool in self._pools.items():
            if f"{name}/".startswith(f"{limiter.name}/"):  # The limit or a part of it.
                pool.renew()

    def _sweep(self) -> float:
        """Removes revoked and expired tasks, and sends back tasks that the broker would soon redeliver. Returns the
        seconds until the next sweep."""
        now = time.monotonic()
        if now - self._swept < SWEEP:
            return self._swept + SWEEP - now
        stuck, self._stuck = self._stuck, []
        for held in stuck:
            self._join(held, None)
        oldest = now - self._patience
        instructed = {(pool, number) for pool, number, *_ in self._instructions}
        due = (of for of, held in self._held.items() if (held.is_gone or held.since < oldest) and of not in instructed)
        leaving = list(islice(due, AT_ONCE))
        for pool, number in leaving:
            held = self._held.pop((pool, number))
            if held.is_gone:
                pool.leave(number)
                held.request.revoked()  # Reports and acknowledges it.
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
        except Exception:  # For example, the result backend is unreachable. The other tasks continue.
            logger.exception("limits: a task could not leave")
            self._end(pool, number)

    def _wait(self, held: HeldTask, wait: float) -> None:
        """Notes that a task waits for its limit, and fetches another message for it, up to the most held tasks. A task
        that only waits for the pool counts against the prefetch count, as always in Celery, so that other workers fetch
        the next messages."""
        if not held.extra:
            self._waits.append(held)
            self._fetch_past()
        if not held.is_announced:
            held.is_announced = True
            held.send_event("held", wait)
            logger.info("%s waits%s", held, f" for {wait:.3g} s" if wait else "")

    def _fetch_past(self) -> None:
        while self._waits and self._extra < self._most:
            held = self._waits.popleft()
            held.extra = True
            self._extra += 1
            self._consumer.qos.increment_eventually()

    def _left(self, held: HeldTask) -> None:
        if held.extra:
            held.extra = False
            self._extra -= 1
            self._consumer.qos.decrement_eventually()
            self._fetch_past()
        elif held in self._waits:
            self._waits.remove(held)

    def _go(self, pool: Pool, number: int, place: str | None) -> None:
        """Sends a task to the pool. Its place then belongs to the child."""
        held = self._held.pop((pool, number))
        request = held.request
        self._left(held)
        if request.revoked():
            self._return_place(held, place)
            self._end(pool, number)
            return
        hand_over(request, Ticket(place, time.time(), held.times))
        arrived, ended = partial(pool.arrive, number), partial(self._end, pool, number)
        watch(request, partial(self._news.append, arrived), partial(self._post, ended), held.send_event)
        self._consumer._limit_move_to_pool(request)

    def _end(self, pool: Pool, number: int) -> None:
        if self._running.pop((pool, number), None) is not None:
            pool.end(number)

    def _send_back(self, held: HeldTask, place: str | None, wait: float) -> None:
        """Sends a task back to its queue with its place. It publishes first and acknowledges afterwards: if the worker
        dies in between, one message too many remains."""
        request = held.request
        try:
            send_back(self._consumer.app, request, Ticket(place, time.time() + wait, held.times + 1))
        except Exception:
            logger.warning("%s could not be sent back to its queue, and remains here", request, exc_info=True)
            self._return_place(held, place)
            self._stuck.append(held)
            return
        held.send_event("republished", wait)
        logger.info("%s goes back to its queue%s", held, f" for {wait:.3g} s" if wait else "")
        request.acknowledge()
        state.task_ready(request)
        self._left(held)

    @staticmethod
    def _return_place(held: HeldTask, place: str | None) -> None:
        """Returns a place, unless a job has started with it."""
        if place is not None:
            try:
                held.limit.limiter.place(place).cancel()
            except LimitError:
                logger.debug("place %r of %s could not be returned", place, held.request, exc_info=True)


def pool_size(pool: Any) -> int:
    """Returns how many tasks a pool runs at the same time: none if it is closed."""
    if pool._state in (pool.CLOSE, pool.TERMINATE):
        return 0
    if not pool.is_green:
        return max(1, int(pool.num_processes or 1))
    # Before Celery 5.7 the num_processes of a gevent pool were its running greenlets, and its limit did not change when
    # it grew or shrank.
    size = getattr(pool._pool, "size", None)
    return max(1, int(size or pool.limit or 1))


def watch(
    request: Any, accepted: Callable[[], None], ended: Callable[[], None], send_event: Callable[[str, float], None]
) -> None:
    """Calls `accepted` when a child takes a request, and `ended` when the pool has finished or will not begin it. If
    the child sent the task back, monitors get an event: they have already seen that the task started.

    The methods of the request itself are replaced, because Celery makes a request class per task whose on_success does
    not call its base's.
    """

    def after(name: str, is_end: Callable[..., bool]) -> None:
        method = getattr(request, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            end = True
            try:
                result = method(*args, **kwargs)
                end = is_end(result, *args, **kwargs)
                return result
            finally:
                if end:
                    ended()

        setattr(request, name, call)

    # Celery passes the arguments of these methods by position or by name.

    def succeeded(_result: Any, *_args: Any, **_options: Any) -> bool:
        return True

    def failed(_result: Any, exc_info: Any, *_args: Any, **_options: Any) -> bool:
        if isinstance(back := exc_info.exception, SentBack):
            send_event("republished", back.wait)
        return True

    def timed_out(_result: Any, soft: bool, timeout: float) -> bool:
        return not soft  # The task continues after a soft timeout.

    def revoked(result: bool) -> bool:
        return bool(result)

    on_accepted = request.on_accepted

    def call_accepted(*args: Any, **kwargs: Any) -> Any:
        accepted()
        return on_accepted(*args, **kwargs)

    request.on_accepted = call_accepted
    after("on_success", succeeded)
    after("on_failure", failed)
    after("on_timeout", timed_out)
    after("revoked", revoked)
