"""Messages that go back to their queue with the place of their task."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from ._celery import serializers

#: The header that carries a place. Celery passes on unknown headers, from the message to the pool and back.
HEADER = "workglow_limit"

#: The lead of a message before its place, in seconds. A timer of Celery may be late by up to a second.
EARLY = 2.0

_PROPERTIES = ("correlation_id", "reply_to", "priority", "delivery_mode", "message_id", "type", "app_id")

#: The headers in which RabbitMQ records that it has delayed a message. It drops a message that seems to circulate for
#: ever, so a message that is sent again must not have them.
_HISTORY = ("x-death", "x-first-death-", "x-last-death-")


class Ticket:
    """A future start that travels with its message: the text of the place if there is one, the Unix time when it is
    ready (valid on any machine), the number of times that the message was sent back, and on the way to a child also the
    message's formats."""

    __slots__ = ("formats", "place", "ready", "times")

    def __init__(self, place: str | None, ready: float, times: int, formats: Mapping[str, str] = {}) -> None:
        self.place, self.ready, self.times, self.formats = place, ready, times, formats

    def header(self) -> dict[str, Any]:
        return {"place": self.place, "ready": self.ready, "times": self.times, "formats": dict(self.formats)}

    @classmethod
    def of(cls, header: Any) -> Ticket | None:
        """Reads the ticket of a message. Anything else under our header is ignored."""
        match header:
            case {"place": str() | None as place, "ready": float() as ready, "times": int() as times}:
                formats = header.get("formats")
                return cls(place, ready, times, formats if isinstance(formats, dict) else {})
        return None

    def eta(self, app: Any) -> datetime | None:
        """Returns the time at which the message should come back. None means at once, because any worker that gets it
        holds it."""
        now, lead = time.time(), 0.0 if app.conf.worker_disable_rate_limits else EARLY
        early = min(self.ready - lead, now + patience(app))
        return datetime.fromtimestamp(early, timezone.utc) if early > now + lead else None


def patience(app: Any) -> float:
    """Returns how long a worker keeps an unacknowledged message, in seconds: once until its ETA, and once more until
    its turn.

    Both together are shorter than the time after which the broker redelivers a message: half an hour with SQS and
    RabbitMQ, unless the app sets it.
    """
    return float(app.conf.broker_transport_options.get("visibility_timeout", 1800)) / 3


def hand_over(request: Any, ticket: Ticket | None) -> None:
    """Gives a child the ticket of a consumer's request, or the one that its message carries, with the message's
    formats."""
    ticket = ticket or Ticket.of(request.request_dict.get(HEADER)) or Ticket(None, time.time(), 0)
    ticket.formats = _formats(request.message)
    request.request_dict[HEADER] = ticket.header()


def _formats(message: Any) -> dict[str, str]:
    """Returns the formats of a message as options of Celery's calls. The caller may have chosen others than the task."""
    found = {"serializer": serializers.get(message.content_type), "compression": message.headers.get("compression")}
    return {name: of for name, of in found.items() if of is not None}


def _own(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the headers without the broker's own."""
    return {name: value for name, value in headers.items() if not name.startswith(_HISTORY)}


def send_back(app: Any, request: Any, ticket: Ticket) -> None:
    """Publishes the message of a consumer's request again, with a new ticket and ETA. The caller acknowledges the
    original afterwards."""
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
    """As `send_back`, from within a running task. It builds the message the way Celery's own `retry` does."""
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
