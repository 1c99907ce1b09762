"""The throttle for Django REST framework, whose users are known only in its views."""

from types import SimpleNamespace

import httpx
import pytest
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.test import override_settings
from django.urls import path
from servers import asgi, fields, wait_until, wsgi
from workglow_limit import ConcurrencyLimiter, ManualClock, RateLimiter, Store

import test_django  # noqa: F401 (configures Django)
from rest_framework.authentication import BaseAuthentication
from rest_framework.response import Response
from rest_framework.views import APIView
from workglow_limit.rest_framework import Limit, LimitThrottle

clock = ManualClock()
of_users = RateLimiter(Store("memory:", clock=clock), "users", max_executions=2, window_size_in_seconds=60)
running = ConcurrencyLimiter(1)
all_of_them = RateLimiter(Store("memory:", clock=clock), "all", max_executions=9, window_size_in_seconds=60)


class Tokens(BaseAuthentication):
    def authenticate(self, request):
        name = request.headers.get("X-Token")
        return name and (SimpleNamespace(pk=name, is_authenticated=True), name)


class Users(LimitThrottle):
    limits = Limit(of_users, key="user"), Limit(running, name="running")


class View(APIView):
    authentication_classes, throttle_classes = (Tokens,), (Users,)

    def get(self, request):
        return Response({"running": running.peek().remaining})


class All(LimitThrottle):
    limits = (Limit(all_of_them),)


class Both(View):
    throttle_classes = Users, All


urlpatterns = [path("", View.as_view()), path("free", View.as_view()), path("both", Both.as_view())]


@pytest.fixture(autouse=True)
def django_settings():
    middleware = ["workglow_limit.django.LimitMiddleware"]
    rest = {"UNAUTHENTICATED_USER": None, "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"]}
    options = {"exempt": ["/free"]}
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=middleware, REST_FRAMEWORK=rest, WORKGLOW_LIMIT=options):
        of_users.clear()
        all_of_them.clear()
        yield


@pytest.mark.parametrize("serve, handler", [(wsgi, WSGIHandler), (asgi, ASGIHandler)], ids=["wsgi", "asgi"])
def test_users_of_tokens_have_their_own_budget(serve, handler):
    with serve(handler()) as base:

        def get(path="/", **headers):
            response = httpx.get(base + path, headers=headers, timeout=60)
            wait_until(lambda: running.peek().remaining == 1)  # It ends with the response.
            return response

        first = get(**{"X-Token": "ann"})
        assert first.json() == {"running": 0} and fields(first)[1]["users"] == {"r": 1, "t": 60}
        answers = [get(**{"X-Token": name}) for name in ("ann", "ann", "bob")]
        assert [answer.status_code for answer in answers] == [200, 429, 200]
        assert answers[1].headers["Retry-After"] == "60" and "throttled" in answers[1].json()["detail"]
        assert [get().status_code for _ in range(3)] == [200, 200, 429]  # By address.
        assert [get("/free").status_code for _ in range(3)] == [200] * 3


def test_after_a_refusal_the_next_throttles_take_nothing():
    with wsgi(WSGIHandler()) as base:
        answers = [httpx.get(f"{base}/both", headers={"X-Token": "ann"}, timeout=60) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert all_of_them.peek().remaining == 7


def test_without_the_middleware_it_raises():
    with override_settings(MIDDLEWARE=[], DEBUG_PROPAGATE_EXCEPTIONS=True), wsgi(WSGIHandler()) as base:
        assert httpx.get(base, timeout=60).status_code == 500


def test_bad_limits():
    with pytest.raises(TypeError, match="^Empty.limits is empty: expected at least one Limit$"):
        type("Empty", (LimitThrottle,), {})
    with pytest.raises(TypeError, match="limits has 5: expected a Limit, not int"):
        type("Wrong", (LimitThrottle,), {"limits": [5]})
