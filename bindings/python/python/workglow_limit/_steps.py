"""Operations that may wait, as steps of a generator. `run` does them in the calling thread, `run_async` on an event
loop without blocking it. So the logic of both is written once."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple, TypeAlias, TypeVar

from ._loops import in_thread
from ._native import Limiter, Permit, Store

T = TypeVar("T")


class Call(NamedTuple):
    """A call that may wait and has an asynchronous version."""

    target: Limiter | Permit | Store
    method: str
    arguments: tuple[Any, ...] = ()


class Attribute(NamedTuple):
    """An attribute whose value may have to be waited for."""

    limiter: Limiter
    name: str


#: An operation that may wait.
Step: TypeAlias = Call | Attribute | Awaitable[Any]
Steps: TypeAlias = Generator[Step, Any, T]


def awaited(value: Any) -> Steps[Any]:
    """Returns the result of a function, awaited if it is awaitable."""
    return (yield value) if isawaitable(value) else value


def run(steps: Steps[T]) -> T:
    """Does the steps in this thread."""
    resume: Any = partial(next, steps)
    while True:
        try:
            step = resume()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            if isinstance(step, Call):
                answer = getattr(step.target, step.method)(*step.arguments)
            elif isinstance(step, Attribute):
                answer = getattr(*step)
            else:
                raise TypeError(f"{step!r} must be awaited, but this framework is synchronous")
            resume = partial(steps.send, answer)
        except BaseException as error:
            resume = partial(steps.throw, error)


async def run_async(steps: Steps[T]) -> T:
    """Does the steps on the running event loop without blocking it. A cancelled task holds nothing."""
    resume: Any = partial(next, steps)
    while True:
        try:
            step = resume()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            if isinstance(step, Call):
                answer = await getattr(step.target, f"{step.method}_async")(*step.arguments)
            elif isinstance(step, Attribute):
                answer = await in_thread(step.limiter, partial(getattr, *step))
            else:
                answer = await step
            resume = partial(steps.send, answer)
        except GeneratorExit:
            raise
        except BaseException as error:
            resume = partial(steps.throw, error)
