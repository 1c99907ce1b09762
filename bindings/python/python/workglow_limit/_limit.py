"""One limit of requests, and what a request asks of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from inspect import iscoroutinefunction
from math import ceil
from typing import TYPE_CHECKING, Any

from ._address import Addresses, hashed
from ._derived import refuse
from ._errors import LimitError
from ._native import CompositeLimiter, LeakyBucketLimiter, Limiter, TokenBucketLimiter
from ._steps import Call, Look, Step, Steps, awaited

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._native import Decision

#: An operator may change a policy: its window is looked up again after so many seconds.
WINDOW_IS_KNOWN = 5.0


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

    def charge(self, request: Any, addresses: Addresses) -> Steps[Charge]:
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
        return Charge(self, limiter, None if key is None else shortened(key), weight)


class Charge:
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
            window = yield Look(self.limiter, "window")
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
    is_short = len(key) <= 256 or len(key.encode("utf-8", "surrogatepass")) <= 1024
    return key if is_short else hashed(key)


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
