"""Limits for Celery tasks that hold across all workers, processes and languages.

from workglow_limit.celery import install

app = Celery("tasks", broker="redis://localhost")
install(app, "sqlite:limits.db")

@app.task(limit="100/1m + 5 concurrent", limit_key="tenant")
def ask(tenant, prompt): ...
"""

from ._child import current_permit
from ._errors import Limited
from ._limits import install

__all__ = ["Limited", "current_permit", "install"]
