"""Limits for FastAPI and Starlette: of an app, and of single routes.

    from workglow_limit.fastapi import Limit, LimitMiddleware, RouteLimit, limit

    app.add_middleware(LimitMiddleware, limits=[Limit(limiter, key="address")])  # of all routes

    @app.get("/search", dependencies=[Depends(RouteLimit(Limit(searches, key="user")))])  # FastAPI
    async def search(): ...

    @limit(Limit(searches, key="user"))  # Starlette, or FastAPI where the function takes the request
    async def search(request): ...

Functions that are given (keys, weights, plans, …) get a Request. What routes take joins what the app takes: all of it or
nothing. Routes need the middleware, which writes the headers and ends what is held; it need not have limits.
"""

# FastAPI reads the annotations of what it calls, and need not find what is only a text.

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import HTTPConnection, Request

from ._limit import Limit
from ._serving import Gate, Limited
from ._steps import run_async
from .asgi import KEY, Admission, Scope
from .asgi import LimitMiddleware as ScopeMiddleware
from .asgi import Reader as ScopeReader

__all__ = ["Limit", "LimitMiddleware", "Limited", "RouteLimit", "limit"]


class LimitMiddleware(ScopeMiddleware):
    """The middleware of workglow_limit.asgi, whose functions get a Request."""

    def _reader(self) -> Any:
        return Reader()

    def _request(self, scope: Scope) -> Any:
        return Request(scope) if scope["type"] == "http" else HTTPConnection(scope)


class RouteLimit:
    """A dependency that limits a route, a router or an app of FastAPI: Depends(RouteLimit(Limit(…), …))."""

    def __init__(self, *limits: Limit) -> None:
        self._limits = checked(limits)

    async def __call__(self, request: Request) -> None:
        await enter(request, self._limits)


def limit(*limits: Limit) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorates an endpoint that takes the request: a function or coroutine function, or a method of an HTTPEndpoint."""
    of_route = checked(limits)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"{function!r} is no function: decorate the methods of a class")
        is_awaited = iscoroutinefunction(function) or iscoroutinefunction(getattr(function, "__call__", None))

        @wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            given: list[Any] = [*args, *kwargs.values()]
            request = next((one for one in given if issubclass(type(one), HTTPConnection)), None)
            if request is None:
                raise TypeError(f"{function!r} takes no request, by which it could be limited")
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
        raise RuntimeError("a route is limited without the middleware: app.add_middleware(LimitMiddleware)")
    if admission.entry is None:
        return
    refused = await run_async(admission.gate.enter(request, limits, admission.entry))
    if refused is not None:
        raise refused


class Reader(ScopeReader):
    """How requests are read."""

    def peer(self, request: Any) -> str | None:
        return super().peer(request.scope)

    def header(self, request: Any, name: str) -> list[str]:
        return super().header(request.scope, name)

    def path(self, request: Any) -> str:
        return super().path(request.scope)

    def user(self, request: Any) -> str | None:
        return super().user(request.scope)
