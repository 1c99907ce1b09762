"""The code that all queues share: a job that cannot start now takes a place and returns to its queue with the place's
text.

Nothing here depends on a queue. The module of a queue finds the `Gate` of a job's function (`gate_of`) and calls it.
Then it either passes the start to the function (`Turn`), or sends the job away with a ticket (`Later`) so that the job
returns for its place.
"""

from __future__ import annotations

import inspect
import logging
import re
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import wraps
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from ._decorator import is_awaited
from ._derived import Arguments, Derivation, Key, KeyOf, Weight, WeightOf, key_shown, refuse
from ._errors import AcquireTimeout, ForeignPermit, InvalidArgument, Unsupported
from ._loops import in_thread, sleep
from ._native import Decision, Limiter, Permit, call_in_thread
from ._return_schedule import LocalSchedule, ReturnSchedule

__all__ = ["Gate", "Later", "Limited", "Timing", "Turn", "current_permit", "gate_of", "limiting"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: The interval between attempts while a job waits for other jobs to complete, in seconds.
_POLL = 0.01

#: A place that is nearer than this, in seconds, and has not started waits for a limit that has no places.
_NEAR = 0.02

#: A job without a place returns this fraction of the horizon before its start, to take a place.
_LEAD = 0.8

#: The shortest delay of a job without a place, in seconds. The retry delay of a concurrency limit is only a guess.
_SOONEST = 0.1

#: The longest delay of a job that was denied again several times, in seconds, unless the horizon is longer.
_PATIENCE = 5.0

#: The longest delay, in seconds. Queues have limits of their own, and an early place remains valid.
_LONGEST = 86_400.0

#: The longest default grace, in seconds.
_MOST_GRACE = 10.0

_GATE = "__workglow_limit__"


class Limited(NamedTuple):
    """The reason why a job was sent away."""

    #: The key that it waits for; None for no key. A mapping has those of parts of a composite.
    key: Key
    #: The seconds until its start, or until its next attempt.
    wait: float
    #: Whether it has a place and starts then. Otherwise it tries again.
    has_place: bool


class Later(NamedTuple):
    """The answer for a job that must leave and return after `delay` seconds with its ticket."""

    delay: float
    ticket: str
    limited: Limited


class Timing(NamedTuple):
    """The timing of a queue in seconds: the default grace of its places, and the lead of a job's return, because the
    queue itself is late."""

    grace: float
    early: float


class _Place(NamedTuple):
    """The place of a job that cannot start yet. Without a text there is only the wait before the next attempt."""

    text: str
    wait: float


class _Placeless(NamedTuple):
    """The answer for a job that must leave without a place. It returns after at least `soonest` seconds; the next job
    `pace` seconds later."""

    key: Key
    soonest: float
    pace: float
    #: How often the job has left without a place.
    times: int


class _Ticket(NamedTuple):
    """The data that travel with a job: the Unix time when its place is ready (valid on any machine), how often it was
    sent away without a place, and the text of its place, "" for none."""

    ready: float
    times: int
    text: str

    def __str__(self) -> str:
        return f"{self.ready:.3f} {self.times} {self.text}"

    @classmethod
    def of(cls, ticket: str | None) -> _Ticket | None:
        """Reads a ticket. Anything else under our name is ignored."""
        found = re.fullmatch(r"([0-9]+\.[0-9]+) ([0-9]+) (\S*)", ticket or "", re.ASCII)
        return None if found is None else cls(float(found[1]), int(found[2]), found[3])


_Steps: TypeAlias = Generator[float, None, "Permit | Later | _Placeless"]

#: The seconds to wait before the next step, or the result of the steps.
_StepResult: TypeAlias = "tuple[float, Permit | Later | _Placeless | None]"


class Gate:
    """The admission of calls of one function."""

    def __init__(
        self,
        function: Callable[..., Any],
        limiter: Limiter,
        key: KeyOf | None,
        weight: WeightOf,
        hold: float | timedelta,
        grace: float | timedelta | None,
        on_limited: Callable[[Any, Limited], object] | None,
        timing: Timing,
    ) -> None:
        if not isinstance(limiter, Limiter):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"limiter is {limiter!r}: expected a limiter of workglow_limit, not {type(limiter).__name__}"
            )
        if on_limited is not None and not callable(on_limited):
            raise TypeError(f"on_limited is {on_limited!r}: expected a function, not {type(on_limited).__name__}")
        self.limiter = limiter
        self.hold = _seconds("hold", hold)
        self._grace = None if grace is None else _seconds("grace", grace)
        self._timing = timing
        self._on_limited = on_limited
        derivation = Derivation(function)
        self._key, self._weight = derivation.key("key", key), derivation.weight("weight", weight)
        #: The schedule of jobs without a place, if the queue's module has one for all workers.
        self.schedule: ReturnSchedule | None = None
        self._local, self._lock = LocalSchedule(), Lock()
        #: Returns whether a job of the schedule of that name has not returned yet.
        self.is_waiting: Callable[[str], bool] = self._local.is_waiting
        #: The recent lateness of jobs at their places, and the recent duration of jobs, in seconds.
        self.learned = (0.0, 0.0)

    # ---- called by the modules of queues ----

    def admit(self, arguments: Arguments, ticket: str | None) -> Permit | Later:
        """Returns a start for a call with these arguments, or the delay after which it should return. Waits at most
        `hold`. `ticket` is the job's ticket, if it was sent away before."""
        steps = self._steps(self._key(arguments), self._weight(arguments), _Ticket.of(ticket))
        try:
            while True:
                wait, answer = _step(steps)
                if answer is not None:
                    break
                time.sleep(wait)
        finally:
            steps.close()
        if not isinstance(answer, _Placeless):
            return answer
        return self._return_later(answer, None if self.schedule is None else self._append(self.schedule, answer))

    def send_away_early(self, arguments: Arguments, ticket: str | None) -> Later | None:
        """Returns the delay of a job that certainly cannot start soon, or None if `admit` should decide."""
        key, weight, kept = self._key(arguments), self._weight(arguments), _Ticket.of(ticket)
        if (kept is not None and kept.text) or self.limiter.peek(key, weight).retry_after <= self.hold:
            return None
        place = self._ask(key, weight, "", is_new=kept is None)
        if isinstance(place, Permit):
            place.cancel()  # It can start now, and `admit` takes the start again.
            return None
        answer = self._send_away(key, weight, place, 0 if kept is None else kept.times)
        if isinstance(answer, Later):
            return answer
        return self._return_later(answer, None if self.schedule is None else self._append(self.schedule, answer))

    async def admit_async(self, arguments: Arguments, ticket: str | None) -> Permit | Later:
        """As `admit`, without blocking the event loop."""
        steps = self._steps(self._key(arguments), self._weight(arguments), _Ticket.of(ticket))

        def undo(result: Any) -> None:
            call_in_thread(self.limiter, lambda: self._undo(steps, result))

        while True:
            result: _StepResult = await in_thread(self.limiter, lambda: _step(steps), undo)
            wait, answer = result
            if answer is not None:
                break
            try:
                await sleep(wait)
            except BaseException:
                undo(None)
                raise
        if not isinstance(answer, _Placeless):
            return answer
        scheduled = None if self.schedule is None else self._append(self.schedule, answer)
        return self._return_later(answer, None if scheduled is None else await scheduled)

    def acquire(self, arguments: Arguments) -> Permit:
        """Waits for the start of a call outside a queue's worker."""
        return self.limiter.acquire(self._key(arguments), self._weight(arguments))

    async def acquire_async(self, arguments: Arguments) -> Permit:
        return await self.limiter.acquire_async(self._key(arguments), self._weight(arguments))

    def return_place(self, ticket: str | None) -> None:
        """Returns the place of a job that will not run."""
        kept = _Ticket.of(ticket)
        if kept is not None:
            self._cancel(kept.text)

    def notify(self, job: Any, later: Later) -> None:
        """Calls on_limited for a job that was sent away. An exception of on_limited does not fail the job."""
        if self._on_limited is not None:
            try:
                self._on_limited(job, later.limited)
            except Exception:
                logging.getLogger("workglow_limit").exception("on_limited raised")

    # ---- the decision ----

    def _steps(self, key: Key, weight: Weight, ticket: _Ticket | None) -> _Steps:
        """Yields the seconds to wait before the next step. Closing the generator gives up the wait."""
        text = "" if ticket is None else ticket.text
        if ticket is not None and text:
            late, duration = self.learned
            self.learned = max(time.time() - ticket.ready, 0.9 * late, 0.0), duration
        until = time.monotonic() + self.hold
        while True:
            answer = self._ask(key, weight, text, is_new=ticket is None)
            if isinstance(answer, Permit):
                return answer
            wait = max(answer.wait, _POLL)
            if time.monotonic() + wait > until:
                return self._send_away(key, weight, answer, 0 if ticket is None else ticket.times)
            try:
                yield wait
            except GeneratorExit:
                self._cancel(answer.text)
                raise
            text = answer.text

    def _ask(self, key: Key, weight: Weight, text: str, is_new: bool) -> Permit | _Place:
        """Returns a start or a place."""
        permit = None
        if text:
            # The name may have another limit now, or the place is from another store.
            with suppress(ForeignPermit, InvalidArgument, Unsupported):
                permit = self.limiter.present(text)
        if permit is None:
            permit = start_now(self.limiter, key, weight)
        # A job that returns for a place, perhaps slightly early, may take a more distant one, so that it need not leave
        # again.
        horizon = self._horizon() * (1 if is_new else 2)
        # Jobs that were sent away without a place take theirs first.
        if permit is None and horizon > 0 and not (is_new and self.is_waiting(self._name(key))):
            with suppress(Unsupported):
                permit = self.limiter.reserve(key, weight, horizon, self._grace_now())
        if permit is not None and not permit.started and permit.wait == 0:
            permit = self.limiter.present(permit)
        if permit is None:
            return _Place("", self.limiter.peek(key, weight).retry_after)
        if permit.started:
            return permit
        if permit.wait <= horizon:
            with suppress(Unsupported):
                return _Place(permit.to_text(), permit.wait)
        permit.cancel()
        return _Place("", permit.wait)

    def _send_away(self, key: Key, weight: Weight, place: _Place, times: int) -> Later | _Placeless:
        if place.text and place.wait >= _NEAR:
            delay = min(max(place.wait - min(self._timing.early, self.hold), 0.0), _LONGEST)
            ticket = _Ticket(time.time() + place.wait, times, place.text)
            return Later(delay, str(ticket), Limited(key, place.wait, True))
        # The place is ready, but a part of the limit without places denies. Keeping the place would block other jobs.
        self._cancel(place.text)
        decision, horizon = self.limiter.peek(key, weight), self._horizon()
        if horizon > 0:
            between = max(decision.reset_after - decision.retry_after, self.limiter.window or 0.0)
        else:
            between = self.learned[1]  # The end of a running job is unknown; recent durations are the best estimate.
        soonest = max(decision.retry_after - _LEAD * horizon, _SOONEST)
        return _Placeless(key, soonest, self._units(weight, decision) * between / (decision.limit or 1), times)

    def _append(self, schedule: ReturnSchedule, job: _Placeless) -> Any:
        """Appends a new job to a schedule. A job that was in it before is not appended again."""
        return None if job.times else schedule.append(self._name(job.key), job.soonest, job.pace)

    def _return_later(self, job: _Placeless, scheduled: Any) -> Later:
        name = self._name(job.key)
        with self._lock:
            if job.times:
                # It returned too early. Each further time makes the estimate of its turn less certain.
                step = max(self._horizon() / 4, job.pace, _SOONEST)
                wait = max(job.soonest, min(job.times * step, max(_PATIENCE, self._horizon())))
            elif scheduled is None:
                wait = self._local.append(name, job.soonest, job.pace)
            else:
                wait = float(scheduled)
                self._local.extend(name, wait)
        ticket = _Ticket(time.time() + wait, job.times + 1, "")
        return Later(min(wait, _LONGEST), str(ticket), Limited(job.key, wait, False))

    def _grace_now(self) -> float:
        """Returns the grace of a place, in seconds. It grows with the recent lateness of jobs."""
        if self._grace is not None:
            return self._grace
        window = self.limiter.window or 0.0
        default = min(max(window / 40, self._timing.grace), _MOST_GRACE)
        return max(default, min(1.5 * self.learned[0], window / 4, _MOST_GRACE))

    def _horizon(self) -> float:
        """Returns how far ahead places are taken, in seconds; 0 if the limit has no places. A limit keeps one window of
        places. More distant places have a time but no turn, so their jobs would all return at the same time and be
        denied."""
        window = self.limiter.window
        return 0.0 if window is None else max(window, 1.0) + self._grace_now()

    def _units(self, weight: Weight, decision: Decision) -> int:
        """Returns the weight at the limit that denied."""
        if isinstance(weight, int):
            return weight
        limit = f"/{decision.denied_by}"
        return next((units for part, units in weight.items() if limit.endswith(f"/{part}")), 1)

    def _name(self, key: Key) -> str:
        return f"{self.limiter.name}:{key_shown(key)}"

    def _cancel(self, text: str) -> None:
        if text:
            with suppress(ForeignPermit, InvalidArgument, Unsupported):
                self.limiter.place(text).cancel()

    def ran(self, seconds: float) -> None:
        """Notes the duration of a job."""
        late, duration = self.learned
        self.learned = late, 0.8 * duration + 0.2 * seconds if duration else seconds

    def _undo(self, steps: _Steps, result: _StepResult | BaseException | None) -> None:
        """Takes back a start or a place whose task was cancelled."""
        steps.close()
        answer = result[1] if isinstance(result, tuple) else None
        if isinstance(answer, Permit):
            answer.cancel()
        elif isinstance(answer, Later):
            self.return_place(answer.ticket)


def _step(steps: _Steps) -> _StepResult:
    try:
        return next(steps), None
    except StopIteration as end:
        return 0.0, end.value


def _seconds(parameter: str, value: object) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(
            f"{parameter} is {value!r}: expected seconds as a number, or a timedelta, not {type(value).__name__}"
        )
    if not 0 <= seconds <= _LONGEST:
        raise refuse(parameter, value, "0 s to 1 day")
    return float(seconds)


# ---- the function ----


class Turn:
    """The start for the next call of a queue's worker, or an error that ends the job. Used as a context manager around
    the call."""

    __slots__ = "_outcome", "_taken", "_token", "gate"

    def __init__(self, gate: Gate, outcome: Permit | BaseException) -> None:
        self.gate, self._outcome, self._taken = gate, outcome, False

    def take(self, gate: Gate) -> Permit | None:
        """Returns the start, once, for the function of that gate."""
        if self._taken or gate is not self.gate:
            return None
        self._taken = True
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    @staticmethod
    def current() -> Turn | None:
        return _turn.get()

    def begin(self) -> None:
        self._token = _turn.set(self)

    def end(self) -> None:
        """Ends the turn. If the call was never made, its start is cancelled."""
        if not self._taken and isinstance(self._outcome, Permit):
            self._outcome.cancel()
        self._taken = True

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_exception: object) -> None:
        _turn.reset(self._token)
        self.end()


_turn: ContextVar[Turn | None] = ContextVar("workglow_limit_turn", default=None)
_permit: ContextVar[Permit | None] = ContextVar("workglow_limit_permit", default=None)


def start_now(limiter: Limiter, key: Key, weight: Weight) -> Permit | None:
    """Returns a start, if its units are free. Where a job has no place to come back for, it takes what is free, even if others
    wait: it would come after all of them, however long it has waited."""
    if limiter.window is not None:
        return limiter.try_acquire(key, weight)
    with suppress(AcquireTimeout):
        return limiter.acquire(key, weight, 0)
    return None


def current_permit() -> Permit | None:
    """Returns the permit of the running limited function, for settle, renew or fence. None outside a limited function."""
    return _permit.get()


def gate_of(function: object) -> Gate | None:
    """Returns the gate of a function, or None if it is not limited."""
    return cast("Gate | None", getattr(function, _GATE, None))


def limiting(
    limiter: Limiter,
    key: KeyOf | None,
    weight: WeightOf,
    hold: float | timedelta,
    grace: float | timedelta | None,
    on_limited: Callable[[Any, Limited], object] | None,
    timing: Timing,
) -> Callable[[_F], _F]:
    """Returns a decorator for the functions of jobs. A call by a queue's worker has its turn; any other call waits."""

    def decorate(function: Any) -> Any:
        if not inspect.isfunction(function):
            raise TypeError(f"{function!r} is not a function: put @limited below the decorator that makes a job of it")
        awaits = is_awaited(function)
        gate = Gate(function, limiter, key, weight, hold, grace, on_limited, timing)
        wrapper = _awaited(function, gate) if awaits else _called(function, gate)
        setattr(wrapper, _GATE, gate)
        return wrapper

    return decorate


def _called(function: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        turn = _turn.get()
        permit = (turn and turn.take(gate)) or gate.acquire((args, kwargs))
        token, began = _permit.set(permit), time.monotonic()
        try:
            return function(*args, **kwargs)
        finally:
            _permit.reset(token)
            permit.complete()
            gate.ran(time.monotonic() - began)

    return called


def _awaited(function: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    @wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        turn = _turn.get()
        permit = (turn and turn.take(gate)) or await gate.acquire_async((args, kwargs))
        token, began = _permit.set(permit), time.monotonic()
        try:
            return await function(*args, **kwargs)
        finally:
            _permit.reset(token)
            gate.ran(time.monotonic() - began)
            await permit.complete_async()

    return awaited
