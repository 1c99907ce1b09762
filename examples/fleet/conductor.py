"""The demo: Celery, Node and C share one limit, one of them is killed while it runs, and the limit holds.

Run by `make demo`, with `workglow_limit` and `celery` installed for this Python, and with the Node
package (`node_modules/workglow-limit`) and the compiled C member (`c_member`) in the folder `--out`.
"""

import argparse
import contextlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import picture
from evidence import SECOND, Start, allowed, most_in_any_window, read

LIMIT, WINDOW = 20, 2  # starts per seconds
SECONDS = 13  # includes the seventh window
JOB_MS = 100  # the duration of each job
WAITERS = 2  # calls of `acquire` that each member keeps waiting
PATIENCE = 60  # seconds until all are ready

HERE = Path(__file__).resolve().parent


class Member:
    """One of the three members of a machine: a program in a process group of its own."""

    def __init__(self, name: str, command: list[str], out: Path, ready: int, broker: Path, store: str) -> None:
        self.name, self._command, self._ready = name, command, ready
        self._errors = out / f"{name}.err"
        self._environment = os.environ | {"FLEET_BROKER": str(broker), "FLEET_STORE": store}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self._errors, "ab") as errors:
            self._process = subprocess.Popen(
                self._command,
                cwd=HERE,
                env=self._environment,
                stdout=self._ready,
                stderr=errors,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Sends SIGKILL to the whole group, so that no process can clean up."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def check(self) -> None:
        """Ends the demo if the member died on its own."""
        code = self._process and self._process.poll()
        if code is not None:
            errors = self._errors.read_text(errors="replace")[-2000:]
            raise SystemExit(f"{self.name} ended with {code}:\n{errors}")


class Ready:
    """The pipe on which every waiter of every member reports once that it is ready."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()

    def wait(self, timeout: float) -> list[str]:
        """Returns the member's name of each waiter that became ready: as soon as there is one, or none after `timeout`."""
        readable, _, _ = select.select([self._read_end], [], [], timeout)
        return os.read(self._read_end, 4096).decode().split() if readable else []


class Queue:
    """Keeps Celery's queue filled. Messages reach the worker by a rename, so that it never reads half of one."""

    LENGTH = 16

    def __init__(self, folders: list[Path]) -> None:
        self._inboxes, self._outbox = [folder / "inbox" for folder in folders], folders[0] / "outbox"
        for folder in folders:
            for name in ("inbox", "outbox", "processed", "control"):
                (folder / name).mkdir(parents=True)
        from celery_member import job  # its settings are in the environment by now

        self._job: Any = job

    def fill(self) -> None:
        for inbox in self._inboxes:
            for _ in range(self.LENGTH - len(list(inbox.iterdir()))):
                self._job.delay()
            for message in self._outbox.iterdir():
                message.rename(inbox / message.name)


class Server:
    """A server for this run. It ends with the demo, however the demo ends."""

    def __init__(self, kind: str, out: Path) -> None:
        programs = HERE.parents[1] / "tests/fleet"
        redis: list[str | Path] = [sys.executable, programs / "redis.py", out]
        command = redis if kind == "redis" else [programs / "postgres"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        if not self.url:
            raise SystemExit(self._process.wait())


def prepare(out: Path, store: str) -> None:
    """Prepares an empty folder for the run, and the settings that all members read from the environment."""
    if not (out / "node_modules/workglow-limit").exists() or not (out / "c_member").exists():
        raise SystemExit(f"{out} needs node_modules/workglow-limit and c_member: `make demo` puts them there")
    for name in ("starts", "broker-1", "broker-2"):
        shutil.rmtree(out / name, ignore_errors=True)
    for path in (*out.glob("limits.db*"), *out.glob("broker-*-lane"), *out.glob("*.err"), out / "go"):
        path.unlink(missing_ok=True)
    (out / "starts").mkdir()
    os.mkfifo(out / "go")
    # Node searches for a module from the program's folder.
    shutil.copy(HERE / "node_member.mjs", out)
    os.environ |= {
        "FLEET_STORE": store,
        "FLEET_LIMIT": str(LIMIT),
        "FLEET_WINDOW": str(WINDOW),
        "FLEET_JOB_MS": str(JOB_MS),
        "FLEET_STARTS": str(out / "starts"),
        "FLEET_GO": str(out / "go"),
        "FLEET_BROKER": str(out / "broker-1"),
    }


def commands(out: Path) -> dict[str, list[str]]:
    worker = f"-m celery --quiet -A celery_member worker --pool prefork --concurrency {WAITERS} --loglevel ERROR"
    alone = "--without-gossip --without-mingle --without-heartbeat"
    return {
        "celery": [sys.executable, *worker.split(), *alone.split()],
        "node": ["node", str(out / "node_member.mjs")],
        "c": [str(out / "c_member")],
    }


def say(seconds: float, text: str) -> None:
    print(f"{seconds:5.1f} s  {text}", flush=True)


def progress(seconds: float, starts: list[Start]) -> None:
    admitted = Counter(start.member for start in starts)
    since = time.monotonic_ns() - WINDOW * SECOND
    recent = sum(start.a >= since for start in starts)
    counts = "  ".join(f"{name} {admitted[name]:3}" for name in picture.NAMES)
    say(seconds, f"{counts}   in the last {WINDOW} s: {recent:2} of {LIMIT}")


def gather(members: list[Member], ready: Ready, queue: Queue) -> None:
    """Starts all members, and returns once every waiter of every member is ready."""
    for member in members:
        member.start()
    missing = Counter(member.name for member in members for _ in range(WAITERS))
    deadline = time.monotonic() + PATIENCE
    while missing.total():
        if time.monotonic() > deadline:
            raise SystemExit(f"not ready after {PATIENCE} s: {', '.join(missing)}")
        queue.fill()
        for member in members:
            member.check()
        missing -= Counter(ready.wait(0.02))


def conduct(
    members: list[Member], ready: Ready, queue: Queue, killed: Member, out: Path
) -> tuple[int, int, int | None]:
    """Runs the demo. Returns when it began, when `killed` was killed and when its replacement was ready, in ns."""
    killed_at: int | None = None
    back_at: int | None = None
    go = time.monotonic_ns()
    # Every process that opens the other end from now on continues at once, including the replacement.
    with open(out / "go", "w"):
        next_line = 1
        while (elapsed := (time.monotonic_ns() - go) / SECOND) < SECONDS:
            queue.fill()
            for member in members:
                member.check()
            if elapsed >= next_line:
                progress(elapsed, read(out / "starts"))
                next_line += 1
            if killed_at is None and elapsed >= SECONDS / 2:
                killed.kill()
                killed_at = time.monotonic_ns()
                killed.start()
                say(elapsed, f"{killed.name} killed with SIGKILL, and replaced")
            if killed.name in ready.wait(0.02) and back_at is None:
                back_at = time.monotonic_ns()
                say((back_at - go) / SECOND, f"{killed.name} is back")
    assert killed_at is not None, "half of the time has passed"
    return go, killed_at, back_at


def report(starts: list[Start], most: int, go: int) -> list[str]:
    """Prints the table and returns what is wrong with the run."""
    admitted = Counter(start.member for start in starts)
    in_time = sum(start.b < go + SECONDS * SECOND for start in starts)
    possible = allowed(LIMIT, WINDOW * SECOND, SECONDS * SECOND)
    over = max(0, most - LIMIT)
    print(f"\n{'member':16}{'starts':>8}{'share':>10}")
    for name, title in picture.NAMES.items():
        print(f"{title:16}{admitted[name]:8}{admitted[name] / max(1, len(starts)):10.1%}")
    print(f"{'together':16}{len(starts):8}")
    print(f"\nmost starts in any window of {WINDOW} s: {most} of {LIMIT}")
    print(f"over the limit: {over}")
    print(f"admitted in {SECONDS} s: {in_time} of the {possible} that the limit allows, {in_time / possible:.1%}")
    wrong = [f"{over} over the limit"] if over else []
    if in_time < 0.9 * possible:
        wrong.append("less than 90 % of what the limit allows was admitted")
    few = [name for name in picture.NAMES if admitted[name] < 0.15 * len(starts)]
    return wrong + [f"{name} had less than 15 % of the starts" for name in few]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder with the built members; results go there")
    parser.add_argument(
        "--store", choices=("sqlite", "redis", "postgres"), default="sqlite",
        help="the store of the limit: a file of all members (default), or a server, shared by two groups of members like two machines",
    )  # fmt: skip
    parser.add_argument("--kill", choices=picture.NAMES, help="the member to kill half-way (default: a random one)")
    options = parser.parse_args()
    out, killed = options.out.resolve(), options.kill or random.choice(list(picture.NAMES))
    server = Server(options.store, out) if options.store != "sqlite" else None
    store = server.url if server else f"sqlite:{out}/limits.db"
    prepare(out, store)
    ready = Ready()
    brokers = [out / f"broker-{machine}" for machine in ((1, 2) if server else (1,))]
    queue = Queue(brokers)

    def on_machine(broker: Path) -> str:
        """Returns the store, through which the programs of a machine share the grants of a server."""
        return f"{store}{'&' if '?' in store else '?'}lane={broker}-lane" if server else store

    members = [
        Member(name, command, out, ready.write_end, broker, on_machine(broker))
        for broker in brokers
        for name, command in commands(out).items()
    ]
    victim = next(member for member in members if member.name == killed)
    machines = ", on two machines" if server else ""
    print(f"{LIMIT} starts per {WINDOW} s in {store}, shared by Celery, Node and C{machines}", flush=True)
    # Members never end on their own, so they must not outlive the demo.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    try:
        gather(members, ready, queue)
        go, killed_at, back_at = conduct(members, ready, queue, victim, out)
    finally:
        for member in members:
            member.kill()

    starts = read(out / "starts")
    window = WINDOW * SECOND
    most = most_in_any_window(starts, window)
    wrong = report(starts, most, go)
    admitted = Counter(start.member for start in starts)
    result = {
        "limit": LIMIT,
        "window_seconds": WINDOW,
        "admitted": {name: admitted[name] for name in picture.NAMES},
        "most_in_any_window": most,
        "over_limit": max(0, most - LIMIT),
        "killed": killed,
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    picture.draw(
        out / "fleet.svg", starts, limit=LIMIT, window=window, seconds=SECONDS, go=go, most=most,
        killed=killed, killed_at=killed_at, back_at=back_at,
    )  # fmt: skip
    print(f"\n{out / 'result.json'}\n{out / 'fleet.svg'}")
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
