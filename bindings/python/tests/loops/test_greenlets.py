"""In greenlets a call that waits lets the others run: gevent and eventlet, monkey-patched or not."""

import pytest
from conftest import run

LIBRARIES = [(library, patched) for library in ("gevent", "eventlet") for patched in ("patched", "plain")]


@pytest.fixture(params=LIBRARIES, ids="-".join)
def green(request):
    """Runs a program of green.py."""
    return lambda program, *arguments: run("loops/green.py", *request.param, program, *arguments)


@pytest.fixture(params=["sqlite", "redis"])
def away(request, tmp_path):
    """The address of a store, and whom to stop so that it does not answer."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/limits.db", tmp_path / "limits.db"
    server = request.getfixturevalue("server_of_its_own")
    return f"{server.url}?grants=never", server.pid


@pytest.mark.parametrize(
    "program",
    ["order", "priorities", "nobody_goes_past", "timeouts", "entered", "hooks", "without_a_hub", "in_the_hub", "threads", "late"],
)
def test_waiting(green, program, url):
    green(program, url)


@pytest.mark.parametrize("how", ["kill", "timeout"])
def test_who_is_ended_hands_its_place_back(green, how, url):
    green("ended", url, how)


def test_who_was_admitted_and_killed_at_once_gives_the_start_back(green):
    green("told_and_killed")


def test_another_thread_s_completion_wakes_the_hub(green):
    green("woken_by_threads")


@pytest.mark.parametrize("program", ["store_away", "killed_while_away"])
def test_a_store_that_does_not_answer_stops_no_hub(green, program, away):
    green(program, *away)


def test_a_wait_ends_with_its_timeout_while_the_database_is_locked(green, tmp_path):
    green("impatient", f"sqlite:{tmp_path}/limits.db", tmp_path / "limits.db")


def test_a_fork_copies_who_waits(green, tmp_path):
    green("forked", f"sqlite:{tmp_path}/limits.db", tmp_path / "log")
