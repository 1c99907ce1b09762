"""The decorator behind Limiter.limit. Imported at the first use, because inspect takes long to import."""

from __future__ import annotations

from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any

from ._derived import Derivation

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from ._derived import KeyOf, WeightOf
    from ._native import Limiter


def limit(
    limiter: Limiter,
    key: KeyOf | None,
    weight: WeightOf | None,
    timeout: float | timedelta | None,
) -> Callable[[Any], Any]:
    """Returns a decorator. Each call of a decorated function waits for its start."""

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
    """Returns whether a call returns an awaitable, so that the work ends with the await and not with the return."""
    if not callable(function):
        raise TypeError(f"{function!r} is not a function: call limit to get a decorator, as in @limiter.limit()")
    # Calling an object calls a method of its class.
    kinds = function, type(function).__call__
    if any(isgeneratorfunction(kind) or isasyncgenfunction(kind) for kind in kinds):
        # Its body runs after the call returns, so the permit would end before the work begins.
        raise TypeError(f"{function!r} is a generator function: use acquire inside it")
    return any(map(iscoroutinefunction, kinds))
