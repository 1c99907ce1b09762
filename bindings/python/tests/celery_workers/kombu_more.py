"""What clients and workers of these tests add to Kombu: a folder as the broker without the faults of its own, and one more format."""

import json
import uuid
from pathlib import Path
from time import monotonic_ns

from kombu.serialization import register
from kombu.transport import filesystem
from kombu.utils.json import dumps


def put(self, queue, payload, **_options):
    """Kombu writes a message under the name that readers look for, and a reader that finds it still empty drops it."""
    name = f"{monotonic_ns():020}_{uuid.uuid4()}.{queue}.msg"
    draft = Path(self.data_folder_out, name + ".draft")
    draft.write_text(dumps(payload))
    draft.rename(draft.with_suffix(""))


filesystem.Channel._put = put
register("other", json.dumps, json.loads, "application/x-other", "utf-8")
