"""What the page "Containers and Kubernetes" says, in namespaces like those of containers."""

import os
import shlex
import subprocess
import sys
import tempfile

import pytest

# Starts until it is denied, and says how many; then what `after` does.
STARTS = """
import sys
from workglow_limit import RateLimiter, Store

store = Store(sys.argv[1], mode=0o660)
limiter = RateLimiter(store, "jobs", max_executions=100, window_size_in_seconds=3600)
started = 0
while started < int(sys.argv[2]) and limiter.try_acquire():
    started += 1
store.flush()
print(started)
"""
AS_ROOT = [] if os.geteuid() == 0 else ["--map-root-user"]


def contained(*how, first=":", url, most=1000, user=None):
    """Runs the program in new namespaces, after some commands of a shell. Returns what it printed, or its error."""
    program = [sys.executable, "-c", STARTS, url, str(most)]
    if user is not None:
        program = ["setpriv", f"--reuid={user[0]}", f"--regid={user[1]}", "--clear-groups", *program]
    line = f"{first} && exec {shlex.join(program)}"
    command = ["unshare", *AS_ROOT, "--mount", *how, "sh", "-ec", line]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or done.stderr


try:
    able = subprocess.run(["unshare", *AS_ROOT, "--mount", "true"], capture_output=True).returncode == 0
except FileNotFoundError:
    able = False
pytestmark = pytest.mark.skipif(not able, reason="no namespaces: they need root, or user namespaces")


@pytest.fixture
def folder(tmp_path):
    """A folder of the node. Its mount points are there, as a container's are."""
    for name in ("data", "elsewhere"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_containers_of_a_node_share_a_folder(folder):
    """Each sees processes of its own. The folder may have another name in each."""
    url = f"sqlite:{folder}/data/limits.db"
    own = ("--pid", "--fork", "--mount-proc", "--ipc", "--uts")
    assert contained(*own, url=url, most=40) == "40"
    there = f"mount --bind {folder}/data {folder}/elsewhere"
    assert contained(*own, first=there, url=f"sqlite:{folder}/elsewhere/limits.db") == "60"


def test_the_database_alone_is_refused(folder):
    """Its lane would be another file in each container."""
    url = f"sqlite:{folder}/data/limits.db"
    running = subprocess.Popen(
        [sys.executable, "-c", f"{STARTS}\nsys.stdout.flush()\nsys.stdin.read()", url, "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert running.stdout.readline() == b"1\n"
    alone = f"touch {folder}/elsewhere/limits.db && mount --bind {folder}/data/limits.db {folder}/elsewhere/limits.db"
    assert "mounted alone into a container" in contained(first=alone, url=f"sqlite:{folder}/elsewhere/limits.db")
    running.communicate()


def test_a_read_only_root_with_a_folder_to_write(folder):
    """Nothing is written but the store's files."""
    root = f"mount --bind {folder} {folder} && mount --bind {folder}/data {folder}/data && mount -o remount,ro,bind {folder}"
    assert contained(first=root, url=f"sqlite:{folder}/data/limits.db") == "100"
    assert "Read-only" in contained(first=root, url=f"sqlite:{folder}/limits.db")
    assert contained(first=root, url="memory:") == "100"


def test_a_small_folder_in_memory_is_an_error_and_no_death(folder):
    """/dev/shm of a container may be small. Its memory is asked for before it is used."""
    small = f"mount -t tmpfs -o size=128k none {folder}/data"
    assert "No space left" in contained(first=small, url=f"sqlite:{folder}/data/limits.db")
    enough = f"mount -t tmpfs -o size=8m none {folder}/data"
    assert contained(first=enough, url=f"sqlite:{folder}/data/limits.db") == "100"


OTHERS = ["setpriv", "--reuid=3001", "--regid=3000", "--clear-groups"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become others")
def test_users_of_one_group():
    """With mode=0o660 and a group in common."""
    if subprocess.run([*OTHERS, sys.executable, "-c", "import workglow_limit"], capture_output=True).returncode != 0:
        pytest.skip("other users may not run this Python")
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 0, 3000)
        os.chmod(folder, 0o2770)
        url = f"sqlite:{folder}/limits.db"
        assert contained(url=url, most=30, user=(3001, 3000)) == "30"
        assert contained(url=url, user=(3002, 3000)) == "70"
