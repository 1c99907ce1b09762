"""Real workers for the tests, and observations of them. A plugin, because the parent directory already has a conftest."""

import base64
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import kombu_more  # noqa: F401
import pytest
from celery import Celery
from workglow_limit import Store

HERE = Path(__file__).parent


#: The seconds after which something that did not happen is a failure.
PATIENCE = 120


def until(condition, timeout=PATIENCE):
    """Waits until a condition holds, and returns its value."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"the condition did not hold within {timeout} s"
        time.sleep(0.02)
    return found


class Site:
    """A broker, a store, and the workers on them."""

    def __init__(self, folder, broker, store=None):
        self.folder, self.broker = folder, broker
        self.url = store or f"sqlite:{folder}/limits.db"
        self.workers = []
        self._expected = []
        for name in "queue", "done", "control":
            (folder / name).mkdir()
        backend = broker if broker.startswith("redis") else None
        self.app = Celery("client", broker=broker, backend=backend, set_as_current=False)
        if broker == "filesystem://":
            # The client's folders are the reverse of the workers'.
            self.app.conf.broker_transport_options = {
                "data_folder_out": f"{folder}/queue",
                "data_folder_in": f"{folder}/queue",
                "control_folder": f"{folder}/control",
            }
        # It is as patient as the tests: a server may not run for seconds on a busy machine.
        self.store = Store(self.url, timeout=PATIENCE)

    def send(self, task, *arguments, **options):
        """Sends a task with these arguments."""
        return self.app.send_task(f"work.{task}", arguments, options.pop("kwargs", None), **options)

    def send_behind_a_pause(self, task, *arguments, **options):
        """Sends a task that reaches the pool of the only worker, which has one process, and finds its limit paused there."""
        self.send("busy", "busy", "busy is over")
        self.until(lambda: self.started("busy"))
        sent = self.send(task, *arguments, **options)
        name = f"work.{task}"
        self.until(lambda: self.received(sent.id) and not self.control("limits")[name]["waiting"])
        self.limiter(name).pause(3600)
        (self.folder / "busy is over").touch()
        return sent

    def worker(self, *options, pool="prefork", concurrency=2):
        number = len(self.workers)
        path = self.folder / f"worker-{number}.log"
        with open(path, "w") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "work", "worker", "-P", pool, "-c", str(concurrency),
                 "-n", f"w{number}@here", "-l", "info", "--without-gossip", "--without-mingle", *options],
                cwd=HERE, stdout=log, stderr=subprocess.STDOUT,
                env=os.environ | {"EVENTLET_NO_GREENDNS": "yes", "WORK_FOLDER": str(self.folder), "WORK_BROKER": self.broker, "WORK_STORE": self.url},
            )  # fmt: skip
        worker.log = path
        self.workers.append(worker)
        until(lambda: worker.poll() is not None or " ready." in worker.log.read_text())
        assert worker.poll() is None, worker.log.read_text()
        return worker

    def stop(self, worker, sign=signal.SIGTERM):
        worker.send_signal(sign)
        return worker.wait(PATIENCE)

    def expect(self, *errors):
        """Accepts errors in the workers' logs that match one of these patterns."""
        self._expected += errors

    def unexpected(self):
        """Returns the errors in the workers' logs that no test expects and that were not returned before."""
        records = [
            of for worker in self.workers for of in re.split(r"^(?=\[\d{4}-)", worker.log.read_text(), flags=re.M)
        ]
        errors = [
            of for of in records if re.match(r"\[.*: (ERROR|CRITICAL)/|(?!.*: WARNING/)(.|\n)*^Traceback", of, re.M)
        ]
        found = [of for of in errors if not any(re.search(pattern, of) for pattern in self._expected)]
        self.expect(*map(re.escape, found))
        return found

    until, patience = staticmethod(until), PATIENCE

    def close(self):
        self.app.close()
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()

    def started(self, tag=None):
        """Returns the records of starts so far, in their order."""
        path = self.folder / "started"
        # The last line may be on its way.
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        lines = [json.loads(line) for line in lines if line.endswith("\n")]
        return [line for line in lines if tag is None or line["tag"].split("-")[0] == tag]

    def tags(self, tag):
        return [line["tag"] for line in self.started(tag)]

    def passed_by(self, tag):
        """Waits until tasks without a limit have run, more than a worker fetches at once."""
        for number in range(12):
            self.send("free", f"{tag}free-{number}")
        until(lambda: len(self.started(f"{tag}free")) == 12)

    def limiter(self, name):
        return self.store.limiter(name)

    def messages(self):
        """Returns the messages in the queue, oldest first."""
        with self.app.connection_for_read() as connection:
            client = connection.default_channel.client
            return [
                json.loads(text)
                for key in client.scan_iter("celery*", _type="list")
                for text in reversed(client.lrange(key, 0, -1))
            ]

    @staticmethod
    def body(message):
        """Returns the body of a message."""
        return base64.b64decode(message["body"])

    def received(self, id):
        """Returns how often workers have received a task."""
        return sum(worker.log.read_text().count(f"[{id}] received") for worker in self.workers)

    def control(self, command, **arguments):
        replies = self.app.control.broadcast(command, arguments=arguments, reply=True, timeout=PATIENCE, limit=1)
        (reply,) = replies[0].values()
        return reply

    @contextmanager
    def events(self, *kinds):
        """Collects the workers' events of these kinds during the block, in another thread that ends with the block."""
        found, ready = [], threading.Event()
        # The first heartbeat shows that the receiver listens.
        handlers = dict.fromkeys(kinds, found.append) | {"worker-heartbeat": lambda _event: ready.set()}
        with self.app.connection_for_read() as connection:
            receiver = self.app.events.Receiver(connection, handlers=handlers)
            listener = threading.Thread(target=receiver.capture)
            listener.start()
            try:
                assert ready.wait(PATIENCE), "no worker sent a heartbeat"
                yield found
            finally:
                receiver.should_stop = True
                listener.join()


class Redis:
    """A server that may be restarted. It keeps what it has in its folder."""

    def __init__(self, folder):
        self._folder = folder
        self._numbers = itertools.count()
        while True:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            if self._runs():
                break

    def start(self):
        """Starts it again."""
        assert self._runs(), "another program has taken its port"

    def _runs(self):
        """Starts it. Returns False if another program has the port."""
        options = {
            "databases": 100,
            "port": self.port,
            "bind": "127.0.0.1",
            "save": "",
            "appendonly": "yes",
            "appendfsync": "no",
            "dir": self._folder,
        }
        arguments = [str(of) for name, value in options.items() for of in (f"--{name}", value)]
        self._server = subprocess.Popen(["redis-server", *arguments], stdout=subprocess.DEVNULL)
        until(lambda: self._server.poll() is not None or _answers(self.port, self._server.pid))
        return self._server.poll() is None

    def stop(self):
        self._server.kill()
        self._server.wait()

    def __call__(self):
        """Returns the URL of a new database."""
        return f"redis://127.0.0.1:{self.port}/{next(self._numbers)}"


@pytest.fixture(scope="session")
def redis(tmp_path_factory):
    """A server for these tests. Each site has its own database."""
    server = Redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()


@pytest.fixture
def redis_of_its_own(tmp_path):
    """A server that the test may stop."""
    (tmp_path / "redis").mkdir()
    server = Redis(tmp_path / "redis")
    yield server
    server.stop()


def _answers(port, pid):
    """Returns whether this process answers there: another one may have taken the port first."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as client:
            client.sendall(b"INFO server\r\n")
            return f"process_id:{pid}\r\n".encode() in client.recv(65536)
    except OSError:
        return False


@contextmanager
def _site(folder, broker, store=None):
    site = Site(folder, broker, store)
    yield site
    site.close()
    assert not site.unexpected()


@pytest.fixture(scope="session")
def shared_site(tmp_path_factory, redis):
    with _site(tmp_path_factory.mktemp("shared"), redis()) as site:
        site.worker("-E")
        yield site


@pytest.fixture
def site(shared_site):
    """A site with a worker, shared by all tests that do not stop it. Each test uses its own tasks and tags."""
    yield shared_site
    assert not shared_site.unexpected()


@pytest.fixture
def own_site(tmp_path, redis):
    """A site for one test, without workers."""
    with _site(tmp_path, redis()) as site:
        yield site


@pytest.fixture
def fragile_site(tmp_path, redis_of_its_own):
    """A site without workers, whose broker the test may stop."""
    with _site(tmp_path, redis_of_its_own()) as site:
        yield site


@pytest.fixture(scope="module", params=["gevent", "eventlet"])
def green_site(request, tmp_path_factory, redis):
    """A site with two workers whose tasks are greenlets."""
    with _site(tmp_path_factory.mktemp("green"), redis()) as site:
        for _ in range(2):
            site.worker(pool=request.param, concurrency=40)
        yield site


@pytest.fixture(params=["redis", "postgres"])
def served_site(request, tmp_path, redis):
    """A site without workers, with its limits on a server."""
    store = redis() if request.param == "redis" else request.getfixturevalue("postgres")
    with _site(tmp_path, redis(), store) as site:
        yield site


@pytest.fixture
def file_site(tmp_path):
    """A site without workers, with a folder as its broker."""
    with _site(tmp_path, "filesystem://") as site:
        yield site
