"""Messages that go back to their queue, and the places, slots and messages that workers leave behind."""

import json
import signal
from unittest.mock import Mock

import pytest
from celery.exceptions import SoftTimeLimitExceeded
from workglow_limit.celery._consumer import watch

pytest_plugins = "workers"

HOUR = 3600


def test_a_long_wait_sends_a_task_back_once_with_its_place(site):
    sent = [site.send("often", f"often-{number}").id for number in range(4)]
    site.until(lambda: len(site.started("often")) == 4)
    lines = sorted(site.started("often"), key=lambda line: line["ready"] or line["at"])
    assert [line["retries"] for line in lines] == [0] * 4
    # The first start is at once. Each other task goes back once. On a busy machine, one that is late for its place goes back again,
    # even the first, and then starts behind the others.
    times = [site.received(id) for id in sent]
    assert 2 <= max(times) < 10
    tags = [line["tag"] for line in lines]
    assert (tags if times == [1, 2, 2, 2] else sorted(tags)) == [f"often-{number}" for number in range(4)]


@pytest.mark.parametrize("by", ["the consumer", "the child"])
def test_a_message_that_goes_back_is_unchanged(by, own_site, monkeypatch):
    monkeypatch.setenv("WORK_DISABLE_RATE_LIMITS", "1" if by == "the child" else "")
    site = own_site
    worker = site.worker()
    site.send("returning", "first")
    site.until(lambda: site.started("first"))
    link = site.app.signature("work.free", ("linked",))
    options = {"priority": 6, "headers": {"mine": 1}, "shadow": "other", "link": link, "reply_to": "somebody"}
    sent = site.send("returning", "second", **options)
    site.until(lambda: site.received(sent.id) == 2)
    assert site.stop(worker) == 0
    (message,) = site.messages()
    headers, properties = message["headers"], message["properties"]
    ticket = headers["workglow_limit"]
    assert ticket["times"] == 1 and ticket["place"].startswith("wgl1.")
    assert headers["eta"] is not None and headers["retries"] == 0 and headers["mine"] == 1
    assert (headers["id"], headers["task"], headers["shadow"]) == (sent.id, "work.returning", "other")
    assert (properties["correlation_id"], properties["reply_to"], properties["priority"]) == (sent.id, "somebody", 6)
    assert properties["delivery_info"]["routing_key"] == "celery"
    args, _, embed = json.loads(site.body(message))
    assert args == ["second"] and embed["callbacks"][0]["task"] == "work.free"


@pytest.mark.parametrize("by", ["the consumer", "the child", "the child, without the waiting room"])
def test_a_message_keeps_the_format_of_its_call(by, own_site, monkeypatch):
    if "without" in by:
        monkeypatch.setenv("WORK_DISABLE_RATE_LIMITS", "1")
    site = own_site
    worker = site.worker(concurrency=1)
    format = {"serializer": "other", "compression": "zlib"}
    if by == "the child":
        sent = site.send_behind_a_pause("returning", "first", **format)
    else:
        site.limiter("work.returning").pause(HOUR)
        sent = site.send("returning", "first", **format)
    site.until(lambda: site.received(sent.id) == 2)
    assert site.stop(worker) == 0
    (message,) = site.messages()
    assert message["content-type"] == "application/x-other"
    assert message["headers"]["compression"] == "application/x-gzip"


def test_the_latest_counts_of_children_are_published(own_site):
    site = own_site
    worker = site.worker()
    for number in range(3):
        site.send("hourly", f"count{number}-0")
    site.until(lambda: all(site.started(f"count{number}") for number in range(3)))
    assert site.stop(worker) == 0
    assert site.limiter("work.hourly").stats().admitted == 3


def test_a_worker_that_stops_returns_its_places(own_site):
    site = own_site
    worker = site.worker(pool="threads")
    for number in range(6):
        site.send("hourly", f"stop-{number}")
    site.until(lambda: site.started("stop"))
    site.passed_by("stop")
    limiter = site.limiter("work.hourly")
    site.until(lambda: limiter.peek("stop").retry_after > HOUR)
    assert site.stop(worker) == 0
    assert limiter.peek("stop").retry_after <= HOUR
    assert "Traceback" not in worker.log.read_text()
    assert len(site.messages()) == 5
    # The messages remain for the next worker.
    limiter.clear("stop")
    site.worker()
    site.until(lambda: len(site.started("stop")) == 2)


def test_a_cold_shutdown_returns_places(own_site):
    site = own_site
    worker = site.worker()
    for number in range(3):
        site.send("hourly", f"cold-{number}")
    limiter = site.limiter("work.hourly")
    site.passed_by("cold")
    site.until(lambda: limiter.peek("cold").retry_after > HOUR)
    site.stop(worker, signal.SIGQUIT)
    assert limiter.peek("cold").retry_after <= HOUR


def test_a_soft_time_limit_ends_no_task(site):
    # (It may strike before the body has begun.)
    site.expect(r"Task work.struck\[.*SoftTimeLimitExceeded")
    result = site.send("struck", "struck")
    site.until(result.ready)
    assert isinstance(result.result, SoftTimeLimitExceeded)
    assert f"Soft time limit (1s) exceeded for work.struck[{result.id}]" in site.workers[0].log.read_text()
    site.until(lambda: site.limiter("work.struck").peek().remaining == 1)


def test_a_request_ends_at_the_hard_time_limit_only():
    # The pool of processes says by name which limit it is, the pool of greenlets by position.
    request, ended = Mock(), Mock()
    watch(request, Mock(), ended, Mock())
    request.on_timeout(soft=True, timeout=1)
    request.on_timeout(True, 1)
    assert not ended.called
    request.on_timeout(soft=False, timeout=1)
    request.on_timeout(False, 1)
    assert ended.call_count == 2


def test_a_killed_child_returns_its_task_and_its_slot(site):
    site.expect("signal 9 ")
    site.send("slotted", "slotted-1", "child")
    site.send("killed", "killed-1", "child")
    for tag in "slotted", "killed":
        site.until(lambda tag=tag: len(site.started(tag)) == 2)
    # Each of the two runs has its own start, because a place is valid for one.
    assert site.limiter("work.killed").peek().remaining == 3
    site.until(lambda: site.limiter("slot").peek().remaining == 1)


def test_a_killed_worker_leaves_its_task_to_another(own_site, monkeypatch):
    site = own_site
    monkeypatch.setenv("WORK_VISIBILITY", "1")
    worker = site.worker()
    site.send("killed", "lost-1", "worker")
    site.send("slotted", "lostslot-1", "worker")
    site.until(lambda: site.started("lost") and site.started("lostslot"))
    site.stop(worker, signal.SIGKILL)
    limiter, slot = site.limiter("work.killed"), site.limiter("slot")
    site.until(lambda: slot.peek().remaining == 1)
    site.worker()
    site.until(lambda: len(site.started("lost")) == 2 and len(site.started("lostslot")) == 2)
    assert limiter.peek().remaining == 3
    site.until(lambda: slot.peek().remaining == 1)


def test_a_terminated_task_returns_its_slot(site):
    running = site.send("alone", "terminated", "never")
    site.until(lambda: site.started("terminated"))
    site.app.control.revoke(running.id, terminate=True)
    limiter = site.limiter("work.alone")
    site.until(lambda: limiter.peek().remaining == 1)


def test_a_lost_connection_returns_places(own_site):
    site = own_site
    worker = site.worker()
    for number in range(3):
        site.send("hourly", f"lost-{number}")
    site.passed_by("before")
    limiter = site.limiter("work.hourly")
    site.until(lambda: limiter.peek("lost").retry_after > HOUR + 60)
    with site.app.connection_for_write() as connection:
        client = connection.default_channel.client
        database = str(client.connection_pool.connection_kwargs["db"])

        def lose():
            # The one that waits for messages. Others may be of other sites, or store a result at this moment.
            waiting = [of for of in client.client_list() if (of["db"], of["cmd"]) == (database, "brpop")]
            return sum(client.client_kill_filter(_id=of["id"]) for of in waiting)

        site.until(lose)
    site.until(lambda: worker.log.read_text().count("Connected to") == 2)
    # The held tasks were delivered again and are held again. No earlier place remains.
    site.passed_by("after")
    site.until(lambda: site.control("limits")["work.hourly"]["waiting"] == {"lost": 2})
    site.until(lambda: HOUR + 60 < limiter.peek("lost").retry_after < 2 * HOUR + 60)
    site.until(lambda: site.tags("lost") == ["lost-0"])


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_broker_that_restarts_returns_held_tasks(pool, fragile_site, redis_of_its_own):
    site = fragile_site
    site.expect("Cannot connect to redis", "Error on stopping")
    worker = site.worker(pool=pool)
    # (A client that waits for results would be disturbed, too.)
    sent = [site.send("hourly", f"restart-{number}", ignore_result=True).id for number in range(5)]
    with site.app.connection_for_read() as connection:
        client = connection.default_channel.client
        site.until(lambda: worker.log.read_text().count("), waits") == client.hlen("unacked") == 4)
    redis_of_its_own.stop()
    site.until(lambda: "Connection to broker lost" in worker.log.read_text() or worker.poll() is not None)
    redis_of_its_own.start()
    site.until(lambda: [site.received(id) for id in sent].count(2) == 4 or worker.poll() is not None)
    assert worker.poll() is None
    assert len(site.started("restart")) == 1
