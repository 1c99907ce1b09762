"""How stores and limiters are made again in another process. A pickle names `rebuild`, so it stays."""

from __future__ import annotations

from typing import Any


def rebuild(cls: type[Any], base: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What `base(*args, **kwargs)` makes, of a subclass whose own constructor may take something else."""
    return base.__new__(cls, *args, **kwargs)
