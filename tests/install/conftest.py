"""Installs the packages of `make dist` into empty environments outside the repository, and runs the quick
starts of the documentation, cut out of it.

    WGL_DIST=target/dist/all target/venv/bin/python -m pytest tests/install     # the same for `make dist-all`
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
(VERSION,) = re.findall(r'^\[workspace\.package\]\nversion = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)
DIST = ROOT / os.environ.get("WGL_DIST", "target/dist")

# The documents with quick starts, in order.
PAGES = ["docs/quickstart.md", "README.md"]
STORE = "sqlite:limits.db"


def environment(path=None, **more):
    """Returns this environment with another PATH, and without references to the repository."""
    leads_back = {"PYTHONPATH", "NODE_PATH", "PKG_CONFIG_PATH", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in leads_back}
    return kept | {"PATH": path or os.environ["PATH"]} | more


def run(*command, cwd=None, path=None, check=True, **more):
    """Returns the output of a command; `more` is added to its environment."""
    command, env = [str(word) for word in command], environment(path, **more)
    done = subprocess.run(command, cwd=cwd, env=env, stdout=-1, stderr=subprocess.STDOUT, text=True, timeout=240)
    assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def only(folder, pattern):
    """Returns the only file of that name from `make dist`."""
    found = sorted(folder.glob(pattern))
    assert len(found) == 1, f"expected one {pattern} in {folder}, found {len(found)}: run `make dist`"
    return found[0]


def quick_start(language, having, *documents):
    """Returns the first fenced block of a language that contains `having`, from the first document that has one."""
    for document in documents:
        path = ROOT / document
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.M | re.S) if path.exists() else ()
        for block in blocks:
            if having in block:
                return block
    pytest.fail(f"no {language} block with {having!r} in {documents}")


@pytest.fixture
def empty(tmp_path):
    """Returns an empty folder outside of any project."""
    assert ROOT not in tmp_path.parents
    return tmp_path
