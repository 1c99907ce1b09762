"""A limit that learns its policy from what a provider says about its own limits."""

import asyncio

import pytest
from clients import CLIENTS
from conftest import until
from fake import serving
from provider import Provider
from workglow_limit import Store
from workglow_limit.http import Quota, quotas
from workglow_limit.httpx import LimitedTransport

ASKED = {"model": "m", "messages": [{"role": "user", "content": "how far is the moon?"}], "max_tokens": 500}


class Response:
    status_code = 200

    def __init__(self, *lines):
        self.headers = dict(line.split(": ", 1) for line in lines)


def openai(limit, left, reset):
    return [
        f"x-ratelimit-limit-requests: {limit}",
        f"x-ratelimit-remaining-requests: {left}",
        f"x-ratelimit-reset-requests: {reset}",
    ]


def anthropic(kind, limit, left, reset):
    return [
        "Date: Sat, 31 Jan 2026 12:00:00 GMT",
        f"anthropic-ratelimit-{kind}-limit: {limit}",
        f"anthropic-ratelimit-{kind}-remaining: {left}",
        f"anthropic-ratelimit-{kind}-reset: 2026-01-31T12:00:{reset}Z",
    ]


@pytest.mark.parametrize(
    "lines, found",
    [
        (['RateLimit-Policy: "default";q=100;w=60'], [("requests", 100, 60.0, False)]),
        (['RateLimit-Policy: "requests";q=100;w=60, "burst";q=10;w=1'], []),  # Which of them?
        (['RateLimit-Policy: "default";q=100;w=60;pk=:cGs=:'], []),
        (['RateLimit-Policy: "default";q=100;w=60;qu="content-bytes"'], []),
        (['RateLimit-Policy: "default";q=100'], []),
        (["RateLimit-Policy: 100;w=60", "RateLimit: limit=100, remaining=50, reset=30"], [("requests", 100, 60.0, False)]),
        (["RateLimit-Limit: 100, 100;w=60"], [("requests", 100, 60.0, False)]),
        (["RateLimit-Limit: 100", "RateLimit-Remaining: 50", "RateLimit-Reset: 30"], []),
        (["X-RateLimit-Limit: 5000", "X-RateLimit-Remaining: 2500", "X-RateLimit-Reset: 1800"], []),  # Not evenly refilled.
        (openai(500, 450, "6s"), []),  # A whole second may be off by one.
        (openai(500, 450, "6.02s"), [("requests", 500, 60.2, True)]),
        (openai(10000, 9980, "2m52.8s"), [("requests", 10000, 86400.0, True)]),
        (openai(500, 499, "120ms"), []),  # One request: it may have been nearly two.
        (openai(500, "many", "6.02s"), []),
        *((openai(units, 450, "6.02s"), []) for units in ("²", "9" * 25, "9" * 400, "9" * 5000)),
        *((openai(500, left, "6.02s"), []) for left in ("²", "9" * 5000)),
        *(([f'RateLimit-Policy: "default";q={"9" * digits};w=60'], []) for digits in (25, 400)),
        (openai(500, 450, "soon"), []),
        (anthropic("requests", 50, 35, "18"), [("requests", 50, 60.0, True)]),
        (anthropic("input-tokens", 40000, 20000, "30"), [("input-tokens", 40000, 60.0, True)]),
        (anthropic("output-tokens", 40000, 36000, "06"), []),  # Rounded to thousands.
    ],
)  # fmt: skip
def test_the_sizes_of_budgets(lines, found):
    sizes = quotas(Response(*lines))
    assert sizes == [Quota(*quota[:2], pytest.approx(quota[2]), quota[3]) for quota in found]


@pytest.fixture
def server():
    with serving() as server:
        server.provider = Provider(requests=500, tokens=200_000)
        yield server


def policies(store):
    return {limit.name: (limit.policy, limit.overridden_by) for limit in store.snapshot().limits}


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
def test_a_client_learns_the_policies_of_its_parts(kind, server):
    store = Store("memory:")
    llm = store.limiter("llm", "requests: 100/1m + tokens: 100000/1m + 5 concurrent")

    last = store.limiter("last", "100/1m")

    async def main(limiter=llm, **options):
        client = kind(limiter, learn=True, **options)
        server.provider.spend(30, 40_000)  # Now the resets show the window.
        for _ in range(2):
            await client.read(await client.open(f"{server.url}/v1/chat/completions", "POST", json=ASKED))
        await client.end()

    asyncio.run(main(tokens="tokens"))
    learned = "headers of 127.0.0.1"
    until(
        lambda: (
            policies(store)
            == {
                "llm/requests": ("500/1m", learned),
                "llm/tokens": ("200000/1m", learned),
                "llm/concurrency": ("5 concurrent", None),
                "last": ("100/1m", None),
            }
        )
    )
    store.lift("llm")
    asyncio.run(main(tokens="tokens"))
    asyncio.run(main(last))  # The store learns in this order.
    until(lambda: policies(store)["last"] == ("500/1m", learned))
    assert {by for name, (_, by) in policies(store).items() if name != "last"} == {None}  # The provider says the same.


def test_by_default_nothing_is_learned_nor_from_a_keys_requests(server):
    store = Store("memory:")
    limits = [store.limiter(name, "100/1m") for name in "abc"]
    server.provider.spend(30)

    async def post(limiter, **options):
        client = CLIENTS[0](limiter, **options)
        for _ in range(2):
            await client.read(await client.open(f"{server.url}/v1/chat/completions", "POST", json=ASKED))
        await client.end()

    asyncio.run(post(limits[0]))
    asyncio.run(post(limits[1], learn=True, key="tenant-7"))
    asyncio.run(post(limits[2], learn=True))
    until(lambda: policies(store)["c"][1] is not None)  # The store learns in this order.
    assert policies(store)["a"] == policies(store)["b"] == ("100/1m", None)


@pytest.mark.parametrize("learn", [1, "yes", None])
def test_learn_is_a_bool(learn):
    with pytest.raises(TypeError, match=f"learn is {learn!r}: expected True or False, not {type(learn).__name__}"):
        LimitedTransport(Store("memory:").limiter("a", "1/1s"), learn=learn)
