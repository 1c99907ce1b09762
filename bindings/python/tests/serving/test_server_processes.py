"""Servers with several worker processes on one store: never over the limit."""

import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from servers import fields, program

sys.path.append(str(Path(__file__).parents[4] / "examples/fleet"))
from evidence import SECOND, most_in_any_window, read

LIMIT, WINDOWS = 20, 3

SERVERS = {
    "fastapi": (
        "uvicorn",
        "apps:api",
        "--workers",
        "2",
        "--port",
        "PORT",
        "--no-proxy-headers",
        "--log-level",
        "critical",
    ),
    "fastapi-trio": (
        "hypercorn",
        "apps:api",
        "--workers",
        "2",
        "--worker-class",
        "trio",
        "--bind",
        "127.0.0.1:PORT",
        "--log-level",
        "critical",
    ),
    "flask": (
        "gunicorn",
        "apps:of_flask",
        "--workers",
        "2",
        "--threads",
        "4",
        "--bind",
        "127.0.0.1:PORT",
        "--log-level",
        "critical",
    ),
    "flask-gevent": (
        "gunicorn",
        "apps:of_flask",
        "--workers",
        "2",
        "--worker-class",
        "gevent",
        "--bind",
        "127.0.0.1:PORT",
        "--log-level",
        "critical",
    ),
    "django": (
        "gunicorn",
        "apps:of_django",
        "--workers",
        "2",
        "--threads",
        "4",
        "--bind",
        "127.0.0.1:PORT",
        "--log-level",
        "critical",
    ),
    "django-async": (
        "uvicorn",
        "apps:of_django_async",
        "--workers",
        "2",
        "--port",
        "PORT",
        "--no-proxy-headers",
        "--lifespan",
        "off",
    ),
}


@pytest.mark.parametrize("server_name", SERVERS)
@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_never_over_the_limit(server_name, store, request, tmp_path):
    url = f"sqlite:{tmp_path}/limits.db" if store == "sqlite" else request.getfixturevalue("server").url
    log = tmp_path / "log"
    log.mkdir()
    with program(*SERVERS[server_name], STORE=url, LIMIT=f"{LIMIT}/1s", LOG=str(log)) as base:
        over, answers = threading.Event(), []

        def hammer(_):
            while not over.is_set():
                # A connection for each request, so that all processes get some. A server closes one that is kept for seconds, and once
                # it did so on a busy machine while a request was on its way.
                with httpx.Client(
                    base_url=base, timeout=60, limits=httpx.Limits(max_keepalive_connections=0)
                ) as client:
                    for _ in range(10):
                        answers.append(client.get("/"))
                        if answers[-1].status_code == 429:
                            over.wait(0.02)

        with ThreadPoolExecutor(6) as pool:
            clients = [pool.submit(hammer, n) for n in range(6)]
            # Until enough windows were full and both processes had connections.
            end = time.monotonic() + 120
            while (len(read(log)) < WINDOWS * LIMIT or len(os.listdir(log)) < 2) and time.monotonic() < end:
                time.sleep(0.05)
            over.set()
        [client.result() for client in clients]
    starts = read(log)
    assert {response.status_code for response in answers} == {200, 429}
    assert len(starts) >= WINDOWS * LIMIT and len(starts) == sum(response.status_code == 200 for response in answers)
    assert most_in_any_window(starts, SECOND) <= LIMIT
    assert len(os.listdir(log)) == 2, "one process has admitted all"
    for response in answers:
        policies, states = fields(response)
        assert policies == {"jobs": {"q": LIMIT, "w": 1}} and 0 <= states["jobs"]["r"] < LIMIT
        assert (response.status_code == 429) == ("Retry-After" in response.headers)
