"""When those jobs come back that were sent away without a place."""

from __future__ import annotations

#: Nobody comes back sooner, in seconds: what a concurrency limit says is only a guess.
_SOONEST = 0.1

#: Of more units than so many times the limit, what was granted counts for half.
_REMEMBERED = 8


class _Line:
    """The jobs of one key that one process sent away: they come back one after the other, as fast as starts are granted
    there. Would all come when the first of them can start, then all but that one came in vain, again and again."""

    __slots__ = "_granted", "_latest", "_next", "_since"

    def __init__(self, now: float) -> None:
        self._since = self._latest = now
        self._granted, self._next = 0.0, 0.0

    def is_waiting(self, now: float) -> bool:
        """Is there somebody who has not come back?"""
        return self._next > now

    def is_idle(self, now: float) -> bool:
        return self._next <= now and self._latest <= now

    def grant(self, units: int, at: float) -> None:
        """So many units start at that time, or have."""
        self._granted += units
        self._latest = max(self._latest, at)

    def append(self, units: int, now: float, retry_after: float, limit: int, lead: float) -> float:
        """When to come back, at the end of the line: so long before the start as it takes to take a place, if there are
        any."""
        if self.is_idle(now):
            self._since, self._latest, self._granted = now, now, 0.0
        if self._granted > _REMEMBERED * limit:
            self._granted /= 2
            self._since += (self._latest - self._since) / 2
        if lead > 0:
            pace = (self._latest - self._since) / max(self._granted, 1.0)
        else:
            # The limit was granted before the first came here. Rather too early than too late: so it gets faster again.
            pace = 0.75 * (max(now, self._latest) - self._since) / (limit + self._granted)
        at = max(self._next, now + max(retry_after - lead, retry_after / 2, _SOONEST))
        self._next = at + pace * units
        return at


class Lines:
    """The lines of all keys of one limit. Times are seconds on any one clock."""

    def __init__(self) -> None:
        self._lines: dict[str | None, _Line] = {}
        self._sweep_at = 64

    def is_waiting(self, key: str | None, now: float) -> bool:
        line = self._lines.get(key)
        return line is not None and line.is_waiting(now)

    def start(self, key: str | None, units: int, now: float) -> None:
        """Somebody has started."""
        line = self._lines.get(key)
        if line is not None:
            line.grant(units, now)

    def place(self, key: str | None, units: int, now: float, at: float) -> None:
        """Somebody has a place for that time."""
        self._of(key, now).grant(units, at)

    def append(self, key: str | None, units: int, now: float, retry_after: float, limit: int, lead: float) -> float:
        return self._of(key, now).append(units, now, retry_after, limit, lead)

    def _of(self, key: str | None, now: float) -> _Line:
        line = self._lines.get(key)
        if line is None:
            if len(self._lines) >= self._sweep_at:
                # Keys that are idle are forgotten whenever there are twice as many as those that were not.
                self._lines = {key: line for key, line in self._lines.items() if not line.is_idle(now)}
                self._sweep_at = max(64, 2 * len(self._lines))
            line = self._lines[key] = _Line(now)
        return line
