"""The messages of held tasks when a worker on Redis loses its connection."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Unacknowledged:
    """Returns these messages to their queue when the connection is back.

    Kombu returns all messages of a channel when it closes it. While the server is down that fails, and the messages
    would wait for their visibility timeout. If the channel was fetching, Kombu before 5.7 does not close it, and Kombu
    5.7 closes it after it has lost its connection: an AttributeError then ends the worker. A worker that holds tasks
    fetches nearly always.
    """

    def __init__(self) -> None:
        self._left: list[tuple[str, float]] = []  # Delivery tags, and when the worker had them. Oldest first.

    def leave(self, requests: Iterable[tuple[Any, float]]) -> None:
        """Notes requests that the worker holds no longer, because their connection is lost, each with the Unix time at
        which the worker had it."""
        self._left += [(request.message.delivery_tag, had_at) for request, had_at in requests]

    def follow(self, channel: Any) -> None:
        """Returns what the previous channel has left, by the channel that replaces it."""
        qos: Any = getattr(channel, "qos", None)  # RabbitMQ's channels have none.
        if not hasattr(qos, "restore_by_tag"):
            self._left.clear()  # Other brokers than Redis return them themselves.
            return
        while self._left:  # The last one returned is the first one fetched.
            tag, had_at = self._left[-1]
            with channel.conn_or_acquire() as client:
                fetched_at = client.zscore(qos.unacked_index_key, tag)
            # Otherwise it has returned already, and perhaps another worker has fetched it since.
            if fetched_at is not None and fetched_at <= had_at:
                qos.restore_by_tag(tag)
            self._left.pop()
        restore_unacked_once = qos.restore_unacked_once

        def restore(*args: Any, **options: Any) -> None:
            if channel.connection.client is None:  # The connection is lost.
                qos._on_collect.cancel()  # Nor when the process ends.
            else:
                restore_unacked_once(*args, **options)

        qos.restore_unacked_once = restore
