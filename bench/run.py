"""Times every program of the bench in turn, round after round, and writes target/bench/results.json: run.py

Each program is started as `PROGRAM DIRECTORY`, times its cases for a short while, and prints a JSON object per line:

    {"case": "rust memory admit", "group": "rust", "peer": "workglow-limit", "ns": 47.1, "p99": 85, "p999": 94, "cpu_ns": 47.9}

`ns` is the time of a decision, the median over batches (of several threads or processes: the mean); `p99` and `p999` are of
decisions timed one by one; `cpu_ns` is the CPU time of a decision. Optional fields: `threads`, `processes`, `keys`,
`per_second`, `bytes`. `{"version": {"governor": "0.10.4"}}` names the peers' versions. Started with `--most`, once, a program
puts load on real limits instead and prints `limit` and `most`, the most starts that lie wholly in one window.

ROUNDS=2 for a quick run; ONLY=rust,python selects programs; PUBLISH=1 writes docs/benchmarks.md and the README's table, too.
"""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

import report

ROOT = Path(__file__).resolve().parent.parent
BUILT = ROOT / "target/bench"
RESULTS = BUILT / "results.json"

PROGRAMS = {
    "rust": ["target/release/bench-rust"],
    "c": ["target/bench/c"],
    "python": ["target/bench/venv/bin/python", "bench/python/bench.py"],
    "node": ["node", "bench/node/bench.mjs"],
    "processes": ["target/release/bench-processes"],
    "growth": ["target/release/bench-growth"],
}
# Slow cases that show the shape of a curve, where a few per cent do not matter.
ROUNDS_AT_MOST = {"growth": 3}

# The fields that are measurements: their median over the rounds counts. All others identify the case.
FIGURES = ["ns", "p99", "p999", "cpu_ns", "per_second", "bytes", "bytes_each", "declared_ns"]


def main() -> int:
    rounds = int(os.environ.get("ROUNDS") or 7)
    names = (os.environ.get("ONLY") or ",".join(PROGRAMS)).split(",")
    if unknown := [name for name in names if name not in PROGRAMS]:
        sys.exit(f"ONLY={','.join(names)}: there is no {unknown[0]!r}. Programs: {', '.join(PROGRAMS)}")
    is_published = os.environ.get("PUBLISH") == "1"
    if is_published and set(names) != set(PROGRAMS):
        sys.exit("PUBLISH=1 is for the figures of all programs: leave ONLY out.")
    about = describe(rounds, names)
    if is_published and about["dirty"]:
        sys.exit("There are changes that are not committed: figures are published of a commit. Commit them first.")

    lines = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        for number in range(1, rounds + 1):
            for name in names:
                if number <= ROUNDS_AT_MOST.get(name, rounds):
                    say(f"round {number} of {rounds}: {name}")
                    take(run(name, Path(directory)), lines, about["versions"])
                if number == 1:
                    say(f"the most starts in a window: {name}")
                    take(run(name, Path(directory), "--most"), lines, about["versions"])
    say("")
    results = about | {"cases": [summed(case, seen) for case, seen in lines.items()]}
    BUILT.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    report.show(results)
    report.write(results, BUILT / "docs")
    print(f"\n{RESULTS.relative_to(ROOT)}, {(BUILT / 'docs').relative_to(ROOT)}/benchmarks.md")
    if is_published:
        report.write(results, ROOT / "docs")
        report.write_short(results, ROOT / "README.md")
        print("docs/benchmarks.md, README.md: look at what has changed, and commit it")
    return 0


def say(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{what}", end="", file=sys.stderr, flush=True)
    elif what:
        print(what, file=sys.stderr, flush=True)


def run(name: str, directory: Path, *options: str) -> str:
    own = directory / name  # The same in each round, so that the first round's files exist in the next.
    own.mkdir(exist_ok=True)
    done = subprocess.run([*PROGRAMS[name], own, *options], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"\n{name} has failed ({done.returncode}):\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    for line in done.stderr.splitlines():
        if line not in run.said:  # Each message of a program is printed once.
            print(f"\n{name}: {line}", file=sys.stderr)
            run.said.add(line)
    return done.stdout


run.said = set()


def take(output: str, lines: dict[str, list], versions: dict[str, str]) -> None:
    for text in output.splitlines():
        line = json.loads(text)
        if "version" in line:
            versions.update(line["version"])
        else:
            lines[line["case"]].append(line)


def summed(case: str, seen: list[dict]) -> dict:
    """Returns one case, merged from all rounds."""
    one = dict(seen[-1])
    for figure in FIGURES:
        if values := [line[figure] for line in seen if line.get(figure) is not None]:
            one[figure] = round(median(values), 1)
    if values := [line["ns"] for line in seen if line.get("ns") is not None]:
        one |= {"least": min(values), "greatest": max(values), "rounds": len(values)}
    if "most" in one:
        one["most"] = max(line["most"] for line in seen)
    return one


def describe(rounds: int, names: list[str]) -> dict:
    """Returns the commit and the machine."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    def first(path: str, start: str) -> str:
        lines = Path(path).read_text().splitlines()
        found = [line.split(":" if ":" in line else "=", 1)[1].strip(' "') for line in lines if line.startswith(start)]
        return found[0] if found else "unknown"

    chosen = "" if set(names) == set(PROGRAMS) else f" ONLY={','.join(names)}"
    return {
        "commit": git("rev-parse", "--short=10", "HEAD"),
        "dirty": bool(git("status", "--porcelain")),
        "command": "make bench" + (f" ROUNDS={rounds}" if rounds != 7 else "") + chosen,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "rounds": rounds,
        "machine": {
            "cpu": first("/proc/cpuinfo", "model name"),
            "cores": os.cpu_count(),
            "memory": f"{int(first('/proc/meminfo', 'MemTotal').split()[0]) / 2**20:.0f} GiB",
            "system": first("/etc/os-release", "PRETTY_NAME"),
            "kernel": f"{platform.system()} {platform.release().split('-')[0]}",
            "load before": round(os.getloadavg()[0], 2),
        },
        "versions": {},
    }


if __name__ == "__main__":
    sys.exit(main())
