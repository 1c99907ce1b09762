"""Budgets that a provider reports: what others have spent with the same key is charged here, and what is free there is not."""

import asyncio
import multiprocessing
import threading

import anthropic
import httpx2
import openai
import pytest
from clients import CLIENTS, AsyncHttpx2, Httpx
from fake import serving
from pair import one_of_two
from provider import Provider
from workglow_limit import CompositeLimiter, FirstOfLimiter, ManualClock, Store, _budgets
from workglow_limit._budgets import Budgets, Start
from workglow_limit._sending import IN_LOOP, IN_THREAD, run
from workglow_limit.http import budgets
from workglow_limit.httpx2 import AsyncLimitedTransport, LimitedTransport

EVENLY = "requests: 100/1m burst 100 + tokens: 100000/1m burst 100000 + slots: 5 concurrent"
LIMIT = "requests: 100/1m + tokens: 100000/1m + slots: 5 concurrent"
CLAUDE = "requests: 100/1m burst 100 + input-tokens: 100000/1m burst 100000 + output-tokens: 100000/1m burst 100000"
INS_AND_OUTS = {"input": "input-tokens", "output": "output-tokens"}
ASKED = {"model": "m", "messages": [{"role": "user", "content": "how far is the moon?"}], "max_tokens": 500}


class Response:
    status_code = 200

    def __init__(self, *lines):
        self.headers = dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize(
    "lines, found",
    [
        (
            ["x-ratelimit-limit-requests: 60", "x-ratelimit-remaining-requests: 59", "x-ratelimit-reset-requests: 1s",
             "x-ratelimit-remaining-tokens: 149984", "x-ratelimit-reset-tokens: 6m0s"],
            [("requests", 59, 1.0), ("tokens", 149984, 360.0)],
        ),
        (
            ["Date: Sat, 31 Jan 2026 12:00:00 GMT", "anthropic-ratelimit-requests-remaining: 0",
             "anthropic-ratelimit-requests-reset: 2026-01-31T12:00:30Z", "anthropic-ratelimit-input-tokens-remaining: 49000",
             "anthropic-ratelimit-output-tokens-remaining: 7900"],
            [("requests", 0, 30.0), ("input-tokens", 49500, None), ("output-tokens", 7900, None)],  # 49000 is rounded.
        ),
        (['RateLimit: "requests";r=5;t=10, "tokens";a=50;w=30'], [("requests", 5, 10.0), ("tokens", 50, 30.0)]),
        (['RateLimit: "tokens";r=5', 'RateLimit-Policy: "tokens";q=100;w=60'], [("tokens", 5, 60.0)]),
        (["X-RateLimit-Remaining: 7", "X-RateLimit-Reset: 10"], [("requests", 7, 10.0)]),
        (["RateLimit-Remaining: -7"], [("requests", 0, None)]),
        (["x-ratelimit-remaining-requests: many", "x-remaining: 5", "Retry-After: 5"], []),
    ],
)  # fmt: skip
def test_budgets_of_headers(lines, found):
    assert budgets(Response(*lines)) == found


@pytest.fixture
def provider():
    return Provider()


@pytest.fixture
def server(provider):
    with serving() as server:
        server.provider = provider
        yield server


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def store(clock):
    return Store("memory:", clock=clock)


@pytest.fixture
def llm(store):
    return store.limiter("llm", LIMIT)


def left(limiter, part):
    return limiter.parts[part].peek().remaining


@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.__name__)
def test_what_others_spent_is_charged(kind, server, provider, llm):
    url = f"{server.url}/v1/chat/completions"

    async def main():
        client = kind(llm, tokens="tokens")

        async def post():
            await client.read(await client.open(url, "POST", json=ASKED))

        await post()
        assert (left(llm, "requests"), provider.left("requests")) == (99, 99)
        provider.spend(30, 50_000)
        await post()
        assert (left(llm, "requests"), provider.left("requests")) == (68, 68)
        # The provider counts the most tokens that a request may use, and ours are settled by those that it has used.
        assert provider.left("tokens") <= left(llm, "tokens") < 50_000
        for bucket in provider.buckets.values():
            bucket.level = bucket.limit
        await post()
        assert (left(llm, "requests"), provider.left("requests")) == (67, 99)  # Never up.
        assert llm.parts["slots"].peek().remaining == 5
        await client.end()

    asyncio.run(main())
    assert provider.refused == 0


def test_without_heed_nothing_is_charged(server, provider, llm):
    async def main():
        client = Httpx(llm, tokens="tokens", heed=False)
        for _ in range(3):
            await client.read(await client.open(f"{server.url}/v1/chat/completions", "POST", json=ASKED))
            provider.spend(30)
        await client.end()

    asyncio.run(main())
    assert left(llm, "requests") == 97


def test_what_has_become_free_meanwhile_was_not_spent_by_others(server, provider, clock, llm):
    """The provider counts a request when it arrives, and an answer may take longer than the window."""

    async def main():
        client = Httpx(llm, tokens="tokens")

        async def post():
            await client.read(await client.open(f"{server.url}/v1/chat/completions", "POST", json=ASKED))

        for _ in range(3):
            await post()
        provider.before_answer = lambda: clock.advance(61)
        await post()
        await client.end()

    asyncio.run(main())
    assert left(llm, "requests") == 100 and left(llm, "tokens") > 99_000


def test_after_its_reset_a_budget_says_nothing(server, provider, llm):
    async def main():
        client = Httpx(llm, tokens="tokens")

        async def post():
            await client.read(await client.open(f"{server.url}/v1/chat/completions", "POST", json=ASKED))

        await post()
        for bucket in provider.buckets.values():
            bucket.level /= 2
        type_reset = Provider.openai

        def at_once(units):
            return {name: "0s" if "reset" in name else value for name, value in type_reset(provider, units).items()}

        provider.openai = at_once
        await post()
        await client.end()

    asyncio.run(main())
    assert left(llm, "requests") == 98


def test_requests_on_their_way_charge_it_once(server, provider, llm):
    """Twenty requests are on their way when the provider says for each of them that others have spent 30."""
    at_once = threading.Barrier(20)

    async def main():
        client = AsyncHttpx2(llm, tokens="tokens", weight={"slots": 1})

        async def post():
            await client.read(await client.open(f"{server.url}/v1/chat/completions", "POST", json=ASKED))

        await post()
        provider.spend(30)
        provider.before_answer = lambda: at_once.wait(30)
        await asyncio.gather(*(post() for _ in range(20)))
        await client.end()

    llm = CompositeLimiter({name: part for name, part in llm.parts.items() if name != "slots"} | {
        "slots": Store("memory:").limiter("many", "20 concurrent")})  # fmt: skip
    asyncio.run(main())
    assert left(llm, "requests") == provider.left("requests") == 49
    assert llm.parts["slots"].peek().remaining == 20


def said(**remaining):
    return Response(*(f"x-ratelimit-remaining-{name}: {left}" for name, left in remaining.items()))


def watching(limiter, waiting=IN_THREAD, key=None):
    """Returns a client's budgets that know which are reported, and the start of a request."""
    start, budgets = Start(limiter, key, 1, {"total": "tokens"}), Budgets(waiting, {"total": "tokens"})
    run(budgets.compare(run(budgets.watch(start)), said(requests=1, tokens=1)))
    return budgets, start


def test_what_a_later_request_took_and_gave_back_was_not_spent_by_others(store):
    llm = store.limiter("llm", "requests: 100/1m + tokens: 10000/1m")
    budgets, start = watching(llm)
    with llm.acquire(weight={"tokens": 100}):
        first = run(budgets.watch(start))
        with llm.acquire(weight={"tokens": 4000}) as permit:
            second = run(budgets.watch(start))
            run(budgets.compare(second, said(requests=98, tokens=5900)))
            permit.settle({"tokens": 100})
        run(budgets.compare(first, said(requests=98, tokens=5900)))
    assert (left(llm, "requests"), left(llm, "tokens")) == (98, 9800)


def test_several_clients_charge_it_once(llm):
    class Slow(type(IN_LOOP)):
        async def charge(self, limiter, key, units, leaving):
            if not charging.is_set():  # The first is slow.
                charging.set()
                await go_on.wait()
            return await super().charge(limiter, key, units, leaving)

    async def main():
        slow = Slow()
        clients = [watching(llm, slow) for _ in range(2)]
        watched = [await budgets.watch(start) for budgets, start in clients]
        first = asyncio.create_task(clients[0][0].compare(watched[0], said(requests=70)))
        await charging.wait()
        await clients[1][0].compare(watched[1], said(requests=70))
        go_on.set()
        await first

    charging, go_on = asyncio.Event(), asyncio.Event()
    asyncio.run(main())
    assert left(llm, "requests") == 70
    assert not _budgets._process.levels


def test_of_two_processes_that_find_a_difference_one_charges_it(server, provider, tmp_path):
    context, url = multiprocessing.get_context("spawn"), f"sqlite:{tmp_path}/limits.db"
    both, all_three = context.Barrier(2), context.Barrier(3)
    processes = [
        context.Process(target=one_of_two, args=(url, server.url, both, all_three), daemon=True) for _ in range(2)
    ]
    for process in processes:
        process.start()
    all_three.wait(60)
    provider.spend(30)
    arrived = threading.Barrier(2)
    provider.before_answer = lambda: arrived.wait(60)
    for _ in range(3):
        all_three.wait(60)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert Store(url).limiter("llm", "100/1h").peek().remaining == provider.left("requests") == 66


def test_what_has_become_free_is_charged_once_for_all_requests_on_their_way(store, clock):
    llm = store.limiter("llm", "requests: 100/1m + tokens: 10000/1m")
    budgets, start = watching(llm)
    llm.acquire(weight={"requests": 50}).complete()
    first, second = run(budgets.watch(start)), run(budgets.watch(start))
    clock.advance(60)  # 100 are free again, of which the provider has counted 50 when the two arrived.
    for watched in first, second:
        run(budgets.compare(watched, said(requests=30)))
    assert left(llm, "requests") == 80


@pytest.mark.parametrize("requests", ["10 concurrent", "10 concurrent cooldown 1s", "alternatives"])
def test_slots_and_alternatives_are_not_charged(store, requests):
    either = FirstOfLimiter([store.limiter("a", "10/1m"), store.limiter("b", "10/1m")])
    part = either if requests == "alternatives" else store.limiter("requests", requests)
    for limiter in part, CompositeLimiter({"requests": part, "all": store.limiter("all", "100/1m")}):
        budgets, start = watching(limiter)
        watched = run(budgets.watch(start))
        run(budgets.compare(watched, said(requests=1)))
        assert part.peek(weight=10).admitted and not watched.traces


def test_nothing_left_is_a_pause_only_if_its_end_is_known(llm):
    budgets, start = watching(llm)
    reset = Response("x-ratelimit-remaining-requests: 0", "x-ratelimit-reset-requests: 1h0m0s")
    run(budgets.compare(run(budgets.watch(start)), reset))
    assert left(llm, "requests") == 100
    run(budgets.compare(run(budgets.watch(start)), said(requests=0)))
    assert left(llm, "requests") == 0


def test_what_is_reported_belongs_to_a_limiter(store, llm):
    budgets, _ = watching(llm)
    watched = run(budgets.watch(Start(store.limiter("other", LIMIT), None, 1, {"total": "tokens"})))
    assert not watched.traces


def test_a_limiter_without_parts_counts_requests(server, provider, store):
    limiter = store.limiter("openai", "100/1m")

    async def main():
        client = Httpx(limiter, key="k")
        for _ in range(2):
            await client.read(await client.open(f"{server.url}/v1/chat/completions", "POST", json=ASKED))
            provider.spend(30)
        await client.read(await client.open(f"{server.url}/v1/chat/completions", "POST", json=ASKED))
        await client.end()

    asyncio.run(main())
    assert limiter.peek("k").remaining == 37 and limiter.peek().remaining == 100


def test_a_comparison_that_fails_costs_no_response(server, provider, store, llm):
    async def main():
        client = Httpx(llm, tokens="tokens")
        for after in lambda: None, store.close:
            provider.before_answer = after
            provider.spend(30)
            response = await client.open(f"{server.url}/v1/chat/completions", "POST", json=ASKED)
            assert response.status_code == 200 and await client.read(response)
        await client.end()

    asyncio.run(main())


def test_the_sdk_of_openai(server, provider, clock, store):
    llm = store.limiter("openai", EVENLY)
    transport = LimitedTransport(llm, tokens="tokens", timeout=0)
    with openai.OpenAI(
        api_key="k", base_url=f"{server.url}/v1", http_client=httpx2.Client(transport=transport), max_retries=0
    ) as client:
        client.chat.completions.create(**ASKED)
        provider.spend(30, 40_000)
        stream = client.chat.completions.create(**ASKED, stream=True, stream_options={"include_usage": True})
        assert sum(len(chunk.choices) for chunk in stream) > 5
        assert left(llm, "requests") == provider.left("requests") == 68
        assert provider.left("tokens") <= left(llm, "tokens") < 60_000
        assert left(llm, "slots") == 5

        # Others have spent all of it since: the provider refuses, and all callers of the limit wait as long as it asks for.
        provider.spend(100)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(**ASKED)
        assert llm.peek().retry_after == 6.5
        clock.advance(6.5), provider.advance(6.5)
        client.chat.completions.create(**ASKED)
        assert left(llm, "requests") == provider.left("requests") == 9
    assert left(llm, "slots") == 5 and provider.refused == 1


def test_the_sdk_of_anthropic(server, provider, clock, store):
    claude = store.limiter("claude", CLAUDE)

    async def main():
        transport = AsyncLimitedTransport(claude, tokens=INS_AND_OUTS, timeout=0)
        http = httpx2.AsyncClient(transport=transport)
        async with anthropic.AsyncAnthropic(
            api_key="k", base_url=server.url, http_client=http, max_retries=0
        ) as client:
            await client.messages.create(**ASKED)
            provider.spend(30, 40_000)
            async with client.messages.stream(**ASKED) as stream:
                await stream.get_final_text()
            assert left(claude, "requests") == provider.left("requests") == 68
            for part in INS_AND_OUTS.values():  # They are rounded to thousands.
                assert abs(left(claude, part) - 60_000) <= 1_000
            provider.spend(100)
            with pytest.raises(anthropic.RateLimitError):
                await client.messages.create(**ASKED)
            assert claude.peek().retry_after == 7
            clock.advance(7), provider.advance(7)
            await client.messages.create(**ASKED)
            assert left(claude, "requests") == provider.left("requests") == 10

    asyncio.run(main())
    assert provider.refused == 1
