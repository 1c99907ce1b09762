"""Unpickling of stores and limiters. Pickles name these functions, so they must keep their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._native import Limiter


def rebuild(cls: type[Any], base: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Makes what `base(*args, **kwargs)` makes, as an instance of a subclass whose constructor may take other
    arguments."""
    return base.__new__(cls, *args, **kwargs)


def part(limiter: Limiter, name: str) -> Limiter:
    """Returns a part of a limiter."""
    return limiter.parts[name]
