"""Tokens of AI providers: the estimate for a request, and the usage that its response reports."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

__all__ = ["FREE", "KINDS", "Reading", "estimate", "readable"]

#: The kinds of tokens that a limit may count.
KINDS = "total", "input", "output"

#: The statuses of responses that used no tokens: the request was refused or invalid.
FREE = {*range(400, 500), 503, 529}

#: The members of request bodies with the most tokens of the answer.
_MOST = "max_completion_tokens", "max_output_tokens", "max_tokens"

#: The paths to the object with the usage, in responses and in events of streams. The last one found counts.
_USAGE_PATHS: tuple[tuple[str, ...], ...] = (), ("response",), ("message",)


def estimate(body: bytes | str | None, content_type: str) -> dict[str, int]:
    """Returns the tokens that a request may use, by their kind: a quarter of the characters in a JSON body, and the most
    tokens of its answer.

    0 for other bodies and for requests without a body.
    """
    asked = _members(_parsed(body)) if body and "json" in content_type.lower() else {}
    most = next((asked[name] for name in _MOST if type(asked.get(name)) is int), 0)
    inputs, outputs = -(-sum(map(len, _texts(asked))) // 4), max(most, 0)
    return {"total": inputs + outputs, "input": inputs, "output": outputs}


def _parsed(text: bytes | str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _members(value: object) -> dict[str, Any]:
    """Returns the members of a JSON object; an empty dict for other values."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _items(value: object) -> list[object]:
    """Returns the items of a JSON array; an empty list for other values."""
    return cast("list[object]", value) if isinstance(value, list) else []


def _texts(value: Any, but: tuple[str, ...] = ("data",)) -> Iterator[str]:
    """Yields all texts in a value, except pictures, files, and members with one of these names."""
    if isinstance(value, str) and not value.startswith("data:"):
        yield value
    for name, inner in _members(value).items():
        if name not in but:
            yield from _texts(inner, but)
    for inner in _items(value):
        yield from _texts(inner, but)


def readable(accepted: str) -> str:
    """Returns an Accept-Encoding without the encodings that a Reading cannot decode."""
    kept = [
        part.strip()
        for part in accepted.split(",")
        if part.partition(";")[0].strip().lower() in ("gzip", "deflate", "identity")
    ]
    return ", ".join(kept) or "identity"


class Reading:
    """Extracts the usage from a response while the program reads it: JSON, or a stream of server-sent events (SSE).

    usage is a function of one JSON value and the response. It returns the units of each kind of tokens, or None if the
    value has none. Without it the usage is read as in the APIs of OpenAI, Anthropic and compatible providers.
    """

    def __init__(
        self,
        usage: Callable[[Any, Any], dict[str, int] | None] | None,
        response: Any,
        content_type: str,
        encoding: str = "",
    ) -> None:
        self._of: Callable[[Any], dict[str, int] | None] = (
            _Usage() if usage is None else lambda value: usage(value, response)
        )
        self._units: dict[str, int] | None = None
        self._is_stream = "text/event-stream" in content_type.lower()
        encoding = encoding.strip().lower()
        self._reads = (self._is_stream or "json" in content_type.lower()) and encoding in (
            "",
            "identity",
            "gzip",
            "x-gzip",
            "deflate",
        )
        self._decoder = None if encoding in ("", "identity") else zlib.decompressobj(47)  # 47: detects gzip or zlib.
        self._rest = bytearray()
        self._event: list[bytes] = []
        self._characters = 0  # Characters of the answer since the last usage.

    def feed(self, data: bytes) -> None:
        """Takes the next part of the body."""
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

    def units(self, is_whole: bool) -> dict[str, int] | None:
        """Returns the units of each kind that were used, or None if the response did not report them. is_whole: whether
        the body was read to its end.

        For a stream that ended early it is the last usage plus a quarter of the characters since.
        """
        if self._reads and self._is_stream:
            self._line(bytes(self._rest))
            self._line(b"")
        elif self._reads and is_whole and (value := _parsed(bytes(self._rest))) is not None:
            self._take(value)
        self._reads = False
        if self._units is None or is_whole:
            return self._units
        since = -(-self._characters // 4)
        return {kind: units if kind == "input" else units + since for kind, units in self._units.items()}

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
        self._characters += sum(map(len, _deltas(value)))
        units = self._of(value)
        if units is None:
            return
        self._units, self._characters = units, 0


def _deltas(value: Any) -> Iterable[str]:
    """Yields the texts that an event adds to the answer. All three APIs have them under the name delta."""
    for name, inner in _members(value).items():
        yield from _texts(inner, ("data", "type")) if name == "delta" else _deltas(inner)
    for inner in _items(value):
        yield from _deltas(inner)


class _Usage:
    """Sums up the usage that the parts of one response report."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def __call__(self, value: Any) -> dict[str, int] | None:
        is_new = False
        for path in _USAGE_PATHS:
            inner = value
            for name in (*path, "usage"):
                inner = _members(inner).get(name)
            counts = {name: count for name, count in _members(inner).items() if type(count) is int and count >= 0}
            self._counts |= counts
            is_new = is_new or bool(counts)
        return self._kinds() if is_new else None

    def _kinds(self) -> dict[str, int] | None:
        of = self._counts.get
        kinds: dict[str, int] = {}
        for inputs, output in (
            (("input_tokens", "cache_creation_input_tokens"), "output_tokens"),
            (("prompt_tokens",), "completion_tokens"),
        ):
            if any(name in self._counts for name in (*inputs, output)):
                kinds = {"input": sum(of(name, 0) for name in inputs), "output": of(output, 0)}
                kinds["total"] = sum(kinds.values())
                break
        if (total := of("total_tokens")) is not None:
            kinds["total"] = total
        return kinds or None
