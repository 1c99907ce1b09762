"""A limiter in front of urllib3, with the same options as in front of every client: docs/clients.md has them.

    import urllib3
    from workglow_limit.urllib3 import limited

    http = limited(urllib3.PoolManager(), {"api.example.com": limiter}, timeout=30)

urllib3 repeats requests by itself, as its Retry says: each attempt waits for its limiters, and so does each redirection.
"""

from __future__ import annotations

import ssl
import sys
from collections.abc import Generator, Mapping
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

from ._sending import IN_THREAD, Body, Sending, run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._sending import Limiters, Options

__all__ = ["Request", "limited"]

_Manager = TypeVar("_Manager", bound=urllib3.PoolManager)


@dataclass(frozen=True)
class Request:
    """A request, as functions of the options get it."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: Any


def limited(manager: _Manager, limiter: Limiters | None, **options: Unpack[Options]) -> _Manager:
    """The same PoolManager or ProxyManager, whose requests wait for their limiters from now on.

    Its pools are cleared. One that is taken from it and asked by itself follows no redirections.
    """
    _check(manager)
    if "retries" in options:
        raise TypeError("retries is urllib3's own: give a urllib3.Retry to the manager, or with a request")
    sending: Sending[Request] = Sending(limiter, IN_THREAD, **options)
    manager.clear()
    pools = {"http": urllib3.HTTPConnectionPool, "https": urllib3.HTTPSConnectionPool}
    manager.pool_classes_by_scheme = {
        scheme: type(f"Limited{pool.__name__}", (_Limited, pool), {"sending": sending}) for scheme, pool in pools.items()
    }
    return manager


def _check(manager: object) -> None:
    if not isinstance(manager, urllib3.PoolManager):
        raise TypeError(f"manager is {manager!r}: expected a urllib3.PoolManager, not {type(manager).__name__}")


class _Limited(urllib3.HTTPConnectionPool):
    """A pool of connections that asks for each attempt. Retries go through here, and not through the pool's own code."""

    sending: Sending[Request]

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
        exchange = _Exchange(Request(method, where, headers, body), send, rest.get("preload_content", True))
        position = rest.get("body_pos")
        while True:
            position = set_file_position(body, position)
            try:
                response, _, _ = run(self.sending.attempt(exchange))
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

    def __init__(self, request: Request, send: partial[urllib3.BaseHTTPResponse], is_preloaded: bool) -> None:
        self.request, self.url = request, request.url
        self._send, self._is_preloaded = send, is_preloaded

    def body(self) -> bytes | str | None:
        body = self.request.body
        return body if isinstance(body, (bytes, str)) else None

    def content_type(self) -> str:
        return next((value for name, value in self.request.headers.items() if name.lower() == "content-type"), "")

    def can_repeat(self) -> bool:
        return False  # The pool knows.

    def ask_readable(self) -> None:
        pass  # It is decoded when it comes here.

    async def send(self) -> urllib3.BaseHTTPResponse:
        return self._send()

    def was_never_sent(self, error: BaseException) -> bool:
        return was_never_sent(error)

    def watch(self, response: urllib3.BaseHTTPResponse, body: Body) -> None:
        if self._is_preloaded:
            body.feed(response.data or b"")
            run(body.finish(True))
        else:
            watch(response, body)

    async def close(self, response: urllib3.BaseHTTPResponse) -> None:
        response.close()


def was_never_sent(error: object) -> bool:
    """Is it certain that nothing reached the server?"""
    if isinstance(error, MaxRetryError):
        error = error.reason
    if isinstance(error, SSLError):
        return any(isinstance(reason, ssl.SSLCertVerificationError) for reason in error.args)
    return isinstance(error, (ConnectTimeoutError, EmptyPoolError, ProxyError))


def watch(response: urllib3.BaseHTTPResponse, body: Body) -> None:
    """From now on this body is fed with what is read of a response, and told its end."""
    if type(response) is urllib3.HTTPResponse:
        # There is no other way to hear of all reads: urllib3 has no hook, and others look at the object it made.
        response.__class__ = _Watched
        response.watching = body  # type: ignore[attr-defined]
    else:
        run(body.finish(False))


class _Watched(urllib3.HTTPResponse):
    """A response that tells what is read of it."""

    watching: Body

    def _heard(self, data: bytes, decode_content: bool | None, is_end: bool) -> bytes:
        is_decoded = self.decode_content if decode_content is None else decode_content
        if is_decoded or "content-encoding" not in self.headers:
            self.watching.feed(data)
        if is_end:
            run(self.watching.finish(True))
        return data

    @contextmanager
    def _broken(self) -> Generator[None, None, None]:
        try:
            yield
        except BaseException:
            run(self.watching.finish(False))
            raise

    def read(self, amt: int | None = None, decode_content: bool | None = None, cache_content: bool = False) -> bytes:
        with self._broken():
            data = super().read(amt, decode_content, cache_content)
            return self._heard(data, decode_content, amt is None or amt < 0 or (not data and amt > 0))

    def read1(self, amt: int | None = None, decode_content: bool | None = None) -> bytes:
        with self._broken():
            data = super().read1(amt, decode_content)
            return self._heard(data, decode_content, not data and amt != 0)

    def read_chunked(self, amt: int | None = None, decode_content: bool | None = None) -> Generator[bytes, None, None]:
        with self._broken():
            for chunk in super().read_chunked(amt, decode_content):
                yield self._heard(chunk, decode_content, False)
            run(self.watching.finish(True))

    def stream(self, amt: int | None = 2**16, decode_content: bool | None = None) -> Generator[bytes, None, None]:
        yield from super().stream(amt, decode_content)  # It reads by the above.
        run(self.watching.finish(True))

    def drain_conn(self) -> None:
        super().drain_conn()
        run(self.watching.finish(False))

    def release_conn(self) -> None:
        super().release_conn()
        run(self.watching.release())  # It may have been read to its end, and not been decoded yet.

    def close(self) -> None:
        super().close()
        run(self.watching.finish(False))
