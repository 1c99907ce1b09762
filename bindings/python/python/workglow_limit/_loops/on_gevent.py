"""gevent's hubs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gevent
from gevent._hub_local import get_hub_if_exists
from gevent.event import Event

from .waiters import FAR, Answer, Hub, _T


class GeventHub(Hub):
    __slots__ = "_bell", "native"

    def __init__(self, native: Any) -> None:
        super().__init__()
        self.native = native
        # Its own run_callback_threadsafe counts what is under way beside a loop that does so, too, in another thread.
        self._bell = native.loop.async_(ref=False)
        self._bell.start(self.answer_bell)

    def answer(self) -> Answer:
        event: Any = Event()
        return Answer(self, event.set, event.wait)

    def call_later(self, seconds: float, function: Callable[[], object]) -> Callable[[], object]:
        timer = self.native.loop.timer(seconds)

        def ring() -> None:
            timer.close()
            function()

        timer.start(ring, update=True)
        return timer.close  # type: ignore[no-any-return]

    def ring(self) -> None:
        try:
            self._bell.send()
        except ValueError as error:
            raise RuntimeError("the hub was destroyed") from error

    def tell(self, function: Callable[[], object]) -> None:
        gevent.spawn(function)

    def send(self, work: Callable[[], _T], back: Callable[[_T], object]) -> None:
        # A hub that nothing can wake up ends with an error, and does not know of our threads.
        cancel = self.call_later(FAR, lambda: None)

        def returned(outcome: _T) -> None:
            cancel()
            back(outcome)

        super().send(work, returned)


def hub() -> GeventHub | Literal[False] | None:
    native: Any = get_hub_if_exists()
    if native is None:
        return None
    if gevent.getcurrent() is native:
        return False
    found = vars(native).get("workglow_limit")
    if found is None:
        found = native.workglow_limit = GeventHub(native)
    return found
