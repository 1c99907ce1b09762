"""What the queues have in common: a job that cannot start now takes its place, and goes back with it as a text.

Nothing here knows a queue. A module for one finds the `Gate` of a job's function (`gate_of`), asks it, and either hands the
start to the function (`Turn`) or sends the job away with its ticket (`Later`), so that it comes back for its place.
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
from ._derived import Arguments, Derivation, refuse
from ._errors import ForeignPermit, InvalidArgument, Unsupported
from ._line import Line, LocalLine
from ._loops import in_thread, sleep
from ._native import Limiter, Permit, call_in_thread

__all__ = ["Gate", "Later", "Limited", "Turn", "Usual", "current_permit", "gate_of", "limiting"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: Who waits for somebody to complete looks so often, in seconds.
_LOOK = 0.01

#: A place that is nearer and has not started waits for something else, for which there are no places.
_NEAR = 0.02

#: Who has no place comes back so much of the horizon before its start, to take one.
_LEAD = 0.8

#: Nobody comes back sooner without a place, in seconds: what a concurrency limit says is only a guess.
_SOONEST = 0.1

#: Who came back in vain several times is not sent away for longer than this or the horizon, in seconds.
_PATIENCE = 5.0

#: Nobody is sent away for longer at once, in seconds: queues have limits of their own, and an early place stays good.
_LONGEST = 86_400.0

#: The longest grace, if none is given.
_MOST_GRACE = 10.0

_GATE = "__workglow_limit__"


class Limited(NamedTuple):
    """Why a job was sent away."""

    #: Whose budget it waits for; None is no key.
    key: str | None
    #: Its start is after so many seconds.
    wait: float
    #: Does it start then, with a place of its own? If not, it asks again.
    has_place: bool


class Later(NamedTuple):
    """A job has to go, and come back after `delay` seconds with its ticket."""

    delay: float
    ticket: str
    limited: Limited


class Usual(NamedTuple):
    """What a queue is like: how late a job may come to its place, if its limit does not say, and how much earlier it is sent
    for, because the queue is late itself; in seconds."""

    grace: float
    early: float


class _Place(NamedTuple):
    """What a job has got instead of a start; without a text, it only knows when to look again."""

    text: str
    wait: float


class _Turnless(NamedTuple):
    """A job has to go without a place. It comes back after `soonest` seconds at the earliest; the next `pace` later."""

    key: str | None
    soonest: float
    pace: float
    #: How often that has happened to it.
    times: int


class _Ticket(NamedTuple):
    """What travels with a job: when its place is ready, in Unix seconds, so that any machine can tell; how often it was
    sent away without one; and the place's text, "" for none."""

    ready: float
    times: int
    text: str

    def __str__(self) -> str:
        return f"{self.ready:.3f} {self.times} {self.text}"

    @classmethod
    def of(cls, ticket: str | None) -> _Ticket | None:
        """What somebody else put under our name is no ticket."""
        found = re.fullmatch(r"([0-9]+\.[0-9]+) ([0-9]+) (\S*)", ticket or "", re.ASCII)
        return None if found is None else cls(float(found[1]), int(found[2]), found[3])


_Steps: TypeAlias = Generator[float, None, "Permit | Later | _Turnless"]

#: For how long to wait before the next step, or what came of them.
_Came: TypeAlias = "tuple[float, Permit | Later | _Turnless | None]"


class Gate:
    """What admits the calls of one function."""

    def __init__(
        self,
        function: Callable[..., Any],
        limiter: Limiter,
        key: str | Callable[..., Any] | None,
        weight: int | str | Callable[..., int],
        hold: float | timedelta,
        grace: float | timedelta | None,
        on_limited: Callable[[Any, Limited], object] | None,
        usual: Usual,
    ) -> None:
        if not isinstance(limiter, Limiter):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"limiter is {limiter!r}: expected a limiter of workglow_limit, not {type(limiter).__name__}")
        if on_limited is not None and not callable(on_limited):
            raise TypeError(f"on_limited is {on_limited!r}: expected a function, not {type(on_limited).__name__}")
        self.limiter = limiter
        self.hold = _seconds("hold", hold)
        self._grace = None if grace is None else _seconds("grace", grace)
        self._usual = usual
        self._on_limited = on_limited
        derivation = Derivation(function)
        self._key, self._weight = derivation.key("key", key), derivation.weight("weight", weight)
        #: Where those wait who have no place: a queue's module may know a line for all workers.
        self.line: Line | None = None
        self._local, self._lock = LocalLine(), Lock()
        #: Is there somebody in the line of that name?
        self.is_waiting: Callable[[str], bool] = self._local.is_waiting
        #: How late jobs came to their places lately, and how long they took, in seconds.
        self.learned = (0.0, 0.0)

    # ---- what queues ask ----

    def admit(self, arguments: Arguments, ticket: str | None) -> Permit | Later:
        """A start for a call with these arguments, or for how long to send it away. Waits for `hold` at most.
        `ticket` is what the job has brought back, if it was sent away before."""
        steps = self._steps(self._key(arguments), self._weight(arguments), _Ticket.of(ticket))
        try:
            while True:
                wait, answer = _step(steps)
                if answer is not None:
                    break
                time.sleep(wait)
        finally:
            steps.close()
        if not isinstance(answer, _Turnless):
            return answer
        return self._come_back(answer, None if self.line is None else self._at_the_end(self.line, answer))

    def turn_away(self, arguments: Arguments, ticket: str | None) -> Later | None:
        """For how long to send a job away that surely cannot start soon; None if `admit` is to be asked."""
        key, weight, kept = self._key(arguments), self._weight(arguments), _Ticket.of(ticket)
        if (kept is not None and kept.text) or self.limiter.peek(key, weight).retry_after <= self.hold:
            return None
        place = self._ask(key, weight, "", is_new=kept is None)
        if isinstance(place, Permit):
            place.cancel()  # It has room by now, which is for whoever runs the job.
            return None
        answer = self._away(key, weight, place, 0 if kept is None else kept.times)
        if isinstance(answer, Later):
            return answer
        return self._come_back(answer, None if self.line is None else self._at_the_end(self.line, answer))

    async def admit_async(self, arguments: Arguments, ticket: str | None) -> Permit | Later:
        """The same in an event loop, which goes on."""
        steps = self._steps(self._key(arguments), self._weight(arguments), _Ticket.of(ticket))

        def undo(came: Any) -> None:
            call_in_thread(self.limiter, lambda: self._undo(steps, came))

        while True:
            came: _Came = await in_thread(self.limiter, lambda: _step(steps), undo)
            wait, answer = came
            if answer is not None:
                break
            try:
                await sleep(wait)
            except BaseException:
                undo(None)
                raise
        if not isinstance(answer, _Turnless):
            return answer
        told = None if self.line is None else self._at_the_end(self.line, answer)
        return self._come_back(answer, None if told is None else await told)

    def waits(self, arguments: Arguments) -> Permit:
        """A start for a call outside of a queue's worker: it is waited for."""
        return self.limiter.acquire(self._key(arguments), self._weight(arguments))

    async def waits_async(self, arguments: Arguments) -> Permit:
        return await self.limiter.acquire_async(self._key(arguments), self._weight(arguments))

    def give_back(self, ticket: str | None) -> None:
        """The job with this ticket will not run."""
        kept = _Ticket.of(ticket)
        if kept is not None:
            self._cancel(kept.text)

    def tell(self, job: Any, later: Later) -> None:
        """The job was sent away. What the listener raises is the job's failure no more than the job's wait is."""
        if self._on_limited is not None:
            try:
                self._on_limited(job, later.limited)
            except Exception:
                logging.getLogger("workglow_limit").exception("on_limited raised")

    # ---- how it is decided ----

    def _steps(self, key: str | None, weight: int, ticket: _Ticket | None) -> _Steps:
        """Yields for how long to wait before it goes on. Who closes it has given up."""
        text = "" if ticket is None else ticket.text
        if ticket is not None and text:
            late, duration = self.learned
            self.learned = max(time.time() - ticket.ready, 0.9 * late, 0.0), duration
        until = time.monotonic() + self.hold
        while True:
            answer = self._ask(key, weight, text, is_new=ticket is None)
            if isinstance(answer, Permit):
                return answer
            wait = max(answer.wait, _LOOK)
            if time.monotonic() + wait > until:
                return self._away(key, weight, answer, 0 if ticket is None else ticket.times)
            try:
                yield wait
            except GeneratorExit:
                self._cancel(answer.text)
                raise
            text = answer.text

    def _ask(self, key: str | None, weight: int, text: str, is_new: bool) -> Permit | _Place:
        """A start; or else a place, if there is one."""
        permit = None
        if text:
            # Another limit may have its name by now, or it is in another store.
            with suppress(ForeignPermit, InvalidArgument, Unsupported):
                permit = self.limiter.present(text)
        if permit is None:
            permit = self.limiter.try_acquire(key, weight)
        # Who comes back for a place, a little too soon perhaps, gets one that is farther, and does not go in vain.
        horizon = self._horizon() * (1 if is_new else 2)
        if permit is None and horizon > 0:
            # Those who were sent away without a place take theirs first.
            if not (is_new and self.is_waiting(self._name(key))):
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

    def _away(self, key: str | None, weight: int, place: _Place, times: int) -> Later | _Turnless:
        if place.text and place.wait >= _NEAR:
            delay = min(max(place.wait - min(self._usual.early, self.hold), 0.0), _LONGEST)
            ticket = _Ticket(time.time() + place.wait, times, place.text)
            return Later(delay, str(ticket), Limited(key, place.wait, True))
        # Its time has come, but not that of a part without places: it would keep others from what it cannot use.
        self._cancel(place.text)
        decision, horizon = self.limiter.peek(key, weight), self._horizon()
        if horizon > 0:
            between = max(decision.reset_after - decision.retry_after, self.limiter.window or 0.0)
        else:
            between = self.learned[1]  # Nobody knows when a job ends, but how long others took.
        soonest = max(decision.retry_after - _LEAD * horizon, _SOONEST)
        return _Turnless(key, soonest, weight * between / (decision.limit or 1), times)

    def _at_the_end(self, line: Line, job: _Turnless) -> Any:
        """What the line says to a newcomer; who was in it once does not go to its end again."""
        return None if job.times else line.append(self._name(job.key), job.soonest, job.pace)

    def _come_back(self, job: _Turnless, told: Any) -> Later:
        name = self._name(job.key)
        with self._lock:
            if job.times:
                # It came too soon. The more often, the less is known of when it is its turn.
                step = max(self._horizon() / 4, job.pace, _SOONEST)
                wait = max(job.soonest, min(job.times * step, max(_PATIENCE, self._horizon())))
            elif told is None:
                wait = self._local.append(name, job.soonest, job.pace)
            else:
                wait = float(told)
                self._local.extend(name, wait)
        ticket = _Ticket(time.time() + wait, job.times + 1, "")
        return Later(min(wait, _LONGEST), str(ticket), Limited(job.key, wait, False))

    def _grace_now(self) -> float:
        """How late a job may come to its place, in seconds. Where others queue before it, that is longer."""
        if self._grace is not None:
            return self._grace
        window = self.limiter.window or 0.0
        usual = min(max(window / 40, self._usual.grace), _MOST_GRACE)
        return max(usual, min(1.5 * self.learned[0], window / 4, _MOST_GRACE))

    def _horizon(self) -> float:
        """How far places are taken, in seconds: a limit keeps one window's worth of them. Beyond, places have a time and
        no turn, so whoever has one would come at the same time as all others, in vain. 0 if there are no places."""
        window = self.limiter.window
        return 0.0 if window is None else max(window, 1.0) + self._grace_now()

    def _name(self, key: str | None) -> str:
        return f"{self.limiter.name}:{key or ''}"

    def _cancel(self, text: str) -> None:
        if text:
            with suppress(ForeignPermit, InvalidArgument, Unsupported):
                self.limiter.place(text).cancel()

    def ran(self, seconds: float) -> None:
        """A job took so long."""
        late, duration = self.learned
        self.learned = late, 0.8 * duration + 0.2 * seconds if duration else seconds

    def _undo(self, steps: _Steps, came: _Came | BaseException | None) -> None:
        """Nobody waits for it any more."""
        steps.close()
        answer = came[1] if isinstance(came, tuple) else None
        if isinstance(answer, Permit):
            answer.cancel()
        elif isinstance(answer, Later):
            self.give_back(answer.ticket)


def _step(steps: _Steps) -> _Came:
    try:
        return next(steps), None
    except StopIteration as end:
        return 0.0, end.value


def _seconds(parameter: str, value: object) -> float:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{parameter} is {value!r}: expected seconds as a number, or a timedelta, not {type(value).__name__}")
    if not 0 <= seconds <= _LONGEST:
        raise refuse(parameter, value, "0 s to a day")
    return float(seconds)


# ---- the function ----


class Turn:
    """What a queue's worker has got for the call that it is about to make: a start, or an error that ends the job. Used as
    a context around that call."""

    __slots__ = "_outcome", "_taken", "_token", "gate"

    def __init__(self, gate: Gate, outcome: Permit | BaseException) -> None:
        self.gate, self._outcome, self._taken = gate, outcome, False

    def take(self, gate: Gate) -> Permit | None:
        """The start, once, for the function of that gate."""
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
        """The call is over. If it was never made, its start is free again."""
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


def current_permit() -> Permit | None:
    """The permit of the limited function that is running here: to settle or renew it, or for its fence. None outside of
    one."""
    return _permit.get()


def gate_of(function: object) -> Gate | None:
    """What admits the calls of a function, if it is limited."""
    return cast("Gate | None", getattr(function, _GATE, None))


def limiting(
    limiter: Limiter,
    key: str | Callable[..., Any] | None,
    weight: int | str | Callable[..., int],
    hold: float | timedelta,
    grace: float | timedelta | None,
    on_limited: Callable[[Any, Limited], object] | None,
    usual: Usual,
) -> Callable[[_F], _F]:
    """A decorator for the functions of jobs. Calls by a queue's worker have got their turn; any other call waits."""

    def decorate(function: Any) -> Any:
        if not inspect.isfunction(function):
            raise TypeError(f"{function!r} is no function: @limited goes below the decorator that makes a job of one")
        awaits = is_awaited(function)
        gate = Gate(function, limiter, key, weight, hold, grace, on_limited, usual)
        wrapper = _awaited(function, gate) if awaits else _called(function, gate)
        setattr(wrapper, _GATE, gate)
        return wrapper

    return decorate


def _called(function: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        turn = _turn.get()
        permit = (turn and turn.take(gate)) or gate.waits((args, kwargs))
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
        permit = (turn and turn.take(gate)) or await gate.waits_async((args, kwargs))
        token, began = _permit.set(permit), time.monotonic()
        try:
            return await function(*args, **kwargs)
        finally:
            _permit.reset(token)
            gate.ran(time.monotonic() - began)
            await permit.complete_async()

    return awaited
