"""The middleware and the decorator for Django, synchronous and asynchronous."""

import asyncio
import threading

import django
import httpx
import pytest
from django.conf import settings
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied, SuspiciousOperation
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import Http404, HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from servers import ask_in_turn, asgi, fields, wait_until, wsgi
from workglow_limit import ConcurrencyLimiter, ManualClock, RateLimiter, Store
from workglow_limit.django import Limit, LimitMiddleware, limit

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="-",
        MIDDLEWARE=["workglow_limit.django.LimitMiddleware"],
        LOGGING_CONFIG=None,
    )
    django.setup()

release = threading.Event()
views = {}


def rate(n=2, name="jobs"):
    return RateLimiter(Store("memory:", clock=ManualClock()), name, max_executions=n, window_size_in_seconds=60)


def dispatch(name):
    return lambda request, **kwargs: views[name](request, **kwargs)


async def dispatch_async(request):
    return await views["async"](request)


def hello(request):
    return HttpResponse("hello")


def missing(request):
    return HttpResponse("", status=404)


def raises(request):
    raise ValueError("it failed")


def stream(request):
    def parts():
        yield b"first"
        assert release.wait(60)
        yield b"last"

    return StreamingHttpResponse(parts())


async def stream_async(request):
    async def parts():
        yield b"first"
        while not release.is_set():
            await asyncio.sleep(0.002)
            yield b"."
        yield b"last"

    return StreamingHttpResponse(parts())


urlpatterns = [
    path("", hello), path("missing", missing), path("raises", raises), path("stream", stream), path("stream-async", stream_async),
    path("view", dispatch("sync")), path("view-async", dispatch_async),
]  # fmt: skip
servers = pytest.mark.parametrize("serve, handler", [(wsgi, WSGIHandler), (asgi, ASGIHandler)], ids=["wsgi", "asgi"])


def statuses(base, n, path="/", **options):
    return [httpx.get(base + path, timeout=60, **options).status_code for _ in range(n)]


def limited(*limits, **options):
    return override_settings(WORKGLOW_LIMIT={"limits": limits, **options})


@servers
def test_responses_have_the_headers(serve, handler):
    with limited(Limit(rate(), key="address"), exempt=["/missing"]), serve(handler()) as base:
        first, _, refused = (httpx.get(base) for _ in range(3))
        assert statuses(base, 3, "/missing") == [404] * 3
    assert (first.status_code, first.text) == (200, "hello")
    assert fields(first) == ({"jobs": {"q": 2, "w": 60}}, {"jobs": {"r": 1, "t": 60}})
    assert refused.status_code == 429 and refused.headers["Retry-After"] == "60"
    assert refused.headers["Content-Type"] == "application/problem+json" and refused.json()["violated-policies"] == [
        "jobs"
    ]


@servers
def test_exempt_paths_are_those_inside_the_app(serve, handler):
    """The server's part of a path, SCRIPT_NAME, is not."""
    with limited(Limit(rate(1)), exempt=["/missing"]), override_settings(FORCE_SCRIPT_NAME="/api"):
        with serve(handler()) as base:
            assert statuses(base, 3, "/missing") == [404] * 3
            assert statuses(base, 2) == [200, 429]


@servers
def test_failed_requests_need_not_count(serve, handler):
    limiter = rate(1)
    with limited(Limit(limiter, skip_failed=True)), serve(handler()) as base:
        ask_in_turn(base, limiter, ("/missing", 404, 1), ("/raises", 500, 1), ("/", 200, 0), ("/", 429, 0))


@servers
def test_exceptions_of_a_view_count_as_the_status_that_django_answers(serve, handler):
    """Without the middleware the decorator sees the exception of the view, and no response."""
    raised = {
        "missing": Http404,
        "forbidden": PermissionDenied,
        "bad": BadRequest,
        "odd": SuspiciousOperation,
        "wrong": ValueError,
    }
    limiter, seen = rate(5), []

    def skip(status):
        seen.append(status)
        return status == 404

    async def skip_async(status):
        return skip(status)

    def view(request):
        raise raised[request.GET["raise"]]("it failed")

    async def view_async(request):
        view(request)

    views["sync"] = limit(Limit(limiter, skip_failed=skip))(view)
    views["async"] = limit(Limit(limiter, skip_failed=skip_async))(view_async)
    for path in ["/view"] if serve is wsgi else ["/view", "/view-async"]:
        limiter.clear()
        seen.clear()
        with override_settings(MIDDLEWARE=[]), serve(handler()) as base:
            asked = ("missing", 404, 5), ("forbidden", 403, 4), ("bad", 400, 3), ("odd", 400, 2), ("wrong", 500, 1)
            ask_in_turn(base, limiter, *((f"{path}?raise={name}", *answer) for name, *answer in asked))
        assert seen == [404, 403, 400, 400, 500]


@pytest.mark.parametrize("serve, handler, path", [(wsgi, WSGIHandler, "/stream"), (asgi, ASGIHandler, "/stream-async")])
def test_concurrency_lasts_until_the_last_byte(serve, handler, path):
    release.clear()
    limiter = ConcurrencyLimiter(1)
    with limited(Limit(limiter)), serve(handler()) as base:
        with httpx.stream("GET", base + path, timeout=60) as response:
            body = response.iter_bytes()  # Not read further, but kept open.
            assert next(body).startswith(b"first")
            assert statuses(base, 2) == [429, 429]
            release.set()
        wait_until(lambda: limiter.peek().remaining == 1)
        assert statuses(base, 1) == [200]


def test_concurrency_ends_when_the_client_disconnects():
    release.clear()
    limiter = ConcurrencyLimiter(1)
    with limited(Limit(limiter)), asgi(ASGIHandler()) as base:
        with httpx.stream("GET", f"{base}/stream-async", timeout=60) as response:
            body = response.iter_bytes()
            next(body)
            assert limiter.peek().remaining == 0
        wait_until(lambda: limiter.peek().remaining == 1)


@servers
def test_views(serve, handler):
    of_app, searches = rate(3, "app"), rate(1, "searches")
    decorate = limit(Limit(searches, key=lambda request: request.GET["user"]))
    views["sync"] = decorate(hello)

    @decorate
    async def view_async(request):
        return HttpResponse("async")

    views["async"] = view_async
    paths = ["/view"] if serve is wsgi else ["/view", "/view-async"]
    for n, path in enumerate(paths):
        of_app.clear()
        with limited(Limit(of_app)), serve(handler()) as base:
            first = httpx.get(f"{base}{path}?user=ann{n}")
            assert fields(first)[1] == {"app": {"r": 2, "t": 60}, "searches": {"r": 0, "t": 60}}
            assert statuses(base, 2, f"{path}?user=ann{n}") == [429] * 2
            assert of_app.peek().remaining == 2


def test_a_view_without_the_middleware_and_a_class():
    @method_decorator(limit(Limit(rate(1))), name="dispatch")
    class Viewed(View):
        def get(self, request):
            return HttpResponse("hello")

    views["sync"] = Viewed.as_view()
    with override_settings(MIDDLEWARE=[]), wsgi(WSGIHandler()) as base:
        first, second = httpx.get(f"{base}/view"), httpx.get(f"{base}/view")
    assert (first.status_code, second.status_code) == (200, 429) and fields(first)[1] == {"jobs": {"r": 0, "t": 60}}


def test_custom_bodies():
    with (
        limited(Limit(rate(1)), on_limited=lambda request, limited: HttpResponse("mine", status=503)),
        wsgi(WSGIHandler()) as base,
    ):
        assert statuses(base, 2) == [200, 503]


@pytest.mark.parametrize(
    "given, said",
    [
        (7, "WORKGLOW_LIMIT is 7"),
        ({"limits": [7]}, "limits has 7"),
        ({"ipv6_prefix": 0}, "ipv6_prefix is 0"),
        ({"x": 1}, "^WORKGLOW_LIMIT has 'x': expected limits, exempt, trusted_proxies, forwarded_header, "),
    ],
)
def test_invalid_settings(given, said):
    with override_settings(WORKGLOW_LIMIT=given), pytest.raises(ImproperlyConfigured, match=said):
        LimitMiddleware(hello)
