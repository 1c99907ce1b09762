"""The code that httpx and httpx2 share. The libraries differ only in their names."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from typing import Any, TypeVar

from ._sending import Body, Routed, changed, run
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


def surround(client: Any, library: Any, limited: Callable[..., Any], limited_async: Callable[..., Any]) -> None:
    """Puts a limited transport around each transport of a client: the usual one, and those of its proxies and mounts."""
    if not isinstance(client, (library.Client, library.AsyncClient)):
        name, kind = library.__name__, type(client).__name__
        raise TypeError(f"client is {client!r}: expected a {name}.Client or {name}.AsyncClient, not {kind}")
    of_client = limited if isinstance(client, library.Client) else limited_async
    # There are no public names for them. None in a mount means the usual transport. Transports need not be hashable.
    theirs = {id(one): one for one in (client._transport, *client._mounts.values()) if one is not None}
    transports = {of: of_client(transport=one) for of, one in theirs.items()}
    client._transport = transports[id(client._transport)]
    client._mounts = {pattern: transports.get(id(one)) for pattern, one in client._mounts.items()}


class Exchange:
    """One request of a transport."""

    decodes = False

    def __init__(self, library: Any, request: Any, transport: Any, stream: Callable[[Any, Body], Any]) -> None:
        self.request, self.url, self._sent = request, str(request.url), request
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

    def go(self, to: Routed) -> None:
        of, own = self._library, self.request
        headers = changed(own.headers.copy(), to)
        self._sent = of.Request(
            own.method, of.URL(to.url), headers=headers, stream=own.stream, extensions=own.extensions
        )
        if self.can_repeat():
            self._sent.read()

    def relocate(self, response: Any, relocated: Callable[[str], str]) -> None:
        if location := response.headers.get("location"):
            response.headers["location"] = relocated(location)

    def ask_readable(self) -> None:
        headers = self._sent.headers
        headers["accept-encoding"] = readable(headers.get("accept-encoding", ""))

    async def send(self) -> Any:
        return self._transport.handle_request(self._sent)

    def was_never_sent(self, error: BaseException) -> bool:
        of = self._library
        return isinstance(
            error, (of.ConnectError, of.ConnectTimeout, of.PoolTimeout, of.ProxyError, of.UnsupportedProtocol)
        )

    def content(self, response: Any) -> bytes | None:
        try:
            content: bytes = response.content
        except self._library.ResponseNotRead:
            return b"" if response.is_closed else None
        return content

    def watch(self, response: Any, body: Body) -> None:
        response.stream = self._stream(response.stream, body)

    async def close(self, response: Any) -> None:
        response.close()


class AsyncExchange(Exchange):
    """One request of an asynchronous transport."""

    async def send(self) -> Any:
        return await self._transport.handle_async_request(self._sent)

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
        pieces = aiter(self._stream)
        try:
            async for chunk in pieces:
                self._body.feed(chunk)
                yield chunk
        except BaseException:
            try:
                # A loop does so later, for generators that nobody has closed, or never.
                if isinstance(pieces, AsyncGenerator):
                    await pieces.aclose()
            finally:
                await self._body.finish(False)
            raise
        await self._body.finish(True)

    async def aclose(self) -> None:
        try:
            await self._stream.aclose()
        finally:
            await self._body.finish(False)
