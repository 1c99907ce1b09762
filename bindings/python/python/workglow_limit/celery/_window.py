"""How many messages a worker may have on RabbitMQ's quorum queues, where Celery's prefetch count has no effect once it consumes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ._celery import detect_quorum_queues


class Window:
    """Makes Celery's prefetch count hold.

    A channel with quorum queues has no count of its own. Each consumer has one, from its beginning to its end. So a
    consumer whose count is used up is replaced: the next one may fetch what the worker may have now, less what it has. What
    the earlier ones fetched stays here until it is acknowledged.

    Only a consumer that has all that it may is replaced. To another one messages may be on their way, and these would
    go back to the end of their queue.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer, self._qos, self._tasks = consumer, consumer.qos, consumer.task_consumer
        self._unacknowledged: dict[int, str] = {}  # Consumers' tags by those of messages.
        self._taken: Counter[str] = Counter()  # How many of these are of each consumer,
        self._sizes: dict[str, int] = {}  # and how many may be, where it is not the count that Celery began with.
        channel = self._tasks.channel
        _before(channel, "message_to_python", self._came)
        _before(channel, "basic_ack", self._gone)
        _before(channel, "basic_reject", self._gone)
        self._qos.callback = self._look

    @staticmethod
    def is_needed(consumer: Any) -> bool:
        if not consumer.app.conf.worker_detect_quorum_queues or not consumer.qos.value:  # Zero is no bound at all.
            return False
        return bool(detect_quorum_queues(consumer.app, consumer.connection.transport.driver_type)[0])

    def _came(self, message: Any) -> None:
        tag = message.delivery_info["consumer_tag"]
        self._unacknowledged[message.delivery_info["delivery_tag"]] = tag
        self._taken[tag] += 1
        self._qos.prev = None  # So that Celery's loop lets us look.

    def _gone(self, delivery_tag: int) -> None:
        tag = self._unacknowledged.pop(delivery_tag, None)
        if tag is not None:
            self._taken[tag] -= 1
            if not self._taken[tag]:
                del self._taken[tag]
        self._qos.prev = None

    def _look(self, **_count: Any) -> None:
        tags: dict[str, str] = self._tasks._active_tags  # By queue.
        while self._room > 0:
            full = [queue for queue, tag in tags.items() if self._taken[tag] >= self._sizes.get(tag, self._first)]
            if not full:
                return
            self._replace(tags, full[0])

    @property
    def _first(self) -> int:
        return int(self._consumer.initial_prefetch_count)

    @property
    def _room(self) -> int:
        return int(self._qos.value) - len(self._unacknowledged)

    def _replace(self, tags: dict[str, str], queue: str) -> None:
        tag = tags.pop(queue)
        self._tasks.channel.basic_cancel(tag)
        self._sizes.pop(tag, None)
        size = self._room
        self._tasks.qos(prefetch_count=size)
        self._tasks.consume()  # From all queues from which it does not.
        self._sizes[tags[queue]] = size
        # For a queue that is added by and by.
        self._tasks.qos(prefetch_count=self._first)


def _before(channel: Any, name: str, function: Any) -> None:
    """Calls a function before this method of a channel, with its first argument."""
    method = getattr(channel, name)

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        function(first)
        return method(first, *args, **kwargs)

    setattr(channel, name, call)
