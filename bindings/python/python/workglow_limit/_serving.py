"""Limits on the requests of a server, whatever its framework: which limits a request takes, by which key, and what the
response says of them. The modules named after frameworks read requests, write responses and drive what is decided here.

What may have to wait is a step of a generator: see `_steps.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from ._address import Addresses, Reader
from ._derived import refuse
from ._errors import LimitError
from ._limit import Charge, Limit, check_bool, check_callable, unquoted, whole_seconds
from ._native import Limiter, call_in_thread
from ._steps import Call, Steps, awaited

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypedDict

    class Options(TypedDict, total=False):
        """What an app or a middleware takes beside its limits: see Gate."""

        exempt: Iterable[str] | Callable[[Any], bool | Awaitable[bool]]
        trusted_proxies: Iterable[str]
        forwarded_header: str
        ipv6_prefix: int
        on_limited: Callable[[Any, Limited], Any] | None
        headers: bool


__all__ = ["Entry", "Gate", "Limit", "Limited", "Reader", "Refused", "answer_of"]

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"

logger = logging.getLogger("workglow_limit.serving")


class Limited:
    """A request that was refused, or in shadow mode would have been: for on_limited."""

    def __init__(self, worst: Charge, violated: list[Charge], headers: list[tuple[str, str]]) -> None:
        decision = worst.decision
        assert decision is not None
        #: The limit that said no; of several, the one with the longest wait. Its key, and the seconds of that wait.
        self.name, self.key, self.retry_after = unquoted(worst.name), worst.key, decision.retry_after
        #: What that limit allows, and what is left of it for lighter requests.
        self.limit, self.remaining = decision.limit, decision.remaining
        #: The names of all limits that said no.
        self.violated = [unquoted(one.name) for one in violated]
        #: Was the request let through?
        self.shadow = worst.limit.shadow
        #: What the response is made of.
        self.status, self.headers = 429, headers
        self.problem: dict[str, Any] = {
            "type": QUOTA_EXCEEDED,
            "title": "Request cannot be satisfied as assigned quota has been exceeded",
            "status": 429,
            "violated-policies": self.violated,
        }

    def __repr__(self) -> str:
        return f"<Limited by {', '.join(self.violated)}: key {self.key!r}, retry after {self.retry_after} s>"


class Refused(Exception):
    """A route's limit has refused a request: for whoever writes the response."""

    def __init__(self, limited: Limited, reply: Any) -> None:
        super().__init__(repr(limited))
        self.limited, self.reply = limited, reply


class Entry:
    """What one request has taken, until its response is over."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken: list[Charge] = []

    def headers(self) -> list[tuple[str, str]]:
        """What the response says of the limits."""
        shown = [asked for asked in self.taken if not asked.limit.shadow]
        return fields(shown, shown)

    def end(self, failed: bool | None) -> Steps[None]:
        """The response is over. None: its client has left, which counts, or clients would not wait for what they are told."""
        if failed is None:
            return self._end(lambda limit: False)
        return self._end(lambda limit: limit.skip_failed if failed else limit.skip_successful)

    def undo(self) -> Steps[None]:
        """There is none: as if nobody had asked."""
        return self._end(lambda limit: True)

    def _end(self, is_undone: Callable[[Limit], bool]) -> Steps[None]:
        taken, self.taken = self.taken, []
        cancelled: BaseException | None = None
        for asked in taken:
            permit = None if asked.decision is None else asked.decision.permit
            if permit is None:
                continue
            try:
                yield Call(permit, "cancel" if is_undone(asked.limit) else "complete")
            except Exception:
                # The response is on its way. What is held ends with its lease, or with this process.
                logger.exception("a permit of %r could not be ended", asked.limiter.name)
            except GeneratorExit:
                raise
            except BaseException as error:
                cancelled = error  # This one ends nevertheless, and the others have to.
        if cancelled is not None:
            raise cancelled


class Gate:
    """The limits of an app, and how its requests are read.

    exempt: paths that are not limited ("/health", "/static/*"), or a function of the request.
    trusted_proxies, forwarded_header, ipv6_prefix: who a client is; see Addresses.
    on_limited: is called with the request and a Limited when a request is refused, or would be in shadow mode. It returns
        None (the usual response), a body (a mapping, str or bytes), or a response of the framework.
    headers: False leaves RateLimit and RateLimit-Policy out.
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
        self._is_exempt: Any = None
        self.exempts = True  # Perhaps.
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
        self.on_limited, self.tells = on_limited, check_bool("headers", headers)

    def open(self) -> None:
        """Opens what the limits need, in other threads, so that the first requests need not wait for that."""
        for limiter in {limiter: None for limit in self.limits for limiter in limit.names}:
            call_in_thread(limiter, partial(_open, limiter))

    def checked(self, limits: Iterable[Limit]) -> tuple[Limit, ...]:
        """Limits that may stand beside each other here."""
        if isinstance(limits, (Limit, str)) or not hasattr(limits, "__iter__"):
            raise TypeError(f"limits is {limits!r}: expected a list of Limit, not {type(limits).__name__}")
        all_of_them: tuple[Any, ...] = tuple(limits)
        seen: set[str] = set()
        for limit in all_of_them:
            if not isinstance(limit, Limit):
                raise TypeError(f"limits has {limit!r}: expected a Limit, not {type(limit).__name__}")
            names = set(limit.names.values())
            if clash := seen & names:
                raise refuse("name", unquoted(min(clash)), "another name for each limit: give Limit one")
            seen |= names
            if not self.asynchronous and limit.is_asynchronous():
                raise refuse("limits", limit, "functions that nobody has to await: this framework is synchronous")
        return all_of_them

    def _check_function(self, option: str, function: Any) -> None:
        if not self.asynchronous and iscoroutinefunction(function):
            raise refuse(option, function, "a function that nobody has to await: this framework is synchronous")

    def is_exempt(self, request: Any) -> Steps[bool]:
        """Is a request not limited at all?"""
        if self._is_exempt is not None:
            return bool((yield from awaited(self._is_exempt(request))))
        path = self.reader.path(request)
        return path in self._paths or path.startswith(self._prefixes)

    def enter(self, request: Any, limits: tuple[Limit, ...], entry: Entry) -> Steps[Refused | None]:
        """Takes what a request needs, beside what it has in its entry: all of it, or nothing, and a refusal."""
        try:
            asked: list[Charge] = []
            for limit in limits:
                asked.append((yield from limit.charge(request, self.addresses)))
            shadows = [one for one in asked if one.limit.shadow]
            limiting = [one for one in asked if not one.limit.shadow] if shadows else asked
            violated = yield from take_all(limiting, entry)
            if violated:
                shown = entry.taken + limiting
                yield from entry.undo()
                return (yield from self._refused(request, violated, [one for one in shown if not one.limit.shadow]))
            for one in shadows:
                decision = yield from one.decide()
                entry.taken.append(one)
                if not decision.admitted:
                    refused = yield from self._refused(request, [one], [])
                    logger.warning("shadow: %r", refused.limited)
            return None
        except GeneratorExit:
            raise  # Nobody does any more steps.
        except BaseException:
            yield from entry.undo()
            raise

    def _refused(self, request: Any, violated: list[Charge], shown: list[Charge]) -> Steps[Refused]:
        worst = max(violated, key=lambda one: 0.0 if one.decision is None else one.decision.retry_after)
        assert worst.decision is not None
        headers = [("Retry-After", str(whole_seconds(worst.decision.retry_after)))]
        limited = Limited(worst, violated, headers + (fields(shown, violated) if self.tells else []))
        reply = None if self.on_limited is None else (yield from awaited(self.on_limited(request, limited)))
        return Refused(limited, reply)


def take_all(asked: list[Charge], entry: Entry) -> Steps[list[Charge]]:
    """Takes each of these into an entry. Those that say no, if any do: then the entry is to be undone.

    Looks at all first, where there are several: so a refusal leaves the others alone, unless somebody was faster at
    the one that refuses.
    """
    if len(asked) > 1:
        for one in asked:
            one.decision = yield one.call("peek")
        # Who is about to say no is asked first: it has to know, for its counts and its backoff.
        asked = sorted(asked, key=lambda one: one.decision is not None and one.decision.admitted)
    for one in asked:
        decision = yield from one.decide()
        if not decision.admitted:
            return [one for one in asked if one.decision is not None and not one.decision.admitted]
        entry.taken.append(one)
    return []


def _open(limiter: Limiter) -> None:
    with suppress(LimitError):  # The first request is told.
        limiter.peek()


def fields(policies: list[Charge], states: list[Charge]) -> list[tuple[str, str]]:
    """The fields of the draft."""
    lists = (
        ("RateLimit-Policy", [item for one in policies if (item := one.policy())]),
        ("RateLimit", [item for one in states if (item := one.state())]),
    )
    return [(name, ", ".join(items)) for name, items in lists if items]


def answer_of(refused: Refused) -> tuple[bytes, str] | None:
    """The body of a refusal and its type; None: on_limited has answered with a response of the framework."""
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
