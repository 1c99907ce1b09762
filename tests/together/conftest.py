"""Members in Python, Node and C, each a process that follows commands, and the checks of their starts.

A member is one process on one limit. It answers each line of input with one line:

    try | acquire TIMEOUT GRACE | acquire-place TEXT    started TEXT, denied, interrupted, or error CODE
    reserve GRACE                                 place TEXT WAIT
    present TEXT (waits while it is early)        started TEXT, or another place TEXT WAIT
    queue GRACE                                   place TEXT WAIT, and then started TEXT DECISIONS SLEEPS
    complete TEXT | cancel TEXT                   done
    fetch URL (in Python and Node)                heeded SECONDS
    failures                                      failures COUNT

Durations are seconds, or `-` for none. SIGINT interrupts an acquire: in Python it is a Ctrl-C, in Node it aborts the
signal. Starts are recorded as in the demo, see evidence.py.

The Node package and the compiled C members are in `target/demo`: `make members` puts them there.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = Path(os.environ.get("WGL_DEMO", ROOT / "target/demo")).resolve()
STORM = ROOT / "tests/torture/storm"
sys.path += [str(ROOT / "examples/fleet"), str(STORM)]

from evidence import SECOND, most_in_any_window, read

LANGUAGES = ("python", "node", "c")
PATIENCE = 60  # seconds until a silent member counts as stuck


@pytest.fixture(scope="session")
def programs(tmp_path_factory):
    """Returns the command of each member. Node searches for a module from the program's folder."""
    if not (OUT / "node_modules/workglow-limit").exists() or not (OUT / "together_member").exists():
        pytest.fail(f"{OUT} needs node_modules/workglow-limit and together_member: `make members` puts them there")
    folder = tmp_path_factory.mktemp("programs")
    (folder / "node_modules").symlink_to(OUT / "node_modules")
    shutil.copy(HERE / "member.mjs", folder / "member.mjs")
    shutil.copy(STORM / "member.mjs", folder / "storm.mjs")
    return {
        "python": [sys.executable, HERE / "member.py"],
        "node": ["node", folder / "member.mjs"],
        "c": [OUT / "together_member"],
        "storm": [
            [sys.executable, STORM / "member.py"],
            [sys.executable, STORM / "member.py"],
            ["node", folder / "storm.mjs"],
            [OUT / "storm_member"],
        ],
    }


class Member:
    """A process that follows commands: the conductor's end of its pipes."""

    def __init__(self, language, command, folder):
        folder.mkdir()
        self.language, self._folder, self._errors = language, folder, folder / "err"
        with open(self._errors, "wb") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, bufsize=0
            )
        self._received = b""

    def fileno(self):
        return self._process.stdout.fileno()

    def send(self, *words):
        self._process.stdin.write(" ".join(map(str, words)).encode() + b"\n")

    def receive(self):
        """Returns its next answer, as words."""
        while b"\n" not in self._received:
            readable, _, _ = select.select([self], [], [], PATIENCE)
            answer = os.read(self.fileno(), 4096) if readable else b""
            if not answer:
                what = "gave no answer" if not readable else f"ended with {self._process.wait()}"
                pytest.fail(f"a member in {self.language} {what}\n{self._errors.read_text(errors='replace')[-2000:]}")
            self._received += answer
        line, self._received = self._received.split(b"\n", 1)
        return line.decode().split()

    def has_answered(self):
        return b"\n" in self._received or bool(select.select([self], [], [], 0)[0])

    def ask(self, *words):
        self.send(*words)
        return self.receive()

    def interrupt(self):
        self._process.send_signal(signal.SIGINT)

    def starts(self):
        return read(self._folder)

    def end(self):
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


@pytest.fixture
def gather(programs, tmp_path):
    """Returns a function that starts members of these languages on a declared limit, and returns when all of them have opened it."""
    members = []

    def gather(languages, store, name, timeout=5, on_error="raise", durability="budget"):
        new = []
        for language in languages:
            folder = tmp_path / f"member-{len(members)}"
            arguments = [store.url, name, folder, timeout, on_error, durability]
            new.append(Member(language, [*programs[language], *map(str, arguments)], folder))
            members.append(new[-1])
        for member in new:
            assert member.receive() == ["ready"]
        return new

    yield gather
    for member in members:
        member.end()


def until(what, condition):
    """Waits for a condition, and fails if it does not become true."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"not after {PATIENCE} s: {what}"
        time.sleep(0.001)


def most_since(starts, changed, window):
    """Returns the most starts that surely lie in one window, of those windows that hold a start surely after `changed`.

    A limit that applies since then is compared with this number: earlier starts still count, but there may
    have been more of them. All of those windows begin less than a window before the first such start has surely happened.
    """
    first = min(start.b for start in starts if start.a >= changed)
    return most_in_any_window([start for start in starts if start.a > first - window], window)


def ns(seconds):
    return round(seconds * SECOND)
