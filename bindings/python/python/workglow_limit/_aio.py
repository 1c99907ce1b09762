"""Waiting in an event loop. Imported at the first use, because asyncio takes longer to import than everything else."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop, Future, TimerHandle
from collections import deque
from typing import Any

from ._native import Asked, Decision, Permit, Waiter


async def acquire(waiter: Waiter) -> Permit:
    """Joins the line of the running loop, and waits there."""
    loop = asyncio.get_running_loop()
    waiters: Waiters = waiter.lines.get(loop) or Waiters(loop, waiter)
    joined = waiters.join(waiter)
    if isinstance(joined, Permit):
        return joined
    try:
        return await joined
    except BaseException:
        waiters.leave(waiter, joined)
        raise


class Waiters:
    """Those who wait for one limiter in one event loop: the core's line of them, one timer, and a future for each.

    What would have to wait for the store is done in the loop's executor. Whoever asks meanwhile joins after that, in order.
    """

    __slots__ = "_asking", "_futures", "_is_away", "_left", "_line", "_lines", "_loop", "_timer", "_woken"

    def __init__(self, loop: AbstractEventLoop, first: Waiter) -> None:
        self._loop, self._line, self._lines = loop, first.line(), first.lines
        self._timer: TimerHandle | None = None
        self._futures: dict[int, Future[Permit]] = {}
        self._asking: deque[tuple[Waiter, Future[Permit]]] = deque()  # They have not joined yet.
        self._left: list[Waiter] = []  # They leave as soon as the line is here.
        self._woken: list[str | None] = []
        self._is_away = False

    def join(self, waiter: Waiter) -> Permit | Future[Permit]:
        joined = None if self._is_away else self._line.join(waiter, False)
        if isinstance(joined, Permit):
            return joined
        future: Future[Permit] = self._loop.create_future()
        if joined is None:
            self._asking.append((waiter, future))
            self._send()
        else:
            self._futures[joined] = future
            self._go_on()
        return future

    def leave(self, waiter: Waiter, future: Future[Permit]) -> None:
        """The wait of this waiter was ended, by an answer or by somebody else."""
        if future.cancel() or future.cancelled():
            self._left.append(waiter)
            if not self._is_away:
                self._let_go()
                self._go_on()
        elif future.exception() is None:
            give_back(future.result())  # It came too late for whoever waited.

    def wake(self, key: str | None) -> None:
        """There may be room for this key, or for any. From any thread."""
        is_first = not self._woken
        self._woken.append(key)
        if is_first:
            try:
                self._loop.call_soon_threadsafe(self._advance)
            except RuntimeError:  # The loop is closed, and nobody waits there any more.
                self._lines.pop(self._loop, None)

    def _advance(self) -> None:
        """Does what is due, and what can be done without waiting."""
        if self._is_away:
            return
        woken, self._woken = self._woken, []
        for key in woken:
            self._line.wake(key)
        self._tell(self._line.advance(False))
        self._go_on()

    def _go_on(self) -> None:
        if self._line.would_wait():
            self._send()
        else:
            self._set_timer()

    def _tell(self, over: list[tuple[int, Permit | Exception]]) -> None:
        for number, outcome in over:
            future = self._futures.pop(number, None)
            if future is not None:
                answer(future, outcome)

    def _let_go(self) -> None:
        for waiter in self._left:
            number = self._line.leave(waiter)
            if number is not None:
                self._futures.pop(number, None)
        self._left.clear()

    def _set_timer(self) -> None:
        wait = self._line.next()
        if wait is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if not self._asking:
                self._lines.pop(self._loop, None)
            return
        self._lines[self._loop] = self
        due = self._loop.time() + wait
        if self._timer is not None:
            # One that rings too early costs a look; setting it anew for each waiter would cost more.
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self._advance()

    # ---- in the executor ----

    def _send(self) -> None:
        if not self._is_away:
            work = self._loop.run_in_executor(None, self._work, self._asking)
            self._asking, self._is_away = deque(), True
            self._lines[self._loop] = self
            work.add_done_callback(self._back)

    def _work(self, asking: deque[tuple[Waiter, Future[Permit]]]) -> Any:
        joined = [(future, self._join(waiter)) for waiter, future in asking if not future.cancelled()]
        return joined, self._line.advance(True)

    def _join(self, waiter: Waiter) -> int | Permit | BaseException | None:
        try:
            return self._line.join(waiter, True)
        except BaseException as error:
            return error

    def _back(self, work: Future[Any]) -> None:
        self._is_away = False
        joined, over = work.result()
        for future, outcome in joined:
            if isinstance(outcome, int):
                self._futures[outcome] = future
            else:
                answer(future, outcome)
        self._tell(over)
        self._let_go()
        if self._asking:
            self._send()
        else:
            self._advance()


def answer(future: Future[Permit], outcome: Permit | BaseException) -> None:
    """Tells a waiter how its wait ended."""
    if isinstance(outcome, BaseException):
        if not future.done():
            future.set_exception(outcome)
    elif future.done():
        give_back(outcome)  # Somebody ended the wait meanwhile.
    else:
        future.set_result(outcome)


async def ask(asked: Asked) -> Any:
    """A start, a look, or a permit's end. What has to wait for the store does so in the loop's executor.

    An end goes on if the task that awaits it is cancelled; a start is given back.
    """
    answer = asked.answer(False)
    if answer is not False:
        return answer
    work: Future[Any] = asyncio.get_running_loop().run_in_executor(None, asked.answer, True)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(forget)
        raise


async def itself(permit: Permit) -> Permit:
    """What `async with permit` enters."""
    return permit


def forget(work: Future[Any]) -> None:
    """Gives a start back that nobody waits for any more."""
    if not work.cancelled() and work.exception() is None:
        answer = work.result()
        permit = answer.permit if isinstance(answer, Decision) else answer
        if permit is not None:
            give_back(permit)


def give_back(permit: Permit) -> None:
    """Cancels a start that nobody wants any more. A server is told in the loop's executor."""
    asyncio.get_running_loop().run_in_executor(None, permit.cancel)
