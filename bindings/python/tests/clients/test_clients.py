"""A limiter in front of each client: waits, pauses, retries and the ends of permits, with a real server."""

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import aiohttp
import httpx
import httpx2
import pytest
import requests
import trio
import urllib3
import workglow_limit.httpx
import workglow_limit.httpx2
import workglow_limit.urllib3
from clients import CLIENTS, AsyncHttpx, AsyncHttpx2, Httpx, Httpx2, Requests, Urllib3
from conftest import until
from fake import serving
from workglow_limit import (
    AcquireTimeout,
    CompositeLimiter,
    ConcurrencyLimiter,
    FirstOfLimiter,
    InvalidArgument,
    ManualClock,
    RateLimiter,
    Store,
)
from workglow_limit.aiohttp import LimitedMiddleware
from workglow_limit.httpx import AsyncLimitedTransport, LimitedTransport
from workglow_limit.requests import LimitedAdapter

CONNECTION_ERRORS = (
    httpx.TransportError, httpx2.TransportError, requests.RequestException, urllib3.exceptions.HTTPError, aiohttp.ClientError,
)  # fmt: skip


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture
def rate():
    """Its clock stands still, so the remaining pause is the whole pause, and no unit is returned."""
    return RateLimiter(Store("memory:", clock=ManualClock()), "api", max_executions=100, window_size_in_seconds=60)


def used(limiter, key=None):
    decision = limiter.peek(key)
    return decision.limit - decision.remaining


@pytest.fixture(params=CLIENTS, ids=lambda kind: kind.__name__)
def client(request):
    """Runs a function with a client in an event loop, and closes the client. A wait of a minute counts as a hang."""

    def use(limiter, scenario, **options):
        async def main():
            client = request.param(limiter, **options)
            try:
                return await asyncio.wait_for(scenario(client), 60)
            finally:
                await client.end()

        return asyncio.run(main())

    use.kind = request.param
    return use


async def get(client, url, method="GET", **body):
    response = await client.open(url, method, **body)
    data = await client.read(response)
    await client.close(response)
    return getattr(response, "status_code", None) or response.status, data


# ---- the limiters of a request ----


def test_each_request_takes_a_permit(client, server, rate):
    async def scenario(client):
        return [await get(client, f"{server.url}/x", "POST", content=b"abc") for _ in range(3)]

    assert client(rate, scenario, weight=2) == [(200, b"fine")] * 3
    assert used(rate) == 6 and server.bodies == [b"abc"] * 3


def test_a_denied_request_is_not_sent(client, server, rate):
    async def scenario(client):
        with pytest.raises(AcquireTimeout):
            await get(client, f"{server.url}/x")

    rate.acquire(weight=100)
    client(rate, scenario, timeout=0)
    assert not server.arrivals


def test_hosts_have_their_own_limiters(client, server, rate):
    other = RateLimiter(Store("memory:"), "other", max_executions=9, window_size_in_seconds=60)
    port = server.server_port

    async def scenario(client):
        for host in "127.0.0.1", "localhost":
            await get(client, f"http://{host}:{port}/x")

    rate.acquire(weight=100)  # A decision of this limiter would fail.
    hosts = {"127.0.0.1": rate, f"127.0.0.1:{port}": other, "localhost:9": rate, "api.example.com": rate}
    client(hosts, scenario, timeout=0)
    assert len(server.arrivals) == 2 and used(other) == 1

    client({"LOCALHOST": other}, scenario)
    assert len(server.arrivals) == 4 and used(other) == 2


def test_limiter_key_and_weight_may_be_functions_of_the_request(client, server, rate):
    seen = []

    def limiter(request):
        seen.append(request)
        return None if "free" in str(request.url) else rate

    async def scenario(client):
        for path in "a", "bb", "free":
            await get(client, f"{server.url}/{path}")

    client(
        limiter,
        scenario,
        key=lambda request: str(request.url)[-1],
        weight=lambda request: len(str(request.url)) - len(server.url),
    )
    assert used(rate, "a") == 2 and used(rate, "b") == 3 and used(rate, "e") == used(rate) == 0
    client(rate, lambda client: get(client, f"{server.url}/a"), key=lambda _: 7)
    assert used(rate, "7") == 1
    assert len(seen) == 3 and {request.method for request in seen} == {"GET"}


def test_each_redirection_is_a_request(client, server, rate):
    async def scenario(client):
        return await get(client, f"{server.url}/to?url=/x")

    assert client(rate, scenario) == (200, b"fine")
    assert used(rate) == 2


def test_a_redirection_does_not_wait_for_its_own_request(client, server):
    one = ConcurrencyLimiter(1)

    async def scenario(client):
        return await get(client, f"{server.url}/to?url=/x")

    assert client(one, scenario) == (200, b"fine")
    assert one.peek().remaining == 1


@pytest.mark.parametrize("kind", [Httpx, AsyncHttpx, Httpx2, AsyncHttpx2])
@pytest.mark.parametrize("way", ["proxy", "environment", "mount", "no proxy"])
def test_a_client_limited_in_place_keeps_its_ways(kind, way, server, rate, monkeypatch):
    """The server is the proxy, which gets the requests of a host that does not exist."""
    for name in "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY":
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    library, is_async, options = kind.library, issubclass(kind, AsyncHttpx), {}
    url = "http://example.invalid/x"
    if way == "proxy":
        options["proxy"] = server.url
    elif way == "mount":
        transport = library.AsyncHTTPTransport if is_async else library.HTTPTransport
        options["mounts"] = {"http://example.invalid": transport(proxy=server.url)}
    else:
        monkeypatch.setenv("HTTP_PROXY", server.url if way == "environment" else "http://127.0.0.1:9")
        if way == "no proxy":
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            url = f"{server.url}/x"

    async def main():
        client = (library.AsyncClient if is_async else library.Client)(**options)
        assert kind.ours.limited(client, rate, timeout=0) is client
        answer = client.get(url)
        assert (await answer if is_async else answer).text == "fine"
        await client.aclose() if is_async else client.close()

    asyncio.run(main())
    assert used(rate) == 1 == len(server.arrivals)


@pytest.mark.parametrize("kind", [Httpx, AsyncHttpx, Httpx2, AsyncHttpx2])
def test_a_transport_that_needs_to_be_entered_and_cannot_be_hashed(kind, rate):
    library, is_async = kind.library, issubclass(kind, AsyncHttpx)
    seen = []

    class Theirs(library.MockTransport):
        __hash__ = None

        def __enter__(self):
            seen.append("entered")
            return self

        def __exit__(self, *error):
            seen.append("left")

        async def __aenter__(self):
            return self.__enter__()

        async def __aexit__(self, *error):
            self.__exit__()

    theirs = Theirs(lambda _: library.Response(200, text="fine"))

    async def main():
        client = (library.AsyncClient if is_async else library.Client)(transport=theirs, trust_env=False)
        kind.ours.limited(client, rate, timeout=0)
        if is_async:
            async with client:
                return (await client.get("http://example.invalid")).text
        with client:
            return client.get("http://example.invalid").text

    assert (asyncio.run(main()), seen) == ("fine", ["entered", "left"])
    assert used(rate) == 1


# ---- refusals of the server ----


def test_a_refusal_pauses_the_limit(client, server, rate):
    async def scenario(client):
        return await get(client, f"{server.url}/x?status=429&times=1&retry-after=20")

    assert client(rate, scenario) == (429, b"not now")
    assert rate.peek().retry_after == rate.peek("k").retry_after == 20


def test_a_refusal_pauses_the_alternative_that_was_used(client, server):
    store = Store("memory:", clock=ManualClock())
    one, two = store.limiter("one", "100/1m"), store.limiter("two", "100/1m")

    async def scenario(client):
        await get(client, f"{server.url}/x?status=429&times=1&retry-after=20")
        await get(client, f"{server.url}/x")

    client(FirstOfLimiter([one, two]), scenario)
    assert one.peek().retry_after == 20
    assert (two.peek().retry_after, used(two)) == (0, 1)


def test_a_refusal_pauses_the_alternative_that_was_used_with_the_key_of_its_part(client, server):
    """A mapping of keys has one for the alternatives, which have no parts of their own."""
    clock = ManualClock()
    store = Store("memory:", clock=clock)
    one, two, tenant = (store.limiter(name, "1/1m" if name == "one" else "5/1m") for name in ("one", "two", "tenant"))
    limiter = CompositeLimiter({"provider": FirstOfLimiter([one, two]), "tenant": tenant})

    async def scenario(client):
        for path in "/x", "/y?status=429&times=1&retry-after=200":
            await get(client, f"{server.url}{path}")

    client(limiter, scenario, key={"provider": "p", "tenant": "t"})
    clock.advance(60)  # The start of `one` is over: only a pause would deny now.
    assert (one.peek("p").retry_after, two.peek("p").retry_after) == (0, 140)
    assert (two.peek().retry_after, tenant.peek("t").retry_after, tenant.peek().retry_after) == (0, 0, 0)


def test_a_refusal_of_a_key_pauses_the_key(client, server, rate):
    async def scenario(client):
        await get(client, f"{server.url}/x?status=429&times=1")

    client(rate, scenario, key="k", heed={"default": timedelta(seconds=3)})
    assert rate.peek("k").retry_after == 3 and rate.peek().retry_after == 0


def test_how_a_refusal_is_heeded(client, server, rate):
    async def scenario(client):
        await get(client, f"{server.url}/x?status=503&times=1&retry-after=20")

    client(rate, scenario, heed=False)
    assert rate.peek().retry_after == 0
    server.paths.clear()
    client(rate, scenario, heed={"longest": 5})
    assert rate.peek().retry_after == 5


# ---- retries ----


def test_a_refusal_is_sent_again_after_the_pause(client, server):
    limiter = RateLimiter(Store("memory:"), "api", max_executions=100, window_size_in_seconds=3600)

    async def scenario(client):
        return await get(client, f"{server.url}/x?status=429&times=1&retry-after=1", "POST", content=b"abc")

    assert client(limiter, scenario, retries=2) == (200, b"fine")
    assert used(limiter) == 2 and server.bodies == [b"abc"] * 2
    assert server.arrivals[1] - server.arrivals[0] >= 1_000_000_000


def test_retries_bounds_the_attempts(client, server, rate):
    async def scenario(client):
        return await get(client, f"{server.url}/x?status=503&times=9")

    options = {"heed": {"default": 0.001}}
    assert client(rate, scenario, **options) == (503, b"not now")
    assert len(server.arrivals) == 1
    assert client(rate, scenario, retries=2, **options) == (503, b"not now")
    assert len(server.arrivals) == 4 and used(rate) == 4


def test_a_request_is_not_retried_beyond_the_timeout(client, server, rate):
    if client.kind is Urllib3:
        pytest.skip("urllib3's Retry decides")

    async def scenario(client):
        return await get(client, f"{server.url}/x?status=503&times=9&retry-after=20")

    assert client(rate, scenario, retries=9, timeout=19) == (503, b"not now")
    assert len(server.arrivals) == 1


def test_requests_without_a_limiter_are_retried(client, server, rate):
    async def scenario(client):
        return await get(client, f"{server.url}/x?status=503&times=1&retry-after=1")

    assert client({"api.example.com": rate}, scenario, retries=1) == (200, b"fine")
    assert server.arrivals[1] - server.arrivals[0] >= 1_000_000_000


def test_a_consumed_body_is_not_sent_again(client, server, rate):
    if client.kind is Urllib3:
        pytest.skip("urllib3's Retry decides")

    async def scenario(client):
        return await get(
            client, f"{server.url}/x?status=503&times=9&retry-after=0.001", "POST", content=iter([b"ab", b"c"])
        )

    assert client(rate, scenario, retries=9, heed=False) == (503, b"not now")
    assert server.bodies == [b"abc"]


# ---- the end of a permit ----


def test_a_permit_is_held_until_the_body_has_been_read(client, server):
    one = ConcurrencyLimiter(1)

    async def scenario(client):
        response = await client.open(f"{server.url}/hold")
        assert one.peek().remaining == 0
        pieces = client.pieces(response)
        assert await anext(pieces) == b"first "
        assert one.peek().remaining == 0
        server.go.set()
        assert [piece async for piece in pieces] == [b"last"]
        await ended(one)
        await client.close(response)

    client(one, scenario)
    assert one.peek().remaining == 1


@pytest.mark.parametrize("policy", ["1 concurrent cooldown 1ms", "1 concurrent cooldown 1ms + 5 concurrent"])
def test_a_response_that_is_still_being_read_has_arrived(client, server, policy):
    limiter = Store("memory:").limiter("api", policy)

    async def two_at_once(client):
        first, second = await client.open(server.url + "/hold"), await client.open(server.url + "/hold")
        server.go.set()
        return await client.read(first), await client.read(second)

    assert client(limiter, two_at_once) == (b"first last",) * 2


def without_loop(coroutine):
    """Runs a coroutine of a blocking client, which awaits nothing."""
    with pytest.raises(StopIteration) as ended:
        coroutine.send(None)
    return ended.value.value


@pytest.mark.parametrize("where", ["memory", "redis"])
@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
def test_no_window_has_more_requests_as_the_server_counts_them(kind, where, request):
    """However late they arrive there: their way takes up to 30 ms, and a loop is busy half of the time."""
    limit, window, count, at_once = 12, 0.1, 60, 15
    url = "memory:" if where == "memory" else f"redis+unix://{request.getfixturevalue('the_server').socket}"
    limiter = Store(url, timeout=30).limiter(f"{kind.__name__}", f"{limit} concurrent cooldown 100ms")
    limiter.peek()  # Opens the store.
    is_blocking = kind in (Httpx, Httpx2, Requests, Urllib3)

    async def send(server, many):
        async def one():
            await client.read(await client.open(server.url + "/any"))

        async def busy():
            while True:
                time.sleep(0.005)
                await asyncio.sleep(0.005)

        client = kind(limiter)
        blocks = asyncio.ensure_future(busy())
        await asyncio.gather(*(one() for _ in range(many)))
        blocks.cancel()
        await client.end()

    def send_blocking(server, many):
        client = kind(limiter)
        for _ in range(many):
            without_loop(client.read(without_loop(client.open(server.url + "/any"))))
        without_loop(client.end())

    with serving(jitter=0.03) as server, ThreadPoolExecutor(at_once) as threads:
        if is_blocking:
            # On a loop, a call gives a server 40 ms, which a busy one may need.
            sent = [threads.submit(send_blocking, server, count // at_once) for _ in range(at_once)]
        else:
            sent = [threads.submit(asyncio.run, send(server, count))]
        for each in sent:
            each.result(60)
        arrivals = sorted(server.arrivals)
    assert len(arrivals) == count
    most = max(sum(at - window * 1e9 < other <= at for other in arrivals) for at in arrivals)
    assert most <= limit


async def ended(limiter):
    """Waits for the end of a permit, which follows the close, because aiohttp's close awaits nothing."""
    while limiter.peek().remaining == 0:
        await asyncio.sleep(0.001)


def test_a_permit_ends_when_the_body_is_closed(client, server):
    one = ConcurrencyLimiter(1)

    async def scenario(client):
        response = await client.open(f"{server.url}/hold")
        pieces = client.pieces(response)
        assert await anext(pieces) == b"first "
        assert one.peek().remaining == 0
        await client.close(response)
        await ended(one)
        await pieces.aclose()

    client(one, scenario)


def test_a_permit_ends_when_the_body_breaks(client, server):
    one = ConcurrencyLimiter(1)

    async def scenario(client):
        response = await client.open(f"{server.url}/tear")
        pieces = client.pieces(response)
        assert await anext(pieces) == b"first "
        assert one.peek().remaining == 0
        server.go.set()
        with pytest.raises(CONNECTION_ERRORS):
            await anext(pieces)
        await ended(one)
        await client.close(response)

    client(one, scenario)


def test_a_request_that_was_never_sent_takes_nothing(client):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"

        async def scenario(client):
            with pytest.raises(CONNECTION_ERRORS):
                await get(client, url)
            with pytest.raises(CONNECTION_ERRORS):
                await get(client, "http://unknown.invalid/")

        llm = Store("memory:").limiter("llm", "requests: 9/1m + tokens: 100/1m")
        client(llm, scenario, tokens="tokens", estimate=lambda _: 50)
    assert used(llm.parts["requests"]) == used(llm.parts["tokens"]) == 0


def test_a_request_that_was_sent_counts(client, server, rate):
    one = ConcurrencyLimiter(1)

    async def scenario(client):
        with pytest.raises(CONNECTION_ERRORS):
            await get(client, f"{server.url}/break", "POST", content=b"x")

    client(CompositeLimiter([rate, one]), scenario)
    assert used(rate) == 1 and one.peek().remaining == 1
    assert len(server.arrivals) == 1


def test_a_retry_on_a_closed_connection_takes_its_own_permit(client, server, rate):
    """Some clients retry automatically when a kept connection was closed. The retry is another request."""

    async def scenario(client):
        await get(client, f"{server.url}/x")
        with contextlib.suppress(*CONNECTION_ERRORS):
            await get(client, f"{server.url}/break")

    client(rate, scenario)
    assert used(rate) == len(server.arrivals)


# ---- event loops ----


def test_the_event_loop_is_never_blocked(server, tmp_path):
    """Another program locks the database while a start needs it. The loop continues, and ends the lock."""
    store = Store(f"sqlite:{tmp_path}/limits.db", timeout=60, durability="commit")
    limiter = store.limiter("api", "requests: 100/1m + tokens: 100/1m")
    limiter.peek()

    async def main():
        async with httpx.AsyncClient(
            transport=AsyncLimitedTransport(limiter, tokens="tokens", estimate=lambda _: 50)
        ) as client:
            stranger = subprocess.Popen(
                ["sqlite3", tmp_path / "limits.db"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            stranger.stdin.write("begin immediate;\nselect 'ready';\n")
            stranger.stdin.flush()
            assert stranger.stdout.readline() == "ready\n"
            request = asyncio.ensure_future(client.get(f"{server.url}/x"))
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert not request.done() and not server.arrivals
            stranger.communicate()
            assert (await asyncio.wait_for(request, 60)).status_code == 200

    asyncio.run(main())
    assert used(limiter.parts["requests"]) == 1


def test_a_request_cancelled_while_waiting_holds_nothing(server, rate):
    rate.acquire(weight=60)

    async def main():
        client = AsyncHttpx(rate, weight=50)
        waiting = asyncio.ensure_future(get(client, f"{server.url}/x"))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await client.end()

    asyncio.run(main())
    until(lambda: used(rate) == 60)
    assert not server.arrivals


def test_a_request_cancelled_while_reading_ends_its_permit(server):
    one = ConcurrencyLimiter(1)

    async def main():
        client = AsyncHttpx(one)
        response = await client.open(f"{server.url}/hold")
        reading = asyncio.ensure_future(response.aread())
        await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await client.end()

    asyncio.run(main())
    assert one.peek().remaining == 1


@pytest.mark.parametrize("module", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_a_stream_whose_reader_ends_is_ended_at_once(module):
    kind = AsyncLimitedTransport if module is httpx else workglow_limit.httpx2.AsyncLimitedTransport
    one, ended = ConcurrencyLimiter(1), []

    class Pieces(module.AsyncByteStream):
        async def __aiter__(self):
            try:
                yield b"first "
                yield b"last"
            finally:
                ended.append(one.peek().remaining)

    class Answers(module.AsyncBaseTransport):
        async def handle_async_request(self, request):
            return module.Response(200, stream=Pieces())

    async def main():
        transport = kind(one, transport=Answers())
        response = await transport.handle_async_request(module.Request("GET", "http://api.example/"))
        pieces = aiter(response.stream)
        assert await anext(pieces) == b"first "
        await pieces.aclose()
        assert (ended, one.peek().remaining) == ([0], 1)

    asyncio.run(main())


@pytest.mark.parametrize("module", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_in_trio(module, server, rate):
    """Requests wait, heed the server and are retried. A request that is cancelled in a wait holds nothing."""
    kind = AsyncLimitedTransport if module is httpx else workglow_limit.httpx2.AsyncLimitedTransport
    one = ConcurrencyLimiter(1)

    async def main():
        async with module.AsyncClient(transport=kind(one)) as client, trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(client.get, f"{server.url}/{number}")
        async with module.AsyncClient(transport=kind(one, retries=1)) as client:
            again = await client.get(f"{server.url}/again?status=503&times=1&retry-after=0")
            held = one.acquire()
            with trio.move_on_after(0.02) as scope:
                await client.get(f"{server.url}/never")
            held.complete()
            assert scope.cancelled_caught and one.peek().remaining == 1
        async with module.AsyncClient(transport=kind(rate)) as client:
            await client.get(f"{server.url}/full?status=429&times=1&retry-after=7")
        return again

    again = trio.run(main)
    assert again.status_code == 200 and one.peek().remaining == 1
    assert rate.peek().retry_after == 7
    assert server.paths == {"/0": 1, "/1": 1, "/2": 1, "/3": 1, "/again": 2, "/full": 1}


# ---- bad input ----


async def asynchronous(_request): ...


class Nothing:
    def __repr__(self):
        return "nothing"


NOTHING = Nothing()
WRONG = [
    (TypeError, {"limiter": None}, "limiter is None: expected a limiter, a mapping of hosts to limiters, or a function of the request, not NoneType"),
    (TypeError, {"limiter": 5}, "limiter is 5: expected a limiter, a mapping of hosts to limiters, or a function of the request, not int"),
    (TypeError, {"limiter": {"h": 5}}, r"limiter\['h'\] is 5: expected a limiter, not int"),
    (TypeError, {"limiter": {5: "rate"}}, "a host of limiter is 5: expected a str, not int"),
    *((InvalidArgument, {"limiter": {host: "rate"}}, "a host of limiter is '.*': expected a host such as \"api.example.com\" or .*")
      for host in ("", "https://a", "a/b", "u@a", "a:b", "a:0", "a:99999", ":80", "[::1")),
    (TypeError, {"tokens": 5}, "tokens is 5: expected the name of the part that counts tokens, or a mapping of total, input, output to such names, not int"),
    (TypeError, {"tokens": {"input": 5}}, r"tokens\['input'\] is 5: expected the name of a part, not int"),
    (InvalidArgument, {"tokens": {"inputs": "a"}}, "tokens is {'inputs': 'a'}: expected a mapping of total, input, output, without 'inputs'"),
    (InvalidArgument, {"tokens": "tokens"}, "tokens is 'tokens': expected a part of limiter \".*\": it has none"),
    (InvalidArgument, {"limiter": "llm", "tokens": "token"}, "tokens is 'token': expected a part of limiter \"llm\": requests, tokens"),
    (InvalidArgument, {"limiter": {"h": "llm", "g": "rate"}, "tokens": "tokens"}, r"tokens is 'tokens': expected a part of limiter\['g'\] \".*\": it has none"),
    (TypeError, {"key": {"a": 5}}, r"key\['a'\] is 5: expected a str, or a function of the request, not int"),
    (TypeError, {"weight": {"a": "5"}}, r"weight\['a'\] is '5': expected a whole number, not str"),
    (TypeError, {"weight": {5: 5}}, "weight is 5: expected the name of a part as a str, not int"),
    (TypeError, {"key": 5}, "key is 5: expected a str, or a function of the request, not int"),
    (InvalidArgument, {"weight": 0}, "weight is 0: expected a whole number of at least 1"),
    (TypeError, {"weight": 1.5}, "weight is 1.5: expected a whole number, not float"),
    (TypeError, {"weight": True}, "weight is True: expected a whole number, not bool"),
    (TypeError, {"priority": "low"}, "priority is 'low': expected a whole number, not str"),
    (TypeError, {"share": 1.5}, "share is 1.5: expected a whole number, not float"),
    (InvalidArgument, {"share": 0}, "share is 0: expected a whole number from 1 to 1000"),
    (InvalidArgument, {"timeout": -1}, "timeout is -1: expected 0 s to 366 days"),
    (TypeError, {"timeout": "5s"}, "timeout is '5s': expected seconds as a number, or a timedelta, not str"),
    (TypeError, {"heed": 5}, "heed is 5: expected True, False, or a mapping with default and longest, not int"),
    (InvalidArgument, {"heed": {"deflaut": 5}}, "heed is {'deflaut': 5}: expected a mapping with default and longest, without 'deflaut'"),
    (InvalidArgument, {"heed": {"longest": -1}}, "heed's longest is -1: expected 0 s to 366 days"),
    (TypeError, {"limiter": "llm", "estimate": 5, "tokens": "tokens"}, "estimate is 5: expected a function, not int"),
    (TypeError, {"limiter": "llm", "usage": 5, "tokens": "tokens"}, "usage is 5: expected a function, not int"),
    (TypeError, {"usage": len}, "usage needs tokens, the part that counts tokens"),
    (TypeError, {"estimate": len}, "estimate needs tokens, the part that counts tokens"),
    (TypeError, {"wieght": 1}, r"\w+\(\) got an unexpected keyword argument 'wieght': expected (.*, )?key, weight, priority, share, timeout, heed, learn, tokens.*"),
]  # fmt: skip
RETRIES = [
    (InvalidArgument, {"retries": -1}, "retries is -1: expected a whole number from 0 to 100"),
    (InvalidArgument, {"retries": 101}, "retries is 101: expected a whole number from 0 to 100"),
    (TypeError, {"retries": True}, "retries is True: expected a whole number, not bool"),
]


@pytest.mark.parametrize("kind, given, says", WRONG + RETRIES, ids=lambda value: str(value)[:50])
def test_bad_settings_raise_where_they_are_written(client, rate, kind, given, says):
    if client.kind is Urllib3 and "retries" in given:
        pytest.skip("urllib3 has its own")
    named = {"rate": rate, "llm": Store("memory:").limiter("llm", "requests: 9/1m + tokens: 9/1m")}
    given = dict(given)
    of = given.get("limiter", rate)
    if isinstance(of, dict):
        given["limiter"] = {host: named.get(of, of) for host, of in of.items()}
    elif isinstance(of, str):
        given["limiter"] = named[of]

    async def main():
        with pytest.raises(kind, match=f"^{says}$") as raised:
            client.kind(given.pop("limiter", rate), **given)
        if kind is InvalidArgument:
            assert (raised.value.code, raised.value.number) == ("invalid_argument", -1)

    asyncio.run(main())


@pytest.mark.parametrize(
    "given, kind, says",
    [
        ({"limiter": lambda _: 5}, TypeError, "the limiter of the function is 5: expected a limiter, not int"),
        (
            {"key": lambda _: {"requests": object()}},
            TypeError,
            r"key\['requests'\] is <object .*>: expected a str or None, or a value with a text, not object",
        ),
        (
            {"key": {"token": "a"}},
            InvalidArgument,
            'part is "token": expected a part of limiter "llm": requests, tokens',
        ),
        (
            {"key": lambda _: object()},
            TypeError,
            "key is <object .*>: expected a str or None, or a value with a text, not object",
        ),
        (
            {"key": asynchronous},
            TypeError,
            "key is <coroutine .*>: expected a str or None, or a value with a text, not coroutine",
        ),
        ({"weight": lambda _: 0}, InvalidArgument, "weight is 0: expected a whole number of at least 1"),
        (
            {"tokens": "tokens", "estimate": lambda _: -1},
            InvalidArgument,
            "estimate is -1: expected a whole number of at least 0",
        ),
        (
            {"tokens": "tokens", "estimate": lambda _: None},
            TypeError,
            "estimate is None: expected a whole number, not NoneType",
        ),
    ],
)
def test_results_of_functions_are_checked_before_sending(client, server, given, kind, says):
    llm = Store("memory:").limiter("llm", "requests: 9/1m + tokens: 9/1m")
    given = dict(given)

    async def scenario(client):
        with pytest.raises(kind, match=f"^{says}$"):
            await get(client, f"{server.url}/x")

    client(given.pop("limiter", llm), scenario, **given)
    assert used(llm) == 0 and not server.arrivals


OPTIONS = "key, weight, priority, share, timeout, heed, learn, tokens, estimate, usage"
ACCEPTED = [
    (LimitedTransport, "LimitedTransport", f"transport, {OPTIONS}, retries, route"),
    (AsyncLimitedTransport, "AsyncLimitedTransport", f"transport, {OPTIONS}, retries, route"),
    (workglow_limit.httpx2.LimitedTransport, "LimitedTransport", f"transport, {OPTIONS}, retries, route"),
    (workglow_limit.httpx2.AsyncLimitedTransport, "AsyncLimitedTransport", f"transport, {OPTIONS}, retries, route"),
    (
        lambda *args, **options: workglow_limit.httpx.limited(httpx.Client(), *args, **options),
        "limited",
        f"{OPTIONS}, retries, route",
    ),
    (LimitedMiddleware, "LimitedMiddleware", f"{OPTIONS}, retries, route"),
    (LimitedAdapter, "LimitedAdapter", f"pool_connections, pool_maxsize, pool_block, {OPTIONS}, retries, route"),
    (
        lambda *args, **options: workglow_limit.urllib3.limited(urllib3.PoolManager(), *args, **options),
        "limited",
        OPTIONS,
    ),
]


@pytest.mark.parametrize("make, name, accepted", ACCEPTED)
def test_an_unknown_option_names_the_public_class_and_lists_its_options(make, name, accepted, rate):
    message = f"{name}() got an unexpected keyword argument 'wieght': expected {accepted}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        make(rate, wieght=1)


def test_bad_input_of_single_clients(rate):
    for transport in LimitedTransport, AsyncLimitedTransport:
        with pytest.raises(TypeError, match="^transport is 5: expected a httpx.*BaseTransport, not int$"):
            transport(rate, transport=5)
    for ours, name in (workglow_limit.httpx, "httpx"), (workglow_limit.httpx2, "httpx2"):
        with pytest.raises(TypeError, match=f"^client is 5: expected a {name}.Client or {name}.AsyncClient, not int$"):
            ours.limited(5, rate)
    with pytest.raises(TypeError, match="^transport is <.*>: expected a httpx.AsyncBaseTransport, not HTTPTransport$"):
        AsyncLimitedTransport(rate, transport=httpx.HTTPTransport())
    with pytest.raises(TypeError, match="^max_retries would bypass the limiters: use retries instead$"):
        LimitedAdapter(rate, max_retries=3)
    with pytest.raises(TypeError, match="^a LimitedAdapter cannot be pickled: make one in each process$"):
        __import__("pickle").dumps(LimitedAdapter(rate))
    with pytest.raises(TypeError, match="^manager is 5: expected a urllib3.PoolManager, not int$"):
        workglow_limit.urllib3.limited(5, rate)
    with pytest.raises(
        TypeError, match="^retries belongs to urllib3: pass a urllib3.Retry to the manager or with a request$"
    ):
        workglow_limit.urllib3.limited(urllib3.PoolManager(), rate, retries=3)


def test_common_uses_of_urllib3(server):
    """Its default Retry, a preloaded body, earlier connections, and a pool that is used directly."""
    http = urllib3.PoolManager(timeout=20)
    http.request("GET", f"{server.url}/x")
    llm = Store("memory:").limiter("llm", "requests: 100/1m + tokens: 1000/1m")
    rate, tokens = llm.parts["requests"], llm.parts["tokens"]
    workglow_limit.urllib3.limited(http, llm, tokens="tokens")
    asked = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 500}
    response = http.request("POST", f"{server.url}/v1/chat/completions", json=asked)
    assert response.json()["usage"]["total_tokens"] == used(tokens)
    assert used(rate) == 1
    assert (
        http.request("GET", f"{server.url}/y?status=503&times=1&retry-after=0").status == 200
    )  # urllib3's Retry heeds it.
    assert http.connection_from_url(server.url).request("GET", "/z").status == 200
    assert used(rate) == 4
    with pytest.raises(urllib3.exceptions.MaxRetryError):
        http.request("GET", f"{server.url}/break")
    assert used(rate) == 8


def test_a_session_of_requests_reads_as_usual(server, rate):
    client = Requests(rate)
    assert client.session.post(f"{server.url}/x", data=b"abc").text == "fine"
    server.go.set()
    with client.session.get(f"{server.url}/hold", stream=True) as response:
        assert b"".join(response.iter_content(4)) == b"first last"
    assert client.session.get(f"{server.url}/hold", stream=True).raw.read(3) == b"fir"
    client.session.close()


def test_clients_do_not_import_each_other():
    code = "import sys, workglow_limit.{0}; print(*sys.modules)"
    clients = {"httpx", "httpx2", "requests", "aiohttp", "urllib3", "typing_extensions"}
    for name, needs in {
        "http": set(),
        "httpx": {"httpx", "typing_extensions"},
        "urllib3": {"urllib3"},
        "_sending": set(),
    }.items():
        done = subprocess.run(
            [sys.executable, "-c", code.format(name)], capture_output=True, text=True, timeout=60, check=True
        )
        assert clients & set(done.stdout.split()) <= needs, name


def test_the_fake_server_uses_our_clock():
    """The tests with other processes rely on one monotonic clock for all processes."""
    before = time.monotonic_ns()
    done = subprocess.run(
        [sys.executable, "-c", "import time; print(time.monotonic_ns())"], capture_output=True, text=True, check=True
    )
    assert before < int(done.stdout) < time.monotonic_ns()
