"""The decorator behind Limiter.limit. Imported at the first use, because inspect takes long to import."""

from __future__ import annotations

from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any

from ._derived import Derivation

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from ._native import Limiter


def limit(
    limiter: Limiter,
    key: str | Callable[..., Any] | None,
    weight: int | str | Callable[..., int] | None,
    timeout: float | timedelta | None,
) -> Callable[[Any], Any]:
    """A decorator whose functions wait for room at each call."""

    def decorate(function: Any) -> Any:
        if type(function) in (classmethod, staticmethod):
            return type(function)(decorate(function.__func__))
        awaits = is_awaited(function)
        derivation = Derivation(function)
        of, units = derivation.key("key", key), derivation.weight("weight", 1 if weight is None else weight)

        if awaits:

            @wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                async with limiter.acquire_async(of(call := (args, kwargs)), units(call), timeout):
                    return await function(*args, **kwargs)

            return awaited

        @wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            with limiter.acquire(of(call := (args, kwargs)), units(call), timeout):
                return function(*args, **kwargs)

        return called

    return decorate


def is_awaited(function: Any) -> bool:
    """Is the work done when what the call returns has been awaited, and not at its return?"""
    if not callable(function):
        raise TypeError(f"{function!r} is no function: limit decorates one, and is called to do so: @limiter.limit()")
    # An object is called by a method of its class.
    kinds = function, type(function).__call__
    if any(isgeneratorfunction(kind) or isasyncgenfunction(kind) for kind in kinds):
        # Its body runs after the call has returned, so the permit would end before the work began.
        raise TypeError(f"{function!r} is a generator function: use acquire inside it")
    return any(map(iscoroutinefunction, kinds))
