"""What a task sees of its limit when it is not admitted."""

from __future__ import annotations

from ._celery import Ignore


class Limited(Exception):
    """There was no room, and the task's `on_limit` is "raise". Nothing is held."""

    def __init__(self, limit: str, key: str | None, retry_after: float) -> None:
        super().__init__(limit, key, retry_after)  # What it is rebuilt from in another process.
        #: The limit that said no.
        self.limit = limit
        #: The key that was asked for.
        self.key = key
        #: After this long there may be room, in seconds.
        self.retry_after = retry_after

    def __str__(self) -> str:
        of = "" if self.key is None else f" for key {self.key!r}"
        return f"limit {self.limit!r} is full{of}: retry after {self.retry_after:g} s"


class SentBack(Ignore):  # type: ignore[misc]
    """How a run ends whose task the child has sent back to its queue."""

    def __init__(self, limit: str, wait: float) -> None:
        super().__init__(limit, wait)
        self.limit, self.wait = limit, wait

    def __str__(self) -> str:
        return f"limit {self.limit!r} is full: back in {self.wait:.3f} s"
