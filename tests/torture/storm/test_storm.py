"""The storm must find a broken limit: without this, its finding nothing would mean nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
OUT = os.environ.get("WGL_DEMO", ROOT / "target/demo")


def test_a_limit_that_each_process_has_for_itself_is_reported():
    storm = [sys.executable, Path(__file__).with_name("storm.py"), "--out", OUT]
    short = ["--limit", "10", "--window", "0.5", "--seconds", "3"]
    run = subprocess.run([*storm, *short, "--plant"], capture_output=True, text=True)
    assert run.returncode == 1, run.stdout + run.stderr
    assert re.search(r"^[1-9]\d* over the limit", run.stderr), run.stderr
