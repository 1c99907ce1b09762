"""The storms must find a broken limit. Otherwise a storm without findings would prove nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
OUT = os.environ.get("WGL_DEMO", HERE.parents[2] / "target/demo")


@pytest.mark.parametrize("storm", ["storm.py", "fleet.py"])
def test_a_limit_per_process_is_reported(storm):
    short = ["--out", OUT, "--limit", "10", "--window", "0.5", "--seconds", "3", "--plant"]
    run = subprocess.run([sys.executable, HERE / storm, *short], capture_output=True, text=True)
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(r"^[1-9]\d* over the limit", run.stderr), run.stderr
