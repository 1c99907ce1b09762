"""When those jobs come back that were sent away without a place: one after the other, as fast as the limit starts them.

Would all come when the first of them can start, then all but that one came in vain, again and again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any, Protocol

#: By the clock of Redis. Whoever comes is the last; a line that nobody is in is forgotten.
_APPEND = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1e6
local at = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now + ARGV[1])
local next = at + ARGV[2]
redis.call('SET', KEYS[1], string.format('%.6f', next), 'PX', math.ceil((next - now) * 1000) + 1000)
return string.format('%.6f', at - now)
"""


class Line(Protocol):
    """Lines of jobs, by the names of what they wait for."""

    def append(self, name: str, soonest: float, pace: float) -> Any | Awaitable[Any]:
        """After how many seconds to come back, at the end of the line: not before `soonest`, and the next comes `pace`
        seconds later. An asynchronous line says so when it is awaited."""


class LocalLine:
    """The lines of one process."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._sweep_at = 64

    def is_waiting(self, name: str) -> bool:
        """Is there somebody who has not come back?"""
        return self._next.get(name, 0.0) > time.monotonic()

    def append(self, name: str, soonest: float, pace: float) -> float:
        now = time.monotonic()
        at = max(self._next.get(name, 0.0), now + soonest)
        self.extend(name, at - now + pace)
        return at - now

    def extend(self, name: str, wait: float) -> None:
        """The line is so many seconds long, as somebody has heard."""
        now = time.monotonic()
        if name not in self._next and len(self._next) >= self._sweep_at:
            # Lines that nobody is in are forgotten whenever there are twice as many as there were others.
            self._next = {name: at for name, at in self._next.items() if at > now}
            self._sweep_at = max(64, 2 * len(self._next))
        self._next[name] = max(self._next.get(name, 0.0), now + wait)


class RedisLine:
    """The lines of all workers of a queue, in its Redis. With an asynchronous client, `append` is awaited."""

    def __init__(self, redis: Any, prefix: str) -> None:
        self._redis, self._script, self._prefix = redis, redis.register_script(_APPEND), prefix

    def is_waiting(self, name: str) -> bool:
        """Is there somebody who has not come back? Not with an asynchronous client."""
        kept = self._redis.get(self._prefix + name)
        return kept is not None and float(kept) > time.time()

    def append(self, name: str, soonest: float, pace: float) -> Any:
        return self._script(keys=[self._prefix + name], args=[f"{soonest:.6f}", f"{pace:.6f}"])
