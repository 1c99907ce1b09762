"""How many messages a worker may have on RabbitMQ's quorum queues, where Celery's prefetch count has no effect once it consumes."""

from __future__ import annotations

from typing import Any

from ._celery import detect_quorum_queues


class Window:
    """Makes Celery's prefetch count hold.

    A channel with quorum queues has no count of its own. Each consumer has one, from its beginning to its end. So a
    consumer whose count is used up is replaced: the next one may fetch what the worker may have now, less what it has. What
    the earlier ones fetched stays here until it is acknowledged, in its order.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer, self._qos, self._tasks = consumer, consumer.qos, consumer.task_consumer
        self._size: int = consumer.initial_prefetch_count  # What the present consumer of each queue may have.
        self._unacknowledged: dict[int, str] = {}  # Consumers' tags by those of messages.
        self._taken: dict[str, int] = {}  # How many of these each present consumer has.
        channel = self._tasks.channel
        self._count(channel, "basic_ack", self._gone)
        self._count(channel, "basic_reject", self._gone)
        self._count(channel, "message_to_python", self._came)
        self._qos.callback = self._look

    @staticmethod
    def needed(consumer: Any) -> bool:
        detects = consumer.app.conf.get("worker_detect_quorum_queues")
        # Zero is no bound at all.
        return bool(detects and consumer.qos.value and detect_quorum_queues(consumer.app, consumer.connection.transport.driver_type)[0])

    @property
    def is_narrow(self) -> bool:
        """Whether it is less than it should be as soon as what the worker has is done."""
        return self._size < int(self._consumer.initial_prefetch_count)

    def look_again(self) -> None:
        """Lets Celery's loop look, as if the count had changed."""
        self._qos.prev = None

    @staticmethod
    def _count(channel: Any, name: str, count: Any) -> None:
        method = getattr(channel, name)

        def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            count(first)
            return method(first, *args, **kwargs)

        setattr(channel, name, call)

    def _came(self, message: Any) -> None:
        info = message.delivery_info
        tag = info["consumer_tag"]
        self._unacknowledged[info["delivery_tag"]] = tag
        self._taken[tag] = self._taken.get(tag, 0) + 1

    def _gone(self, delivery_tag: int) -> None:
        tag = self._unacknowledged.pop(delivery_tag, "")
        if tag in self._taken:
            self._taken[tag] -= 1

    def _look(self, **_count: Any) -> None:
        room = self._qos.value - len(self._unacknowledged)
        free = self._size - max(self._taken.values(), default=0)
        # Not for every message: it takes the broker some milliseconds.
        if 2 * free < room and any(map(self._tasks.consuming_from, self._tasks.queues)):
            self._tasks.cancel()
            self._taken.clear()
            self._size = room
            self._tasks.qos(prefetch_count=room)
            self._tasks.consume()
            # For a queue that is added by and by.
            self._tasks.qos(prefetch_count=self._consumer.initial_prefetch_count)
