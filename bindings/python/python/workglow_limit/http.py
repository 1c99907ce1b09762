"""What a server says of its limit: heed reads it from a response, and pauses ours for everyone.

    from workglow_limit.http import heed

    heed(limiter, response)  # of requests, httpx, aiohttp, urllib, …: seconds of pause, 0.0 if there is none

What stands in front of a client does so with each response: workglow_limit.httpx, .requests, .aiohttp, .urllib3.
"""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from email.utils import parsedate
from typing import TYPE_CHECKING, Any

from ._errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Protocol

    from ._native import Limiter

    class _HasStatusCode(Protocol):
        @property
        def status_code(self) -> int: ...
        @property
        def headers(self) -> Any: ...  # A mapping, which each client has of its own.

    class _HasStatus(Protocol):
        @property
        def status(self) -> int | None: ...
        @property
        def headers(self) -> Any: ...


__all__ = ["heed"]

#: With these a server says "not so fast": 403 is GitHub's, 529 Anthropic's.
_REFUSALS = 403, 429, 503, 529

_LONGEST = 366 * 86_400.0

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|us|µs|d|h|m|s)")
_SPANS = re.compile(f"(?:{_SPAN.pattern})+")
_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}
_ISO = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")
_HTTP_DATE = re.compile(r"[A-Z][a-z]+, [0-9A-Za-z: -]+ GMT|[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4}")

# One member of a structured field's list: an item, and its parameters.
_STRING = r'"(?:[^"\\]|\\.)*"'
_MEMBER = re.compile(rf'\s*({_STRING}|[^\s",;]+)((?:\s*;\s*[a-z*][a-z0-9_.*-]*(?:=(?:{_STRING}|[^\s",;]+))?)*)\s*(?:,|$)')
_PARAMETER = re.compile(rf";\s*([a-z*][a-z0-9_.*-]*)=({_STRING}|[^\s\",;]+)")


def heed(
    limiter: Limiter,
    response: _HasStatusCode | _HasStatus,
    key: str | None = None,
    *,
    default: float | timedelta = 1.0,
    longest: float | timedelta = 3600.0,
) -> float:
    """Pauses a limit, or a key of it, for all who share it, if a response says so. Returns for how many seconds; 0.0: not.

    The pause is what Retry-After says in a refusal (429, 503; 403 and 529 of some). Otherwise, whatever the status, it
    lasts until the latest reset of what has nothing remaining: by RateLimit (with RateLimit-Policy), RateLimit-Remaining
    and RateLimit-Reset, or vendors' such pairs. A 429 that says none of this pauses for default seconds. No pause is more
    than longest seconds; what cannot be read is as if it were not there.
    """
    check_key("is", key, "a str")
    pause = wait_said(response, in_seconds("default", default), in_seconds("longest", longest))
    if pause > 0:
        limiter.pause(pause, key)
    return pause


def check_key(verb: str, key: object, expected: str) -> None:
    """Raises if it is no key."""
    if not (key is None or isinstance(key, str)):
        raise TypeError(f"key {verb} {key!r}: expected {expected}, not {type(key).__name__}")


def wait_said(response: object, default: float, longest: float) -> float:
    """How long heed pauses for a response, in seconds."""
    status, headers = status_and_headers(response)
    return min(_wait(status, headers) or (default if status == 429 else 0.0), longest)


def in_seconds(parameter: str, value: object) -> float:
    """A duration in seconds, if it is one."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"{parameter} is {value!r}: expected seconds as a number, or a timedelta, not {type(value).__name__}")
    if not 0 <= seconds <= _LONGEST:
        error = InvalidArgument(f"{parameter} is {value!r}: expected 0 s to 366 days")
        error.code, error.number = "invalid_argument", -1
        raise error
    return seconds


def status_and_headers(response: Any) -> tuple[int, dict[str, str]]:
    """A response's status, and its headers by their names in small letters, repeated ones as one."""
    status = getattr(response, "status_code", getattr(response, "status", None))
    items = getattr(getattr(response, "headers", None), "items", None)
    if not isinstance(status, int) or items is None:
        raise TypeError(f"response is {response!r}: expected one with a status_code or status, and headers")
    headers: dict[str, str] = {}
    for name, value in items():
        name = name.lower()
        headers[name] = f"{headers[name]}, {value}" if name in headers else str(value)
    return status, headers


def _wait(status: int, headers: dict[str, str]) -> float:
    """How long to wait for what the headers say, in seconds. 0.0 if they say nothing, or that it is over."""
    date = _instant(headers.get("date", ""))
    now = time.time() if date is None else date
    after = _until(headers.get("retry-after"), now) if status in _REFUSALS else 0.0
    return after or max((_until(reset, now) for reset in _resets(headers)), default=0.0)


def _resets(headers: dict[str, str]) -> Iterable[str | None]:
    """When what has nothing remaining has something again: texts, as they were sent."""
    policies = dict(_members(headers.get("ratelimit-policy", "")))
    members = _members(headers.get("ratelimit", ""))
    for name, parameters in members:
        if _is_none(parameters.get("r")):
            # It may come earlier than after the whole window, but not later.
            yield parameters.get("t", policies.get(name, {}).get("w"))
    # An older draft had a dictionary: limit=100, remaining=0, reset=30.
    pairs = {item.partition("=")[0]: item.partition("=")[2] for item, _ in members}
    if _is_none(pairs.get("remaining")):
        yield pairs.get("reset")
    # The oldest, and all vendors, in pairs: X-RateLimit-Remaining and -Reset, x-ratelimit-remaining-tokens, …
    for name, value in headers.items():
        if re.search("rate-?limit", name) and "remaining" in name and _is_none(value):
            yield headers.get(name.replace("remaining", "reset"))


def _members(field: str) -> list[tuple[str, dict[str, str]]]:
    """The list of a structured field, each item with its parameters; empty if it is not well-formed."""
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
    """Is nothing left? Some count below 0."""
    text = (remaining or "").strip()
    return bool(_NUMBER.fullmatch(text.removeprefix("-"))) and float(text) <= 0


def _until(text: str | None, now: float) -> float:
    """Seconds until then: a number of them, a duration such as 6m0s, or an instant. 0.0 for the past and for anything else."""
    text = (text or "").strip()
    if _NUMBER.fullmatch(text):
        number = float(text)
        # Nobody waits for 30 years: these are seconds, or ms, of the epoch.
        wait = number / 1e3 - now if number >= 1e12 else number - now if number >= 1e9 else number
    elif _SPANS.fullmatch(text):
        wait = sum(float(number) * _UNITS[unit] for number, unit in _SPAN.findall(text))
    else:
        at = _instant(text)
        wait = 0.0 if at is None else at - now
    return max(wait, 0.0)


def _instant(text: str) -> float | None:
    """An HTTP date, or one of RFC 3339, in seconds of the epoch."""
    try:
        if found := _ISO.fullmatch(text):
            whole = datetime.fromisoformat(found[1] + ("+00:00" if found[3] == "Z" else found[3]))
            return whole.timestamp() + float(found[2] or 0)
        parts = parsedate(text) if _HTTP_DATE.fullmatch(text) else None
        return None if parts is None else datetime(*parts[:6], tzinfo=timezone.utc).timestamp()
    except (ValueError, OverflowError):
        return None
