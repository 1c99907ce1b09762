"""Limits for aiohttp's server and single handlers.

    from workglow_limit.aiohttp_web import AppLimits, Limit, limit

    AppLimits(app, limits=[Limit(limiter, key="address")])  # of all handlers

    @routes.get("/search")
    @limit(Limit(searches, key="header:X-API-Key"))
    async def search(request): ...

The program's functions (keys, weights, plans, …) get the request. A request takes the limits of its apps and of its
handler, all of them or none. "user" is request[USER], which a middleware of the program sets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from aiohttp import web
from aiohttp.payload import Payload
from aiohttp.web import Application, FileResponse, HTTPException, Request, Response, StreamResponse, View

from ._derived import check_options
from ._limit import Limit
from ._serving import BROKEN, OPTIONS, Entry, Gate, Limited, Refused, answer_of
from ._steps import run_async

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._serving import Options

__all__ = ["USER", "AppLimits", "Limit", "Limited", "limit"]

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[StreamResponse]])


def request_key(name: str, of: type) -> Any:
    """A key of requests. aiohttp has a class for them since 3.14."""
    made: Any = getattr(web, "RequestKey", None)
    return f"workglow_limit.{name}" if made is None else made(name, of)


#: The key under which a request has the text of its user.
USER: Any = request_key("user", str)


class AppLimits:
    """Limits the requests of an app. The app opens the stores of `limits` when it starts. Middlewares that were added
    before see the requests first, and the responses last. A WebSocket is a request too: its handshake can be refused, and
    its permits end when it closes.

    limits: the limits of all requests. A request takes all of them or none; handlers and nested apps may add more.
    options: exempt, trusted_proxies, forwarded_header, ipv6_prefix, on_limited, headers.
    """

    #: What aiohttp expects of a middleware.
    __middleware_version__ = 1

    def __init__(self, app: Application, limits: Iterable[Limit] = (), **options: Unpack[Options]) -> None:
        check_options("AppLimits", options, ("limits", *OPTIONS))
        self._gate = Gate(Reader(), limits, asynchronous=True, **options)
        app.middlewares.append(self)
        app.on_startup.append(self._open)
        app.on_response_prepare.append(self._add_headers)

    async def _open(self, app: Application) -> None:
        await run_async(self._gate.open())

    async def __call__(
        self, request: Request, handler: Callable[[Request], Awaitable[StreamResponse]]
    ) -> StreamResponse:
        outer: Admission | None = request.get(KEY)
        gate = self._gate
        if gate.exempts and await run_async(gate.is_exempt(request)):
            request[KEY] = Admission(gate, None)
            try:
                return await handler(request)
            finally:
                if outer is not None:
                    request[KEY] = outer
        if outer is not None and outer.entry is not None:  # The app around this one ends its charges.
            refused = await run_async(gate.enter(request, gate.limits, outer.entry))
            return await handler(request) if refused is None else refuse(refused)
        entry = Entry()
        refused = await run_async(gate.enter(request, gate.limits, entry)) if gate.limits else None
        if refused is not None:
            return refuse(refused)
        request[KEY] = admission = Admission(gate, entry)
        status: int | None = None  # The client has left.
        try:
            response = await handler(request)
            # The charges of a stream end with its last byte, so it is sent here.
            is_sent = not is_streamed(response) or await send(request, response)
            status = response.status if is_sent else None
            return response
        except Exception as error:
            is_left = request.transport is None or request.transport.is_closing()
            status = None if is_left else error.status if isinstance(error, HTTPException) else BROKEN
            raise
        finally:
            admission.headers = entry.headers()
            await run_async(entry.end(status))

    async def _add_headers(self, request: Request, response: StreamResponse) -> None:
        admission: Admission | None = request.get(KEY)
        if (
            admission is None
            or admission.gate is not self._gate
            or admission.entry is None
            or not self._gate.adds_headers
        ):
            return
        for name, value in admission.headers or admission.entry.headers():
            response.headers.add(name, value)


class Admission:
    """The data of a request for its handler's limits. An exempt request has no entry."""

    __slots__ = "entry", "gate", "headers"

    def __init__(self, gate: Gate, entry: Entry | None) -> None:
        self.gate, self.entry = gate, entry
        #: The headers of a response that is sent when its charges have ended.
        self.headers: list[tuple[str, str]] = []


#: The key of a request's Admission.
KEY: Any = request_key("admission", Admission)


def limit(*limits: Limit) -> Callable[[Handler], Handler]:
    """Decorates a handler: a coroutine function that takes the request, or a method of a View. Put it below the decorator
    of the route."""
    if not limits:
        raise TypeError("expected at least one Limit")
    of_handler = Gate(Reader(), limits, asynchronous=True).limits

    def decorate(handler: Handler) -> Handler:
        if isinstance(handler, type) or not callable(handler):
            raise TypeError(f"{handler!r} is not a function: in a class, decorate its methods")

        @wraps(handler)
        async def limited(*args: Any, **kwargs: Any) -> StreamResponse:
            refusal = await enter(request_of(handler, args), of_handler)
            return await handler(*args, **kwargs) if refusal is None else refusal

        return limited  # type: ignore[return-value]

    return decorate


def request_of(handler: Any, given: tuple[Any, ...]) -> Request:
    for one in given:
        if isinstance(one, View):
            return one.request
        if isinstance(one, Request):
            return one
    raise TypeError(f"{handler!r} was called without a request: expected a function that takes the request")


async def enter(request: Request, limits: tuple[Limit, ...]) -> StreamResponse | None:
    """Takes the limits of a handler. Returns a response if they refuse the request."""
    admission: Admission | None = request.get(KEY)
    if admission is None:
        raise RuntimeError("the handler has a limit, but its app has none: call AppLimits(app)")
    if admission.entry is None:
        return None
    refused = await run_async(admission.gate.enter(request, limits, admission.entry))
    return None if refused is None else refuse(refused)


def is_streamed(response: Any) -> bool:
    """Returns whether a response that was returned is sent in parts. (A response that its handler has prepared is sent by
    the handler.)"""
    if not isinstance(response, StreamResponse) or response.prepared:
        return False
    return isinstance(response, FileResponse) or isinstance(getattr(response, "body", None), Payload)


async def send(request: Request, response: StreamResponse) -> bool:
    """Sends a response. Returns whether its client was there until the end; if not, the server notices too."""
    with suppress(ConnectionError):
        await response.prepare(request)
        await response.write_eof()
        if isinstance(response, FileResponse):
            response.prepare = nothing_more  # type: ignore[method-assign]
        return True
    return False


async def nothing_more(request: Any) -> None:
    """Prepares nothing: the server prepares what it gets from a handler, and would send a file once more."""


def refuse(refused: Refused) -> StreamResponse:
    """The response of a refusal."""
    reply: Any = refused.reply
    if not isinstance(reply, StreamResponse):  # Which is a mapping, too.
        answer = answer_of(refused)
        if answer is None:
            expected = "None, a mapping, str, bytes or a response of aiohttp"
            raise TypeError(f"on_limited returned {reply!r}: expected {expected}")
        reply = Response(body=answer[0], status=refused.limited.status, headers={"Content-Type": answer[1]})
    for name, value in refused.limited.headers:
        reply.headers.setdefault(name, value)
    response: StreamResponse = reply
    return response


class Reader:
    """Reads requests."""

    def peer(self, request: Any) -> str | None:
        return request.remote or None

    def header(self, request: Any, name: str) -> list[str]:
        values: list[str] = request.headers.getall(name, [])
        return values

    def path(self, request: Any) -> str:
        path: str = request.path
        return path

    def user(self, request: Any) -> str | None:
        user = request.get(USER)
        return None if user is None else str(user)
