"""What the tests share."""

import fcntl
import os
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(params=["memory", "sqlite"])
def url(request, tmp_path):
    """The address of a new store, of each kind."""
    return "memory:" if request.param == "memory" else f"sqlite:{tmp_path}/limits.db"


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
