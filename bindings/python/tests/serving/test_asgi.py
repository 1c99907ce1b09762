"""The middleware for ASGI, under uvicorn."""

import asyncio
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import httpx
import pytest
from servers import ask_in_turn, asgi, fields, wait_until
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from workglow_limit import (
    CompositeLimiter,
    ConcurrencyLimiter,
    ManualClock,
    NullLimiter,
    RateLimiter,
    Store,
    TokenBucketLimiter,
)
from workglow_limit.asgi import Limit, LimitMiddleware, Reader
from workglow_limit.fastapi import LimitMiddleware as RequestMiddleware


async def hello(request):
    return PlainTextResponse("hello")


def starlette(*limits, routes=(), websockets=False, kind=LimitMiddleware, **options):
    middleware = Middleware(kind, limits=limits, websockets=websockets, **options)
    return Starlette(routes=[*routes, Route("/{rest:path}", hello, methods=["GET", "POST"])], middleware=[middleware])


def rate(n=2, window=60, name="jobs", clock=None):
    """Its clock stands still unless a test moves it, so a slow machine does not change what headers say."""
    return RateLimiter(
        Store("memory:", clock=clock or ManualClock()), name, max_executions=n, window_size_in_seconds=window
    )


def statuses(base, n, path="/", **options):
    with httpx.Client(base_url=base) as client:
        return [client.get(path, **options).status_code for _ in range(n)]


def test_responses_have_the_headers():
    clock = ManualClock()
    with asgi(starlette(Limit(rate(2, 60, clock=clock), key="address"))) as base, httpx.Client(base_url=base) as client:
        first, second = client.get("/"), client.get("/")
        clock.advance(20.5)
        refused, head = client.get("/"), client.head("/")
    assert (first.status_code, first.text) == (200, "hello")
    assert fields(first) == ({"jobs": {"q": 2, "w": 60}}, {"jobs": {"r": 1, "t": 60}})
    assert fields(second) == ({"jobs": {"q": 2, "w": 60}}, {"jobs": {"r": 0, "t": 60}})
    assert "Retry-After" not in first.headers
    assert refused.status_code == 429 and refused.headers["Retry-After"] == "40"  # 39.5 s rounded up
    assert fields(refused) == ({"jobs": {"q": 2, "w": 60}}, {"jobs": {"r": 0, "t": 40}})
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json() == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "violated-policies": ["jobs"],
    }
    assert head.status_code == 429 and head.content == b""


def test_a_retry_after_retry_after_succeeds():
    clock = ManualClock()
    with asgi(starlette(Limit(rate(1, 10, clock=clock)))) as base, httpx.Client(base_url=base) as client:
        assert client.get("/").status_code == 200
        clock.advance(0.25)
        after = int(client.get("/").headers["Retry-After"])
        clock.advance(after - 1)
        assert client.get("/").headers["Retry-After"] == "1"
        clock.advance(1)
        assert client.get("/").status_code == 200


def test_headers_of_other_kinds_of_limits():
    store = Store("memory:")
    bucket = TokenBucketLimiter(store, "bucket", rate=10, burst=20)
    limits = [
        Limit(bucket),
        Limit(ConcurrencyLimiter(5), name="at once"),
        Limit(NullLimiter()),
        Limit(store.limiter("short", "7/250ms")),
        Limit(CompositeLimiter([rate(9, name="a"), rate(3, 7, name="b")])),
        Limit(store.limiter("both", "100/1m + 4 concurrent"), name='say "hi" \\'),
    ]
    with asgi(starlette(*limits)) as base:
        policies, states = fields(httpx.get(base))
    assert policies == {
        "bucket": {"q": 20, "w": 2},
        "at once": {"q": 5, "qu": "concurrent-requests"},
        "short": {"q": 7},
        "composite": {"q": 3},
        'say "hi" \\': {"q": 4},
    }
    assert states["bucket"] == {"r": 19, "t": 1} and states["at once"] == {"r": 4}


def test_headers_can_be_omitted():
    with asgi(starlette(Limit(rate(1)), headers=False)) as base:
        admitted, refused = httpx.get(base), httpx.get(base)
    assert not [name for response in (admitted, refused) for name in response.headers if "ratelimit" in name]
    assert refused.headers["Retry-After"] == "60"


def test_several_limits_are_all_or_nothing():
    many, few = rate(10, name="many"), rate(2, name="few")
    with asgi(starlette(Limit(many), Limit(few, key="address"))) as base:
        assert statuses(base, 5) == [200, 200, 429, 429, 429]
        assert httpx.get(base).json()["violated-policies"] == ["few"]
    assert many.peek().remaining == 8 and many.stats().cancelled == 0
    assert few.stats("127.0.0.1").denied == 4  # The denial is recorded, for its counts and its backoff.


def test_all_violated_limits_are_named():
    clock = ManualClock()
    day, minute = rate(1, 86_400, "day", clock), rate(1, 60, "minute", clock)
    with asgi(starlette(Limit(day), Limit(minute), Limit(rate(9, name="other")))) as base:
        assert statuses(base, 1) == [200]
        refused = httpx.get(base)
    assert set(refused.json()["violated-policies"]) == {"day", "minute"}
    assert refused.headers["Retry-After"] == "86400"
    policies, states = fields(refused)
    assert set(policies) == {"day", "minute", "other"} and {name: state["t"] for name, state in states.items()} == {
        "day": 86400,
        "minute": 60,
    }


class Fickle:
    """Peeks as free but denies, as if another request had been faster."""

    def try_acquire(self, key, weight):
        return None

    def retry_after(self, key, weight):
        return 0.0

    def complete(self, token): ...

    def cancel(self, token): ...


def test_a_lost_race_leaves_nothing_behind():
    first = rate(5, name="first")
    with asgi(starlette(Limit(first), Limit(CompositeLimiter([Fickle()]), name="last"))) as base:
        refused = httpx.get(base)
    assert refused.status_code == 429 and refused.json()["violated-policies"] == ["last"]
    assert (first.peek().remaining, first.stats().admitted, first.stats().cancelled) == (5, 1, 1)


def test_many_at_once_are_admitted_exactly():
    many, few = rate(1000, name="many"), rate(7, name="few")
    with asgi(starlette(Limit(many), Limit(few))) as base, ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: httpx.get(base, timeout=60).status_code, range(100)))
    assert sorted(answers) == [200] * 7 + [429] * 93
    assert many.peek().remaining == 993


def test_keys():
    with asgi(starlette(Limit(rate(1), key="header:X-API-Key"))) as base:
        keys = [
            {"X-API-Key": "a"},
            {"x-api-key": "b"},
            {"X-API-Key": "a"},
            {"X-API-Key": "x" * 5000},
            {"X-API-Key": "x" * 5000},
        ]
        assert [httpx.get(base, headers=headers).status_code for headers in [*keys, {}, {}]] == [
            200,
            200,
            429,
            200,
            429,
            200,
            429,
        ]

    one = rate(1)
    with asgi(starlette(Limit(one, key="header:X-API-Key"))) as base:
        claims = [{"X-API-Key": claim} for claim in ("address:127.0.0.1", "sha256:" + "0" * 64)]
        assert [httpx.get(base, headers=headers).status_code for headers in [*claims, {}]] == [200] * 3, (
            "a client chose another's key"
        )
        assert one.peek("address:127.0.0.1").remaining == 0 and one.peek("sha256:" + "0" * 64).remaining == 1

    async def tenant(scope):
        await asyncio.sleep(0)
        return scope["path"]

    with asgi(starlette(Limit(rate(1), key=tenant))) as base:
        assert [statuses(base, 2, path) for path in ("/a", "/b")] == [[200, 429]] * 2

    numbers = rate(1)
    with asgi(starlette(Limit(numbers, key=lambda scope: len(scope["path"])))) as base:
        assert [statuses(base, 2, path) for path in ("/", "/a")] == [[200, 429]] * 2
    assert numbers.peek("2").remaining == 0


def test_users():
    class Basic(AuthenticationBackend):
        async def authenticate(self, connection):
            name = connection.headers.get("X-User")
            return name and (AuthCredentials(), SimpleUser(name))

    limiter = rate(1)
    app = Starlette(
        routes=[Route("/", hello)],
        middleware=[
            Middleware(AuthenticationMiddleware, backend=Basic()),
            Middleware(LimitMiddleware, limits=[Limit(limiter, key="user")]),
        ],
    )
    with asgi(app) as base:
        users = [{"X-User": "ann"}, {"X-User": "bob"}, {"X-User": "ann"}, {}, {}]
        assert [httpx.get(base, headers=headers).status_code for headers in users] == [200, 200, 429, 200, 429]
    assert limiter.stats("address:127.0.0.1").admitted == 1


def test_weights():
    limiter = rate(10)
    with asgi(
        starlette(Limit(limiter, weight=lambda request: int(request.query_params["n"])), kind=RequestMiddleware)
    ) as base:
        assert [httpx.get(f"{base}/?n={n}").status_code for n in (6, 6, 4, 1)] == [200, 429, 200, 429]
    assert limiter.peek().remaining == 0


def test_parts_have_keys_and_weights_of_their_own():
    limiter = Store("memory:").limiter("api", "requests: 3/1h + tokens: 20/1h + tenant: 2/1h")

    def key(request):
        return {"tenant": request.headers["X-Tenant"]}

    def weight(request):
        return {"tokens": int(request.query_params["n"])}

    seen = []
    with asgi(
        starlette(
            Limit(limiter, key=key, weight=weight),
            kind=RequestMiddleware,
            on_limited=lambda _, one: seen.append(one.key),
        )
    ) as base:
        asked = ("acme", 9), ("zeta", 12), ("acme", 5), ("acme", 5), ("zeta", 7), ("omni", 6), ("omni", 5)
        answers = [httpx.get(f"{base}/?n={n}", headers={"X-Tenant": tenant}).status_code for tenant, n in asked]
        assert answers == [200, 429, 200, 429, 429, 200, 429]
    assert seen == [{"tenant": tenant} for tenant in ("zeta", "acme", "zeta", "omni")]


def test_plans():
    plans = {"free": rate(1, name="free"), "pro": rate(3, name="pro")}

    async def plan(request: Request):
        return request.headers["X-Plan"]

    with asgi(starlette(Limit(plans, plan=plan, key="address"), kind=RequestMiddleware)) as base:
        assert statuses(base, 2, headers={"X-Plan": "free"}) == [200, 429]
        assert statuses(base, 4, headers={"X-Plan": "pro"}) == [200, 200, 200, 429]
        assert fields(httpx.get(base, headers={"X-Plan": "pro"}))[0] == {"pro": {"q": 3, "w": 60}}
        assert httpx.get(base, headers={"X-Plan": "gold"}).status_code == 500


@pytest.mark.parametrize(
    "exempt", [["/health", "/static/*"], lambda scope: scope["path"] in ("/health", "/static/a.js")]
)
def test_exempt_routes(exempt):
    with asgi(starlette(Limit(rate(1)), exempt=exempt)) as base:
        assert statuses(base, 2, "/health") == [200] * 2 == statuses(base, 2, "/static/a.js")
        assert not [name for name in httpx.get(f"{base}/health").headers if "ratelimit" in name]
        assert statuses(base, 1, "/healthy") + statuses(base, 1, "/static") == [200, 429]


@pytest.mark.parametrize(
    "root, path, inside",
    [
        ("/api", "/api/health", "/health"),
        ("/api/", "/api/health", "/health"),
        ("/api", "/health", "/health"),  # A proxy has removed the root.
        ("/api", "/apiary", "/apiary"),
        ("/api", "/api", "/"),
        ("", "/health", "/health"),
        ("", "", "/"),
    ],
)
def test_paths_are_those_inside_the_app(root, path, inside):
    assert Reader().path({"path": path, "root_path": root}) == inside


def test_exempt_routes_under_a_root():
    with asgi(starlette(Limit(rate(1)), exempt=["/health"]), root_path="/api") as base:
        assert statuses(base, 3, "/health") == [200] * 3 and statuses(base, 2) == [200, 429]
    inner = starlette(Limit(rate(1)), exempt=["/health"])
    with asgi(Starlette(routes=[Mount("/v1", inner)])) as base:
        assert statuses(base, 3, "/v1/health") == [200] * 3 and statuses(base, 2, "/v1/x") == [200, 429]


def test_shadow_mode(caplog):
    reported = []
    limiter = rate(1, name="strict")
    limits = Limit(rate(4), key="address"), Limit(limiter, shadow=True)
    with asgi(
        starlette(*limits, on_limited=lambda scope, limited: reported.append((limited.name, limited.shadow)))
    ) as base:
        assert statuses(base, 5) == [200] * 4 + [429]
        assert "strict" not in httpx.get(base).headers["RateLimit-Policy"]
    assert reported == [("strict", True)] * 3 + [("jobs", False)] * 2
    assert (limiter.stats().admitted, limiter.stats().denied) == (1, 3)
    assert [record.name for record in caplog.records].count("workglow_limit.serving") == 3


@pytest.mark.parametrize(
    "reply, body, kind",
    [
        ({"error": "slow down"}, b'{"error": "slow down"}', "application/problem+json"),
        ("slow down", b"slow down", "text/plain; charset=utf-8"),
        (b"\x00", b"\x00", "application/octet-stream"),
        (PlainTextResponse("mine", 503, {"Retry-After": "99"}), b"mine", "text/plain; charset=utf-8"),
    ],
)
def test_custom_bodies(reply, body, kind):
    async def on_limited(request, limited):
        assert limited.status == 429 and limited.violated == ["jobs"] and 0 < limited.retry_after <= 60
        assert (limited.key, limited.limit, limited.remaining) == ("127.0.0.1", 1, 0)
        return reply

    with asgi(starlette(Limit(rate(1), key="address"), on_limited=on_limited)) as base:
        assert statuses(base, 1) == [200]
        refused = httpx.get(base)
    assert (refused.content, refused.headers["Content-Type"]) == (body, kind)
    assert fields(refused)[1]["jobs"]["r"] == 0
    is_theirs = not isinstance(reply, (dict, str, bytes))
    assert (refused.status_code, refused.headers["Retry-After"]) == ((503, "99") if is_theirs else (429, "60"))


def test_failed_and_successful_requests_need_not_count():
    async def answer(request):
        if request.path_params["status"] == 1:
            raise ValueError("it failed")
        return PlainTextResponse("", request.path_params["status"])

    route = Route("/status/{status:int}", answer)
    limiter = rate(2)
    with asgi(starlette(Limit(limiter, skip_failed=True), routes=[route])) as base:
        found = [(404, 404, 2), (500, 500, 2), (1, 500, 2), (200, 200, 1), (403, 403, 1), (200, 200, 0), (404, 429, 0)]
        ask_in_turn(base, limiter, *((f"/status/{n}", *answer) for n, *answer in found))
    limiter = rate(2)
    with asgi(starlette(Limit(limiter, skip_successful=True), routes=[route])) as base:
        found = [(200, 200, 2), (401, 401, 1), (302, 302, 1), (200, 200, 1), (401, 401, 0), (200, 429, 0)]
        ask_in_turn(base, limiter, *((f"/status/{n}", *answer) for n, *answer in found))


def of_status(request):
    return PlainTextResponse("", request.path_params["status"])


@pytest.mark.parametrize("is_async", [False, True], ids=["function", "coroutine function"])
def test_functions_of_the_status_say_what_counts(is_async):
    def made(test):
        async def later(status):
            return test(status)

        return later if is_async else test

    limiter = rate(5)
    limit = Limit(
        limiter, skip_failed=made(lambda status: status < 500), skip_successful=made(lambda status: status == 304)
    )
    with asgi(starlette(limit, routes=[Route("/{status:int}", of_status)])) as base:
        found = [(404, 5), (304, 5), (500, 4), (302, 3), (200, 2), (499, 2), (503, 1)]
        ask_in_turn(base, limiter, *((f"/{status}", status, left) for status, left in found))


def failing(status):
    raise ValueError("not now")


@pytest.mark.parametrize(
    "function, said", [(failing, "not now"), (str, r"skip_failed\(404\) is '404': expected a bool, not str")]
)
def test_a_request_counts_where_its_function_fails(function, said, caplog):
    """The response has been sent, so nobody is left to get the exception. Other limits are not affected."""
    limiter, other, held = rate(2), rate(2, name="other"), ConcurrencyLimiter(1)
    limits = Limit(limiter, skip_failed=function), Limit(other, skip_failed=True), Limit(held, skip_failed=function)

    def logged():
        return [record for record in caplog.records if record.name == "workglow_limit.serving"]

    with asgi(starlette(*limits, routes=[Route("/{status:int}", of_status)])) as base:
        ask_in_turn(base, held, ("/404", 404, 1))
        wait_until(lambda: len(logged()) == 2)
    assert (limiter.peek().remaining, other.peek().remaining) == (1, 2)
    for record, name in zip(logged(), ("jobs", held.name), strict=True):
        assert re.search(said, str(record.exc_info[1])) and repr(name) in record.getMessage()


def test_a_task_that_is_cancelled_while_its_function_is_asked_holds_nothing():
    async def main():
        asked, held, counted = asyncio.Event(), ConcurrencyLimiter(1), rate(1)

        async def skip(status):
            asked.set()
            await asyncio.Event().wait()

        async def app(scope, receive, send):
            await send({"type": "http.response.start", "status": 404})
            await send({"type": "http.response.body"})

        async def send(message):
            pass

        limited = LimitMiddleware(app, [Limit(held, skip_failed=skip), Limit(counted, skip_failed=True)])
        scope = {"type": "http", "path": "/", "headers": [], "client": ("127.0.0.1", 1)}
        task = asyncio.create_task(limited(scope, None, send))
        await asked.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert held.peek().remaining == 1 and counted.peek().remaining == 1

    asyncio.run(main())


def streaming(release, began=None, after=None):
    async def stream(request):
        async def parts():
            yield b"first"
            if began:
                began.set()
            while not release.is_set():
                await asyncio.sleep(0.002)
                yield b"."
            yield b"last"

        return StreamingResponse(parts(), background=after and BackgroundTask(after))

    return Route("/stream", stream)


def test_concurrency_lasts_until_the_last_byte():
    limiter, release, held = ConcurrencyLimiter(1), threading.Event(), threading.Event()

    def after():
        held.wait(60)

    with asgi(starlette(Limit(limiter), routes=[streaming(release, after=after)])) as base:
        with httpx.stream("GET", f"{base}/stream", timeout=60) as response:
            parts = response.iter_bytes()
            assert next(parts).startswith(b"first") and fields(response)[1] == {"1 concurrent": {"r": 0}}
            assert statuses(base, 2) == [429, 429]
            release.set()
            assert b"".join(parts).endswith(b"last")
        # Work after the response holds no unit.
        wait_until(lambda: limiter.peek().remaining == 1)
        assert statuses(base, 1) == [200]
        held.set()


def test_concurrency_ends_when_the_client_disconnects():
    limiter, never = ConcurrencyLimiter(1), threading.Event()
    with asgi(starlette(Limit(limiter), routes=[streaming(never)])) as base:
        with httpx.stream("GET", f"{base}/stream", timeout=60) as response:
            body = response.iter_bytes()
            next(body)
            assert limiter.peek().remaining == 0
        wait_until(lambda: limiter.peek().remaining == 1)
        assert statuses(base, 1) == [200]


@pytest.mark.parametrize("option", ["skip_failed", "skip_successful"])
def test_a_request_whose_client_disconnects_counts(option):
    counted, held, never = rate(2), ConcurrencyLimiter(1), threading.Event()
    with asgi(starlette(Limit(counted, **{option: True}), Limit(held), routes=[streaming(never)])) as base:
        with httpx.stream("GET", f"{base}/stream", timeout=60) as response:
            body = response.iter_bytes()
            next(body)
        wait_until(lambda: held.peek().remaining == 1)
    assert counted.peek().remaining == 1


def test_concurrency_ends_with_an_error():
    async def broken(request):
        async def parts():
            yield b"first"
            raise ValueError("it failed")

        return StreamingResponse(parts())

    limiter, counted = ConcurrencyLimiter(1), rate(1)
    with asgi(starlette(Limit(limiter), Limit(counted, skip_failed=True), routes=[Route("/broken", broken)])) as base:
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"{base}/broken")
        wait_until(lambda: limiter.peek().remaining == 1)
    assert counted.peek().remaining == 1


def test_cancelled_requests_hold_nothing():
    """As when a server ends: the app's task is cancelled during a response."""
    limiter, counted, arrived = ConcurrencyLimiter(1), rate(1), asyncio.Event

    async def main():
        began = arrived()

        async def app(scope, receive, send):
            began.set()
            await asyncio.sleep(60)

        limited = LimitMiddleware(app, [Limit(limiter), Limit(counted, skip_failed=True)])
        scope = {"type": "http", "path": "/", "headers": [], "client": ("127.0.0.1", 1)}
        task = asyncio.create_task(limited(scope, None, None))
        await began.wait()
        assert limiter.peek().remaining == 0 == counted.peek().remaining
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # A request whose client disconnects counts, or clients could avoid the limit by disconnecting.
        assert limiter.peek().remaining == 1 and counted.peek().remaining == 0

    asyncio.run(main())


def test_other_scopes_pass_unchanged():
    seen = []

    async def app(scope, receive, send):
        seen.append((scope, receive, send))

    scopes = [{"type": "lifespan"}, {"type": "else"}]
    for scope in scopes:
        asyncio.run(LimitMiddleware(app, [Limit(rate(1))])(scope, 1, 2))
    assert all(was[0] is scope and was[1:] == (1, 2) for was, scope in zip(seen, scopes, strict=True))


def test_lifespan_runs():
    started = []

    async def lifespan(app):
        started.append("up")
        yield
        started.append("down")

    app = Starlette(routes=[Route("/", hello)], lifespan=asynccontextmanager(lifespan))
    app.add_middleware(LimitMiddleware, limits=[Limit(rate(1))])
    with asgi(app, lifespan="on") as base:
        assert statuses(base, 2) == [200, 429]
    assert started == ["up", "down"]


def test_websockets():
    """With the option, the handshake is a request, and its unit is held until the socket closes."""

    async def socket(websocket):
        await websocket.accept()
        await websocket.receive_text()
        await websocket.close()

    limiter = ConcurrencyLimiter(1)
    app = starlette(Limit(limiter), websockets=True, routes=[WebSocketRoute("/ws", socket)])

    async def main():
        sent, come = [], asyncio.Queue()

        async def send(message):
            sent.append(message)

        def connect(extensions):
            scope = {
                "type": "websocket",
                "path": "/ws",
                "headers": [],
                "client": ("::1", 1),
                "query_string": b"",
                "extensions": extensions,
            }
            return app(scope, come.get, send)

        come.put_nowait({"type": "websocket.connect"})
        first = asyncio.create_task(connect({}))
        while not sent:
            await asyncio.sleep(0)
        assert sent[0]["type"] == "websocket.accept" and (b"ratelimit", b'"1 concurrent";r=0') in sent[0]["headers"]
        for extensions, kind in (
            ({}, "websocket.close"),
            ({"websocket.http.response": {}}, "websocket.http.response.start"),
        ):
            sent.clear()
            come.put_nowait({"type": "websocket.connect"})
            await connect(extensions)
            assert sent[0]["type"] == kind
        assert sent[0]["status"] == 429 and json.loads(sent[1]["body"])["violated-policies"] == ["1 concurrent"]
        come.put_nowait({"type": "websocket.receive", "text": "bye"})
        await first
        assert limiter.peek().remaining == 1

    asyncio.run(main())


def test_nested_middleware_shares_its_requests():
    """For example a mounted app with its own limits: all or nothing, and one list of headers."""
    outer, inner = rate(5, name="outer"), rate(1, name="inner")
    with asgi(
        LimitMiddleware(LimitMiddleware(Starlette(routes=[Route("/", hello)]), [Limit(inner)]), [Limit(outer)])
    ) as base:
        assert set(fields(httpx.get(base))[0]) == {"outer", "inner"}
        assert statuses(base, 2) == [429, 429]
    assert outer.peek().remaining == 4
