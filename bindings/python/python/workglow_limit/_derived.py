"""Keys and weights derived from the arguments of a call. A text names an argument or is a format of arguments; a
function gets all arguments. Imported at the first use, because inspect takes long to import."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any, TypeAlias

from ._errors import InvalidArgument

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def refuse(parameter: str, value: object, expected: str) -> InvalidArgument:
    error = InvalidArgument(f"{parameter} is {value!r}: expected {expected}")
    error.code, error.number = "invalid_argument", -1
    return error


def check_options(owner: str, options: Mapping[str, object], accepted: Iterable[str]) -> None:
    """Raises TypeError, in the name of a public class or function, if it does not accept an option."""
    accepted = tuple(accepted)
    for name in options:
        if name not in accepted:
            raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}: expected {', '.join(accepted)}")


def key_text(parameter: str, key: object) -> str | None:
    """Returns the text of a key that a function has returned. Raises TypeError if the value has none of its own: each
    call would have a budget of its own."""
    if key is None or isinstance(key, str):
        return key
    kind: Any = type(key)
    if inspect.isawaitable(key) or (kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__):
        if inspect.iscoroutine(key):
            key.close()  # It will not run, so Python need not warn that it has not.
        raise TypeError(f"{parameter} is {key!r}: expected a str or None, or a value with a text, not {kind.__name__}")
    return str(key)


class Derivation:
    """Derives the keys and weights of calls of one function. `options` is the format of parameter names in errors."""

    def __init__(self, function: Callable[..., Any], options: str = "{}") -> None:
        self._function, self._options = function, options

    def key(self, option: str, value: Any) -> Callable[[Arguments], str | None]:
        """Returns the function that derives the key of a call. None means no key. Other values are converted to text."""
        if value is None:
            return lambda _arguments: None
        name = self._options.format(option)
        derive = self._derive(
            option, value, "the name of an argument, a format such as '{tenant}:{model}', or a function"
        )

        def key(arguments: Arguments) -> str | None:
            return key_text(name, derive(arguments))

        return key

    def weight(self, option: str, value: Any) -> Callable[[Arguments], int]:
        """Returns the function that derives the weight of a call."""
        expected, name = "a whole number of at least 1", self._options.format(option)
        if type(value) is int:
            if value < 1:
                raise refuse(name, value, expected)
            return lambda _arguments: value
        derive = self._derive(option, value, f"{expected}, the name of an argument, or a function")

        def weight(arguments: Arguments) -> int:
            derived = derive(arguments)
            if type(derived) is not int or derived < 1:
                raise refuse(name, derived, expected)
            return derived

        return weight

    def _derive(self, option: str, value: Any, expected: str) -> Callable[[Arguments], Any]:
        if callable(value):
            return lambda arguments: value(*arguments[0], **arguments[1])
        option = self._options.format(option)
        if not isinstance(value, str) or not value:
            raise refuse(option, value, expected)
        parameters = _Parameters(self._function)
        if "{" not in value:
            parameters.check(option, value, value)
            return lambda arguments: parameters.bind(arguments)[value]
        try:
            fields = [field for _, field, _, _ in Formatter().parse(value) if field is not None]
        except ValueError as error:
            raise refuse(option, value, f"a format such as '{{tenant}}:{{model}}' ({error})") from None
        for field in fields:
            parameters.check(option, value, field.split(".")[0].split("[")[0])
        return lambda arguments: value.format(**parameters.bind(arguments))


class _Parameters:
    """The parameters of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        kinds = {name: parameter.kind for name, parameter in self._signature.parameters.items()}
        self._rest = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD), None)
        self._names = [name for name, kind in kinds.items() if kind is not inspect.Parameter.VAR_KEYWORD]

    def check(self, option: str, value: object, name: str) -> None:
        if name not in self._names and self._rest is None:
            known = ", ".join(self._names) or "it has none"
            raise refuse(option, value, f"an argument of the function: {known}")

    def bind(self, arguments: Arguments) -> dict[str, Any]:
        bound = self._signature.bind(*arguments[0], **arguments[1])
        bound.apply_defaults()
        return {**bound.arguments, **(bound.arguments[self._rest] if self._rest else {})}
