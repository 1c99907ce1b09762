"""The brokers and their Celery settings: Redis, a folder of files, and RabbitMQ with either kind of queue.

Celery's file system transport opens a message in the folder that it reads from, and then writes it, so a worker may
find half a message. Here a message is written next to that folder and moved in, so that a worker finds all of it or
nothing. Taking a message is safe: the transport moves it away first, and only one of two workers that move a file
succeeds. The transport also creates the table of an exchange before it locks it, so a second worker may find an empty
table. Here only one worker at a time declares its queue.
"""

import fcntl
import time
import uuid
from pathlib import Path

from kombu.transport import TRANSPORT_ALIASES, filesystem
from kombu.utils.json import dumps


class Channel(filesystem.Channel):
    def _put(self, queue, payload, **_):
        # The transport defines the form of the name: it reads messages in order of their names, and finds the queue
        # after the first dot.
        name = f"{round(time.monotonic() * 1000)}_{uuid.uuid4()}.{queue}.msg"
        draft = Path(self.data_folder_out, name)
        draft.write_text(dumps(payload))
        draft.rename(Path(self.data_folder_in, name))

    def _queue_bind(self, *arguments):
        with open(self.control_folder / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            super()._queue_bind(*arguments)


class Transport(filesystem.Transport):
    Channel = Channel


TRANSPORT_ALIASES["filesystem"] = f"{__name__}:Transport"

KINDS = ["redis", "filesystem"]
#: "rabbitmq-delayed": RabbitMQ itself delays messages, which it does only for quorum queues behind a topic exchange.
HAS_RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server").exists()
if HAS_RABBITMQ:
    KINDS += ["rabbitmq-classic", "rabbitmq-quorum"]


def settings(url):
    """Returns Celery's settings for a broker: `redis://…`, `amqp://…?queues=KIND`, or `filesystem:///FOLDER`, whose
    folders are created."""
    if url.startswith("amqp://"):
        url, _, kind = url.partition("?queues=")
        if kind == "delayed":
            return {"broker_url": url, "task_default_queue_type": "quorum", "task_default_exchange_type": "topic"}
        return {"broker_url": url, "task_default_queue_type": kind}
    if not url.startswith("filesystem://"):
        return {"broker_url": url}
    folder = Path(url.removeprefix("filesystem://"))
    for name in ("inbox", "drafts", "processed", "control"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    return {
        "broker_url": "filesystem://",
        "broker_transport_options": {
            "data_folder_in": f"{folder}/inbox",
            "data_folder_out": f"{folder}/drafts",
            "processed_folder": f"{folder}/processed",
            "control_folder": f"{folder}/control",
            "store_processed": True,
            "polling_interval": 0.01,
        },
        "worker_enable_remote_control": False,
    }
