"""The command that the wheel installs. (Its behaviour is tested in cli/.)"""

import json
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import workglow_limit

INSTALLED = [str(Path(sys.executable).with_name("workglow-limit"))]
AS_MODULE = [sys.executable, "-m", "workglow_limit"]


def run(command, *args):
    return subprocess.run([*command, *args], capture_output=True, text=True, timeout=120)


@pytest.fixture
def store(tmp_path):
    store = workglow_limit.Store(f"sqlite:{tmp_path}/limits.db")
    assert store.limiter("mail", "1/1h").try_acquire("acme")
    store.flush()
    return f"sqlite:{tmp_path}/limits.db"


@pytest.mark.parametrize("command", [INSTALLED, AS_MODULE])
def test_the_command_runs(command, store):
    assert run(command, "--version").stdout == f"workglow-limit {workglow_limit.__version__}\n"
    done = run(command, "--store", store, "status", "--json")
    assert done.returncode == 0, done.stderr
    assert [limit["name"] for limit in json.loads(done.stdout)["limits"]] == ["mail"]
    assert run(command, "--store", store, "peek", "mail", "acme").returncode == 4
    assert run(command, "--store", store, "peek", "mai").returncode == 3
    assert run(command, "wrong").returncode == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_command(number, store):
    command = [*INSTALLED, "--store", store, "watch"]
    # A background job inherits that SIGINT is ignored, and the command leaves it so.
    heed = partial(signal.signal, number, signal.SIG_DFL)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed) as watch:
        assert json.loads(watch.stdout.readline())["event"] == "watching"
        watch.send_signal(number)
        assert watch.wait(60) == -number
