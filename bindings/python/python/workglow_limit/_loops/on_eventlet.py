"""eventlet's hubs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal
from weakref import finalize

import eventlet as _eventlet  # type: ignore[import-untyped, unused-ignore]
from eventlet import event as _event  # type: ignore[import-untyped, unused-ignore]
from eventlet import hubs as _hubs
from eventlet import patcher as _patcher

from .waiters import Hub, Signal

eventlet: Any = _eventlet
hubs: Any = _hubs
Event: Any = _event.Event

# eventlet's own versions may let other greenlets run.
os: Any = _patcher.original("os")


class EventletHub(Hub):
    def __init__(self, native: Any) -> None:
        super().__init__()
        self.native = native
        self.pid = os.getpid()  # A forked child needs its own pipe.
        self._reader, self._writer = os.pipe()
        for end in self._reader, self._writer:
            os.set_blocking(end, False)
            finalize(self, os.close, end)
        native.add(native.READ, self._reader, self.answer_bell, self.answer_bell, lambda: None)

    def signal(self) -> Signal:
        event = Event()
        return event.send, event.wait

    def call_later(self, seconds: float, function: Callable[[], object]) -> Callable[[], object]:
        cancel: Callable[[], object] = self.native.schedule_call_global(seconds, function).cancel
        return cancel

    def ring(self) -> None:
        with suppress(BlockingIOError):  # The pipe is full, so the hub will wake up anyway.
            os.write(self._writer, b"!")

    def answer_bell(self, *_arguments: object) -> None:
        with suppress(BlockingIOError):
            os.read(self._reader, 65536)
        super().answer_bell()

    def call(self, function: Callable[[], object]) -> None:
        eventlet.spawn_n(function)


def hub() -> EventletHub | Literal[False] | None:
    native = getattr(hubs._threadlocal, "hub", None)
    if native is None:
        return None
    if eventlet.getcurrent() is native.greenlet:
        return False
    found: EventletHub | None = vars(native).get("workglow_limit")
    if found is None or found.pid != os.getpid():
        found = native.workglow_limit = EventletHub(native)
    return found
