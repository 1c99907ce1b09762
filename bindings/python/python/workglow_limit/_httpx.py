"""The code that httpx and httpx2 share. The libraries differ only in their names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

from ._sending import Body, run
from ._tokens import readable

_Transport = TypeVar("_Transport")


def wrapped(transport: _Transport | None, kind: type[_Transport], usual: Callable[[], _Transport]) -> _Transport:
    """Returns the given transport, or the library's default."""
    if transport is None:
        return usual()
    if not isinstance(transport, kind):
        library = kind.__module__.partition(".")[0]
        raise TypeError(
            f"transport is {transport!r}: expected a {library}.{kind.__name__}, not {type(transport).__name__}"
        )
    return transport


class Exchange:
    """One request of a transport."""

    def __init__(self, library: Any, request: Any, transport: Any, stream: Callable[[Any, Body], Any]) -> None:
        self.request, self.url = request, str(request.url)
        self._library, self._transport, self._stream = library, transport, stream

    def body(self) -> bytes | None:
        try:
            content: bytes = self.request.content
        except self._library.RequestNotRead:
            return None
        return content

    def content_type(self) -> str:
        kind: str = self.request.headers.get("content-type", "")
        return kind

    def can_repeat(self) -> bool:
        return self.body() is not None

    def ask_readable(self) -> None:
        headers = self.request.headers
        headers["accept-encoding"] = readable(headers.get("accept-encoding", ""))

    async def send(self) -> Any:
        return self._transport.handle_request(self.request)

    def was_never_sent(self, error: BaseException) -> bool:
        of = self._library
        return isinstance(
            error, (of.ConnectError, of.ConnectTimeout, of.PoolTimeout, of.ProxyError, of.UnsupportedProtocol)
        )

    def watch(self, response: Any, body: Body) -> None:
        response.stream = self._stream(response.stream, body)

    async def close(self, response: Any) -> None:
        response.close()


class AsyncExchange(Exchange):
    """One request of an asynchronous transport."""

    async def send(self) -> Any:
        return await self._transport.handle_async_request(self.request)

    async def close(self, response: Any) -> None:
        await response.aclose()


class Stream:
    """The stream of a response. It feeds a Body while it is read."""

    def __init__(self, stream: Any, body: Body) -> None:
        self._stream, self._body = stream, body

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._stream:
                self._body.feed(chunk)
                yield chunk
        except BaseException:
            run(self._body.finish(False))
            raise
        run(self._body.finish(True))

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            run(self._body.finish(False))


class AsyncStream:
    """The stream of an asynchronous response. It feeds a Body while it is read."""

    def __init__(self, stream: Any, body: Body) -> None:
        self._stream, self._body = stream, body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._stream:
                self._body.feed(chunk)
                yield chunk
        except BaseException:
            await self._body.finish(False)
            raise
        await self._body.finish(True)

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._body.finish(False)
