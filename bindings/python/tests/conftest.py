"""What the tests share."""

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

HERE = Path(__file__).parent
DATABASES = 10_000
numbers = itertools.count(1)


def until(is_so):
    """Waits for what happens by itself."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.005)


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """The address of a new store, of each kind."""
    return "memory:" if request.param == "memory" else f"sqlite:{tmp_path}/limits.db"


class Redis:
    """A server on a socket in a directory of its own."""

    def __init__(self, directory):
        self.socket = directory / "s"
        self.url = f"redis+unix://{self.socket}"
        options = "--databases", DATABASES, "--port", 0, "--save", "", "--appendonly", "no", "--dir", directory, "--unixsocket", self.socket
        # The shell ends it when this process does, however that ends.
        command = ["sh", "-c", 'redis-server "$@" >&2 & echo $!; cat >&2; kill -9 $! 2>/dev/null', "sh", *map(str, options)]
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
        """What a command answers, if that is one line."""
        with socket.socket(socket.AF_UNIX) as to:
            to.connect(str(self.socket))
            to.sendall(f"{line}\r\n".encode())
            with to.makefile() as answer:
                return answer.readline().strip()

    @contextmanager
    def stopped(self):
        """Takes what is sent to it, and answers nothing."""
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
    """A database that nobody has used, until the test ends: what is still sent to it then does no harm."""
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
    """One that the test may end."""
    server = Redis(tmp_path)
    yield server
    server.end()


@pytest.fixture
def server(the_server):
    """A database that nobody has used. (One that was wiped grants nothing as long as it may have forgotten anything.)"""
    number = next(numbers)
    assert number < DATABASES
    the_server.url = f"redis+unix://{the_server.socket}?db={number}"
    return the_server


def run(program, *arguments, timeout=120):
    """Runs a program of this directory, or a text, in a process of its own, and returns what it printed. Whoever hangs
    is killed, and fails the test."""
    source = [str(HERE / program)] if program.endswith(".py") else ["-c", program]
    command = [sys.executable, *source, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def lane_held(path):
    """Holds the structure lock of a store, as another process that stopped at the wrong moment would."""
    with open(f"{path}-lane", "r+b") as lane:
        fcntl.fcntl(lane, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        yield
