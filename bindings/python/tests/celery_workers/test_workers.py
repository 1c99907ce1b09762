"""Workers of all kinds keep the same limit."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).parents[4] / "examples/fleet"))
from evidence import Start, most_in_any_window
from workglow_limit.celery._consumer import pool_size

pytest_plugins = "workers"


def most_per_second(lines, sent):
    """Returns the most starts that surely lie in one second: each lies between the ready time of its place and its record. Late
    workers record their starts in another order."""
    moments = ((int(1e6 * (line["ready"] or sent)), int(1e6 * line["at"])) for line in lines)
    return most_in_any_window([Start(a, b, "") for a, b in moments], 1_000_000)


def all_of(site, count):
    """Starts tasks with a limit of one per second in all workers at once."""
    began = time.monotonic()
    sent = [site.send("often", f"often-{number}").id for number in range(count)]
    site.until(lambda: len(site.started("often")) == count)
    lines = site.started("often")
    assert most_per_second(lines, began) == 1
    assert {line["retries"] for line in lines} == {0}
    return sent


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent", "eventlet"])
def test_all_pools_hold_the_limit(pool, own_site):
    site = own_site
    site.worker(pool=pool)
    site.worker(pool="prefork")
    sent = all_of(site, 4)
    # (A task that is late for its place goes back once more.)
    assert 2 <= max(site.received(id) for id in sent) <= 5
    for number in range(3):
        site.send("hourly", f"pool-{number}")
    site.until(lambda: site.started("pool"))
    site.passed_by("pool")
    assert len(site.started("pool")) == 1


@pytest.mark.parametrize("task", ["burst", "patient"])
def test_greenlets_hold_the_limit(task, green_site):
    """The greenlets of two workers keep the limit, and waiting ones let others run."""
    site = green_site
    sent = time.monotonic()
    for number in range(50):
        site.send(task, f"{task}-{number}")
    site.passed_by(task)
    site.until(lambda: len(site.started(task)) == 50)
    assert most_per_second(site.started(task), sent) <= 20
    assert len(set(site.tags(task))) == 50


def test_greenlets_run_side_by_side(green_site):
    """A limit that never binds leaves each greenlet of a pool its task. (One worker may fetch all of them.)"""
    site = green_site
    for number in range(40):
        site.send("together", f"together-{number}", "together is over")
    site.until(lambda: len(site.started("together")) == 40)
    (site.folder / "together is over").touch()


def test_a_pool_of_greenlets_that_grew():
    """Before Celery 5.7, only the inner pool of gevent's knew."""
    inner = SimpleNamespace(size=4)
    pool = SimpleNamespace(is_green=True, limit=4, _pool=inner, _state=1, CLOSE=2, TERMINATE=3)
    assert pool_size(pool) == 4
    inner.size += 3
    assert pool_size(pool) == 7


def test_a_folder_as_the_broker(file_site):
    site = file_site
    site.worker()
    all_of(site, 2)


def test_without_the_waiting_room(own_site, monkeypatch):
    # Only the child decides: a task that cannot start goes back at once with its place.
    monkeypatch.setenv("WORK_DISABLE_RATE_LIMITS", "1")
    site = own_site
    site.worker()
    all_of(site, 3)
    site.send("alone", "alone-1", "alone1")
    site.until(lambda: site.started("alone"))
    site.send("alone", "alone-2", "alone2")
    site.passed_by("alone")
    assert site.tags("alone") == ["alone-1"]
    for number in 1, 2:
        (site.folder / f"alone{number}").touch()
    site.until(lambda: site.tags("alone") == ["alone-1", "alone-2"])


def test_without_the_waiting_room_no_task_circulates(own_site, monkeypatch):
    monkeypatch.setenv("WORK_DISABLE_RATE_LIMITS", "1")
    site = own_site
    worker = site.worker()
    for number in range(5):
        site.send("spaced", f"spaced-{number}")
    site.until(lambda: len(site.started("spaced")) == 5)
    assert len(set(site.tags("spaced"))) == 5
    # Tasks that went back in a loop would arrive hundreds of times per second.
    assert worker.log.read_text().count("received") < 100


def test_limits_on_a_server(served_site):
    site = served_site
    site.worker()
    site.worker()
    sent = [site.send("often", f"often-{number}").id for number in range(4)]
    sent += [site.send("hourly", f"served-{number}").id for number in range(3)]
    site.passed_by("served")
    site.until(lambda: len(site.started("often")) == 4)
    site.until(lambda: len(site.started("served")) == 1)
    assert {line["retries"] for line in site.started("often")} == {0}
    assert site.limiter("work.hourly").peek(key="served").remaining == 0
    # A killed child returns its task and its slot.
    site.expect("signal 9 ")
    site.send("slotted", "slotted-1", "child")
    site.until(lambda: len(site.started("slotted")) == 2)
    site.until(lambda: site.limiter("slot").peek().remaining == 1)
