"""What may have to wait, as steps of a generator: `run` does them in a thread, `run_async` on an event loop, which goes on
meanwhile. So what is decided is written once."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ._loops import in_thread
from ._native import Limiter, Permit

T = TypeVar("T")


class Call(NamedTuple):
    """A call that may have to wait, and can be awaited as well."""

    target: Limiter | Permit
    method: str
    arguments: tuple[Any, ...] = ()


class Look(NamedTuple):
    """An attribute that may have to be waited for."""

    limiter: Limiter
    name: str


#: What may have to wait.
Step: TypeAlias = Call | Look | Awaitable[Any]
Steps: TypeAlias = Generator[Step, Any, T]


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
            elif isinstance(step, Look):
                answer = getattr(*step)
            else:
                raise TypeError(f"{step!r} has to be awaited, and this framework is synchronous")
            resume = partial(steps.send, answer)
        except BaseException as error:
            resume = partial(steps.throw, error)


async def run_async(steps: Steps[T]) -> T:
    """Does the steps on the running event loop, which goes on meanwhile. Who is cancelled meanwhile holds nothing."""
    resume: Any = partial(next, steps)
    while True:
        try:
            step = resume()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            if isinstance(step, Call):
                answer = await getattr(step.target, f"{step.method}_async")(*step.arguments)
            elif isinstance(step, Look):
                answer = await in_thread(step.limiter, partial(getattr, *step))
            else:
                answer = await step
            resume = partial(steps.send, answer)
        except GeneratorExit:
            raise
        except BaseException as error:
            resume = partial(steps.throw, error)
