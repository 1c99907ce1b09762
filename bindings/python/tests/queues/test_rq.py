"""RQ's own workers, on Redis."""

import sys
import time

import pytest
from redis import Redis
from rq import Queue, SimpleWorker
from rq.job import JobStatus
from workglow_limit.rq import FIELD, LimitedWorker, Limits


class SimpleLimitedWorker(Limits, SimpleWorker):
    """A worker that does not fork."""


@pytest.fixture
def queue(server):
    number = int(server.url.partition("db=")[2])
    with Redis(unix_socket_path=str(server.socket), db=number) as redis:
        yield Queue(connection=redis)


@pytest.fixture
def jobs(tmp_path, monkeypatch):
    monkeypatch.setenv("LIMITS", f"sqlite:{tmp_path}/limits.db")
    monkeypatch.syspath_prepend(str(__file__).rpartition("/")[0])
    monkeypatch.delitem(sys.modules, "rq_jobs", raising=False)
    import rq_jobs

    yield rq_jobs
    monkeypatch.delitem(sys.modules, "rq_jobs", raising=False)


@pytest.mark.parametrize("worker", [SimpleLimitedWorker, LimitedWorker])
def test_a_job_that_was_sent_away_returns(worker, queue, jobs, tmp_path):
    ran = tmp_path / "ran"
    first, second = (queue.enqueue("rq_jobs.ask", ran) for _ in range(2))
    queue.enqueue("rq_jobs.free", ran)
    worker(queue, connection=queue.connection).work(burst=True)
    # A worker in burst mode ends although a job waits.
    deadline = time.monotonic() + 120
    while second.get_status() != JobStatus.FINISHED:
        assert time.monotonic() < deadline and second.get_status() in (JobStatus.SCHEDULED, JobStatus.QUEUED)
        worker(queue, connection=queue.connection).work(burst=True)
        time.sleep(0.1)
    assert sorted(ran.read_text().split()) == ["1", "1", "free"]
    assert first.get_status() == JobStatus.FINISHED
    second.refresh()
    assert not second.number_of_retries and queue.connection.hget(second.key, FIELD) is None


def test_a_job_that_is_cancelled_while_it_waits_does_not_return(queue, jobs, tmp_path):
    ran = tmp_path / "ran"
    jobs.limiter.acquire()
    jobs.limiter.pause(3)
    job, gone = (queue.enqueue("rq_jobs.ask", ran) for _ in range(2))
    worker = SimpleLimitedWorker(queue, connection=queue.connection)
    worker.work(burst=True)
    assert job.get_status() == gone.get_status() == JobStatus.SCHEDULED
    assert [id for id, _ in jobs.away] == [job.id, gone.id]
    job.cancel()
    gone.delete()
    waiting = f"{queue.key}:workglow-limit"
    deadline = time.monotonic() + 120
    while queue.connection.zcard(waiting):
        assert time.monotonic() < deadline
        SimpleLimitedWorker(queue, connection=queue.connection).work(burst=True)
        time.sleep(0.1)
    assert job.get_status() == JobStatus.CANCELED and queue.count == 0 and not ran.exists()


@pytest.mark.parametrize("worker", [SimpleLimitedWorker, LimitedWorker])
def test_an_invalid_job_fails(worker, queue, jobs, tmp_path):
    job, missing = queue.enqueue("rq_jobs.ask", tmp_path / "ran", 0), queue.enqueue("rq_jobs.gone")
    worker(queue, connection=queue.connection).work(burst=True)
    assert job.get_status() == missing.get_status() == JobStatus.FAILED
    assert "weight is 0" in job.latest_result().exc_string
    assert not (tmp_path / "ran").exists()
