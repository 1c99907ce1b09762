"""A limiter in front of urllib3. All clients have the same options, which docs/clients.md describes.

    import urllib3
    from workglow_limit.urllib3 import limited

    http = limited(urllib3.PoolManager(), {"api.example.com": limiter}, timeout=30)

urllib3 retries requests itself, according to its Retry: each attempt waits for its limiters, and so does each
redirection.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    EmptyPoolError,
    MaxRetryError,
    ProtocolError,
    ProxyError,
    SSLError,
    TimeoutError,
)
from urllib3.util import Retry
from urllib3.util.request import set_file_position

from ._derived import check_options
from ._sending import IN_THREAD, Body, Options, Routed, Sender, run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._sending import Limiters

__all__ = ["Request", "limited"]

_Manager = TypeVar("_Manager", bound=urllib3.PoolManager)


@dataclass(frozen=True)
class Request:
    """A request, as the functions in the options get it."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: Any


def limited(manager: _Manager, limiter: Limiters, **options: Unpack[Options]) -> _Manager:
    """Changes a PoolManager or ProxyManager so that its requests wait for their limiters, and returns it.

    Its pools are cleared. A pool that is taken from it and used directly follows no redirections.
    """
    _check(manager)
    if "retries" in options:
        raise TypeError("retries belongs to urllib3: pass a urllib3.Retry to the manager or with a request")
    check_options("limited", options, Options.__annotations__)
    sender: Sender[Request] = Sender(limiter, IN_THREAD, **options)
    manager.clear()
    pools = {"http": urllib3.HTTPConnectionPool, "https": urllib3.HTTPSConnectionPool}
    manager.pool_classes_by_scheme = {
        scheme: type(f"Limited{pool.__name__}", (_Limited, pool), {"sender": sender}) for scheme, pool in pools.items()
    }
    return manager


def _check(manager: object) -> None:
    if not isinstance(manager, urllib3.PoolManager):
        raise TypeError(f"manager is {manager!r}: expected a urllib3.PoolManager, not {type(manager).__name__}")


class _Limited(urllib3.HTTPConnectionPool):
    """A connection pool whose attempts wait for their limiters. It retries here, not in the base class."""

    sender: Sender[Request]

    def urlopen(  # type: ignore[override]
        self,
        method: str,
        url: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        retries: Retry | bool | int | None = None,
        redirect: bool = True,
        **rest: Any,
    ) -> urllib3.BaseHTTPResponse:
        if not isinstance(retries, Retry):
            retries = Retry.from_int(retries, redirect=redirect, default=self.retries)
        headers = self.headers if headers is None else headers
        where = f"{self.scheme}://{self.host}:{self.port}{url}" if url.startswith("/") else url
        send = partial(super().urlopen, method, url, body, headers, False, False, **rest)
        exchange = _Exchange(Request(method, where, headers, body), send)
        position = rest.get("body_pos")
        while True:
            position = set_file_position(body, position)
            try:
                response, _, _ = run(self.sender.attempt(exchange))
            except (TimeoutError, ProtocolError, SSLError, ProxyError) as error:
                retries = retries.increment(method, url, error=error, _pool=self, _stacktrace=sys.exc_info()[2])
                retries.sleep()
                continue
            response.retries = retries
            if not retries.is_retry(method, response.status, "Retry-After" in response.headers):
                return response
            try:
                retries = retries.increment(method, url, response=response, _pool=self)
            except MaxRetryError:
                if retries.raise_on_status:
                    response.drain_conn()
                    raise
                return response
            response.drain_conn()
            retries.sleep(response)


class _Exchange:
    """One attempt of a pool."""

    decodes = True

    def __init__(self, request: Request, send: partial[urllib3.BaseHTTPResponse]) -> None:
        self.request, self.url, self._send = request, request.url, send

    def body(self) -> bytes | str | None:
        body = self.request.body
        return body if isinstance(body, (bytes, str)) else None

    def content_type(self) -> str:
        return next((value for name, value in self.request.headers.items() if name.lower() == "content-type"), "")

    def can_repeat(self) -> bool:
        return False  # The pool retries.

    def go(self, to: Routed) -> None:
        raise AssertionError("it belongs to the pool of one host: there is no option route")

    def relocate(self, response: urllib3.BaseHTTPResponse, relocated: Callable[[str], str]) -> None:
        raise AssertionError("it never went elsewhere")

    def ask_readable(self) -> None:
        pass  # urllib3 decodes the body.

    async def send(self) -> urllib3.BaseHTTPResponse:
        return self._send()

    def was_never_sent(self, error: BaseException) -> bool:
        return was_never_sent(error)

    def content(self, response: urllib3.BaseHTTPResponse) -> bytes | None:
        return content(response)

    def watch(self, response: urllib3.BaseHTTPResponse, body: Body) -> None:
        watch(response, body)

    async def close(self, response: urllib3.BaseHTTPResponse) -> None:
        response.close()


def was_never_sent(error: object) -> bool:
    """Returns whether it is certain that nothing reached the server."""
    if isinstance(error, MaxRetryError):
        error = error.reason
    if isinstance(error, SSLError):
        return any(isinstance(reason, ssl.SSLCertVerificationError) for reason in error.args)
    return isinstance(error, (ConnectTimeoutError, EmptyPoolError, ProxyError))


def content(response: urllib3.BaseHTTPResponse | None) -> bytes | None:
    """Returns the body of a response that has been read already."""
    read = getattr(response, "_body", None)  # What `data` returns, which would read the rest.
    return read.encode() if isinstance(read, str) else read if isinstance(read, bytes) else None


def watch(response: urllib3.BaseHTTPResponse, body: Body) -> None:
    """Feeds a body with the data that are read from a response, and reports the end."""
    if type(response) is urllib3.HTTPResponse:
        # urllib3 has no hook for reads, and other code keeps the object that it made. So change the object's class.
        response.__class__ = _WatchedResponse
        response.watching = body  # type: ignore[attr-defined]
    else:
        run(body.finish(False))


class _WatchedResponse(urllib3.HTTPResponse):
    """A response that feeds a body with the data that are read from it."""

    watching: Body

    def _feed(self, data: bytes, decode_content: bool | None, is_end: bool) -> bytes:
        is_decoded = self.decode_content if decode_content is None else decode_content
        if is_decoded or "content-encoding" not in self.headers:
            self.watching.feed(data)
        if is_end:
            run(self.watching.finish(True))
        return data

    @contextmanager
    def _finishing_on_error(self) -> Generator[None, None, None]:
        try:
            yield
        except BaseException:
            run(self.watching.finish(False))
            raise

    def read(self, amt: int | None = None, decode_content: bool | None = None, cache_content: bool = False) -> bytes:
        with self._finishing_on_error():
            data = super().read(amt, decode_content, cache_content)
            return self._feed(data, decode_content, amt is None or amt < 0 or (not data and amt > 0))

    def read1(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        with self._finishing_on_error():
            data = super().read1(amt, decode_content)
            return self._feed(data, decode_content, not data and amt != 0)

    def read_chunked(self, amt: int | None = None, decode_content: bool | None = None) -> Generator[bytes, None, None]:
        with self._finishing_on_error():
            for chunk in super().read_chunked(amt, decode_content):
                yield self._feed(chunk, decode_content, False)
            run(self.watching.finish(True))

    def stream(self, amt: int | None = 2**16, decode_content: bool | None = None) -> Generator[bytes, None, None]:
        yield from super().stream(amt, decode_content)  # It reads by the methods above.
        run(self.watching.finish(True))

    def drain_conn(self) -> None:
        super().drain_conn()
        run(self.watching.finish(False))

    def release_conn(self) -> None:
        super().release_conn()
        run(self.watching.release())  # It may have been read to its end, but not decoded yet.

    def close(self) -> None:
        super().close()
        run(self.watching.finish(False))
