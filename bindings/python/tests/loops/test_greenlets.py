"""A call that waits in a greenlet lets other greenlets run, in gevent and eventlet, monkey-patched or not."""

import pytest
from conftest import run

LIBRARIES = [(library, patched) for library in ("gevent", "eventlet") for patched in ("patched", "plain")]


@pytest.fixture(params=LIBRARIES, ids="-".join)
def green(request):
    """Runs a program of green.py."""
    return lambda program, *arguments: run("loops/green.py", *request.param, program, *arguments)


@pytest.fixture(params=["sqlite", "redis"])
def away(request, tmp_path):
    """The address of a store, and the target to stop so that it does not answer."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/limits.db", tmp_path / "limits.db"
    server = request.getfixturevalue("server_of_its_own")
    return f"{server.url}?grants=never", server.pid


@pytest.mark.parametrize(
    "program",
    [
        "order",
        "priorities",
        "no_overtaking",
        "timeouts",
        "entered",
        "hooks",
        "without_a_hub",
        "in_the_hub",
        "threads",
        "late",
    ],
)
def test_waiting(green, program, url):
    green(program, url)


@pytest.mark.parametrize("how", ["kill", "timeout"])
def test_a_killed_greenlet_returns_its_place(green, how, url):
    green("ended", url, how)


def test_an_admitted_greenlet_that_is_killed_returns_its_start(green):
    green("admitted_and_killed")


def test_a_completion_in_another_thread_wakes_the_hub(green):
    green("woken_by_threads")


def test_a_destroyed_hub_has_no_waiters():
    # With patching, gevent cannot create two hubs at the same time.
    run("loops/green.py", "gevent", "plain", "destroyed")


@pytest.mark.parametrize("program", ["stalled_store", "killed_while_stalled"])
def test_an_unresponsive_store_does_not_block_the_hub(green, program, away):
    green(program, *away)


def test_calls_that_wait_share_a_commit(green, tmp_path):
    green("shared_commit", f"sqlite:{tmp_path}/limits.db", tmp_path / "limits.db")


def test_a_wait_times_out_while_the_database_is_locked(green, tmp_path):
    green("impatient", f"sqlite:{tmp_path}/limits.db", tmp_path / "limits.db")


def test_a_fork_copies_waiters(green, tmp_path):
    green("forked", f"sqlite:{tmp_path}/limits.db", tmp_path / "log")
