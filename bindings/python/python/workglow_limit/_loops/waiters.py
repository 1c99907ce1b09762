"""Those who wait in one event loop, whatever loop that is: the core's line of them, one timer, and an answer for each."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet

from .._errors import LimitError
from .._native import Asked, Decision, Limiter, Line, Permit, Waiter, call_elsewhere

T = TypeVar("T")

#: What waits for a store; a number of that store.
Whose: TypeAlias = "Limiter | Permit | Asked | Line | int"

#: No timer is set further ahead than this, in seconds. Some loops cannot.
FAR = 3600.0

#: What an answer has before it is told.
NOTHING = object()


class Answer:
    """What somebody waits for. It is told in the thread of the loop."""

    __slots__ = "__weakref__", "_loop", "_outcome", "_wake", "is_left", "told_in", "undo", "wait"

    def __init__(self, loop: Loop, wake: Callable[[], object], wait: Callable[[], Any]) -> None:
        self._loop, self._wake = loop, wake
        self.wait = wait  # Answers something to await; in a greenlet, after the wait.
        self.undo: Callable[[Any], object] = give_back  # Is told what nobody waits for any more.
        self.is_left = False
        self.told_in = 0  # The process. What a fork copied is the parent's.
        self._outcome: Any = NOTHING

    def tell(self, outcome: object) -> None:
        if self.is_left:
            self.undo(outcome)
        else:
            self._outcome, self.told_in = outcome, os.getpid()
            self._wake()

    def end(self) -> None:
        """In a forked child, where nobody will tell it."""
        if self._outcome is NOTHING:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.tell, None)

    def take(self) -> Any:
        outcome = self._outcome
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome, self  # Else its traceback would keep them, and they the traceback.
        return outcome

    def leave(self) -> bool:
        """Nobody waits for it any more. Did nobody tell it before?"""
        self.is_left = True
        if self._outcome is NOTHING:
            return True
        self.undo(self._outcome)
        return False


class Loop(ABC):
    """What waiting needs of an event loop. All but `call_soon_threadsafe` is called in its thread."""

    __slots__ = ()

    #: The loop itself, which can be a key.
    native: Any

    @abstractmethod
    def answer(self) -> Answer: ...

    @abstractmethod
    def call_later(self, seconds: float, function: Callable[[], object]) -> Callable[[], object]:
        """Calls a function once, in the loop. Returns what cancels that."""

    @abstractmethod
    def call_soon_threadsafe(self, function: Callable[..., object], *arguments: object) -> object:
        """Calls a function in the loop. A RuntimeError: the loop has ended."""

    def tell(self, function: Callable[[], object]) -> None:
        """Calls a function of the program's."""
        function()

    def send(self, of: Whose, work: Callable[[], T], back: Callable[[T], object], late: Callable[[T], object]) -> None:
        """Does some work, which may wait for a store, in another thread. Then `back` is called in the loop with its outcome; or
        `late` in any thread, if the loop has ended."""

        def elsewhere() -> None:
            delivery = Delivery(work(), back, late)
            with suppress(RuntimeError):
                self.call_soon_threadsafe(delivery)

        call_elsewhere(of, elsewhere)


class Delivery(Generic[T]):
    """What a loop calls, or drops when it ends."""

    __slots__ = "_back", "_is_delivered", "_late", "_outcome"

    def __init__(self, outcome: T, back: Callable[[T], object], late: Callable[[T], object]) -> None:
        self._outcome, self._back, self._late, self._is_delivered = outcome, back, late, False

    def __call__(self) -> None:
        self._is_delivered = True
        self._back(self._outcome)

    def __del__(self) -> None:
        if not self._is_delivered:
            self._late(self._outcome)


def give_back(outcome: object) -> None:
    """Cancels a start that nobody wants any more."""
    permit = outcome.permit if isinstance(outcome, Decision) else outcome
    if isinstance(permit, Permit):
        call_elsewhere(permit, partial(cancel, permit))


def cancel(permit: Permit) -> None:
    with suppress(LimitError):  # If it fails, the start goes by unused.
        permit.cancel()


class Hub(Loop):
    """A loop whose tasks are greenlets: these wait within a call. One object for each hub."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    @abstractmethod
    def ring(self) -> None:
        """Has `answer_bell` called in the hub. From any thread. A RuntimeError: the hub has ended."""

    def answer_bell(self, *_told: object) -> None:
        for _turn in range(len(self._calls)):
            function, arguments = self._calls.popleft()
            function(*arguments)

    def call_soon_threadsafe(self, function: Callable[..., object], *arguments: object) -> None:
        self._calls.append((function, arguments))
        self.ring()

    def acquire(self, waiter: Waiter) -> Permit:
        """Joins the line of this hub, and waits there."""
        while True:
            waiters = Waiters.of(self, waiter)
            joined = waiters.join(waiter)
            if isinstance(joined, Permit):
                return joined
            try:
                joined.wait()
            except BaseException:
                waiters.leave(waiter, joined)
                raise
            if joined.told_in == os.getpid():
                permit: Permit = joined.take()
                return permit

    def run(self, of: int, work: Callable[[], None]) -> None:
        """Does some work in another thread, while other greenlets go on."""
        answer = self.answer()
        under_way.add(answer)
        self.send(of, work, answer.tell, lambda _: None)
        answer.wait()


class Waiters:
    """Those who wait for one limiter in one loop.

    What would have to wait for the store is done elsewhere, with the line. Whoever asks meanwhile joins after that, in order.
    """

    __slots__ = "__weakref__", "_answers", "_asking", "_cancel", "_is_away", "_left", "_line", "_lines", "_loop", "_rings", "_sent", "_woken"

    def __init__(self, loop: Loop, first: Waiter) -> None:
        self._loop, self._line, self._lines = loop, first.line(), first.lines
        self._cancel: Callable[[], object] | None = None  # The timer.
        self._rings = 0.0
        self._answers: dict[int, tuple[Waiter, Answer]] = {}
        self._asking: deque[tuple[Waiter, Answer]] = deque()  # They have not joined yet.
        self._sent: deque[tuple[Waiter, Answer]] = deque()  # They join elsewhere.
        self._left: list[Waiter] = []  # They leave as soon as the line is here.
        self._woken: list[str | None] = []
        self._is_away = False
        everybody.add(self)

    @staticmethod
    def of(loop: Loop, waiter: Waiter) -> Waiters:
        """Those who wait for that limiter in this loop."""
        return waiter.lines.get(loop.native) or Waiters(loop, waiter)

    def join(self, waiter: Waiter) -> Permit | Answer:
        try:
            joined = None if self._is_away else self._line.join(waiter, False)
        except Exception:
            self._line.tell_hooks()
            raise
        if isinstance(joined, Permit):
            self._line.tell_hooks()
            return joined
        answer = self._loop.answer()
        if joined is None:
            self._asking.append((waiter, answer))
            self._send()
        else:
            self._answers[joined] = waiter, answer
            self._go_on()
            self._line.tell_hooks()
        return answer

    def leave(self, waiter: Waiter, answer: Answer) -> None:
        """The wait of this waiter was ended by somebody else."""
        if answer.leave():
            self._left.append(waiter)
            if not self._is_away:
                self._let_go()
                self._go_on()

    def wake(self, key: str | None) -> None:
        """There may be room for this key, or for any. From any thread."""
        is_first = not self._woken
        self._woken.append(key)
        if is_first:
            try:
                self._loop.call_soon_threadsafe(self._advance)
            except RuntimeError:  # The loop has ended, and nobody waits there any more.
                self._lines.pop(self._loop.native, None)

    def _advance(self) -> None:
        """Does what is due, and what can be done without waiting."""
        if self._is_away:
            return
        woken, self._woken = self._woken, []
        for key in woken:
            self._line.wake(key)
        self._tell(self._line.advance(False))
        self._go_on()
        self._tell_hooks()

    def _go_on(self) -> None:
        if self._line.would_wait():
            self._send()
        else:
            self._set_timer()

    def _tell(self, over: list[tuple[int, Permit | Exception]]) -> None:
        for number, outcome in over:
            _, answer = self._answers.pop(number, (None, None))
            if answer is not None:
                answer.tell(outcome)

    def _tell_hooks(self) -> None:
        if self._line.has_news():
            self._loop.tell(self._line.tell_hooks)

    def _let_go(self) -> None:
        for waiter in self._left:
            number = self._line.leave(waiter)
            if number is not None:
                self._answers.pop(number, None)
        self._left.clear()

    def _set_timer(self) -> None:
        wait = self._line.next()
        if wait is None:
            if self._cancel is not None:
                self._cancel()
                self._cancel = None
            if not self._asking:
                self._lines.pop(self._loop.native, None)
            return
        self._lines[self._loop.native] = self
        wait = min(wait, FAR)
        rings = monotonic() + wait
        if self._cancel is not None:
            # One that rings too early costs a look; setting it anew for each waiter would cost more.
            if self._rings <= rings:
                return
            self._cancel()
        self._rings = rings
        self._cancel = self._loop.call_later(wait, self._ring)

    def _ring(self) -> None:
        self._cancel = None
        self._advance()

    def _send(self) -> None:
        if not self._is_away:
            self._sent, self._asking = self._asking, deque()
            self._is_away = True
            self._lines[self._loop.native] = self
            self._loop.send(self._line, partial(self._work, self._sent), self._back, self._late)

    # ---- elsewhere ----

    def _work(self, asking: deque[tuple[Waiter, Answer]]) -> Any:
        joined = [(waiter, answer, self._join(waiter)) for waiter, answer in asking if not answer.is_left]
        return joined, self._line.advance(True)

    def _join(self, waiter: Waiter) -> int | Permit | BaseException | None:
        try:
            return self._line.join(waiter, True)
        except BaseException as error:
            return error

    def _late(self, done: Any) -> None:
        """The loop has ended, and nobody waits there any more."""
        call_elsewhere(self._line, partial(self._abandon, *done))

    def _abandon(self, joined: Any, over: Any) -> None:
        self._lines.pop(self._loop.native, None)
        for *_, outcome in (*joined, *over):
            give_back(outcome)
        for waiter in (*self._left, *(waiter for waiter, *_ in (*joined, *self._answers.values()))):
            self._line.leave(waiter)
        self._line.advance(True)  # What leaving has left to do.

    # ---- in the loop again ----

    def _back(self, done: Any) -> None:
        self._is_away, self._sent = False, deque()
        joined, over = done
        for waiter, answer, outcome in joined:
            if isinstance(outcome, int):
                self._answers[outcome] = waiter, answer
            else:
                answer.tell(outcome)
        self._tell(over)
        self._let_go()
        if self._asking:
            self._send()
        else:
            self._advance()
        self._tell_hooks()

    def begin_again(self) -> None:
        """In a forked child, where greenlets go on that are copies of those who wait in the parent: they ask for themselves."""
        asking = [*self._answers.values(), *self._sent, *self._asking]
        if asking:
            first = asking[0][0]
            self._line, self._lines = first.line(), first.lines
            self._answers, self._sent, self._asking = {}, deque(), deque(asking)
            self._left, self._woken, self._is_away = [], [], False
            with suppress(RuntimeError):  # The loop has not come along.
                self._loop.call_soon_threadsafe(self._send)


everybody: WeakSet[Waiters] = WeakSet()

#: Those of `Hub.run`.
under_way: WeakSet[Answer] = WeakSet()


def begin_again() -> None:
    for waiters in list(everybody):
        waiters.begin_again()
    for answer in list(under_way):
        answer.end()  # Rust raises.


os.register_at_fork(after_in_child=begin_again)
