"""The prefetch window of RabbitMQ's quorum queues, where a change of Celery's prefetch count has no effect on running
consumers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ._celery import detect_quorum_queues


class PrefetchWindow:
    """Enforces Celery's prefetch count.

    With quorum queues the count belongs to each consumer, not to the channel, and is fixed from the consumer's start to
    its end. So a consumer that has used up its count is replaced. The next one may fetch the worker's present count
    less the messages that it has. Messages of earlier consumers remain here until they are acknowledged.

    Only a consumer that has used up its count is replaced. Messages may be on their way to any other, and would return
    to the end of their queue.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer, self._qos, self._tasks = consumer, consumer.qos, consumer.task_consumer
        self._unacknowledged: dict[int, str] = {}  # The consumer's tag by the message's tag.
        self._taken: Counter[str] = Counter()  # The number of unacknowledged messages per consumer.
        self._sizes: dict[str, int] = {}  # The count of each consumer whose count is not Celery's initial one.
        channel = self._tasks.channel
        _before(channel, "message_to_python", self._received)
        _before(channel, "basic_ack", self._removed)
        _before(channel, "basic_reject", self._removed)
        self._qos.callback = self._check

    @staticmethod
    def is_needed(consumer: Any) -> bool:
        # Celery before 5.5 has no such setting. A count of zero means no bound.
        if not consumer.app.conf.get("worker_detect_quorum_queues") or not consumer.qos.value:
            return False
        return bool(detect_quorum_queues(consumer.app, consumer.connection.transport.driver_type)[0])

    def _received(self, message: Any) -> None:
        tag = message.delivery_info["consumer_tag"]
        self._unacknowledged[message.delivery_info["delivery_tag"]] = tag
        self._taken[tag] += 1
        self._qos.prev = None  # Makes Celery's loop call `_check`.

    def _removed(self, delivery_tag: int) -> None:
        tag = self._unacknowledged.pop(delivery_tag, None)
        if tag is not None:
            self._taken[tag] -= 1
            if not self._taken[tag]:
                del self._taken[tag]
        self._qos.prev = None

    def _check(self, **_count: Any) -> None:
        tags: dict[str, str] = self._tasks._active_tags  # By queue.
        while self._free > 0:
            full = [queue for queue, tag in tags.items() if self._taken[tag] >= self._sizes.get(tag, self._initial)]
            if not full:
                return
            self._replace(tags, full[0])

    @property
    def _initial(self) -> int:
        return int(self._consumer.initial_prefetch_count)

    @property
    def _free(self) -> int:
        return int(self._qos.value) - len(self._unacknowledged)

    def _replace(self, tags: dict[str, str], queue: str) -> None:
        tag = tags.pop(queue)
        self._tasks.channel.basic_cancel(tag)
        self._sizes.pop(tag, None)
        size = self._free
        self._tasks.qos(prefetch_count=size)
        self._tasks.consume()  # Starts a consumer for each queue without one.
        self._sizes[tags[queue]] = size
        # For queues that are added later.
        self._tasks.qos(prefetch_count=self._initial)


def _before(channel: Any, name: str, function: Any) -> None:
    """Calls a function before a method of a channel, with the method's first argument."""
    method = getattr(channel, name)

    def call(first: Any, *args: Any, **kwargs: Any) -> Any:
        function(first)
        return method(first, *args, **kwargs)

    setattr(channel, name, call)
