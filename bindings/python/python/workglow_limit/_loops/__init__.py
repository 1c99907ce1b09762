"""Waiting in event loops (asyncio, trio) and in hubs of greenlets (gevent, eventlet): what Rust calls.

Imported at the first use. Of the loops' own libraries none is imported here: where one runs, its program has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from .._native import Acquiring, Asked, Entered, Permit, Waiter
from .waiters import Hub, Loop, Waiters, Whose, give_back


def running() -> Loop:
    """The event loop of the coroutine that is running. Raises RuntimeError if there is none."""
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
    return answer if answer is not False else await elsewhere(asked, partial(asked.answer, True))


async def elsewhere(of: Whose, work: Callable[[], Any], undo: Callable[[Any], object] = give_back) -> Any:
    """Does what may wait for a store in another thread, to its end. If the task that awaits it is cancelled, `undo` is called with
    the outcome. It must not wait for anything."""
    loop = running()
    told = loop.answer()
    told.undo = undo
    loop.send(of, partial(outcome_of, work), told.tell, undo)
    try:
        await told.wait()
    except BaseException:
        told.leave()
        raise
    return told.take()


def outcome_of(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return error


async def sleep(seconds: float) -> None:
    loop = running()
    told = loop.answer()
    cancel = loop.call_later(seconds, partial(told.tell, None))
    try:
        await told.wait()
    finally:
        cancel()


async def enter(asked: Acquiring, entered: Entered) -> Permit:
    """What `async with limiter` enters."""
    permit = await asked
    entered.push(permit)
    return permit


async def itself(permit: Permit) -> Permit:
    """What `async with permit` enters."""
    return permit
