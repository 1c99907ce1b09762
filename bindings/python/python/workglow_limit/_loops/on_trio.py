"""trio's event loop, also of anyio on trio."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from .waiters import Loop, Signal


class TrioLoop(Loop):
    def __init__(self) -> None:
        self.native = trio.lowlevel.current_trio_token()

    def signal(self) -> Signal:
        event = trio.Event()
        return event.set, event.wait

    def call_later(self, seconds: float, function: Callable[[], object]) -> Callable[[], object]:
        scope = trio.CancelScope()

        async def ring() -> None:
            with scope:
                await trio.sleep(seconds)
                function()

        try:
            trio.lowlevel.spawn_system_task(ring, name="workglow-limit")
        except RuntimeError:
            pass  # The loop is about to end and cancels its waiters.
        return scope.cancel

    def call_soon_threadsafe(self, function: Callable[..., object], *arguments: object) -> object:
        return self.native.run_sync_soon(partial(function, *arguments))
