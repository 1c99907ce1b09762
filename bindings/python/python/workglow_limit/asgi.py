"""Limits for ASGI apps of any framework.

    from workglow_limit.asgi import Limit, LimitMiddleware

    app = LimitMiddleware(app, limits=[Limit(limiter, key="address")])
    app.add_middleware(LimitMiddleware, limits=[Limit(limiter, key="address")])  # Starlette and others
    Litestar(middleware=[DefineMiddleware(LimitMiddleware, limits=[Limit(limiter, key="address")])])

The program's functions (keys, weights, plans, …) get the connection's scope. For Starlette and FastAPI,
workglow_limit.fastapi has the same middleware with functions that get a Request, and limits for single routes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

from ._derived import check_options
from ._limit import Limit, check_bool
from ._serving import BROKEN, OPTIONS, Entry, Gate, Limited, Refused, Unavailable, answer_of
from ._steps import run_async

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._serving import Options

__all__ = ["Limit", "LimitMiddleware", "Limited"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

#: The key of the Admission in a scope.
KEY = "workglow_limit"


#: The messages that end a response, unless more is to follow. A WebSocket does not end with them.
LAST = "http.response.body", "http.response.pathsend"


class LimitMiddleware:
    """Limits the requests of an app. Other scopes pass unchanged. A lifespan begins when the stores of `limits` are open, or
    have not answered within their timeouts.

    limits: the limits of all requests. A request takes all of them or none; routes may add more.
    websockets: whether a WebSocket counts as a request. Then its handshake can be refused, and its permits end with it.
    options: exempt, trusted_proxies, forwarded_header, ipv6_prefix, on_limited, headers.
    """

    def __init__(
        self, app: ASGIApp, limits: Iterable[Limit] = (), *, websockets: bool = False, **options: Unpack[Options]
    ) -> None:
        check_options("LimitMiddleware", options, ("limits", "websockets", *OPTIONS))
        self._app = app
        self._gate = Gate(self._reader(), limits, asynchronous=True, **options)
        self._types = ("http", "websocket") if check_bool("websockets", websockets) else ("http",)

    def _reader(self) -> Any:
        return Reader()

    def _request(self, scope: Scope) -> Any:
        """Returns the request for the program's functions."""
        return scope

    def _status(self, error: Exception) -> int:
        """Returns the status that the framework will answer for an exception of the app."""
        return BROKEN

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in self._types:
            if scope["type"] == "lifespan":
                await run_async(self._gate.open())
            elif scope["type"] == "websocket":  # The limits of its route do not apply either.
                scope = {**scope, KEY: Admission(self._gate, None)}
            return await self._app(scope, receive, send)
        request, gate = self._request(scope), self._gate
        if gate.exempts and await run_async(gate.is_exempt(request)):
            return await self._app({**scope, KEY: Admission(gate, None)}, receive, send)
        outer: Admission | None = scope.get(KEY)
        entry = outer.entry if outer and outer.entry is not None else Entry()
        refused = await run_async(gate.enter(request, gate.limits, entry)) if gate.limits else None
        if refused is not None:
            return await refuse(refused, scope, receive, send)
        response = Response(gate, entry, send, ends=outer is None or outer.entry is None)
        handshake = Handshake(receive, response) if scope["type"] == "websocket" else None
        admission = Admission(gate, entry, handshake)
        try:
            await self._app({**scope, KEY: admission}, handshake.receive if handshake else receive, response.send)
        except Refused as by_route:
            await refuse(by_route, scope, receive, send, handshake)
        except Exception as error:
            await response.end(None if response.is_left else self._status(error))
            raise
        finally:
            # A response that has not ended has lost its client.
            await response.end(None)


class Admission:
    """The middleware's data for the limits of routes. An exempt request has no entry; only a WebSocket has a handshake."""

    __slots__ = "entry", "gate", "handshake"

    def __init__(self, gate: Gate, entry: Entry | None, handshake: Handshake | None = None) -> None:
        self.gate, self.entry, self.handshake = gate, entry, handshake


class Response:
    """A response that is being sent. It adds the headers, and ends the request's charges."""

    __slots__ = "_ends", "_entry", "_gate", "_send", "_status", "is_left"

    def __init__(self, gate: Gate, entry: Entry, send: Send, *, ends: bool) -> None:
        self._gate, self._entry, self._send, self._ends = gate, entry, send, ends
        self._status: int | None = None
        #: Whether the server reported that the client has disconnected.
        self.is_left = False

    @property
    def has_begun(self) -> bool:
        """Whether the app has begun the response, or accepted the WebSocket."""
        return self._status is not None

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start" or kind == "websocket.accept":
            self._status = message.get("status", 200)
            if self._ends and self._gate.adds_headers and self._entry.taken:
                message = {**message, "headers": [*message.get("headers", ()), *encoded(self._entry.headers())]}
        try:
            await self._send(message)
        except OSError:
            self.is_left = True
            raise
        # Work after the response, such as background tasks, must not hold permits.
        if kind in LAST and not message.get("more_body", False):
            await self.end(self._status)

    async def end(self, status: int | None) -> None:
        if self._ends and self._entry.taken:
            await run_async(self._entry.end(status))


class Handshake:
    """What the app has done with the handshake of a WebSocket."""

    __slots__ = "_receive", "_response", "is_received"

    def __init__(self, receive: Receive, response: Response) -> None:
        self._receive, self._response = receive, response
        #: Whether the app has received the request to connect.
        self.is_received = False

    async def receive(self) -> Message:
        message = await self._receive()
        self.is_received = True
        return message

    @property
    def is_accepted(self) -> bool:
        return self._response.has_begun


async def refuse(
    refused: Refused, scope: Scope, receive: Receive, send: Send, handshake: Handshake | None = None
) -> None:
    """Writes the response of a refusal. handshake: what the app has done with a WebSocket, if it got it."""
    limited, is_socket = refused.limited, scope["type"] == "websocket"
    if is_socket:
        if handshake is None or not handshake.is_received:
            await receive()  # The request to connect.
        is_accepted = handshake is not None and handshake.is_accepted
        if is_accepted or "websocket.http.response" not in (scope.get("extensions") or {}):
            full = {"code": 1013, "reason": "try again later"}
            denied = {"code": 1008, "reason": "too many requests"}
            return await send({"type": "websocket.close", **(full if isinstance(limited, Unavailable) else denied)})
    kind = "websocket.http.response" if is_socket else "http.response"
    ours = encoded(limited.headers)
    answer = answer_of(refused)
    if answer is not None:
        body, of_type = answer
        headers = [(b"content-type", of_type.encode()), (b"content-length", b"%d" % len(body)), *ours]
        await send({"type": f"{kind}.start", "status": limited.status, "headers": headers})
        return await send({"type": f"{kind}.body", "body": body})
    reply: Any = refused.reply
    if not callable(refused.reply):
        raise TypeError(
            f"on_limited returned {refused.reply!r}: expected None, a mapping, str, bytes or an ASGI response"
        )

    async def completed(message: Message) -> None:
        if message["type"] == f"{kind}.start":
            theirs = list(message.get("headers", ()))
            known = {name.lower() for name, _ in theirs}
            message = {**message, "headers": [*theirs, *((name, value) for name, value in ours if name not in known)]}
        await send(message)

    await reply(scope, receive, completed)


def encoded(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode()) for name, value in headers]


class Reader:
    """Reads scopes."""

    def peer(self, request: Any) -> str | None:
        client = request.get("client")
        return client[0] if client else None

    def header(self, request: Any, name: str) -> list[str]:
        wanted = name.lower().encode()
        return [value.decode("latin-1") for key, value in request["headers"] if key.lower() == wanted]

    def path(self, request: Any) -> str:
        """Returns the path inside the app. A scope's path begins with the root_path, unless a proxy has removed it."""
        path: str = request["path"]
        inside = path.removeprefix(request.get("root_path", "").rstrip("/"))
        return inside if inside.startswith("/") else path if inside else "/"

    def user(self, request: Any) -> str | None:
        """Returns the user that Starlette's AuthenticationMiddleware, or a compatible one, has set."""
        user = request.get("user")
        if user is None or not getattr(user, "is_authenticated", True):
            return None
        for attribute in "identity", "display_name", "username":
            try:
                found = getattr(user, attribute, None)
            except NotImplementedError:  # Starlette's base class.
                continue
            if found:
                return str(found)
        return user if isinstance(user, str) else None
