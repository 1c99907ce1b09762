"""Limits on the requests of a server, whatever its framework: which limits a request takes, by which key, and what the
response says of them. The modules named after frameworks read requests, write responses and drive what is decided here.

What may have to wait is a *step* of a generator: `run` does the steps in a thread, `run_async` on an event loop, which
never waits for a store.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import time
from collections.abc import Awaitable, Generator, Iterable, Mapping
from functools import partial
from inspect import isawaitable, iscoroutinefunction
from math import ceil
from types import coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from ._address import Addresses, Reader
from ._derived import refuse
from ._errors import LimitError
from ._native import CompositeLimiter, LeakyBucketLimiter, Limiter, TokenBucketLimiter

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypedDict

    from ._native import Decision, Permit

    class Options(TypedDict, total=False):
        """What an app or a middleware takes beside its limits: see Gate."""

        exempt: Iterable[str] | Callable[[Any], bool | Awaitable[bool]]
        trusted_proxies: Iterable[str]
        forwarded_header: str
        ipv6_prefix: int
        on_limited: Callable[[Any, Limited], Any] | None
        headers: bool


__all__ = ["Entry", "Gate", "Limit", "Limited", "Reader", "answer_of", "run", "run_async"]

T = TypeVar("T")


class Call(NamedTuple):
    """A call that may have to wait, and can be awaited as well."""

    target: Limiter | Permit
    method: str
    arguments: tuple[Any, ...] = ()


#: What may have to wait: a call, any other function, or an awaitable.
Step: TypeAlias = "Call | Callable[[], Any] | Awaitable[Any]"
Steps: TypeAlias = "Generator[Step, Any, T]"

QUOTA_EXCEEDED = "https://iana.org/assignments/http-problem-types#quota-exceeded"

#: An operator may change a policy: its window is looked up again after so many seconds.
WINDOW_IS_KNOWN = 5.0
#: Half of the threads that a loop's executor has.
MOST_WAITING = max(1, min(32, (os.cpu_count() or 1) + 4) // 2)

#: The limiters that have ever had to wait, in each loop.
_waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Limiter, asyncio.Semaphore]] = WeakKeyDictionary()

logger = logging.getLogger("workglow_limit.serving")


class Limit:
    """One limit of requests.

    limiter: any limiter, or limiters by the names of plans, of which `plan` names one for each request.
    key: what shares a budget: None (all requests do), "address" (of the client), "user" (whom the framework has
        authenticated), "header:NAME", or a function of the request that returns a str or None. A request without the
        user or header counts by its address.
    weight: how many units a request takes, from 1 on, or a function of the request.
    plan: a function of the request that returns the name of its plan.
    skip_failed, skip_successful: do not count requests whose response has a status from 400 on (or that raised), or of
        less. Those that their client has left count.
    shadow: decide and count, but never refuse.
    name: what the headers and the body call the policy; the limiter's name if there is none.

    Functions may be coroutine functions where the framework is asynchronous. Raises InvalidArgument or TypeError.
    """

    __slots__ = "_limiters", "_name", "key", "limiter", "names", "plan", "shadow", "skip_failed", "skip_successful", "weight", "windows"

    def __init__(
        self,
        limiter: Limiter | Mapping[str, Limiter],
        *,
        key: str | Callable[[Any], str | None | Awaitable[str | None]] | None = None,
        weight: int | Callable[[Any], int | Awaitable[int]] = 1,
        plan: Callable[[Any], str | Awaitable[str]] | None = None,
        skip_failed: bool = False,
        skip_successful: bool = False,
        shadow: bool = False,
        name: str | None = None,
    ) -> None:
        by_plan: dict[Any, Any] = {"": limiter}
        if isinstance(limiter, Limiter):
            if plan is not None:
                raise refuse("plan", plan, "none beside one limiter: give limiters by the names of plans")
        elif is_mapping(limiter):
            by_plan = dict(limiter)
            if not by_plan or not all(isinstance(k, str) and isinstance(v, Limiter) for k, v in by_plan.items()):
                raise refuse("limiter", limiter, "at least one Limiter by the name of its plan")
            if plan is None:
                raise refuse("plan", plan, "a function of the request that returns the name of its plan")
            check_callable("plan", plan)
        else:
            expected = "a Limiter, or a mapping of Limiters"
            raise TypeError(f"limiter is {limiter!r}: expected {expected}, not {type(limiter).__name__}")
        if isinstance(key, str):
            if key not in ("address", "user") and not is_token(key.removeprefix("header:") if ":" in key else ""):
                raise refuse("key", key, '"address", "user", "header:" with the name of one, or a function of the request')
        elif key is not None:
            check_callable("key", key)
        if not callable(weight):
            check_weight(weight)
        for option, value in ("skip_failed", skip_failed), ("skip_successful", skip_successful), ("shadow", shadow):
            check_bool(option, value)
        if skip_failed and skip_successful:
            raise refuse("skip_successful", True, "not both this and skip_failed: nothing would be counted")
        self.limiter, self.key, self.weight, self.plan = limiter, key, weight, plan
        self.skip_failed, self.skip_successful, self.shadow = skip_failed, skip_successful, shadow
        self._limiters: dict[str, Limiter] = by_plan
        self._name = name
        #: Until when their windows are known, and what the headers say of them.
        self.windows: dict[Limiter, tuple[float, str]] = {}
        self.names = {one: quoted(name if name is not None else one.name) for one in self._limiters.values()}

    def is_asynchronous(self) -> bool:
        """Does one of its functions have to be awaited?"""
        return any(map(iscoroutinefunction, (self.key, self.weight, self.plan)))

    def asked(self, request: Any, addresses: Addresses) -> Steps[Asked]:
        """What a request asks of it."""
        weight, plan, key = self.weight, "", self.key
        if self.plan is not None:
            plan = yield from awaited(self.plan(request))
        limiter = self._limiters.get(plan)
        if limiter is None:
            raise refuse("plan", plan, f"the name of one of its plans: {', '.join(self._limiters)}")
        if key is None or isinstance(key, str):
            key = addresses.key(key, request)
        else:
            key = yield from awaited(key(request))
            if not (key is None or isinstance(key, str)):
                raise TypeError(f"key is {key!r}: expected a str or None, not {type(key).__name__}")
        if callable(weight):
            weight = check_weight((yield from awaited(weight(request))))
        return Asked(self, limiter, None if key is None else shortened(key), weight)


class Asked:
    """A limit, and what one request asks of it; then the answer."""

    __slots__ = "decision", "key", "limit", "limiter", "weight"

    def __init__(self, limit: Limit, limiter: Limiter, key: str | None, weight: int) -> None:
        self.limit, self.limiter, self.key, self.weight = limit, limiter, key, weight
        self.decision: Decision | None = None

    def call(self, method: str) -> Step:
        return Call(self.limiter, method, (self.key, self.weight))

    @property
    def name(self) -> str:
        return self.limit.names[self.limiter]

    def decide(self) -> Steps[Decision]:
        """Takes the units, if there is room."""
        decision: Decision = yield self.call("decide")
        self.decision = decision
        known_until, _ = self.limit.windows.get(self.limiter, (0.0, ""))
        if time.monotonic() >= known_until:
            window = yield from self._window(decision)
            self.limit.windows[self.limiter] = time.monotonic() + WINDOW_IS_KNOWN, window
        return decision

    def _window(self, decision: Decision) -> Steps[str]:
        """What RateLimit-Policy says of the window."""
        try:
            window = yield partial(getattr, self.limiter, "window")
        except LimitError:
            return ""
        # A composite's need not be that of its quota.
        holds = decision.permit is not None and decision.permit.fence is not None
        if isinstance(self.limiter, CompositeLimiter) or (holds and window is not None):
            return ""
        if window is None:
            return ';qu="concurrent-requests"'
        if isinstance(self.limiter, (TokenBucketLimiter, LeakyBucketLimiter)):
            window *= decision.limit or 1  # Otherwise it is the time of one unit.
        # The field counts whole seconds.
        return f";w={ceil(window)}" if window >= 1 else ""

    def policy(self) -> str | None:
        """Its item of RateLimit-Policy; None where there is no limit."""
        if self.decision is None or self.decision.limit is None:
            return None
        _, window = self.limit.windows.get(self.limiter, (0.0, ""))
        return f"{self.name};q={self.decision.limit}{window}"

    def state(self) -> str | None:
        """Its item of RateLimit."""
        decision = self.decision
        if decision is None or decision.limit is None:
            return None
        if not decision.admitted:
            return f"{self.name};r={decision.remaining};t={whole_seconds(decision.retry_after)}"
        # Times are rounded up to a microsecond, and that is no second.
        reset = ceil(decision.reset_after - 2e-6)
        return f"{self.name};r={decision.remaining};t={reset}" if reset > 0 else f"{self.name};r={decision.remaining}"


class Limited:
    """A request that was refused, or in shadow mode would have been: for on_limited."""

    __slots__ = "headers", "key", "limit", "name", "problem", "remaining", "retry_after", "shadow", "status", "violated"

    def __init__(self, worst: Asked, violated: list[Asked], headers: list[tuple[str, str]]) -> None:
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
        self.taken: list[Asked] = []

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
        cancelled: asyncio.CancelledError | None = None
        for asked in taken:
            permit = None if asked.decision is None else asked.decision.permit
            if permit is None:
                continue
            try:
                yield Call(permit, "cancel" if is_undone(asked.limit) else "complete")
            except asyncio.CancelledError as error:
                cancelled = error  # This one ends nevertheless, and the others have to.
            except Exception:
                # The response is on its way. What is held ends with its lease, or with this process.
                logger.exception("a permit of %r could not be ended", asked.limiter.name)
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
            asked: list[Asked] = []
            for limit in limits:
                asked.append((yield from limit.asked(request, self.addresses)))
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

    def _refused(self, request: Any, violated: list[Asked], shown: list[Asked]) -> Steps[Refused]:
        worst = max(violated, key=lambda one: 0.0 if one.decision is None else one.decision.retry_after)
        assert worst.decision is not None
        headers = [("Retry-After", str(whole_seconds(worst.decision.retry_after)))]
        limited = Limited(worst, violated, headers + (fields(shown, violated) if self.tells else []))
        reply = None if self.on_limited is None else (yield from awaited(self.on_limited(request, limited)))
        return Refused(limited, reply)


def take_all(asked: list[Asked], entry: Entry) -> Steps[list[Asked]]:
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


def awaited(value: Any) -> Steps[Any]:
    """A function's answer, once it is there."""
    return (yield value) if isawaitable(value) else value


def run(steps: Steps[T]) -> T:
    """Does the steps in this thread, which waits."""
    resume: Any = partial(next, steps)
    while True:
        try:
            step = resume()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            if isinstance(step, Call):
                answer = getattr(step.target, step.method)(*step.arguments)
            elif callable(step):
                answer = step()
            else:
                raise TypeError(f"{step!r} has to be awaited, and this framework is synchronous")
            resume = partial(steps.send, answer)
        except BaseException as error:
            resume = partial(steps.throw, error)


async def run_async(steps: Steps[T]) -> T:
    """Does the steps on the running event loop, which goes on meanwhile."""
    resume: Any = partial(next, steps)
    while True:
        try:
            step = resume()
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            if isinstance(step, Call):
                answer = await call_async(step)
            elif callable(step):
                answer = await asyncio.get_running_loop().run_in_executor(None, step)
            else:
                answer = await step
            resume = partial(steps.send, answer)
        except GeneratorExit:
            raise
        except BaseException as error:
            resume = partial(steps.throw, error)


async def call_async(step: Call) -> Any:
    """Calls a limiter or a permit. Who is cancelled meanwhile holds nothing.

    What has to wait for a store takes a thread of the loop's executor. One limiter gets at most half of them, so that a store
    that does not answer holds up nobody else: more of its requests wait without a thread.
    """
    target, method, arguments = step
    ask = getattr(target, f"{method}_async")
    limiter = target if isinstance(target, Limiter) else None
    # To ask for the running loop takes longer than to decide.
    slots = _waiting.get(asyncio.get_running_loop(), {}).get(limiter) if limiter and _waiting else None
    if slots is not None and slots.locked():
        async with slots:
            return await ask(*arguments)
    call = ask(*arguments)
    try:
        first = call.send(None)
    except StopIteration as done:  # It did not have to wait, as most.
        return done.value
    if slots is None and limiter:
        of_loop = _waiting.setdefault(asyncio.get_running_loop(), {})
        slots = of_loop.setdefault(limiter, asyncio.Semaphore(MOST_WAITING))
    if slots is None:
        return await rest(call, first)
    async with slots:
        return await rest(call, first)


@coroutine
def rest(call: Any, pending: Any) -> Generator[Any, Any, Any]:
    """Awaits a coroutine that has begun, and waits for something."""
    while True:
        try:
            answer = yield pending
        except BaseException as error:
            proceed = partial(call.throw, error)
        else:
            proceed = partial(call.send, answer)
        try:
            pending = proceed()
        except StopIteration as done:
            return done.value


def fields(policies: list[Asked], states: list[Asked]) -> list[tuple[str, str]]:
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


def whole_seconds(after: float) -> int:
    """After so many a retry is no earlier than that."""
    return max(1, ceil(after))


def quoted(name: Any) -> str:
    """A name as a string of structured fields."""
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}: expected a str, not {type(name).__name__}")
    if not name or not name.isascii() or not name.isprintable():
        raise refuse("name", name, "printable ASCII, for the headers: give Limit a name")
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unquoted(item: str) -> str:
    return item[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def shortened(key: str) -> str:
    """A key that every store takes: what clients send may be of any length."""
    if len(key) <= 256:
        return key
    from hashlib import sha256

    text = key.encode("utf-8", "surrogatepass")
    return key if len(text) <= 1024 else f"sha256:{sha256(text).hexdigest()}"


def is_token(text: str) -> bool:
    """Is it the name of a header?"""
    return text.isascii() and bool(text) and all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in text)


def is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def check_callable(option: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{option} is {value!r}: expected a function, not {type(value).__name__}")


def check_bool(option: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{option} is {value!r}: expected a bool, not {type(value).__name__}")
    return value


def check_weight(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"weight is {value!r}: expected a whole number, not {type(value).__name__}")
    if value < 1:
        raise refuse("weight", value, "a whole number of at least 1")
    return value


def check_paths(value: Any) -> list[str]:
    expected = 'a list of paths such as "/health" and "/static/*", or a function of the request'
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise TypeError(f"exempt is {value!r}: expected {expected}, not {type(value).__name__}")
    paths: list[Any] = list(value)
    for path in paths:
        if not isinstance(path, str) or not path.startswith("/") or "*" in path[:-1]:
            raise refuse("exempt", path, expected)
    return paths
