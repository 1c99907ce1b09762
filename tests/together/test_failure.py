"""A stranger locks the database: members in three languages answer as they were told to, and get well by themselves."""

import subprocess
import sys
from contextlib import contextmanager

from conftest import LANGUAGES, until
from workglow_limit import RateLimiter, Store

STRANGER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("BEGIN EXCLUSIVE")
print("locked", flush=True)
sys.stdin.read()
database.execute("ROLLBACK")
"""

# How the answer to a call begins while the store fails: it timed out, or failed a moment ago.
ANSWERS = {"raise": "error store_", "deny": "denied", "admit": "started"}
LIMIT = 1000


@contextmanager
def locked(path):
    """Until its block ends, a process that is none of ours has the database for itself."""
    command = [sys.executable, "-c", STRANGER, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout.readline() == b"locked\n"
        yield
    assert stranger.returncode == 0


def test_a_store_that_fails_is_answered_as_was_chosen(gather, tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    limiter = RateLimiter(store, "jobs", max_executions=LIMIT, window_size_in_seconds=3600)
    limiter.peek()
    members = {
        how: gather(LANGUAGES, store, "jobs", timeout=0.5, on_error=how, durability="commit") for how in ANSWERS
    }

    def each():
        return ((how, member) for how, those in members.items() for member in those)

    def failures():
        return [int(member.ask("failures")[1]) for _, member in each()]

    for _, member in each():
        assert member.ask("try")[0] == "started"
    assert failures() == [0] * len(failures())
    with locked(tmp_path / "limits.db"):
        # Nobody waits for the lock: it is not let go before all have answered.
        for times in 1, 2:
            for _, member in each():
                member.tell("try")
            for how, member in each():
                assert " ".join(member.hear()).startswith(ANSWERS[how]), (how, member.language)
            assert failures() == [times] * len(failures())
    # What was raised or denied was not counted, and neither was what nobody could write down.
    assert limiter.peek(weight=0).remaining == LIMIT - len(failures())

    failed = failures()
    for number, (how, member) in enumerate(each()):
        # The store is tried again within a second; then a start is a start again, and counts.
        def is_well():
            said, before = member.ask("try"), failed[number]
            failed[number] = int(member.ask("failures")[1])
            return said[0] == "started" and failed[number] == before

        until("the member is well", is_well)
    assert limiter.peek(weight=0).remaining == LIMIT - 2 * len(failed)
