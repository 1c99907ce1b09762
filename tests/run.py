"""Runs every test of every language and ends with one summary. `make test` has built and installed what they need.

    target/venv/bin/python tests/run.py [SUITE …]
    target/venv/bin/python tests/run.py --quick      # what `make quick` runs, after it has built

Each suite's output goes to `target/test-logs/SUITE.log`, and is shown if the suite fails.
"""

import os
import re
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

from lanes import side_by_side

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "target/test-logs"
CELLS = ROOT / "target/test-cells"
# Debian's psql on the path is a Perl script that starts the real one.
PATH = os.pathsep.join([*sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True), os.environ["PATH"]])
# A make that is run for a test is not part of the one that runs this.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
ENVIRONMENT |= {"NO_COLOR": "1", "PATH": PATH, "WGL_CELLS": str(CELLS)}
STORM = [sys.executable, "tests/torture/storm/storm.py", "--out", "target/demo", "--seconds", "12"]

# How each runner says what it ran: patterns for passed, failed, skipped.
CARGO = [r"^test result: .*?(\d+) passed", r"^test result: .*?(\d+) failed", r"^test result: .*?(\d+) ignored"]
PYTEST = [r"^(?:.* )?(\d+) passed.* in [\d.]+s", r"^(?:.* )?(\d+) failed.* in [\d.]+s", r"(\d+) skipped.* in [\d.]+s"]
NODE = [r"^. pass (\d+)", r"^. fail (\d+)", r"^. skipped (\d+)"]
PLAIN = [r"^.*: (\d+) passed", r"^.*passed, (\d+) failed", r"^.*failed, (\d+) skipped"]
STORMS = [r"over the limit 0, (utilisation)", r"over the limit ([1-9]\d*)", r"^(?!)"]

# The lines that say which test failed and why, in any runner's output: they are repeated at the very end.
REASONS = r"^(?:test .* FAILED|thread '.*panicked at .*\n.*|FAILED .*|ERROR .*|✖ .*\n.*|not ok .*|.*: FAILED.*|tests/c\S+:\d+: .*|error: .*failed.*)$"

PYTHON = Path("bindings/python/tests")
PYTEST_IN = [sys.executable, "-m", "pytest", "-q"]

SUITES = {
    "rust": (CARGO, [sys.executable, "tests/rust.py"]),
    "models": (CARGO, ["tests/torture/models", "quick"]),
    "fleet-celery": (PYTEST, [sys.executable, "-m", "pytest", "-q", "-s", "tests/fleet/celery"]),
    "python": (PYTEST, [*PYTEST_IN, *sorted(map(str, (ROOT / PYTHON).glob("test_*.py")))]),
    "python-celery": (PYTEST, [*PYTEST_IN, f"{PYTHON}/celery_workers"]),
    "python-http": (PYTEST, [*PYTEST_IN, f"{PYTHON}/clients", f"{PYTHON}/serving"]),
    "python-others": (PYTEST, [*PYTEST_IN, *(f"{PYTHON}/{name}" for name in ("loops", "metrics", "queues"))]),
    "snippets": (PYTEST, [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "tests/snippets"]),
    "node": (NODE, ["npm", "--prefix", "bindings/node", "test"]),
    "c": (PLAIN, ["tests/c/run", "target/dist/c/lib"]),
    "fleet-queues": (PYTEST, [sys.executable, "-m", "pytest", "-q", "-s", "tests/fleet/queues"]),
    "cpp": (PLAIN, ["tests/cpp/run"]),
    "fleet-bullmq": (NODE, ["npm", "--prefix", "tests/fleet/bullmq", "test"]),
    "fleet-pg-queues": (NODE, ["npm", "--prefix", "tests/fleet/pg-queues", "test"]),
    "fleet-workglow": (NODE, ["npm", "--prefix", "tests/fleet/workglow", "test"]),
    "install": (PYTEST, [sys.executable, "-m", "pytest", "-q", "tests/install"]),
    "next": (NODE, ["npm", "--prefix", "tests/next", "test"]),
    "node-tools": (NODE, ["npm", "--prefix", "tests/node-tools", "test"]),
    "page": (NODE, ["npm", "--prefix", "tests/page", "test"]),
    "measuring": (PYTEST, [sys.executable, "-m", "pytest", "-q", "examples/fleet", "tests/torture/storm"]),
    "together": (PYTEST, [sys.executable, "-m", "pytest", "-q", "tests/together"]),
    "site": (NODE, ["npm", "--prefix", "tests/site", "test"]),
    "storm-100-2s": (STORMS, [*STORM, "--limit", "100", "--window", "2"]),
    "storm-10-0.5s": (STORMS, [*STORM, "--limit", "10", "--window", "0.5"]),
}

# The core's fast tests and a smoke test of each language, against what `make quick` has built.
PYTHON_SMOKE = [f"bindings/python/tests/test_{name}.py" for name in ("api", "bad_input", "family", "hooks", "places")]
NODE_SMOKE = [f"bindings/node/test/{name}.test.mjs" for name in ("api", "family", "hooks", "input", "places")]
QUICK = {
    "rust": (CARGO, [sys.executable, "tests/rust.py", "quick"]),
    "c": (PLAIN, ["target/quick/c"]),
    "python": (PYTEST, [sys.executable, "-m", "pytest", "-q", *PYTHON_SMOKE]),
    "node": (NODE, ["node", "--test", *NODE_SMOKE]),
}

# One after the other, as they wait for cargo's lock.
BUILT = ["rust", "models"]
# A storm says how much of its limit it got: nothing runs beside it.
ALONE = ["storm-100-2s", "storm-10-0.5s"]


def count(pattern, output):
    found = re.findall(pattern, output, re.MULTILINE)
    return sum(int(n) if n.isdigit() else 1 for n in found)


def run(name, patterns, command):
    """Runs one suite. Returns the numbers of passed, failed and skipped tests, the reasons of failures, and a row of its seconds."""
    log = LOGS / f"{name}.log"
    began = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=ENVIRONMENT,
        )  # fmt: skip
        # What takes this long hangs.
        guard = threading.Timer(1500, process.kill)
        guard.start()
        _, status, usage = os.wait4(process.pid, 0)
        guard.cancel()
        code = process.returncode = os.waitstatus_to_exitcode(status)
    seconds, cpu = time.monotonic() - began, usage.ru_utime + usage.ru_stime
    output = log.read_text(errors="replace")
    passed, failed, skipped = (count(pattern, output) for pattern in patterns)
    # A suite that ends badly, or ran nothing, has failed whatever it counted.
    failed = max(failed, int(code != 0 or passed == 0))
    said = (
        f"{name:16}{passed:6} passed{failed:4} failed{skipped:4} skipped{seconds:7.0f} s ({cpu:.0f} s of a processor)\n"
    )
    if failed:
        said += "\n".join(output.splitlines()[-80:]) + f"\n(all of it: {log.relative_to(ROOT)})\n"
    print(said, end="", flush=True)
    reasons = re.findall(REASONS, output, re.MULTILINE)[-20:] if failed else []
    reasons = [f"{name}: {reason}" for reason in reasons or [f"exit code {code}"] * (failed > 0)]
    return passed, failed, skipped, reasons, [(seconds, cpu, name)]


def run_all(suites, names):
    return [run(name, *suites[name]) for name in names]


LANGUAGES = {"rust": "rust", "c": "c", "python": "python", "node": "node"}
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
    is_quick = sys.argv[1:] == ["--quick"]
    if is_quick:
        ENVIRONMENT["PYTHONPATH"] = str(ROOT / "target/quick/python")
    suites = QUICK if is_quick else SUITES
    chosen = suites if is_quick else sys.argv[1:] or SUITES
    if unknown := [name for name in chosen if name not in suites]:
        sys.exit(f"no suite named {', '.join(unknown)}; there are {', '.join(suites)}, and --quick")
    built, alone = ([name for name in chosen if name in names] for names in (BUILT, ALONE))
    others = [name for name in chosen if name not in BUILT + ALONE]
    lanes = side_by_side(partial(run_all, suites, names) for names in [built, *([name] for name in others)])
    results = sum(lanes, []) + run_all(suites, alone)
    passed, failed, skipped, reasons, times = (sum(column, type(column[0])()) for column in zip(*results))
    if len(times) > 1:
        print("\n| suite | seconds | of a processor |\n| --- | --- | --- |")
        print(
            *(f"| {name} | {seconds:.0f} | {cpu:.0f} |" for seconds, cpu, name in sorted(times, reverse=True)), sep="\n"
        )
    if not is_quick and set(LANGUAGES.values()) <= set(chosen):
        failed += table()
    print(f"{passed} passed, {failed} failed, {skipped} skipped", *reasons, sep="\n")
    sys.exit(failed > 0)


main()
