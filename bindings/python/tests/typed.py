"""The types of all public names: accepted and refused uses. Checked by mypy and pyright, never run."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

import asyncio
from collections.abc import Coroutine, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Literal

import aiohttp
import httpx
import httpx2
import requests
import urllib3
from aiohttp import web
from opentelemetry.metrics import get_meter_provider
from typing_extensions import assert_never, assert_type
from workglow_limit import (
    AcquireTimeout,
    CompositeLimiter,
    ConcurrencyLimiter,
    CustomLimiter,
    Damaged,
    Decision,
    DelayLimiter,
    EvenlySpacedRateLimiter,
    Finding,
    FirstOfLimiter,
    FixedWindowLimiter,
    FlowControl,
    ForeignPermit,
    GrantSnapshot,
    HeadSnapshot,
    HolderSnapshot,
    InvalidArgument,
    InvalidUrl,
    JobLimiter,
    KeySnapshot,
    KindMismatch,
    LeakyBucketLimiter,
    LeaseLost,
    Limiter,
    LimitError,
    LimitEvent,
    LimitSnapshot,
    LineSnapshot,
    ManualClock,
    NotAStore,
    NullLimiter,
    Permit,
    Problem,
    ProcessSnapshot,
    RateLimiter,
    SlidingWindowCounterLimiter,
    Snapshot,
    Stats,
    Store,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreTimeout,
    TenantSnapshot,
    TokenBucketLimiter,
    UnknownLimit,
    Unsupported,
    UnsupportedFileSystem,
    UnsupportedVersion,
    Usage,
    WaitingSnapshot,
    Waits,
    WeightExceedsCapacity,
    __version__,
    arq,
    doctor,
    dramatiq,
    metrics_content_type,
    postgres_schema,
    rq,
    taskiq,
)
from workglow_limit import aiohttp_web as for_aiohttp
from workglow_limit import asgi as for_asgi
from workglow_limit import django as for_django
from workglow_limit import fastapi as for_fastapi
from workglow_limit import flask as for_flask
from workglow_limit import limits_storage as for_limits
from workglow_limit import wsgi as for_wsgi
from workglow_limit.aiohttp import LimitedMiddleware
from workglow_limit.http import heed
from workglow_limit.httpx import AsyncLimitedTransport, LimitedTransport
from workglow_limit.httpx import limited as limited_httpx
from workglow_limit.httpx2 import LimitedTransport as httpx2_LimitedTransport
from workglow_limit.opentelemetry import instrument
from workglow_limit.requests import LimitedAdapter
from workglow_limit.urllib3 import Request, limited

MINUTE = timedelta(minutes=1)

clock = ManualClock()
clock.advance(1.5)
clock.advance(MINUTE)
store = Store(
    "sqlite:limits.db", timeout=MINUTE, mode=0o660, on_error="deny", durability="commit", clock=clock, max_size=1 << 26
)
rate = RateLimiter(store, "x", max_executions=1, window_size_in_seconds=60)
bucket = TokenBucketLimiter(store, "x", rate=10, period=MINUTE, burst=20)
limiters: list[Limiter] = [
    RateLimiter(
        store, "x", windows=[(100, 60), (5, MINUTE)], initial_backoff_delay=2, backoff_multiplier=3, jitter="full"
    ),
    ConcurrencyLimiter(5, store=store, name="x", lease=MINUTE),
    ConcurrencyLimiter(5, clock=clock),
    DelayLimiter(),
    DelayLimiter(0.05, store=store, name="x"),
    EvenlySpacedRateLimiter(max_executions=60, window_size_in_seconds=60, adaptive=False),
    LeakyBucketLimiter(store, "x", rate=10, queue=20),
    FixedWindowLimiter(store, "x", max_executions=1, window_size_in_seconds=MINUTE),
    SlidingWindowCounterLimiter(store, "x", max_executions=1, window_size_in_seconds=1),
    NullLimiter(),
]
flow = FlowControl("x", rate=100, period=MINUTE, parallelism=5)
assert_type((flow.key, flow.rate, flow.period, flow.parallelism), tuple[str, int | None, float, int | None])
limiters += store.limiter(flow), store.limiter("x", "100/1m + 5 concurrent"), store.limiter("x")


def calls(limiter: Limiter) -> Decision:
    assert_type(limiter.try_acquire("k", weight=2), Permit | None)
    decision = limiter.decide(key=None)
    assert_type((decision.admitted, decision.retry_after, decision.suggested_after), tuple[bool, float, float])
    assert_type((decision.remaining, decision.limit, decision.reset_after), tuple[int | None, int | None, float])
    assert_type((decision.denied_by, decision.permit, bool(decision)), tuple[str | None, Permit | None, bool])
    with limiter.acquire("k", 2, timeout=MINUTE) as permit:
        assert_type(permit, Permit)
        limiter.complete(permit)
    assert_type((limiter.can_proceed("k"), limiter.name, limiter.get_next_available_time()), tuple[bool, str, datetime])
    assert_type(limiter.try_acquire({"tenant": "k", "all": None}, {"tokens": 2}), Permit | None)
    assert_type(limiter.parts["tokens"], Limiter)
    assert_type(limiter.decide(weight={"tokens": 2}).admitted or limiter.peek({"tenant": "k"}).admitted, bool)
    with limiter.acquire(weight={"tokens": 2}, key={"tenant": "k"}, timeout=30) as start:
        start.settle({"tokens": 1})
    limiter.record_job_start()
    limiter.record_job_completion("k")
    limiter.set_next_available_time(datetime.now(timezone.utc), "k")
    limiter.pause(MINUTE)
    limiter.pause(20.5, "k")
    limiter.clear()
    assert_type((limiter.forecast(5), limiter.forecast(5, key={"tenant": "k"})), tuple[float | None, float | None])
    return limiter.peek(weight=0)


def places(limiter: Limiter) -> str:
    place = limiter.reserve("k", max_wait=MINUTE, grace=5)
    if place is None:
        return ""
    assert_type((place.wait, place.ready_at, place.ready_at_monotonic), tuple[float, datetime | None, float | None])
    presented = limiter.present(place.to_text())
    if presented.started:
        presented.settle(5)
    limiter.acquire(place=presented, timeout=1).cancel()
    limiter.permit(presented.to_text()).complete()
    limiter.place(presented.to_text()).cancel()
    assert_type(limiter.window, float | None)
    permit = limiter.acquire(grace=0.5)
    permit.arrived()
    permit.renew()
    assert_type(permit.fence, int | None)
    return presented.to_text()


async def waiting(limiter: Limiter) -> None:
    asked: Coroutine[Any, Any, Permit] = limiter.acquire_async("k", timeout=MINUTE, place=None, grace=MINUTE)
    with await asked as permit:
        permit.complete()
    async with limiter.acquire_async(timeout=1) as entered:
        assert_type(entered, Permit)
    assert_type(await asyncio.create_task(limiter.acquire_async()), Permit)


def first(text: str, _: int) -> str:
    return text


def second(_: str, number: int) -> int:
    return number


@rate.limit(key=first, weight=second, timeout=MINUTE)
def decorated(tenant: str, tokens: int) -> str:
    return tenant * tokens


wrapped = rate.wrap(first, key="text", weight=2, timeout=1)


@rate.limit(key={"tenant": "tenant", "model": None, "user": first}, weight={"tokens": "tokens", "requests": 2})
def of_parts(tenant: str, tokens: int) -> str:
    return tenant * tokens


def parts_of(tenant: str) -> dict[str, str]:
    return {"tenant": tenant}


def units_of(tenant: str) -> dict[str, int]:
    return {"tokens": len(tenant)}


rate.limit(key=parts_of, weight=units_of)(len)


class Client:
    @rate.limit("tenant", weight=2)
    async def coroutine(self, tenant: str) -> int:
        return len(tenant)


async def of_decorated() -> None:
    assert_type(decorated("a", 1), str)
    assert_type(wrapped("a", 1), str)
    with rate as entered, rate:
        assert_type(entered, Permit)
    async with rate as entered:
        assert_type(entered, Permit)
    assert_type(await Client().coroutine("a"), int)
    assert_type(await rate.try_acquire_async("k", weight=2), Permit | None)
    decision = await rate.decide_async("k", weight=2)
    assert_type((decision, await rate.peek_async("k", weight=0)), tuple[Decision, Decision])
    assert_type(await rate.forecast_async(5, "k"), float | None)
    if decision.permit:
        async with decision.permit as permit:
            assert_type(permit, Permit)
            await permit.settle_async(1)
        await permit.arrived_async()
        await permit.cancel_async()
        await permit.complete_async()
    await rate.pause_async(MINUTE, "k")
    await rate.clear_async("k")
    await store.override_async("x", "100/1m", key="tenant")
    await store.lift_async("x", key="tenant")
    await store.share_async("x", "tenant", 3)
    await store.open_async()
    await store.close_async()


def stores() -> None:
    store.open()
    assert_type(
        (store.names(), store.load("limits.toml"), store.load(Path("x"))), tuple[list[str], list[str], list[str]]
    )
    store.override("x", "100/1m + 5/1s")
    store.override("x", "100/1m + 5/1s", key="tenant")
    store.lift("x", key="tenant")
    store.lift("x")
    store.share("x", "tenant", 3)
    store.forget("x")
    store.flush()
    with Store("memory:") as closing:
        assert_type(closing, Store)
    store.close()
    assert_type([(problem.found, problem.repaired) for problem in store.verify(repair=True)], list[tuple[str, bool]])
    assert_type(store.verify(), list[Problem])
    assert_type(postgres_schema(), str)
    finding, *findings = doctor("memory:")
    assert_type(findings, list[Finding])
    assert_type(finding.severity, Literal["note", "warning", "danger"])
    assert_type((finding.what, finding.setting, finding.value, finding.instead), tuple[str, str, str, str])
    assert_type((store.failures, store.url, clock.now(), __version__), tuple[int, str, float, str])


def hooks(event: LimitEvent) -> None:
    assert_type((event.limit, event.key, event.wanted, event.granted), tuple[str, str | None, int, int])
    assert_type((event.wait, event.error), tuple[float, Exception | None])
    off = store.on("throttled", hooks)
    off()
    rate.on("store_error", lambda event: print(event.error))
    if event.event != "throttled" and event.event != "unknown_limit" and event.event != "store_error":
        assert_never(event.event)


def looks() -> None:
    text: str = store.metrics() + store.metrics(keys=5, show_keys=True, format="prometheus")
    assert_type(metrics_content_type("prometheus") + metrics_content_type() + text, str)
    seen = store.snapshot(keys=5, show_keys=False)
    assert_type(seen, Snapshot)
    assert_type((seen.at, seen.store, seen.ledger_lag), tuple[datetime, str, float])
    assert_type((seen.lane_bytes, seen.failures, seen.counts_all_processes), tuple[int, int, bool])
    assert_type((seen.used_bytes, seen.max_bytes), tuple[int, int])
    assert_type([(limit.bytes, limit.spare_bytes) for limit in seen.limits], list[tuple[int, int]])
    for process in seen.processes:
        assert_type(process, ProcessSnapshot)
        assert_type((process.pid, process.program, process.since), tuple[int, str, float])
    for limit in seen.limits:
        assert_type(limit, LimitSnapshot)
        assert_type((limit.name, limit.policy, limit.declared), tuple[str, str, str])
        assert_type((limit.override, limit.fullest, limit.overridden_by), tuple[str | None, str | None, str | None])
        assert limit.kind in ("rate", "concurrency")
        assert_type((limit.near, limit.peak, limit.waiting, limit.keys), tuple[bool, int, int, int])
        assert_type((limit.retry_after, limit.paused_for, limit.places_lost), tuple[float, float, int])
        assert_type((limit.stats, limit.grants), tuple[Stats, GrantSnapshot | None])
        waits: Waits = limit.waits
        assert_type((waits.bounds, waits.counts), tuple[list[float], list[int]])
        for usage in limit.usage:
            assert_type(usage, Usage)
            assert_type((usage.limit, usage.used, usage.window), tuple[int, int, float | None])
        for key in limit.hot_keys:
            assert_type(key, KeySnapshot)
            assert_type((key.key, key.override, key.usage), tuple[str, str | None, tuple[Usage, ...]])
            assert_type((key.stats, key.retry_after, key.paused_for), tuple[Stats, float, float])
        for tenant in limit.tenants:
            assert_type(tenant, TenantSnapshot)
            assert_type((tenant.key, tenant.share, tenant.waits), tuple[str, int, float | None])
        if limit.grants:
            assert_type((limit.grants.held, limit.grants.requests), tuple[int, int])
    line = store.line("api", key="acme")
    assert_type((line, store.line("api")), tuple[LineSnapshot, LineSnapshot])
    for holder in line.holders:
        assert_type(holder, HolderSnapshot)
        assert_type((holder.process, holder.starts), tuple[ProcessSnapshot | None, int])
        assert_type((holder.units, holder.cools_down), tuple[int, bool])
    for head in line.heads:
        assert_type(head, HeadSnapshot)
        assert_type((head.process, head.waits, head.units), tuple[ProcessSnapshot | None, float, int])
        assert_type((head.priority, head.tenant, head.passed), tuple[int, str | None, bool])
    for waiting in line.waiting:
        assert_type(waiting, WaitingSnapshot)
        assert_type((waiting.process, waiting.callers), tuple[ProcessSnapshot | None, int])
    instrument(store)
    instrument(store, get_meter_provider(), 5, show_keys=True)
    store.metrics(format="json")  # type: ignore[arg-type]
    store.metrics(5)  # type: ignore[call-arg]
    seen.limits = ()  # type: ignore[misc]


def counts(stats: Stats) -> tuple[int, ...]:
    assert_type(stats.wait_time, float)
    units = stats.units_wanted, stats.units_granted
    return stats.admitted, stats.denied, *units, stats.waited, stats.cancelled, stats.store_errors, stats.policy_changes


class Mine:
    """A custom limiter whose tokens have their own type."""

    name = "mine"

    def try_acquire(self, key: str | None, weight: int) -> list[int] | None:
        return None if weight > 5 else [weight]

    def retry_after(self, key: str | None, weight: int) -> timedelta:
        return MINUTE

    def complete(self, token: list[int]) -> None: ...
    def cancel(self, token: list[int]) -> None: ...


def composites(six: JobLimiter) -> None:
    mine: CustomLimiter = Mine()
    composite = CompositeLimiter([rate, bucket, mine, six])
    composite.add(Mine())
    composite.add(composite)
    counts(composite.stats("k"))
    # A limiter is also a JobLimiter.
    counted: JobLimiter = rate
    composite.add(counted)
    either = FirstOfLimiter([rate, bucket, mine])
    either.add(six)
    chosen = either.acquire().chosen
    urls: dict[Limiter, str] = {rate: "https://a.example"}
    assert_type(urls[chosen], str)
    named = CompositeLimiter({"requests": rate, "mine": Mine()})
    named.add(bucket, "tokens")


def errors(error: Exception) -> float | str:
    if isinstance(error, AcquireTimeout):
        assert_type(error.key, str | None)
        return error.retry_after
    if isinstance(error, (InvalidArgument, InvalidUrl, WeightExceedsCapacity, ForeignPermit)):
        as_value: ValueError = error
        return str(as_value)
    if isinstance(
        error, (StoreError, Damaged, NotAStore, StoreFull, StoreTimeout, UnsupportedFileSystem, UnsupportedVersion)
    ):
        as_os: OSError = error
        return str(as_os)
    if isinstance(error, (KindMismatch, LeaseLost, StoreClosed, UnknownLimit, Unsupported)):
        any_of_them: LimitError = error
        return any_of_them.code
    return error.number if isinstance(error, LimitError) else 0


def tenant_of_httpx(request: httpx.Request) -> str | None:
    return request.method if request.url else None


def tenant_of_urllib3(request: Request) -> str | None:
    return request.headers.get("X-Tenant")


def used(value: Any, response: Any) -> int | None:
    return len(value) if response else None


async def clients() -> float:
    hosts = {"api.example.com": rate}
    assert_type(limited_httpx(httpx.AsyncClient(), hosts, timeout=MINUTE, retries=1), httpx.AsyncClient)
    client = httpx.Client(transport=LimitedTransport(hosts, key=tenant_of_httpx, weight=2, timeout=MINUTE, retries=1))
    asynchronous = httpx.AsyncClient(
        transport=AsyncLimitedTransport(rate, transport=httpx.AsyncHTTPTransport(), heed=False)
    )
    session = requests.Session()
    session.mount(
        "https://",
        LimitedAdapter(
            rate, tokens="tokens", estimate=lambda request: len(request.url or ""), usage=used, pool_maxsize=5
        ),
    )
    LimitedTransport(
        rate,
        tokens={"input": "input-tokens", "output": "output-tokens"},
        estimate=lambda request: {"input": 5, "output": 500},
        key={"tenant": tenant_of_httpx, "model": None},
        weight={"requests": 2},
        route=lambda chosen: {"base_url": f"https://{chosen.name}", "headers": {"x-api-key": "k"}},
    )
    LimitedTransport(rate, route=lambda chosen: "https://a" if chosen is rate else None)
    http = limited(
        urllib3.PoolManager(),
        lambda request: rate if request.method == "POST" else None,
        key=tenant_of_urllib3,
        priority=1,
    )
    assert_type(http, urllib3.PoolManager)
    assert_type(limited(urllib3.ProxyManager("http://localhost"), rate), urllib3.ProxyManager)
    httpx2.Client(transport=httpx2_LimitedTransport(rate, heed={"default": 5, "longest": MINUTE}))
    middleware = LimitedMiddleware(hosts, key=lambda request: request.headers["X-Tenant"])
    async with aiohttp.ClientSession(middlewares=[middleware]) as web, web.get("http://localhost") as response:
        heed(rate, response, "k", default=MINUTE, longest=60)
    heed(rate, await asynchronous.get("http://localhost"))
    heed(rate, client.get("http://localhost"))
    heed(rate, http.request("GET", "http://localhost"))
    return heed(rate, session.get("http://localhost"))


@dramatiq.limited(
    rate, key="{tenant}", hold=0.1, on_limited=lambda message, limited: print(message.message_id, limited.wait)
)
def message(tenant: str) -> int:
    assert_type(dramatiq.current_permit(), Permit | None)
    return len(tenant)


@rq.limited(rate, key="tenant", weight="tokens", on_limited=lambda job, limited: print(job.id, limited.key))
def job(tenant: str, tokens: int = 1) -> int:
    return len(tenant)


@arq.limited(
    rate,
    key={"tenant": "tenant"},
    weight={"tokens": 2},
    grace=MINUTE,
    on_limited=lambda ctx, limited: print(ctx["job_id"], limited.has_place),
)
async def coroutine(ctx: dict[Any, Any], tenant: str) -> int:
    return len(tenant)


@taskiq.limited(rate, on_limited=lambda message, limited: print(message.task_id))
async def task(tenant: str) -> int:
    return len(tenant)


async def jobs() -> None:
    assert_type(message("a") + job("a", tokens=3) + await coroutine({}, "a") + await task("a"), int)
    middlewares = dramatiq.Limits(), taskiq.Limits(), rq.LimitedWorker, rq.Limits
    print(middlewares)


async def wrong(client: httpx.AsyncClient) -> None:
    message(5)  # type: ignore[arg-type]
    rq.limited("rate")  # type: ignore[arg-type]
    rq.limited(rate, hold="1s")  # type: ignore[arg-type]
    rq.limited(rate, limit=5)  # type: ignore[call-arg]
    store.on("denied", print)  # type: ignore[arg-type]
    store.limiter()  # type: ignore[call-overload]
    store.limiter(flow, "100/1m")  # type: ignore[call-overload]
    Store("memory:", on_error="panic")  # type: ignore[arg-type]
    Store("memory:", 5)  # type: ignore[call-arg]
    Limiter.acquire("k")  # type: ignore[arg-type]
    RateLimiter(store, "x", max_executions=1)  # type: ignore[call-overload]
    RateLimiter(store, "x", max_executions=1, window_size_in_seconds=1, windows=[(1, 1)])  # type: ignore[call-overload]
    RateLimiter(store, "x", windows=[(1, 1)], jitter="some")  # type: ignore[call-overload]
    LeakyBucketLimiter(store, "x", rate=1, burst=1)  # type: ignore[call-arg]
    DelayLimiter(lease=1)  # type: ignore[call-arg]
    FixedWindowLimiter(store, "x", max_executions=1, window_size_in_seconds="1m")  # type: ignore[arg-type]
    CompositeLimiter([5])  # type: ignore[list-item]
    CompositeLimiter({"five": 5})  # type: ignore[dict-item]
    rate.try_acquire({"tenant": 5})  # type: ignore[dict-item]
    rate.try_acquire(weight={"tokens": "1"})  # type: ignore[dict-item]
    rate.try_acquire(5)  # type: ignore[arg-type]
    rate.try_acquire(weight="1")  # type: ignore[arg-type]
    rate.try_acquire(timeout=1)  # type: ignore[call-arg]
    rate.try_acquire(grace=1)  # type: ignore[call-arg]
    rate.acquire(grace="1s")  # type: ignore[arg-type]
    rate.acquire("k", 1, 5, 7)  # type: ignore[call-arg]
    rate.acquire(priority="high")  # type: ignore[arg-type]
    rate.acquire(share=0.5)  # type: ignore[arg-type]
    store.share("x", None, 3)  # type: ignore[arg-type]
    rate.try_acquire().complete()  # type: ignore[union-attr]
    rate.set_next_available_time(20.5)  # type: ignore[arg-type]
    rate.acquire().started = True  # type: ignore[misc]
    with rate.acquire_async():  # type: ignore[attr-defined]
        pass
    decorated("a")  # type: ignore[call-arg]
    rate.limit(decorated)("a")  # type: ignore[arg-type]
    rate.limit(weight=lambda: "1")  # type: ignore[arg-type, return-value]
    heed(rate, client.get("http://localhost"))  # type: ignore[arg-type]
    heed(rate, await client.get("http://localhost"), lambda response: "k")  # type: ignore[arg-type]
    LimitedTransport(rate, heed={"deflaut": 5})  # type: ignore[arg-type]
    LimitedTransport(rate, wieght=5)  # type: ignore[call-arg]
    LimitedTransport(5)  # type: ignore[arg-type]
    limited_httpx(5, rate)  # type: ignore[type-var]
    AsyncLimitedTransport(rate, transport=httpx.HTTPTransport())  # type: ignore[arg-type]
    limited(urllib3.PoolManager(), rate, retries=5)  # type: ignore[call-arg]


def serving(limiter: Limiter, app: Any) -> None:
    async def plan(request: Any) -> str:
        return "free"

    async def skipped(status: int) -> bool:
        return status < 300

    def replied(request: Any, limited: for_asgi.Limited) -> dict[str, Any]:
        assert_type(limited.name, str)
        assert_type(limited.key, str | Mapping[str, str | None] | None)
        assert_type(limited.retry_after, float)
        assert_type(limited.limit, int | None)
        assert_type(limited.remaining, int | None)
        assert_type(limited.violated, list[str])
        assert_type(limited.shadow, bool)
        assert_type(limited.status, int)
        assert_type(limited.headers, list[tuple[str, str]])
        return limited.problem

    def views(request: Any) -> str:
        return "hello"

    async def handler(request: web.Request) -> web.StreamResponse:
        request[for_aiohttp.USER] = "ann"
        return web.Response()

    one = for_asgi.Limit(limiter, key="address", weight=lambda request: 2, skip_failed=True, shadow=True, name="one")
    two = for_asgi.Limit({"free": limiter}, plan=plan, key=lambda request: None, skip_successful=True)
    for_asgi.Limit(limiter, key=lambda request: {"tenant": "ann"}, weight=lambda request: {"tokens": 2})
    for_asgi.Limit(limiter, weight={"tokens": 2})
    for_asgi.Limit(limiter, skip_failed=lambda status: status == 404, skip_successful=skipped)
    for_asgi.LimitMiddleware(
        app, [one, two], websockets=True, exempt=["/health"], trusted_proxies=["unix"], on_limited=replied
    )
    for_fastapi.LimitMiddleware(app, limits=[one], exempt=lambda request: True, ipv6_prefix=56, headers=False)
    for_fastapi.RouteLimit(one, two)
    for_fastapi.limit(one)(views)
    application = web.Application()
    for_aiohttp.AppLimits(application, [one], exempt=["/health"], on_limited=replied)
    application.router.add_get("/", for_aiohttp.limit(one, two)(handler))
    for_wsgi.LimitMiddleware(app, [one], forwarded_header="Forwarded")
    for_flask.FlaskLimits(app, [one]).init_app(app)
    assert_type(for_flask.limit(one)(views)(1), str)
    assert_type(for_django.limit(one)(views)(1), str)
    for_django.LimitMiddleware(views)
    for_limits.WorkglowStorage("workglow+memory:", name="limits", timeout=1)
    for_limits.AsyncWorkglowStorage("async+workglow+memory:", name="limits", timeout=1)

    for_asgi.Limit()  # type: ignore[call-arg]
    for_asgi.Limit(limiter, "address")  # type: ignore[call-arg]
    for_asgi.Limit(limiter, weight="1")  # type: ignore[arg-type]
    for_asgi.Limit(limiter, skip_failed=lambda status: "no")  # type: ignore[arg-type,return-value]
    for_wsgi.LimitMiddleware(app, [limiter])  # type: ignore[list-item]
    for_wsgi.LimitMiddleware(app, websockets=True)  # type: ignore[call-arg]
    for_fastapi.RouteLimit(limiter)  # type: ignore[arg-type]
