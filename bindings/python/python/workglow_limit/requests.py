"""A limiter in front of requests. All clients have the same options, which docs/clients.md describes.

import requests
from workglow_limit.requests import LimitedAdapter

session = requests.Session()
session.mount("https://api.example.com/", LimitedAdapter(limiter, timeout=30))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import ConnectTimeout, InvalidHeader, InvalidURL, ProxyError

from ._derived import check_options
from ._sending import IN_THREAD, Body, RetryingOptions, Routed, Sender, changed, run
from .urllib3 import content, was_never_sent, watch

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._sending import Limiters

__all__ = ["LimitedAdapter"]


class LimitedAdapter(HTTPAdapter):
    """For session.mount(…): each request waits for its limiters, and so does each redirection."""

    def __init__(
        self,
        limiter: Limiters,
        *,
        pool_connections: int = 10,
        pool_maxsize: int = 10,
        pool_block: bool = False,
        **options: Unpack[RetryingOptions],
    ) -> None:
        """The pool_ parameters are those of HTTPAdapter. Its max_retries would bypass the limiters; use retries
        instead."""
        if "max_retries" in options:
            raise TypeError("max_retries would bypass the limiters: use retries instead")
        own = "pool_connections", "pool_maxsize", "pool_block"
        check_options("LimitedAdapter", options, (*own, *RetryingOptions.__annotations__))
        self._sender: Sender[requests.PreparedRequest] = Sender(limiter, IN_THREAD, **options)
        super().__init__(pool_connections, pool_maxsize, pool_block=pool_block)

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        """Waits, sends the request, and heeds the response."""
        return run(
            self._sender.send(
                _Exchange(request, lambda sent: super(LimitedAdapter, self).send(sent, *arguments, **options))
            )
        )

    def __getstate__(self) -> NoReturn:
        raise TypeError("a LimitedAdapter cannot be pickled: make one in each process")


class _Exchange:
    """One request of the adapter."""

    decodes = True

    def __init__(
        self, request: requests.PreparedRequest, send: Callable[[requests.PreparedRequest], requests.Response]
    ) -> None:
        self.request, self.url, self._send = request, request.url or "", send
        self._sent = request

    def body(self) -> bytes | str | None:
        body = self.request.body
        return body if isinstance(body, (bytes, str)) else None

    def content_type(self) -> str:
        return str(self.request.headers.get("content-type", ""))

    def can_repeat(self) -> bool:
        return self.request.body is None or self.body() is not None

    def go(self, to: Routed) -> None:
        self._sent = self.request.copy()
        self._sent.url, self._sent.headers = to.url, changed(self._sent.headers, to)

    def relocate(self, response: requests.Response, relocated: Callable[[str], str]) -> None:
        if location := response.headers.get("location"):
            response.headers["location"] = relocated(location)

    def ask_readable(self) -> None:
        pass  # urllib3 decodes the body.

    async def send(self) -> requests.Response:
        response = self._send(self._sent)
        # The session follows a redirection from there, and decides by it who gets the credentials.
        response.request, response.url = self.request, self.url
        return response

    def was_never_sent(self, error: BaseException) -> bool:
        if isinstance(error, (ConnectTimeout, InvalidHeader, InvalidURL, ProxyError)):
            return True
        return any(was_never_sent(reason) for reason in error.args)

    def content(self, response: requests.Response) -> bytes | None:
        inside: Any = response  # There is no public name for whether `content` has been read.
        return inside._content or b"" if inside._content_consumed else content(response.raw)

    def watch(self, response: requests.Response, body: Body) -> None:
        watch(response.raw, body)

    async def close(self, response: requests.Response) -> None:
        response.close()
