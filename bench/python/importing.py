"""The cost of the import, compared with an empty extension module: processes started in turn."""

import os
import resource
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
    """Without a compiler there is no comparison."""
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
    """Returns the elapsed and the processor time in ns."""
    before, t = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter_ns()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True, env=os.environ | {"PYTHONPATH": where})
    took, after = time.perf_counter_ns() - t, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, int((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e9)


def measure(where: str, is_wanted) -> None:
    wanted = [(f"import {module}", module, *more) for module, *more in MODULES if is_wanted(f"import {module}")]
    if not wanted or not build(where):
        return
    more: dict[str, list[tuple[int, int]]] = {module: [] for _, module, _, _ in wanted}
    for turn in range(ROUNDS):
        empty, empty_cpu = start("empty", where)
        for _, module, _, rounds in wanted:
            if turn < rounds:
                took, cpu = start(module, where)
                more[module].append((took - empty, cpu - empty_cpu))
    for full, module, package, rounds in wanted:
        ns, cpu = (median(values) for values in zip(*more[module]))
        show(full, package, {"ns": ns, "cpu_ns": cpu, "rounds": rounds})
