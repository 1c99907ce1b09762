"""Sending a message back to its queue, with the place that its task has got."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ._celery import serializers

#: The header that carries a place: what Celery does not know it hands on, from the message to the pool and back.
HEADER = "workglow_limit"

#: A message comes back this long before its place: a timer of Celery may be late by as much as a second.
EARLY = 2.0

_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode", "message_id", "type", "app_id")

#: What RabbitMQ notes in the headers of a message that it has delayed. It drops a message that seems to go round for ever, and
#: one that is sent again is not to look like that.
_HISTORY = ("x-death", "x-first-death-", "x-last-death-")


class Ticket:
    """A start in the future, as it travels with its message: the place's text if it has one, when it is ready, in Unix
    seconds, so that any machine can tell, how often the message was sent back, and on its way to a child also the message's
    formats."""

    __slots__ = ("formats", "place", "ready", "times")

    def __init__(self, place: str | None, ready: float, times: int, formats: Mapping[str, str] = {}) -> None:
        self.place, self.ready, self.times, self.formats = place, ready, times, formats

    def header(self) -> dict[str, Any]:
        return {"place": self.place, "ready": self.ready, "times": self.times, "formats": dict(self.formats)}

    @classmethod
    def of(cls, header: Any) -> Ticket | None:
        """What a message carries. Whatever else somebody put under our name is no ticket."""
        match header:
            case {"place": str() | None as place, "ready": float() as ready, "times": int() as times}:
                formats = header.get("formats")
                return cls(place, ready, times, formats if isinstance(formats, dict) else {})
        return None

    def eta(self, app: Any) -> datetime | None:
        """When the message is wanted back; None: at once, because it is held wherever it arrives."""
        now, lead = time.time(), 0.0 if app.conf.worker_disable_rate_limits else EARLY
        early = min(self.ready - lead, now + patience(app))
        return datetime.fromtimestamp(early, timezone.utc) if early > now + lead else None


def patience(app: Any) -> float:
    """How long a worker keeps a message that it has not acknowledged, in seconds: until its ETA, and as long again until its
    turn.

    Both together are less than what the broker waits before another worker gets it as well: half an hour with SQS and
    RabbitMQ, if the app does not say.
    """
    return float(app.conf.broker_transport_options.get("visibility_timeout", 1800)) / 3


def formats(message: Any) -> dict[str, str]:
    """How a message is written, in the words of Celery's calls: their caller may have chosen otherwise than the task."""
    found = {"serializer": serializers.get(message.content_type), "compression": message.headers.get("compression")}
    return {name: of for name, of in found.items() if of is not None}


def _own(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Those that are not the broker's."""
    return {name: value for name, value in headers.items() if not name.startswith(_HISTORY)}


def send_back(app: Any, request: Any, ticket: Ticket) -> None:
    """Publishes the message of a consumer's request again, the same but for its ticket and its ETA. The caller
    acknowledges the original afterwards."""
    message = request.message
    headers = _own(message.headers) | {HEADER: ticket.header()}
    headers.pop("compression", None)
    eta = ticket.eta(app)
    headers["eta"] = eta and eta.isoformat()
    properties = {name: message.properties[name] for name in _PROPERTIES if message.properties.get(name) is not None}
    if request.expires is not None:
        properties["expiration"] = max(0.0, request.expires.timestamp() - time.time())
    with app.producer_or_acquire() as producer:
        producer.publish(
            message.body,
            exchange=message.delivery_info.get("exchange") or "",
            routing_key=message.delivery_info.get("routing_key"),
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            compression=message.headers.get("compression"),
            headers=headers,
            retry=True,
            retry_policy=app.conf.task_publish_retry_policy,
            **properties,
        )


def send_again(task: Any, request: Any, ticket: Ticket) -> None:
    """The same from within a running task, which has its message only as Celery's own `retry` has it."""
    headers = _own(request.headers or {}) | {HEADER: Ticket(ticket.place, ticket.ready, ticket.times).header()}
    properties = request.properties or {}
    task.signature_from_request(
        request,
        request.args,
        request.kwargs,
        eta=ticket.eta(task.app),
        retries=request.retries,
        headers=headers,
        correlation_id=request.correlation_id or request.id,
        **ticket.formats,
        **({"delivery_mode": properties["delivery_mode"]} if properties.get("delivery_mode") else {}),
    ).apply_async()
