"""A client that is new at a full store gets the status 503, as of an app that is busy, and never the 500 of one that is broken."""

import itertools

import flask
import httpx
import pytest
import test_rest_framework
from aiohttp import web
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings
from fastapi import Depends, FastAPI
from servers import aiohttp_web, asgi, wsgi
from test_django import limited
from workglow_limit import Store, StoreFull, _serving
from workglow_limit.aiohttp_web import AppLimits
from workglow_limit.fastapi import Limit, LimitMiddleware, RouteLimit
from workglow_limit.flask import FlaskLimits
from workglow_limit.wsgi import LimitMiddleware as Wsgi

MIB = 1 << 20


def full(**options):
    """A limit that strangers have filled, with the key "known"."""
    limiter = Store("memory:", max_size=MIB, **options).limiter("jobs", "1000/1h")
    limiter.decide("known")
    with pytest.raises(StoreFull, match='the limit "jobs" is full'):
        for i in range(100_000):
            limiter.decide(f"stranger {i}")
    return limiter


def hello(environ, start_response):
    start_response("200 OK", [])
    return [b"hello"]


def of_flask(limits):
    app = flask.Flask("app")
    FlaskLimits(app, limits)
    app.get("/")(lambda: "hello")
    return app


def of_fastapi(limits, routes=()):
    app = FastAPI()
    app.add_middleware(LimitMiddleware, limits=limits)
    app.get("/", dependencies=[Depends(RouteLimit(one)) for one in routes])(lambda: "hello")
    return app


def of_aiohttp(limits):
    async def hello(request):
        return web.Response(text="hello")

    app = web.Application()
    AppLimits(app, limits)
    app.add_routes([web.get("/", hello)])
    return app


SERVED = {
    "wsgi": lambda limit: wsgi(Wsgi(hello, [limit])),
    "flask": lambda limit: wsgi(of_flask([limit])),
    "fastapi": lambda limit: asgi(of_fastapi([limit])),
    "fastapi's route": lambda limit: asgi(of_fastapi([], [limit])),
    "aiohttp": lambda limit: aiohttp_web(of_aiohttp([limit])),
    "django": lambda limit: wsgi(WSGIHandler()),
    "asynchronous django": lambda limit: asgi(ASGIHandler()),
}


@pytest.mark.parametrize("framework", SERVED)
def test_a_new_client_gets_503_and_known_ones_are_served(framework):
    limiter = full()
    limit = Limit(limiter, key="header:X-Key")
    with limited(limit), SERVED[framework](limit) as base:
        refused = httpx.get(base, headers={"X-Key": "new"}, timeout=60)
        known = httpx.get(base, headers={"X-Key": "known"}, timeout=60)
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
    if framework == "fastapi's route":
        assert known.status_code == 200
        return
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json() == {"type": "about:blank", "title": "Service Unavailable", "status": 503}
    assert (known.status_code, known.text.strip('"')) == (200, "hello")


def test_the_store_can_admit_or_deny_instead():
    for on_error, status in ("admit", 200), ("deny", 429):
        store = Store("memory:", max_size=MIB, on_error=on_error)
        limiter = store.limiter("jobs", "1000/1h")
        strangers = itertools.count()
        while store.failures == 0:
            limiter.decide(f"stranger {next(strangers)}")
        with wsgi(Wsgi(hello, [Limit(limiter, key="header:X-Key")])) as base:
            assert httpx.get(base, headers={"X-Key": "new"}).status_code == status


def test_shadow_mode_refuses_nobody():
    with asgi(of_fastapi([Limit(full(), key="header:X-Key", shadow=True)])) as base:
        assert httpx.get(base, headers={"X-Key": "new"}).status_code == 200


@pytest.mark.parametrize("shadow", [False, True], ids=["refused", "shadow"])
def test_a_warning_a_minute_counts_the_others(shadow, caplog, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(_serving, "monotonic", lambda: now)
    app = Wsgi(hello, [Limit(full(), key="header:X-Key", shadow=shadow)])
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "192.0.2.1", "HTTP_X_KEY": "new"}
    statuses = set()

    def request():
        response = app(environ, lambda status, headers, error=None: statuses.add(status[:3]))
        for _ in response:
            pass
        getattr(response, "close", lambda: None)()

    for moment, warnings in (1000, 1), (1059, 1), (1060, 2), (1060, 2), (1200, 3):
        now = float(moment)
        for _ in range(5):
            request()
        assert len(caplog.records) == warnings
    assert statuses == {"200" if shadow else "503"}
    first, second, third = (record.getMessage() for record in caplog.records)
    assert (
        first.startswith("shadow: " if shadow else "a request got the status 503: ") and "other requests" not in first
    )
    assert second == f"{first} (as for 9 other requests since the last warning)"
    assert third == second


def test_throttles_of_django_rest_framework():
    class Full(test_rest_framework.LimitThrottle):
        limits = (Limit(full(), key="header:X-Key"),)

    class View(test_rest_framework.View):
        throttle_classes = (Full,)

    urls = type("urls", (), {"urlpatterns": [test_rest_framework.path("", View.as_view())]})
    rest = {"UNAUTHENTICATED_USER": None, "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"]}
    with override_settings(ROOT_URLCONF=urls, REST_FRAMEWORK=rest, WORKGLOW_LIMIT={}), wsgi(WSGIHandler()) as base:
        refused = httpx.get(base, headers={"X-Key": "new"})
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
