"""The middleware for WSGI and the extension for Flask, under werkzeug's server."""

import threading

import flask
import httpx
import pytest
from servers import ask_in_turn, fields, wait_until, wsgi
from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response
from workglow_limit import ConcurrencyLimiter, ManualClock, RateLimiter, Store
from workglow_limit.flask import FlaskLimits, limit
from workglow_limit.wsgi import Limit, LimitMiddleware

release = threading.Event()


def rate(n=2, name="jobs"):
    return RateLimiter(Store("memory:", clock=ManualClock()), name, max_executions=n, window_size_in_seconds=60)


def parts():
    yield b"first"
    assert release.wait(60)
    yield b"last"


def plain(limits, **options):
    """A WSGI app without a framework."""

    def app(environ, start_response):
        path = environ["PATH_INFO"]
        if path == "/raises":
            raise ValueError("it failed")
        start_response("404 Not Found" if path == "/missing" else "200 OK", [("X-Mine", "1")])
        return parts() if path == "/stream" else [b"hello"]

    return LimitMiddleware(app, limits, **options)


def of_flask(limits, **options):
    app = flask.Flask("app")
    FlaskLimits(app, limits, **options)

    @app.get("/<path>")
    @app.get("/", defaults={"path": ""})
    def view(path):
        if path == "raises":
            raise ValueError("it failed")
        if path == "missing":
            raise NotFound
        return flask.Response(parts() if path == "stream" else "hello", headers={"X-Mine": "1"})

    return app


both = pytest.mark.parametrize("app", [plain, of_flask])


def statuses(base, n, path="/", **options):
    return [httpx.get(base + path, **options).status_code for _ in range(n)]


@both
def test_responses_have_the_headers(app):
    with wsgi(app([Limit(rate(), key="address")])) as base:
        first, _, refused, head = *(httpx.get(base) for _ in range(3)), httpx.head(base)
    assert (first.status_code, first.text, first.headers["X-Mine"]) == (200, "hello", "1")
    assert fields(first) == ({"jobs": {"q": 2, "w": 60}}, {"jobs": {"r": 1, "t": 60}})
    assert refused.status_code == 429 == head.status_code and refused.headers["Retry-After"] == "60"
    assert fields(refused)[1] == {"jobs": {"r": 0, "t": 60}} and head.content == b""
    assert refused.headers["Content-Type"] == "application/problem+json" and refused.json()["violated-policies"] == [
        "jobs"
    ]


@both
def test_keys_and_exempt_paths(app):
    limits = [Limit(rate(1), key="header:X-API-Key")]
    with wsgi(app(limits, exempt=["/free"], trusted_proxies=["127.0.0.1"])) as base:
        keys = [
            {"X-API-Key": "a"},
            {"X-API-Key": "a"},
            {},
            {"X-Forwarded-For": "1.1.1.1, 2.2.2.2"},
            {"X-Forwarded-For": "2.2.2.2"},
        ]
        assert [httpx.get(base, headers=headers).status_code for headers in keys] == [200, 429, 200, 200, 429]
        assert statuses(base, 3, "/free", headers={"X-API-Key": "a"}) == [200] * 3


@both
def test_failed_and_successful_requests_need_not_count(app):
    limiter = rate(1)
    with wsgi(app([Limit(limiter, skip_failed=True)])) as base:
        ask_in_turn(base, limiter, ("/missing", 404, 1), ("/raises", 500, 1), ("/", 200, 0), ("/", 429, 0))
    limiter = rate(1)
    with wsgi(app([Limit(limiter, skip_successful=True)])) as base:
        ask_in_turn(base, limiter, ("/", 200, 1), ("/", 200, 1), ("/missing", 404, 0), ("/", 429, 0))


@both
def test_functions_of_the_status_say_what_counts(app):
    limiter, seen = rate(3), []

    def is_missing(status):
        seen.append(status)
        return status == 404

    limits = [Limit(limiter, skip_failed=is_missing, skip_successful=True)]
    with wsgi(app(limits)) as base:
        ask_in_turn(base, limiter, ("/missing", 404, 3), ("/raises", 500, 2), ("/", 200, 2))
    assert seen == [404, 500]


@both
def test_concurrency_lasts_until_the_last_byte(app):
    release.clear()
    limiter = ConcurrencyLimiter(1)
    with wsgi(app([Limit(limiter)])) as base:
        with httpx.stream("GET", f"{base}/stream", timeout=60) as response:
            body = response.iter_bytes()  # Not read further, but kept open.
            assert next(body) == b"first"
            assert statuses(base, 2) == [429, 429]
            release.set()
        wait_until(lambda: limiter.peek().remaining == 1)
        ask_in_turn(base, limiter, ("/raises", 500, 1), ("/raises", 500, 1), ("/", 200, 1))


@both
def test_several_limits_are_all_or_nothing(app):
    many, few = rate(9, "many"), rate(1, "few")
    with wsgi(app([Limit(many), Limit(few), Limit(rate(1, "shadow"), shadow=True)])) as base:
        assert statuses(base, 3) == [200, 429, 429]
    assert many.peek().remaining == 8 and many.stats().cancelled == 0


@both
@pytest.mark.parametrize("reply, said", [("text", (429, b"text")), (Response("mine", 503), (503, b"mine"))])
def test_custom_bodies(app, reply, said):
    with wsgi(app([Limit(rate(1))], on_limited=lambda request, limited: reply)) as base:
        assert statuses(base, 1) == [200]
        refused = httpx.get(base)
    assert (refused.status_code, refused.content) == said and refused.headers["Retry-After"] == "60"


def test_views_of_flask():
    app = flask.Flask("app")
    of_app, searches = rate(3, "app"), rate(1, "searches")
    FlaskLimits(app, [Limit(of_app)])

    @app.get("/search/<user>")
    @limit(Limit(searches, key=lambda request: request.view_args["user"]))
    def search(user):
        return user

    @app.get("/stream")
    @limit(Limit(ConcurrencyLimiter(1), name="at once"))
    def stream():
        return flask.Response(parts())

    with wsgi(app) as base:
        first = httpx.get(f"{base}/search/ann")
        assert fields(first)[1] == {"app": {"r": 2, "t": 60}, "searches": {"r": 0, "t": 60}}
        assert statuses(base, 2, "/search/ann") == [429] * 2
        assert of_app.peek().remaining == 2
        assert statuses(base, 1, "/search/bob") == [200]
        release.clear()
        with httpx.stream("GET", f"{base}/stream", timeout=60):
            assert statuses(base, 1, "/stream") == [429]
            release.set()


def test_coroutine_views_of_flask():
    pytest.importorskip("asgiref")
    app = flask.Flask("app")
    FlaskLimits(app)

    @app.get("/")
    @limit(Limit(rate(1)))
    async def view():
        return "hello"

    with wsgi(app) as base:
        assert statuses(base, 2) == [200, 429]


def test_a_view_without_the_extension_raises():
    app = flask.Flask("app")
    app.testing = True

    @app.get("/")
    @limit(Limit(rate(1)))
    def view():
        return "hello"

    with pytest.raises(RuntimeError, match="the view has a limit, but its app has none"):
        app.test_client().get("/")


def test_an_app_can_be_limited_once():
    app = flask.Flask("app")
    FlaskLimits(app)
    with pytest.raises(RuntimeError, match="the app already has limits"):
        FlaskLimits(app)
