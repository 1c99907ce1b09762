"""A limiter in front of an HTTP client: the code that the modules named after clients share.

All code is written once, as coroutines. For a blocking client nothing suspends them, and `run` runs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast
from urllib.parse import urlsplit

from ._budgets import Budgets, Start, Waiting
from ._derived import Key, Weight, refuse
from ._errors import LimitError, WeightExceedsCapacity
from ._loops import sleep
from ._native import CompositeLimiter, Decision, FirstOfLimiter, Limiter, Permit
from ._settings import (
    HeedOptions,
    KeyOf,
    Limiters,
    Options,
    RetryingOptions,
    Route,
    Routed,
    WeightOf,
    chooser,
    heeding,
    key_of,
    relocated,
    routed,
    token_parts,
    units_of,
    weight_of,
    whole,
)
from ._tokens import FREE, Reading, estimate
from .http import in_seconds, requested_wait, status_and_headers

__all__ = [
    "IN_LOOP",
    "IN_THREAD",
    "Body",
    "Limiters",
    "Options",
    "RetryingOptions",
    "Routed",
    "Sender",
    "acquire_here",
    "changed",
    "run",
]

R = TypeVar("R")  # A client's request.
S = TypeVar("S")  # A client's response.
T = TypeVar("T")
H = TypeVar("H", bound=MutableMapping[str, Any])  # A client's headers.

#: The statuses with which a server reports that the same request may succeed later.
_RETRYABLE = 429, 503, 529

#: How many limiters of requests without tokens are kept.
_MOST_KEPT = 256


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

    def go(self, to: Routed) -> None:
        """Sends the request, as it came, to another URL with other headers. The client's own request stays as it is: it
        may be sent again, or be redirected."""
        ...

    def relocate(self, response: S, relocated: Callable[[str], str]) -> None:
        """Changes where the response to a request that went elsewhere sends the client, if it does."""
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


class Sender(Generic[R]):
    """The settings of one client, and its sending."""

    def __init__(
        self,
        limiter: Limiters,
        waiting: Waiting,
        *,
        key: KeyOf | None = None,
        weight: WeightOf = 1,
        priority: int = 0,
        share: int | None = None,
        timeout: float | timedelta | None = None,
        heed: bool | HeedOptions = True,
        learn: bool = False,
        retries: int = 0,
        tokens: str | Mapping[str, str] | None = None,
        estimate: Callable[[R], int | Mapping[str, int]] | None = None,
        usage: Callable[[Any, Any], int | Mapping[str, int] | None] | None = None,
        route: Route | None = None,
    ) -> None:
        self._tokens = token_parts(tokens)
        self._limiter = chooser(limiter, self._tokens)
        self._key = key_of(key)
        self._weight = weight_of(weight)
        self._priority = whole("priority", priority, None)
        self._share = None if share is None else whole("share", share, 1, 1000)
        self._timeout = None if timeout is None else in_seconds("timeout", timeout)
        self._heeds, self._default, self._longest = heeding(heed)
        if not isinstance(cast(object, learn), bool):
            raise TypeError(f"learn is {learn!r}: expected True or False, not {type(learn).__name__}")
        self._learns = learn
        self.retries = whole("retries", retries, 0, 100)
        for name, function in ("estimate", estimate), ("usage", usage):
            if function is not None and not callable(function):
                raise TypeError(f"{name} is {function!r}: expected a function, not {type(function).__name__}")
            if function is not None and tokens is None:
                raise TypeError(f"{name} needs tokens, the part that counts tokens")
        if route is not None and not callable(route):
            raise TypeError(f"route is {route!r}: expected a function, not {type(route).__name__}")
        self._route = route
        self._estimate, self._usage = estimate, usage and _by_kind(usage, self._tokens)
        self.waiting = waiting
        self._budgets = Budgets(waiting, self._tokens)
        #: What is left of limiters without their parts that count tokens.
        self._tokenless: dict[Limiter, Limiter | None] = {}

    async def send(self, exchange: Exchange[R, S]) -> S:
        """Sends a request when its limiter admits it. After a refusal it sends it again, up to `retries` times."""
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
            if not (wait and is_paused):  # Otherwise the pause of its limiter makes it wait.
                await self.waiting.sleep(delay)
        raise AssertionError("unreachable")

    async def attempt(self, exchange: Exchange[R, S]) -> tuple[S, float | None, bool]:
        """Sends a request once. Returns the response, the wait that the server asks for, if it asks for one, and whether
        its limiter was paused for it."""
        start = self._start(exchange)
        body, url = Body(self.waiting), exchange.url
        if start is not None:
            body.permit, body.tokens = await self._acquire(start), start.tokens
        to = None
        try:
            # Before anything is sent. A retry may go elsewhere.
            if self._route is not None and body.permit is not None and (chosen := body.permit.chosen) is not None:
                to = routed(self._route(chosen), url)
                exchange.go(to)
                url = to.url
            watched = None
            if self._heeds and start is not None and body.permit is not None:
                watched = await self._budgets.watch(_used(start, body.permit))
        except BaseException:
            await body.fail(True)
            raise
        try:
            if body.tokens:
                exchange.ask_readable()
            response = await exchange.send()
        except BaseException as error:
            if watched is not None:
                watched.end()
            await body.fail(exchange.was_never_sent(error))
            raise
        try:
            if to is not None:
                exchange.relocate(response, partial(relocated, to=to, url=exchange.url))
            await body.arrived()
            if self._learns and start is not None and body.permit is not None:
                self._budgets.learn(_used(start, body.permit), response, urlsplit(url).hostname or "")
            if watched is not None:  # Before a pause, because a paused limit takes no charges.
                await self._budgets.compare(watched, response)
            wait = await self._heed(start, body.permit, response)
            status, headers = status_and_headers(response)
            content = exchange.content(response)
            if body.tokens and status in FREE:
                await body.refund()
            elif body.tokens:
                encoding = headers.get("content-encoding", "") if content is None and not exchange.decodes else ""
                body.reading = Reading(self._usage, response, headers.get("content-type", ""), encoding)
            if content is None:
                exchange.watch(response, body)
            else:
                body.feed(content)
                await body.finish(True)
        except BaseException:
            if watched is not None:
                watched.end()
            await body.finish(False)
            await exchange.close(response)
            raise
        return response, wait, self._heeds and start is not None

    async def _heed(self, start: Start | None, permit: Permit | None, response: Any) -> float | None:
        wait = requested_wait(response, self._default, self._longest)
        if wait and self._heeds and start is not None and permit is not None:
            # Only the alternative that was used has refused.
            chosen = permit.chosen
            refused = chosen if isinstance(chosen, Limiter) else start.limiter
            if not isinstance(start.key, Mapping):
                await self.waiting.pause(refused, wait, start.key)
            elif refused is not start.limiter and (outer := start.limiter._part_of(refused)) is not None:
                await self.waiting.pause(refused, wait, start.key_at(outer))
            elif parts := refused.parts:
                for name, part in parts.items():
                    await self.waiting.pause(part, wait, start.key_at(name))
            else:
                await self.waiting.pause(refused, wait, None)
        return wait

    # ---- the start of a request ----

    def _start(self, exchange: Exchange[R, Any]) -> Start | None:
        request = exchange.request
        limiter = self._limiter(request, exchange.url)
        if limiter is None:
            return None
        key, weight = self._key(request), self._weight(request)
        if not self._tokens:
            return Start(limiter, key, weight, {})
        units = self._reserved(exchange)
        # (Of alternatives, whose other parts are not known before one is chosen, it takes one token.)
        if not any(units.values()) and not isinstance(limiter, FirstOfLimiter):
            return self._without_tokens(limiter, key, weight)
        reserved = {part: max(units[kind], 1) for kind, part in self._tokens.items()}
        if not isinstance(weight, Mapping):
            if weight > 1 and isinstance(limiter, FirstOfLimiter):
                raise refuse(
                    "weight", weight, "a mapping of the alternatives' parts to weights, because tokens is given"
                )
            weight = dict.fromkeys(limiter.parts, weight) if weight > 1 else {}
        return Start(limiter, key, {**weight, **reserved}, self._tokens)

    def _reserved(self, exchange: Exchange[R, Any]) -> dict[str, int]:
        """Returns the tokens that a request may use, by their kind."""
        if self._estimate is None:
            return estimate(exchange.body(), exchange.content_type())
        return units_of("estimate", self._estimate(exchange.request), self._tokens)

    def _without_tokens(self, limiter: Limiter, key: Key, weight: Weight) -> Start | None:
        """Returns the start of a request that uses no tokens: of the other parts."""
        if limiter not in self._tokenless:
            rest = {name: part for name, part in limiter.parts.items() if name not in self._tokens.values()}
            if len(self._tokenless) >= _MOST_KEPT:
                self._tokenless.clear()
            self._tokenless[limiter] = CompositeLimiter(rest) if rest else None
        other = self._tokenless[limiter]
        if other is None:
            return None
        if isinstance(key, Mapping):
            key = {part: of for part, of in key.items() if part not in self._tokens.values()}
        if isinstance(weight, Mapping):
            weight = {part: of for part, of in weight.items() if part not in self._tokens.values()}
        return Start(other, key, weight, {})

    async def _acquire(self, start: Start) -> Permit:
        """Waits for the start. An estimate that exceeds the capacity of a part takes all of it."""
        limiter, key, weight, tokens = start
        try:
            return await self.waiting.acquire(limiter, key, weight, self._timeout, self._priority, self._share)
        except WeightExceedsCapacity:
            if not isinstance(weight, Mapping):
                raise
            fitting = dict(weight)
            for name, part in limiter.parts.items():
                if name in tokens.values():
                    most = (await self.waiting.peek(part, start.key_at(name))).limit
                    fitting[name] = weight[name] if most is None else min(weight[name], most)
            if fitting == weight:
                raise
        return await self.waiting.acquire(limiter, key, fitting, self._timeout, self._priority, self._share)


def _used(start: Start, permit: Permit) -> Start:
    """Returns the start as that of the alternative that was chosen, whose server counts it."""
    chosen = permit.chosen if isinstance(start.limiter, FirstOfLimiter) else None
    return start._replace(limiter=chosen) if isinstance(chosen, Limiter) else start


def changed(headers: H, to: Routed) -> H:
    """Returns the headers of a request that goes elsewhere."""
    for name in to.without:
        if name in headers:
            del headers[name]
    if to.host is not None and "host" in headers:  # Others write it when they send.
        headers["host"] = to.host
    headers.update(to.headers)
    return headers


def _by_kind(
    usage: Callable[[Any, Any], int | Mapping[str, int] | None], kinds: Mapping[str, str]
) -> Callable[[Any, Any], dict[str, int] | None]:
    """Returns the function of the user that returns units of each kind of tokens."""

    def used(value: Any, response: Any) -> dict[str, int] | None:
        units = usage(value, response)
        return None if units is None else units_of("usage", units, kinds)

    return used


class Body:
    """The body of one response, and the permit that ends with it."""

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self.permit: Permit | None = None
        self.tokens: Mapping[str, str] = {}  # The parts that count tokens, by the kind of tokens.
        self.reading: Reading | None = None

    def feed(self, data: bytes) -> None:
        """Takes data that the program has read."""
        if self.reading is not None:
            self.reading.feed(data)

    async def arrived(self) -> None:
        """Says that the server has the request. A failure must not cost the response, and the end says so again."""
        if self.permit is not None:
            try:
                await self._waiting.arrived(self.permit)
            except LimitError:
                pass

    async def release(self) -> None:
        """The whole body has arrived, but was not read yet. Other requests may start, unless its usage is still to be
        read."""
        if self.reading is None:
            await self.finish(False)

    async def finish(self, is_whole: bool) -> None:
        """Ends the permit, because the body was read to its end or will not be read further. The second call does
        nothing."""
        permit, self.permit = self.permit, None
        if permit is None:
            return
        used: dict[str, int] = {}
        try:
            reading, self.reading = self.reading, None
            units = reading and reading.units(is_whole)
            used = {part: units[kind] for kind, part in self.tokens.items() if units and kind in units}
        finally:
            await (self._waiting.settle(permit, used) if used else self._waiting.complete(permit))

    async def refund(self) -> None:
        """Ends the permit of a request that used no tokens."""
        permit, self.permit = self.permit, None
        if permit is not None:
            await self._waiting.settle(permit, dict.fromkeys(self.tokens.values(), 0))

    async def fail(self, was_never_sent: bool) -> None:
        """Ends the permit of a request without a response."""
        permit, self.permit = self.permit, None
        if permit is not None:
            await (self._waiting.cancel(permit) if was_never_sent else self._waiting.complete(permit))


def acquire_here(
    limiter: Limiter, key: Key, weight: Weight, timeout: float | None, priority: int, share: int | None
) -> Permit:
    """Acquires, outside a coroutine: there acquire refuses to block a loop, as a program has chosen with its client."""
    return limiter.acquire(key, weight, timeout, priority=priority, share=share)


class _InThread:
    """Blocks the thread, without the GIL."""

    async def acquire(
        self, limiter: Limiter, key: Key, weight: Weight, timeout: float | None, priority: int, share: int | None
    ) -> Permit:
        return acquire_here(limiter, key, weight, timeout, priority, share)

    async def peek(self, limiter: Limiter, key: str | None) -> Decision:
        return limiter.peek(key, 0)

    async def charge(self, limiter: Limiter, key: str | None, units: int, leaving: int) -> int:
        return limiter._charge_others(key, units, leaving)

    async def pause(self, limiter: Limiter, seconds: float, key: str | None) -> None:
        limiter.pause(seconds, key)

    async def arrived(self, permit: Permit) -> None:
        permit.arrived()

    async def complete(self, permit: Permit) -> None:
        permit.complete()

    async def cancel(self, permit: Permit) -> None:
        permit.cancel()

    async def settle(self, permit: Permit, units: dict[str, int]) -> None:
        permit.settle(units)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class _InLoop:
    """Waits in an event loop."""

    async def acquire(
        self, limiter: Limiter, key: Key, weight: Weight, timeout: float | None, priority: int, share: int | None
    ) -> Permit:
        return await limiter.acquire_async(key, weight, timeout, priority=priority, share=share)

    async def peek(self, limiter: Limiter, key: str | None) -> Decision:
        return await limiter.peek_async(key, 0)

    async def charge(self, limiter: Limiter, key: str | None, units: int, leaving: int) -> int:
        return await limiter._charge_others_async(key, units, leaving)

    async def pause(self, limiter: Limiter, seconds: float, key: str | None) -> None:
        await limiter.pause_async(seconds, key)

    async def arrived(self, permit: Permit) -> None:
        await permit.arrived_async()

    async def complete(self, permit: Permit) -> None:
        await permit.complete_async()

    async def cancel(self, permit: Permit) -> None:
        await permit.cancel_async()

    async def settle(self, permit: Permit, units: dict[str, int]) -> None:
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
