"""Additions to Kombu for the clients and workers of these tests: a correct folder transport, and another format."""

import json
import uuid
from pathlib import Path
from time import monotonic_ns

from kombu.serialization import register
from kombu.transport import filesystem
from kombu.utils.json import dumps


def put(self, queue, payload, **_options):
    """Writes a message under a draft name first. Kombu writes it under its final name, and a reader that finds it empty drops it."""
    name = f"{monotonic_ns():020}_{uuid.uuid4()}.{queue}.msg"
    draft = Path(self.data_folder_out, name + ".draft")
    draft.write_text(dumps(payload))
    draft.rename(draft.with_suffix(""))


filesystem.Channel._put = put
register("other", json.dumps, json.loads, "application/x-other", "utf-8")
