"""Exceptions of tasks that are not admitted."""

from __future__ import annotations

from .._derived import Key
from ._celery import Ignore


class Limited(Exception):
    """The limit denied the start, and the task's `on_limit` is "raise". The task holds nothing."""

    def __init__(self, limit: str, key: Key, retry_after: float) -> None:
        super().__init__(limit, key, retry_after)  # Pickle rebuilds it from these.
        #: The limit that denied the start.
        self.limit = limit
        #: The key of the task. A mapping has those of parts of its limit.
        self.key = key
        #: The seconds after which a retry may succeed.
        self.retry_after = retry_after

    def __str__(self) -> str:
        of = "" if self.key is None else f" for key {self.key!r}"
        return f"limit {self.limit!r} is full{of}: retry after {self.retry_after:g} s"


class SentBack(Ignore):  # type: ignore[misc]
    """Ends a run whose task the child has sent back to its queue."""

    def __init__(self, limit: str, wait: float) -> None:
        super().__init__(limit, wait)
        self.limit, self.wait = limit, wait

    def __str__(self) -> str:
        return f"limit {self.limit!r} is full: back in {self.wait:.3f} s"
