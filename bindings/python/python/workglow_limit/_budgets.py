"""The start that a request takes, and the budgets that a server reports in its response: what others have spent of them
is charged here, too."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ._derived import Key, Weight
from ._errors import LimitError
from ._native import Decision, Limiter, Permit
from .http import budgets, quotas

__all__ = ["Budgets", "Start", "Waiting"]

#: The kinds of tokens, by the names of servers' budgets. A budget of requests is compared with the part of that name.
_TOKENS = {"tokens": "total", "input-tokens": "input", "output-tokens": "output"}

#: The number of a limit, and a key.
_Which = tuple[int, "str | None"]

#: For how many limiters it is known which budgets their servers report.
_MOST_KEPT = 256


class Waiting(Protocol):
    """The way to wait: in a thread, or in an event loop."""

    async def acquire(
        self, limiter: Limiter, key: Key, weight: Weight, timeout: float | None, priority: int, share: int | None
    ) -> Permit: ...
    async def peek(self, limiter: Limiter, key: str | None) -> Decision: ...
    async def charge(self, limiter: Limiter, key: str | None, units: int, leaving: int) -> int: ...
    async def pause(self, limiter: Limiter, seconds: float, key: str | None) -> None: ...
    async def arrived(self, permit: Permit) -> None: ...
    async def complete(self, permit: Permit) -> None: ...
    async def cancel(self, permit: Permit) -> None: ...
    async def settle(self, permit: Permit, units: dict[str, int]) -> None: ...
    async def sleep(self, seconds: float) -> None: ...


class Start(NamedTuple):
    """What one request takes: one start of a limiter, with the tokens that it reserves of the parts that count them."""

    limiter: Limiter
    key: Key
    weight: Weight
    tokens: Mapping[str, str]  # The parts, by the kind of tokens.

    @property
    def parts(self) -> dict[str, Limiter]:
        """Returns its parts by name. A limiter without parts counts requests."""
        return self.limiter.parts or {"requests": self.limiter}

    def key_at(self, part: str) -> str | None:
        """Returns the key with which a part is charged."""
        return self.key.get(part) if isinstance(self.key, Mapping) else self.key


class Trace:
    """A request on its way, and the fewest units that were left at any moment since its start."""

    def __init__(self, fewest: int | None = None) -> None:
        self.fewest = fewest


class Level:
    """One key of one limit, while requests that it has admitted are on their way.

    Others have spent the difference if the provider states fewer units than were left here at any moment since the request
    started: our own requests, in whatever order they arrived, and what they gave back since, explain no less than that. The
    difference is charged once, because it lowers the fewest of all requests on their way. Of several processes that find it at the
    same moment one charges it: each leaves what remained when it looked, less the difference.
    """

    def __init__(self, which: _Which, part: Limiter) -> None:
        self.which, self.part = which, part  # The part's object keeps the number of its limit valid.
        self.key = which[1]
        self.traces: set[Trace] = set()
        self.is_comparing = False
        self.next: tuple[Trace, int] | None = None  # A statement that is compared after this one.

    @staticmethod
    def begin(number: int, part: Limiter, key: str | None) -> tuple[Level, Trace]:
        which, trace = (number, key or None), Trace()
        with _process.lock:
            level = _process.levels.get(which)
            if level is None:
                level = _process.levels[which] = Level(which, part)
            level.traces.add(trace)
        return level, trace

    def end(self, trace: Trace) -> None:
        with _process.lock:
            self.traces.discard(trace)
            # After a fork another one may have its place.
            if not self.traces and _process.levels.get(self.which) is self:
                del _process.levels[self.which]

    async def look(self, waiting: Waiting) -> int | None:
        """Returns how many units are left now."""
        left = (await waiting.peek(self.part, self.key)).remaining
        with _process.lock:
            for trace in self.traces.copy():
                if left is not None and (trace.fewest is None or left < trace.fewest):
                    trace.fewest = left
        return left

    async def compare(self, waiting: Waiting, trace: Trace, stated: int) -> None:
        """Charges what others have spent. One statement at a time: two would charge the same units twice. Of those that come
        meanwhile, the one that differs most is compared after it, with the same response, until none differs."""
        with _process.lock:
            if _spent(trace, stated) <= 0:
                return
            if self.is_comparing:
                if self.next is None or _spent(trace, stated) > _spent(*self.next):
                    if self.next is not None:
                        self.traces.discard(self.next[0])
                    self.next = Trace(trace.fewest), stated  # The request's own trace ends with its response.
                    self.traces.add(self.next[0])
                return
            self.is_comparing = True
        try:
            await self._charge(waiting, trace, stated)
            while (later := self._take()) is not None:
                try:
                    await self._charge(waiting, *later)
                finally:
                    self.end(later[0])
        except BaseException:
            # What came meanwhile is left to the next response.
            while (later := self._take()) is not None:
                self.end(later[0])
            raise

    def _take(self) -> tuple[Trace, int] | None:
        """Returns the statement to compare next. If there is none, the comparing is over."""
        with _process.lock:
            later, self.next = self.next, None
            self.is_comparing = later is not None
        return later

    async def _charge(self, waiting: Waiting, trace: Trace, stated: int) -> None:
        left = await self.look(waiting)
        spent = _spent(trace, stated)
        if left is None or spent <= 0:
            return
        # If other starts were faster, it charges less, and the next response says so.
        charged = await waiting.charge(self.part, self.key, spent, left - spent)
        with _process.lock:
            for other in self.traces:
                if other.fewest is not None:
                    other.fewest -= charged


def _spent(trace: Trace, stated: int) -> int:
    """Returns how many units others have spent, as far as it is known."""
    return 0 if trace.fewest is None else trace.fewest - stated


class _Process:
    """The levels of this process: all its clients charge the spending of others once."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forgets the requests of the parent after a fork. Another of its threads may have held the lock."""
        #: The garbage collector may end a request that was given up, also while its thread holds the lock.
        self.lock = threading.RLock()
        self.levels: dict[_Which, Level] = {}


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.restart)


class Watched(NamedTuple):
    """A request that was sent, with its traces by part."""

    start: Start
    traces: dict[str, tuple[Level, Trace]]
    began: float

    def end(self) -> None:
        """There is no response, or it was compared."""
        for level, trace in self.traces.values():
            level.end(trace)
        self.traces.clear()


class Budgets:
    """The budgets of the servers of one client."""

    def __init__(self, waiting: Waiting, tokens: Mapping[str, str]) -> None:
        self._waiting = waiting
        self._parts = {"requests": "requests"} | {
            budget: tokens[kind] for budget, kind in _TOKENS.items() if kind in tokens
        }
        #: The parts whose budgets servers report, by limiter. Others are not looked at.
        self._reported: dict[Limiter, set[str]] = {}

    async def watch(self, start: Start) -> Watched:
        """Looks at what is left, just after a start."""
        watched = Watched(start, {}, time.monotonic())
        if reported := self._reported.get(start.limiter):
            try:
                for name, part in start.parts.items():
                    # No server counts units that permits hold, and no one knows which alternative counts.
                    if name in reported and (number := part._timed) is not None:
                        watched.traces[name] = Level.begin(number, part, start.key_at(name))
                        await watched.traces[name][0].look(self._waiting)
            except LimitError:
                watched.end()  # It must not cost the request.
            except BaseException:
                watched.end()
                raise
        return watched

    async def compare(self, watched: Watched, response: Any) -> None:
        """Charges what others have spent: the server states fewer units than were left here."""
        try:
            for budget in budgets(response):
                if (name := self._parts.get(budget.name)) is None:
                    continue
                self._report(watched.start.limiter, name)
                if name not in watched.traces:
                    continue
                # Since its reset the server may have all of it again. With nothing left, the limit is paused until then.
                if budget.reset is not None and (
                    budget.remaining == 0 or budget.reset <= time.monotonic() - watched.began
                ):
                    continue
                level, trace = watched.traces[name]
                await level.compare(self._waiting, trace, budget.remaining)
        except LimitError:
            pass  # It must not cost the response.
        finally:
            watched.end()

    def learn(self, start: Start, response: Any, host: str) -> None:
        """Puts the sizes that the server reports above the declared policies, later. A key's requests teach nothing: the
        server does not say whose size it is."""
        for quota in quotas(response):
            name = self._parts.get(quota.name)
            part = None if name is None or start.key_at(name) else start.parts.get(name)
            if part is not None:
                part._learn(quota.units, quota.window, quota.is_estimated, host)

    def _report(self, limiter: Limiter, name: str) -> None:
        if limiter not in self._reported and len(self._reported) >= _MOST_KEPT:
            self._reported.clear()
        self._reported.setdefault(limiter, set()).add(name)
