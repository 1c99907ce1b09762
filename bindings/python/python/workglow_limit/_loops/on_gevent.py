"""gevent's hubs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import gevent as _gevent  # type: ignore[import-untyped, unused-ignore]
from gevent import _hub_local  # type: ignore[import-untyped, unused-ignore]
from gevent import event as _event

from .waiters import FAR, Hub, Owner, Signal, T

gevent: Any = _gevent
get_hub_if_exists: Any = _hub_local.get_hub_if_exists
Event: Any = _event.Event


class GeventHub(Hub):
    def __init__(self, native: Any) -> None:
        super().__init__()
        self.native = native
        # The hub's own run_callback_threadsafe updates a counter that a loop in another thread may update at the same
        # time.
        self._bell = native.loop.async_(ref=False)
        self._bell.start(self.answer_bell)

    def signal(self) -> Signal:
        event = Event()
        return event.set, event.wait

    def call_later(self, seconds: float, function: Callable[[], object]) -> Callable[[], object]:
        timer = self.native.loop.timer(seconds)
        close: Callable[[], object] = timer.close

        def ring() -> None:
            close()
            function()

        timer.start(ring, update=True)
        return close

    def ring(self) -> None:
        try:
            self._bell.send()
        except ValueError as error:
            raise RuntimeError("the hub was destroyed") from error

    def call(self, function: Callable[[], object]) -> None:
        gevent.spawn(function)

    def send(self, of: Owner, work: Callable[[], T], back: Callable[[T], object], late: Callable[[T], object]) -> None:
        # A hub with nothing to wait for ends with an error, and does not know our threads. The timer keeps it waiting.
        cancel = self.call_later(FAR, lambda: None)

        def returned(outcome: T) -> None:
            cancel()
            back(outcome)

        super().send(of, work, returned, late)


def hub() -> GeventHub | Literal[False] | None:
    native = get_hub_if_exists()
    if native is None:
        return None
    if gevent.getcurrent() is native:
        return False
    found: GeventHub | None = vars(native).get("workglow_limit")
    if found is None:
        found = native.workglow_limit = GeventHub(native)
    return found
