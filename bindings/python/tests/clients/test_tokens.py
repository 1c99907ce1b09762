"""Tokens: the reservation of a request, the usage of its response, and the difference."""

import asyncio
import gzip
import json
import zlib

import pytest
import requests
import urllib3
from clients import CLIENTS, Aiohttp, AsyncHttpx, Httpx
from fake import WORDS, Chat, Messages, Responses, serving
from workglow_limit import AcquireTimeout, ManualClock, Store
from workglow_limit._tokens import Reading, estimate, readable
from workglow_limit.urllib3 import limited

JSON, SSE = "application/json", "text/event-stream; charset=utf-8"
ASKED = {"model": "m", "messages": [{"role": "user", "content": "how far is the moon?"}], "max_tokens": 500}
ROOM = 10_000
COST = -(-len(json.dumps(ASKED["messages"])) // 8) + len(WORDS)  # The server's token count.


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture
def store():
    """Its clock stands still, so used units remain used."""
    return Store("memory:", clock=ManualClock())


@pytest.fixture
def llm(store):
    return store.limiter("llm", f"requests: 10/1m + tokens: {ROOM}/1m + slots: 2 concurrent")


@pytest.fixture
def requests_part(llm):
    return llm.parts["requests"]


@pytest.fixture
def tokens(llm):
    return llm.parts["tokens"]


@pytest.fixture
def slots(llm):
    return llm.parts["slots"]


@pytest.fixture(params=CLIENTS, ids=lambda kind: kind.__name__)
def client(request):
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


def used(limiter, key=None):
    decision = limiter.peek(key)
    return decision.limit - decision.remaining


async def post(client, url, asked=ASKED, **rest):
    response = await client.open(url, "POST", json=asked, **rest)
    return response, await client.read(response)


# ---- reservations ----


@pytest.mark.parametrize(
    "asked, units",
    [
        ({"messages": [{"role": "user", "content": "12345678"}], "max_tokens": 100}, 103),
        ({"input": "123456789", "max_output_tokens": 100, "max_tokens": 7}, 103),
        ({"input": ["1234", {"text": "5"}], "max_completion_tokens": 9, "max_output_tokens": 100}, 11),
        ({"input": "1"}, 1),
        ({"input": {"data": "x" * 4000, "url": "data:image/png;base64," + "x" * 4000, "text": "1234"}}, 1),
        ({"max_tokens": -5}, 0),
        ({"max_tokens": "5"}, 1),
        ({"max_tokens": True}, 0),
        ([{"max_tokens": 5}], 0),
        ("text", 0),
        (None, 0),
    ],
)
def test_the_estimate_of_a_json_body(asked, units):
    assert estimate(json.dumps(asked), JSON)["total"] == units
    assert estimate(json.dumps(asked).encode(), "application/vnd.x+JSON")["total"] == units


@pytest.mark.parametrize(
    "body, kind",
    [
        (b"", JSON),
        (None, JSON),
        (b"{", JSON),
        (b"\xff", JSON),
        (b'{"input": "1"}', "text/plain"),
        (b'{"a":' * 5000, JSON),
    ],
)
def test_other_bodies_have_no_estimate(body, kind):
    assert estimate(body, kind) == {"total": 0, "input": 0, "output": 0}


def test_only_readable_encodings_are_requested():
    assert readable("gzip, deflate, br, zstd") == "gzip, deflate"
    assert readable("br;q=1.0, GZIP;q=0.5, *;q=0") == "GZIP;q=0.5"
    assert readable("") == readable("br") == "identity"


# ---- usage ----


def of(api, count=9):
    return api({"model": "m", "stream_options": {"include_usage": True}}, 50, ["word"] * count)


def text(events):
    for name, event in events:
        data = event if isinstance(event, str) else json.dumps(event)
        yield (f"event: {name}\n" if name else "").encode() + f"data: {data}\n\n".encode()


APIS = Chat, Responses, Messages
WHOLE = {"total": 59, "input": 50, "output": 9}


@pytest.mark.parametrize("api", APIS)
def test_the_usage_of_a_response(api):
    reading = Reading(None, None, JSON)
    reading.feed(json.dumps(of(api).whole()).encode())
    assert reading.units(True) == WHOLE


@pytest.mark.parametrize("size", [1, 7, 10**6])
@pytest.mark.parametrize("api", APIS)
def test_the_usage_of_a_stream(api, size):
    whole = b"".join(text(of(api).events()))
    for body in whole, whole.replace(b"\n", b"\r\n"), whole.rstrip(b"\n"):
        reading = Reading(None, None, SSE)
        for at in range(0, len(body), size):
            reading.feed(body[at : at + size])
        assert reading.units(True) == WHOLE


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "compress, encoding", [(gzip.compress, "gzip"), (gzip.compress, " X-GZIP"), (zlib.compress, "deflate")]
)
def test_the_usage_of_a_compressed_stream(api, compress, encoding):
    body = compress(b"".join(text(of(api).events())))
    reading = Reading(None, None, SSE, encoding)
    for at in range(0, len(body), 3):
        reading.feed(body[at : at + 3])
    assert reading.units(True) == WHOLE


def test_a_stream_that_ends_early_used_the_last_usage_and_the_text_since():
    events = list(text(of(Messages).events()))
    for count, units in (1, 51), (4, 51 + 2), (12, 51 + 12):  # One token, and nine times "word ".
        reading = Reading(None, None, SSE)
        for event in events[:count]:
            reading.feed(event)
        assert reading.units(False)["total"] == units
    reading = Reading(None, None, SSE)
    for event in events:
        reading.feed(event)
    assert reading.units(False) == WHOLE  # The whole usage had been reported.


@pytest.mark.parametrize(
    "kind, encoding, body",
    [
        (JSON, "", b'{"usage": null, "a": [1]}'),
        (JSON, "", b'{"usage": {"total_tokens": "5", "input_tokens": true, "output_tokens": -1, "other": 5}}'),
        (JSON, "", b"[]"),
        (JSON, "", b"{"),
        (JSON, "", b""),
        (JSON, "br", b'{"usage": {"total_tokens": 5}}'),
        (JSON, "gzip", b'{"usage": {"total_tokens": 5}}'),
        ("text/plain", "", b'{"usage": {"total_tokens": 5}}'),
        ("", "", b""),
        (SSE, "", b": usage\n\ndata: [DONE]\n\nevent: x\n\n\n\ndata\n\n"),
        (SSE, "", b"".join(text(Chat({"model": "m"}, 50, WORDS).events()))),
    ],
)
def test_responses_without_usage(kind, encoding, body):
    reading = Reading(None, None, kind, encoding)
    reading.feed(body)
    assert reading.units(True) is None


def test_half_a_json_body_has_no_usage():
    reading = Reading(None, None, JSON)
    reading.feed(b'{"usage": {"total_tokens": 5}}')
    assert reading.units(False) is None


def test_an_event_of_several_lines():
    reading = Reading(None, None, SSE)
    reading.feed(b'data: {"usage":\ndata: {"total_tokens": 5}}\n\ndata: {"usage": {"other": 5}}\n\n')
    assert reading.units(True) == {"total": 5}


def test_tokens_in_a_cache_are_counted_when_they_are_written():
    reading = Reading(None, None, JSON)
    reading.feed(
        b'{"usage": {"input_tokens": 5, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 400, "output_tokens": 7}}'
    )
    assert reading.units(True) == {"total": 42, "input": 35, "output": 7}


def test_a_usage_function_of_the_user():
    seen = []

    def usage(value, response):
        seen.append((value, response))
        return value.get("cost")

    reading = Reading(usage, "response", SSE)
    reading.feed(b'data: {"cost": {"total": 5}}\n\ndata: {"cost": {"total": 7}}\n\ndata: {}\n\ndata: [DONE]\n\n')
    assert reading.units(True) == {"total": 7}
    assert [value.get("cost") for value, _ in seen] == [{"total": 5}, {"total": 7}, None]
    assert {response for _, response in seen} == {"response"}


# ---- both, in front of each client ----


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
@pytest.mark.parametrize("stream", [False, True])
def test_unused_tokens_are_returned(client, server, llm, tokens, path, stream):
    most = {"responses": "max_output_tokens"}.get(path, "max_tokens")
    asked = {"model": "m", "stream": stream, "stream_options": {"include_usage": True}, most: 500}
    asked["input" if path == "responses" else "messages"] = [{"role": "user", "content": "how far is the moon?"}]

    async def scenario(client):
        for _ in range(3):
            response = await client.open(f"{server.url}/v1/{path}?gzip", "POST", json=asked)
            assert used(tokens) > 500
            await client.read(response)
            spent.append(used(tokens))

    spent = []
    client(llm, scenario, tokens="tokens")
    assert spent == [COST, 2 * COST, 3 * COST]
    assert used(llm.parts["requests"]) == 3 and used(llm.parts["slots"]) == 0


USAGE, ZIPPED = b'{"usage": {"total_tokens": 5}}', {"Content-Type": JSON, "Content-Encoding": "gzip"}


def read_by_httpx(library):
    """A transport whose responses have their bodies, as they are in most tests of programs."""
    return {
        "transport": library.MockTransport(
            lambda _: library.Response(200, content=gzip.compress(USAGE), headers=ZIPPED)
        )
    }


def read_by_requests(monkeypatch):
    def send(adapter, request, **options):
        response = requests.Response()
        response.status_code, response.url, response.headers = (
            200,
            request.url,
            requests.structures.CaseInsensitiveDict(ZIPPED),
        )
        response.request, response.raw = request, urllib3.HTTPResponse(b"")
        response._content, response._content_consumed = USAGE, True
        return response

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", send)


def read_by_urllib3(monkeypatch):
    def urlopen(pool, *arguments, **options):
        return urllib3.HTTPResponse(USAGE, ZIPPED, 200)

    monkeypatch.setattr(urllib3.HTTPConnectionPool, "urlopen", urlopen)


def test_a_body_that_has_been_read_ends_at_once(client, server, llm, tokens, slots, monkeypatch):
    """By a mock, or by code between the limiter and the network."""
    read_by_requests(monkeypatch), read_by_urllib3(monkeypatch)
    options = read_by_httpx(client.kind.library) if issubclass(client.kind, Httpx) else {}

    async def read(request, handler):
        response = await handler(request)
        await response.read()
        return response

    async def scenario(client):
        if isinstance(client, Aiohttp):
            client.session._middlewares += (read,)
        for count in 1, 2, 3:
            response, _ = await post(client, f"{server.url}/v1/messages?gzip")
            assert used(tokens) == count * (COST if isinstance(client, Aiohttp) else 5)
            assert slots.peek().remaining == 2
        return response

    client(llm, scenario, tokens="tokens", **options)


def test_a_body_that_urllib3_reads_ends_at_once(server, llm, tokens, slots):
    manager = limited(urllib3.PoolManager(), llm, tokens="tokens")
    for count in 1, 2, 3:
        manager.request("POST", f"{server.url}/v1/messages?gzip", json=ASKED, headers={"Accept-Encoding": "gzip"})
        assert used(tokens) == count * COST and slots.peek().remaining == 2


def test_the_estimate_is_reserved_until_the_body_ends(client, server, llm, tokens):
    asked = ASKED | {"stream": True}

    async def scenario(client):
        response = await client.open(f"{server.url}/v1/messages", "POST", json=asked)
        assert used(tokens, "k") == estimate(json.dumps(asked), JSON)["total"] == 507
        await client.read(response)
        assert used(tokens, "k") == COST and used(tokens) == 0

    client(llm, scenario, tokens="tokens", key="k")


def test_a_stream_that_is_closed_early(client, llm, tokens):
    with serving(pace=0.02) as server:

        async def scenario(client):
            asked = ASKED | {"stream": True, "metadata": {"words": 500}}
            response = await client.open(f"{server.url}/v1/messages", "POST", json=asked)
            pieces = client.pieces(response)
            came = b""
            while came.count(b"text_delta") < 3:
                came += await anext(pieces)
            await client.close(response)
            while used(tokens) > 400:  # aiohttp's close awaits nothing, so the end of the permit follows it.
                await asyncio.sleep(0.001)
            await pieces.aclose()
            # The input, the one reported token, and the words since: three, or a few more in the same data.
            assert COST - len(WORDS) + 1 + 3 <= used(tokens) < 400

        client(llm, scenario, tokens="tokens")


def test_without_usage_the_estimate_counts(client, server, llm, tokens):
    async def scenario(client):
        await post(client, f"{server.url}/v1/chat/completions", ASKED | {"stream": True})

    client(llm, scenario, tokens="tokens")
    assert used(tokens) == 507


def test_a_refusal_takes_no_tokens(client, server, llm, tokens, requests_part):
    async def scenario(client):
        for status in 429, 400, 503, 500:
            await (post if status < 500 else opened)(client, f"{server.url}/x{status}?status={status}&times=1")

    async def opened(client, url):
        await client.close(await client.open(url, "POST", json=ASKED))
        while used(llm.parts["slots"]):  # aiohttp's close awaits nothing.
            await asyncio.sleep(0.001)

    client(llm, scenario, tokens="tokens", heed=False)
    assert used(tokens) == 507 and used(requests_part) == 4  # The 500 may have used tokens.


def test_the_last_of_several_attempts_counts(client, server, llm, tokens):
    async def scenario(client):
        response, _ = await post(client, f"{server.url}/x?status=503&times=2")
        assert (getattr(response, "status_code", None) or response.status) == 200

    client(llm, scenario, tokens="tokens", retries=2, heed={"default": 0.001})
    assert used(tokens) == 507 and len(server.arrivals) == 3


def test_functions_return_the_reserved_and_used_units(client, server, llm, tokens):
    async def scenario(client):
        response = await client.open(f"{server.url}/v1/messages", "POST", json=ASKED)
        assert used(tokens) == 77
        await client.read(response)
        assert used(tokens) == len(WORDS) + 11
        await client.read(await client.open(f"{server.url}/x"))  # Not JSON: the reservation counts.
        assert used(tokens) == len(WORDS) + 11 + 77

    def usage(value, response):
        assert getattr(response, "status_code", None) == 200 or response.status == 200
        return value["usage"]["output_tokens"] + 11

    client(llm, scenario, tokens="tokens", estimate=lambda request: 77, usage=usage)


def test_a_request_without_tokens_waits_for_none(client, server, llm, tokens, requests_part, slots):
    async def scenario(client):
        response = await client.open(f"{server.url}/x")
        assert await client.read(response) == b"fine"

    tokens.acquire(weight=ROOM)
    client(llm, scenario, tokens="tokens", timeout=0)
    assert used(requests_part) == 1 and used(slots) == 0
    client(llm, scenario, tokens="tokens", timeout=0, key={"tokens": "a", "requests": "b"}, weight={"requests": 3})
    assert used(requests_part) == 1 and used(requests_part, "b") == 3


def test_a_limit_of_tokens_alone(client, server, store):
    alone = store.limiter("alone", "tokens: 1000/1m")

    async def scenario(client):
        assert await client.read(await client.open(f"{server.url}/x")) == b"fine"
        await post(client, f"{server.url}/v1/messages")

    client(alone, scenario, tokens="tokens")
    assert used(alone) == COST


def test_input_and_output_have_parts_of_their_own(client, server, store):
    llm = store.limiter("claude", "requests: 9/1m + input-tokens: 1000/1m + output-tokens: 800/1m")
    parts = llm.parts

    async def scenario(client):
        response = await client.open(f"{server.url}/v1/messages", "POST", json=ASKED)
        assert (used(parts["input-tokens"]), used(parts["output-tokens"])) == (7, 500)
        await client.read(response)

    tokens = {"input": "input-tokens", "output": "output-tokens"}
    client(llm, scenario, tokens=tokens)
    assert (used(parts["input-tokens"]), used(parts["output-tokens"])) == (COST - len(WORDS), len(WORDS))
    parts["output-tokens"].clear(), parts["input-tokens"].clear()
    used_by = {"estimate": lambda _: {"input": 7, "output": 500}, "usage": lambda *_: {"input": 3, "output": 0}}
    client(llm, scenario, tokens=tokens, **used_by)
    assert (used(parts["input-tokens"]), used(parts["output-tokens"])) == (3, 0)
    assert used(parts["requests"]) == 2


def test_each_part_is_charged_its_own_key_and_weight(client, server, store):
    llm = store.limiter("llm", "requests: 9/1m + tokens: 9000/1m + tenant: 9/1m")
    parts = llm.parts

    async def scenario(client):
        await post(client, f"{server.url}/v1/messages", headers={"X-Tenant": "acme"})

    def tenant(request):
        headers = dict(request.headers)
        return headers.get("X-Tenant") or headers.get("x-tenant")

    client(llm, scenario, tokens="tokens", key={"tenant": tenant, "tokens": None}, weight={"tenant": lambda _: 2})
    assert (used(parts["requests"]), used(parts["tokens"])) == (1, COST)
    assert (used(parts["tenant"], "acme"), used(parts["tenant"])) == (2, 0)
    client(llm, scenario, tokens="tokens", key=lambda request: {"tenant": tenant(request)}, weight=3)
    assert (used(parts["requests"]), used(parts["tokens"])) == (4, 2 * COST)
    assert used(parts["tenant"], "acme") == 5


def test_an_estimate_above_the_capacity_takes_all_of_it(client, server, llm, tokens):
    async def scenario(client):
        response = await client.open(f"{server.url}/v1/messages", "POST", json=ASKED | {"max_tokens": 10**6})
        assert used(tokens) == ROOM
        await client.read(response)
        assert used(tokens) == COST

    client(llm, scenario, tokens="tokens")


def test_more_than_was_reserved_is_owed(client, server, llm, tokens):
    async def scenario(client):
        await post(client, f"{server.url}/v1/messages")

    client(llm, scenario, tokens="tokens", estimate=lambda _: 1)
    assert used(tokens) == COST


# ---- all parts at once ----


def test_all_parts_are_charged_or_none(client, server):
    llm = Store("memory:").limiter("llm", f"requests: 10/1h + tokens: {ROOM}/1h + slots: 2 concurrent")
    requests_part, tokens, slots = llm.parts.values()

    async def scenario(client):
        with pytest.raises(AcquireTimeout):
            await post(client, f"{server.url}/v1/messages")

    full = tokens.acquire(weight=ROOM)
    client(llm, scenario, tokens="tokens", timeout=0.01)
    full.cancel()
    assert used(requests_part) == used(tokens) == used(slots) == 0
    full = slots.acquire(weight=2)
    client(llm, scenario, tokens="tokens", timeout=0.01)
    assert used(requests_part) == used(tokens) == 0 and not server.arrivals
    full.complete()


def test_no_request_holds_one_part_while_waiting_for_another(server):
    """A request that waits for tokens holds no slot, and one that waits for a slot holds no tokens. In the end all have run."""
    store = Store("memory:")
    llm = store.limiter("llm", f"tokens: {ROOM}/1h + slots: 1 concurrent")
    tokens, slots = llm.parts["tokens"], llm.parts["slots"]

    async def main():
        client = AsyncHttpx(llm, tokens="tokens")
        full = tokens.acquire(weight=ROOM)
        waiting = asyncio.ensure_future(post(client, f"{server.url}/v1/messages"))
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert slots.peek().remaining == 1 and not waiting.done()
        slot = slots.acquire()
        full.cancel()
        for _ in range(20):
            await asyncio.sleep(0.001)
        assert not waiting.done() and not server.arrivals
        slot.complete()
        await asyncio.wait_for(waiting, 60)
        await client.end()

        client = AsyncHttpx(llm, tokens="tokens", estimate=lambda _: 400)
        answers = await asyncio.wait_for(asyncio.gather(*(post(client, f"{server.url}/x") for _ in range(20))), 60)
        assert [body for _, body in answers] == [b"fine"] * 20
        await client.end()

    asyncio.run(main())
    assert used(slots) == 0
