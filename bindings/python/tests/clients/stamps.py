"""Evidence of starts: each limited request has in X-Asked a time surely before its start. That is the clock just before the call
that admitted it or, after a wait, the ready time of its place. The server logs it together with its own clock."""

import time
from contextvars import ContextVar

from workglow_limit import _sending

exchange = ContextVar("exchange")
attempt = _sending.Sender.attempt


async def noted(self, of):
    exchange.set(of)
    return await attempt(self, of)


def stamped(waits):
    """Wraps the waits of a client, to stamp the request that will be sent."""
    acquire = waits.acquire

    async def stamping(*arguments):
        asked = time.monotonic_ns()
        permit = await acquire(*arguments)
        ready = permit.ready_at_monotonic
        exchange.get().request.headers["X-Asked"] = str(asked if ready is None else int(ready * 10**9))
        return permit

    waits.acquire = stamping


def put():
    """Stamps all further requests of this process. (With two limits the stamp is of the limit that was waited for.)"""
    _sending.Sender.attempt = noted
    stamped(_sending.IN_THREAD)
    stamped(_sending.IN_LOOP)
