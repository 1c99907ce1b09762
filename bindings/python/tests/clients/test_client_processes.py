"""Several processes with different clients share one limit, and the server logs the requests that reach it.

A start lies in [a, r]: a is the client's clock just before the call that admitted it (or the ready time of its place), r the
server's clock at the arrival, both the machine's clock. The limit is exceeded if too many intervals surely lie in one window.
"""

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path += [str(HERE.parents[3] / "examples/fleet"), str(HERE.parents[3] / "bench/clients")]

import streams
from evidence import most_in_any_window

LIMIT, WINDOW = 20, 500_000_000
KINDS = ["Httpx", "AsyncHttpx2", "Requests", "Urllib3", "Aiohttp"]
COUNT, AT_ONCE = 32, 4


@contextmanager
def the_api(folder, **options):
    """The server, in its own process."""
    command = [sys.executable, HERE / "fake.py", folder, json.dumps(options)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def arrivals(folder):
    """Returns (a, r, tokens, status) of each limited request."""
    lines = (folder / "arrivals.log").read_text().splitlines()
    return [came for came in (tuple(map(int, line.split())) for line in lines) if came[0]]


@pytest.mark.parametrize("store", ["sqlite", "redis"])
def test_the_server_sees_no_more_than_the_limit(store, request, tmp_path):
    url = f"sqlite:{tmp_path}/limits.db" if store == "sqlite" else request.getfixturevalue("server").url
    workers = []
    with the_api(tmp_path) as to:
        for kind in KINDS:
            refused = ["refused"] if kind == "Requests" else []
            command = [sys.executable, HERE / "worker.py", url, to, kind, str(COUNT), str(AT_ONCE), *refused]
            workers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        try:
            said = [worker.communicate(timeout=600) for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        assert [worker.returncode for worker in workers] == [0] * len(KINDS), said
    came = arrivals(tmp_path)
    assert len(came) == len(KINDS) * COUNT + 1
    assert most_in_any_window([(a, r, "") for a, r, *_ in came], WINDOW) <= LIMIT

    # One client was refused and printed when its pause was set. The pause lasts at least one second after the refusal arrived.
    paused = int(said[KINDS.index("Requests")][0])
    [refusal] = [r for _, r, _, status in came if status == 429]
    assert [(a, r) for a, r, *_ in came if a > paused and r < refusal + 1_000_000_000] == []
    assert any(r > paused for _, r, *_ in came)


def test_streams_use_no_more_tokens_than_the_limit():
    """A short run of the streams' bench. Their use of the limit depends on the machine and is not asserted."""
    for windows in 2, 10, 60:  # (On a busy machine the processes need longer to begin.)
        found = streams.measure(None, 5_000, 2.0, windows, 0.01, ["openai", "anthropic"])
        assert found["failed"] == 0 and found["over"] <= 0
        if found["tokens"]:
            return
    pytest.fail("no request arrived")


def test_what_streams_start_after_their_end_is_not_counted():
    """A process cuts its streams off at the end, and another that is late starts with the tokens that these give back."""
    second = 1_000_000_000
    came = [(1 * second, 2 * second, 600), (9 * second, 10 * second - 1, 600), (10 * second, 10 * second, 572)]
    found = streams.results(came, end=10 * second, limit=1_000, window=2 * second, windows=5)
    assert (found["requests"], found["tokens"], found["over"]) == (2, 1_200, -400)
