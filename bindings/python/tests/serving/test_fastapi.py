"""Limits of routes, in FastAPI and Starlette, under uvicorn."""

import threading

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, HTTPException, WebSocket
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from fastapi.testclient import TestClient
from servers import ask_in_turn, asgi, fields, wait_until
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.requests import Request
from starlette.middleware import Middleware
from starlette.routing import Mount, Route, Router
from starlette.testclient import WebSocketDenialResponse
from starlette.websockets import WebSocketDisconnect
from workglow_limit import ConcurrencyLimiter, ManualClock, RateLimiter, Store
from workglow_limit.fastapi import Limit, LimitMiddleware, RouteLimit, limit


def rate(n, name):
    return RateLimiter(Store("memory:", clock=ManualClock()), name, max_executions=n, window_size_in_seconds=60)


def statuses(base, path, n):
    return [httpx.get(f"{base}{path}").status_code for _ in range(n)]


def test_dependencies():
    app = FastAPI()
    of_app, searches, of_router = rate(5, "app"), rate(2, "searches"), rate(1, "router")
    app.add_middleware(LimitMiddleware, limits=[Limit(of_app, key="address")], exempt=["/free"])
    by_user = Limit(searches, key=lambda request: request.query_params.get("user"))

    @app.get("/search", dependencies=[Depends(RouteLimit(by_user))])
    def search():
        return {"found": []}

    @app.get("/response", dependencies=[Depends(RouteLimit(Limit(rate(1, "response"))))])
    async def response():
        return PlainTextResponse("mine")

    @app.get("/free", dependencies=[Depends(RouteLimit(by_user))])
    async def free():
        return "free"

    router = APIRouter(dependencies=[Depends(RouteLimit(Limit(of_router)))])

    @router.get("/routed")
    async def routed():
        return "routed"

    app.include_router(router)
    with asgi(app) as base:
        first = httpx.get(f"{base}/search?user=ann")
        assert fields(first) == (
            {"app": {"q": 5, "w": 60}, "searches": {"q": 2, "w": 60}},
            {"app": {"r": 4, "t": 60}, "searches": {"r": 1, "t": 60}},
        )
        assert statuses(base, "/search?user=ann", 3) == [200, 429, 429]
        refused = httpx.get(f"{base}/search?user=ann")
        assert refused.headers["Content-Type"] == "application/problem+json"
        assert refused.json()["violated-policies"] == ["searches"] and set(fields(refused)[0]) == {"app", "searches"}
        # A refusal by a route consumes nothing of the app's limit.
        assert of_app.peek("127.0.0.1").remaining == 3
        assert set(fields(httpx.get(f"{base}/response"))[0]) == {"app", "response"}
        assert statuses(base, "/free?user=ann", 9) == [200] * 9
        assert statuses(base, "/routed", 2) == [200, 429]
        assert statuses(base, "/search?user=bob", 2) == [200, 429]  # Now the app's limit denies.


def limited_once(app, name="route"):
    """Adds a route that is limited to one request."""

    @app.get("/once", dependencies=[Depends(RouteLimit(Limit(rate(1, name))))])
    def once():
        return "once"


def mounted(app):
    inner = FastAPI()
    limited_once(inner)
    app.mount("/v1", inner)


def with_a_catch_all(app):
    inner = FastAPI()
    limited_once(inner)

    @inner.exception_handler(Exception)
    async def everything(request, error):
        return PlainTextResponse("caught", 500)

    app.mount("/v1", inner)


def within_a_middleware_that_catches(app):
    @app.middleware("http")
    async def caught(request, call_next):
        try:
            return await call_next(request)
        except Exception:
            return PlainTextResponse("caught", 500)

    limited_once(router := APIRouter(prefix="/v1"))
    app.include_router(router)


@pytest.mark.parametrize("build", [mounted, with_a_catch_all, within_a_middleware_that_catches])
def test_the_refusal_of_a_route_passes_inner_apps(build):
    app = FastAPI()
    build(app)
    app.add_middleware(LimitMiddleware)
    with asgi(app) as base:
        assert statuses(base, "/v1/once", 1) == [200]
        refused = httpx.get(f"{base}/v1/once")
    assert refused.status_code == 429 and refused.headers["Retry-After"] == "60"
    assert refused.json()["violated-policies"] == ["route"] and fields(refused)[1] == {"route": {"r": 0, "t": 60}}


def test_the_refusal_of_a_route_has_the_headers_of_inner_middleware():
    app = FastAPI()
    limited_once(app)
    app.add_middleware(CORSMiddleware, allow_origins=["https://example.com"])
    app.add_middleware(LimitMiddleware, on_limited=lambda request, limited: f"slow down, {request.url.path}")
    with asgi(app) as base:
        for status in 200, 429:
            response = httpx.get(f"{base}/once", headers={"Origin": "https://example.com"})
            assert response.status_code == status
            assert response.headers["Access-Control-Allow-Origin"] == "https://example.com"
        assert response.text == "slow down, /once" and response.headers["Retry-After"] == "60"


def test_the_refusal_of_a_route_can_be_handled():
    app = FastAPI()
    limited_once(app)
    app.add_middleware(LimitMiddleware)

    @app.exception_handler(429)
    async def too_many(request, error):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    with asgi(app) as base:
        assert statuses(base, "/once", 1) == [200]
        refused = httpx.get(f"{base}/once")
    assert refused.json() == {"error": "Request cannot be satisfied as assigned quota has been exceeded"}
    assert refused.status_code == 429 and fields(refused)[1] == {"route": {"r": 0, "t": 60}}


def sockets(limiter, **options):
    app = FastAPI()
    app.add_middleware(LimitMiddleware, **options)
    router = APIRouter(dependencies=[Depends(RouteLimit(Limit(limiter)))])

    @router.websocket("/ws")
    async def socket(websocket: WebSocket):
        await websocket.accept()
        await websocket.send_text("hello")
        await websocket.receive_text()

    app.include_router(router)
    return TestClient(app)


def test_websockets_of_a_limited_route():
    limiter = ConcurrencyLimiter(1)
    client = sockets(limiter, websockets=True)
    with client.websocket_connect("/ws") as first:
        assert first.receive_text() == "hello" and limiter.peek().remaining == 0
        with pytest.raises(WebSocketDenialResponse) as denied, client.websocket_connect("/ws"):
            pass
        assert denied.value.status_code == 429 and denied.value.headers["Retry-After"] == "1"
        first.send_text("bye")
    wait_until(lambda: limiter.peek().remaining == 1)


def test_a_server_that_cannot_answer_closes_the_websocket():
    limiter = ConcurrencyLimiter(1)
    client = sockets(limiter, websockets=True)
    limited = client.app

    async def without_responses(scope, receive, send):
        await limited({**scope, "extensions": {}}, receive, send)

    client = TestClient(without_responses)
    with limiter.acquire(), pytest.raises(WebSocketDisconnect) as closed, client.websocket_connect("/ws"):
        pass
    assert (closed.value.code, closed.value.reason) == (1008, "too many requests")


def test_a_websocket_that_was_accepted_already_is_closed():
    """The refusal does not wait for a message of the client, which need not send one."""
    limiter = ConcurrencyLimiter(1)

    async def accept(websocket: WebSocket):
        await websocket.accept()

    app = FastAPI()
    app.add_middleware(LimitMiddleware, websockets=True)

    @app.websocket("/ws", dependencies=[Depends(accept), Depends(RouteLimit(Limit(limiter)))])
    async def socket(websocket: WebSocket): ...

    with limiter.acquire(), TestClient(app).websocket_connect("/ws") as client:
        with pytest.raises(WebSocketDisconnect) as closed:
            client.receive_text()
        assert (closed.value.code, closed.value.reason) == (1008, "too many requests")


def test_websockets_do_not_count_without_the_option():
    limiter = ConcurrencyLimiter(1)
    client = sockets(limiter)
    with limiter.acquire(), client.websocket_connect("/ws") as socket:
        assert socket.receive_text() == "hello"
        socket.send_text("bye")


def test_a_dependency_without_the_middleware_raises():
    app, errors = FastAPI(), []

    @app.get("/", dependencies=[Depends(RouteLimit(Limit(rate(1, "a"))))])
    def root():
        return 1

    @app.exception_handler(RuntimeError)
    async def handler(request, error):
        errors.append(str(error))
        return PlainTextResponse("", 500)

    with asgi(app) as base:
        assert statuses(base, "/", 1) == [500]
    assert errors == ["the route has a limit, but its app has no middleware: call app.add_middleware(LimitMiddleware)"]


def test_a_route_holds_its_permit_for_its_stream():
    app, limiter, release = FastAPI(), ConcurrencyLimiter(1), threading.Event()
    app.add_middleware(LimitMiddleware)

    @app.get("/stream", dependencies=[Depends(RouteLimit(Limit(limiter)))])
    def stream():
        def parts():
            yield "first"
            assert release.wait(60)
            yield "last"

        return StreamingResponse(parts())

    with asgi(app) as base:
        with httpx.stream("GET", f"{base}/stream", timeout=60) as response:
            body = response.iter_text()  # Not read further, but kept open.
            assert next(body) == "first"
            assert statuses(base, "/stream", 2) == [429, 429]
            release.set()
        wait_until(lambda: limiter.peek().remaining == 1)
        assert statuses(base, "/stream", 1) == [200]


def test_routes_that_fail_need_not_count():
    app, limiter = FastAPI(), rate(1, "a")
    app.add_middleware(LimitMiddleware)

    @app.get("/{status}", dependencies=[Depends(RouteLimit(Limit(limiter, skip_failed=True)))])
    def fail(status: int):
        if status != 200:
            raise HTTPException(status)

    with asgi(app) as base:
        ask_in_turn(base, limiter, ("/404", 404, 1), ("/500", 500, 1), ("/200", 200, 0), ("/200", 429, 0))


def test_exceptions_that_the_app_answers_count_as_their_status():
    """The middleware of a router sees the exception of a route that does not exist, and no response."""
    limiter, seen = rate(2, "a"), []

    async def raises(request):
        raise ValueError("it failed")

    def skip(status):
        seen.append(status)
        return status == 404

    middleware = Middleware(LimitMiddleware, limits=[Limit(limiter, skip_failed=skip)])
    router = Router([Route("/raises", raises)], middleware=[middleware])
    with asgi(Starlette(routes=[Mount("/in", router)])) as base:
        ask_in_turn(base, limiter, ("/in/missing", 404, 2), ("/in/raises", 500, 1))
    assert seen == [404, 500]


def test_starlette_endpoints():
    @limit(Limit(rate(1, "function")))
    async def function(request):
        return PlainTextResponse("function")

    @limit(Limit(rate(1, "thread")))
    def in_a_thread(request):
        return PlainTextResponse(threading.current_thread().name)

    class Endpoint(HTTPEndpoint):
        @limit(Limit(rate(1, "method"), key="address"))
        async def get(self, request):
            return PlainTextResponse("method")

    app = Starlette(routes=[Route("/function", function), Route("/thread", in_a_thread), Route("/method", Endpoint)])
    app.add_middleware(LimitMiddleware)
    with asgi(app) as base:
        for path in "/function", "/method":
            assert statuses(base, path, 2) == [200, 429]
        assert "AnyIO" in httpx.get(f"{base}/thread").text and statuses(base, "/thread", 1) == [429]


def test_decorated_functions_of_fastapi():
    app = FastAPI()
    app.add_middleware(LimitMiddleware)

    @app.get("/{n}")
    @limit(Limit(rate(1, "a"), key=lambda request: request.path_params["n"]))
    async def numbered(n: int, request: Request):
        return n

    with asgi(app) as base:
        assert [statuses(base, f"/{n}", 2) for n in (1, 2)] == [[200, 429]] * 2
        assert httpx.get(f"{base}/x").status_code == 422
