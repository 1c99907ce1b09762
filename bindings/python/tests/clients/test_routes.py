"""The alternative that was chosen decides where a request goes."""

import asyncio
import re
from pathlib import Path

import aiohttp
import httpx2
import openai
import pytest
import requests
import workglow_limit.aiohttp
import workglow_limit.httpx2
import workglow_limit.requests
from clients import CLIENTS, Urllib3
from fake import WORDS, serving
from workglow_limit import FirstOfLimiter, InvalidArgument, ManualClock, Store

#: The name that no request may reach.
NOWHERE = "http://provider.invalid"


@pytest.fixture
def servers():
    with serving() as one, serving() as two:
        yield one, two


@pytest.fixture(params=[kind for kind in CLIENTS if kind is not Urllib3], ids=lambda kind: kind.__name__)
def client(request):
    """Runs a function with a client in an event loop, and closes the client."""

    def use(limiter, scenario, **options):
        async def main():
            client = request.param(limiter, **options)
            try:
                return await asyncio.wait_for(scenario(client), 60)
            finally:
                await client.end()

        return asyncio.run(main())

    return use


def limits(one="2/1m", two="3/1m"):
    store = Store("memory:", clock=ManualClock())
    return FirstOfLimiter([store.limiter("one", one), store.limiter("two", two)])


def to(servers):
    """Of two providers the second one has a path and a key of its own."""
    one, two = (server.url for server in servers)
    urls = {"one": one, "two": {"base_url": f"{two}/api/", "headers": {"authorization": "Bearer two", "x-two": "2"}}}
    return lambda chosen: urls[chosen.name]


async def get(client, url, method="GET", **body):
    response = await client.open(url, method, **body)
    data = await client.read(response)
    await client.close(response)
    return getattr(response, "status_code", None) or response.status, data


def test_requests_go_to_the_provider_that_was_chosen(client, servers):
    async def scenario(client):
        for i in range(5):
            headers = {"authorization": "Bearer one", "x-own": str(i)}
            assert await get(client, f"{NOWHERE}/x?a=1&b=%2F", "POST", content=b"abc", headers=headers) == (
                200,
                b"fine",
            )

    client(limits(), scenario, route=to(servers), timeout=0)
    for server, path, key, owns in zip(servers, ("/x", "/api/x"), (None, "Bearer two"), ("01", "234"), strict=True):
        assert server.paths == {path: len(owns)} and server.bodies == [b"abc"] * len(owns)
        for headers, own in zip(server.headers, owns, strict=True):
            assert (headers["host"], headers["x-own"]) == (server.url.removeprefix("http://"), own)
            # What the program has for another host is not for this one.
            assert headers["authorization"] == key


def test_a_refused_request_is_repeated_at_the_other_provider(client, servers):
    one, two = servers
    seen = []

    def route(chosen):
        seen.append(chosen.name)
        return {"base_url": one.url, "headers": {"x-one": "1"}} if chosen.name == "one" else two.url

    async def scenario(client):
        url = f"{one.url}/x?status=429&times=1&retry-after=20"
        two.paths["/x"] = 1  # It refuses the first request only.
        return await get(client, url, "POST", content=b"abc", headers={"authorization": "Bearer one"})

    assert client(limits(), scenario, route=route, retries=1, timeout=30) == (200, b"fine")
    assert (seen, one.bodies, two.bodies) == (["one", "two"], [b"abc"], [b"abc"])
    # The first one is where the program itself would have sent it.
    assert (one.headers[0]["authorization"], one.headers[0]["x-one"]) == ("Bearer one", "1")
    assert (two.headers[0]["authorization"], two.headers[0]["x-one"]) == (None, None)


def test_without_a_route_of_its_own_a_request_goes_where_it_would(client, servers):
    one, two = servers
    asked = []

    async def scenario(client):
        return [await get(client, f"{one.url}/x") for _ in range(5)]

    client(limits(), scenario, route=lambda chosen: two.url if chosen.name == "two" else None, timeout=0)
    assert (len(one.arrivals), len(two.arrivals)) == (2, 3)
    client(Store("memory:").limiter("only", "9/1m"), scenario, route=asked.append, timeout=0)
    assert (len(one.arrivals), asked) == (7, [])


@pytest.mark.parametrize(
    ("route", "kind", "message"),
    [
        (lambda _: 5, TypeError, "what route returned is 5: expected a base URL"),
        (lambda _: {"url": "http://x"}, TypeError, "what route returned has 'url': expected a base URL"),
        (lambda _: {"base_url": "http://x", "headers": {"a": 5}}, TypeError, "a header that route returned is 'a': 5"),
        (lambda _: "ftp://x", InvalidArgument, "the base URL that route returned is 'ftp://x': expected a base URL"),
        (lambda _: "http://u:p@x", InvalidArgument, "the base URL that route returned"),
        (lambda _: "http://x?a", InvalidArgument, "the base URL that route returned"),
        (lambda _: 1 // 0, ZeroDivisionError, ""),
    ],
)
def test_a_route_that_fails_sends_nothing_and_charges_nothing(client, servers, route, kind, message):
    limiter = limits("1 concurrent", "1/1m")

    async def scenario(client):
        with pytest.raises(kind) as raised:
            await get(client, f"{servers[0].url}/x")
        assert str(raised.value).startswith(message)

    client(limiter, scenario, route=route)
    assert limiter.peek().remaining == 1 and not servers[0].arrivals


def test_a_route_is_a_function(client):
    with pytest.raises(TypeError, match="route is 'x': expected a function, not str"):
        client(limits(), None, route="x")


def test_the_sdk_of_a_provider_uses_all_of_them(servers):
    store = Store("memory:", clock=ManualClock())
    parts = "requests: 2/1m + tokens: 5000/1m"
    providers = FirstOfLimiter([store.limiter(name, parts) for name in ("one", "two")])
    urls = {"one": f"{servers[0].url}/", "two": {"base_url": servers[1].url, "headers": {"authorization": "Bearer 2"}}}
    transport = workglow_limit.httpx2.LimitedTransport(
        providers, tokens="tokens", timeout=0, route=lambda chosen: urls[chosen.name]
    )
    asked = {"model": "m", "messages": [{"role": "user", "content": "how far is the moon?"}], "max_tokens": 500}
    with openai.OpenAI(api_key="1", base_url=f"{NOWHERE}/v1", http_client=httpx2.Client(transport=transport)) as client:
        for _ in range(4):
            answer = client.chat.completions.create(**asked)
            assert answer.choices[0].message.content == " ".join(WORDS)
    assert [server.paths for server in servers] == [{"/v1/chat/completions": 2}] * 2
    assert [headers["authorization"] for headers in servers[1].headers] == ["Bearer 2"] * 2
    tokens = [store.limiter(f"{name}/tokens").peek().remaining for name in ("one", "two")]
    assert tokens == [5000 - 2 * (7 + len(WORDS))] * 2


def test_tokens_of_alternatives(servers):
    """A part that one of them does not have is an error, and so is one weight for parts that are not listed."""
    store = Store("memory:", clock=ManualClock())
    providers = FirstOfLimiter([store.limiter("one", "requests: 2/1m + tokens: 9/1m"), store.limiter("two", "5/1m")])
    for limiter, options, expected in (
        (providers, {}, 'part is "tokens"'),
        (FirstOfLimiter([store.limiter("one")]), {"weight": 2}, "weight is 2: expected a mapping"),
    ):
        transport = workglow_limit.httpx2.LimitedTransport(limiter, tokens="tokens", timeout=0, **options)
        with httpx2.Client(transport=transport) as client, pytest.raises(InvalidArgument, match=expected):
            client.post(f"{servers[0].url}/x", json={"max_tokens": 5, "messages": []})
    transport = workglow_limit.httpx2.LimitedTransport(FirstOfLimiter([store.limiter("one")]), tokens="tokens")
    with httpx2.Client(transport=transport) as client:
        assert client.get(f"{servers[0].url}/x").status_code == 200  # It takes one token.
    assert store.limiter("one/tokens").peek().remaining == 8


def sent_again(servers):
    """Of two alternatives the first one has a path and a key of its own, and the second one has no route."""
    to = {"one": {"base_url": f"{servers[0].url}/a", "headers": {"x-api-key": "A", "x-own": None}}, "two": None}
    return limits("1/1m", "1/1m"), {"route": lambda chosen: to[chosen.name], "timeout": 0}


def check_sent_again(servers):
    assert [server.paths for server in servers] == [{"/a/x": 1}, {"/x": 1}]
    seen = [[(headers["x-api-key"], headers["x-own"]) for headers in server.headers] for server in servers]
    assert seen == [[("A", None)], [(None, "1")]]


def test_httpx_sends_the_same_request_again(servers):
    limiter, options = sent_again(servers)
    transport = workglow_limit.httpx2.LimitedTransport(limiter, **options)
    with httpx2.Client(transport=transport) as client:
        request = client.build_request("POST", f"{servers[1].url}/x", headers={"x-own": "1"}, content=b"abc")
        for _ in range(2):
            response = client.send(request)
            assert (response.status_code, response.url) == (200, f"{servers[1].url}/x")
    check_sent_again(servers)
    assert [server.bodies for server in servers] == [[b"abc"]] * 2


def test_requests_sends_the_same_request_again(servers):
    limiter, options = sent_again(servers)
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", workglow_limit.requests.LimitedAdapter(limiter, **options))
        request = session.prepare_request(requests.Request("GET", f"{servers[1].url}/x", headers={"x-own": "1"}))
        for _ in range(2):
            response = session.send(request)
            # The session compares them with a redirection's URL, to decide whether the credentials go along.
            assert response.request is request and response.url == request.url == f"{servers[1].url}/x"
    check_sent_again(servers)


def test_a_middleware_of_aiohttp_sends_the_same_request_again(servers):
    limiter, options = sent_again(servers)

    async def twice(request, handler):
        (await handler(request)).close()
        return await handler(request)

    async def main():
        middlewares = twice, workglow_limit.aiohttp.LimitedMiddleware(limiter, **options)
        async with aiohttp.ClientSession(middlewares=middlewares, headers={"x-own": "1"}) as session:
            async with session.get(f"{servers[1].url}/x") as response:
                assert response.status == 200

    asyncio.run(main())
    check_sent_again(servers)


@pytest.mark.parametrize("is_absolute", [True, False])
def test_a_redirection_below_the_base_url_is_routed_once(client, servers, is_absolute):
    """The path of the base URL was put in front of it once more."""
    two = servers[1]
    location = f"{two.url if is_absolute else ''}/api/x"

    async def scenario(client):
        url = f"{NOWHERE}/to?url={location}"
        assert await get(client, url, headers={"authorization": "Bearer one"}) == (200, b"fine")

    limiter = limits()
    assert [limiter.try_acquire() is not None for _ in range(2)] == [True] * 2
    client(limiter, scenario, route=to(servers), timeout=0)
    assert two.paths == {"/api/to": 1, "/api/x": 1} and not servers[0].arrivals
    assert [headers["authorization"] for headers in two.headers] == ["Bearer two"] * 2


def test_a_redirection_that_is_not_below_the_base_url_keeps_its_path(client, servers):
    async def scenario(client):
        assert await get(client, f"{NOWHERE}/to?url=/apis/x") == (200, b"fine")

    limiter = limits()
    assert [limiter.try_acquire() is not None for _ in range(2)] == [True] * 2
    client(limiter, scenario, route=to(servers), timeout=0)
    assert servers[1].paths == {"/api/to": 1, "/api/apis/x": 1}


def test_credentials_are_the_same_in_node(servers):
    """Each of them stays away from another origin, and the lists of both languages are one."""
    node = Path(__file__).parents[3] / "node/lib/route.ts"
    names = re.findall(r'"([a-z-]+)"', re.search(r"CREDENTIALS = \[(.*?)\]", node.read_text(), re.DOTALL)[1])
    assert len(names) > 10
    limiter = limits()
    transport = workglow_limit.httpx2.LimitedTransport(limiter, timeout=0, route=lambda _: servers[0].url)
    with httpx2.Client(transport=transport, auth=("me", "secret")) as client:
        assert client.get(f"{NOWHERE}/x", headers=dict.fromkeys(names, "secret")).status_code == 200
    assert "secret" not in servers[0].headers[0].values()
    assert [name for name in names if servers[0].headers[0][name] is not None] == []
