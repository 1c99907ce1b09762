"""The storage for `limits`: exact under each of its strategies, and under Flask-Limiter and slowapi."""

import asyncio
import sys
from pathlib import Path

import flask
import httpx
import pytest
from conftest import run
from flask_limiter import Limiter
from flask_limiter.util import get_remote_address
from limits import aio, parse
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string
from limits.strategies import STRATEGIES
from servers import wsgi

import workglow_limit.limits_storage  # noqa: F401 (registers the schemes)
from workglow_limit import ManualClock, StoreError

sys.path.append(str(Path(__file__).parents[4] / "examples/fleet"))
from evidence import SECOND, most_in_any_window

strategies = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)


@strategies
def test_strategies_agree(strategy):
    clock = ManualClock()
    limiter, item = strategy(storage_from_string("workglow+memory:", clock=clock)), parse("3/10second")
    assert [limiter.hit(item, "a") for _ in range(4)] == [True] * 3 + [False]
    assert not limiter.test(item, "a") and limiter.test(item, "b")
    assert limiter.get_window_stats(item, "a").remaining == 0
    clock.advance(9.9)
    assert not limiter.hit(item, "a")
    clock.advance(0.1)
    assert limiter.hit(item, "a", cost=3) and not limiter.hit(item, "a", cost=1)
    assert not limiter.hit(item, "b", cost=4) and limiter.hit(item, "b", cost=2.5) and not limiter.test(item, "b")
    limiter.clear(item, "a")
    assert limiter.get_window_stats(item, "a").remaining == 3
    assert limiter.storage.reset() == 1 and limiter.get_window_stats(item, "b").remaining == 3
    assert limiter.storage.check()


@pytest.mark.parametrize("strategy", aio.strategies.STRATEGIES.values(), ids=aio.strategies.STRATEGIES)
def test_strategies_agree_in_an_event_loop(strategy):
    async def main():
        clock = ManualClock()
        limiter, item = strategy(storage_from_string("async+workglow+memory:", clock=clock)), parse("3/10second")
        assert [await limiter.hit(item, "a") for _ in range(4)] == [True] * 3 + [False]
        assert not await limiter.test(item, "a") and await limiter.test(item, "b")
        assert (await limiter.get_window_stats(item, "a")).remaining == 0
        clock.advance(10)
        assert await limiter.hit(item, "a", cost=3) and not await limiter.hit(item, "a", cost=1)
        await limiter.clear(item, "a")
        assert (await limiter.get_window_stats(item, "a")).remaining == 3
        assert await limiter.hit(item, "b") and await limiter.storage.reset() == 1
        assert (await limiter.get_window_stats(item, "b")).remaining == 3
        assert await limiter.storage.check()

    asyncio.run(main())


def test_both_storages_share_a_store(tmp_path):
    async def hit():
        limiter = aio.strategies.MovingWindowRateLimiter(storage_from_string(f"async+workglow+sqlite:{tmp_path}/a.db"))
        return await limiter.hit(item, "a")

    item, strategy = parse("2/hour"), STRATEGIES["moving-window"]
    here = strategy(storage_from_string(f"workglow+sqlite:{tmp_path}/a.db"))
    assert asyncio.run(hit()) and here.hit(item, "a") and not asyncio.run(hit()) and not here.hit(item, "a")


def test_errors_in_an_event_loop(tmp_path):
    async def main():
        storage = storage_from_string(f"async+workglow+sqlite:{tmp_path}/none/a.db", wrap_exceptions=True)
        assert not await storage.check()
        with pytest.raises(StorageError):
            await storage.get("a/1/1/second")

    asyncio.run(main())
    with pytest.raises(ConfigurationError, match="name is 5: expected a str"):
        storage_from_string("async+workglow+memory:", name=5)


@strategies
def test_a_fixed_window_has_no_boundary(strategy):
    """The original storage admits the limit before a boundary and again after it."""
    clock = ManualClock()
    limiter, item = strategy(storage_from_string("workglow+memory:", clock=clock)), parse("10/10second")
    starts, now = [], 0.0
    for _ in range(400):
        if limiter.hit(item, "a"):
            starts.append((int(now * SECOND), int(now * SECOND)))
        clock.advance(0.37)
        now = clock.now()
    assert most_in_any_window(starts, 10 * SECOND) == 10


HAMMER = """
import sys
from time import monotonic_ns, sleep
import workglow_limit.limits_storage
from limits import parse
from limits.storage import storage_from_string
from limits.strategies import STRATEGIES

url, strategy = sys.argv[1:]
limiter, item = STRATEGIES[strategy](storage_from_string(url)), parse("50/1second")
hits, end = 0, monotonic_ns() + 2_500_000_000
while (a := monotonic_ns()) < end or hits < 20:  # On a machine that stands still, the time may be over after a single window.
    if limiter.hit(item, "a"):
        print(a, monotonic_ns())
        hits += 1
    else:
        sleep(0.001)
"""


@pytest.mark.parametrize("store", ["sqlite", "redis"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_processes_share_the_limit(strategy, store, request, tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    url = f"sqlite:{tmp_path}/limits.db" if store == "sqlite" else request.getfixturevalue("server").url
    with ThreadPoolExecutor() as pool:
        said = list(pool.map(lambda _: run(HAMMER, f"workglow+{url}", strategy), range(3)))
    starts = [tuple(map(int, line.split())) for output in said for line in output.splitlines()]
    assert len(starts) > 50 and most_in_any_window(starts, SECOND) <= 50


def test_keys_without_a_limit_are_counted():
    storage = storage_from_string("workglow+memory:")
    assert [storage.incr("a", 60), storage.incr("a", 60, 5), storage.get("a"), storage.get("b")] == [1, 6, 6, 0]
    storage.clear("a")
    assert storage.get("a") == 0


def test_flask_limiter():
    app = flask.Flask("app")
    Limiter(
        get_remote_address, app=app, storage_uri="workglow+memory:", default_limits=["2/minute"], headers_enabled=True
    )

    @app.get("/")
    def view():
        return "hello"

    with wsgi(app) as base:
        answers = [httpx.get(base) for _ in range(3)]
    assert [(one.status_code, one.headers["X-RateLimit-Remaining"]) for one in answers] == [
        (200, "1"),
        (200, "0"),
        (429, "0"),
    ]


@pytest.mark.parametrize(
    "uri, options, said",
    [
        ("workglow+sqlite:", {}, "sqlite"),
        ("workglow+memory:", {"name": ""}, "name is '': expected a str, the prefix of its limits' names"),
        ("workglow+memory:", {"timeout": -1}, "timeout is -1"),
        ("workglow+memory:", {"speed": 1}, "speed"),
    ],
)
def test_bad_parameters(uri, options, said):
    with pytest.raises(ConfigurationError, match=said):
        storage_from_string(uri, **options)


def test_errors_are_wrapped_on_request(tmp_path):
    (tmp_path / "file").write_text("no store")
    for wished, error in (False, StoreError), (True, StorageError):
        storage = storage_from_string(f"workglow+sqlite:{tmp_path}/file", wrap_exceptions=wished)
        with pytest.raises(error):
            storage.incr("a/1/1/minute", 60)
        assert not storage.check()
