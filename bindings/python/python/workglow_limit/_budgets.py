"""The start that a request takes, and the budgets that a server reports in its response: what others have spent of them
is charged here, too."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ._derived import Key, Weight
from ._errors import LimitError
from ._native import Decision, FirstOfLimiter, Limiter, Permit
from .http import Budget, budgets

__all__ = ["Budgets", "Start", "Waiting"]

#: The kinds of tokens, by the names of servers' budgets. A budget of requests is compared with the part of that name.
_TOKENS = {"tokens": "total", "input-tokens": "input", "output-tokens": "output"}


class Waiting(Protocol):
    """The way to wait: in a thread, or in an event loop."""

    async def acquire(
        self, limiter: Limiter, key: Key, weight: Weight, timeout: float | None, priority: int
    ) -> Permit: ...
    async def peek(self, limiter: Limiter, key: str | None) -> Decision: ...
    async def charge(self, limiter: Limiter, key: str | None, units: int) -> None: ...
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
        """Returns its parts by name. A limiter without parts counts requests; of alternatives, no one knows which."""
        if isinstance(self.limiter, FirstOfLimiter):
            return {}
        return self.limiter.parts or {"requests": self.limiter}

    def key_at(self, part: str) -> str | None:
        """Returns the key with which a part is charged."""
        return self.key.get(part) if isinstance(self.key, Mapping) else self.key


class Watched(NamedTuple):
    """A request that was sent, and what remained here just after its start."""

    start: Start
    remaining: dict[str, int]  # By part.
    began: float


class Budgets:
    """The budgets of the servers of one client."""

    def __init__(self, waiting: Waiting, tokens: Mapping[str, str]) -> None:
        self._waiting = waiting
        self._parts = {"requests": "requests"} | {
            budget: tokens[kind] for budget, kind in _TOKENS.items() if kind in tokens
        }
        #: The parts whose budgets servers report. Others are not looked at.
        self._reported: set[str] = set()
        #: What is being compared: a part's name and key. Two that compare at once would charge the same units twice.
        self._comparing: dict[tuple[str, str | None], object] = {}

    async def watch(self, start: Start) -> Watched:
        """Looks at what remains, just after a start."""
        remaining: dict[str, int] = {}
        if self._reported:
            for name, part in start.parts.items():
                if name in self._reported and (left := await self._left(start, name, part)) is not None:
                    remaining[name] = left
        return Watched(start, remaining, time.monotonic())

    async def compare(self, watched: Watched, response: Any) -> None:
        """Charges what others have spent: fewer units remain at the server than here.

        The server counted when the request arrived, so its number belongs to the moment just after the start. Units that
        have become free here since then were not spent by others, and neither were those that later starts have taken.
        """
        stated = budgets(response)
        parts = watched.start.parts if stated else {}
        for budget in stated:
            name = self._parts.get(budget.name)
            if name is None or name not in parts:
                continue
            self._reported.add(name)
            # After its reset the server may have all of it again.
            if name in watched.remaining and (budget.reset is None or budget.reset > time.monotonic() - watched.began):
                await self._charge(watched, budget, name, parts[name])

    async def _charge(self, watched: Watched, budget: Budget, name: str, part: Limiter) -> None:
        which, own = (name, watched.start.key_at(name)), object()
        if self._comparing.setdefault(which, own) is not own:
            return  # The next response says so again.
        try:
            left = await self._left(watched.start, name, part)
            spent = 0 if left is None else min(watched.remaining[name], left) - budget.remaining
            if spent > 0:
                await self._waiting.charge(part, which[1], spent)
        except LimitError:
            pass  # It must not cost the response.
        finally:
            del self._comparing[which]

    async def _left(self, start: Start, name: str, part: Limiter) -> int | None:
        try:
            return (await self._waiting.peek(part, start.key_at(name))).remaining
        except LimitError:
            return None  # It must not cost the request.
