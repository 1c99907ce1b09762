"""Limits for FastAPI and Starlette apps and single routes.

    from workglow_limit.fastapi import Limit, LimitMiddleware, RouteLimit, limit

    app.add_middleware(LimitMiddleware, limits=[Limit(limiter, key="address")])  # of all routes

    @app.get("/search", dependencies=[Depends(RouteLimit(Limit(searches, key="user")))])  # FastAPI
    async def search(): ...

    @limit(Limit(searches, key="user"))  # Starlette, or FastAPI if the function takes the request
    async def search(request): ...

The program's functions (keys, weights, plans, …) get a Request. A request takes the limits of the app and of its route,
all of them or none. Limits of routes need the middleware, which writes the headers and ends the permits; it need not
have limits itself. A route's refusal is an HTTPException, so it passes inner apps and other code as the framework's own.
"""

# No `from __future__ import annotations`: FastAPI reads the annotations of functions that it calls, and may not resolve
# texts.

from collections.abc import Callable
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request

from ._limit import Limit
from ._serving import Gate, Limited, Refused
from ._steps import run_async
from .asgi import KEY, Admission, Scope, refuse
from .asgi import LimitMiddleware as ScopeMiddleware
from .asgi import Reader as ScopeReader

__all__ = ["Limit", "LimitMiddleware", "Limited", "RouteLimit", "limit"]


class LimitMiddleware(ScopeMiddleware):
    """The middleware of workglow_limit.asgi, with functions that get a Request."""

    def _reader(self) -> Any:
        return Reader()

    def _request(self, scope: Scope) -> Any:
        return Request(scope) if scope["type"] == "http" else HTTPConnection(scope)

    def _status(self, error: Exception) -> int:
        # The middleware of a router is inside Starlette's own, which answers these.
        return error.status_code if isinstance(error, HTTPException) else super()._status(error)


class RouteLimit:
    """A dependency that limits a route, a router or an app of FastAPI: Depends(RouteLimit(Limit(…), …)). WebSockets take
    its limits if the middleware has websockets=True."""

    def __init__(self, *limits: Limit) -> None:
        self._limits = checked(limits)

    async def __call__(self, connection: HTTPConnection) -> None:
        await enter(connection, self._limits)


def limit(*limits: Limit) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates an endpoint that takes the request: a function or coroutine function, or a method of an HTTPEndpoint."""
    of_route = checked(limits)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"{function!r} is not a function: in a class, decorate its methods")
        is_awaited = iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))

        @wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            given: list[Any] = [*args, *kwargs.values()]
            request = next((one for one in given if issubclass(type(one), HTTPConnection)), None)
            if request is None:
                raise TypeError(
                    f"{function!r} was called without a request: expected a function that takes the request"
                )
            await enter(request, of_route)
            call = function(*args, **kwargs) if is_awaited else run_in_threadpool(function, *args, **kwargs)
            return await call

        return limited

    return decorate


def checked(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    if not limits:
        raise TypeError("expected at least one Limit")
    return Gate(Reader(), limits, asynchronous=True).limits


async def enter(request: HTTPConnection, limits: tuple[Limit, ...]) -> None:
    admission: Admission | None = request.scope.get(KEY)
    if admission is None:
        raise RuntimeError(
            "the route has a limit, but its app has no middleware: call app.add_middleware(LimitMiddleware)"
        )
    if admission.entry is None:
        return
    refused = await run_async(admission.gate.enter(request, limits, admission.entry))
    if refused is not None:
        # The innermost app handles HTTPExceptions within its own middleware (CORS, …). It would write only their detail, so
        # tell it to write the whole refusal. The program's own handler of 429 precedes.
        handlers, _ = request.scope.get("starlette.exception_handlers", ({}, {}))
        handlers.setdefault(RouteRefused, respond)
        raise RouteRefused(refused)


class RouteRefused(HTTPException, Refused):
    """Raised when a route's limit refuses a request."""

    def __init__(self, refused: Refused) -> None:
        limited = refused.limited
        super().__init__(limited.status, limited.problem["title"], dict(limited.headers))
        self.limited, self.reply = limited, refused.reply


async def respond(connection: Any, refused: Any) -> Any:
    """Handles RouteRefused: returns the response to a request, or refuses a WebSocket itself."""
    if connection.scope["type"] == "http":
        return partial(refuse, refused)
    admission: Admission = connection.scope[KEY]
    return await refuse(refused, connection.scope, connection.receive, connection.send, admission.handshake)


class Reader(ScopeReader):
    """Reads requests."""

    def peer(self, request: Any) -> str | None:
        return super().peer(request.scope)

    def header(self, request: Any, name: str) -> list[str]:
        return super().header(request.scope, name)

    def path(self, request: Any) -> str:
        return super().path(request.scope)

    def user(self, request: Any) -> str | None:
        return super().user(request.scope)
