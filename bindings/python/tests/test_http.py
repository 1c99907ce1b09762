"""workglow_limit.http: what responses say, read by each client from a real server."""

import asyncio
import json
import threading
import time
import urllib.error
import urllib.request
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import aiohttp
import httpx
import pytest
import requests
from conftest import run

from workglow_limit import CompositeLimiter, InvalidArgument, ManualClock, RateLimiter, Store
from workglow_limit.http import heed, heed_aiohttp, heed_httpx, heed_requests

CASES = json.loads((Path(__file__).parents[3] / "tests/http/heed.json").read_text())


class Handler(BaseHTTPRequestHandler):
    """GET /5 is answered as the case says, GET /to/5 with a redirection there."""

    def do_GET(self):
        if self.path.startswith("/to"):
            status, lines = 302, [f"Location: {self.path.removeprefix('/to')}", "X-RateLimit-Remaining: 0", "X-RateLimit-Reset: 9"]
        else:
            case = CASES[int(self.path[1:])]
            status, lines = case.get("status", 200), case["headers"]
        self.send_response_only(status)
        for line in lines:
            name, _, value = line.partition(": ")
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def limiter():
    """A limit that only a pause can close; the clock stands still, so what is left of the pause is all of it."""
    return RateLimiter(Store("memory:", clock=ManualClock()), "api", max_executions=9, window_size_in_seconds=60)


def of_urllib(url):
    try:
        response = urllib.request.urlopen(url)
    except urllib.error.HTTPError as error:
        response = error
    with response:
        return response


async def of_httpx_async(url):
    async with httpx.AsyncClient(verify=False) as client:
        return await client.get(url)


async def of_aiohttp(url):
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response


CLIENTS = {
    "requests": requests.get,
    "httpx": lambda url: httpx.get(url, verify=False),  # Certificates take most of its time, and there are none here.
    "httpx, async": lambda url: asyncio.run(of_httpx_async(url)),
    "aiohttp": lambda url: asyncio.run(of_aiohttp(url)),
    "urllib": of_urllib,
}


@pytest.fixture(params=CLIENTS.values(), ids=CLIENTS)
def get(request):
    return request.param


def test_what_responses_say(get, server, limiter, monkeypatch):
    for number, case in enumerate(CASES):
        response = get(f"{server}/{number}")
        assert limiter.peek("k").retry_after == 0
        with monkeypatch.context() as patched:
            patched.setattr(time, "time", lambda: case.get("now", 1_700_000_000))
            options = {name: case[name] for name in ("default", "longest") if name in case}
            assert heed(limiter, response, "k", **options) == case["pause"], case["name"]
        assert limiter.peek("k").retry_after == case["pause"], case["name"]
        assert limiter.peek("other").retry_after == 0
        limiter.clear()


def test_without_a_key_all_keys_pause(limiter):
    refused = SimpleNamespace(status_code=429, headers={"Retry-After": "20"})
    assert heed(limiter, refused) == 20
    assert limiter.peek("k").retry_after == limiter.peek().retry_after == 20
    # What a later response says of less does not shorten it.
    refused.headers["Retry-After"] = "5"
    assert heed(limiter, refused) == 5
    assert limiter.peek("k").retry_after == 20


def test_all_limits_of_a_composite_pause(limiter):
    composite = CompositeLimiter([limiter])
    heed(composite, SimpleNamespace(status=503, headers={"retry-after": "20"}))
    assert composite.peek().retry_after == limiter.peek().retry_after == 20


def number_of(name):
    return next(number for number, case in enumerate(CASES) if case["name"] == name)


TWENTY = number_of("Retry-After in seconds")
SILENT = number_of("a 429 that says nothing")


def tenant(response):
    return response.headers.get("X-RateLimit-Limit") or str(response.url).rpartition("/")[2]


def session_of_requests(limiter, key, **options):
    session = requests.Session()
    heed_requests(session, limiter, key, **options)

    def get(url):
        with session:
            return session.get(url).status_code

    return get


def client_of_httpx(limiter, key, **options):
    def get(url):
        with httpx.Client(follow_redirects=True, verify=False) as client:
            heed_httpx(client, limiter, key, **options)
            return client.get(url).status_code

    return get


def client_of_httpx_async(limiter, key, **options):
    async def get(url):
        async with httpx.AsyncClient(follow_redirects=True, verify=False) as client:
            heed_httpx(client, limiter, key, **options)
            return (await client.get(url)).status_code

    return lambda url: asyncio.run(get(url))


def session_of_aiohttp(limiter, key, **options):
    middleware = heed_aiohttp(limiter, key, **options)

    async def get(url):
        async with aiohttp.ClientSession(middlewares=[middleware]) as session, session.get(url) as response:
            return response.status

    return lambda url: asyncio.run(get(url))


HOOKED = [session_of_requests, client_of_httpx, client_of_httpx_async, session_of_aiohttp]


@pytest.mark.parametrize("hooked", HOOKED)
def test_each_response_of_a_client_is_heeded(hooked, server, limiter):
    get = hooked(limiter, None)
    assert get(f"{server}/0") == 200
    assert limiter.peek().retry_after == 0
    assert get(f"{server}/{TWENTY}") == 429
    assert limiter.peek("k").retry_after == 20


@pytest.mark.parametrize("hooked", HOOKED)
def test_a_redirection_is_a_response_too(hooked, server, limiter):
    assert hooked(limiter, "k")(f"{server}/to/0") == 200
    assert limiter.peek("k").retry_after == 9
    assert limiter.peek().retry_after == 0


@pytest.mark.parametrize("hooked", HOOKED)
def test_the_key_may_be_a_function_of_the_response(hooked, server, limiter):
    get = hooked(limiter, tenant, default=timedelta(seconds=3), longest=15)
    assert get(f"{server}/{TWENTY}") == get(f"{server}/{SILENT}") == 429
    assert limiter.peek(str(TWENTY)).retry_after == 15
    assert limiter.peek(str(SILENT)).retry_after == 3
    assert limiter.peek().retry_after == 0


@pytest.mark.parametrize("hooked", HOOKED)
def test_bad_input_is_told_where_it_is_written(hooked, limiter):
    with pytest.raises(TypeError, match="^key is 5: expected a str, not int$"):
        hooked(limiter, 5)(None)
    with pytest.raises(InvalidArgument, match="^longest is -1: expected 0 s to 366 days$"):
        hooked(limiter, None, longest=-1)(None)


def test_bad_input(limiter):
    fine = SimpleNamespace(status=200, headers={})
    for response in None, 5, {}, SimpleNamespace(status=429), SimpleNamespace(headers={}), SimpleNamespace(status="429", headers={}):
        with pytest.raises(TypeError, match="^response is .*: expected one with a status_code or status, and headers$"):
            heed(limiter, response)
    for name in "default", "longest":
        for value in -1, float("nan"), float("inf"), 366 * 86_400 + 1, timedelta(days=-1):
            with pytest.raises(InvalidArgument, match=f"^{name} is .*: expected 0 s to 366 days$") as raised:
                heed(limiter, fine, **{name: value})
            assert (raised.value.code, raised.value.number) == ("invalid_argument", -1)
        for value in None, True, "5":
            with pytest.raises(TypeError, match=f"^{name} is .*: expected seconds as a number, or a timedelta, not "):
                heed(limiter, fine, **{name: value})
    with pytest.raises(TypeError, match="^key is b'k': expected a str, not bytes$"):
        heed(limiter, fine, b"k")
    assert limiter.peek().retry_after == 0


def test_no_client_is_imported():
    imported = run("import sys, workglow_limit.http; print(*sys.modules)").split()
    assert {"requests", "httpx", "aiohttp", "typing_extensions"}.isdisjoint(imported)
