"""Admission where the task runs, just before its body. This decides, whatever the consumer expected."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from typing import Any, NoReturn

from .. import AcquireTimeout, ForeignPermit, InvalidArgument, Limiter, Permit, Unsupported
from .._derived import Key, Weight
from .._queueing import start_now
from ._errors import Limited, SentBack
from ._message import HEADER, Ticket, send_again
from ._options import SHORT, TaskLimit

#: The average delay of a task that found a concurrency limit full, in seconds. The end of a running job cannot be
#: predicted.
RETRY = 0.5

#: The most that an ETA is late, in seconds. A task that no worker holds reaches its place by its ETA.
LATENESS = 1.0

#: The priority before all other waiters of a tenant.
FIRST = -2047

_permit: ContextVar[Permit | None] = ContextVar("workglow_limit_permit", default=None)


def current_permit() -> Permit | None:
    """Returns the permit of the running task, for settle, renew or fence. None outside a task that has a limit."""
    return _permit.get()


def limited(task: Any, limit: TaskLimit) -> None:
    """Wraps the body of a task with its admission."""
    # Inside autoretry_for, which should see Limited.
    name = "_orig_run" if hasattr(task, "_orig_run") else "run"
    body: Callable[..., Any] = getattr(task, name)

    @wraps(body)
    def run(*args: Any, **kwargs: Any) -> Any:
        request = task.request
        if request.called_directly or request.get("workglow_admitted"):
            return body(*args, **kwargs)  # A plain function call.
        permit = _admit(task, request, limit, (args, kwargs))
        request.workglow_admitted = True
        token = _permit.set(permit)
        try:
            return body(*args, **kwargs)
        finally:
            _permit.reset(token)
            permit.complete()

    setattr(task, name, run)


def _admit(task: Any, request: Any, limit: TaskLimit, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Permit:
    key, weight = limit.key(arguments), limit.weight(arguments)
    ticket = _take_ticket(request)
    limiter = limit.limiter
    if limit.on_limit == "raise":
        decision = limiter.decide(key, weight)
        if decision.permit is None:
            raise Limited(decision.denied_by or limiter.name, key, decision.retry_after)
        return decision.permit
    if limit.on_limit == "wait" or request.is_eager:
        return limiter.acquire(key, weight, limit.timeout)
    window = limiter.window if task.app.conf.worker_disable_rate_limits else None
    place = _start_or_reserve(limiter, (key, weight), ticket, None if window is None else min(LATENESS, window / 4))
    deadline = time.monotonic() + SHORT
    while place is None or not place.started:
        wait = limiter.peek(key, weight).retry_after if place is None else place.wait
        if time.monotonic() + wait > deadline:
            _send_back(task, request, limit, place, wait, ticket)
        time.sleep(wait)
        place = start_now(limiter, key, weight) if place is None else limiter.present(place)
    return place


def _start_or_reserve(
    limiter: Limiter, of: tuple[Key, Weight], ticket: Ticket | None, grace: float | None
) -> Permit | None:
    """Returns a start or a place, or None if there is neither."""
    if ticket is not None and ticket.place is not None:
        with suppress(ForeignPermit, InvalidArgument):  # The limit was redeclared, or is in another store.
            return limiter.present(ticket.place)
    if limiter._has_tenants:
        # The worker sent the task because its tenant's turn had come, so it is before all others of its tenant.
        with suppress(AcquireTimeout):
            return limiter.acquire(*of, SHORT, priority=FIRST)
        return None
    permit = start_now(limiter, *of)
    if permit is not None:
        return permit
    try:
        place = limiter.reserve(*of, grace=grace)
    except Unsupported:
        return None
    # Units may have become free since then.
    return place and limiter.present(place)


def _send_back(
    task: Any, request: Any, limit: TaskLimit, place: Permit | None, wait: float, ticket: Ticket | None
) -> NoReturn:
    """Sends the task back to its queue and ends this run without a trace. It publishes first: if the worker dies in
    between, one message too many remains, which waits for a start of its own, but no message is lost."""
    text = None
    if place is not None:
        try:
            text = place.to_text()
        except Unsupported:
            place.cancel()
    if wait < SHORT:  # No free unit was found until now.
        wait = RETRY * (0.5 + random.random())
    times, formats = (ticket.times, ticket.formats) if ticket else (0, {})
    send_again(task, request, Ticket(text, time.time() + wait, times + 1, formats))
    raise SentBack(limit.limiter.name, wait)


def _take_ticket(request: Any) -> Ticket | None:
    """Removes and returns the ticket. A place starts once, so later messages of the task, such as a retry, must not
    carry it."""
    header = request.__dict__.pop(HEADER, None)
    if request.headers:
        request.headers.pop(HEADER, None)
    return Ticket.of(header)
