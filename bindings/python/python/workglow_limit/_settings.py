"""The settings of a limiter in front of an HTTP client: their types, and their checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict, TypeVar, cast
from urllib.parse import urljoin, urlsplit, urlunsplit

from ._derived import Key, Weight, each_part, is_mapping, key_text, refuse
from ._native import FirstOfLimiter, Limiter
from ._tokens import KINDS
from .http import in_seconds

if TYPE_CHECKING:
    from typing_extensions import Required

T = TypeVar("T")

#: One limiter, a mapping of hosts to limiters, or a function of the client's request.
Limiters: TypeAlias = Limiter | Mapping[str, Limiter] | Callable[[Any], Limiter | None]

#: The same for each request, a function of the request, or a mapping of parts of the limiter to either.
KeyOf: TypeAlias = str | Callable[[Any], object] | Mapping[str, str | Callable[[Any], object] | None]
WeightOf: TypeAlias = int | Callable[[Any], Weight] | Mapping[str, int | Callable[[Any], int]]


class HeedOptions(TypedDict, total=False):
    """The options of heed."""

    default: float | timedelta
    longest: float | timedelta


class Destination(TypedDict, total=False):
    """Where the requests of one alternative go, and the headers that replace the request's."""

    base_url: Required[str]
    headers: Mapping[str, str | None]  # None removes one.


#: A function of the alternative that was chosen. It returns where the request goes; None: where it would go without it.
Route: TypeAlias = Callable[[Any], "str | Destination | None"]


class Options(TypedDict, total=False):
    """The options of all clients. Functions get the client's request; usage gets a JSON value and the response."""

    key: KeyOf | None
    weight: WeightOf
    priority: int
    share: int | None
    timeout: float | timedelta | None
    heed: bool | HeedOptions
    learn: bool
    tokens: str | Mapping[str, str] | None
    estimate: Callable[[Any], int | Mapping[str, int]] | None
    usage: Callable[[Any, Any], int | Mapping[str, int] | None] | None


class RetryingOptions(Options, total=False):
    """The options of clients that do not retry themselves."""

    retries: int
    route: Route | None


def chooser(limiter: object, tokens: Mapping[str, str]) -> Callable[[Any, str], Limiter | None]:
    """Returns the function that selects the limiter of a request and its URL. Each limiter has the parts that count
    tokens."""

    def checked(parameter: str, value: object) -> Limiter:
        if not isinstance(value, Limiter):
            raise TypeError(f"{parameter} is {value!r}: expected a limiter, not {type(value).__name__}")
        parts = value.parts if tokens else {}
        # (Those of alternatives are not listed. A start with a part that one does not have is an error.)
        for part in () if isinstance(value, FirstOfLimiter) else tokens.values():
            if part not in parts:
                known = ", ".join(parts) or "it has none"
                raise refuse("tokens", part, f'a part of {parameter} "{value.name}": {known}')
        return value

    if isinstance(limiter, Limiter):
        one = checked("limiter", limiter)
        return lambda _request, _url: one
    if isinstance(limiter, Mapping):
        given = cast("Mapping[object, object]", limiter)
        hosts = {_host(host): checked(f"limiter[{host!r}]", of) for host, of in given.items()}
        return lambda _request, url: hosts.get((parts := _host_and_port(url))[1]) or hosts.get(parts[0])
    if callable(limiter):

        def chosen(request: Any, _url: str) -> Limiter | None:
            of = limiter(request)
            return None if of is None else checked("the limiter of the function", of)

        return chosen
    raise TypeError(
        f"limiter is {limiter!r}: expected a limiter, a mapping of hosts to limiters, or a function of the request, "
        f"not {type(limiter).__name__}"
    )


def _host(host: object) -> str:
    if not isinstance(host, str):
        raise TypeError(f"a host of limiter is {host!r}: expected a str, not {type(host).__name__}")
    try:
        parts = urlsplit(f"//{host}")
        is_host = (
            bool(parts.hostname) and parts.netloc == host and "@" not in host and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_host = False
    if not is_host:
        raise refuse("a host of limiter", host, 'a host such as "api.example.com" or "127.0.0.1:8080"')
    return host.lower()


def _host_and_port(url: str) -> tuple[str, str]:
    """Returns a URL's host, without and with the port."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host, f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


#: What one server's client has to prove itself with, and another server must not get: in Node, too.
_CREDENTIALS = (
    "authorization",
    "proxy-authorization",
    "cookie",
    "x-api-key",
    "api-key",
    "x-goog-api-key",
    "x-auth-token",
    "x-amz-security-token",
    "ocp-apim-subscription-key",
    "openai-organization",
    "openai-project",
)


class Routed(NamedTuple):
    """Where a request goes: its URL, the path in front of its own, its host if that is another one, and the headers to
    remove and to set."""

    url: str
    path: str
    host: str | None
    without: tuple[str, ...]
    headers: Mapping[str, str]


def routed(to: object, url: str) -> Routed:
    """Returns where a request with this URL goes, by what `route` returned for its alternative."""
    if to is None:
        return Routed(url, "", None, (), {})
    kind = type(to).__name__
    given: Mapping[object, object] = (
        cast("Mapping[object, object]", to) if isinstance(to, Mapping) else {"base_url": to}
    )
    expected = 'a base URL such as "https://api.example.com", or a mapping with base_url and headers'
    if unknown := [name for name in given if name not in ("base_url", "headers")]:
        raise TypeError(f"what route returned has {unknown[0]!r}: expected {expected}")
    base, headers = given.get("base_url"), given.get("headers", {})
    if not isinstance(base, str) or not isinstance(headers, Mapping):
        raise TypeError(f"what route returned is {to!r}: expected {expected}, not {kind}")
    fields = cast("Mapping[object, object]", headers)
    for name, value in fields.items():
        if not isinstance(name, str) or not (value is None or isinstance(value, str)):
            raise TypeError(f"a header that route returned is {name!r}: {value!r}: expected a name and a text or None")
    to_base, own = urlsplit(base), urlsplit(url)
    if to_base.scheme not in ("http", "https") or not to_base.hostname or "@" in to_base.netloc or to_base.query:
        raise refuse("the base URL that route returned", base, expected)
    path = to_base.path.rstrip("/")
    there = urlunsplit((to_base.scheme, to_base.netloc, path + (own.path or "/"), own.query, ""))
    removed = tuple(cast("str", name) for name, value in fields.items() if value is None)
    without = removed if _origin(there) == _origin(url) else (*_CREDENTIALS, *removed)
    own_headers = cast("Mapping[str, str]", {name: value for name, value in fields.items() if value is not None})
    return Routed(there, path, to_base.netloc, without, own_headers)


def relocated(location: str, to: Routed, url: str) -> str:
    """Returns where the client has to follow a redirection of a request with this URL. Below the base URL that it was sent
    to, it is the URL that is routed there: the client's next request is routed, too."""
    where, own = urlsplit(urljoin(to.url, location)), urlsplit(url)
    if to.host is None or _origin(to.url) != _origin(where.geturl()) or not f"{where.path}/".startswith(f"{to.path}/"):
        return location
    path = where.path[len(to.path) :] or "/"
    return urlunsplit((own.scheme, own.netloc, path, where.query, where.fragment))


def _origin(url: str) -> tuple[str, str]:
    return urlsplit(url).scheme, _host_and_port(url)[1]


def heeding(heed: object) -> tuple[bool, float, float]:
    """Returns whether to heed, and the two durations of `heed` in seconds."""
    if isinstance(heed, bool):
        return heed, 1.0, 3600.0
    if not isinstance(heed, Mapping):
        raise TypeError(
            f"heed is {heed!r}: expected True, False, or a mapping with default and longest, not {type(heed).__name__}"
        )
    given = cast("Mapping[object, object]", heed)
    if unknown := [name for name in given if name not in ("default", "longest")]:
        raise refuse("heed", given, f"a mapping with default and longest, without {unknown[0]!r}")
    default, longest = given.get("default", 1.0), given.get("longest", 3600.0)
    return True, in_seconds("heed's default", default), in_seconds("heed's longest", longest)


def whole(parameter: str, value: object, least: int | None, most: int | None = None) -> int:
    if type(value) is not int:
        raise TypeError(f"{parameter} is {value!r}: expected a whole number, not {type(value).__name__}")
    if (least is not None and value < least) or (most is not None and value > most):
        raise refuse(
            parameter,
            value,
            f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}",
        )
    return value


def key_of(key: Any) -> Callable[[Any], Key]:
    """Returns the function that derives the key of a request."""

    def one(parameter: str, value: Any) -> Callable[[Any], str | None]:
        if callable(value):
            return lambda request: key_text(parameter, value(request))
        if not (value is None or isinstance(value, str)):
            raise TypeError(
                f"{parameter} is {value!r}: expected a str, or a function of the request, not {type(value).__name__}"
            )
        return lambda _request: value

    return _derivation("key", key, one, key_text)


def weight_of(weight: Any) -> Callable[[Any], Weight]:
    """Returns the function that derives the weight of a request."""

    def one(parameter: str, value: Any) -> Callable[[Any], int]:
        if callable(value):
            return lambda request: whole(parameter, value(request), 1)
        fixed = whole(parameter, value, 1)
        return lambda _request: fixed

    return _derivation("weight", weight, one, lambda parameter, value: whole(parameter, value, 1))


def _derivation(
    parameter: str,
    value: Any,
    one: Callable[[str, Any], Callable[[Any], T]],
    checked: Callable[[str, Any], T],
) -> Callable[[Any], T | dict[str, T]]:
    """Returns the function that derives a value from a request, or one for each of some parts."""
    if is_mapping(value):
        parts = each_part(parameter, value, one)
        return lambda request: {part: derive(request) for part, derive in parts.items()}
    if not callable(value):
        return one(parameter, value)

    def derived(request: Any) -> T | dict[str, T]:
        of: Any = value(request)
        return each_part(parameter, of, checked) if is_mapping(of) else checked(parameter, of)

    return derived


def token_parts(tokens: object) -> dict[str, str]:
    """Returns the parts that count tokens, by the kind of tokens."""
    if tokens is None:
        return {}
    if isinstance(tokens, str):
        return {"total": tokens}
    if not isinstance(tokens, Mapping):
        raise TypeError(
            f"tokens is {tokens!r}: expected the name of the part that counts tokens, or a mapping of "
            f"{', '.join(KINDS)} to such names, not {type(tokens).__name__}"
        )
    given = cast("Mapping[object, object]", tokens)
    for kind, part in given.items():
        if kind not in KINDS:
            raise refuse("tokens", given, f"a mapping of {', '.join(KINDS)}, without {kind!r}")
        if not isinstance(part, str):
            raise TypeError(f"tokens[{kind!r}] is {part!r}: expected the name of a part, not {type(part).__name__}")
    return cast("dict[str, str]", dict(given))


def units_of(parameter: str, value: object, kinds: Mapping[str, str]) -> dict[str, int]:
    """Returns the units of each kind of tokens that a function has returned: one number if there is one kind."""
    if not isinstance(value, Mapping):
        if len(kinds) == 1:
            return dict.fromkeys(kinds, whole(parameter, value, 0))
        raise TypeError(
            f"{parameter} is {value!r}: expected a mapping of {', '.join(kinds)}, not {type(value).__name__}"
        )
    given = cast("Mapping[str, object]", value)
    return {kind: whole(f"{parameter}[{kind!r}]", given.get(kind), 0) for kind in kinds}
