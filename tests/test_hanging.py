"""What is ended because it hangs, and what is said about it."""

import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

HANGING = Path(__file__).with_name("hanging.py")
sys.path.insert(0, str(HANGING.parent))

import hanging
import outcomes


def run(tmp_path, command, seconds, until=math.inf):
    """The exit code of a command, and what was printed."""
    with (tmp_path / "output").open("w") as file:
        code, *_ = hanging.run(command, file, seconds, until)
    return code, (tmp_path / "output").read_text()


def test_a_command_that_ends_is_only_run(tmp_path):
    assert run(tmp_path, ["sh", "-c", "echo out; echo err >&2; exit 7"], 600) == (7, "out\nerr\n")


@pytest.mark.parametrize(("seconds", "left"), [(0.5, math.inf), (600, 0)], ids=["silent", "out of time"])
def test_a_command_that_hangs_is_ended_with_its_children(seconds, left, tmp_path):
    code, printed = run(tmp_path, ["sh", "-c", "sleep 1000 & echo $!; wait"], seconds, time.monotonic() + left)
    assert code == hanging.HUNG
    assert "hangs: sh -c sleep 1000" in printed
    assert ": process " not in printed and "process " in printed and "sleep 1000" in printed
    for child in (line for line in printed.splitlines() if line.isdigit()):
        # A process that was killed may still be ending on a busy machine.
        while not hanging.has_ended(child):
            time.sleep(0.05)


def test_a_python_program_says_where_it_hangs(tmp_path):
    program = "import faulthandler, time; faulthandler.enable()\ndef stuck(): print('began', flush=True), time.sleep(1000)\nstuck()"
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=errors)
        with process, process.stdout:
            assert process.stdout.readline() == b"began\n"
            assert hanging.end(process.pid)[0].startswith(f"process {process.pid}: ")
    assert "in stuck" in (tmp_path / "errors").read_text()


def test_a_failed_suite_shows_what_hung(tmp_path):
    _, printed = run(tmp_path, ["sleep", "1000"], 0.5)
    (block,) = outcomes.failures(f"test one ... ok\n{printed}", hanging.HUNG)
    assert block.startswith("hangs: sleep 1000: has printed nothing for 0.5 s")


def test_it_is_a_program(tmp_path):
    done = subprocess.run([sys.executable, HANGING, "0.5", "sleep", "1000"], capture_output=True, text=True)
    assert (done.returncode, "hangs: sleep 1000" in done.stdout) == (hanging.HUNG, True)
    assert subprocess.run([sys.executable, HANGING, "600", "sh", "-c", "exit 3"]).returncode == 3
    assert os.getpid() in hanging.descendants(os.getppid())
