"""asyncio's event loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable

from .waiters import Answer, Loop, _T


class AsyncioLoop(Loop):
    __slots__ = ("native",)

    def __init__(self) -> None:
        self.native: AbstractEventLoop = get_running_loop()

    def answer(self) -> Answer:
        future: Future[None] = self.native.create_future()
        return Answer(self, lambda: future.done() or future.set_result(None), lambda: future)

    def call_later(self, seconds: float, function: Callable[[], object]) -> Callable[[], object]:
        return self.native.call_later(seconds, function).cancel

    def call_soon_threadsafe(self, function: Callable[..., object], *arguments: object) -> object:
        return self.native.call_soon_threadsafe(function, *arguments)

    def send(self, work: Callable[[], _T], back: Callable[[_T], object]) -> None:
        # In the loop's own executor: asyncio.run() ends when that has done all.
        try:
            done = self.native.run_in_executor(None, work)
        except RuntimeError:  # It does no more.
            super().send(work, back)
        else:
            done.add_done_callback(lambda done: back(done.result()))
