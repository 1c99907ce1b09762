"""Limits that a server reports: heed reads them from a response and pauses the limiter for all processes.

    from workglow_limit.http import heed

    heed(limiter, response)  # of requests, httpx, aiohttp, urllib, …: returns the seconds of the pause, 0.0 without one
    await heed_async(limiter, response)  # in an event loop

The limiters in front of clients heed each response: workglow_limit.httpx, .requests, .aiohttp, .urllib3.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from email.utils import parsedate
from typing import TYPE_CHECKING, Any, NamedTuple

from ._errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    from ._native import Limiter

    class _HasStatusCode(Protocol):
        @property
        def status_code(self) -> int: ...
        @property
        def headers(self) -> Any: ...  # A mapping, of a class of the client.

    class _HasStatus(Protocol):
        @property
        def status(self) -> int | None: ...
        @property
        def headers(self) -> Any: ...


__all__ = ["heed"]

#: The statuses of servers that limit requests. GitHub uses 403, Anthropic 529.
_REFUSALS = 403, 429, 503, 529

_LONGEST = 366 * 86_400.0

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
#: A number of units. More digits say nothing, and fit nowhere.
_WHOLE = re.compile("[0-9]{1,15}")
_MOST = 1e15
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|us|µs|d|h|m|s)")
_SPANS = re.compile(f"(?:{_SPAN.pattern})+")
_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_ISO = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")
_HTTP_DATE = re.compile(r"[A-Z][a-z]+, [0-9A-Za-z: -]+ GMT|[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4}")

# One member of a structured field's list: an item, and its parameters.
_STRING = r'"(?:[^"\\]|\\.)*"'
_MEMBER = re.compile(
    rf'\s*({_STRING}|[^\s",;]+)((?:\s*;\s*[a-z*][a-z0-9_.*-]*(?:=(?:{_STRING}|[^\s",;]+))?)*)\s*(?:,|$)'
)
_PARAMETER = re.compile(rf";\s*([a-z*][a-z0-9_.*-]*)=({_STRING}|[^\s\",;]+)")


def heed(
    limiter: Limiter,
    response: _HasStatusCode | _HasStatus,
    key: str | None = None,
    *,
    default: float | timedelta = 1.0,
    longest: float | timedelta = 3600.0,
) -> float:
    """Pauses a limit, or one of its keys, in all processes that share it, if a response asks for it. Returns the
    seconds of the pause, 0.0 without one.

    The pause is the Retry-After of a refusal (429, 503; with some servers 403 and 529), or its retry-after-ms. Otherwise,
    with any status, it lasts until the latest reset among the limits with nothing remaining, as given by RateLimit (with
    RateLimit-Policy), by RateLimit-Remaining and RateLimit-Reset, or by a vendor's pair of headers. A 429 need not say
    what remains. A 429 with none of these pauses for default seconds. A pause is at most longest seconds. Unreadable
    headers are ignored.
    """
    pause = _pause_for(response, key, default, longest)
    if pause > 0:
        limiter.pause(pause, key)
    return pause


async def heed_async(
    limiter: Limiter,
    response: _HasStatusCode | _HasStatus,
    key: str | None = None,
    *,
    default: float | timedelta = 1.0,
    longest: float | timedelta = 3600.0,
) -> float:
    """As heed, for event loops: the loop runs whatever the store does."""
    pause = _pause_for(response, key, default, longest)
    if pause > 0:
        await limiter.pause_async(pause, key)
    return pause


def _pause_for(response: object, key: str | None, default: float | timedelta, longest: float | timedelta) -> float:
    check_key("is", key, "a str")
    return requested_wait(response, in_seconds("default", default), in_seconds("longest", longest)) or 0.0


def check_key(verb: str, key: object, expected: str) -> None:
    """Raises TypeError if it is not a key."""
    if not (key is None or isinstance(key, str)):
        raise TypeError(f"key {verb} {key!r}: expected {expected}, not {type(key).__name__}")


def requested_wait(response: object, default: float, longest: float) -> float | None:
    """Returns the seconds that heed pauses for a response; None if nothing asks for a pause."""
    status, headers = status_and_headers(response)
    wait = _wait(status, headers)
    if wait is None and status == 429:
        wait = default
    return None if wait is None else min(wait, longest)


def in_seconds(parameter: str, value: object) -> float:
    """Returns a duration in seconds. Raises if it is not one."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(
            f"{parameter} is {value!r}: expected seconds as a number, or a timedelta, not {type(value).__name__}"
        )
    if not 0 <= seconds <= _LONGEST:
        error = InvalidArgument(f"{parameter} is {value!r}: expected 0 s to 366 days")
        error.code, error.number = "invalid_argument", -1
        raise error
    return seconds


def status_and_headers(response: Any) -> tuple[int, dict[str, str]]:
    """Returns a response's status, and its headers by lower-case name, with repeated headers joined."""
    status = getattr(response, "status_code", getattr(response, "status", None))
    items = getattr(getattr(response, "headers", None), "items", None)
    if not isinstance(status, int) or items is None:
        raise TypeError(f"response is {response!r}: expected a response with a status_code or status, and headers")
    headers: dict[str, str] = {}
    for name, value in items():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else str(value)
    return status, headers


def _wait(status: int, headers: dict[str, str]) -> float | None:
    """Returns the seconds of the wait that the headers ask for; None if they ask for none, or if it is over."""
    date = _instant(headers.get("date", ""))
    now = time.time() if date is None else date
    if status in _REFUSALS:
        in_ms = headers.get("retry-after-ms", "").strip()
        after = float(in_ms) / 1e3 if _NUMBER.fullmatch(in_ms) else _until(headers.get("retry-after"), now)
        if after is not None:
            return after
    waits = [wait for reset in _resets(status, headers) if (wait := _until(reset, now)) is not None]
    return max(waits, default=None)


def _resets(status: int, headers: dict[str, str]) -> Iterable[str | None]:
    """Yields the resets of limits with nothing remaining, as the texts of the headers."""
    policies = dict(_members(headers.get("ratelimit-policy", "")))
    members = _members(headers.get("ratelimit", ""))
    for name, parameters in members:
        if _is_none(_remaining(parameters)):
            yield _reset(parameters, policies.get(name, {}))
    # An older draft had a dictionary: limit=100, remaining=0, reset=30.
    pairs = {item.partition("=")[0]: item.partition("=")[2] for item, _ in members}
    if _is_none(pairs.get("remaining")):
        yield pairs.get("reset")
    # The oldest draft and all vendors use pairs: X-RateLimit-Remaining and -Reset, x-ratelimit-remaining-tokens, …
    for name, value in headers.items():
        if not re.search("rate-?limit", name):
            continue
        if "remaining" in name and _is_none(value):
            yield headers.get(name.replace("remaining", "reset"))
        elif status == 429 and "reset" in name and name.replace("reset", "remaining") not in headers:
            yield value


def _remaining(parameters: dict[str, str]) -> str | None:
    """Returns what remains by a member of RateLimit: drafts call it r or a."""
    return parameters.get("r", parameters.get("a"))


def _reset(parameters: dict[str, str], policy: dict[str, str]) -> str | None:
    """Returns when that ends: drafts call it t or w. Without either it is the policy's whole window: the reset may come
    earlier, but not later."""
    return parameters.get("t", parameters.get("w", policy.get("w")))


class Budget(NamedTuple):
    """What a server says about one of its budgets."""

    name: str  # requests, tokens, input-tokens, …
    remaining: int
    reset: float | None  # The seconds until the whole budget is free again.


#: The budget of a pair of headers, such as x-ratelimit-remaining-tokens or anthropic-ratelimit-tokens-remaining.
_REMAINING = re.compile("(?:[a-z]+-)*?rate-?limit(?:-remaining)?(?:-(.+?))??(?:-remaining)?")


def budgets(response: object) -> list[Budget]:
    """Returns the budgets that a response reports. Those without a name count requests."""
    _, headers = status_and_headers(response)
    date = _instant(headers.get("date", ""))
    now = time.time() if date is None else date
    found: list[Budget] = []

    def add(name: str, remaining: str | None, reset: str | None) -> None:
        text = (remaining or "").strip()
        if _NUMBER.fullmatch(text.removeprefix("-")):
            left = int(min(max(float(text), 0.0), _MOST))
            found.append(Budget(name or "requests", left, _until(reset, now)))

    policies = dict(_members(headers.get("ratelimit-policy", "")))
    for item, parameters in _members(headers.get("ratelimit", "")):
        add(item.strip('"'), _remaining(parameters), _reset(parameters, policies.get(item, {})))
    for header, value in headers.items():
        if "remaining" in header and (named := _REMAINING.fullmatch(header)):
            # Anthropic rounds tokens to thousands.
            is_rounded = header.startswith("anthropic-") and "tokens" in header and value.strip().endswith("000")
            value = str(int(value) + 500) if is_rounded and _WHOLE.fullmatch(value.strip()) else value
            add(named[1] or "", value, headers.get(header.replace("remaining", "reset")))
    return found


class Quota(NamedTuple):
    """What a server says about the size of one of its budgets."""

    name: str  # requests, tokens, input-tokens, …
    units: int
    window: float  # In seconds.
    is_estimated: bool  # Whether the window follows from the reset, and is not stated.


#: The limits of vendors whose published rules say that a budget refills evenly: its reset shows the window.
_EVEN = re.compile("x-ratelimit-limit-(requests|tokens)|anthropic-ratelimit-((?:input-|output-)?tokens|requests)-limit")


#: The names of budgets. Others of the IETF's headers count requests.
_NAMES = "requests", "tokens", "input-tokens", "output-tokens"

#: Makes several of what is not certain.
_NONE = Quota("", 0, 0.0, False)


def _of(header: str, what: str) -> str:
    """Returns the name of the header that belongs to one with a limit."""
    return re.sub("(?<=-)limit(?=-|$)", what, header)


def quotas(response: object) -> list[Quota]:
    """Returns the sizes of budgets that a response reports, each with its window. Leaves out what is not certain: budgets of
    several windows or of a part of the callers, and those whose window is not stated and not shown by the reset."""
    _, headers = status_and_headers(response)
    date = _instant(headers.get("date", ""))
    stated: dict[str, set[Quota]] = {}
    fields = headers.get("ratelimit-policy", ""), headers.get("ratelimit-limit", "")
    for item, parameters in (member for field in fields for member in _members(field)):
        units, window = parameters.get("q", item), parameters.get("w", "")
        if not (_NUMBER.fullmatch(units) and _NUMBER.fullmatch(window) and float(units) < _MOST):
            continue
        unit = parameters.get("qu", '"requests"').strip('"')
        name = item.strip('"') if item.strip('"') in _NAMES else "requests"
        one = Quota(name, int(float(units)), float(window), False)
        stated.setdefault(name, set()).update([one] if unit == "requests" and "pk" not in parameters else [one, _NONE])
    found = [quota for of in stated.values() if len(of) == 1 for quota in of]
    for header, value in headers.items():
        if not (named := _EVEN.fullmatch(header)) or not _WHOLE.fullmatch(value.strip()):
            continue
        name = named[1] or named[2]
        remaining, reset = (headers.get(_of(header, what), "") for what in ("remaining", "reset"))
        seconds = _until(reset, time.time() if date is None else date)
        if not _WHOLE.fullmatch(remaining.strip()) or seconds is None:
            continue
        limit = int(value)
        used = limit - int(remaining)
        # Each number may be off by its last digit, and so the window by a tenth twice.
        rounded = 500 if header.startswith("anthropic-") and "tokens" in name else 1
        digit = 0.01 if _SPANS.fullmatch(reset.strip()) and re.search(r"\.|ms", reset) else 1.0
        if used >= 10 * rounded and seconds >= 10 * digit:
            found.append(Quota(name, limit, seconds * limit / used, True))
    return found


def _members(field: str) -> list[tuple[str, dict[str, str]]]:
    """Returns the list of a structured field, each item with its parameters. Returns an empty list if it is malformed."""
    members: list[tuple[str, dict[str, str]]] = []
    at = 0
    while at < len(field):
        found = _MEMBER.match(field, at)
        if found is None:
            return []
        members.append((found[1], dict(_PARAMETER.findall(found[2]))))
        at = found.end()
    return members


def _is_none(remaining: str | None) -> bool:
    """Returns whether nothing remains. Some servers count below 0."""
    text = (remaining or "").strip()
    return bool(_NUMBER.fullmatch(text.removeprefix("-"))) and float(text) <= 0


def _until(text: str | None, now: float) -> float | None:
    """Returns the seconds until a reset: a number of seconds, a duration such as 6m0s, or an instant. None for the past
    and for other texts."""
    text = (text or "").strip()
    if _SPANS.fullmatch(text):
        return sum(float(number) * _UNITS[unit] for number, unit in _SPAN.findall(text))
    at = float(text) if _NUMBER.fullmatch(text) else None
    if at is not None and at < 1e9:
        return at
    # Numbers from 1e9 (30 years) are seconds since the epoch; from 1e12, milliseconds.
    at = _instant(text) if at is None else at / 1e3 if at >= 1e12 else at
    return at - now if at is not None and at > now else None


def _instant(text: str) -> float | None:
    """Returns an HTTP date or an RFC 3339 date in seconds since the epoch."""
    try:
        if found := _ISO.fullmatch(text):
            whole = datetime.fromisoformat(found[1] + ("+00:00" if found[3] == "Z" else found[3]))
            return whole.timestamp() + float(found[2] or 0)
        parts = parsedate(text) if _HTTP_DATE.fullmatch(text) else None
        return None if parts is None else datetime(*parts[:6], tzinfo=timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None
