"""The limits of aiohttp's server, under that server."""

import asyncio
import threading

import aiohttp
import httpx
import pytest
from aiohttp import web
from servers import aiohttp_web, ask_in_turn, fields, wait_until
from workglow_limit import ConcurrencyLimiter, ManualClock, RateLimiter, Store
from workglow_limit.aiohttp_web import USER, AppLimits, Limit, limit

release = threading.Event()


def rate(n=2, name="jobs"):
    return RateLimiter(Store("memory:", clock=ManualClock()), name, max_executions=n, window_size_in_seconds=60)


async def released():
    assert await asyncio.to_thread(release.wait, 60)


async def parts():
    yield b"first"
    await released()
    yield b"last"


async def hello(request):
    return web.Response(text="hello", headers={"X-Mine": "1"})


async def raises(request):
    raise ValueError("it failed")


async def missing(request):
    raise web.HTTPNotFound


async def prepared(request):
    """A stream that the handler writes."""
    response = web.StreamResponse()
    await response.prepare(request)
    async for part in parts():
        await response.write(part)
    return response


async def returned(request):
    """A stream that the server writes after the handler."""
    return web.Response(body=parts())


async def socket(request):
    answers = web.WebSocketResponse()
    await answers.prepare(request)
    async for message in answers:
        await answers.send_str(message.data)
    return answers


def app_of(limits=(), *, before=(), **options):
    app = web.Application(middlewares=before)
    AppLimits(app, limits, **options)
    handlers = raises, missing, prepared, returned, socket
    app.add_routes([web.get("/", hello), *(web.get(f"/{one.__name__}", one) for one in handlers)])
    return app


def statuses(base, n, path="/", **options):
    return [httpx.get(base + path, **options).status_code for _ in range(n)]


def test_responses_have_the_headers():
    with aiohttp_web(app_of([Limit(rate(), key="address")])) as base:
        first, _, refused, head = *(httpx.get(base) for _ in range(3)), httpx.head(base)
    assert (first.status_code, first.text, first.headers["X-Mine"]) == (200, "hello", "1")
    assert fields(first) == ({"jobs": {"q": 2, "w": 60}}, {"jobs": {"r": 1, "t": 60}})
    assert refused.status_code == 429 == head.status_code and refused.headers["Retry-After"] == "60"
    assert fields(refused)[1] == {"jobs": {"r": 0, "t": 60}} and head.content == b""
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["violated-policies"] == ["jobs"]


def test_every_kind_of_response_has_them_once():
    release.set()
    with aiohttp_web(app_of([Limit(rate(9))])) as base:
        for path in "/", "/raises", "/missing", "/nowhere", "/prepared", "/returned":
            assert len(httpx.get(base + path).headers.get_list("RateLimit")) == 1, path
    with aiohttp_web(app_of([Limit(rate(1))], headers=False)) as base:
        for answer in httpx.get(base), httpx.get(base):
            assert "RateLimit" not in answer.headers


def test_keys_exempt_paths_and_users():
    @web.middleware
    async def knows_users(request, handler):
        if "X-User" in request.headers:
            request[USER] = request.headers["X-User"]
        return await handler(request)

    limits = [Limit(rate(1, "users"), key="user"), Limit(rate(9, "tokens"), key="header:X-API-Key")]
    app = app_of(limits, before=[knows_users], exempt=["/missing"], trusted_proxies=["127.0.0.1"])
    with aiohttp_web(app) as base:
        users = [{"X-User": "a"}, {"X-User": "a"}, {"X-User": "b"}, {}, {"X-Forwarded-For": "2.2.2.2"}, {}]
        assert [httpx.get(base, headers=headers).status_code for headers in users] == [200, 429, 200, 200, 200, 429]
        assert statuses(base, 3, "/missing") == [404] * 3


def test_failed_and_successful_requests_need_not_count():
    limiter = rate(1)
    with aiohttp_web(app_of([Limit(limiter, skip_failed=True)])) as base:
        ask_in_turn(base, limiter, ("/missing", 404, 1), ("/raises", 500, 1), ("/", 200, 0), ("/", 429, 0))
    limiter = rate(1)
    with aiohttp_web(app_of([Limit(limiter, skip_successful=True)])) as base:
        ask_in_turn(base, limiter, ("/", 200, 1), ("/", 200, 1), ("/missing", 404, 0), ("/", 429, 0))


@pytest.mark.parametrize("path", ["/prepared", "/returned"])
def test_a_stream_holds_its_slot_until_its_end(path):
    limiter = ConcurrencyLimiter(1)
    with aiohttp_web(app_of([Limit(limiter)])) as base:
        release.clear()
        with httpx.stream("GET", base + path, timeout=60) as stream:
            received = stream.iter_raw()
            assert next(received) == b"first" and statuses(base, 1) == [429]
            release.set()
            assert b"".join(received) == b"last"
        wait_until(lambda: limiter.peek().remaining == 1)
        assert statuses(base, 2) == [200, 200]


@pytest.mark.parametrize("path", ["/prepared", "/returned"])
def test_a_client_that_leaves_gives_its_slot_back(path):
    slots = ConcurrencyLimiter(1)
    with aiohttp_web(app_of([Limit(slots)])) as base:
        release.clear()
        with httpx.stream("GET", base + path, timeout=60) as stream:
            assert next(stream.iter_raw()) == b"first" and slots.peek().remaining == 0
        # The server notices when it writes again.
        release.set()
        wait_until(lambda: slots.peek().remaining == 1)


async def with_sockets(base, uses):
    async with aiohttp.ClientSession() as session:
        await uses(lambda: session.ws_connect(f"{base}/socket"))


def test_a_websocket_is_a_request():
    async def uses(connect):
        async with connect() as first:
            await first.send_str("ping")
            assert (await first.receive()).data == "ping"
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await connect()
            assert refused.value.status == 429 and refused.value.headers["Retry-After"] == "1"

    slots = ConcurrencyLimiter(1)
    with aiohttp_web(app_of([Limit(slots)])) as base:
        asyncio.run(with_sockets(base, uses))
        wait_until(lambda: slots.peek().remaining == 1)

    async def uses_two(connect):
        async with connect(), connect():
            pass

    with aiohttp_web(app_of([Limit(ConcurrencyLimiter(1))], exempt=["/socket"])) as base:
        asyncio.run(with_sockets(base, uses_two))


def test_a_header_that_asks_for_a_websocket_avoids_no_limit():
    """Once, each request with this header was admitted."""
    with aiohttp_web(app_of([Limit(rate(1))])) as base:
        assert statuses(base, 2, headers={"Connection": "Upgrade", "Upgrade": "websocket"}) == [200, 429]


def test_a_file_is_sent_once(tmp_path, caplog):
    """Once, it was sent by the middleware, and then by the server."""
    (tmp_path / "page.txt").write_text("a file")
    slots = ConcurrencyLimiter(1)
    app = app_of([Limit(slots)])

    async def file(request):
        return web.FileResponse(tmp_path / "page.txt")

    app.add_routes([web.get("/file", file), web.static("/static", tmp_path)])
    with aiohttp_web(app) as base, httpx.Client(base_url=base) as client:
        for path in "/file", "/static/page.txt", "/file":
            assert client.get(path).text == "a file"
    assert slots.peek().remaining == 1
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_limits_of_handlers_and_nested_apps():
    of_app, searches, of_nested = rate(6, "app"), rate(1, "searches"), rate(1, "nested")
    by_user = Limit(searches, key=lambda request: request.query.get("user"))
    app, nested = web.Application(), web.Application()
    AppLimits(app, [Limit(of_app)], exempt=["/free"])
    AppLimits(nested, [Limit(of_nested)])

    @limit(by_user)
    async def search(request):
        return web.Response(text="found")

    class Search(web.View):
        @limit(by_user)
        async def get(self):
            return web.Response(text="found")

    nested.add_routes([web.get("/", hello)])
    app.add_routes([web.get("/search", search), web.get("/free", search), web.view("/view", Search)])
    app.add_subapp("/nested", nested)
    with aiohttp_web(app) as base:
        first = httpx.get(f"{base}/search?user=ann")
        assert fields(first)[1] == {"app": {"r": 5, "t": 60}, "searches": {"r": 0, "t": 60}}
        refused = httpx.get(f"{base}/search?user=ann")
        assert refused.status_code == 429 and refused.json()["violated-policies"] == ["searches"]
        assert len(refused.headers.get_list("RateLimit")) == 1 and of_app.peek().remaining == 5
        assert statuses(base, 2, "/view?user=bob") == [200, 429]
        assert statuses(base, 3, "/free?user=ann") == [200] * 3
        inner = httpx.get(f"{base}/nested/")
        assert fields(inner)[1] == {"app": {"r": 3, "t": 60}, "nested": {"r": 0, "t": 60}}
        assert statuses(base, 1, "/nested/") == [429] and of_app.peek().remaining == 3


def test_a_program_may_answer_itself():
    def on_limited(request, limited):
        answers = {
            "/": None,
            "/missing": {"name": limited.name},
            "/raises": "later",
            "/prepared": web.Response(text="mine", status=503, headers={"Retry-After": "7"}),
            "/returned": 5,
        }
        return answers[request.path]

    with aiohttp_web(app_of([Limit(rate(1))], on_limited=on_limited)) as base:
        assert statuses(base, 1) == [200]
        answers = [httpx.get(f"{base}/{path}") for path in ("", "missing", "raises", "prepared", "returned")]
    assert [one.status_code for one in answers] == [429, 429, 429, 503, 500]
    assert (answers[1].json(), answers[2].text, answers[3].text) == ({"name": "jobs"}, "later", "mine")
    assert [one.headers["Retry-After"] for one in answers[:4]] == ["60", "60", "60", "7"]


def test_stores_are_open_before_the_first_request(tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    with aiohttp_web(app_of([Limit(store.limiter("jobs", "5/1m"))])):
        assert (tmp_path / "limits.db").exists()


def test_misuse():
    with pytest.raises(TypeError, match="expected at least one Limit"):
        limit()
    with pytest.raises(TypeError, match="is not a function: in a class, decorate its methods"):
        limit(Limit(rate()))(web.View)
    with pytest.raises(TypeError, match="was called without a request"):
        asyncio.run(limit(Limit(rate()))(hello)())
    app = web.Application()
    app.add_routes([web.get("/", limit(Limit(rate()))(hello))])
    with aiohttp_web(app) as base:
        assert statuses(base, 1) == [500]  # RuntimeError: the app has no limits
