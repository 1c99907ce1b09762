"""A store that does not answer blocks only the requests that need it."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager

import httpx
import pytest
from servers import asgi, asgi_in_trio, wait_until
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from workglow_limit import ConcurrencyLimiter, RateLimiter, Store
from workglow_limit.fastapi import Limit, LimitMiddleware, limit

HOLD = """
import sqlite3, sys
sqlite3.connect(sys.argv[1], isolation_level=None).execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(path):
    """Another process locks the whole database. (SQLite's locks in this process would end when any file of it is closed.)"""
    stranger = subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert stranger.stdout.readline() == "held\n"
    try:
        yield
    finally:
        stranger.communicate()


def routes(**limits):
    def route(name, one):
        @limit(one)
        async def endpoint(request):
            return PlainTextResponse(name)

        return Route(f"/{name}", endpoint)

    async def up(request):
        return PlainTextResponse("up")

    app = Starlette(routes=[Route("/up", up), *(route(name, one) for name, one in limits.items())])
    app.add_middleware(LimitMiddleware)
    return app


def rate(store):
    """With durability="commit" each start of such a long window is written to the database before its call returns."""
    return Limit(RateLimiter(store, "jobs", max_executions=1000, window_size_in_seconds=3600), key="address")


@pytest.fixture(params=[asgi, asgi_in_trio], ids=["asyncio", "trio"])
def served(request):
    """Serves an app in an event loop."""
    return request.param


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_other_routes_are_not_blocked(kind, served, request, tmp_path):
    other = Store(request.getfixturevalue("server").url)
    if kind == "sqlite":
        stuck = Store(f"sqlite:{tmp_path}/stuck.db", timeout=100, durability="commit")
        stuck.open()
        standstill = locked(tmp_path / "stuck.db")
    else:
        redis = request.getfixturevalue("server_of_its_own")
        stuck = Store(redis.url, timeout=100)
        rate(stuck).limiter.decide()
        standstill = redis.stopped()
    free = rate(Store(f"sqlite:{tmp_path}/free.db")), rate(other)
    app = routes(stuck=rate(stuck), free=free[0], other=free[1])
    with served(app) as base, ThreadPoolExecutor(40) as pool:
        with standstill:
            # More calls than there are threads.
            waiting = [pool.submit(httpx.get, f"{base}/stuck", timeout=100) for _ in range(40)]
            answered = [httpx.get(f"{base}/{path}", timeout=60) for path in ("free", "other") * 20]
            assert [response.status_code for response in answered] == [200] * 40
            assert not any(one.done() for one in waiting)
        wait(waiting, timeout=100)
        assert [one.result().status_code for one in waiting] == [200] * 40


def test_a_store_opens_when_its_app_begins(served, tmp_path):
    """The app starts without one that does not answer within its timeout."""
    free, stuck = Store(f"sqlite:{tmp_path}/free.db"), Store(f"sqlite:{tmp_path}/stuck.db", timeout=0.1)
    RateLimiter(stuck, "other", max_executions=1, window_size_in_seconds=3600).peek()
    limits = [Limit(store.limiter(name, "5/1m")) for name, store in (("stuck", stuck), ("free", free))]
    app = Starlette(routes=[Route("/up", lambda request: PlainTextResponse("up"))])
    app.add_middleware(LimitMiddleware, limits=limits, exempt=["/up"])
    with locked(tmp_path / "stuck.db"), served(app, **({"lifespan": "on"} if served is asgi else {})) as base:
        assert httpx.get(f"{base}/up", timeout=60).status_code == 200
        wait_until((tmp_path / "free.db").exists)


def test_an_app_finds_its_store_open(served, tmp_path):
    """A synchronous call on its loop, also in its own lifespan, would wait for a store that is being opened."""
    store = Store(f"sqlite:{tmp_path}/limits.db")
    found = []

    @asynccontextmanager
    async def lifespan(app):
        found.append(os.path.exists(tmp_path / "limits.db") and store.names())
        yield

    app = Starlette(routes=[Route("/up", lambda request: PlainTextResponse("up"))], lifespan=lifespan)
    app.add_middleware(LimitMiddleware, limits=[Limit(store.limiter("jobs", "5/1m"))], exempt=["/up"])
    with served(app, **({"lifespan": "on"} if served is asgi else {})) as base:
        assert httpx.get(f"{base}/up", timeout=60).status_code == 200
    assert found == [["jobs"]]


def test_a_request_that_gives_up_holds_nothing(served, server_of_its_own):
    """The clients disconnect while Redis is stopped. The units of their requests are returned."""
    limiter = ConcurrencyLimiter(2, store=Store(server_of_its_own.url, timeout=100), name="jobs")
    with limiter.acquire():
        pass
    with served(routes(stuck=Limit(limiter))) as base:
        with server_of_its_own.stopped():
            for _ in range(8):
                with pytest.raises(httpx.ReadTimeout):
                    httpx.get(f"{base}/stuck", timeout=0.1)
        # A request that reached Redis late takes its unit, and returns it, after the others.
        wait_until(lambda: httpx.get(f"{base}/stuck", timeout=60).status_code == 200)
        wait_until(lambda: limiter.peek().remaining == 2)


@pytest.mark.parametrize("on_error, status", [("raise", 500), ("deny", 429), ("admit", 200)])
def test_an_unreachable_store_answers_as_configured(on_error, status, tmp_path):
    store = Store(f"sqlite:{tmp_path}/stuck.db", timeout=0.01, durability="commit", on_error=on_error)
    with asgi(routes(stuck=rate(store))) as base:
        with locked(tmp_path / "stuck.db"):
            response = httpx.get(f"{base}/stuck", timeout=60)
    assert response.status_code == status
    assert ("Retry-After" in response.headers) == (status == 429)
