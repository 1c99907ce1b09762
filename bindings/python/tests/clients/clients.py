"""All limited clients behind the same few calls. Calls of blocking clients block the event loop of the test.

`pieces` returns an iterator that must be kept: without it the rest of a body cannot be read.
"""

import aiohttp
import httpx
import httpx2
import requests
import urllib3
import workglow_limit.aiohttp
import workglow_limit.httpx
import workglow_limit.httpx2
import workglow_limit.requests
import workglow_limit.urllib3


class Httpx:
    library, ours = httpx, workglow_limit.httpx

    def __init__(self, limiter, **options):
        transport = self.ours.LimitedTransport(limiter, **options)
        self.client = self.library.Client(transport=transport, follow_redirects=True)

    async def open(self, url, method="GET", **body):
        return self.client.send(self.client.build_request(method, url, **body), stream=True)

    async def read(self, response):
        return response.read()

    def pieces(self, response):
        return later(response.iter_bytes())

    async def close(self, response):
        response.close()

    async def end(self):
        self.client.close()


class Httpx2(Httpx):
    library, ours = httpx2, workglow_limit.httpx2


class AsyncHttpx(Httpx):
    def __init__(self, limiter, **options):
        transport = self.ours.AsyncLimitedTransport(limiter, **options)
        self.client = self.library.AsyncClient(transport=transport, follow_redirects=True)

    async def open(self, url, method="GET", **body):
        if "content" in body and not isinstance(body["content"], bytes):
            body["content"] = later(body["content"])
        return await self.client.send(self.client.build_request(method, url, **body), stream=True)

    async def read(self, response):
        return await response.aread()

    def pieces(self, response):
        return response.aiter_bytes()

    async def close(self, response):
        await response.aclose()

    async def end(self):
        await self.client.aclose()


class AsyncHttpx2(AsyncHttpx):
    library, ours = httpx2, workglow_limit.httpx2


async def later(pieces):
    for piece in pieces:
        yield piece


class Requests:
    def __init__(self, limiter, **options):
        self.session = requests.Session()
        self.session.trust_env = False
        self.session.mount("http://", workglow_limit.requests.LimitedAdapter(limiter, **options))

    async def open(self, url, method="GET", *, content=None, **body):
        return self.session.request(method, url, stream=True, data=content, **body)

    async def read(self, response):
        return response.content

    def pieces(self, response):
        return later(response.iter_content(None))

    async def close(self, response):
        response.close()

    async def end(self):
        self.session.close()


class Urllib3:
    def __init__(self, limiter, *, retries=0, **options):
        # urllib3 retries a refusal without Retry-After only if its status is listed.
        again = urllib3.Retry(retries + 3, connect=0, read=0, other=0, status=retries, status_forcelist=(503,) if retries else (),
                              allowed_methods=None, raise_on_status=False, respect_retry_after_header=bool(retries))  # fmt: skip
        self.manager = workglow_limit.urllib3.limited(urllib3.PoolManager(retries=again), limiter, **options)

    async def open(self, url, method="GET", *, content=None, **body):
        try:
            return self.manager.request(method, url, preload_content=False, body=content, **body)
        except urllib3.exceptions.MaxRetryError as error:
            raise error.reason from None

    async def read(self, response):
        return response.read()

    def pieces(self, response):
        return later(response.stream())

    async def close(self, response):
        response.close()

    async def end(self):
        self.manager.clear()


class Aiohttp:
    def __init__(self, limiter, **options):
        middleware = workglow_limit.aiohttp.LimitedMiddleware(limiter, **options)
        self.session = aiohttp.ClientSession(middlewares=[middleware])

    async def open(self, url, method="GET", *, content=None, **body):
        return await self.session.request(
            method, url, data=content if content is None or isinstance(content, bytes) else later(content), **body
        )

    async def read(self, response):
        return await response.read()

    def pieces(self, response):
        return response.content.iter_any()

    async def close(self, response):
        response.close()

    async def end(self):
        await self.session.close()


CLIENTS = [Httpx, AsyncHttpx, Httpx2, AsyncHttpx2, Requests, Urllib3, Aiohttp]
