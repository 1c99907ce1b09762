"""Errors name the parameter, the value and the expectation when a limit or an app is created."""

import asyncio
import re

import pytest
from aiohttp import web
from workglow_limit import InvalidArgument, NullLimiter, RateLimiter, Store
from workglow_limit.aiohttp_web import AppLimits
from workglow_limit.asgi import Limit
from workglow_limit.asgi import LimitMiddleware as Asgi
from workglow_limit.fastapi import RouteLimit
from workglow_limit.fastapi import limit as endpoint
from workglow_limit.flask import FlaskLimits
from workglow_limit.wsgi import LimitMiddleware as Wsgi

ONE = NullLimiter()


async def asynchronous(request):
    return None


@pytest.mark.parametrize(
    "given, options, error, said",
    [
        (None, {}, TypeError, "limiter is None: expected a Limiter, or a mapping of Limiters, not NoneType"),
        ("100/1m", {}, TypeError, "limiter is '100/1m': expected a Limiter"),
        (NullLimiter, {}, TypeError, "limiter is <class"),
        ({}, {"plan": str}, InvalidArgument, "limiter is {}: expected a mapping of plan names to at least one Limiter"),
        ({"a": "b"}, {"plan": str}, InvalidArgument, "limiter is {'a': 'b'}: expected"),
        ({1: ONE}, {"plan": str}, InvalidArgument, "limiter is {1: "),
        ({"a": ONE}, {}, InvalidArgument, "plan is None: expected a function of the request"),
        ({"a": ONE}, {"plan": "a"}, TypeError, "plan is 'a': expected a function, not str"),
        (ONE, {"plan": str}, InvalidArgument, "plan is <class 'str'>: expected none with one limiter"),
        (ONE, {"key": "ip"}, InvalidArgument, 'key is \'ip\': expected "address", "user", "header:NAME"'),
        (ONE, {"key": ""}, InvalidArgument, "key is '': expected"),
        (ONE, {"key": "header:"}, InvalidArgument, "key is 'header:': expected"),
        (ONE, {"key": "header:a b"}, InvalidArgument, "key is 'header:a b': expected"),
        (ONE, {"key": "cookie:a"}, InvalidArgument, "key is 'cookie:a': expected"),
        (ONE, {"key": 7}, TypeError, "key is 7: expected a function, not int"),
        (ONE, {"weight": 0}, InvalidArgument, "weight is 0: expected a whole number of at least 1"),
        (ONE, {"weight": -1}, InvalidArgument, "weight is -1: expected"),
        (ONE, {"weight": True}, TypeError, "weight is True: expected a whole number, not bool"),
        (ONE, {"weight": {"tokens": 0}}, InvalidArgument, "weight['tokens'] is 0: expected a whole number"),
        (ONE, {"weight": {5: 1}}, TypeError, "weight is 5: expected the name of a part as a str, not int"),
        (ONE, {"weight": 1.5}, TypeError, "weight is 1.5: expected a whole number, not float"),
        (ONE, {"skip_failed": 1}, TypeError, "skip_failed is 1: expected a bool, or a function of the status, not int"),
        (ONE, {"skip_successful": "no"}, TypeError, "skip_successful is 'no': expected a bool"),
        (
            ONE,
            {"skip_failed": True, "skip_successful": True},
            InvalidArgument,
            "skip_successful is True: expected False with skip_failed",
        ),
        (ONE, {"shadow": None}, TypeError, "shadow is None: expected a bool"),
        (ONE, {"name": ""}, InvalidArgument, "name is '': expected printable ASCII"),
        (ONE, {"name": "é"}, InvalidArgument, "name is 'é': expected printable ASCII"),
        (ONE, {"name": "a\nb"}, InvalidArgument, r"name is 'a\nb': expected printable ASCII"),
        (ONE, {"name": 1}, TypeError, "name is 1: expected a str, not int"),
        (ONE, {"wait": 1}, TypeError, "unexpected keyword argument 'wait'"),
    ],
)
def test_a_limit(given, options, error, said):
    with pytest.raises(error, match=re.escape(said)):
        Limit(given, **options)


@pytest.mark.parametrize(
    "made",
    [
        lambda *a, **k: Asgi(None, *a, **k),
        lambda *a, **k: Wsgi(None, *a, **k),
        lambda *a, **k: FlaskLimits(None, *a, **k),
        lambda *a, **k: AppLimits(web.Application(), *a, **k),
    ],
)
@pytest.mark.parametrize(
    "limits, options, error, said",
    [
        (Limit(ONE), {}, TypeError, "limits is <workglow_limit._limit.Limit"),
        (None, {}, TypeError, "limits is None: expected a list of Limit, not NoneType"),
        ("abc", {}, TypeError, "limits is 'abc': expected a list of Limit"),
        ([ONE], {}, TypeError, "limits has <NullLimiter"),
        ([Limit(ONE), Limit(ONE)], {}, InvalidArgument, "name is 'null': expected a different name for each limit"),
        ([], {"exempt": "/health"}, TypeError, "exempt is '/health': expected a list of paths"),
        ([], {"exempt": ["health"]}, InvalidArgument, "exempt is 'health': expected a list of paths"),
        ([], {"exempt": ["/a*b"]}, InvalidArgument, "exempt is '/a*b': expected"),
        ([], {"exempt": [1]}, InvalidArgument, "exempt is 1: expected"),
        ([], {"exempt": None}, TypeError, "exempt is None: expected"),
        ([], {"trusted_proxies": "10.0.0.0/8"}, TypeError, "trusted_proxies is '10.0.0.0/8': expected a list"),
        (
            [],
            {"trusted_proxies": ["10.0.0.1/8"]},
            InvalidArgument,
            "trusted_proxies is '10.0.0.1/8': expected addresses and networks",
        ),
        ([], {"trusted_proxies": ["all"]}, InvalidArgument, "trusted_proxies is 'all': expected"),
        ([], {"trusted_proxies": [7]}, InvalidArgument, "trusted_proxies is 7: expected"),
        ([], {"trusted_proxies": 1}, TypeError, "trusted_proxies is 1: expected a list"),
        ([], {"forwarded_header": "X-Real-IP"}, InvalidArgument, "forwarded_header is 'X-Real-IP': expected"),
        ([], {"forwarded_header": None}, InvalidArgument, "forwarded_header is None: expected"),
        ([], {"ipv6_prefix": 0}, InvalidArgument, "ipv6_prefix is 0: expected 1 to 128"),
        ([], {"ipv6_prefix": 129}, InvalidArgument, "ipv6_prefix is 129: expected 1 to 128"),
        ([], {"ipv6_prefix": "64"}, TypeError, "ipv6_prefix is '64': expected a whole number, not str"),
        ([], {"on_limited": {"error": 1}}, TypeError, "on_limited is {'error': 1}: expected a function, not dict"),
        ([], {"headers": "yes"}, TypeError, "headers is 'yes': expected a bool, not str"),
        ([], {"header": True}, TypeError, "unexpected keyword argument 'header'"),
    ],
)
def test_an_app(made, limits, options, error, said):
    with pytest.raises(error, match=re.escape(said)):
        made(limits, **options)


@pytest.mark.parametrize(
    "made, name, own",
    [
        (lambda **options: Asgi(None, **options), "LimitMiddleware", "limits, websockets"),
        (lambda **options: Wsgi(None, **options), "LimitMiddleware", "limits"),
        (lambda **options: FlaskLimits(None, **options), "FlaskLimits", "limits"),
        (lambda **options: AppLimits(web.Application(), **options), "AppLimits", "limits"),
    ],
)
def test_an_unknown_option_names_the_public_class_and_lists_its_options(made, name, own):
    options = "exempt, trusted_proxies, forwarded_header, ipv6_prefix, on_limited, headers"
    message = f"{name}() got an unexpected keyword argument 'header': expected {own}, {options}"
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        made(header=True)


def test_websockets_is_a_bool():
    with pytest.raises(TypeError, match="^websockets is 1: expected a bool, not int$"):
        Asgi(None, [], websockets=1)


@pytest.mark.parametrize("made", [Wsgi, FlaskLimits])
def test_coroutine_functions_are_refused_by_synchronous_frameworks(made):
    for option in "key", "weight", "skip_failed", "skip_successful":
        with pytest.raises(
            InvalidArgument, match="expected no coroutine functions, because this framework is synchronous"
        ):
            made(None, [Limit(ONE, **{option: asynchronous})])
    for option in "exempt", "on_limited":
        with pytest.raises(InvalidArgument, match=f"^{option} is .*expected a function, not a coroutine function"):
            made(None, [], **{option: asynchronous})


def test_routes():
    for made in RouteLimit, endpoint:
        with pytest.raises(TypeError, match="expected at least one Limit"):
            made()
        with pytest.raises(TypeError, match="expected a Limit, not NullLimiter"):
            made(ONE)
    with pytest.raises(TypeError, match="is not a function"):
        endpoint(Limit(ONE))(RouteLimit)


@pytest.mark.parametrize(
    "options, error, said",
    [
        ({"weight": lambda scope: 0}, InvalidArgument, "weight is 0: expected a whole number of at least 1"),
        ({"weight": lambda scope: {"a": "1"}}, TypeError, "weight['a'] is '1': expected a whole number, not str"),
        ({"weight": lambda scope: "1"}, TypeError, "weight is '1': expected a whole number, not str"),
        ({"key": lambda scope: object()}, TypeError, "key is <object object at "),
    ],
)
def test_results_of_functions_are_checked(options, error, said):
    """The request fails, and units taken before are returned."""
    first = RateLimiter(Store("memory:"), "first", max_executions=5, window_size_in_seconds=60)
    scope = {"type": "http", "path": "/", "headers": [], "client": None}
    with pytest.raises(error, match=re.escape(said)):
        asyncio.run(Asgi(None, [Limit(first), Limit(ONE, **options)])(scope, None, None))
    assert first.peek().remaining == 5


def test_results_of_on_limited_are_checked():
    full = RateLimiter(Store("memory:"), "full", max_executions=1, window_size_in_seconds=60)
    full.decide()
    scope = {"type": "http", "path": "/", "headers": [], "client": None}
    with pytest.raises(
        TypeError, match="^on_limited returned 7: expected None, a mapping, str, bytes or an ASGI response$"
    ):
        asyncio.run(Asgi(None, [Limit(full)], on_limited=lambda scope, limited: 7)(scope, None, None))
