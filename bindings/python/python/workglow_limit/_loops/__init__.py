"""Waiting in event loops (asyncio, trio) and in hubs of greenlets (gevent, eventlet). The native module calls this
package.

It is imported at its first use, and imports a loop's library only if that loop runs: then the program has imported it
already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from .._native import Acquisition, AsyncCall, Permit, PermitStacks, Waiter
from .waiters import Hub, Loop, Owner, Waiters, cancel_start


def running() -> Loop:
    """Returns the event loop of the running coroutine. Raises RuntimeError if there is none."""
    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        from .on_trio import TrioLoop

        return TrioLoop()
    from .on_asyncio import AsyncioLoop

    return AsyncioLoop()


def hub() -> Hub | Literal[False] | None:
    """Returns the hub of this thread, or None. Returns False in the hub's own greenlet, which blocks all others while
    it waits."""
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
    """Joins the line of the running loop and waits there."""
    waiters = Waiters.of(running(), waiter)
    joined = waiters.join(waiter)
    if isinstance(joined, Permit):
        return joined
    try:
        await joined.wait()
        while not waiters.goes_on(waiter, joined):
            await joined.wait()
    except BaseException:
        waiters.leave(waiter, joined)
        raise
    permit: Permit = joined.take()
    return permit


async def run(call: AsyncCall) -> Any:
    """Makes a decision or ends a permit. A call that has to wait for the store runs in another thread.

    If the task is cancelled, the end of a permit still takes effect, and a start is cancelled.
    """
    answer = call.answer(False)
    return answer if answer is not False else await in_thread(call, partial(call.answer, True))


async def in_thread(of: Owner, work: Callable[[], Any], undo: Callable[[Any], object] = cancel_start) -> Any:
    """Runs work that may wait for a store in another thread, always to its end. If the task is cancelled, `undo` is
    called with the outcome. `undo` must not block."""
    loop = running()
    answer = loop.answer()
    answer.undo = undo
    loop.send(of, partial(outcome_of, work), answer.set, undo)
    try:
        await answer.wait()
    except BaseException:
        answer.leave()
        raise
    return answer.take()


def outcome_of(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return error


async def sleep(seconds: float) -> None:
    loop = running()
    answer = loop.answer()
    cancel = loop.call_later(seconds, partial(answer.set, None))
    try:
        await answer.wait()
    finally:
        cancel()


async def enter(acquisition: Acquisition, stacks: PermitStacks) -> Permit:
    """Enters `async with limiter`."""
    permit = await acquisition
    stacks.push(permit)
    return permit


async def itself(permit: Permit) -> Permit:
    """Enters `async with permit`."""
    return permit
