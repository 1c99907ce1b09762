"""asyncio's event loop."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable
from weakref import ref

from .waiters import Loop, Signal


class AsyncioLoop(Loop):
    native: AbstractEventLoop

    def __init__(self) -> None:
        self.native = get_running_loop()

    def signal(self) -> Signal:
        future: Future[None] = self.native.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        return wake, lambda: future

    def call_later(self, seconds: float, function: Callable[[], object]) -> Callable[[], object]:
        # Only the loop keeps the timer, so that it drops the function when it is closed.
        timer = ref(self.native.call_later(seconds, function))

        def cancel() -> None:
            found = timer()
            if found is not None:
                found.cancel()

        return cancel

    def call_soon_threadsafe(self, function: Callable[..., object], *arguments: object) -> object:
        return self.native.call_soon_threadsafe(function, *arguments)
