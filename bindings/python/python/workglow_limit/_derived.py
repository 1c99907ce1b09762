"""Keys and weights derived from the arguments of a call. A text names an argument or is a format of arguments; a
function gets all arguments; a mapping has one of these for each of some parts of a composite. Imported at the first
use, because inspect takes long to import."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any, TypeAlias, TypeGuard, TypeVar

from ._errors import InvalidArgument

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

#: The key and the weight of a start. A mapping has those of parts of a composite.
Key: TypeAlias = str | Mapping[str, str | None] | None
Weight: TypeAlias = int | Mapping[str, int]

#: What they are derived from.
KeyOf: TypeAlias = str | Callable[..., Any] | Mapping[str, str | Callable[..., Any] | None]
WeightOf: TypeAlias = int | str | Callable[..., Weight] | Mapping[str, int | str | Callable[..., int]]

WEIGHT = "a whole number of at least 1"

_T = TypeVar("_T")


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


def each_part(parameter: str, parts: Mapping[Any, Any], derive: Callable[[str, Any], _T]) -> dict[str, _T]:
    """Returns a mapping with what `derive` returns for each part. It gets the part's parameter for errors, and its
    value."""
    for part in parts:
        if not isinstance(part, str):
            raise TypeError(f"{parameter} is {part!r}: expected the name of a part as a str, not {type(part).__name__}")
    return {part: derive(f"{parameter}[{part!r}]", value) for part, value in parts.items()}


def is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)


def key_of(parameter: str, key: object) -> Key:
    """Returns the key that a function has returned, with the texts of its values."""
    return each_part(parameter, key, key_text) if is_mapping(key) else key_text(parameter, key)


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


def weight_of(parameter: str, weight: Any) -> Weight:
    """Returns the weight that a function has returned."""
    return each_part(parameter, weight, units) if is_mapping(weight) else units(parameter, weight)


def units(parameter: str, weight: Any) -> int:
    if type(weight) is not int or weight < 1:
        raise refuse(parameter, weight, WEIGHT)
    return weight


def key_shown(key: Key) -> str:
    """Returns a key as one text, which is the same for equal keys."""
    return (key or "") if key is None or isinstance(key, str) else repr(sorted(key.items()))


class Derivation:
    """Derives the keys and weights of calls of one function. `options` is the format of parameter names in errors."""

    def __init__(self, function: Callable[..., Any], options: str = "{}") -> None:
        self._function, self._options = function, options

    def key(self, option: str, value: Any) -> Callable[[Arguments], Key]:
        """Returns the function that derives the key of a call. None means no key. Other values are converted to text."""
        name = self._options.format(option)
        return self._of_parts(name, value, self._key_text) or self._key(name, value, key_of)

    def weight(self, option: str, value: Any) -> Callable[[Arguments], Weight]:
        """Returns the function that derives the weight of a call."""
        name = self._options.format(option)
        return self._of_parts(name, value, self._units) or self._weight(name, value, weight_of)

    def _of_parts(
        self, name: str, value: Any, derivation: Callable[[str, Any], Callable[[Arguments], _T]]
    ) -> Callable[[Arguments], dict[str, _T]] | None:
        """Returns the function that derives what a mapping has for each part, if the value is one."""
        if not is_mapping(value):
            return None
        parts = each_part(name, value, derivation)
        return lambda arguments: {part: derive(arguments) for part, derive in parts.items()}

    def _key_text(self, name: str, value: Any) -> Callable[[Arguments], str | None]:
        return self._key(name, value, key_text)

    def _units(self, name: str, value: Any) -> Callable[[Arguments], int]:
        return self._weight(name, value, units)

    def _key(self, name: str, value: Any, checked: Callable[[str, Any], _T]) -> Callable[[Arguments], _T]:
        if value is None:
            return lambda _arguments: checked(name, None)
        derive = self._derive(
            name, value, "the name of an argument, a format such as '{tenant}:{model}', or a function"
        )
        return lambda arguments: checked(name, derive(arguments))

    def _weight(self, name: str, value: Any, checked: Callable[[str, Any], _T]) -> Callable[[Arguments], _T]:
        if type(value) is int:
            fixed = checked(name, value)
            return lambda _arguments: fixed
        derive = self._derive(name, value, f"{WEIGHT}, the name of an argument, or a function")
        return lambda arguments: checked(name, derive(arguments))

    def _derive(self, option: str, value: Any, expected: str) -> Callable[[Arguments], Any]:
        if callable(value):
            return lambda arguments: value(*arguments[0], **arguments[1])
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
