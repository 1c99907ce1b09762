"""The limit options of a task, read and checked once, and the key and weight of each call."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from difflib import get_close_matches
from types import FunctionType
from typing import Any, cast

from .. import Limiter
from .._derived import Derivation, refuse
from ._celery import Task

#: The longest wait that a child sleeps instead of sending its task back, in seconds.
SHORT = 0.05

ACTIONS = ("hold", "retry", "wait", "raise")

#: The options of a task, and their defaults if neither the task nor the configuration sets them.
DEFAULTS: dict[str, Any] = {
    "limit": None,
    "limit_name": None,
    "limit_key": None,
    "limit_weight": 1,
    "on_limit": "hold",
    "limit_hold": 10.0,
    "limit_grace": None,
    "limit_timeout": None,
}


#: The settings of an app.
SETTINGS = ("task_limit_store", "worker_limit_held", *(f"task_default_{name}" for name in DEFAULTS))

#: How similar a name must be to one of ours to be a mistake in it: "limt" is similar to "limit".
SIMILAR = 0.88


def refuse_misspelled(what: str, names: Iterable[str], known: Iterable[str], begin: tuple[str, ...]) -> None:
    """Raises an error for a name that is meant to be one of the known names. Celery accepts any name."""
    known = tuple(known)
    for name in names:
        lower = name.lower()
        if name not in known and (lower.startswith(begin) or get_close_matches(lower, known, 1, SIMILAR)):
            raise refuse(what, name, f"one of {', '.join(known)}")


def option_names(task: Any) -> Iterator[str]:
    """Returns the names of the options that a task or its base classes add to Celery's. Methods of a class are not
    options, but functions that a decorator was given are."""
    celerys = dir(Task)
    for base in type(task).__mro__[: type(task).__mro__.index(Task)]:
        is_decorated = "_decorated" in vars(base)
        for name, value in vars(base).items():
            is_option = is_decorated or not isinstance(value, FunctionType | classmethod | property)
            if is_option and not name.startswith("_") and name not in celerys:
                yield name


class TaskLimit:
    """The limit of one task."""

    def __init__(
        self, task: str, options: dict[str, Any], limiter: Callable[[], Limiter], body: Callable[..., Any]
    ) -> None:
        self.task = task
        self._limiter = limiter
        self.on_limit = _action(options["on_limit"])
        self.hold = cast(float, _seconds("limit_hold", options["limit_hold"], optional=False))
        self.grace = _seconds("limit_grace", options["limit_grace"])
        self.timeout = _seconds("limit_timeout", options["limit_timeout"])
        derivation = Derivation(body, f"{{}} of task {task}")
        #: Returns the key of a call with these arguments. Raises an error if it is invalid.
        self.key = derivation.key("limit_key", options["limit_key"])
        #: Returns the weight of a call with these arguments. Raises an error if it is invalid.
        self.weight = derivation.weight("limit_weight", options["limit_weight"])
        #: The key and the weight of a start with which a worker checks the options. It has their parts, and what does not
        #: depend on the call.
        self.sample = _sample(options["limit_key"], lambda _: None), _sample(options["limit_weight"], _fixed)

    @property
    def limiter(self) -> Limiter:
        return self._limiter()

    @property
    def longest(self) -> float:
        """The longest wait in the consumer, in seconds. A task that has to wait longer goes back to its queue."""
        return SHORT if self.on_limit == "retry" else self.hold


def _sample(option: Any, fixed: Callable[[Any], Any]) -> Any:
    return {part: fixed(of) for part, of in option.items()} if isinstance(option, Mapping) else fixed(option)


def _fixed(weight: Any) -> int:
    return weight if type(weight) is int else 1


def _action(value: Any) -> str:
    if value not in ACTIONS:
        raise refuse("on_limit", value, f"one of {', '.join(ACTIONS)}")
    return str(value)


def _seconds(option: str, value: object, optional: bool = True) -> float | None:
    if value is None and optional:
        return None
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise refuse(option, value, "seconds, as a number of at least 0, or a timedelta")
    return float(seconds)
