"""Limits on the requests of a server, for all frameworks: the limits and keys of a request, and the headers of its
response. The modules named after frameworks read requests, write responses and drive this code.

Operations that may wait are steps of generators: see `_steps.py`.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from ._address import Addresses, Reader
from ._derived import refuse
from ._errors import LimitError, StoreFull
from ._limit import Charge, Limit, check_bool, check_callable, unquoted, whole_seconds
from ._native import Limiter, call_in_thread
from ._steps import Call, Steps, awaited

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypedDict

    class Options(TypedDict, total=False):
        """The options of an app or middleware in addition to its limits: see Gate."""

        exempt: Iterable[str] | Callable[[Any], bool | Awaitable[bool]]
        trusted_proxies: Iterable[str]
        forwarded_header: str
        ipv6_prefix: int
        on_limited: Callable[[Any, Limited], Any] | None
        headers: bool


__all__ = ["BROKEN", "Entry", "Gate", "Limit", "Limited", "Reader", "Refused", "Unavailable", "answer_of"]

#: The options of every middleware.
OPTIONS = "exempt", "trusted_proxies", "forwarded_header", "ipv6_prefix", "on_limited", "headers"

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"

#: The status of a response that broke, and of an exception that no framework turns into another one.
BROKEN = 500

#: How long a gate does not warn again of a full limit, in seconds.
PAUSE = 60

logger = logging.getLogger("workglow_limit.serving")


class Limited:
    """A request that was refused, or that would have been without shadow mode. on_limited gets it."""

    def __init__(self, worst: Charge, violated: list[Charge], headers: list[tuple[str, str]]) -> None:
        decision = worst.decision
        assert decision is not None
        #: The name of the limit that denied, its key and its wait in seconds. Of several limits, the one with the
        #: longest wait.
        self.name, self.key, self.retry_after = unquoted(worst.name), worst.key, decision.retry_after
        #: The units that this limit allows, and the units that remain for lighter requests.
        self.limit, self.remaining = decision.limit, decision.remaining
        #: The names of all limits that denied.
        self.violated = [unquoted(one.name) for one in violated]
        #: Whether the request was let through.
        self.shadow = worst.limit.shadow
        #: The parts of the response.
        self.status, self.headers = 429, headers
        self.problem: dict[str, Any] = {
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": self.violated,
        }

    def __repr__(self) -> str:
        return f"<Limited by {', '.join(self.violated)}: key {self.key!r}, retry after {self.retry_after} s>"


class Unavailable:
    """A request whose limit has no room for its key: the store, or the limit's share of it, is full."""

    status, retry_after = 503, 1.0

    def __init__(self) -> None:
        self.headers = [("Retry-After", str(whole_seconds(self.retry_after)))]
        self.problem: dict[str, Any] = {"type": "about:blank", "title": "Service Unavailable", "status": self.status}

    def __repr__(self) -> str:
        return "<Unavailable: its limit is full>"


class Refused(Exception):
    """Raised when a route's limit refuses a request, for the code that writes the response."""

    def __init__(self, limited: Limited | Unavailable, reply: Any) -> None:
        super().__init__(repr(limited))
        self.limited, self.reply = limited, reply


class Entry:
    """The charges of one request, until its response has ended."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken: list[Charge] = []

    def headers(self) -> list[tuple[str, str]]:
        """Returns the RateLimit headers of the response."""
        shown = [charge for charge in self.taken if not charge.limit.shadow]
        return fields(shown, shown)

    def end(self, status: int | None) -> Steps[None]:
        """Ends the charges after a response with this status. None means that the client has disconnected. Such a request
        counts, or clients could avoid their limit by not waiting for responses."""
        return self._end("complete", status)

    def undo(self) -> Steps[None]:
        """Cancels all charges of a request that gets no response from the app."""
        return self._end("cancel", None)

    def _end(self, method: str, status: int | None) -> Steps[None]:
        taken, self.taken = self.taken, []
        cancelled: BaseException | None = None
        for charge in taken:
            permit = None if charge.decision is None else charge.decision.permit
            if permit is None:
                continue
            end = method
            try:
                if status is not None and (yield from charge.limit.skips(status)):
                    end = "cancel"
            except Exception:
                # The response is already on its way.
                logger.exception("whether a request counts could not be asked, so it counts at %r", charge.limiter.name)
            except GeneratorExit:
                raise
            except BaseException as error:
                cancelled = error  # The permits must end nevertheless.
            try:
                yield Call(permit, end)
            except Exception:
                # The permit ends with its lease or with this process.
                logger.exception("a permit of %r could not be ended", charge.limiter.name)
            except GeneratorExit:
                raise
            except BaseException as error:
                cancelled = error  # This permit ends nevertheless. End the others, too.
        if cancelled is not None:
            raise cancelled


class FullLimits:
    """The warnings of one gate that a limit is full: one a minute at most, since there may be thousands of such requests a
    second."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._silent_until, self._unsaid = -math.inf, 0

    def warn(self, what: str, error: StoreFull) -> None:
        """Says what happened to a request, and how many such requests nothing was said about."""
        with self._lock:
            now = monotonic()
            if now < self._silent_until:
                self._unsaid += 1
                return
            unsaid, self._silent_until, self._unsaid = self._unsaid, now + PAUSE, 0
        if unsaid:
            logger.warning("%s: %s (as for %d other requests since the last warning)", what, error, unsaid)
        else:
            logger.warning("%s: %s", what, error)


class Gate:
    """The limits of an app, and the reader of its requests.

    exempt: paths that are not limited ("/health", "/static/*"), or a function of the request.
    trusted_proxies, forwarded_header, ipv6_prefix: the identification of clients; see Addresses.
    on_limited: called with the request and a Limited when a request is refused, or would be without shadow mode. It
        returns None (the default response), a body (a mapping, str or bytes), or a response of the framework.
    headers: False omits RateLimit and RateLimit-Policy.
    """

    def __init__(
        self,
        reader: Reader,
        limits: Iterable[Limit],
        *,
        asynchronous: bool,
        exempt: Iterable[str] | Callable[[Any], bool | Awaitable[bool]] = (),
        trusted_proxies: Iterable[str] = (),
        forwarded_header: str = "X-Forwarded-For",
        ipv6_prefix: int = 64,
        on_limited: Callable[[Any, Limited], Any] | None = None,
        headers: bool = True,
    ) -> None:
        self.asynchronous, self.reader = asynchronous, reader
        self.addresses = Addresses(reader, trusted_proxies, forwarded_header, ipv6_prefix)
        self.limits = self.checked(limits)
        self._full = FullLimits()
        self._is_exempt: Any = None
        self.exempts = True  # Whether any request may be exempt.
        self._paths: frozenset[str] = frozenset()
        self._prefixes: tuple[str, ...] = ()
        if callable(exempt):
            self._is_exempt = exempt
            self._check_function("exempt", exempt)
        else:
            paths = check_paths(exempt)
            self._paths = frozenset(path for path in paths if not path.endswith("*"))
            self._prefixes = tuple(path[:-1] for path in paths if path.endswith("*"))
            self.exempts = bool(paths)
        if on_limited is not None:
            check_callable("on_limited", on_limited)
            self._check_function("on_limited", on_limited)
        self.on_limited, self.adds_headers = on_limited, check_bool("headers", headers)

    def open(self) -> Steps[None]:
        """Opens the limits' stores, all at once, so that no request and no synchronous call of the program finds one that is
        being opened. It ends when all are open, or one could not be opened within its timeout."""
        limiters = {limiter: None for limit in self.limits for limiter in limit.names}
        for limiter in limiters:
            call_in_thread(limiter, partial(_open, limiter))
        with suppress(LimitError):
            for limiter in limiters:
                yield Call(limiter, "peek")

    def checked(self, limits: Iterable[Limit]) -> tuple[Limit, ...]:
        """Checks limits that are used together, and returns them."""
        if isinstance(limits, (Limit, str)) or not hasattr(limits, "__iter__"):
            raise TypeError(f"limits is {limits!r}: expected a list of Limit, not {type(limits).__name__}")
        all_of_them: tuple[Any, ...] = tuple(limits)
        seen: set[str] = set()
        for limit in all_of_them:
            if not isinstance(limit, Limit):
                raise TypeError(f"limits has {limit!r}: expected a Limit, not {type(limit).__name__}")
            names = set(limit.names.values())
            if clash := seen & names:
                raise refuse("name", unquoted(min(clash)), "a different name for each limit: pass name to Limit")
            seen |= names
            if not self.asynchronous and limit.is_asynchronous():
                raise refuse("limits", limit, "no coroutine functions, because this framework is synchronous")
        return all_of_them

    def _check_function(self, option: str, function: Any) -> None:
        if not self.asynchronous and iscoroutinefunction(function):
            raise refuse(
                option, function, "a function, not a coroutine function, because this framework is synchronous"
            )

    def is_exempt(self, request: Any) -> Steps[bool]:
        """Returns whether a request is exempt from all limits."""
        if self._is_exempt is not None:
            return bool((yield from awaited(self._is_exempt(request))))
        path = self.reader.path(request)
        return path in self._paths or path.startswith(self._prefixes)

    def enter(self, request: Any, limits: tuple[Limit, ...], entry: Entry) -> Steps[Refused | None]:
        """Takes the charges of a request in addition to those in its entry: all of them, or none and returns a refusal."""
        try:
            charges: list[Charge] = []
            for limit in limits:
                charges.append((yield from limit.charge(request, self.addresses)))
            shadows = [one for one in charges if one.limit.shadow]
            limiting = [one for one in charges if not one.limit.shadow] if shadows else charges
            violated = yield from take_all(limiting, entry)
            if violated:
                shown = entry.taken + limiting
                yield from entry.undo()
                return (yield from self._refused(request, violated, [one for one in shown if not one.limit.shadow]))
            for one in shadows:
                try:
                    decision = yield from one.decide()
                except StoreFull as error:
                    self._full.warn("shadow", error)
                    continue
                entry.taken.append(one)
                if not decision.admitted:
                    refused = yield from self._refused(request, [one], [])
                    logger.warning("shadow: %r", refused.limited)
            return None
        except StoreFull as error:
            # A client that is new, among too many. It is not the app's fault, and a retry may succeed.
            yield from entry.undo()
            self._full.warn(f"a request got the status {Unavailable.status}", error)
            return Refused(Unavailable(), None)
        except GeneratorExit:
            raise  # No more steps will run.
        except BaseException:
            yield from entry.undo()
            raise

    def _refused(self, request: Any, violated: list[Charge], shown: list[Charge]) -> Steps[Refused]:
        worst = max(violated, key=lambda one: 0.0 if one.decision is None else one.decision.retry_after)
        assert worst.decision is not None
        headers = [("Retry-After", str(whole_seconds(worst.decision.retry_after)))]
        limited = Limited(worst, violated, headers + (fields(shown, violated) if self.adds_headers else []))
        reply = None if self.on_limited is None else (yield from awaited(self.on_limited(request, limited)))
        return Refused(limited, reply)


def take_all(charges: list[Charge], entry: Entry) -> Steps[list[Charge]]:
    """Adds each charge to an entry. Returns the charges that were denied; if there are any, the caller must undo the
    entry.

    With several charges it peeks at all first. So a refusal does not touch the other limits, unless another request
    takes the last units in between.
    """
    if len(charges) > 1:
        for one in charges:
            one.decision = yield one.call("peek")
        # Decide first at limits that will deny, for their counts and their backoff.
        charges = sorted(charges, key=lambda one: one.decision is not None and one.decision.admitted)
    for one in charges:
        decision = yield from one.decide()
        if not decision.admitted:
            return [one for one in charges if one.decision is not None and not one.decision.admitted]
        entry.taken.append(one)
    return []


def _open(limiter: Limiter) -> None:
    with suppress(LimitError):  # The first request gets the error.
        limiter.peek()


def fields(policies: list[Charge], states: list[Charge]) -> list[tuple[str, str]]:
    """Returns the RateLimit-Policy and RateLimit fields of the IETF draft."""
    lists = (
        ("RateLimit-Policy", [item for one in policies if (item := one.policy())]),
        ("RateLimit", [item for one in states if (item := one.state())]),
    )
    return [(name, ", ".join(items)) for name, items in lists if items]


def answer_of(refused: Refused) -> tuple[bytes, str] | None:
    """Returns the body of a refusal and its type, or None if on_limited returned a response of the framework."""
    reply: Any = refused.limited.problem if refused.reply is None else refused.reply
    if isinstance(reply, Mapping):
        return json.dumps(reply).encode(), "application/problem+json"
    if isinstance(reply, str):
        return reply.encode(), "text/plain; charset=utf-8"
    return (reply, "application/octet-stream") if isinstance(reply, bytes) else None


def check_paths(value: Any) -> list[str]:
    expected = 'a list of paths such as "/health" and "/static/*", or a function of the request'
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise TypeError(f"exempt is {value!r}: expected {expected}, not {type(value).__name__}")
    paths: list[Any] = list(value)
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/") or "*" in path[:-1]:
            raise refuse("exempt", path, expected)
    return paths
