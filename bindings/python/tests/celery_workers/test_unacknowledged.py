"""The messages that a worker held when it lost its connection to Redis."""

import time

from kombu import Connection
from workglow_limit.celery._unacknowledged import Unacknowledged

pytest_plugins = "workers"


class Request:
    def __init__(self, message):
        self.message = message


def test_a_message_that_another_worker_has_fetched_since_stays_there(redis):
    with Connection(redis()) as connection, connection.clone() as another:
        queue = connection.SimpleQueue("tasks")
        for body in "first", "second":
            queue.put(body)
        held = [(Request(queue.get(timeout=60)), time.time()) for _ in range(2)]
        unacknowledged = Unacknowledged()
        unacknowledged.leave(held)
        channel = queue.channel
        # The visibility timeout of the first one has ended meanwhile, and another worker has fetched it.
        channel.qos.restore_by_tag(held[0][0].message.delivery_tag)
        while time.time() <= held[-1][1]:
            pass
        theirs = another.SimpleQueue("tasks")
        fetched = theirs.get(timeout=60)
        assert fetched.payload == "first"

        unacknowledged.follow(channel)
        assert theirs.get(timeout=60).payload == "second"
        assert channel.client.llen("tasks") == 0 and channel.client.zcard(channel.unacked_index_key) == 2
