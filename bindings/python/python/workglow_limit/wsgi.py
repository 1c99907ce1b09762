"""Limits for WSGI apps of any framework.

    from workglow_limit.wsgi import Limit, LimitMiddleware

    app = LimitMiddleware(app, limits=[Limit(limiter, key="address")])

The program's functions (keys, weights, plans, …) get the environ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from ._derived import check_options
from ._limit import Limit
from ._serving import BROKEN, OPTIONS, Entry, Gate, Limited, Refused, answer_of
from ._steps import run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._serving import Options

__all__ = ["Limit", "LimitMiddleware", "Limited"]

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
WSGIApp: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]


class LimitMiddleware:
    """Limits the requests of an app.

    limits: the limits of all requests. A request takes all of them or none.
    options: exempt, trusted_proxies, forwarded_header, ipv6_prefix, on_limited, headers.
    """

    def __init__(self, app: WSGIApp, limits: Iterable[Limit] = (), **options: Unpack[Options]) -> None:
        check_options("LimitMiddleware", options, ("limits", *OPTIONS))
        self._app, self._gate = app, Gate(Reader(), limits, asynchronous=False, **options)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        gate = self._gate
        if run(gate.is_exempt(environ)):
            return self._app(environ, start_response)
        entry = Entry()
        refused = run(gate.enter(environ, gate.limits, entry))
        if refused is not None:
            return refuse(refused, environ, start_response)
        body = Body(entry)

        def starting(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
            body.status = int(status[:3])
            return start_response(status, headers + entry.headers() if gate.adds_headers else headers, *exc_info)

        try:
            body.parts = self._app(environ, starting)
            return body
        except BaseException:
            run(entry.end(BROKEN))
            raise


class Body:
    """The body of a response. The request's charges end with it: servers close it, also after the client has
    disconnected."""

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.parts: Iterable[bytes] = ()
        self.status = BROKEN  # Until the app has begun its response.

    def __iter__(self) -> Iterator[bytes]:
        return streamed(self.parts, self._entry, lambda: self.status)

    def close(self) -> None:
        try:
            close = getattr(self.parts, "close", None)
            if close is not None:
                close()
        finally:
            run(self._entry.end(None))


def streamed(parts: Iterable[Any], entry: Entry, status: Callable[[], int]) -> Iterator[Any]:
    """Yields the parts of a body. The charges end with the last part, or when the generator is dropped by a server that
    does not close it."""
    outcome: int | None = None
    try:
        yield from parts
        outcome = status()
    except Exception:
        outcome = BROKEN
        raise
    finally:
        run(entry.end(outcome))


def refuse(refused: Refused, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
    """Writes the response of a refusal."""
    limited, answer = refused.limited, answer_of(refused)
    if answer is not None:
        body, of_type = answer
        headers = [("Content-Type", of_type), ("Content-Length", str(len(body))), *limited.headers]
        start_response(f"{limited.status} {HTTPStatus(limited.status).phrase}", headers)
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
    reply: Any = refused.reply
    if not callable(refused.reply):
        raise TypeError(
            f"on_limited returned {refused.reply!r}: expected None, a mapping, str, bytes or a WSGI response"
        )

    def starting(status: str, headers: list[tuple[str, str]], *exc_info: Any) -> Any:
        known = {name.lower() for name, _ in headers}
        ours = [(name, value) for name, value in limited.headers if name.lower() not in known]
        return start_response(status, headers + ours, *exc_info)

    parts: Iterable[bytes] = reply(environ, starting)
    return parts


class Reader:
    """Reads environs."""

    def peer(self, request: Any) -> str | None:
        return request.get("REMOTE_ADDR") or None

    def header(self, request: Any, name: str) -> list[str]:
        value = request.get("HTTP_" + name.upper().replace("-", "_"))
        return [] if value is None else [value]

    def path(self, request: Any) -> str:
        path: str = request.get("PATH_INFO", "")
        return path

    def user(self, request: Any) -> str | None:
        return request.get("REMOTE_USER") or None
