"""Builds the Rust tests once and runs their programs side by side.

    python3 tests/rust.py
    python3 tests/rust.py quick    # with what `make quick` has built: unit tests, and those of the core that are fast and use no server

One build of the core serves all of them, with every feature: another set of features or of packages would be another build. The modules
of the core's tests are linked as few programs, and each runs in a process of its own: they fork, fill memory and inject faults.
"""

import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from itertools import groupby
from pathlib import Path

import hanging
from lanes import side_by_side

ROOT = Path(__file__).resolve().parent.parent
OURS = ["workglow-limit", *(f"workglow-limit-{part}" for part in ("algorithms", "cli", "ffi", "node"))]
PACKAGES = [word for package in OURS for word in ("-p", package)]
FEATURES = ["--features", "workglow-limit/fault-points,workglow-limit/tower"]
TESTS = ["test", "--no-run", *PACKAGES]
DRAWN = ["build", "-p", "workglow-limit-bench", "--bin", "pictures", "--bin", "playground"]
PROFILE = ["--release", "--config", "tests/rust.toml"]
# The core's test programs whose modules are run one by one.
MODULES = ["limits", "servers", "stores"]
# These take longest, so they begin first.
FIRST = [
    "fleet",
    "leases",
    "bounded",
    "postgres",
    "serve",
    "grants",
    "pairs",
    "observing",
    "groups",
    "changing",
    "sharing",
    "vectors",
]
QUICK = [
    "composites",
    "futures",
    "hooks",
    "late",
    "lines",
    "named",
    "places",
    "policies",
    "pools",
    "processes",
    "turns",
    "waiting",
]
# A program prints a line for each test. If none came for so many seconds, a test hangs.
LONGEST = 900
QUICK_BUILD = ["--profile", "quick", "-p", "workglow-limit-python", "--lib", "--test", "limits", "--test", "stores"]


def build(what: list[str] = TESTS, options: list[str] = PROFILE) -> list[dict]:
    """What cargo built: its messages."""
    command = ["cargo", *what, "--message-format=json-render-diagnostics", *FEATURES, *options]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return [json.loads(line) for line in done.stdout.splitlines()]


def libraries(names: list[str]) -> dict[str, Path]:
    """Crates as other programs link them, the core next to what it needs."""
    found = {}
    for one in build():
        name = one.get("target", {}).get("name", "").replace("-", "_")
        if name in names and not one["profile"]["test"]:
            # The C library has the core's name, and is none that Rust links.
            for file in one["filenames"]:
                if file.endswith(".rlib"):
                    found[name] = Path(file)
    return found


Program = tuple[str, list[str], Path]


def tests(built: list[dict]) -> list[Program]:
    """The tests to run: name, command, and the folder of their package, where they run."""
    found: list[Program] = []
    for one in built:
        name, folder = one["target"]["name"], Path(one["manifest_path"]).parent
        if not one["profile"]["test"]:
            continue
        if folder.name != "core" or name not in MODULES:
            found.append((name, [one["executable"]], folder))
            continue
        listed = subprocess.check_output([one["executable"], "--list", "--format", "terse"], cwd=folder, text=True)
        names = sorted(line.removesuffix(": test") for line in listed.splitlines())
        for module, those in groupby(names, key=lambda name: name.split("::")[0]):
            found.append((module, [one["executable"], "--exact", *those], folder))
    return found


def programs() -> list[Program]:
    """Everything to run."""
    built = [one for one in build() if one.get("executable")]
    found = tests(built)
    # Those that open a store of their reader's choice leave nothing behind.
    examples = [one for one in built if one["target"]["kind"] == ["example"]]
    found += [(one["target"]["name"], [one["executable"], "memory:"], ROOT) for one in examples]
    # By a manual clock these write the same in every run, and what they wrote is committed.
    drawn = {one["target"]["name"]: one["executable"] for one in build(DRAWN) if one.get("executable")}
    for name, committed in (("pictures", "docs/pictures"), ("playground", "site/playground/traces.json")):
        new = f"target/again-{name}"
        command = f"rm -rf {new} && {drawn[name]} {new} && diff -rq {committed} {new}"
        hint = f"make {name} writes something else: look at it and commit it"
        found.append((name, ["bash", "-c", f"{command} || {{ echo '{hint}'; exit 1; }}"], ROOT))
    return found


def run(name: str, command: list[str], folder: Path) -> bool:
    with tempfile.TemporaryFile() as output:
        code, seconds, cpu = hanging.run(command, output, LONGEST, cwd=folder)
        output.seek(0)
        print(
            f"{name}: {seconds:.0f} s ({cpu:.0f} s of a processor)\n{output.read().decode(errors='replace')}",
            flush=True,
        )
        if code != 0:
            print(f"{name}: FAILED with exit code {code}", flush=True)
    return code == 0


def main() -> int:
    if sys.argv[1:] == ["quick"]:
        built = [one for one in build(options=QUICK_BUILD) if one.get("executable")]
        found = [program for program in tests(built) if len(program[1]) == 1 or program[0] in QUICK]
    else:
        order = {name: i for i, name in enumerate(FIRST)}
        found = sorted(programs(), key=lambda program: order.get(program[0], len(order)))
        found.append(("documentation", ["cargo", "test", "--doc", *PACKAGES, *FEATURES, *PROFILE], ROOT))
    # A program's own tests run at the same time, too.
    os.environ.setdefault("RUST_TEST_THREADS", "2")
    return 0 if all(side_by_side(partial(run, *program) for program in found)) else 1


if __name__ == "__main__":
    sys.exit(main())
