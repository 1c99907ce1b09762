"""Runs every test of every language and ends with one summary. `make test` has built and installed what they need.

    target/venv/bin/python tests/run.py [SUITE …]
    target/venv/bin/python tests/run.py --quick      # what `make quick` runs, after it has built
    target/venv/bin/python tests/run.py --ci PARTS SECONDS   # the suites, and the checks beside them: in so many seconds, or what
                                                    # is not over by then has failed; PARTS lists what ran before

Each suite's output goes to `target/test-logs/SUITE.log`. At the end there is a block of lines for each failed test.
"""

import math
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import hanging
from lanes import side_by_side
from outcomes import CARGO, CHECK, NODE, PLAIN, PYTEST, STORMS, count, failures

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "target/test-logs"
CELLS = ROOT / "target/test-cells"
# Debian's psql on the path is a Perl script that starts the real one.
PATH = os.pathsep.join([*sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True), os.environ["PATH"]])
# A make that is run for a test is not part of the one that runs this.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
ENVIRONMENT |= {"NO_COLOR": "1", "PATH": PATH, "WGL_CELLS": str(CELLS)}
STORM = [sys.executable, "tests/torture/storm/storm.py", "--out", "target/demo", "--seconds", "12"]

PYTHON = Path("bindings/python/tests")
# A test that takes this long hangs, however busy the machine is. Its stacks are printed, and the others go on. (Rust's and Node's tests
# have such limits, too.)
PYTEST_IN = [sys.executable, "-m", "pytest", "-q", "--timeout=900"]
# A suite whose log has not grown for so many seconds hangs. (Some print everything at their end.)
LONGEST = 3000
LOWEST_IN = [str(ROOT / "target/lowest/python/bin/python"), *PYTEST_IN[1:]]
# Celery 5.4 and redis 4.5 leave results and sockets to the collector, which finds their server gone.
CELERY_LOWEST_IN = ["target/lowest/celery/bin/python", *PYTEST_IN[1:], "-p", "no:unraisableexception"]

SUITES = {
    "rust": (CARGO, [sys.executable, "tests/rust.py"]),
    "models": (CARGO, ["tests/torture/models", "quick"]),
    "fleet-celery": (PYTEST, [*PYTEST_IN, "-s", "tests/fleet/celery"]),
    "python-http": (PYTEST, [*PYTEST_IN, f"{PYTHON}/clients", f"{PYTHON}/serving"]),
    "python-celery": (PYTEST, [*PYTEST_IN, f"{PYTHON}/celery_workers"]),
    "celery-lowest": (PYTEST, [*CELERY_LOWEST_IN, f"{PYTHON}/celery_workers"]),
    "python-lowest": (PYTEST, [*LOWEST_IN, *(f"{PYTHON}/{name}" for name in ("clients", "serving", "queues"))]),
    "python-others": (PYTEST, [*PYTEST_IN, *(f"{PYTHON}/{name}" for name in ("loops", "metrics", "queues"))]),
    "python": (PYTEST, [*PYTEST_IN, *sorted(map(str, (ROOT / PYTHON).glob("test_*.py")))]),
    "snippets": (PYTEST, [*PYTEST_IN, "-rs", "-p", "no:cacheprovider", "tests/snippets"]),
    "node": (NODE, ["npm", "--prefix", "bindings/node", "test"]),
    "node-lowest": (NODE, ["npm", "--prefix", "tests/lowest", "test"]),
    "c": (PLAIN, ["tests/c/run", "target/dist/c/lib"]),
    "fleet-queues": (PYTEST, [*PYTEST_IN, "-s", "tests/fleet/queues"]),
    "cpp": (PLAIN, ["tests/cpp/run"]),
    "fleet-bullmq": (NODE, ["npm", "--prefix", "tests/fleet/bullmq", "test"]),
    "fleet-pg-queues": (NODE, ["npm", "--prefix", "tests/fleet/pg-queues", "test"]),
    "fleet-workglow": (NODE, ["npm", "--prefix", "tests/fleet/workglow", "test"]),
    "install": (PYTEST, [*PYTEST_IN, "tests/install"]),
    "next": (NODE, ["npm", "--prefix", "tests/next", "test"]),
    "node-tools": (NODE, ["npm", "--prefix", "tests/node-tools", "test"]),
    "page": (NODE, ["npm", "--prefix", "tests/page", "test"]),
    "measuring": (PYTEST, [*PYTEST_IN, "examples/fleet", "tests/torture/storm", "tests/test_hanging.py"]),
    "together": (PYTEST, [*PYTEST_IN, "tests/together"]),
    "site": (NODE, ["npm", "--prefix", "tests/site", "test"]),
    "storm-100-2s": (STORMS, [*STORM, "--limit", "100", "--window", "2"]),
    "storm-10-0.5s": (STORMS, [*STORM, "--limit", "10", "--window", "0.5"]),
}

# What `make check` does after `make lint`. They use what is built, and write nothing that a suite reads.
CHECKS = {
    name: (CHECK, ["make", "--silent", name]) for name in ("clippy", "types", "docs", "instructions", "foreign-check")
}

# The core's fast tests and a smoke test of each language, against what `make quick` has built.
PYTHON_SMOKE = [f"bindings/python/tests/test_{name}.py" for name in ("api", "bad_input", "family", "hooks", "places")]
NODE_SMOKE = [f"bindings/node/test/{name}.test.mjs" for name in ("api", "family", "hooks", "input", "places")]
QUICK = {
    "rust": (CARGO, [sys.executable, "tests/rust.py", "quick"]),
    "c": (PLAIN, ["target/quick/c"]),
    "python": (PYTEST, [*PYTEST_IN, *PYTHON_SMOKE]),
    "node": (NODE, ["node", "--test", *NODE_SMOKE]),
}

# One after the other, as they wait for cargo's lock. The checks do, too, but there is enough to do beside them. A suite and its twin
# with the lowest versions are mostly the same tests, which would wait for a processor at the same moments.
CHAINS = [
    ["rust", "models"],
    ["clippy", "instructions", "docs"],
    ["python-celery", "celery-lowest"],
    ["python-http", "python-lowest"],
    ["node", "node-lowest"],
]
# A storm says how much of its limit it got: nothing runs beside it.
ALONE = ["storm-100-2s", "storm-10-0.5s"]


def run(until, name, patterns, command):
    """Runs one suite. Returns the numbers of passed, failed and skipped tests, the reasons of failures, and a row of its seconds."""
    log = LOGS / f"{name}.log"
    with log.open("w") as file:
        code, seconds, cpu = hanging.run(command, file, LONGEST, until, cwd=ROOT, env=ENVIRONMENT)
    output = log.read_text(errors="replace")
    passed, failed, skipped = count(patterns, output)
    # A suite that ends badly, or ran nothing, has failed whatever it counted.
    failed = max(failed, int(code != 0 or passed == 0))
    print(
        f"{name:16}{passed:6} passed{failed:4} failed{skipped:4} skipped{seconds:7.0f} s ({cpu:.0f} s of a processor)",
        flush=True,
    )
    reasons = [f"{name}: {reason}" for reason in failures(output, code)] if failed else []
    return passed, failed, skipped, reasons, [(seconds, cpu, name)]


def run_all(suites, until, names):
    return [run(until, name, *suites[name]) for name in names]


LANGUAGES = {"rust": "rust", "c": "c", "python": "python", "node": "node"}
STORES = ["memory", "sqlite", "redis", "postgres"]
LIMITERS = [
    "null", "concurrency", "rate", "delay", "evenly_spaced", "token_bucket", "leaky_bucket", "fixed_window",
    "sliding_window_counter", "composite", "first_of", "custom", "policy",
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


def parts(file):
    """What CI did before: a line each, with its seconds, exit code and name. Returns results as `run` does."""
    for line in Path(file).read_text().splitlines():
        seconds, code, name = line.split(maxsplit=2)
        reasons = [f"{name}: exit code {code}; its output is above"] if code != "0" else []
        yield 0, len(reasons), 0, reasons, [(int(seconds), None, name)]


def print_times(times):
    print("\n| part | seconds | of a processor |\n| --- | --- | --- |")
    for seconds, cpu, name in sorted(times, key=lambda row: row[0], reverse=True):
        print(f"| {name} | {seconds:.0f} | {'' if cpu is None else f'{cpu:.0f}'} |")


def main():
    LOGS.mkdir(parents=True, exist_ok=True)
    CELLS.mkdir(parents=True, exist_ok=True)
    mode = sys.argv[1] if sys.argv[1:2] in (["--quick"], ["--ci"]) else None
    before, until = [], math.inf
    if mode == "--ci":
        before, until = [sys.argv[2]], time.monotonic() + float(sys.argv[3])
        # A test that something is missing for has failed.
        ENVIRONMENT["WGL_ALL"] = "1"
    # What started this may ignore interrupts, as a shell's job in the background does. The suites and their tests do not inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if mode == "--quick":
        ENVIRONMENT["PYTHONPATH"] = str(ROOT / "target/quick/python")
    suites = {None: SUITES, "--quick": QUICK, "--ci": SUITES | CHECKS}[mode]
    chosen = list(suites) if mode else sys.argv[1:] or list(SUITES)
    if unknown := [name for name in chosen if name not in suites]:
        sys.exit(f"no suite named {', '.join(unknown)}; there are {', '.join(suites)}, --quick and --ci")
    chains = [[name for name in chain if name in chosen] for chain in CHAINS]
    others = [[name] for name in chosen if name not in sum(CHAINS, ALONE)]
    lanes = [lane for lane in (chains[0], *others[:2], *chains[1:], *others[2:]) if lane]
    results = [result for file in before for result in parts(file)]
    results += sum(side_by_side(partial(run_all, suites, until, lane) for lane in lanes), [])
    results += run_all(suites, until, [name for name in ALONE if name in chosen])
    passed, failed, skipped, reasons, times = (sum(column, type(column[0])()) for column in zip(*results))
    if mode != "--quick" and set(LANGUAGES.values()) <= set(chosen):
        failed += table()
    if len(times) > 1:
        print_times(times)
    print("", *reasons, f"{passed} passed, {failed} failed, {skipped} skipped", sep="\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
