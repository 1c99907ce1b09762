"""A server says "not so fast" to one worker, and those of all languages pause until then."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from conftest import LANGUAGES, most_in_any_window, ns, until
from evidence import read
from storm import Member
from workglow_limit import RateLimiter, Store

LIMIT, WINDOW = 100, 0.5  # starts per seconds
PAUSE = 3  # seconds


class TooManyRequests(BaseHTTPRequestHandler):
    """A handler that gives every request the same answer."""

    def do_GET(self):
        self.send_response(429)
        self.send_header("Retry-After", str(PAUSE))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), TooManyRequests) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("language", ["python", "node"])
def test_a_429_in_one_worker_pauses_all(language, server, gather, programs, tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    limiter = RateLimiter(store, "storm", max_executions=LIMIT, window_size_in_seconds=WINDOW)
    limiter.peek()
    paused, *waiting = gather([language, *LANGUAGES], store, "storm")
    folder = tmp_path / "starts"
    folder.mkdir()
    members = []

    def all_start(since):
        """Returns whether every language has started since then, and together more often than one window allows."""
        for member in members:
            member.check()
        starts = [start for start in read(folder) if start.a >= since]
        return len(starts) > LIMIT and {start.member for start in starts}.issuperset(LANGUAGES)

    try:
        for command in programs["storm"]:
            arguments = [store.url, str(LIMIT), str(WINDOW), str(folder)]
            members.append(Member([*map(str, command), *arguments], tmp_path / "members.err"))
        until("all start", lambda: all_start(0))
        asked = time.monotonic_ns()
        assert paused.ask("fetch", server) == ["heeded", str(PAUSE)]
        heeded = time.monotonic_ns()
        # Callers that begin to wait now start when the pause is over, like those that only try.
        for member in waiting:
            member.send("acquire", "-", "-")
        until("all start again", lambda: all_start(heeded))
        for member in waiting:
            assert member.receive()[0] == "started"
    finally:
        for member in members:
            member.kill()

    starts = read(folder)
    waited = [start for member in waiting for start in member.starts()]
    assert [start.member for start in waited] == list(LANGUAGES)
    # The pause began between these two moments, so a call that began after the second ended after the first one's pause. (A waiter
    # that wakes up late may start without a place. Then the earliest time of its start is that of its call.)
    assert not [start for start in starts + waited if start.a >= heeded and start.b < asked + ns(PAUSE)]
    assert most_in_any_window(starts + waited, ns(WINDOW)) <= LIMIT
