"""All imports from Celery, which has no types, in one place."""

from celery import Task, bootsteps, signals  # type: ignore[import-untyped]
from celery.app.defaults import SETTING_KEYS  # type: ignore[import-untyped]
from celery.exceptions import Ignore, ImproperlyConfigured  # type: ignore[import-untyped]
from celery.utils.log import get_logger  # type: ignore[import-untyped]
from celery.worker import state  # type: ignore[import-untyped]
from celery.worker.control import control_command, inspect_command, nok, rate_limit  # type: ignore[import-untyped]
from kombu.serialization import registry

try:
    from celery.utils.quorum_queues import detect_quorum_queues  # type: ignore[import-untyped]
except ImportError:  # Celery before 5.5 cannot consume from quorum queues.

    def detect_quorum_queues(app: object, driver_type: str) -> tuple[bool, str]:
        return False, ""


#: The name of each format by its content type.
serializers = registry.type_to_name

__all__ = [
    "SETTING_KEYS",
    "Ignore",
    "ImproperlyConfigured",
    "Task",
    "bootsteps",
    "control_command",
    "detect_quorum_queues",
    "get_logger",
    "inspect_command",
    "nok",
    "rate_limit",
    "serializers",
    "signals",
    "state",
]
