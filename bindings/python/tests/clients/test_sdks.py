"""The unchanged SDKs of OpenAI and Anthropic, with a limited client of httpx2 (OpenAI's also with one of httpx)."""

import asyncio
import threading

import anthropic
import httpx
import httpx2
import openai
import pytest
import workglow_limit.httpx
import workglow_limit.httpx2
from fake import WORDS, serving
from workglow_limit import AcquireTimeout, ManualClock, Store

ASKED = {"model": "m", "messages": [{"role": "user", "content": "how far is the moon?"}]}
COST = 7 + len(WORDS)  # The server's token count.


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture
def limits():
    """The clock stands still, so used units remain used."""
    store = Store("memory:", clock=ManualClock())
    return store.limiter("llm", "requests: 10/1m + tokens: 10000/1m + slots: 2 concurrent")


def used(limiter):
    decision = limiter.peek()
    return decision.limit - decision.remaining


def checked(limits, is_open):
    assert (used(limits.parts["tokens"]) > 100) == is_open and limits.parts["slots"].peek().remaining == 2 - is_open


async def settled(limits, count):
    """Waits until so many requests are settled. An SDK may return from a stream while another task ends its start."""
    while used(limits.parts["tokens"]) != count * COST:
        await asyncio.sleep(0.001)


LIBRARIES = {"httpx2": (httpx2, workglow_limit.httpx2), "httpx": (httpx, workglow_limit.httpx)}


@pytest.fixture(params=LIBRARIES)
def clients(request, limits):
    """Makes a client, and a client for asyncio."""
    library, ours = LIBRARIES[request.param]
    options = {"tokens": "tokens", "timeout": 0}
    return (
        lambda: library.Client(transport=ours.LimitedTransport(limits, **options)),
        lambda: library.AsyncClient(transport=ours.AsyncLimitedTransport(limits, **options)),
    )


@pytest.fixture
def clients2(limits):
    options = {"tokens": "tokens", "timeout": 0}
    return (
        lambda: httpx2.Client(transport=workglow_limit.httpx2.LimitedTransport(limits, **options)),
        lambda: httpx2.AsyncClient(transport=workglow_limit.httpx2.AsyncLimitedTransport(limits, **options)),
    )


def test_openai(server, limits, clients):
    with openai.OpenAI(api_key="k", base_url=f"{server.url}/v1", http_client=clients[0]()) as client:
        answer = client.chat.completions.create(**ASKED, max_tokens=500)
        assert answer.choices[0].message.content == " ".join(WORDS) and used(limits.parts["tokens"]) == COST

        with client.chat.completions.create(
            **ASKED, max_completion_tokens=500, stream=True, stream_options={"include_usage": True}
        ) as chunks:
            next(iter(chunks))
            checked(limits, True)
            for chunk in chunks:
                pass
        assert chunk.usage.total_tokens == COST and used(limits.parts["tokens"]) == 2 * COST

        answer = client.responses.create(model="m", input=ASKED["messages"], max_output_tokens=500)
        assert answer.output_text == " ".join(WORDS) and used(limits.parts["tokens"]) == 3 * COST

        with client.responses.create(model="m", input=ASKED["messages"], max_output_tokens=500, stream=True) as events:
            *_, last = events
        assert last.type == "response.completed" and used(limits.parts["tokens"]) == 4 * COST
    checked(limits, False)


def test_openai_async(server, limits, clients):
    async def main():
        async with openai.AsyncOpenAI(api_key="k", base_url=f"{server.url}/v1", http_client=clients[1]()) as client:
            await client.chat.completions.create(**ASKED, max_tokens=500)
            await settled(limits, 1)
            stream = await client.chat.completions.create(
                **ASKED, max_completion_tokens=500, stream=True, stream_options={"include_usage": True}
            )
            async for _ in stream:
                pass
            await settled(limits, 2)
            async with client.responses.stream(model="m", input=ASKED["messages"], max_output_tokens=500) as events:
                assert (await events.get_final_response()).output_text == " ".join(WORDS)
            await settled(limits, 3)

    asyncio.run(main())
    checked(limits, False)


def test_anthropic(server, limits, clients2):
    with anthropic.Anthropic(api_key="k", base_url=server.url, http_client=clients2[0]()) as client:
        answer = client.messages.create(**ASKED, max_tokens=500)
        assert answer.content[0].text == " ".join(WORDS) and used(limits.parts["tokens"]) == COST
        with client.messages.stream(**ASKED, max_tokens=500) as stream:
            texts = iter(stream.text_stream)
            next(texts)
            checked(limits, True)
            assert len(list(texts)) == len(WORDS) - 1
        assert used(limits.parts["tokens"]) == 2 * COST
        with client.messages.stream(**ASKED, max_tokens=500) as stream:  # Closed early, before the usage is reported.
            next(iter(stream.text_stream))
        assert 2 * COST + 7 < used(limits.parts["tokens"]) <= 3 * COST + 1
    checked(limits, False)


def test_anthropic_async(server, limits, clients2):
    async def main():
        async with anthropic.AsyncAnthropic(api_key="k", base_url=server.url, http_client=clients2[1]()) as client:
            await client.messages.create(**ASKED, max_tokens=500)
            await settled(limits, 1)
            async with client.messages.stream(**ASKED, max_tokens=500) as stream:
                assert await stream.get_final_text() == " ".join(WORDS) + " "
            await settled(limits, 2)

    asyncio.run(main())
    checked(limits, False)


def test_retries_of_an_sdk_are_requests(server):
    """Retries wait for the pause, and each takes its own permits. A refused request takes no tokens."""
    store = Store("memory:")
    llm = store.limiter("llm", "requests: 10/1h + tokens: 10000/1h")
    transport = workglow_limit.httpx2.LimitedTransport(llm, tokens="tokens")
    with openai.OpenAI(api_key="k", base_url=server.url, http_client=httpx2.Client(transport=transport)) as client:
        client.post("/x?status=429&times=1&retry-after=1", body=ASKED | {"max_tokens": 500}, cast_to=httpx2.Response)
    assert used(llm.parts["requests"]) == 2 and used(llm.parts["tokens"]) == 507
    assert server.arrivals[1] - server.arrivals[0] >= 1_000_000_000


def test_a_wait_that_is_too_long_raises(server, limits, clients, clients2):
    full = limits.parts["slots"].acquire(weight=2)
    with openai.OpenAI(api_key="k", base_url=f"{server.url}/v1", http_client=clients[0]()) as client:
        with pytest.raises(AcquireTimeout):
            client.chat.completions.create(**ASKED)
    with anthropic.Anthropic(api_key="k", base_url=server.url, http_client=clients2[0](), max_retries=0) as client:
        with pytest.raises(anthropic.APIConnectionError) as raised:
            client.messages.create(**ASKED, max_tokens=500)
    assert isinstance(raised.value.__cause__, AcquireTimeout) and not server.arrivals
    full.complete()


class Fickle:
    """A provider that refuses every fifth request, and closes the connection of every seventh."""

    def __init__(self):
        self.count = 0

    def arrived(self, path, inputs, most):
        self.count += 1
        if self.count % 7 == 0:
            raise ConnectionAbortedError
        is_refused = self.count % 5 == 0
        return ({"retry-after-ms": "1"} if is_refused else {}), is_refused


class Holding:
    """A provider that answers nobody until the test is over."""

    def __init__(self):
        self.over, self.asked = threading.Event(), []

    def arrived(self, path, inputs, most):
        self.asked.append(path)
        self.over.wait(60)
        return {}, False


def test_each_attempt_of_an_sdk_is_one_start_and_nothing_is_left(server):
    llm = Store("memory:").limiter("llm", "requests: 1000/1h + tokens: 1000000/1h + slots: 4 concurrent")
    server.provider = Fickle()
    transport = workglow_limit.httpx2.AsyncLimitedTransport(llm, tokens="tokens")

    async def work(client, number):
        if number % 3 == 0:
            await client.chat.completions.create(**ASKED, max_tokens=500)
            return
        stream = await client.chat.completions.create(
            **ASKED, max_completion_tokens=500, stream=True, stream_options={"include_usage": True}
        )
        async for _ in stream:
            if number % 3 == 1:
                break
        await stream.close()

    async def main():
        http = httpx2.AsyncClient(transport=transport, timeout=120)
        async with openai.AsyncOpenAI(
            api_key="k", base_url=f"{server.url}/v1", http_client=http, max_retries=9
        ) as client:
            await asyncio.gather(*(work(client, number) for number in range(30)))
            attempts = used(llm.parts["requests"])
            assert attempts == len(server.arrivals) > 35
            while used(llm.parts["slots"]):
                await asyncio.sleep(0.001)

            # Four wait for their answer when they are cancelled, and the others for a slot. (None connects: anyio leaves a connection
            # open that was made for a task while that was cancelled.)
            server.provider = holding
            tasks = [asyncio.ensure_future(work(client, number)) for number in range(30)]
            while len(holding.asked) < 4:
                await asyncio.sleep(0.001)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            while used(llm.parts["slots"]):
                await asyncio.sleep(0.001)

    holding = Holding()
    try:
        asyncio.run(main())
    finally:
        holding.over.set()
