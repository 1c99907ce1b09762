"""One of two processes whose clients share a limit."""

import httpx
from workglow_limit import Store
from workglow_limit._sending import IN_THREAD
from workglow_limit.httpx import LimitedTransport


ASKED = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5}


def one_of_two(url, to, both, all_three):
    """A process that finds the difference, and charges it when the other has found it, too."""
    kind = type(IN_THREAD)
    charge = kind.charge

    async def when_both_have_looked(*arguments):
        both.wait(60)
        return await charge(*arguments)

    kind.charge = when_both_have_looked
    limiter = Store(url).limiter("llm", "100/1h")

    with httpx.Client(transport=LimitedTransport(limiter)) as client:
        for _ in range(2):
            client.post(f"{to}/v1/chat/completions", json=ASKED)
            for _ in range(2):  # The test spends units in between.
                all_three.wait(60)
