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
        self._tags: list[str] = []  # Oldest first.

    def leave(self, requests: Iterable[Any]) -> None:
        """Notes requests that the worker holds no longer, because their connection is lost."""
        self._tags += [request.message.delivery_tag for request in requests]

    def follow(self, channel: Any) -> None:
        """Returns what the previous channel has left, by the channel that replaces it."""
        qos = getattr(channel, "qos", None)  # RabbitMQ's channels have none.
        if not hasattr(qos, "restore_by_tag"):
            self._tags.clear()  # Other brokers than Redis return them themselves.
            return
        while self._tags:  # The last one returned is the first one fetched.
            qos.restore_by_tag(self._tags[-1])  # Does nothing if the message has returned already.
            self._tags.pop()
        restore_unacked_once = qos.restore_unacked_once

        def restore(*args: Any, **options: Any) -> None:
            if channel.connection.client is None:  # The connection is lost.
                qos._on_collect.cancel()  # Nor when the process ends.
            else:
                restore_unacked_once(*args, **options)

        qos.restore_unacked_once = restore
