"""Limits for Django, synchronous and asynchronous: for all requests and for single views.

    MIDDLEWARE = [..., "workglow_limit.django.LimitMiddleware"]  # after AuthenticationMiddleware, if keys are users
    WORKGLOW_LIMIT = {"limits": [Limit(limiter, key="address")]}  # and the other options of the middleware

    @limit(Limit(searches, key="user"))
    def search(request): ...

The program's functions (keys, weights, plans, …) get the HttpRequest. A request takes the limits of the middleware and
of its view, all of them or none. Views can also be limited without the middleware.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import iscoroutinefunction
from typing import Any, TypeVar

from asgiref.sync import markcoroutinefunction
from django.conf import settings  # type: ignore[import-untyped]
from django.core.exceptions import (  # type: ignore[import-untyped]
    BadRequest,
    ImproperlyConfigured,
    PermissionDenied,
    SuspiciousOperation,
)
from django.core.signals import setting_changed  # type: ignore[import-untyped]
from django.http import Http404, HttpResponse  # type: ignore[import-untyped]
from django.http.multipartparser import MultiPartParserError  # type: ignore[import-untyped]

from ._limit import Limit
from ._serving import BROKEN, OPTIONS, Entry, Gate, Limited, Refused, answer_of
from ._steps import run, run_async
from .wsgi import Reader as EnvironReader
from .wsgi import streamed

__all__ = ["Limit", "LimitMiddleware", "Limited", "limit"]

View = TypeVar("View", bound=Callable[..., Any])
#: The attribute of a request that holds its entry.
KEY = "_workglow_limit"
#: Exceptions that Django itself turns into responses, with their statuses.
STATUSES: dict[Any, int] = {
    Http404: 404,
    PermissionDenied: 403,
    (BadRequest, MultiPartParserError, SuspiciousOperation): 400,
}


class LimitMiddleware:
    """Limits requests. Its options are the dict settings.WORKGLOW_LIMIT: limits, exempt, trusted_proxies,
    forwarded_header, ipv6_prefix, on_limited, headers."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response, self._is_async = get_response, iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        gate(self._is_async)  # Raises errors in the settings now, not at the first request.

    def __call__(self, request: Any) -> Any:
        limits = gate(self._is_async).limits
        if self._is_async:
            return serve_async(request, limits, lambda: self._get_response(request))
        return serve(request, limits, lambda: self._get_response(request))


def limit(*limits: Limit) -> Callable[[View], View]:
    """Decorates a view, which may be a coroutine function. For a class: method_decorator(limit(…), name="dispatch")."""
    if not limits:
        raise TypeError("expected at least one Limit")

    def decorate(view: View) -> View:
        is_async = iscoroutinefunction(view)
        of_view = Gate(Reader(), limits, asynchronous=is_async).limits
        if is_async:

            @wraps(view)
            async def awaited(request: Any, *args: Any, **kwargs: Any) -> Any:
                return await serve_async(request, of_view, lambda: view(request, *args, **kwargs))

            return awaited  # type: ignore[return-value]

        @wraps(view)
        def limited(request: Any, *args: Any, **kwargs: Any) -> Any:
            return serve(request, of_view, lambda: view(request, *args, **kwargs))

        return limited  # type: ignore[return-value]

    return decorate


def status_of(error: BaseException) -> int:
    """Returns the status that Django answers for an exception of a view."""
    return next((status for classes, status in STATUSES.items() if isinstance(error, classes)), BROKEN)


@lru_cache(2)
def gate(asynchronous: bool) -> Gate:
    """Returns the gate that the settings define."""
    given: Any = getattr(settings, "WORKGLOW_LIMIT", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f"WORKGLOW_LIMIT is {given!r}: expected a dict, not {type(given).__name__}")
    options: dict[str, Any] = {"limits": (), **given}
    for name in options:
        if name not in ("limits", *OPTIONS):
            raise ImproperlyConfigured(f"WORKGLOW_LIMIT has {name!r}: expected limits, {', '.join(OPTIONS)}")
    try:
        return Gate(Reader(), **options, asynchronous=asynchronous)
    except (TypeError, ValueError) as error:
        raise ImproperlyConfigured(f"WORKGLOW_LIMIT: {error}") from error


def forget_settings(*, setting: str, **_: object) -> None:
    """Drops the cached gates when a test changes the settings."""
    if setting == "WORKGLOW_LIMIT":
        gate.cache_clear()


changed: Any = setting_changed
changed.connect(forget_settings)


def serve(request: Any, limits: tuple[Limit, ...], respond: Callable[[], Any]) -> Any:
    """Takes limits for a request and responds. The outermost call for a request writes the headers and ends the
    charges."""
    ours, entry = gate(False), getattr(request, KEY, None)
    if run(ours.is_exempt(request)):
        return respond()
    is_outermost = entry is None
    if entry is None:
        entry = Entry()
        setattr(request, KEY, entry)
    refused = run(ours.enter(request, limits, entry))
    if refused is not None:
        return refuse(refused)
    try:
        response = respond()
    except BaseException as error:
        if is_outermost:
            run(entry.end(status_of(error)))
        raise
    if is_outermost and not leave(response, ours, entry):
        run(entry.end(response.status_code))
    return response


async def serve_async(request: Any, limits: tuple[Limit, ...], respond: Callable[[], Any]) -> Any:
    """As `serve`, on an event loop."""
    ours, entry = gate(True), getattr(request, KEY, None)
    if await run_async(ours.is_exempt(request)):
        return await respond()
    is_outermost = entry is None
    if entry is None:
        entry = Entry()
        setattr(request, KEY, entry)
    refused = await run_async(ours.enter(request, limits, entry))
    if refused is not None:
        return refuse(refused)
    try:
        response = await respond()
    except BaseException as error:
        if is_outermost:
            await run_async(entry.end(None if isinstance(error, CancelledError) else status_of(error)))
        raise
    if is_outermost and not leave(response, ours, entry):
        await run_async(entry.end(response.status_code))
    return response


def leave(response: Any, ours: Gate, entry: Entry) -> bool:
    """Writes the headers. Returns True if the response is a stream, with which the charges end. Otherwise the body is
    complete and the caller ends the charges now."""
    if ours.adds_headers:
        for name, value in entry.headers():
            response.headers[name] = f"{response.headers[name]}, {value}" if name in response.headers else value
    if not response.streaming:
        return False
    status, content = response.status_code, response.streaming_content
    if response.is_async:
        response.streaming_content = streamed_async(content, entry, status)
    else:
        response.streaming_content = streamed(content, entry, lambda: status)
    # The generator of a stream that never begins does not end. Django then closes the response, in a thread.
    close = response.close

    def closed() -> None:
        try:
            close()
        finally:
            run(entry.end(None))

    response.close = closed
    return True


async def streamed_async(content: Any, entry: Entry, status: int) -> Any:
    outcome: int | None = None
    try:
        async for part in content:
            yield part
        outcome = status
    except Exception:
        outcome = BROKEN
        raise
    finally:
        await run_async(entry.end(outcome))


def refuse(refused: Refused) -> Any:
    """Returns the response of a refusal."""
    answer = answer_of(refused)
    response: Any = refused.reply
    if answer is not None:
        response = HttpResponse(answer[0], status=refused.limited.status, content_type=answer[1])
    elif not hasattr(response, "status_code"):
        raise TypeError(f"on_limited returned {response!r}: expected None, a mapping, str, bytes or an HttpResponse")
    for name, value in refused.limited.headers:
        response.headers.setdefault(name, value)
    return response


class Reader(EnvironReader):
    """Reads requests."""

    def peer(self, request: Any) -> str | None:
        return super().peer(request.META)

    def header(self, request: Any, name: str) -> list[str]:
        return super().header(request.META, name)

    def path(self, request: Any) -> str:
        path: str = request.path_info  # Without SCRIPT_NAME.
        return path

    def user(self, request: Any) -> str | None:
        user = getattr(request, "user", None)
        return str(user.pk) if user is not None and user.is_authenticated else None
