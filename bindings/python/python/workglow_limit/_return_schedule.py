"""The return times of jobs that were sent away without a place. They return one after the other, at the rate of the
limit's starts.

If all returned when the first could start, the rest would be denied again.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import Any, Protocol

#: Appends a job to the end of a schedule, by the clock of Redis. An empty schedule expires.
_APPEND = """
local now = redis.call('TIME')
now = now[1] + now[2] / 1e6
local at = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now + ARGV[1])
local next = at + ARGV[2]
redis.call('SET', KEYS[1], string.format('%.6f', next), 'PX', math.ceil((next - now) * 1000) + 1000)
return string.format('%.6f', at - now)
"""


class ReturnSchedule(Protocol):
    """Schedules of returning jobs, by the name of the limit and key that they wait for."""

    def append(self, name: str, soonest: float, pace: float) -> Any | Awaitable[Any]:
        """Appends a job and returns the seconds after which it should return: at least `soonest`. The next job returns
        `pace` seconds later. The result of an asynchronous schedule must be awaited."""


class LocalSchedule:
    """The schedules of one process."""

    def __init__(self) -> None:
        self._next: dict[str, float] = {}
        self._sweep_at = 64

    def is_waiting(self, name: str) -> bool:
        """Returns whether a job has not returned yet."""
        return self._next.get(name, 0.0) > time.monotonic()

    def append(self, name: str, soonest: float, pace: float) -> float:
        now = time.monotonic()
        at = max(self._next.get(name, 0.0), now + soonest)
        self.extend(name, at - now + pace)
        return at - now

    def extend(self, name: str, wait: float) -> None:
        """Extends a schedule to end at least `wait` seconds from now."""
        now = time.monotonic()
        if name not in self._next and len(self._next) >= self._sweep_at:
            # Empty schedules are dropped whenever their number has doubled since the last sweep.
            self._next = {name: at for name, at in self._next.items() if at > now}
            self._sweep_at = max(64, 2 * len(self._next))
        self._next[name] = max(self._next.get(name, 0.0), now + wait)


class RedisSchedule:
    """The schedules of all workers of a queue, in its Redis. With an asynchronous client, `append` must be awaited."""

    def __init__(self, redis: Any, prefix: str) -> None:
        self._redis, self._script, self._prefix = redis, redis.register_script(_APPEND), prefix

    def is_waiting(self, name: str) -> bool:
        """Returns whether a job has not returned yet. Not for asynchronous clients."""
        kept = self._redis.get(self._prefix + name)
        return kept is not None and float(kept) > time.time()

    def append(self, name: str, soonest: float, pace: float) -> Any:
        return self._script(keys=[self._prefix + name], args=[f"{soonest:.6f}", f"{pace:.6f}"])
