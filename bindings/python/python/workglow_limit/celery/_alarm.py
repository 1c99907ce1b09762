"""Timed calls of one function: in the worker's event loop if it has one, otherwise in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from ._celery import get_logger

logger: Any = get_logger(__name__)

#: Does the work that is due. Returns the seconds until more is due, or None.
Function = Callable[[], float | None]


class Alarm(Protocol):
    def wake(self) -> None:
        """Calls the function as soon as possible. From any thread."""

    def close(self) -> None: ...


def _guarded(function: Function) -> float | None:
    try:
        return function()
    except Exception:
        logger.exception("limits: the next attempt is in 1 s")
        return 1.0


class LoopAlarm:
    """The alarm of workers with an event loop, which run everything in one thread."""

    def __init__(self, hub: Any, function: Function) -> None:
        self._hub, self._function = hub, function
        self._thread = threading.get_ident()
        self._soon = False
        self._entry: Any = None

    def wake(self) -> None:
        if not self._soon:
            self._soon = True
            self._hub.call_soon(self._run_soon)
            if threading.get_ident() == self._thread:
                # From within a call, call_soon runs only after the next event. A timer runs before it.
                self._hub.call_later(0, self._run_soon)

    def _run_soon(self) -> None:
        if self._soon:
            self._run()

    def _run(self) -> None:
        self._soon = False
        self.close()
        wait = _guarded(self._function)
        if wait is not None:
            self._entry = self._hub.call_later(wait, self._run)

    def close(self) -> None:
        if self._entry is not None:
            self._entry.cancel()
            self._entry = None


class ThreadAlarm:
    """The alarm of workers without an event loop. Celery's own timer thread may be late by a second, because a new
    entry does not wake it."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._woken = threading.Event()
        self._closed = False
        threading.Thread(target=self._run, name="workglow-limit", daemon=True).start()

    def wake(self) -> None:
        self._woken.set()

    def _run(self) -> None:
        wait: float | None = None
        while True:
            self._woken.wait(wait)
            self._woken.clear()
            if self._closed:
                return
            wait = _guarded(self._function)

    def close(self) -> None:
        self._closed = True
        self._woken.set()
