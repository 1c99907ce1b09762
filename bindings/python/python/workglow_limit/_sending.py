"""A limiter in front of an HTTP client: the code that the modules named after clients share.

All code is written once, as coroutines. For a blocking client nothing suspends them, and `run` runs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar, cast
from urllib.parse import urlsplit

from ._derived import key_text, refuse
from ._errors import LimitError, WeightExceedsCapacity
from ._loops import sleep
from ._native import Decision, Limiter, Permit
from ._tokens import FREE, Reading, estimate
from .http import check_key, in_seconds, requested_wait, status_and_headers

R = TypeVar("R")  # A client's request.
S = TypeVar("S")  # A client's response.
T = TypeVar("T")

#: One limiter, a mapping of hosts to limiters, or a function of the client's request.
Limiters: TypeAlias = Limiter | Mapping[str, Limiter] | Callable[[Any], Limiter | None]


class HeedOptions(TypedDict, total=False):
    """The options of heed."""

    default: float | timedelta
    longest: float | timedelta


class Options(TypedDict, total=False):
    """The options of all clients. Functions get the client's request; usage gets a JSON value and the response."""

    key: str | Callable[[Any], object] | None
    weight: int | Callable[[Any], int]
    priority: int
    timeout: float | timedelta | None
    heed: bool | HeedOptions
    tokens: Limiters | None
    estimate: Callable[[Any], int] | None
    usage: Callable[[Any, Any], int | None] | None


class RetryingOptions(Options, total=False):
    """The options of clients that do not retry themselves."""

    retries: int


#: The statuses with which a server reports that the same request may succeed later.
_RETRYABLE = 429, 503, 529


class Waiting(Protocol):
    """The way to wait: in a thread, or in an event loop."""

    async def acquire(
        self, limiter: Limiter, key: str | None, weight: int, timeout: float | None, priority: int
    ) -> Permit: ...
    async def try_acquire(self, limiter: Limiter, key: str | None, weight: int) -> Permit | None: ...
    async def peek(self, limiter: Limiter, key: str | None) -> Decision: ...
    async def pause(self, limiter: Limiter, seconds: float, key: str | None) -> None: ...
    async def arrived(self, permit: Permit) -> None: ...
    async def complete(self, permit: Permit) -> None: ...
    async def cancel(self, permit: Permit) -> None: ...
    async def settle(self, permit: Permit, units: int) -> None: ...
    async def sleep(self, seconds: float) -> None: ...


class Exchange(Protocol[R, S]):
    """One request of a client."""

    request: R  # As the user's functions get it.
    url: str
    decodes: bool  # Whether the client decodes a body before `watch` sees it.

    def body(self) -> bytes | str | None:
        """Returns the body of the request. None if there is none, or if it cannot be read here."""
        ...

    def content_type(self) -> str:
        """Returns the content type of the request."""
        ...

    def can_repeat(self) -> bool:
        """Returns whether the same request can be sent again."""
        ...

    def ask_readable(self) -> None:
        """Asks for a response body that this library can decode."""
        ...

    async def send(self) -> S:
        """Sends the request and waits for the head of the response."""
        ...

    def was_never_sent(self, error: BaseException) -> bool:
        """Returns whether it is certain that no part of the request reached the server."""
        ...

    def content(self, response: S) -> bytes | None:
        """Returns the decoded body of a response that has been read already, as by a mock. None if it is still to be
        read."""
        ...

    def watch(self, response: S, body: Body) -> None:
        """Feeds the body of the response to `body` as it is read, and reports its end."""
        ...

    async def close(self, response: S) -> None:
        """Closes a response that will not be read."""
        ...


class Demand(NamedTuple):
    """The demand of a request on one limiter."""

    limiter: Limiter
    key: str | None
    weight: int
    is_tokens: bool


class Sender(Generic[R]):
    """The settings of one client, and its sending."""

    def __init__(
        self,
        limiter: Limiters | None,
        waiting: Waiting,
        *,
        key: str | Callable[[R], object] | None = None,
        weight: int | Callable[[R], int] = 1,
        priority: int = 0,
        timeout: float | timedelta | None = None,
        heed: bool | HeedOptions = True,
        retries: int = 0,
        tokens: Limiters | None = None,
        estimate: Callable[[R], int] | None = None,
        usage: Callable[[Any, Any], int | None] | None = None,
    ) -> None:
        if limiter is None and tokens is None:
            raise TypeError(
                "limiter is None: expected a limiter, a mapping of hosts to limiters, or a function (None only with tokens)"
            )
        self._limiter = None if limiter is None else _chooser("limiter", limiter)
        self._tokens = None if tokens is None else _chooser("tokens", tokens)
        if not callable(key):
            check_key("is", key, "a str, or a function of the request")
        self._key = key
        self._weight = weight if callable(weight) else _whole("weight", weight, 1)
        self._priority = _whole("priority", priority, None)
        self._timeout = None if timeout is None else in_seconds("timeout", timeout)
        self._heeds, self._default, self._longest = _heeding(heed)
        self.retries = _whole("retries", retries, 0, 100)
        for name, function in ("estimate", estimate), ("usage", usage):
            if function is not None and not callable(function):
                raise TypeError(f"{name} is {function!r}: expected a function, not {type(function).__name__}")
            if function is not None and tokens is None:
                raise TypeError(f"{name} needs tokens, the limiter of the tokens")
        self._estimate, self._usage = estimate, usage
        self.waiting = waiting
        self._scarce = 1  # The index of the limiter that denied last. The next request waits there first.

    async def send(self, exchange: Exchange[R, S]) -> S:
        """Sends a request when all of its limiters admit it. After a refusal it sends it again, up to `retries` times."""
        for attempt in range(self.retries + 1):
            response, wait, is_paused = await self.attempt(exchange)
            if (
                attempt == self.retries
                or status_and_headers(response)[0] not in _RETRYABLE
                or not exchange.can_repeat()
            ):
                return response
            delay = self._default * 2**attempt if wait is None else wait
            if delay > (self._longest if self._timeout is None else self._timeout):
                return response
            await exchange.close(response)
            if not (wait and is_paused):  # Otherwise the pause of its limiters makes it wait.
                await self.waiting.sleep(delay)
        raise AssertionError("unreachable")

    async def attempt(self, exchange: Exchange[R, S]) -> tuple[S, float | None, bool]:
        """Sends a request once. Returns the response, the wait that the server asks for, if it asks for one, and whether
        limiters were paused for it."""
        demands = self._demands(exchange)
        permits = await self._start(demands)
        body = Body(self.waiting)
        for demand, permit in zip(demands, permits):
            body.hold(permit, demand.is_tokens)
        try:
            if body.is_metered:
                exchange.ask_readable()
            response = await exchange.send()
        except BaseException as error:
            await body.fail(exchange.was_never_sent(error))
            raise
        try:
            await body.arrived()
            wait = await self._heed(demands, permits, response)
            status, headers = status_and_headers(response)
            content = exchange.content(response)
            if status in FREE:
                await body.settle(0)
            elif body.is_metered:
                encoding = headers.get("content-encoding", "") if content is None and not exchange.decodes else ""
                body.reading = Reading(self._usage, response, headers.get("content-type", ""), encoding)
            if content is None:
                exchange.watch(response, body)
            else:
                body.feed(content)
                await body.finish(True)
        except BaseException:
            await body.finish(False)
            await exchange.close(response)
            raise
        return response, wait, self._heeds and bool(demands)

    async def _heed(self, demands: list[Demand], permits: list[Permit], response: Any) -> float | None:
        wait = requested_wait(response, self._default, self._longest)
        if wait and self._heeds:
            for demand, permit in zip(demands, permits):
                # Only the alternative that was used has refused.
                chosen = permit.chosen
                await self.waiting.pause(chosen if isinstance(chosen, Limiter) else demand.limiter, wait, demand.key)
        return wait

    # ---- the demands of a request ----

    def _demands(self, exchange: Exchange[R, Any]) -> list[Demand]:
        request = exchange.request
        limiter = self._limiter and self._limiter(request, exchange.url)
        tokens = self._tokens and self._tokens(request, exchange.url)
        if not (limiter or tokens):
            return []
        key = key_text("key", self._key(request) if callable(self._key) else self._key)
        demands: list[Demand] = []
        if limiter:
            weight = self._weight(request) if callable(self._weight) else self._weight
            demands.append(Demand(limiter, key, _whole("weight", weight, 1), False))
        if tokens:
            if self._estimate is None:
                units = estimate(exchange.body(), exchange.content_type())
            else:
                units = _whole("estimate", self._estimate(request), 0)
            if units > 0:
                demands.append(Demand(tokens, key, units, True))
        return demands

    # ---- starting ----

    async def _start(self, demands: list[Demand]) -> list[Permit]:
        """Returns all permits. It never waits for one permit while it holds the other, whose start would be outdated by
        then."""
        if len(demands) < 2:
            return [await self._acquire(demand, self._timeout) for demand in demands]
        end = None if self._timeout is None else time.monotonic() + self._timeout
        while True:
            first = self._scarce
            permit = await self._acquire(demands[first], None if end is None else max(end - time.monotonic(), 0.0))
            other = None
            try:
                other = await self._fitting(demands[1 - first], self.waiting.try_acquire)
            finally:
                if other is None:
                    await self.waiting.cancel(permit)
            if other is not None:
                return [other, permit] if first else [permit, other]
            self._scarce = 1 - first

    async def _acquire(self, demand: Demand, timeout: float | None) -> Permit:
        async def acquire(limiter: Limiter, key: str | None, weight: int) -> Permit:
            return await self.waiting.acquire(limiter, key, weight, timeout, self._priority)

        return await self._fitting(demand, acquire)

    async def _fitting(self, demand: Demand, start: Callable[[Limiter, str | None, int], Coroutine[Any, Any, T]]) -> T:
        """Starts. An estimate that exceeds the capacity of the limit takes all of it."""
        try:
            return await start(demand.limiter, demand.key, demand.weight)
        except WeightExceedsCapacity:
            most = (await self.waiting.peek(demand.limiter, demand.key)).limit if demand.is_tokens else None
            if most is None or most >= demand.weight:
                raise
            return await start(demand.limiter, demand.key, most)


class Body:
    """The body of one response, and the permits that end with it."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._start: Permit | None = None
        self._tokens: Permit | None = None
        self.reading: Reading | None = None

    def hold(self, permit: Permit, is_tokens: bool) -> None:
        """Adds a permit that ends with this body."""
        if is_tokens:
            self._tokens = permit
        else:
            self._start = permit

    @property
    def is_metered(self) -> bool:
        """Whether tokens are reserved."""
        return self._tokens is not None

    def feed(self, data: bytes) -> None:
        """Takes data that the program has read."""
        if self.reading is not None:
            self.reading.feed(data)

    async def arrived(self) -> None:
        """Says that the server has the request. A failure must not cost the response, and the end says so again."""
        for permit in self._start, self._tokens:
            if permit is not None:
                try:
                    await self._waiting.arrived(permit)
                except LimitError:
                    pass

    async def release(self) -> None:
        """Completes the start of the request: the server has finished, so other requests may start."""
        start, self._start = self._start, None
        if start is not None:
            await self._waiting.complete(start)

    async def finish(self, is_whole: bool) -> None:
        """Ends all permits, because the body was read to its end or will not be read further. The second call does
        nothing."""
        try:
            await self.release()
        finally:
            reading, self.reading = self.reading, None
            await self.settle(None if reading is None else reading.units(is_whole))

    async def settle(self, units: int | None) -> None:
        """Settles the tokens that were used. None means as many as were reserved."""
        tokens, self._tokens = self._tokens, None
        if tokens is not None:
            await (self._waiting.complete(tokens) if units is None else self._waiting.settle(tokens, units))

    async def fail(self, was_never_sent: bool) -> None:
        """Ends all permits of a request without a response."""
        permits = [permit for permit in (self._start, self._tokens) if permit is not None]
        self._start = self._tokens = None
        for permit in permits:
            await (self._waiting.cancel(permit) if was_never_sent else self._waiting.complete(permit))


def acquire_here(limiter: Limiter, key: str | None, weight: int, timeout: float | None, priority: int) -> Permit:
    """Acquires, outside a coroutine: there acquire refuses to block a loop, as a program has chosen with its client."""
    return limiter.acquire(key, weight, timeout, priority=priority)


class _InThread:
    """Blocks the thread, without the GIL."""

    async def acquire(
        self, limiter: Limiter, key: str | None, weight: int, timeout: float | None, priority: int
    ) -> Permit:
        return acquire_here(limiter, key, weight, timeout, priority)

    async def try_acquire(self, limiter: Limiter, key: str | None, weight: int) -> Permit | None:
        return limiter.try_acquire(key, weight)

    async def peek(self, limiter: Limiter, key: str | None) -> Decision:
        return limiter.peek(key, 0)

    async def pause(self, limiter: Limiter, seconds: float, key: str | None) -> None:
        limiter.pause(seconds, key)

    async def arrived(self, permit: Permit) -> None:
        permit.arrived()

    async def complete(self, permit: Permit) -> None:
        permit.complete()

    async def cancel(self, permit: Permit) -> None:
        permit.cancel()

    async def settle(self, permit: Permit, units: int) -> None:
        permit.settle(units)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _InLoop:
    """Waits in an event loop."""

    async def acquire(
        self, limiter: Limiter, key: str | None, weight: int, timeout: float | None, priority: int
    ) -> Permit:
        return await limiter.acquire_async(key, weight, timeout, priority=priority)

    async def try_acquire(self, limiter: Limiter, key: str | None, weight: int) -> Permit | None:
        return await limiter.try_acquire_async(key, weight)

    async def peek(self, limiter: Limiter, key: str | None) -> Decision:
        return await limiter.peek_async(key, 0)

    async def pause(self, limiter: Limiter, seconds: float, key: str | None) -> None:
        await limiter.pause_async(seconds, key)

    async def arrived(self, permit: Permit) -> None:
        await permit.arrived_async()

    async def complete(self, permit: Permit) -> None:
        await permit.complete_async()

    async def cancel(self, permit: Permit) -> None:
        await permit.cancel_async()

    async def settle(self, permit: Permit, units: int) -> None:
        await permit.settle_async(units)

    async def sleep(self, seconds: float) -> None:
        await sleep(seconds)


IN_THREAD: Waiting = _InThread()
IN_LOOP: Waiting = _InLoop()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("something suspended a coroutine that blocks")


# ---- checks of the settings ----


def _chooser(parameter: str, limiter: Any) -> Callable[[Any, str], Limiter | None]:
    """Returns the function that selects the limiter of a request and its URL."""
    if isinstance(limiter, Limiter):
        return lambda _request, _url: limiter
    if isinstance(limiter, Mapping):
        given = cast("Mapping[object, object]", limiter)
        hosts = {_host(parameter, host): _limiter(f"{parameter}[{host!r}]", of) for host, of in given.items()}
        return lambda _request, url: hosts.get((parts := _host_and_port(url))[1]) or hosts.get(parts[0])
    if callable(limiter):

        def chosen(request: Any, _url: str) -> Limiter | None:
            of = limiter(request)
            return None if of is None else _limiter(f"the value that {parameter} returned", of)

        return chosen
    raise TypeError(
        f"{parameter} is {limiter!r}: expected a limiter, a mapping of hosts to limiters, or a function of the request, "
        f"not {type(limiter).__name__}"
    )


def _limiter(parameter: str, limiter: object) -> Limiter:
    if not isinstance(limiter, Limiter):
        raise TypeError(f"{parameter} is {limiter!r}: expected a limiter, not {type(limiter).__name__}")
    return limiter


def _host(parameter: str, host: object) -> str:
    if not isinstance(host, str):
        raise TypeError(f"a host of {parameter} is {host!r}: expected a str, not {type(host).__name__}")
    try:
        parts = urlsplit(f"//{host}")
        is_host = (
            bool(parts.hostname) and parts.netloc == host and "@" not in host and (parts.port is None or parts.port > 0)
        )
    except ValueError:
        is_host = False
    if not is_host:
        raise refuse(f"a host of {parameter}", host, 'a host such as "api.example.com" or "127.0.0.1:8080"')
    return host.lower()


def _host_and_port(url: str) -> tuple[str, str]:
    """Returns a URL's host, without and with the port."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host, f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _heeding(heed: object) -> tuple[bool, float, float]:
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


def _whole(parameter: str, value: object, least: int | None, most: int | None = None) -> int:
    if type(value) is not int:
        raise TypeError(f"{parameter} is {value!r}: expected a whole number, not {type(value).__name__}")
    if (least is not None and value < least) or (most is not None and value > most):
        raise refuse(
            parameter,
            value,
            f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}",
        )
    return value
