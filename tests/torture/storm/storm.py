"""The kill storm: two Python processes, Node and C put load on one limit while they are killed one after the other.

Every 50 ms a random process gets SIGKILL and is restarted at once: mostly one that has started up and decides, however long its startup
takes. The limit must hold all the same, hardly any of it may be lost, and every language must get a part. Each start blocks its member for
2 ms, so that members compete for a while for units that become free all at once, and kills fall into that time, too.

With `--plant` each process has a limiter of its own, the fault that the storm exists to find: it must then
report starts over the limit.

`--out` is the folder with the Node package (`node_modules/workglow-limit`) and the compiled C member (`storm_member`).
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[2] / "examples/fleet"))
from evidence import SECOND, allowed, most_in_any_window, read

KILL_EVERY = 0.05  # seconds
LANGUAGES = ("python", "node", "c")


class Member:
    """One process, restarted whenever it was killed."""

    def __init__(self, command, errors, environment=None):
        self._command, self._errors, self._environment = command, errors, environment
        self.start()

    def start(self):
        with open(self._errors, "ab") as errors:
            self._process = subprocess.Popen(self._command, stderr=errors, env=self._environment)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def signal(self, number):
        self._process.send_signal(number)

    def decides(self, starts):
        """Returns whether it has opened the file of its starts."""
        return any(starts.glob(f"*-{self._process.pid}.log"))

    def check(self):
        """Ends the storm if the member died on its own."""
        code = self._process.poll()
        if code is not None:
            errors = self._errors.read_text(errors="replace")[-2000:]
            raise SystemExit(f"{' '.join(self._command)} ended with {code}:\n{errors}")


def prepare(out, name="storm"):
    """Prepares an empty folder for the run."""
    if not (out / "node_modules/workglow-limit").exists() or not (out / "storm_member").exists():
        raise SystemExit(f"{out} needs node_modules/workglow-limit and storm_member: `make storm` puts them there")
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "starts").mkdir(parents=True)
    # Node searches for a module from the program's folder.
    shutil.copy(HERE / "member.mjs", folder)
    return folder


def rage(commands, seconds, errors, starts):
    """Runs the members and kills them at random. Returns the number of kills and when it began, in ns."""
    began, kills = time.monotonic_ns(), 0
    # Members never end on their own, so they must not outlive the storm.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    members = []
    try:
        for command in commands:
            members.append(Member(command, errors))
        while (elapsed := (time.monotonic_ns() - began) / SECOND) < seconds:
            time.sleep(max(0, KILL_EVERY * (kills + 1) - elapsed))
            deciding = [member for member in members if member.decides(starts)]
            member = random.choice(deciding if deciding and random.random() < 0.75 else members)
            member.check()
            member.kill()
            member.start()
            kills += 1
    finally:
        for member in members:
            member.kill()
    return kills, began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--window", type=float, default=2.0, help="seconds")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the storm lasts")
    parser.add_argument("--plant", action="store_true", help="break the limit, to show that it is noticed")
    options = parser.parse_args()
    out = options.out.resolve()
    folder = prepare(out)

    store = "memory:" if options.plant else f"sqlite:{folder}/limits.db"
    arguments = [store, str(options.limit), str(options.window), str(folder / "starts")]
    python = [sys.executable, str(HERE / "member.py"), *arguments]
    node = ["node", str(folder / "member.mjs"), *arguments]
    c = [str(out / "storm_member"), *arguments]
    kills, began = rage([python, python, node, c], options.seconds, folder / "members.err", folder / "starts")

    starts = read(folder / "starts")
    window, length = round(options.window * SECOND), round(options.seconds * SECOND)
    admitted = Counter(start.member for start in starts)
    in_time = sum(start.b < began + length for start in starts)
    possible = allowed(options.limit, window, length)
    most = most_in_any_window(starts, window)
    over = max(0, most - options.limit)
    print(f"{options.limit} per {options.window:g} s for {options.seconds:g} s, {kills} kills:", end=" ")
    print(", ".join(f"{name} {admitted[name]}" for name in LANGUAGES), "admitted,", end=" ")
    print(f"most in any window {most}, over the limit {over}, utilisation {in_time / possible:.1%}")

    wrong = [f"{over} over the limit"] if over else []
    # Dead members hold no units for long, and block nobody. How many windows are full depends on the machine.
    used = Counter((start.b - began) // window for start in starts)
    windows = max(1, length // window)
    if sorted(used[number] for number in range(windows))[-max(1, windows // 4)] < 0.8 * options.limit:
        wrong.append("three in four windows had under 80 % of their starts")
    wrong += [f"{name} was never admitted" for name in LANGUAGES if not admitted[name]]
    sys.exit("; ".join(wrong) or 0)


if __name__ == "__main__":
    main()
