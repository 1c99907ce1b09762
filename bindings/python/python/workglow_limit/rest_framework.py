"""Limits for views of Django REST framework, whose users are known only after the middleware: as throttles.

    from workglow_limit.rest_framework import Limit, LimitThrottle

    class Searches(LimitThrottle):
        limits = [Limit(searches, key="user")]

    class Search(APIView):
        throttle_classes = [Searches]

The program's functions (keys, weights, plans, …) get the HttpRequest. A request takes the limits of the middleware and of
its throttles. The middleware, workglow_limit.django.LimitMiddleware, is needed: it ends the permits and writes the
headers. It need not have limits itself. A refusal is the framework's Throttled.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil
from typing import Any

from django.core.exceptions import ImproperlyConfigured  # type: ignore[import-untyped]
from rest_framework.exceptions import APIException  # type: ignore[import-untyped]
from rest_framework.throttling import BaseThrottle  # type: ignore[import-untyped]

from ._limit import Limit
from ._serving import Entry, Gate, Unavailable
from ._steps import run
from .django import KEY, Reader, gate

__all__ = ["Limit", "LimitThrottle"]

#: The attribute of a view's request after one of its throttles has refused it.
REFUSED = "_workglow_limit_refused"


class Full(APIException):  # type: ignore[misc]
    """Raised when a limit has no room for the key of a request."""

    status_code = Unavailable.status
    default_detail = "Service Unavailable"
    default_code = "unavailable"

    def __init__(self, limited: Unavailable) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        #: The framework makes the Retry-After of it.
        self.wait = ceil(limited.retry_after)


class LimitThrottle(BaseThrottle):  # type: ignore[misc]
    """The base class of throttles. A subclass sets limits, of which a request takes all or none."""

    limits: Iterable[Limit] = ()
    _retry_after: float | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.limits = Gate(Reader(), cls.limits, asynchronous=False).limits
        if not cls.limits:
            raise TypeError(f"{cls.__name__}.limits is empty: expected at least one Limit")

    def allow_request(self, request: Any, view: Any) -> bool:
        """Takes the limits for a request."""
        ours, inner = gate(False), request._request
        # The framework asks the other throttles of a view after a refusal, too. Then they must take nothing.
        if getattr(request, REFUSED, False) or run(ours.is_exempt(inner)):
            return True
        entry: Entry | None = getattr(inner, KEY, None)
        if entry is None:
            raise ImproperlyConfigured(
                'the view has a LimitThrottle, but MIDDLEWARE lacks "workglow_limit.django.LimitMiddleware"'
            )
        refused = run(ours.enter(inner, tuple(self.limits), entry))
        if refused is None:
            return True
        if isinstance(refused.limited, Unavailable):
            raise Full(refused.limited)
        self._retry_after = refused.limited.retry_after
        setattr(request, REFUSED, True)
        return False

    def wait(self) -> Any:
        """Returns the seconds until a retry may succeed, for the Retry-After of the refusal."""
        return self._retry_after
