"""Runs the published tests of Flask-Limiter and slowapi, first on their own storage in memory, then on ours.

    python tests/peers/run.py [--slowapi FOLDER]

It needs an environment with our package and with tests/peers/requirements.txt. Flask-Limiter's tests are in its source
distribution, which is downloaded from PyPI into a temporary folder; slowapi's are not, so FOLDER is a checkout of 0.1.10. Tests that
need Docker (Redis, Memcached, MongoDB) are left out. Tests that pass on their storage and fail on ours are printed. Of slowapi:

test_key_style[…-endpoint]  asserts that a refused request is counted: 2 of 1. Ours counts admitted requests.
"""

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
OUTCOME = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED)", re.MULTILINE)


def outcomes(folder, *plugins):
    """Returns the outcome of each test."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-rN",
        "--tb=short",
        "--color=no",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
    ]
    names = [name for plugin in plugins for name in ("-p", plugin)]
    done = subprocess.run(
        [*command, *names, "tests"], cwd=folder, env=os.environ | {"PYTHONPATH": f"{HERE}:{folder}"},
        text=True, capture_output=True, timeout=900,
    )  # fmt: skip
    (folder / f"{'ours' if plugins else 'theirs'}.log").write_text(done.stdout + done.stderr)
    return dict(OUTCOME.findall(done.stdout))


def compare(name, folder):
    theirs, ours = outcomes(folder), outcomes(folder, "ours")
    passed = [test for test, outcome in theirs.items() if outcome == "PASSED"]
    differ = [test for test in passed if ours.get(test) != "PASSED"]
    print(
        f"{name}: {len(passed)} of {len(theirs)} pass on its own storage, {len(passed) - len(differ)} of these on ours"
    )
    print(*(f"  {ours.get(test, 'not run')}: {test}" for test in differ), sep="\n")
    return len(passed), differ


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--slowapi", type=Path, help="a checkout of slowapi")
    given = options.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="peers-"))
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "--dest", folder]
    subprocess.run([*pip, "flask-limiter==4.1.1"], check=True, timeout=300)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    compare("Flask-Limiter", folder / "flask_limiter-4.1.1")
    if given.slowapi:
        compare("slowapi", given.slowapi.resolve())
    print(f"the logs: {folder}")


main()
