"""A limiter in front of httpx2, with the same options as in front of every client: docs/clients.md has them.

    import httpx2
    from workglow_limit.httpx2 import LimitedTransport

    client = httpx2.Client(transport=LimitedTransport({"api.example.com": limiter}, timeout=30))

The SDKs of OpenAI and Anthropic use httpx2; workglow_limit.httpx is the same for httpx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx2

from ._httpx import AsyncExchange, AsyncStream, Exchange, Stream, wrapped
from ._sending import IN_LOOP, IN_THREAD, Sending, run

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._sending import Limiters, RetryingOptions

__all__ = ["AsyncLimitedTransport", "LimitedTransport"]


class _Stream(Stream, httpx2.SyncByteStream):
    pass


class _AsyncStream(AsyncStream, httpx2.AsyncByteStream):
    pass


class LimitedTransport(httpx2.BaseTransport):
    """For httpx2.Client(transport=…): each request waits for its limiters, and is then sent by another transport."""

    def __init__(
        self,
        limiter: Limiters | None,
        *,
        transport: httpx2.BaseTransport | None = None,
        **options: Unpack[RetryingOptions],
    ) -> None:
        """transport sends the requests: an httpx2.HTTPTransport() if not given. It is closed with this one."""
        self._sending = Sending(limiter, IN_THREAD, **options)
        self._transport = wrapped(transport, httpx2.BaseTransport, httpx2.HTTPTransport)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Waits, sends, and heeds what the response says."""
        response: httpx2.Response = run(self._sending.send(Exchange(httpx2, request, self._transport, _Stream)))
        return response

    def close(self) -> None:
        """Closes the other transport."""
        self._transport.close()


class AsyncLimitedTransport(httpx2.AsyncBaseTransport):
    """For httpx2.AsyncClient(transport=…), in asyncio or trio: each request waits for its limiters, and is then sent by another transport."""

    def __init__(
        self,
        limiter: Limiters | None,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        **options: Unpack[RetryingOptions],
    ) -> None:
        """transport sends the requests: an httpx2.AsyncHTTPTransport() if not given. It is closed with this one."""
        self._sending = Sending(limiter, IN_LOOP, **options)
        self._transport = wrapped(transport, httpx2.AsyncBaseTransport, httpx2.AsyncHTTPTransport)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Waits, sends, and heeds what the response says."""
        response: httpx2.Response = await self._sending.send(AsyncExchange(httpx2, request, self._transport, _AsyncStream))
        return response

    async def aclose(self) -> None:
        """Closes the other transport."""
        await self._transport.aclose()
