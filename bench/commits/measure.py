"""Counts the fsyncs of 1,000 starts with durability="commit", in each language, one start after the other and many at a time.

    python bench/commits/measure.py [--slow-ms 10] [--starts 1000] [--python FILE] [--node FOLDER] [--c FOLDER]

`--slow-ms` makes each fsync take that much longer, as on a busy disk. The packages are those of `make dist`: Python's is installed,
Node's is found from the folder, and C's is the prefix. Prints the rows of a table.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

CASES = [
    ("C", "try_acquire", 1),
    ("C", "try_acquire", 32),
    ("Python", "try_acquire", 1),
    ("Python", "try_acquire", 32),
    ("Python", "acquire_async", 40),
    ("Python", "try_acquire_async", 40),
    ("Python", "try_acquire_async", 1000),
    ("Node", "acquire", 40),
    ("Node", "tryAcquireAsync", 40),
    ("Node", "tryAcquireAsync", 1000),
]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--slow-ms", default="0")
    parser.add_argument("--starts", type=int, default=1000)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--node", type=Path, default=ROOT / "target/demo")
    parser.add_argument("--c", type=Path, default=ROOT / "target/dist/c")
    given = parser.parse_args()
    given.c = given.c.resolve()
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as folder:
        built = Path(folder)
        build = ["cc", "-O2", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([*build, "-shared", "-fPIC", HERE / "counted.c", "-o", built / "counted.so"], check=True)
        library = [
            f"-I{given.c}/include",
            f"-L{given.c}/lib",
            f"-Wl,-rpath,{given.c}/lib",
            "-lworkglow_limit",
            "-pthread",
        ]
        subprocess.run([*build, HERE / "start.c", "-o", built / "start", *library], check=True)
        shutil.copy(HERE / "start.mjs", given.node / "start.mjs")
        programs = {
            "C": [built / "start"],
            "Python": [given.python, HERE / "start.py"],
            "Node": ["node", given.node / "start.mjs"],
        }
        counted = {"LD_PRELOAD": f"{built}/counted.so", "COUNT_TO": f"{built}/count", "SLOW_MS": given.slow_ms}

        def run(language: str, call: str, starts: int, at_once: int) -> tuple[int, float]:
            with tempfile.TemporaryDirectory(dir=built) as store:
                arguments = [f"sqlite:{store}/limits.db", call, str(starts), str(at_once)]
                began = perf_counter()
                subprocess.run([*programs[language], *arguments], env=os.environ | counted, check=True)
                return int((built / "count").read_text()), perf_counter() - began

        print("| language | call | at a time | fsyncs | seconds |\n| --- | --- | --- | --- | --- |")
        try:
            for language, call, at_once in CASES:
                # What opening, the first start and the end take does not count.
                (before, idle), (after, took) = (run(language, call, starts, at_once) for starts in (0, given.starts))
                print(f"| {language} | `{call}` | {at_once} | {after - before} | {took - idle:.2f} |", flush=True)
        finally:
            (given.node / "start.mjs").unlink()


if __name__ == "__main__":
    main()
