"""Limits for Flask apps and single views.

    from workglow_limit.flask import FlaskLimits, Limit, limit

    FlaskLimits(app, limits=[Limit(limiter, key="address")])  # of all views

    @app.get("/search")
    @limit(Limit(searches, key="user"))
    def search(): ...

The program's functions (keys, weights, plans, …) get flask.request. A request takes the limits of the app and of its
view, all of them or none. "user" is the current_user of Flask-Login, or the user name of HTTP authentication.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from flask import Flask, Response, after_this_request, current_app, g, make_response, request

from ._derived import check_options
from ._limit import Limit
from ._serving import BROKEN, OPTIONS, Entry, Gate, Limited, Refused, answer_of
from ._steps import run
from .wsgi import Reader as EnvironReader
from .wsgi import streamed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._serving import Options

__all__ = ["FlaskLimits", "Limit", "Limited", "limit"]

View = TypeVar("View", bound=Callable[..., Any])
NAME = "workglow_limit"


class FlaskLimits:
    """Limits the requests of an app, now or with init_app.

    limits: the limits of all requests. A request takes all of them or none.
    options: exempt, trusted_proxies, forwarded_header, ipv6_prefix, on_limited, headers.
    """

    def __init__(self, app: Flask | None = None, limits: Iterable[Limit] = (), **options: Unpack[Options]) -> None:
        check_options("FlaskLimits", options, ("limits", *OPTIONS))
        self._gate = Gate(Reader(), limits, asynchronous=False, **options)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Limits the requests of an app. Call it before the first request."""
        if NAME in app.extensions:
            raise RuntimeError("the app already has limits: pass all of them to one FlaskLimits")
        app.extensions[NAME] = self._gate
        app.before_request(lambda: enter(self._gate.limits))
        app.teardown_request(left)


def limit(*limits: Limit) -> Callable[[View], View]:
    """Decorates a view. Put it below the decorator of the route."""
    if not limits:
        raise TypeError("expected at least one Limit")
    of_view = Gate(Reader(), limits, asynchronous=False).limits

    def decorate(view: View) -> View:
        @wraps(view)
        def limited(*args: Any, **kwargs: Any) -> Any:
            refusal = enter(of_view)
            # A view may be a coroutine function, which Flask runs.
            return current_app.ensure_sync(view)(*args, **kwargs) if refusal is None else refusal

        return limited  # type: ignore[return-value]

    return decorate


def enter(limits: tuple[Limit, ...]) -> Response | None:
    """Takes limits for the current request. Returns a response if they refuse it."""
    gate: Gate | None = current_app.extensions.get(NAME)
    if gate is None:
        raise RuntimeError("the view has a limit, but its app has none: call FlaskLimits(app)")
    if run(gate.is_exempt(request)):
        return None
    entry: Entry | None = g.get(NAME)
    if entry is None:
        entry = Entry()
        setattr(g, NAME, entry)
        after_this_request(leave)
    refused = run(gate.enter(request, limits, entry))
    return None if refused is None else refuse(refused)


def leave(response: Response) -> Response:
    """Writes the headers and ends the charges. The charges of a stream end with its last part, or when the client
    disconnects."""
    gate: Gate = current_app.extensions[NAME]
    entry: Entry = g.pop(NAME)
    if gate.adds_headers:
        for name, value in entry.headers():
            response.headers.add(name, value)
    status = response.status_code
    if not response.is_streamed:
        run(entry.end(status))  # The body is complete.
        return response
    if not response.direct_passthrough:  # Otherwise it is a file, which the server may send without iterating over it.
        response.response = streamed(response.response, entry, lambda: status)
    response.call_on_close(lambda: run(entry.end(status if response.direct_passthrough else None)))
    return response


def left(_: BaseException | None) -> None:
    """Ends the charges of a request without a response."""
    entry: Entry | None = g.pop(NAME, None)
    if entry is not None:
        run(entry.end(BROKEN))


def refuse(refused: Refused) -> Response:
    """The response of a refusal."""
    answer = answer_of(refused)
    if answer is None:
        response = make_response(refused.reply)
    else:
        response = Response(answer[0], refused.limited.status, content_type=answer[1])
    for name, value in refused.limited.headers:
        response.headers.setdefault(name, value)
    return response


class Reader(EnvironReader):
    """Reads requests."""

    def peer(self, request: Any) -> str | None:
        return super().peer(request.environ)

    def header(self, request: Any, name: str) -> list[str]:
        return super().header(request.environ, name)

    def path(self, request: Any) -> str:
        path: str = request.path
        return path

    def user(self, request: Any) -> str | None:
        if hasattr(current_app, "login_manager"):
            user: Any = import_module("flask_login").current_user
            return str(user.get_id()) if user.is_authenticated else None
        return request.remote_user or None
