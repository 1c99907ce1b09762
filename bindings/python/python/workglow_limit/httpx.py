"""A limiter in front of httpx, with the same options as in front of every client: docs/clients.md has them.

    import httpx
    from workglow_limit.httpx import LimitedTransport

    client = httpx.Client(transport=LimitedTransport({"api.example.com": limiter}, timeout=30))

workglow_limit.httpx2 is the same for httpx2, which the SDKs of OpenAI and Anthropic use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

from ._httpx import AsyncExchange, AsyncStream, Exchange, Stream, wrapped
from ._sending import IN_LOOP, IN_THREAD, Sending, run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._sending import Limiters, RetryingOptions

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]


class _Stream(Stream, httpx.SyncByteStream):
    pass


class _AsyncStream(AsyncStream, httpx.AsyncByteStream):
    pass


class LimitedTransport(httpx.BaseTransport):
    """For httpx.Client(transport=…): each request waits for its limiters, and is then sent by another transport."""

    def __init__(
        self,
        limiter: Limiters | None,
        *,
        transport: httpx.BaseTransport | None = None,
        **options: Unpack[RetryingOptions],
    ) -> None:
        """transport sends the requests: an httpx.HTTPTransport() if not given. It is closed with this one."""
        self._sending = Sending(limiter, IN_THREAD, **options)
        self._transport = wrapped(transport, httpx.BaseTransport, httpx.HTTPTransport)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Waits, sends, and heeds what the response says."""
        response: httpx.Response = run(self._sending.send(Exchange(httpx, request, self._transport, _Stream)))
        return response

    def close(self) -> None:
        """Closes the other transport."""
        self._transport.close()


class AsyncLimitedTransport(httpx.AsyncBaseTransport):
    """For httpx.AsyncClient(transport=…), in asyncio or trio: each request waits for its limiters, and is then sent by another transport."""

    def __init__(
        self,
        limiter: Limiters | None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Unpack[RetryingOptions],
    ) -> None:
        """transport sends the requests: an httpx.AsyncHTTPTransport() if not given. It is closed with this one."""
        self._sending = Sending(limiter, IN_LOOP, **options)
        self._transport = wrapped(transport, httpx.AsyncBaseTransport, httpx.AsyncHTTPTransport)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Waits, sends, and heeds what the response says."""
        response: httpx.Response = await self._sending.send(AsyncExchange(httpx, request, self._transport, _AsyncStream))
        return response

    async def aclose(self) -> None:
        """Closes the other transport."""
        await self._transport.aclose()
