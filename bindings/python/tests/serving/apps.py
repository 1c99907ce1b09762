"""The apps that test_server_processes.py starts in several processes, one per framework. Each admitted request is logged as an
interval that contains its start. STORE, LIMIT and LOG are environment variables."""

import os
import sys
from pathlib import Path
from time import monotonic_ns

import django
import flask
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.urls import path
from fastapi import FastAPI, Request
from workglow_limit import Store
from workglow_limit.fastapi import Limit, LimitMiddleware
from workglow_limit.flask import FlaskLimits

sys.path.append(str(Path(__file__).parents[4] / "examples/fleet"))
from evidence import Recorder

limits = [Limit(Store(os.environ["STORE"]).limiter("jobs", os.environ["LIMIT"]), key="address")]
recorders = {}


def started(asked):
    """Workers may be forks, so each has its own log."""
    recorder = recorders.get(os.getpid()) or recorders.setdefault(os.getpid(), Recorder(os.environ["LOG"], "worker"))
    recorder.start(asked, None)


# ---- ASGI ----


class Asked:
    """Records the time just before the decision."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app({**scope, "asked": monotonic_ns()}, receive, send)


api = FastAPI()
api.add_middleware(LimitMiddleware, limits=limits, exempt=["/up"])
api.add_middleware(Asked)


@api.get("/up")
async def up():
    return "up"


@api.get("/")
async def start(request: Request):
    started(request.scope["asked"])


# ---- WSGI ----

of_flask = flask.Flask("app")


@of_flask.before_request
def asked():
    flask.g.asked = monotonic_ns()


FlaskLimits(of_flask, limits, exempt=["/up"])


@of_flask.get("/up")
def up_flask():
    return "up"


@of_flask.get("/")
def start_flask():
    started(flask.g.asked)
    return ""


# ---- Django ----


def note(get_response):
    def middleware(request):
        request.asked = monotonic_ns()
        return get_response(request)

    return middleware


def up_django(request):
    return HttpResponse("up")


def start_django(request):
    started(request.asked)
    return HttpResponse("")


urlpatterns = [path("up", up_django), path("", start_django)]
settings.configure(
    ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="-", LOGGING_CONFIG=None,
    MIDDLEWARE=[f"{__name__}.note", "workglow_limit.django.LimitMiddleware"],
    WORKGLOW_LIMIT={"limits": limits, "exempt": ["/up"]},
)  # fmt: skip
django.setup()
of_django, of_django_async = WSGIHandler(), ASGIHandler()
