"""Unpickling of stores and limiters. Pickles name `rebuild`, so it must keep its name."""

from __future__ import annotations

from typing import Any


def rebuild(cls: type[Any], base: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Makes what `base(*args, **kwargs)` makes, as an instance of a subclass whose constructor may take other
    arguments."""
    return base.__new__(cls, *args, **kwargs)
