"""Tokens per minute, used by streams of the real SDKs: streams.py [STORE] [--limit 200000] [--window 60] [--windows 3]

Processes with the SDKs of OpenAI and Anthropic share one limit of tokens, and request as many streams as they can from a server
of their own. Each request reserves a quarter of its characters and its max_tokens, and settles the usage that the stream reports.

Utilisation: the tokens that the requests which reached the server in those windows really used, as a share of the tokens that the
limit allows. Over the limit: a request started in [a, r]. a is the client's clock just before the call that admitted it (or the
moment its place was ready); r is the server's when the request arrived. It is one clock, the machine's. "Over" is the most tokens
that requests wholly in one window used, less the limit. Requests that arrive after the end are left out: see `results`.

It needs workglow-limit, openai and anthropic: target/venv of `make test` has them.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "bindings/python/tests/clients"
sys.path.append(str(TESTS))

PROCESSES = ["openai", "anthropic", "openai", "anthropic"]
AT_ONCE = 24  # In each process.
MOST = 600  # max_tokens; an answer has 200 to 600.
PROMPT = "Tell me of the moon, and of who went there. " * 10


async def ask(kind, store, url, policy, end):
    """One process."""
    import httpx2
    import stamps
    from workglow_limit import Store
    from workglow_limit.httpx2 import AsyncLimitedTransport

    stamps.put()
    limiter = Store(store).limiter("llm", f"tokens: {policy}")
    limits = httpx2.Limits(max_connections=AT_ONCE)
    transport = AsyncLimitedTransport(limiter, tokens="tokens", transport=httpx2.AsyncHTTPTransport(limits=limits))
    http = httpx2.AsyncClient(transport=transport, timeout=600)
    asked = {"model": "m", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": MOST}

    async def of_openai(words):
        options = {"stream": True, "stream_options": {"include_usage": True}, "metadata": {"words": str(words)}}
        async for _ in await client.chat.completions.create(**asked, **options):
            pass

    async def of_anthropic(words):
        async with client.messages.stream(**asked, extra_body={"metadata": {"words": str(words)}}) as stream:
            async for _ in stream.text_stream:
                pass

    if kind == "openai":
        import openai

        client, one = openai.AsyncOpenAI(api_key="k", base_url=f"{url}/v1", http_client=http), of_openai
    else:
        import anthropic

        client, one = anthropic.AsyncAnthropic(api_key="k", base_url=url, http_client=http), of_anthropic

    async def forever():
        while time.monotonic_ns() < end:
            await one(random.randint(MOST // 3, MOST))

    with contextlib.suppress(asyncio.TimeoutError):  # Requests that still wait then are abandoned.
        await asyncio.wait_for(asyncio.gather(*(forever() for _ in range(AT_ONCE))), (end - time.monotonic_ns()) / 1e9)


def most_in_any_window(came, window):
    """The most tokens of requests that lie wholly in one window."""
    most = 0
    for begin in {a for a, _, _ in came}:
        most = max(most, sum(tokens for a, r, tokens in came if a >= begin and r < begin + window))
    return most


def measure(store, limit, seconds, windows, pace, processes=PROCESSES):
    """Returns the results of a run of `windows` windows."""
    window = round(seconds * 1e9)
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        options = json.dumps({"pace": pace, "words": 100})
        command = [sys.executable, str(TESTS / "fake.py"), folder, options]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        url = server.stdout.readline().strip()
        # The processes need a moment to begin, and the first of them begins the first window.
        end = time.monotonic_ns() + round((seconds * windows + 8) * 1e9)
        policy = f"{limit}/{round(seconds * 1000)}ms"
        store = store or f"sqlite:{folder}/limits.db"
        command = [sys.executable, __file__, store, "--process"]
        workers = [subprocess.Popen([*command, json.dumps([kind, store, url, policy, end])]) for kind in processes]
        try:
            failed = [worker.wait(timeout=seconds * windows + 120) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
            server.kill()
            server.communicate()
        lines = Path(folder, "arrivals.log").read_text().splitlines()
    came = [(a, r, tokens) for a, r, tokens, _ in (map(int, line.split()) for line in lines)]
    return {"failed": sum(failed)} | results(came, end, limit, window, windows)


def results(came, end, limit, window, windows):
    """What the requests show that came before the processes ended. A stream that is cut off then is charged what its client has
    received, while the server has counted all of it. So a process that ends later may start others at once."""
    came = [(a, r, tokens) for a, r, tokens in came if r < end]
    first = min((r for _, r, _ in came), default=0)
    used = sum(tokens for _, r, tokens in came if r < first + windows * window)
    return {
        "requests": len(came), "tokens": used, "utilisation": used / (limit * windows),
        "over": most_in_any_window(came, window) - limit,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", nargs="?", help="a new sqlite: store if not given")
    parser.add_argument("--limit", type=int, default=200_000)
    parser.add_argument("--window", type=float, default=60.0)
    parser.add_argument("--windows", type=int, default=3)
    parser.add_argument("--pace", type=float, default=0.25, help="seconds before each event of a stream, of 100 tokens")
    parser.add_argument("--process", type=json.loads, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process:
        return asyncio.run(ask(*given.process))
    found = measure(given.store, given.limit, given.window, given.windows, given.pace)
    print(json.dumps(found))
    return 1 if found["failed"] or found["over"] > 0 else 0


if __name__ == "__main__":
    sys.exit(main())
