"""A limiter in front of aiohttp (3.12 or newer). All clients have the same options, which docs/clients.md describes.

import aiohttp
from workglow_limit.aiohttp import LimitedMiddleware

limited = LimitedMiddleware({"api.example.com": limiter}, timeout=30)
async with aiohttp.ClientSession(middlewares=[limited]) as session:
    ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
from aiohttp.payload import BytesPayload
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ._derived import check_options
from ._sending import IN_LOOP, Body, RetryingOptions, Routed, Sender, changed

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._sending import Limiters

__all__ = ["LimitedMiddleware"]


class LimitedMiddleware:
    """For aiohttp.ClientSession(middlewares=[…]): each request waits for its limiters, and so does each redirection.

    The wait counts against the session's total timeout.
    """

    def __init__(
        self,
        limiter: Limiters,
        **options: Unpack[RetryingOptions],
    ) -> None:
        check_options("LimitedMiddleware", options, RetryingOptions.__annotations__)
        self._sender: Sender[aiohttp.ClientRequest] = Sender(limiter, IN_LOOP, **options)

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Waits, sends the request, and heeds the response."""
        return await self._sender.send(_Exchange(request, handler))


class _Exchange:
    """One request of the middleware."""

    decodes = True

    def __init__(self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> None:
        self.request, self.url, self._handler = request, str(request.url), handler
        self._to: Routed | None = None

    def body(self) -> bytes | str | None:
        body = self.request.body
        return body.decode() if isinstance(body, BytesPayload) else None

    def content_type(self) -> str:
        return self.request.headers.get("content-type", "")

    def can_repeat(self) -> bool:
        return isinstance(self.request.body, (bytes, BytesPayload))

    def go(self, to: Routed) -> None:
        self._to = to

    def relocate(self, response: aiohttp.ClientResponse, relocated: Callable[[str], str]) -> None:
        if location := response.headers.get("location"):
            inside: Any = response  # There is no public name for what can be changed.
            headers = CIMultiDict(response.headers)
            headers["location"] = relocated(location)
            inside._headers = CIMultiDictProxy(headers)
            inside._cache.pop("headers", None)

    def ask_readable(self) -> None:
        pass  # aiohttp decodes the body.

    async def send(self) -> aiohttp.ClientResponse:
        if self._to is None:
            return await self._handler(self.request)
        # A middleware around this one may send the same request again.
        request, url, headers = self.request, self.request.url, self.request.headers
        request.url, request.headers = URL(self._to.url, encoded=True), changed(headers.copy(), self._to)
        try:
            return await self._handler(request)
        finally:
            request.url, request.headers = url, headers

    def was_never_sent(self, error: BaseException) -> bool:
        return isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL))

    def content(self, response: aiohttp.ClientResponse) -> bytes | None:
        inside: Any = response  # There is no public name for what `read` returns. A middleware may have read it.
        content: bytes | None = inside._body
        return content

    def watch(self, response: aiohttp.ClientResponse, body: Body) -> None:
        content = _Content(response.content, body)
        response.content = content  # type: ignore[assignment]
        if response.connection is None:
            content.released()
        else:
            response.connection.add_callback(content.released)

    async def close(self, response: aiohttp.ClientResponse) -> None:
        response.close()


_Read = TypeVar("_Read", bytes, tuple[bytes, bool])

#: Tasks that end permits. The event loop keeps only weak references to tasks.
_ending: set[asyncio.Task[None]] = set()


class _Content:
    """The stream of a response. It feeds a Body while it is read, and passes all other calls to the original reader."""

    def __init__(self, reader: aiohttp.StreamReader, body: Body) -> None:
        self._reader, self._body = reader, body

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def released(self) -> None:
        """Called when the connection is free or closed: the whole body has arrived, or the rest never will."""
        arrived = self._reader.is_eof() and self._reader.exception() is None
        is_read = self._reader.at_eof()
        self._end(self._body.release() if arrived and not is_read else self._body.finish(is_read))

    def set_exception(self, *error: Any) -> None:
        """Called when the response is closed: the rest of a body that has arrived will not be read."""
        self._reader.set_exception(*error)
        if self._body.permit is not None:
            self._end(self._body.finish(False))

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(ending)
        _ending.add(task)
        task.add_done_callback(_ending.discard)

    async def _fed(self, reading: Awaitable[_Read]) -> _Read:
        try:
            read = await reading
        except BaseException:
            await self._body.finish(False)
            raise
        self._body.feed(read[0] if isinstance(read, tuple) else read)
        if self._reader.at_eof():
            await self._body.finish(True)
        return read

    async def read(self, n: int = -1) -> bytes:
        return await self._fed(self._reader.read(n))

    async def readany(self) -> bytes:
        return await self._fed(self._reader.readany())

    async def readexactly(self, n: int) -> bytes:
        return await self._fed(self._reader.readexactly(n))

    async def readline(self, **options: Any) -> bytes:
        return await self._fed(self._reader.readline(**options))

    async def readuntil(self, *arguments: Any, **options: Any) -> bytes:
        return await self._fed(self._reader.readuntil(*arguments, **options))

    async def readchunk(self) -> tuple[bytes, bool]:
        return await self._fed(self._reader.readchunk())

    def read_nowait(self, n: int = -1) -> bytes:
        data = self._reader.read_nowait(n)
        self._body.feed(data)
        return data

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _each(self.readline)

    def iter_any(self) -> AsyncIterator[bytes]:
        return _each(self.readany)

    def iter_chunked(self, n: int) -> AsyncIterator[bytes]:
        return _each(lambda: self.read(n))

    async def iter_chunks(self) -> AsyncIterator[tuple[bytes, bool]]:
        while (chunk := await self.readchunk()) != (b"", False):
            yield chunk


async def _each(read: Callable[[], Awaitable[bytes]]) -> AsyncIterator[bytes]:
    while data := await read():
        yield data
