"""workglow_limit.http, with responses of each client from a real server. (tests/clients tests the limiters in front of clients.)"""

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
from workglow_limit.http import heed, heed_async

CASES = json.loads((Path(__file__).parents[3] / "tests/http/heed.json").read_text())


class Handler(BaseHTTPRequestHandler):
    """GET /5 is answered as case 5."""

    def do_GET(self):
        case = CASES[int(self.path[1:])]
        self.send_response_only(case.get("status", 200))
        for line in case["headers"]:
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
    """A limit that only a pause can close. Its clock stands still, so the remaining pause is the whole pause."""
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
    "httpx": lambda url: httpx.get(
        url, verify=False
    ),  # Loading certificates would take most of the time, and none are needed here.
    "httpx, async": lambda url: asyncio.run(of_httpx_async(url)),
    "aiohttp": lambda url: asyncio.run(of_aiohttp(url)),
    "urllib": of_urllib,
}


@pytest.fixture(params=CLIENTS.values(), ids=CLIENTS)
def get(request):
    return request.param


def test_responses_have_the_headers(get, server, limiter, monkeypatch):
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
    # A shorter pause in a later response does not shorten it.
    refused.headers["Retry-After"] = "5"
    assert heed(limiter, refused) == 5
    assert limiter.peek("k").retry_after == 20


def test_in_an_event_loop(limiter):
    refused = SimpleNamespace(status_code=429, headers={"Retry-After": "20"})
    assert asyncio.run(heed_async(limiter, refused, "k")) == 20
    assert (limiter.peek("k").retry_after, limiter.peek().retry_after) == (20, 0)


def test_all_limits_of_a_composite_pause(limiter):
    composite = CompositeLimiter([limiter])
    heed(composite, SimpleNamespace(status=503, headers={"retry-after": "20"}))
    assert composite.peek().retry_after == limiter.peek().retry_after == 20


def test_bad_input(limiter):
    fine = SimpleNamespace(status=200, headers={})
    for response in (
        None,
        5,
        {},
        SimpleNamespace(status=429),
        SimpleNamespace(headers={}),
        SimpleNamespace(status="429", headers={}),
    ):
        with pytest.raises(
            TypeError, match="^response is .*: expected a response with a status_code or status, and headers$"
        ):
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
