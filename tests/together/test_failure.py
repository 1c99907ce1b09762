"""Another program locks the database: members in three languages follow `on_error`, and recover automatically."""

import subprocess
import sys
from contextlib import contextmanager

from conftest import LANGUAGES, until
from workglow_limit import RateLimiter, Store

LOCKER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
database.execute("ROLLBACK")
"""

# The beginning of an answer while the store fails: it timed out, or failed a moment ago.
ANSWERS = {"raise": "error store_", "deny": "denied", "admit": "started"}
LIMIT = 1000


@contextmanager
def locked(path):
    """Lets another process lock the database until the block ends."""
    command = [sys.executable, "-c", LOCKER, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as locker:
        assert locker.stdout.readline() == b"locked\n"
        yield
    assert locker.returncode == 0


def test_a_failing_store_follows_on_error(gather, tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    limiter = RateLimiter(store, "jobs", max_executions=LIMIT, window_size_in_seconds=3600)
    limiter.peek()
    members = {how: gather(LANGUAGES, store, "jobs", timeout=0.5, on_error=how, durability="commit") for how in ANSWERS}

    def each():
        return ((how, member) for how, those in members.items() for member in those)

    def failures():
        return [int(member.ask("failures")[1]) for _, member in each()]

    for _, member in each():
        assert member.ask("try")[0] == "started"
    assert failures() == [0] * len(failures())
    with locked(tmp_path / "limits.db"):
        # No member waits for the lock: it is not released before all have answered.
        for times in 1, 2:
            for _, member in each():
                member.send("try")
            for how, member in each():
                assert " ".join(member.receive()).startswith(ANSWERS[how]), (how, member.language)
            assert failures() == [times] * len(failures())
    # Raised and denied calls were not counted, and neither were starts that could not be written.
    assert limiter.peek(weight=0).remaining == LIMIT - len(failures())

    failed = failures()
    for number, (how, member) in enumerate(each()):
        # The store is tried again within a second; from then on starts are admitted normally, and count.
        def is_well():
            answer, before = member.ask("try"), failed[number]
            failed[number] = int(member.ask("failures")[1])
            return answer[0] == "started" and failed[number] == before

        until("the member is well", is_well)
    assert limiter.peek(weight=0).remaining == LIMIT - 2 * len(failed)
