"""Limits of requests, and the charge of one request against a limit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from inspect import iscoroutinefunction
from math import ceil
from typing import TYPE_CHECKING, Any

from ._address import Addresses, hashed
from ._derived import WEIGHT, Key, Weight, each_part, is_mapping, key_of, refuse
from ._errors import LimitError
from ._native import CompositeLimiter, FirstOfLimiter, LeakyBucketLimiter, Limiter, TokenBucketLimiter
from ._steps import Attribute, Call, Step, Steps, awaited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._native import Decision

#: The seconds after which a limiter's window is read again, because an operator may change the policy.
WINDOW_IS_KNOWN = 5.0


class Limit:
    """A limit of requests.

    limiter: any limiter, or a mapping of plan names to limiters, from which `plan` selects one for each request.
    key: the requests that share a budget: None (all requests), "address" (of the client), "user" (as authenticated by
        the framework), "header:NAME", or a function of the request that returns a str or None, or a mapping of parts of
        a composite to these. A request without the user or header counts by its address.
    weight: the units that a request takes, at least 1, a mapping of parts of a composite to these, or a function of the
        request.
    plan: a function of the request that returns the name of its plan.
    skip_failed, skip_successful: do not count requests whose response has a status of 400 or more, or of less than 400.
        True skips all of them; a function gets the status and returns whether to skip the request. An exception counts as
        the status that the framework answers for it, 500 where it knows none. If the function raises, the request counts.
        A request whose client disconnects always counts.
    shadow: decide and count, but never refuse.
    name: the name of the policy in headers and bodies; by default the limiter's name.

    In asynchronous frameworks, functions may be coroutine functions. Raises InvalidArgument or TypeError.
    """

    def __init__(
        self,
        limiter: Limiter | Mapping[str, Limiter],
        *,
        key: str | Callable[[Any], object] | None = None,
        weight: Weight | Callable[[Any], Weight | Awaitable[Weight]] = 1,
        plan: Callable[[Any], str | Awaitable[str]] | None = None,
        skip_failed: bool | Callable[[int], bool | Awaitable[bool]] = False,
        skip_successful: bool | Callable[[int], bool | Awaitable[bool]] = False,
        shadow: bool = False,
        name: str | None = None,
    ) -> None:
        by_plan: dict[Any, Any] = {"": limiter}
        if isinstance(limiter, Limiter):
            if plan is not None:
                raise refuse("plan", plan, "none with one limiter: pass a mapping of plan names to limiters")
        elif is_mapping(limiter):
            by_plan = dict(limiter)
            if not by_plan or not all(isinstance(k, str) and isinstance(v, Limiter) for k, v in by_plan.items()):
                raise refuse("limiter", limiter, "a mapping of plan names to at least one Limiter")
            if plan is None:
                raise refuse("plan", plan, "a function of the request that returns the name of its plan")
            check_callable("plan", plan)
        else:
            expected = "a Limiter, or a mapping of Limiters"
            raise TypeError(f"limiter is {limiter!r}: expected {expected}, not {type(limiter).__name__}")
        if isinstance(key, str):
            if key not in ("address", "user") and not is_token(key.removeprefix("header:") if ":" in key else ""):
                raise refuse("key", key, '"address", "user", "header:NAME", or a function of the request')
        elif key is not None:
            check_callable("key", key)
        if not callable(weight):
            check_weight(weight)
        for option, value in ("skip_failed", skip_failed), ("skip_successful", skip_successful):
            if not callable(value):
                check_bool(option, value, "a bool, or a function of the status")
        check_bool("shadow", shadow)
        if skip_failed is True and skip_successful is True:
            raise refuse("skip_successful", True, "False with skip_failed, or nothing would be counted")
        self.limiter, self.key, self.weight, self.plan = limiter, key, weight, plan
        self.skip_failed, self.skip_successful, self.shadow = skip_failed, skip_successful, shadow
        self._limiters: dict[str, Limiter] = by_plan
        self._name = name
        #: By limiter: the time until which its window is known, and the window's text in RateLimit-Policy.
        self.windows: dict[Limiter, tuple[float, str]] = {}
        self.names = {one: quoted(name if name is not None else one.name) for one in self._limiters.values()}

    def is_asynchronous(self) -> bool:
        """Returns whether one of its functions is a coroutine function."""
        functions = self.key, self.weight, self.plan, self.skip_failed, self.skip_successful
        return any(map(iscoroutinefunction, functions))

    def skips(self, status: int) -> Steps[bool]:
        """Returns whether a response with this status does not count."""
        option = "skip_failed" if status >= 400 else "skip_successful"
        skip = getattr(self, option)
        if not callable(skip):
            return bool(skip)
        return check_bool(f"{option}({status})", (yield from awaited(skip(status))))

    def charge(self, request: Any, addresses: Addresses) -> Steps[Charge]:
        """Returns the charge of a request."""
        weight, plan, key = self.weight, "", self.key
        if self.plan is not None:
            plan = yield from awaited(self.plan(request))
        limiter = self._limiters.get(plan)
        if limiter is None:
            raise refuse("plan", plan, f"one of its plans: {', '.join(self._limiters)}")
        charged: Key
        if key is None or isinstance(key, str):
            charged = addresses.key(key, request)
        else:
            charged = key_of("key", (yield from awaited(key(request))))
        if callable(weight):
            weight = check_weight((yield from awaited(weight(request))))
        if isinstance(charged, Mapping):
            charged = {part: None if one is None else shortened(one) for part, one in charged.items()}
        elif charged is not None:
            charged = shortened(charged)
        return Charge(self, limiter, charged, weight)


class Charge:
    """The charge of one request against a limit, and the decision about it."""

    __slots__ = "decision", "key", "limit", "limiter", "weight"

    def __init__(self, limit: Limit, limiter: Limiter, key: Key, weight: Weight) -> None:
        self.limit, self.limiter, self.key, self.weight = limit, limiter, key, weight
        self.decision: Decision | None = None

    def call(self, method: str) -> Step:
        return Call(self.limiter, method, (self.key, self.weight))

    @property
    def name(self) -> str:
        return self.limit.names[self.limiter]

    def decide(self) -> Steps[Decision]:
        """Takes the units, if the limit admits them."""
        decision: Decision = yield self.call("decide")
        self.decision = decision
        known_until, _ = self.limit.windows.get(self.limiter, (0.0, ""))
        if time.monotonic() >= known_until:
            window = yield from self._window(decision)
            self.limit.windows[self.limiter] = time.monotonic() + WINDOW_IS_KNOWN, window
        return decision

    def _window(self, decision: Decision) -> Steps[str]:
        """Returns the window's text in RateLimit-Policy."""
        try:
            window = yield Attribute(self.limiter, "window")
        except LimitError:
            return ""
        # The window of a composite, or of alternatives, need not be that of its quota.
        holds = decision.permit is not None and decision.permit.fence is not None
        if isinstance(self.limiter, (CompositeLimiter, FirstOfLimiter)) or (holds and window is not None):
            return ""
        if window is None:
            return ';qu="concurrent-requests"'
        if isinstance(self.limiter, (TokenBucketLimiter, LeakyBucketLimiter)):
            window *= decision.limit or 1  # The window of a bucket is the time of one unit.
        # The field has whole seconds.
        return f";w={ceil(window)}" if window >= 1 else ""

    def policy(self) -> str | None:
        """Returns its item of RateLimit-Policy, or None if there is no limit."""
        if self.decision is None or self.decision.limit is None:
            return None
        _, window = self.limit.windows.get(self.limiter, (0.0, ""))
        return f"{self.name};q={self.decision.limit}{window}"

    def state(self) -> str | None:
        """Returns its item of RateLimit."""
        decision = self.decision
        if decision is None or decision.limit is None:
            return None
        if not decision.admitted:
            return f"{self.name};r={decision.remaining};t={whole_seconds(decision.retry_after)}"
        # Times are rounded up to a microsecond, which must not become a second.
        reset = ceil(decision.reset_after - 2e-6)
        return f"{self.name};r={decision.remaining};t={reset}" if reset > 0 else f"{self.name};r={decision.remaining}"


def whole_seconds(after: float) -> int:
    """Rounds up to whole seconds, so that a retry is not early."""
    return max(1, ceil(after))


def quoted(name: Any) -> str:
    """Returns a name as a string of structured fields."""
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}: expected a str, not {type(name).__name__}")
    if not name or not name.isascii() or not name.isprintable():
        raise refuse("name", name, "printable ASCII, which headers need: pass name to Limit")
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unquoted(item: str) -> str:
    return item[1:-1].replace('\\"', '"').replace("\\\\", "\\")


def shortened(key: str) -> str:
    """Returns a key that every store accepts. Clients may send keys of any length."""
    is_short = len(key) <= 256 or len(key.encode("utf-8", "surrogatepass")) <= 1024
    return key if is_short else hashed(key)


def is_token(text: str) -> bool:
    """Returns whether a text is a valid header name."""
    return text.isascii() and bool(text) and all(c.isalnum() or c in "!#$%&'*+-.^_`|~" for c in text)


def check_callable(option: str, value: Any) -> None:
    if not callable(value):
        raise TypeError(f"{option} is {value!r}: expected a function, not {type(value).__name__}")


def check_bool(option: str, value: Any, expected: str = "a bool") -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{option} is {value!r}: expected {expected}, not {type(value).__name__}")
    return value


def check_weight(value: Any) -> Weight:
    if is_mapping(value):
        return each_part("weight", value, check_units)
    return check_units("weight", value)


def check_units(parameter: str, value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{parameter} is {value!r}: expected a whole number, not {type(value).__name__}")
    if value < 1:
        raise refuse(parameter, value, WEIGHT)
    return value
