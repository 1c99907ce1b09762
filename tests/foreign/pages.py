"""The core's stores on this machine, where big_pages.c stands between them and the kernel: its pages seem to be larger."""

import json
import subprocess
from pathlib import Path

from cache import run

SIZES = [16384, 65536]
ROOT = Path(__file__).resolve().parents[2]
FEATURES = "workglow-limit/fault-points,workglow-limit/tower"
SHIM = ROOT / "tests/foreign/big_pages.c"
# Millions of calls on the same few pages: minutes without optimisation.
LEFT_OUT = ["bounded::"]


def program():
    """The test program, as `make quick` builds it."""
    command = ["cargo", "test", "--no-run", "--quiet", "--profile=quick", f"--features={FEATURES}", "-p=workglow-limit"]
    said = run(*command, "--test=stores", "--message-format=json-render-diagnostics", cwd=ROOT, stdout=subprocess.PIPE)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    (made,) = filter(None, (line.get("executable") for line in lines))
    return made


def command(size, program, out):
    """The command that runs it on pages of that size."""
    out.mkdir(parents=True, exist_ok=True)
    shim = out / "big_pages.so"
    run("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", SHIM, "-o", shim, "-ldl")
    # Not for what runs the tests: it would be told so, too.
    left_out = [word for module in LEFT_OUT for word in ("--skip", module)]
    return ["env", f"LD_PRELOAD={shim}", f"PAGE_SIZE={size}", program, *left_out]
