"""The waiters of one event loop of any kind: the core's line, one timer, and an answer for each waiter."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakSet, ref

from .._errors import LimitError
from .._native import AsyncCall, Decision, Limiter, Line, Permit, Waiter, call_in_thread

T = TypeVar("T")

#: An object that waits for a store, or the number of that store.
Owner: TypeAlias = "Limiter | Permit | AsyncCall | Line | int"

#: What wakes a task or greenlet, once, and what it waits with: in a task an awaitable is returned.
Signal: TypeAlias = tuple[Callable[[], object], Callable[[], Any]]

#: The longest timer, in seconds. Some loops do not support longer ones.
FAR = 3600.0

#: The outcome of an answer that is not set yet.
NOTHING = object()


class Answer:
    """An outcome that a task or greenlet waits for. It is set in the thread of the loop."""

    __slots__ = (
        "__weakref__",
        "_is_woken",
        "_loop",
        "_outcome",
        "_wake",
        "is_left",
        "is_prepared",
        "set_in",
        "undo",
        "wait",
    )

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._is_woken = False
        self.renew()
        self.undo: Callable[[Any], object] = cancel_start  # Called with an outcome that has no waiter left.
        self.is_left = False
        self.is_prepared = False  # Whether what its start waits for has been made in a thread.
        self.set_in = 0  # The process that set it. A copy made by a fork belongs to the parent.
        self._outcome: Any = NOTHING

    def set(self, outcome: object) -> None:
        if self.is_left:
            self.undo(outcome)
        else:
            self._outcome, self.set_in = outcome, os.getpid()
            self.wake()

    @property
    def is_set(self) -> bool:
        return self._outcome is not NOTHING

    def wake(self) -> None:
        """Lets its waiter go on, also without an outcome."""
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def renew(self) -> None:
        """Lets its waiter wait, again if it was woken without an outcome."""
        self._wake, self.wait = self._loop.signal()  # In a greenlet, `wait` waits and then returns.
        self._is_woken = False

    def end(self) -> None:
        """Sets it in a forked child, where no thread will."""
        if self._outcome is NOTHING:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.set, None)

    def take(self) -> Any:
        outcome = self._outcome
        if isinstance(outcome, BaseException):
            try:
                raise outcome
            finally:
                del outcome, self  # Otherwise they and the traceback would keep each other alive.
        return outcome

    def leave(self) -> bool:
        """Marks that its waiter has left. Returns whether it had no outcome yet."""
        self.is_left = True
        if self._outcome is NOTHING:
            return True
        self.undo(self._outcome)
        return False


class Loop(ABC):
    """The operations that waiting needs of an event loop. All but `call_soon_threadsafe` are called in its thread."""

    __slots__ = ()

    #: The library's own loop, which is hashable.
    native: Any

    @abstractmethod
    def signal(self) -> Signal: ...

    def answer(self) -> Answer:
        return Answer(self)

    @abstractmethod
    def call_later(self, seconds: float, function: Callable[[], object]) -> Callable[[], object]:
        """Calls a function once, in the loop, or drops it when the loop ends. Returns a function that cancels the call."""

    @abstractmethod
    def call_soon_threadsafe(self, function: Callable[..., object], *arguments: object) -> object:
        """Calls a function in the loop. Raises RuntimeError if the loop has ended."""

    def call(self, function: Callable[[], object]) -> None:
        """Calls a function of the program."""
        function()

    def send(self, of: Owner, work: Callable[[], T], back: Callable[[T], object], late: Callable[[T], object]) -> None:
        """Runs work, which may wait for a store, in another thread. Then it calls `back` in the loop with the outcome.
        If the loop has ended, it calls `late` instead, in any thread."""

        def deliver() -> None:
            delivery = Delivery(work(), back, late)
            with suppress(RuntimeError):
                self.call_soon_threadsafe(delivery)

        call_in_thread(of, deliver)


class Delivery(Generic[T]):
    """The delivery of an outcome to a loop, which either calls it or drops it when the loop ends."""

    __slots__ = "_back", "_is_delivered", "_late", "_outcome"

    def __init__(self, outcome: T, back: Callable[[T], object], late: Callable[[T], object]) -> None:
        self._outcome, self._back, self._late, self._is_delivered = outcome, back, late, False

    def __call__(self) -> None:
        self._is_delivered = True
        self._back(self._outcome)

    def __del__(self) -> None:
        if not self._is_delivered:
            self._late(self._outcome)


def cancel_start(outcome: object) -> None:
    """Cancels a start whose caller has gone."""
    permit = outcome.permit if isinstance(outcome, Decision) else outcome
    if isinstance(permit, Permit):
        call_in_thread(permit, partial(cancel, permit))


def cancel(permit: Permit) -> None:
    with suppress(LimitError):  # If this fails, the start passes unused.
        permit.cancel()


class Hub(Loop):
    """A loop whose tasks are greenlets, which wait inside a call. One object per hub."""

    def __init__(self) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()

    @abstractmethod
    def ring(self) -> None:
        """Schedules `answer_bell` in the hub, from any thread. Raises RuntimeError if the hub has ended."""

    def answer_bell(self, *_arguments: object) -> None:
        for _turn in range(len(self._calls)):
            function, arguments = self._calls.popleft()
            function(*arguments)

    def call_soon_threadsafe(self, function: Callable[..., object], *arguments: object) -> None:
        self._calls.append((function, arguments))
        self.ring()

    def acquire(self, waiter: Waiter) -> Permit:
        """Joins the line of this hub and waits there."""
        while True:
            waiters = Waiters.of(self, waiter)
            joined = waiters.join(waiter)
            if isinstance(joined, Permit):
                return joined
            try:
                joined.wait()
                while not waiters.goes_on(waiter, joined):
                    joined.wait()
            except BaseException:
                waiters.leave(waiter, joined)
                raise
            if joined.set_in == os.getpid():
                permit: Permit = joined.take()
                return permit

    def run(self, of: int, work: Callable[[], None]) -> None:
        """Runs work in another thread, while other greenlets continue."""
        answer = self.answer()
        pending_runs.add(answer)
        self.send(of, work, answer.set, lambda _: None)
        answer.wait()


class Timer:
    """The call of a timer, which a loop either makes or drops when it ends."""

    __slots__ = ("_waiters",)

    def __init__(self, waiters: Waiters) -> None:
        self._waiters = waiters

    def __call__(self) -> None:
        self._waiters.ring()

    def __del__(self) -> None:
        self._waiters.lose(self)


class Waiters:
    """The waiters of one limiter in one loop, which alone keeps them alive: an ended loop has no waiters.

    A start counts from its decision, and the loop may be busy before a woken task goes on. So the task that would start next is
    woken first. It has the *turn*, and its next step decides. There is one turn at a time, so a task has run up to its next await
    before the next one is decided.

    Work that would have to wait for the store is sent to another thread together with the line. Callers that arrive
    during that time join afterwards, in order.
    """

    __slots__ = (
        "__weakref__",
        "_answers",
        "_cancel",
        "_is_away",
        "_itself",
        "_joining",
        "_left",
        "_line",
        "_lines",
        "_loop",
        "_rings",
        "_sent",
        "_timer",
        "_turn",
        "_woken",
    )

    def __init__(self, loop: Loop, first: Waiter) -> None:
        self._loop, self._line, self._lines = loop, self._line_of(first), first.lines
        self._timer = 0  # The id of the timer that the loop has to call.
        self._cancel: Callable[[], object] | None = None
        self._rings = 0.0
        self._itself = ref[Waiters](self, partial(forget, self._lines, id(loop.native)))
        self._answers: dict[int, tuple[Waiter, Answer]] = {}
        self._joining: deque[tuple[Waiter, Answer]] = deque()  # Not joined yet.
        self._sent: deque[tuple[Waiter, Answer]] = deque()  # Joining in another thread.
        self._left: list[Waiter] = []  # To be removed as soon as the line is back.
        self._woken: list[str | None] = []
        self._is_away = False  # Whether another thread has the line.
        self._turn: Answer | None = None  # Of the task that was woken to decide.
        all_waiters.add(self)

    def _line_of(self, first: Waiter) -> Line:
        """Makes a line. If its limit is on a server, threads of the library ask it, and wake these waiters with the answers."""
        waiters = ref(self)

        def wake() -> None:
            found = waiters()
            if found is not None:
                found.come_back()

        return first.line(wake)

    @staticmethod
    def of(loop: Loop, waiter: Waiter) -> Waiters:
        """Returns the waiters of that waiter's limiter in this loop."""
        found = waiter.lines.get(id(loop.native))
        return (found and found()) or Waiters(loop, waiter)

    def join(self, waiter: Waiter) -> Permit | Answer:
        is_behind = self._is_away or bool(self._joining)
        try:
            joined = None if is_behind else self._line.join(waiter, False)
        except Exception:
            self._line.call_hooks()
            raise
        if isinstance(joined, Permit):
            self._line.call_hooks()
            return joined
        answer = self._loop.answer()
        if joined is None:
            self._joining.append((waiter, answer))
            if not is_behind:
                self._send()
        else:
            self._answers[joined] = waiter, answer
            self._proceed()
            self._line.call_hooks()
        return answer

    def leave(self, waiter: Waiter, answer: Answer) -> None:
        """Ends the wait of a waiter that was cancelled or interrupted."""
        if self._turn is answer:
            self._turn = None
            with suppress(RuntimeError):  # The loop has ended.
                self._loop.call_soon_threadsafe(self._advance)  # The turn is the next one's.
        if answer.leave():
            self._left.append(waiter)
            if not self._is_away:
                self._remove_left()
                self._proceed()

    def wake(self, key: str | None) -> None:
        """Notes that units of this key may have become free (None: of any key). From any thread."""
        is_first = not self._woken
        self._woken.append(key)
        if is_first:
            try:
                self._loop.call_soon_threadsafe(self._advance)
            except RuntimeError:  # The loop has ended.
                self._end()

    def come_back(self) -> None:
        """Notes that a server has answered. From any thread."""
        try:
            self._loop.call_soon_threadsafe(self._advance)
        except RuntimeError:  # The loop has ended, and what the server has granted is given back.
            self._is_away = True
            self._late(((), ()))

    def _advance(self) -> None:
        """Does the work that is due and need not wait: it gives the turn to the next task that can start, if there is one."""
        if self._is_away or self._turn is not None:
            return
        self._wake_line()
        if not self._give_turn():
            over = self._line.advance(False)
            self._deliver(over)
            if not over and not self._line.would_wait():
                self._let_join()
        self._proceed()
        self._call_hooks()

    def goes_on(self, waiter: Waiter, answer: Answer) -> bool:
        """Called by a task that was woken. If it has the turn, this decides. Returns whether its answer is set."""
        decides = not answer.is_set
        if self._turn is answer:
            self._turn = None
        elif not decides:
            return True
        if decides:
            answer.renew()
        if self._is_away:
            return not decides
        if decides:
            self._wake_line()
            if self._joining and self._joining[0][1] is answer:
                self._join_first()
            else:
                self._deliver(self._line.advance(False))
        if not self._is_away:
            if not self._line.would_wait() and not self._give_turn():
                self._let_join()
            self._proceed()
            self._call_hooks()
        return answer.is_set

    def _wake_line(self) -> None:
        woken, self._woken = self._woken, []
        for key in woken:
            self._line.wake(key)

    def _give_turn(self) -> bool:
        """Gives the turn to the task that the line would start now. Returns whether there is one."""
        number = self._line.next_to_start()
        if number is None or number not in self._answers:
            return False
        self._turn = self._answers[number][1]
        self._turn.wake()
        return True

    def _let_join(self) -> None:
        """Gives the turn to the first of the callers that arrived while the line was away: it joins when it goes on."""
        while self._joining and self._joining[0][1].is_left:
            self._joining.popleft()
        if self._joining:
            self._turn = self._joining[0][1]
            self._turn.wake()

    def _join_first(self) -> None:
        waiter, answer = self._joining.popleft()
        try:
            joined = self._line.join(waiter, False)
        except Exception as error:
            return answer.set(error)
        if joined is None:
            self._joining.appendleft((waiter, answer))
            return self._send()
        if isinstance(joined, Permit):
            return answer.set(joined)
        self._answers[joined] = waiter, answer
        return None

    def _proceed(self) -> None:
        if self._is_away or self._turn is not None:
            return
        if self._line.would_wait():
            self._send()
        else:
            self._set_timer()

    def _deliver(self, over: list[tuple[int, Permit | Exception]]) -> None:
        for number, outcome in over:
            _, answer = self._answers.pop(number, (None, None))
            if answer is not None:
                answer.set(outcome)

    def _call_hooks(self) -> None:
        if self._line.has_hook_calls():
            self._loop.call(self._line.call_hooks)

    def _remove_left(self) -> None:
        for waiter in self._left:
            number = self._line.leave(waiter)
            if number is not None:
                self._answers.pop(number, None)
        self._left.clear()

    def _set_timer(self) -> None:
        wait = 0.0 if self._joining else self._line.next()
        if wait is None:
            self._stop_timer()
            self._leave_lines()
            return
        self._lines[id(self._loop.native)] = self._itself
        wait = min(wait, FAR)
        rings = monotonic() + wait
        if self._cancel is not None:
            # A timer that rings too early costs one pass. Resetting it for each waiter would cost more.
            if self._rings <= rings:
                return
            self._stop_timer()
        self._rings, timer = rings, Timer(self)
        self._timer = id(timer)
        self._cancel = self._loop.call_later(wait, timer)

    def _stop_timer(self) -> None:
        cancel, self._cancel, self._timer = self._cancel, None, 0
        if cancel is not None:
            cancel()

    def ring(self) -> None:
        self._cancel, self._timer = None, 0
        self._advance()

    def lose(self, timer: Timer) -> None:
        """Handles a timer that the loop has dropped."""
        if id(timer) == self._timer:
            self._end()

    def _leave_lines(self) -> None:
        forget(self._lines, id(self._loop.native), self._itself)

    def _send(self) -> None:
        if not self._is_away:
            self._sent, self._joining = self._joining, deque()
            self._is_away = True
            self._lines[id(self._loop.native)] = self._itself
            self._loop.send(self._line, partial(self._work, self._sent), self._back, self._late)

    # ---- in another thread ----

    def _work(self, joining: deque[tuple[Waiter, Answer]]) -> Any:
        waiting = [(waiter, answer) for waiter, answer in joining if not answer.is_left]
        # Only for the first, which joins next, and once: what is made for a key may be taken back for another.
        if waiting and not waiting[0][1].is_prepared:
            waiting[0][1].is_prepared = True
            if self._line.prepare(waiting[0][0]):
                return [(waiter, answer, None) for waiter, answer in waiting], []  # It joins in the loop.
        joined = [(waiter, answer, self._join(waiter)) for waiter, answer in waiting]
        return joined, self._line.advance(True)

    def _join(self, waiter: Waiter) -> int | Permit | BaseException | None:
        try:
            return self._line.join(waiter, True)
        except BaseException as error:
            return error

    def _end(self) -> None:
        """Ends the waiters of a loop that has ended: they will not leave."""
        if not self._is_away:
            self._is_away = True
            self._late(((), ()))

    def _late(self, done: Any) -> None:
        """Handles an outcome after the end of the loop."""
        call_in_thread(self._line, partial(self._abandon, *done))

    def _abandon(self, joined: Any, over: Any) -> None:
        self._leave_lines()
        for *_, outcome in (*joined, *over):
            cancel_start(outcome)
        for waiter in (*self._left, *(waiter for waiter, *_ in (*joined, *self._answers.values()))):
            self._line.leave(waiter)
        self._line.advance(True)  # Finishes the work that `leave` postponed.

    # ---- in the loop again ----

    def _back(self, done: Any) -> None:
        self._is_away, self._sent = False, deque()
        joined, over = done
        self._joining.extendleft([(waiter, answer) for waiter, answer, outcome in reversed(joined) if outcome is None])
        for waiter, answer, outcome in joined:
            if outcome is None:
                continue
            if isinstance(outcome, int):
                self._answers[outcome] = waiter, answer
            else:
                answer.set(outcome)
        self._deliver(over)
        self._remove_left()
        if self._joining:
            self._proceed()
        else:
            self._advance()
        self._call_hooks()

    def restart_after_fork(self) -> None:
        """Restarts in a forked child. Its greenlets are copies of the parent's waiters and now join for themselves."""
        joining = [*self._answers.values(), *self._sent, *self._joining]
        if joining:
            first = joining[0][0]
            self._line, self._lines = self._line_of(first), first.lines
            self._answers, self._sent, self._joining = {}, deque(), deque(joining)
            self._left, self._woken, self._is_away, self._turn = [], [], False, None
            with suppress(RuntimeError):  # The child has no such loop.
                self._loop.call_soon_threadsafe(self._send)


def forget(lines: dict[int, ref[Waiters]], loop: int, waiters: ref[Waiters]) -> None:
    """Removes waiters that are over, or were dropped with their loop. Others may be there by now, who have come since."""
    if lines.get(loop) is waiters:
        del lines[loop]


all_waiters: WeakSet[Waiters] = WeakSet()

#: The answers of `Hub.run` that are not set yet.
pending_runs: WeakSet[Answer] = WeakSet()


def restart_after_fork() -> None:
    for waiters in list(all_waiters):
        waiters.restart_after_fork()
    for answer in list(pending_runs):
        answer.end()  # The native module raises an error then.


os.register_at_fork(after_in_child=restart_after_fork)
