"""Waiting in event loops (asyncio, trio) and in hubs of greenlets (gevent, eventlet): what Rust calls.

Imported at the first use. Of the loops' own libraries none is imported here: where one runs, its program has imported it.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from .._native import Acquiring, Asked, Entered, Permit, Waiter
from .waiters import Hub, Loop, Waiters, give_back


def running() -> Loop:
    """The event loop of the coroutine that is running."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        from .on_trio import TrioLoop

        return TrioLoop()
    from .on_asyncio import AsyncioLoop

    return AsyncioLoop()


def hub() -> Hub | Literal[False] | None:
    """The hub of this thread, if it has one. False in the hub's own greenlet, which lets no other run while it waits."""
    if "gevent" in sys.modules:
        from . import on_gevent

        found = on_gevent.hub()
        if found is not None:
            return found
    if "eventlet" in sys.modules:
        from . import on_eventlet

        return on_eventlet.hub()
    return None


async def acquire(waiter: Waiter) -> Permit:
    """Joins the line of the running loop, and waits there."""
    waiters = Waiters.of(running(), waiter)
    joined = waiters.join(waiter)
    if isinstance(joined, Permit):
        return joined
    try:
        await joined.wait()
    except BaseException:
        waiters.leave(waiter, joined)
        raise
    permit: Permit = joined.take()
    return permit


async def ask(asked: Asked) -> Any:
    """A start, a look, or a permit's end. What has to wait for the store does so elsewhere.

    An end goes on if the task that awaits it is cancelled; a start is given back.
    """
    answer = asked.answer(False)
    if answer is not False:
        return answer
    loop = running()
    told = loop.answer()
    loop.send(lambda: outcome_of(asked), told.tell, give_back)
    try:
        await told.wait()
    except BaseException:
        told.leave()
        raise
    return told.take()


def outcome_of(asked: Asked) -> Any:
    try:
        return asked.answer(True)
    except Exception as error:
        return error


async def enter(asked: Acquiring, entered: Entered) -> Permit:
    """What `async with limiter` enters."""
    permit = await asked
    entered.push(permit)
    return permit


async def itself(permit: Permit) -> Permit:
    """What `async with permit` enters."""
    return permit
