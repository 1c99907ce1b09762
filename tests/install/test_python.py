"""The wheels, in new virtual environments of each installed Python, without a compiler."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import DIST, PAGES, ROOT, STORE, VERSION, environment, quick_start, run


def pythons():
    """Returns each Python from 3.10 on that is found: on the PATH, and in pyenv's folder."""
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
import sys, sysconfig, venv
assert sys.version_info >= (3, 10)
print(sys.version_info[1], "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "", sys._base_executable)
"""
PYTHONS = pythons()
WHEELS = DIST / "python" if (DIST / "python").exists() else DIST


def installed(folder, python, *packages):
    """Returns the interpreter of a new environment, and a PATH with only that environment. The pip of the tests chooses the
    wheel."""
    run(python, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    path, new = str(folder / "venv/bin"), folder / "venv/bin/python"
    assert shutil.which("cc", path=path) is None and shutil.which("cargo", path=path) is None
    pip = [sys.executable, "-m", "pip", "--python", new, "--disable-pip-version-check", "install", "--quiet"]
    run(*pip, "--only-binary=:all:", "--find-links", WHEELS, *packages, path=path, cwd=folder)
    return new, path


@pytest.mark.parametrize("version", PYTHONS)
def test_the_quick_start_runs(version, empty):
    python, path = installed(empty, PYTHONS[version], "--no-index", "workglow-limit")
    (empty / "quick.py").write_text(quick_start("python", STORE, *PAGES))
    run(python, "-W", "error", "quick.py", path=path, cwd=empty)
    assert (empty / "limits.db").exists()
    assert Path(
        run(python, "-c", "import workglow_limit as w; print(w.__file__)", path=path, cwd=empty).strip()
    ).is_relative_to(empty)


@pytest.fixture
def redis(empty):
    """Returns the URL of a Redis for the test."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    command = [sys.executable, ROOT / "tests/fleet/redis.py", empty]
    # It ends with its input.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield server.stdout.readline().strip()


def test_celery_runs_its_quick_start(empty, redis):
    ours = f"workglow-limit[celery]=={VERSION}"
    python, path = installed(empty, next(iter(PYTHONS.values())), ours, "celery[redis]")
    (empty / "tasks.py").write_text(quick_start("python", "@app.task", "docs/celery.md"))
    worker = [python, "-m", "celery", "-A", "tasks", "-b", redis, "worker", "-c", "2", "-l", "info"]
    log_file = empty / "worker.log"
    with (
        log_file.open("w") as log,
        subprocess.Popen(worker, cwd=empty, env=environment(path), stdout=log, stderr=log) as process,
    ):
        try:
            run(python, "-c", SEND, redis, path=path, cwd=empty)
            deadline = time.monotonic() + 60
            while len(re.findall(r"Task tasks\.\w+\[.*succeeded", log_file.read_text())) < 3:
                assert time.monotonic() < deadline and process.poll() is None, log_file.read_text()
                time.sleep(0.1)
        finally:
            process.terminate()
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
