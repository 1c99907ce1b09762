"""Real workers on real brokers keep the promises of the limits for Dramatiq, RQ, arq and taskiq. run.py measures their
speed."""

import pytest
import run
from fleet import COMMANDS, HAS_RABBITMQ, fleet

BROKERS = [
    *((queue, "redis") for queue in COMMANDS),
    pytest.param(
        "dramatiq", "rabbitmq", marks=pytest.mark.skipif(not HAS_RABBITMQ, reason="apt-get install rabbitmq-server")
    ),
]


@pytest.mark.parametrize(("queue", "broker"), BROKERS)
def test_a_backlog_of_two_workers(queue, broker, tmp_path):
    result = run.measure(queue, "ours", broker, tmp_path, count=40, limit=10, window=1)
    print(f"\n{result}")
    assert result.broken() == []
    assert result.away > 0, "nothing was ever limited"
    assert result.free > 0


def test_separate_limits_per_worker_are_detected(tmp_path):
    result = run.measure("taskiq", "ours", "redis", tmp_path, count=40, limit=10, window=1, plant=True)
    assert f"{result.over} over the limit" in result.broken()


@pytest.mark.parametrize("queue", COMMANDS)
def test_a_killed_worker_frees_its_slots_and_loses_no_other_job(queue, tmp_path):
    with fleet(tmp_path / "fleet", queue, "ours", limit=1, window=1, policy="1 concurrent") as workers:
        workers.send("job", "long-0")
        workers.wait(lambda log: "long-0" in log.starts)
        workers.send("job", "next-0")
        log = workers.wait(lambda log: log.limited > 0)
        assert log.limited > 0 and "next-0" not in log.starts and "long-0" not in log.ended
        workers.kill_that_ran("long-0")
        log = workers.wait(lambda log: "next-0" in log.ended)
        assert "next-0" in log.ended, workers.errors()
        assert [start.attempts for start in log.starts["next-0"]] == [0]


@pytest.mark.parametrize("queue", COMMANDS)
def test_concurrency_is_held_while_a_job_runs(queue, tmp_path):
    jobs = [f"job-{number}" for number in range(12)]
    with fleet(tmp_path / "fleet", queue, "ours", limit=2, window=1, policy="2 concurrent", job_seconds=0.1) as workers:
        for job in jobs:
            workers.send("job", job)
        log = workers.wait(lambda log: log.ended >= {*jobs})
    assert log.ended >= {*jobs}
    assert all(len(log.starts[job]) == 1 and log.starts[job][0].attempts == 0 for job in jobs)
    steps = sorted([(log.starts[job][0].b, 1) for job in jobs] + [(log.ends[job], -1) for job in jobs])
    assert max(sum(step for _, step in steps[: at + 1]) for at in range(len(steps))) <= 2
