"""What is installed here is what `make dist` made, into empty environments outside the repository; what runs is the quick
starts of the documentation, cut out of it.

    WGL_DIST=target/dist/all target/venv/bin/python -m pytest tests/install     # the same of what `make dist-all` made
"""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
(VERSION,) = re.findall(r'^\[workspace\.package\]\nversion = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M)
DIST = ROOT / os.environ.get("WGL_DIST", "target/dist")

# Where the quick starts are, and what each has in it.
PAGES = ["docs/quickstart.md", "README.md"]
STORE = "sqlite:limits.db"


def environment(path=None, **more):
    """This one, with another PATH, and nothing else that could lead back into the repository."""
    leads_back = {"PYTHONPATH", "NODE_PATH", "PKG_CONFIG_PATH", "VIRTUAL_ENV"}
    kept = {name: value for name, value in os.environ.items() if name not in leads_back}
    return kept | {"PATH": path or os.environ["PATH"]} | more


def run(*command, cwd=None, path=None, check=True, **more):
    """What a command said; `more` is for its environment."""
    command, env = [str(word) for word in command], environment(path, **more)
    done = subprocess.run(command, cwd=cwd, env=env, stdout=-1, stderr=subprocess.STDOUT, text=True, timeout=240)
    assert not check or done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


def only(folder, pattern):
    """The one file of that name which `make dist` made."""
    found = sorted(folder.glob(pattern))
    assert len(found) == 1, f"expected one {pattern} in {folder}, found {len(found)}: run `make dist`"
    return found[0]


def quick_start(language, having, *documents):
    """The first fenced block of that language that has `having` in it, of the first document that there is and has one."""
    for document in documents:
        path = ROOT / document
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.M | re.S) if path.exists() else ()
        for block in blocks:
            if having in block:
                return block
    pytest.fail(f"no {language} block with {having!r} in {documents}")


@pytest.fixture
def empty(tmp_path):
    """An empty folder that no folder above makes a part of a project."""
    assert ROOT not in tmp_path.parents
    return tmp_path
