"""Real workers on real brokers keep the promises of `workglow_limit.celery`. run.py measures their speed."""

import killed
import pytest
import run
import tenants
from brokers import HAS_RABBITMQ, KINDS
from fleet import Fleet, broker

COUNT = 60  # jobs: three windows

#: A task that is late for its place loses its unit of the hour, so it may be as late as nobody is.
HOURLY = {"FLEET_POLICY": "2/1h", "FLEET_GRACE": "30"}


@pytest.mark.parametrize("hold", [run.HOLD, 0.5], ids=["held", "republished"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_backlog_of_two_workers(kind, hold, tmp_path):
    result = run.measure("ours", kind, tmp_path, COUNT, hold=hold)
    print(f"\n{result}")
    if hold < run.WINDOW:  # The places of the next window are beyond the hold: their tasks go back with them.
        assert result.republished > 0
    assert run.broken(result) == []


def test_separate_limits_per_worker_are_detected(tmp_path):
    result = run.measure("ours", "filesystem", tmp_path, COUNT, plant=True)
    assert f"{result.over} over the limit" in run.broken(result)


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind != "filesystem"]
)  # This broker delivers nothing twice.
def test_a_killed_worker_loses_nothing(kind, tmp_path):
    survival = killed.measure(tmp_path, kind)
    print(f"\n{survival}")
    assert killed.broken(survival) == []


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_without_a_limit_overtake_waiting_tasks(kind, tmp_path):
    jobs, others = ([f"{name}-{number}" for number in range(60)] for name in ("job", "free"))
    with broker(kind, tmp_path) as url:
        environments = run.environments("ours", url, tmp_path, hold=360_000)
        with Fleet(tmp_path, url, [at | HOURLY for at in environments], run.CHILDREN) as fleet:
            for job in jobs:
                fleet.send("job", job)
            for other in others:
                fleet.send("free", other)
            log = fleet.wait(lambda log: all(map(log.started, others)) and sum(map(log.started, jobs)) >= 2)
    assert sum(map(log.started, others)) == len(others)
    assert sum(map(log.started, jobs)) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_holds_tasks_leaves_other_tasks_to_other_workers(kind, tmp_path):
    jobs, others = [f"job-{number}" for number in range(30)], [f"free-{number}" for number in range(28)]
    go = tmp_path / "go"
    with broker(kind, tmp_path) as url:
        first, second = (
            environment | HOURLY | {"FLEET_UNTIL": str(go)}
            for environment in run.environments("ours", url, tmp_path, hold=360_000)
        )
        with Fleet(tmp_path, url, [first], run.CHILDREN) as fleet:
            for job in jobs[: run.CHILDREN]:
                fleet.send("job", job)
            fleet.wait(lambda log: sum(map(log.started, jobs)) == run.CHILDREN)
            for job, other in zip(jobs[run.CHILDREN :], others):
                fleet.send("job", job)
                fleet.send("free", other)
            # The children of both workers are busy. In addition, the first worker has the messages that Celery
            # prefetches per child.
            fleet.join([second])
            log = fleet.wait(lambda log: sum(map(log.started, others)) == run.CHILDREN)
            assert sum(map(log.started, others)) == run.CHILDREN
            assert (
                sum(log.receipts[other][0].worker == "worker1" for other in others if log.receipts[other])
                <= 4 * run.CHILDREN
            )
            go.touch()
            log = fleet.wait(lambda log: all(map(log.started, others)))
            assert all(len(log.runs[other]) == 1 for other in others)


@pytest.mark.skipif(not HAS_RABBITMQ, reason="apt-get install rabbitmq-server")
def test_a_message_that_rabbitmq_delayed_may_go_back(tmp_path):
    jobs = ["job-0", "job-1"]
    with broker("rabbitmq-delayed", tmp_path) as url:
        (environment, _) = run.environments("ours", url, tmp_path)
        with Fleet(
            tmp_path, url, [environment | {"FLEET_POLICY": "1/10s", "FLEET_CHILD_ALONE": "1"}], run.CHILDREN
        ) as fleet:
            for job in jobs:
                fleet.send("job", job, countdown=7)  # One second, two and four: the message passes all these queues.
            log = fleet.wait(lambda log: all(map(log.ended, jobs)))
    assert [len(log.runs[job]) for job in jobs] == [1, 1]
    assert max(len(log.receipts[job]) for job in jobs) > 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "filesystem"])
def test_tenants_beside_a_whale_have_starts_by_their_shares(kind, tmp_path):
    result = tenants.measure(kind, tmp_path / "run", 60)
    print(f"\n{result}")
    assert (result.over, result.lost, result.twice) == (0, 0, 0)
    # The units of a worker that is late, as on a busy machine, go to other tenants. Equal shares would be further off.
    is_late = result.span > 1.1 * result.ideal
    for tenant, share in tenants.SHARES.items():
        if is_late:
            assert result.parts[max(tenants.SHARES, key=tenants.SHARES.get)] > result.parts[tenant] - 0.1
        else:
            assert abs(result.parts[tenant] - share / 7) < 0.1
        # The whale has 60 jobs, and may have one of seven starts.
        assert result.first[tenant][1] <= 2 * tenants.LIMIT


def test_a_task_that_waits_beyond_the_visibility_timeout_starts_once(tmp_path):
    result = run.measure("ours", "redis", tmp_path, 120, visibility=5)
    print(f"\n{result}")
    assert (result.over, result.lost, result.twice, result.attempts) == (0, 0, 0, 0)


def test_admissible_tasks_are_left_to_other_workers(tmp_path):
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
            # Its children are busy until the file exists. It has fetched the messages that Celery allows, and no more.
            fleet.join([second])
            log = fleet.wait(lambda log: sum(map(log.started, jobs)) == 2 * run.CHILDREN)
            assert sum(map(log.started, jobs)) == 2 * run.CHILDREN
            go.touch()
            log = fleet.wait(lambda log: all(map(log.ended, jobs)))
            assert all(len(log.runs[job]) == 1 for job in jobs)
