"""eventlet's hubs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Literal
from weakref import WeakKeyDictionary, finalize

import eventlet.hubs
from eventlet.event import Event
from eventlet.patcher import original

from .waiters import Answer, Hub

# Those of eventlet's may let other greenlets run.
os: Any = original("os")


class Bell:
    """What other threads ring to have something called in a hub, which has nothing for that itself."""

    def __init__(self, native: Any) -> None:
        self._calls: deque[tuple[Callable[..., object], tuple[object, ...]]] = deque()
        self._reader, self._writer = os.pipe()
        for end in self._reader, self._writer:
            os.set_blocking(end, False)
        self.pid = os.getpid()
        finalize(self, close, self._reader, self._writer)
        native.add(native.READ, self._reader, self._answer, self._answer, lambda: None)

    def ring(self, function: Callable[..., object], *arguments: object) -> None:
        self._calls.append((function, arguments))
        try:
            os.write(self._writer, b"!")
        except BlockingIOError:
            pass  # It has not been answered for long.

    def _answer(self, *_: object) -> None:
        try:
            os.read(self._reader, 65536)
        except BlockingIOError:
            pass
        for _ in range(len(self._calls)):
            function, arguments = self._calls.popleft()
            function(*arguments)


def close(*files: int) -> None:
    for file in files:
        os.close(file)


bells: WeakKeyDictionary[Any, Bell] = WeakKeyDictionary()


class EventletHub(Hub):
    __slots__ = "_bell", "native"

    def __init__(self, native: Any) -> None:
        self.native = native
        bell = bells.get(native)
        if bell is None or bell.pid != os.getpid():
            bell = bells[native] = Bell(native)
        self._bell = bell

    def answer(self) -> Answer:
        event: Any = Event()
        return Answer(self, event.send, event.wait)

    def call_later(self, seconds: float, function: Callable[[], object]) -> Callable[[], object]:
        return self.native.schedule_call_global(seconds, function).cancel  # type: ignore[no-any-return]

    def call_soon_threadsafe(self, function: Callable[..., object], *arguments: object) -> object:
        return self._bell.ring(function, *arguments)

    def tell(self, function: Callable[[], object]) -> None:
        eventlet.spawn_n(function)


def hub() -> EventletHub | Literal[False] | None:
    native = getattr(eventlet.hubs._threadlocal, "hub", None)
    if native is None:
        return None
    return eventlet.getcurrent() is not native.greenlet and EventletHub(native)
