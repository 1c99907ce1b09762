"""Evidence of starts: each limited request says in X-Asked when it surely had not started. That is the clock just before the call
that admitted it, or, if that had to wait, the moment when its place came. The server writes it down beside its own clock."""

import time
from contextvars import ContextVar

from workglow_limit import _sending

exchange = ContextVar("exchange")
attempt = _sending.Sending.attempt


async def noted(self, of):
    exchange.set(of)
    return await attempt(self, of)


def stamped(waits):
    """The waits of a client, which stamp the request that is about to be sent."""
    acquire = waits.acquire

    async def stamping(*arguments):
        asked = time.monotonic_ns()
        permit = await acquire(*arguments)
        ready = permit.ready_at_monotonic
        exchange.get().request.headers["X-Asked"] = str(asked if ready is None else int(ready * 10**9))
        return permit

    waits.acquire = stamping


def put():
    """From now on all requests of this process are stamped. (Of two limits it is the one that was waited for.)"""
    _sending.Sending.attempt = noted
    stamped(_sending.IN_THREAD)
    stamped(_sending.IN_LOOP)
