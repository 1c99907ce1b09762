"""The decorator behind Limiter.limit. Imported at the first use, because inspect takes long to import."""

from __future__ import annotations

from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from ._native import Limiter


def limit(
    limiter: Limiter,
    key: str | Callable[..., str | None] | None,
    weight: int,
    timeout: float | timedelta | None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator whose functions wait for room at each call."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if isgeneratorfunction(function) or isasyncgenfunction(function):
            # Its body runs after the call has returned, so the permit would end before the work began.
            raise TypeError(f"{function!r} is a generator function: use acquire inside it")

        if iscoroutinefunction(function):

            @wraps(function)
            async def limited(*args: Any, **kwargs: Any) -> Any:
                of = key(*args, **kwargs) if callable(key) else key
                with await limiter.acquire_async(of, weight, timeout):
                    return await function(*args, **kwargs)
        else:

            @wraps(function)
            def limited(*args: Any, **kwargs: Any) -> Any:
                of = key(*args, **kwargs) if callable(key) else key
                with limiter.acquire(of, weight, timeout):
                    return function(*args, **kwargs)

        return limited

    return decorate
