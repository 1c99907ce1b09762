"""Tokens of AI providers: what a request may use of them, and what its response says was used."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

__all__ = ["FREE", "Reading", "estimate", "readable"]

#: A response with one of these used no tokens: it was refused, or the request was wrong.
FREE = {*range(400, 500), 503, 529}

#: Where the bodies of requests say how many tokens the answer may have.
_MOST = "max_completion_tokens", "max_output_tokens", "max_tokens"

#: Where responses and the events of streams say what was used; of several the later one counts.
_SAID: tuple[tuple[str, ...], ...] = (), ("response",), ("message",)


def estimate(body: bytes | str | None, content_type: str) -> int:
    """How many tokens a request may use: a quarter of the characters in a JSON body, and as many as its answer may have.

    0 for other bodies, and for none.
    """
    asked = _members(_parsed(body)) if body and "json" in content_type.lower() else {}
    most = next((asked[name] for name in _MOST if type(asked.get(name)) is int), 0)
    return -(-sum(map(len, _texts(asked))) // 4) + max(most, 0)


def _parsed(text: bytes | str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _members(value: object) -> dict[str, Any]:
    """What an object of JSON has; nothing if it is none."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _items(value: object) -> list[object]:
    """What a list of JSON has; nothing if it is none."""
    return cast("list[object]", value) if isinstance(value, list) else []


def _texts(value: Any, but: tuple[str, ...] = ("data",)) -> Iterator[str]:
    """All texts in a value, but for pictures, files, and what has one of these names."""
    if isinstance(value, str):
        if not value.startswith("data:"):
            yield value
    for name, inner in _members(value).items():
        if name not in but:
            yield from _texts(inner, but)
    for inner in _items(value):
        yield from _texts(inner, but)


def readable(accepted: str) -> str:
    """An Accept-Encoding without what a Reading cannot decode."""
    kept = [part.strip() for part in accepted.split(",") if part.partition(";")[0].strip().lower() in ("gzip", "deflate", "identity")]
    return ", ".join(kept) or "identity"


class Reading:
    """Reads what a response used while somebody else reads the response: JSON, or a stream of server-sent events (SSE).

    usage is a function of one JSON value and the response, which gives the units, or None if it does not say; without it
    this looks where OpenAI, Anthropic and those who imitate them say it.
    """

    def __init__(
        self,
        usage: Callable[[Any, Any], int | None] | None,
        response: Any,
        content_type: str,
        encoding: str = "",
    ) -> None:
        self._of: Callable[[Any], int | None] = _Usage() if usage is None else lambda value: usage(value, response)
        self._units: int | None = None
        self._is_stream = "text/event-stream" in content_type.lower()
        encoding = encoding.strip().lower()
        self._reads = (self._is_stream or "json" in content_type.lower()) and encoding in ("", "identity", "gzip", "x-gzip", "deflate")
        self._decoder = None if encoding in ("", "identity") else zlib.decompressobj(47)  # 47: it sees which of them it is.
        self._rest = bytearray()
        self._event: list[bytes] = []
        self._heard = 0  # Characters of the answer since the usage was said.

    def feed(self, data: bytes) -> None:
        """What has been read of the body."""
        if not self._reads:
            return
        if self._decoder is not None:
            try:
                data = self._decoder.decompress(data)
            except zlib.error:
                self._reads = False
                return
        self._rest += data
        if self._is_stream and b"\n" in data:
            *lines, rest = self._rest.split(b"\n")
            self._rest = bytearray(rest)
            for line in lines:
                self._line(bytes(line))

    def units(self, is_whole: bool) -> int | None:
        """What was used; None if nobody said. is_whole: has the body been read to its end?

        After a stream that ended early it is what was said until then, and a quarter of the characters that came since.
        """
        if self._reads and self._is_stream:
            self._line(bytes(self._rest))
            self._line(b"")
        elif self._reads and is_whole and (value := _parsed(bytes(self._rest))) is not None:
            self._take(value)
        self._reads = False
        if self._units is None or is_whole:
            return self._units
        return self._units + -(-self._heard // 4)

    def _line(self, line: bytes) -> None:
        line = line.removesuffix(b"\r")
        if line.startswith(b"data:"):
            self._event.append(line[5:])
        elif not line and self._event:
            value = _parsed(b"\n".join(self._event))
            self._event.clear()
            if value is not None:
                self._take(value)

    def _take(self, value: Any) -> None:
        self._heard += sum(map(len, _deltas(value)))
        units = self._of(value)
        if units is None:
            return
        if type(units) is not int or units < 0:
            raise TypeError(f"usage gave {units!r}: expected a whole number of at least 0, or None")
        self._units, self._heard = units, 0


def _deltas(value: Any) -> Iterable[str]:
    """The texts that an event adds to the answer: all three APIs have them under this name."""
    for name, inner in _members(value).items():
        yield from _texts(inner, ("data", "type")) if name == "delta" else _deltas(inner)
    for inner in _items(value):
        yield from _deltas(inner)


class _Usage:
    """Adds up what the parts of one response say was used."""

    def __init__(self) -> None:
        self._said: dict[str, int] = {}

    def __call__(self, value: Any) -> int | None:
        is_news = False
        for path in _SAID:
            inner = value
            for name in (*path, "usage"):
                inner = _members(inner).get(name)
            said = {name: count for name, count in _members(inner).items() if type(count) is int and count >= 0}
            self._said |= said
            is_news = is_news or bool(said)
        return self._total() if is_news else None

    def _total(self) -> int | None:
        of = self._said.get
        if "total_tokens" in self._said:
            return of("total_tokens")
        for parts in ("input_tokens", "output_tokens", "cache_creation_input_tokens"), ("prompt_tokens", "completion_tokens"):
            if any(part in self._said for part in parts):
                return sum(of(part, 0) for part in parts)
        return None
