"""Real workers on real brokers keep what `workglow_limit.celery` promises; how fast they are is run.py's business."""

import killed
import pytest
import run
from fleet import Fleet, broker

COUNT = 60  # jobs: three windows


@pytest.mark.parametrize("hold", [run.HOLD, 0.5], ids=["held", "republished"])
@pytest.mark.parametrize("kind", run.BROKERS)
def test_a_backlog_of_two_workers(kind, hold, tmp_path):
    result = run.measure("ours", kind, tmp_path, COUNT, hold=hold)
    print(f"\n{result}")
    wrong = run.broken(result)
    if hold < run.WINDOW:  # The places of the next window are too far away: those tasks go back with them.
        assert result.republished > 0
        # A machine that stands still for longer than the grace makes it two.
        wrong = [what for what in wrong if "republished" not in what]
    assert wrong == []


def test_a_limit_that_each_worker_has_for_itself_shows(tmp_path):
    result = run.measure("ours", "filesystem", tmp_path, COUNT, plant=True)
    assert f"{result.over} over the limit" in run.broken(result)


def test_a_killed_worker_takes_nothing_with_it(tmp_path):
    survival = killed.measure(tmp_path)
    print(f"\n{survival}")
    assert killed.broken(survival) == []


def test_what_waits_for_longer_than_the_broker_does_starts_once(tmp_path):
    result = run.measure("ours", "redis", tmp_path, 120, visibility=5)
    print(f"\n{result}")
    assert (result.over, result.lost, result.twice, result.attempts) == (0, 0, 0, 0)


def test_what_the_limit_has_room_for_is_left_to_other_workers(tmp_path):
    jobs = [f"job-{number}" for number in range(40)]
    go = tmp_path / "go"
    with broker("redis", tmp_path) as url:
        first, second = (
            environment | {"FLEET_POLICY": "1000/2s", "FLEET_UNTIL": str(go)}
            for environment in run.environments("ours", url, tmp_path)
        )
        with Fleet(tmp_path, url, [first], run.CHILDREN) as fleet:
            for job in jobs:
                fleet.send("job", job)
            fleet.wait(lambda log: sum(map(log.started, jobs)) == run.CHILDREN)
            # Its children are busy until the file is there. It has fetched what Celery lets it, and no more.
            fleet.join([second])
            log = fleet.wait(lambda log: sum(map(log.started, jobs)) == 2 * run.CHILDREN)
            assert sum(map(log.started, jobs)) == 2 * run.CHILDREN
            go.touch()
            log = fleet.wait(lambda log: all(map(log.ended, jobs)))
            assert all(len(log.runs[job]) == 1 for job in jobs)
