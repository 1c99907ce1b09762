"""The wheels, in new virtual environments of each Python that is here, without a compiler."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import DIST, PAGES, ROOT, STORE, VERSION, quick_start, run


def pythons():
    """Each Python from 3.10 on that can be found: on the PATH, and where pyenv puts them."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {}
    for candidate in (sys.executable, *pyenv.glob("versions/*/bin/python3"), *map(shutil.which, NAMES)):
        if candidate is None:
            continue
        asked = subprocess.run([candidate, "-c", ABOUT], capture_output=True, text=True)
        if asked.returncode == 0:
            minor, free_threaded, base = asked.stdout.rstrip().split(" ", 2)
            found.setdefault((int(minor), free_threaded), base)
    return {f"3.{minor}{free_threaded}": found[minor, free_threaded] for minor, free_threaded in sorted(found)}


NAMES = [f"python3.{minor}{free_threaded}" for minor in range(10, 20) for free_threaded in ("", "t")]
ABOUT = """
import ensurepip, sys, sysconfig
assert sys.version_info >= (3, 10)
print(sys.version_info[1], "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "", sys._base_executable)
"""
PYTHONS = pythons()
WHEELS = DIST / "python" if (DIST / "python").exists() else DIST


def installed(folder, python, *packages):
    """The interpreter of a new environment, and a PATH on which is only that environment. pip chooses the wheel."""
    run(python, "-m", "venv", folder / "venv", cwd=folder)
    path = str(folder / "venv/bin")
    assert shutil.which("cc", path=path) is None and shutil.which("cargo", path=path) is None
    run(
        folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:",
        "--find-links", WHEELS, *packages, path=path, cwd=folder,
    )  # fmt: skip
    return folder / "venv/bin/python", path


@pytest.mark.parametrize("version", PYTHONS)
def test_the_quick_start_runs(version, empty):
    python, path = installed(empty, PYTHONS[version], "--no-index", "workglow-limit")
    (empty / "quick.py").write_text(quick_start("python", STORE, *PAGES))
    run(python, "-W", "error", "quick.py", path=path, cwd=empty)
    assert (empty / "limits.db").exists()
    assert Path(run(python, "-c", "import workglow_limit as w; print(w.__file__)", path=path, cwd=empty).strip()).is_relative_to(empty)


def test_celery_runs_its_quick_start(empty):
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    has_extra = "\ncelery = [" in (ROOT / "bindings/python/pyproject.toml").read_text()
    ours = f"workglow-limit{'[celery]' if has_extra else ''}=={VERSION}"
    python, path = installed(empty, next(iter(PYTHONS.values())), ours, "celery[redis]")
    (empty / "tasks.py").write_text(quick_start("python", "@app.task", "docs/celery.md", "README.md"))
    with redis(empty) as url, (empty / "worker.log").open("w") as log:
        celery = [str(python), "-m", "celery", "-A", "tasks", "-b", url]
        options = {"cwd": empty, "env": os.environ | {"PATH": path}}
        worker = subprocess.Popen([*celery, "worker", "-c", "2", "-l", "info"], stdout=log, stderr=log, **options)
        try:
            run(python, "-c", SEND, url, path=path, cwd=empty)
            deadline = time.monotonic() + 60
            while len(re.findall(r"Task tasks\.\w+\[.*succeeded", said := (empty / "worker.log").read_text())) < 3:
                assert time.monotonic() < deadline and worker.poll() is None, said
                time.sleep(0.1)
        finally:
            worker.terminate()
            worker.wait(30)
    names = "from workglow_limit import Store; print(Store('sqlite:limits.db').names())"
    assert run(python, "-c", names, path=path, cwd=empty) != "[]\n"


# Sends the task of the quick start three times, with a text for each of its arguments.
SEND = """
import inspect, sys, tasks
tasks.app.conf.broker_url = sys.argv[1]
(name,) = (name for name in tasks.app.tasks if name.startswith("tasks."))
task = tasks.app.tasks[name]
wanted = [p for p in inspect.signature(task.run).parameters.values() if p.default is p.empty]
for _ in range(3):
    task.apply_async(["hello"] * len(wanted))
"""


class redis:
    """A Redis of our own while it is in use, as a URL."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        options = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.server = subprocess.Popen(["redis-server", *options], cwd=self.folder, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while socket.socket().connect_ex(("127.0.0.1", port)) != 0:
            assert time.monotonic() < deadline and self.server.poll() is None
            time.sleep(0.05)
        return f"redis://127.0.0.1:{port}/0"

    def __exit__(self, *_):
        self.server.terminate()
        self.server.wait(30)
