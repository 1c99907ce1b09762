"""Runs every test of every language and ends with one summary. `make test` has built and installed what they need.

    target/venv/bin/python tests/run.py [SUITE …]

Each suite's output goes to `target/test-logs/SUITE.log`, and is shown if the suite fails.
"""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "target/test-logs"
CELLS = ROOT / "target/test-cells"
STORM = [sys.executable, "tests/torture/storm/storm.py", "--out", "target/demo", "--seconds", "20"]

# How each runner says what it ran: patterns for passed, failed, skipped.
CARGO = [r"^test result: .*?(\d+) passed", r"^test result: .*?(\d+) failed", r"^test result: .*?(\d+) ignored"]
PYTEST = [r"^(?:.* )?(\d+) passed.* in [\d.]+s", r"^(?:.* )?(\d+) failed.* in [\d.]+s", r"(\d+) skipped.* in [\d.]+s"]
NODE = [r"^. pass (\d+)", r"^. fail (\d+)", r"^. skipped (\d+)"]
PLAIN = [r"^.*: (\d+) passed", r"^.*passed, (\d+) failed", r"^.*failed, (\d+) skipped"]
STORMS = [r"over the limit 0, (utilisation)", r"over the limit ([1-9]\d*)", r"^(?!)"]

# The lines that say which test failed and why, in any runner's output: they are repeated at the very end.
REASONS = r"^(?:test .* FAILED|thread '.*panicked at .*\n.*|FAILED .*|ERROR .*|✖ .*\n.*|not ok .*|.*: FAILED.*|tests/c\S+:\d+: .*|error: .*failed.*)$"

SUITES = {
    "core": (CARGO, ["cargo", "test", "--no-fail-fast", "-p", "workglow-limit", "--features", "fault-points,redis,postgres"]),
    "cli": (CARGO, ["cargo", "test", "--no-fail-fast", "-p", "workglow-limit-cli"]),
    "models": (CARGO, ["tests/torture/models", "quick"]),
    "c-header": (CARGO, ["cargo", "test", "-p", "workglow-limit-ffi"]),
    "c": (PLAIN, ["tests/c/run"]),
    "cpp": (PLAIN, ["tests/cpp/run"]),
    "python": (PYTEST, [sys.executable, "-m", "pytest", "-q", "bindings/python/tests"]),
    "node": (NODE, ["npm", "--prefix", "bindings/node", "test"]),
    "measuring": (PYTEST, [sys.executable, "-m", "pytest", "-q", "examples/fleet", "tests/torture/storm"]),
    "install": (PYTEST, [sys.executable, "-m", "pytest", "-q", "tests/install"]),
    "snippets": (PYTEST, [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/snippets"]),
    "together": (PYTEST, [sys.executable, "-m", "pytest", "-q", "tests/together"]),
    "fleet-bullmq": (NODE, ["npm", "--prefix", "tests/fleet/bullmq", "test"]),
    "next": (NODE, ["npm", "--prefix", "tests/next", "test"]),
    "node-tools": (NODE, ["npm", "--prefix", "tests/node-tools", "test"]),
    "page": (NODE, ["npm", "--prefix", "tests/page", "test"]),
    "site": (NODE, ["npm", "--prefix", "tests/site", "test"]),
    "fleet-pg-queues": (NODE, ["npm", "--prefix", "tests/fleet/pg-queues", "test"]),
    "fleet-workglow": (NODE, ["npm", "--prefix", "tests/fleet/workglow", "test"]),
    "fleet-celery": (PYTEST, [sys.executable, "-m", "pytest", "-q", "-s", "tests/fleet/celery"]),
    "fleet-queues": (PYTEST, [sys.executable, "-m", "pytest", "-q", "-s", "tests/fleet/queues"]),
    "storm-100-2s": (STORMS, [*STORM, "--limit", "100", "--window", "2"]),
    "storm-10-0.5s": (STORMS, [*STORM, "--limit", "10", "--window", "0.5"]),
}

# One after the other, as they wait for cargo's lock. Beside them run the others, of which most wait most of the time.
BUILT = ["core", "cli", "models", "c-header"]
# A storm says how much of its limit it got: nothing runs beside it.
ALONE = ["storm-100-2s", "storm-10-0.5s"]


def count(pattern, output):
    found = re.findall(pattern, output, re.MULTILINE)
    return sum(int(n) if n.isdigit() else 1 for n in found)


def run(name, patterns, command):
    """One suite: how many passed, failed and were skipped, and what it said of those that failed."""
    log = LOGS / f"{name}.log"
    began = time.monotonic()
    with log.open("w") as file:
        code = subprocess.run(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=os.environ | {"NO_COLOR": "1", "WGL_CELLS": str(CELLS)}, timeout=1500,
        ).returncode  # fmt: skip
    output = log.read_text(errors="replace")
    passed, failed, skipped = (count(pattern, output) for pattern in patterns)
    # A suite that ends badly, or ran nothing, has failed whatever it counted.
    failed = max(failed, int(code != 0 or passed == 0))
    said = f"{name:16}{passed:6} passed{failed:4} failed{skipped:4} skipped{time.monotonic() - began:7.0f} s\n"
    if failed:
        said += "\n".join(output.splitlines()[-80:]) + f"\n(all of it: {log.relative_to(ROOT)})\n"
    print(said, end="", flush=True)
    reasons = re.findall(REASONS, output, re.MULTILINE)[-20:] if failed else []
    return passed, failed, skipped, [f"{name}: {reason}" for reason in reasons or [f"exit code {code}"] * (failed > 0)]


def run_all(names):
    return [run(name, *SUITES[name]) for name in names]


LANGUAGES = {"rust": "core", "c": "c", "python": "python", "node": "node"}
STORES = ["memory", "sqlite", "redis", "postgres"]
LIMITERS = [
    "null", "concurrency", "rate", "delay", "evenly_spaced", "token_bucket", "leaky_bucket", "fixed_window",
    "sliding_window_counter", "composite", "custom", "policy",
]  # fmt: skip


def table():
    """Which limiter was run by how many cases of the shared vectors, on which store and in which language; holes are failures."""
    cells = {}
    for language in LANGUAGES:
        path = CELLS / language
        for line in path.read_text().splitlines() if path.exists() else ():
            limiter, store, cases = line.split()
            cells[language, limiter, store] = int(cases)
    columns = [(language, store) for language in LANGUAGES for store in STORES]
    print("\ncases of tests/vectors: each limiter in each language, on memory:, sqlite:, Redis and Postgres:")
    print(f"{'':24}" + "".join(f"{language:>19}" for language in LANGUAGES))
    holes = 0
    for limiter in LIMITERS:
        counts = [cells.get((language, limiter, store), 0) for language, store in columns]
        holes += counts.count(0)
        each = [counts[i : i + len(STORES)] for i in range(0, len(counts), len(STORES))]
        texts = (" + ".join(str(count or "-") for count in some) for some in each)
        print(f"{limiter:24}" + "".join(f"{text:>19}" for text in texts))
    if unknown := {limiter for _, limiter, _ in cells} - set(LIMITERS):
        print(f"limiters that this table does not know: {', '.join(sorted(unknown))}")
    different = {row for row in LIMITERS if len({cells.get((language, row, store)) for language, store in columns}) > 1}
    if different:
        print(f"not the same cases everywhere: {', '.join(sorted(different))}")
    return holes + len(unknown) + len(different)


def main():
    LOGS.mkdir(parents=True, exist_ok=True)
    CELLS.mkdir(parents=True, exist_ok=True)
    chosen = sys.argv[1:] or SUITES
    if unknown := [name for name in chosen if name not in SUITES]:
        sys.exit(f"no suite named {', '.join(unknown)}; there are {', '.join(SUITES)}")
    built, alone = ([name for name in chosen if name in names] for names in (BUILT, ALONE))
    others = [name for name in chosen if name not in BUILT + ALONE]
    # Two at a time, whatever lasts longest; a storm by itself.
    with ThreadPoolExecutor(2) as pool:
        results = sum(pool.map(run_all, [built, *([name] for name in others)]), []) + run_all(alone)
    passed, failed, skipped, reasons = (sum(column, type(column[0])()) for column in zip(*results))
    if set(LANGUAGES.values()) <= set(chosen):
        failed += table()
    print(f"{passed} passed, {failed} failed, {skipped} skipped", *reasons, sep="\n")
    sys.exit(failed > 0)


main()
