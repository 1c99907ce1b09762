"""What may have to wait, as steps of a generator: `run` does them in a thread, `run_async` on an event loop, which goes on
meanwhile. So what is decided is written once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from inspect import isawaitable
from types import coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from ._native import Limiter

if TYPE_CHECKING:
    from ._native import Permit

T = TypeVar("T")


class Call(NamedTuple):
    """A call that may have to wait, and can be awaited as well."""

    target: Limiter | Permit
    method: str
    arguments: tuple[Any, ...] = ()


#: What may have to wait: a call, any other function, or an awaitable.
Step: TypeAlias = Call | Callable[[], Any] | Awaitable[Any]
Steps: TypeAlias = Generator[Step, Any, T]

#: Half of the threads that a loop's executor has.
MOST_WAITING = max(1, min(32, (os.cpu_count() or 1) + 4) // 2)

#: The limiters that have ever had to wait, in each loop.
_waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Limiter, asyncio.Semaphore]] = WeakKeyDictionary()


def awaited(value: Any) -> Steps[Any]:
    """A function's answer, once it is there."""
    return (yield value) if isawaitable(value) else value


def run(steps: Steps[T]) -> T:
    """Does the steps in this thread, which waits."""
    resume: Any = partial(next, steps)
    while True:
        try:
            step = resume()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            if isinstance(step, Call):
                answer = getattr(step.target, step.method)(*step.arguments)
            elif callable(step):
                answer = step()
            else:
                raise TypeError(f"{step!r} has to be awaited, and this framework is synchronous")
            resume = partial(steps.send, answer)
        except BaseException as error:
            resume = partial(steps.throw, error)


async def run_async(steps: Steps[T]) -> T:
    """Does the steps on the running event loop, which goes on meanwhile."""
    resume: Any = partial(next, steps)
    while True:
        try:
            step = resume()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            if isinstance(step, Call):
                answer = await call_async(step)
            elif callable(step):
                answer = await asyncio.get_running_loop().run_in_executor(None, step)
            else:
                answer = await step
            resume = partial(steps.send, answer)
        except GeneratorExit:
            raise
        except BaseException as error:
            resume = partial(steps.throw, error)


async def call_async(step: Call) -> Any:
    """Calls a limiter or a permit. Who is cancelled meanwhile holds nothing.

    What has to wait for a store takes a thread of the loop's executor. One limiter gets at most half of them, so that a store
    that does not answer holds up nobody else: more of its requests wait without a thread.
    """
    target, method, arguments = step
    ask = getattr(target, f"{method}_async")
    limiter = target if isinstance(target, Limiter) else None
    # To ask for the running loop takes longer than to decide.
    slots = _waiting.get(asyncio.get_running_loop(), {}).get(limiter) if limiter and _waiting else None
    if slots is not None and slots.locked():
        async with slots:
            return await ask(*arguments)
    call = ask(*arguments)
    try:
        first = call.send(None)
    except StopIteration as done:  # It did not have to wait, as most.
        return done.value
    if slots is None and limiter:
        of_loop = _waiting.setdefault(asyncio.get_running_loop(), {})
        slots = of_loop.setdefault(limiter, asyncio.Semaphore(MOST_WAITING))
    if slots is None:
        return await rest(call, first)
    async with slots:
        return await rest(call, first)


@coroutine
def rest(call: Any, pending: Any) -> Generator[Any, Any, Any]:
    """Awaits a coroutine that has begun, and waits for something."""
    while True:
        try:
            answer = yield pending
        except BaseException as error:
            proceed = partial(call.throw, error)
        else:
            proceed = partial(call.send, answer)
        try:
            pending = proceed()
        except StopIteration as done:
            return done.value
