"""What the queues have in common: a job that cannot start now takes its place, and goes back with it as a text.

Nothing here knows a queue. A module for one finds the `Gate` of a job's function (`gate_of`), asks it, and either hands the
start to the function (`Turn`) or sends the job away with its ticket (`Later`), so that it comes back for its place.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import wraps
from threading import Lock
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

from . import _aio
from ._decorator import is_awaited
from ._derived import Arguments, Derivation, refuse
from ._errors import ForeignPermit, InvalidArgument, Unsupported
from ._line import Lines
from ._native import Limiter, Permit

__all__ = ["Gate", "Later", "Limited", "Turn", "current_permit", "gate_of", "limiting"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: Who waits for somebody to complete looks so often, in seconds.
_LOOK = 0.01

#: A place that is nearer and has not started waits for something else, for which there are no places.
_NEAR = 0.02

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


class _Place(NamedTuple):
    """What a job has got instead of a start; without a text, it only knows when to look again."""

    text: str
    wait: float


_Steps: TypeAlias = Generator[float, None, "Permit | Later"]


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
        usual_grace: float,
        on_limited: Callable[[Any, Limited], object] | None,
    ) -> None:
        if not isinstance(limiter, Limiter):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"limiter is {limiter!r}: expected a limiter of workglow_limit, not {type(limiter).__name__}")
        if on_limited is not None and not callable(on_limited):
            raise TypeError(f"on_limited is {on_limited!r}: expected a function, not {type(on_limited).__name__}")
        self.limiter = limiter
        self.hold = _seconds("hold", hold)
        self._grace = None if grace is None else _seconds("grace", grace)
        self._usual_grace = usual_grace
        self._on_limited = on_limited
        derivation = Derivation(function)
        self._key, self._weight = derivation.key("key", key), derivation.weight("weight", weight)
        self._lines, self._late, self._lock = Lines(), 0.0, Lock()

    # ---- what queues ask ----

    def admit(self, arguments: Arguments, ticket: str | None) -> Permit | Later:
        """A start for a call with these arguments, or for how long to send it away. Waits for `hold` at most.
        `ticket` is what the job has brought back, if it was sent away before."""
        steps = self._steps(self._key(arguments), self._weight(arguments), ticket)
        try:
            while True:
                wait, answer = _step(steps)
                if answer is not None:
                    return answer
                time.sleep(wait)
        finally:
            steps.close()

    async def admit_async(self, arguments: Arguments, ticket: str | None) -> Permit | Later:
        """The same in an event loop: what may wait for the store does so in the loop's executor."""
        steps = self._steps(self._key(arguments), self._weight(arguments), ticket)
        loop = asyncio.get_running_loop()
        asked = loop.run_in_executor(None, _step, steps)
        try:
            while True:
                wait, answer = await asyncio.shield(asked)
                if answer is not None:
                    return answer
                await asyncio.sleep(wait)
                asked = loop.run_in_executor(None, _step, steps)
        except asyncio.CancelledError:
            asked.add_done_callback(lambda done: loop.run_in_executor(None, self._undo, steps, done))
            raise

    def waits(self, arguments: Arguments) -> Permit:
        """A start for a call outside of a queue's worker: it is waited for."""
        return self.limiter.acquire(self._key(arguments), self._weight(arguments))

    async def waits_async(self, arguments: Arguments) -> Permit:
        return await self.limiter.acquire_async(self._key(arguments), self._weight(arguments))

    def give_back(self, ticket: str | None) -> None:
        """The job with this ticket will not run."""
        text = _place_of(ticket)[0]
        if text:
            with suppress(ForeignPermit, InvalidArgument, Unsupported):
                self.limiter.place(text).cancel()

    def tell(self, job: Any, later: Later) -> None:
        """The job was sent away. What the listener raises is the job's failure no more than the job's wait is."""
        if self._on_limited is not None:
            try:
                self._on_limited(job, later.limited)
            except Exception:
                logging.getLogger("workglow_limit").exception("on_limited raised")

    # ---- how it is decided ----

    def _steps(self, key: str | None, weight: int, ticket: str | None) -> _Steps:
        """Yields for how long to wait before it goes on. Who closes it has given up."""
        text, ready = _place_of(ticket)
        if text:
            self._heed(time.time() - ready)
        until = time.monotonic() + self.hold
        while True:
            answer = self._ask(key, weight, text, is_new=ticket is None)
            if isinstance(answer, Permit):
                return answer
            wait = max(answer.wait, _LOOK)
            if time.monotonic() + wait > until:
                return self._later(key, weight, answer)
            try:
                yield wait
            except GeneratorExit:
                self.give_back(_ticket(answer))
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
            permit = self.limiter.try_acquire(key, weight) or self._reserve(key, weight, is_new)
        if permit is not None and not permit.started:
            if permit.wait == 0:
                permit = self.limiter.present(permit)
            if not permit.started:
                place = self._away(permit)
                if place is not None:
                    return place
                permit = None
        if permit is None:
            return _Place("", self.limiter.peek(key, weight).retry_after)
        with self._lock:
            self._lines.start(key, weight, time.monotonic())
        return permit

    def _reserve(self, key: str | None, weight: int, is_new: bool) -> Permit | None:
        horizon = self._horizon()
        if horizon is None:
            return None
        if is_new:
            with self._lock:
                # Those who were sent away without one take theirs first.
                if self._lines.is_waiting(key, time.monotonic()):
                    return None
        try:
            return self.limiter.reserve(key, weight, horizon, self.grace)
        except Unsupported:
            return None

    def _away(self, permit: Permit) -> _Place | None:
        """A place as a text, if it is one to wait for."""
        # The farthest places have a time but no turn: see _horizon.
        if permit.wait <= (self._horizon() or 0.0):
            with suppress(Unsupported):
                return _Place(permit.to_text(), permit.wait)
        permit.cancel()
        return None

    def _later(self, key: str | None, weight: int, place: _Place) -> Later:
        if place.text and place.wait < _NEAR:
            # Its time has come, but not that of a part without places: it would keep others from what it cannot use.
            self.give_back(_ticket(place))
            place = _Place("", place.wait)
        now, wait = time.monotonic(), place.wait
        with self._lock:
            if place.text:
                self._lines.place(key, weight, now, now + wait)
            else:
                decision = self.limiter.peek(key, weight)
                lead = (self._horizon() or 0.0) / 2
                wait = self._lines.append(key, weight, now, decision.retry_after, decision.limit or 1, lead) - now
        # Early enough for the queue to be late.
        delay = min(max(wait - self.hold, 0.0) if place.text else wait, _LONGEST)
        return Later(delay, _ticket(_Place(place.text, wait)), Limited(key, wait, bool(place.text)))

    @property
    def grace(self) -> float:
        """How late a job may come to its place, in seconds."""
        if self._grace is not None:
            return self._grace
        window = self.limiter.window or 0.0
        usual = min(max(window / 40, self._usual_grace), _MOST_GRACE)
        return max(usual, min(1.5 * self._late, window / 4, _MOST_GRACE))

    def _heed(self, late: float) -> None:
        """A job came so late to its place: where others queue before it, places wait for longer."""
        self._late = max(late, 0.9 * self._late, 0.0)

    def _horizon(self) -> float | None:
        """How far places are taken, in seconds: a limit keeps one window's worth of them. Beyond, places have a time and
        no turn, so whoever has one would come at the same time as all others, in vain. None if there are no places."""
        window = self.limiter.window
        return None if window is None else max(window, 1.0) + self.grace

    def _undo(self, steps: _Steps, asked: asyncio.Future[Any]) -> None:
        steps.close()
        answer = None if asked.cancelled() or asked.exception() else asked.result()[1]
        if isinstance(answer, Permit):
            answer.cancel()
        elif answer is not None:
            self.give_back(answer.ticket)


def _step(steps: _Steps) -> tuple[float, Permit | Later | None]:
    try:
        return next(steps), None
    except StopIteration as end:
        return 0.0, end.value


def _ticket(place: _Place) -> str:
    """As it travels with its job: when the place is ready, in Unix seconds, so that any machine can tell, and its text."""
    return f"{time.time() + place.wait:.3f} {place.text}"


def _place_of(ticket: str | None) -> tuple[str, float]:
    """The text of a place, "" for none, and when it is ready. What somebody else put under our name is no ticket."""
    ready, _, text = (ticket or "").partition(" ")
    try:
        return text, float(ready)
    except ValueError:
        return "", 0.0


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

    __slots__ = "_gate", "_outcome", "_taken", "_token"

    def __init__(self, gate: Gate, outcome: Permit | BaseException) -> None:
        self._gate, self._outcome, self._taken = gate, outcome, False

    def take(self, gate: Gate) -> Permit | None:
        """The start, once, for the function of that gate."""
        if self._taken or gate is not self._gate:
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
    usual_grace: float,
    on_limited: Callable[[Any, Limited], object] | None,
) -> Callable[[_F], _F]:
    """A decorator for the functions of jobs. Calls by a queue's worker have got their turn; any other call waits."""

    def decorate(function: Any) -> Any:
        if not inspect.isfunction(function):
            raise TypeError(f"{function!r} is no function: @limited goes below the decorator that makes a job of one")
        awaits = is_awaited(function)
        gate = Gate(function, limiter, key, weight, hold, grace, usual_grace, on_limited)
        wrapper = _awaited(function, gate) if awaits else _called(function, gate)
        setattr(wrapper, _GATE, gate)
        return wrapper

    return decorate


def _called(function: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        turn = _turn.get()
        permit = (turn and turn.take(gate)) or gate.waits((args, kwargs))
        token = _permit.set(permit)
        try:
            return function(*args, **kwargs)
        finally:
            _permit.reset(token)
            permit.complete()

    return called


def _awaited(function: Callable[..., Any], gate: Gate) -> Callable[..., Any]:
    @wraps(function)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        turn = _turn.get()
        permit = (turn and turn.take(gate)) or await gate.waits_async((args, kwargs))
        token = _permit.set(permit)
        try:
            return await function(*args, **kwargs)
        finally:
            _permit.reset(token)
            await _aio.complete(permit)

    return awaited
