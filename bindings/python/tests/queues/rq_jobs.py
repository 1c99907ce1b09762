"""The jobs of test_rq.py. RQ imports functions by name."""

import os
from pathlib import Path

from workglow_limit import Store
from workglow_limit.rq import current_permit, limited

limiter = Store(os.environ["LIMITS"]).limiter("l", "1/3s")
away = []


@limited(limiter, weight="units", on_limited=lambda job, why: away.append((job.id, why)))
def ask(path, units=1):
    assert current_permit() is not None
    with Path(path).open("a") as file:
        print(units, file=file)


def free(path):
    with Path(path).open("a") as file:
        print("free", file=file)
