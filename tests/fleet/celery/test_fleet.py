"""Real workers on real brokers keep what `workglow_limit.celery` promises; how fast they are is run.py's business."""

import killed
import pytest
import run

SHORT = {"count": 80, "hold": 2}  # so that some are held, and some republished


@pytest.mark.parametrize("kind", run.BROKERS)
def test_a_backlog_of_two_workers(kind, tmp_path):
    result = run.measure("ours", kind, tmp_path, **SHORT)
    print(f"\n{kind}: {result}")
    assert run.broken(result) == []


def test_a_limit_that_each_worker_has_for_itself_shows(tmp_path):
    result = run.measure("ours", "filesystem", tmp_path, **SHORT, plant=True)
    assert f"{result.over} over the limit" in run.broken(result)


def test_a_killed_worker_takes_nothing_with_it(tmp_path):
    survival = killed.measure(tmp_path)
    print(f"\n{survival}")
    assert killed.broken(survival) == []
