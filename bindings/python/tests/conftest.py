"""Shared helpers and fixtures."""

import fcntl
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from workglow_limit import StoreTimeout

HERE = Path(__file__).parent
DATABASES = 10_000

# An HTTP client spends most of its start on reading the system's certificates. The servers of these tests speak plain HTTP, so clients
# find no certificates, here and in the programs that tests start.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull

numbers = itertools.count(1)


def until(is_so):
    """Waits until a condition holds."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "the condition did not hold within 60 s"
        time.sleep(0.005)


def patiently(call):
    """The answer of a call whose store has a short timeout, which a busy machine may exceed."""
    end = time.monotonic() + 60
    while True:
        try:
            return call()
        except StoreTimeout:
            assert time.monotonic() < end, "the store did not answer within 60 s"


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """The address of a new store: one of each kind."""
    return "memory:" if request.param == "memory" else f"sqlite:{tmp_path}/limits.db"


class Redis:
    """A server on a Unix socket in its own directory."""

    def __init__(self, directory):
        self.socket = directory / "s"
        self.url = f"redis+unix://{self.socket}"
        options = (
            "--databases",
            DATABASES,
            "--port",
            0,
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            directory,
            "--unixsocket",
            self.socket,
        )
        # The shell ends the server when this process ends, even if it is killed.
        command = [
            "sh",
            "-c",
            'redis-server "$@" >&2 & echo $!; cat >&2; kill -9 $! 2>/dev/null',
            "sh",
            *map(str, options),
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, **pipes, text=True)
        self.pid = int(self.process.stdout.readline())
        end = time.monotonic() + 60
        while True:
            try:
                assert self.command("PING") == "+PONG"
                return
            except OSError:
                assert time.monotonic() < end, "the server does not listen"
                time.sleep(0.005)

    def command(self, line):
        """Returns the reply to a command, if it is one line."""
        with socket.socket(socket.AF_UNIX) as to:
            to.connect(str(self.socket))
            to.sendall(f"{line}\r\n".encode())
            with to.makefile() as answer:
                return answer.readline().strip()

    @contextmanager
    def stopped(self):
        """Stops the server: it accepts requests and answers none."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def end(self):
        self.process.communicate()


@pytest.fixture(scope="session")
def the_postgres():
    """The URL of a Postgres server."""
    program = HERE.parents[2] / "tests/fleet/postgres"
    process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield process.stdout.readline().strip()
    process.communicate()


@pytest.fixture
def postgres(the_postgres):
    """A new database, dropped when the test ends."""
    name = f"limits_{next(numbers)}"
    run_statement = ["psql", "-X", "-q", the_postgres, "-c"]
    subprocess.run([*run_statement, f"CREATE DATABASE {name}"], check=True)
    yield the_postgres.replace("/postgres?", f"/{name}?")
    subprocess.run([*run_statement, f"DROP DATABASE {name} WITH (FORCE)"], check=True)


@pytest.fixture(scope="session")
def the_server(tmp_path_factory):
    server = Redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.end()


@pytest.fixture
def server_of_its_own(tmp_path):
    """A server that the test may end."""
    server = Redis(tmp_path)
    yield server
    server.end()


@pytest.fixture
def server(the_server):
    """A new database. (A flushed one grants nothing for a while, because it may have lost data.)"""
    number = next(numbers)
    assert number < DATABASES
    the_server.url = f"redis+unix://{the_server.socket}?db={number}"
    return the_server


def run(program, *arguments, timeout=600):
    """Runs a program of this directory, or a text, in its own process and returns its output. A program that hangs is
    killed and fails the test."""
    source = [str(HERE / program)] if program.endswith(".py") else ["-c", program]
    command = [sys.executable, *source, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def lane_held(path):
    """Holds the structure lock of a store, like a process that was stopped while it held the lock."""
    with open(f"{path}-lane", "r+b") as lane:
        fcntl.fcntl(lane, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        yield
