"""What a task says about its limit, read and checked once, and what one call of the task makes of it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from datetime import timedelta
from string import Formatter
from typing import Any, TypeAlias, cast

from .. import InvalidArgument, Limiter

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

#: So short a wait is no reason to give up a child, or to send a message back, in seconds.
SHORT = 0.05

#: The least grace of a place, in seconds.
GRACE = 0.05

ACTIONS = ("hold", "retry", "wait", "raise")

#: The options of a task, and what they are where neither the task nor the configuration says otherwise.
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


def refuse(parameter: str, value: object, expected: str) -> InvalidArgument:
    error = InvalidArgument(f"{parameter} is {value!r}: expected {expected}")
    error.code, error.number = "invalid_argument", -1
    return error


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
        parameters = _Parameters(task, body)
        self._key = _key(options["limit_key"], parameters)
        self._weight = _weight(options["limit_weight"], parameters)
        #: The weight, if it does not depend on the call.
        self.fixed_weight = options["limit_weight"] if type(options["limit_weight"]) is int else None

    @property
    def limiter(self) -> Limiter:
        return self._limiter()

    @property
    def longest(self) -> float:
        """The longest wait at the consumer, in seconds. What has to wait longer does so in its queue."""
        return SHORT if self.on_limit == "retry" else self.hold

    def key(self, arguments: Arguments) -> str | None:
        """Whose budget a call with these arguments is charged to. Raises what is wrong with it."""
        return self._key(arguments)

    def weight(self, arguments: Arguments) -> int:
        """How many units a call with these arguments takes. Raises what is wrong with it."""
        weight = self._weight(arguments)
        if type(weight) is not int or weight < 1:
            raise refuse(f"limit_weight of task {self.task}", weight, "a whole number of at least 1")
        return weight


class _Parameters:
    """The parameters of a task, for options that name one."""

    def __init__(self, task: str, body: Callable[..., Any]) -> None:
        self.task = task
        self.signature = inspect.signature(body)
        kinds = {name: parameter.kind for name, parameter in self.signature.parameters.items()}
        self.rest = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)
        self.names = [name for name, kind in kinds.items() if kind is not inspect.Parameter.VAR_KEYWORD]

    def check(self, option: str, value: object, name: str) -> None:
        if name not in self.names and self.rest is None:
            raise refuse(
                f"{option} of task {self.task}",
                value,
                f"an argument of the task: {', '.join(self.names) or 'it has none'}",
            )

    def bind(self, arguments: Arguments) -> dict[str, Any]:
        bound = self.signature.bind(*arguments[0], **arguments[1])
        bound.apply_defaults()
        return {**bound.arguments, **(bound.arguments[self.rest] if self.rest else {})}


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


def _key(value: Any, parameters: _Parameters) -> Callable[[Arguments], str | None]:
    option = f"limit_key of task {parameters.task}"
    if value is None:
        return lambda _arguments: None
    if callable(value):

        def called(arguments: Arguments) -> str | None:
            key = value(*arguments[0], **arguments[1])
            if key is not None and not isinstance(key, str):
                raise refuse(f"what {option} returned", key, "a text, or None")
            return key

        return called
    if not isinstance(value, str) or not value:
        raise refuse(option, value, "the name of an argument, a format such as '{tenant}:{model}', or a callable")
    if "{" not in value:
        parameters.check("limit_key", value, value)

        def named(arguments: Arguments) -> str | None:
            key = parameters.bind(arguments)[value]
            return None if key is None else str(key)

        return named
    try:
        fields = [field for _, field, _, _ in Formatter().parse(value) if field is not None]
    except ValueError as error:
        raise refuse(option, value, f"a format such as '{{tenant}}:{{model}}' ({error})") from None
    for field in fields:
        parameters.check("limit_key", value, field.split(".")[0].split("[")[0])
    return lambda arguments: value.format(**parameters.bind(arguments))


def _weight(value: Any, parameters: _Parameters) -> Callable[[Arguments], Any]:
    if callable(value):
        return lambda arguments: value(*arguments[0], **arguments[1])
    if isinstance(value, str):
        parameters.check("limit_weight", value, value)
        return lambda arguments: parameters.bind(arguments)[value]
    if type(value) is not int or value < 1:
        raise refuse(
            f"limit_weight of task {parameters.task}",
            value,
            "a whole number of at least 1, the name of an argument, or a callable",
        )
    return lambda _arguments: value
