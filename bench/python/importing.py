"""What importing takes, beside an extension module that is empty: processes started in turn."""

import os
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from statistics import median

from timing import show

EMPTY = """
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "empty", 0, 0, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit_empty(void) { return PyModule_Create(&module); }
"""
ROUNDS, SLOW_ROUNDS = 20, 5
MODULES = [
    ("workglow_limit", "workglow-limit", ROUNDS),
    ("limits", "limits", SLOW_ROUNDS),
    ("pyrate_limiter", "pyrate-limiter", SLOW_ROUNDS),
    ("throttled", "throttled-py", SLOW_ROUNDS),
    ("aiolimiter", "aiolimiter", SLOW_ROUNDS),
]


def build(where: str) -> bool:
    """Without a compiler there is nothing to compare with."""
    if Path(where, "empty.abi3.so").exists():
        return True
    Path(where, "empty.c").write_text(EMPTY)
    command = ["cc", "-O2", "-shared", "-fPIC", "-I", sysconfig.get_path("include"), "empty.c", "-o", "empty.abi3.so"]
    try:
        subprocess.run(command, cwd=where, check=True, stderr=subprocess.PIPE)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"not measured: importing, as there is no empty module to compare with: {error}", file=sys.stderr)
        return False
    return True


def start(module: str, where: str) -> tuple[int, int]:
    before, t = os.times(), time.perf_counter_ns()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, env=os.environ | {"PYTHONPATH": where})
    took, after = time.perf_counter_ns() - t, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return took, int(cpu * 1e9)


def measure(where: str, is_wanted) -> None:
    wanted = [(f"import {module}", module, package, rounds) for module, package, rounds in MODULES if is_wanted(f"import {module}")]
    if not wanted or not build(where):
        return
    more: dict[str, list[int]] = {module: [] for _, module, _, _ in wanted}
    for turn in range(ROUNDS):
        empty, _ = start("empty", where)
        for _, module, _, rounds in wanted:
            if turn < rounds:
                more[module].append(start(module, where)[0] - empty)
    for full, module, package, rounds in wanted:
        show(full, package, {"ns": median(more[module]), "rounds": rounds})
