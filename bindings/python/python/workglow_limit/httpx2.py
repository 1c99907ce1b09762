"""A limiter in front of httpx2. All clients have the same options, which docs/clients.md describes.

    import httpx2
    from workglow_limit.httpx2 import limited

    client = limited(httpx2.Client(), {"api.example.com": limiter}, timeout=30)

The SDKs of OpenAI and Anthropic use httpx2; workglow_limit.httpx does the same for httpx.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import httpx2

from ._derived import check_options
from ._httpx import AsyncExchange, AsyncStream, Exchange, Stream, surround, wrapped
from ._sending import IN_LOOP, IN_THREAD, RetryingOptions, Sender, run

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from ._sending import Limiters

__all__ = ["AsyncLimitedTransport", "LimitedTransport", "limited"]

_Client = TypeVar("_Client", bound=httpx2.Client | httpx2.AsyncClient)


def limited(client: _Client, limiter: Limiters, **options: Unpack[RetryingOptions]) -> _Client:
    """Changes a client so that its requests wait for their limiters, and returns it.

    Its own transports send them, so its proxies (also those of the environment), its mounts and its TLS options stay.
    """
    check_options("limited", options, RetryingOptions.__annotations__)
    kinds = LimitedTransport, AsyncLimitedTransport
    surround(client, httpx2, *(partial(kind, limiter, **options) for kind in kinds))
    return client


class _Stream(Stream, httpx2.SyncByteStream):
    pass


class _AsyncStream(AsyncStream, httpx2.AsyncByteStream):
    pass


class LimitedTransport(httpx2.BaseTransport):
    """For httpx2.Client(transport=…): each request waits for its limiters, then another transport sends it."""

    def __init__(
        self,
        limiter: Limiters,
        *,
        transport: httpx2.BaseTransport | None = None,
        **options: Unpack[RetryingOptions],
    ) -> None:
        """transport sends the requests: an httpx2.HTTPTransport() by default. Closing this transport closes it."""
        check_options("LimitedTransport", options, ("transport", *RetryingOptions.__annotations__))
        self._sender = Sender(limiter, IN_THREAD, **options)
        self._transport = wrapped(transport, httpx2.BaseTransport, httpx2.HTTPTransport)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Waits, sends the request, and heeds the response."""
        response: httpx2.Response = run(self._sender.send(Exchange(httpx2, request, self._transport, _Stream)))
        return response

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._transport.__exit__(*error)

    def close(self) -> None:
        """Closes the other transport."""
        self._transport.close()


class AsyncLimitedTransport(httpx2.AsyncBaseTransport):
    """For httpx2.AsyncClient(transport=…), in asyncio or trio: each request waits for its limiters, then another
    transport sends it."""

    def __init__(
        self,
        limiter: Limiters,
        *,
        transport: httpx2.AsyncBaseTransport | None = None,
        **options: Unpack[RetryingOptions],
    ) -> None:
        """transport sends the requests: an httpx2.AsyncHTTPTransport() by default. Closing this transport closes it."""
        check_options("AsyncLimitedTransport", options, ("transport", *RetryingOptions.__annotations__))
        self._sender = Sender(limiter, IN_LOOP, **options)
        self._transport = wrapped(transport, httpx2.AsyncBaseTransport, httpx2.AsyncHTTPTransport)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Waits, sends the request, and heeds the response."""
        response: httpx2.Response = await self._sender.send(
            AsyncExchange(httpx2, request, self._transport, _AsyncStream)
        )
        return response

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._transport.__aexit__(*error)

    async def aclose(self) -> None:
        """Closes the other transport."""
        await self._transport.aclose()
