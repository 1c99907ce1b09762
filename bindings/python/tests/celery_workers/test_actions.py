"""The other values of on_limit, eager tasks, remote control and events."""

import pytest
from celery import Celery
from workglow_limit import AcquireTimeout, Store
from workglow_limit.celery import Limited, current_permit, install

pytest_plugins = "workers"

HOUR = 3600


def test_on_limit_raise(site):
    site.expect(r"Task work.raising\[.*Limited")
    for number in range(2):
        site.send("raising", f"raising-{number}", kwargs={"tenant": "a"}).get(timeout=site.patience)
    with pytest.raises(Limited) as caught:
        site.send("raising", "raising-2", kwargs={"tenant": "a"}).get(timeout=site.patience)
    error = caught.value
    assert (error.limit, error.key) == ("work.raising", "a") and 0 < error.retry_after <= HOUR
    assert "limit 'work.raising' is full for key 'a': retry after" in str(error)
    assert site.tags("raising") == ["raising-0", "raising-1"]


def test_on_limit_raise_with_autoretry(site):
    site.expect(r"Task work.retrying\[.*Limited")
    site.send("retrying", "retrying-0").get(timeout=site.patience)
    second = site.send("retrying", "retrying-1")
    with pytest.raises(Limited):
        second.get(timeout=site.patience)
    assert site.received(second.id) == 2  # The task has one retry.


def test_on_limit_wait_times_out(site):
    site.expect(r"Task work.waiting\[.*AcquireTimeout")
    site.send("waiting", "waiting-0").get(timeout=site.patience)
    with pytest.raises(AcquireTimeout):
        site.send("waiting", "waiting-1").get(timeout=site.patience)


def test_an_invalid_call_fails_only_itself(site):
    site.expect(r"Task work.weighted\[.*(weight is 11|weighted is 0)", r"Task work.keyed\[.*TypeError")
    heavy = site.send("weighted", "wrong-heavy", "wrong", kwargs={"tokens": 11})
    none = site.send("weighted", "wrong-none", "wrong", kwargs={"tokens": 0})
    many = site.send("keyed", "wrong-many", "a", "b", "c")
    missing = site.send("keyed", "wrong-missing")
    good = site.send("weighted", "wrong-good", "wrong", kwargs={"tokens": 10})
    good.get(timeout=site.patience)
    with pytest.raises(Exception, match='weight is 11: limit "work.weighted" grants at most 10 units at once'):
        heavy.get(timeout=site.patience)
    with pytest.raises(
        Exception, match="limit_weight of task work.weighted is 0: expected a whole number of at least 1"
    ):
        none.get(timeout=site.patience)
    for result, what in (many, "too many positional arguments"), (missing, "missing a required argument: 'tenant'"):
        with pytest.raises(TypeError, match=what):
            result.get(timeout=site.patience)
    assert site.tags("wrong") == ["wrong-good"]


def test_a_limit_is_changed_while_workers_run(site):
    for number in range(4):
        site.send("shared", f"changed-{number}")
    site.until(lambda: site.started("changed"))
    site.passed_by("changed")
    assert len(site.started("changed")) == 1
    assert site.control("limit_set", name="work.shared", policy="1/1x")["error"].startswith("policy is '1/1x'")
    assert site.control("limit_set", name="nobody's", policy="1/1s")["error"].startswith('no limit named "nobody\'s"')
    assert site.control("limit_set", name="work.shared", policy="100/1h") == {"ok": "limit work.shared is 100/1h"}
    site.until(lambda: len(site.started("changed")) == 4)
    keyed = {"name": "work.shared", "policy": "7/1h", "key": "acme"}
    assert site.control("limit_set", **keyed) == {"ok": "limit work.shared is 7/1h for acme"}
    assert [site.limiter("work.shared").peek(key).limit for key in ("acme", "other")] == [7, 100]
    lifted = {"ok": "limit work.shared is as declared for acme"}
    assert site.control("limit_lift", name="work.shared", key="acme") == lifted
    assert site.limiter("work.shared").peek("acme").limit == 100
    assert site.control("limit_lift", name="work.shared") == {"ok": "limit work.shared is as declared"}
    limiter = site.limiter("work.shared")
    assert limiter.can_proceed("pausing")
    pause = {"name": "work.shared", "seconds": 60, "key": "pausing"}
    assert site.control("limit_pause", **pause) == {"ok": "limit work.shared pauses for 60 s"}
    assert limiter.can_proceed("others") and not limiter.can_proceed("pausing")


def test_monitors_see_waiting_tasks(own_site):
    site = own_site
    site.worker("-E")
    with site.events("limited-task") as events:
        for number in range(2):
            site.send("hourly", f"event-{number}", task_id=f"held-{number}")
            site.send("returning", f"event-{number}", task_id=f"returned-{number}")
        site.until(lambda: {event["uuid"] for event in list(events)} >= {"held-1", "returned-1"})
    actions = {event["uuid"]: (event["action"], event["limit"], event["key"]) for event in events}
    assert actions["held-1"] == ("held", "work.hourly", "event")
    assert actions["returned-1"] == ("republished", "work.returning", None)


def test_monitors_see_a_task_that_a_child_sent_back(own_site):
    site = own_site
    site.worker("-E", concurrency=1)
    with site.events("limited-task") as events:
        site.send_behind_a_pause("returning", "sent")
        site.until(lambda: events)
    (event,) = events
    assert (event["action"], event["limit"]) == ("republished", "work.returning") and event["wait"] > 3000


def test_a_held_task_has_celerys_own_states(own_site):
    site = own_site
    site.worker("-E")
    kinds = "task-received", "task-started", "task-succeeded", "task-revoked", "limited-task"
    with site.events(*kinds) as events:
        sent = {site.send("hourly", f"states-{number}").id for number in range(2)}
        site.until(lambda: {event["type"] for event in list(events)} >= {"task-succeeded", "limited-task"})
        # What Flower does with them.
        states = site.app.events.State()
        for event in list(events):
            states.event(event)
        assert {states.tasks[id].state for id in sent} == {"SUCCESS", "RECEIVED"}
        (held,) = (id for id in sent if states.tasks[id].state == "RECEIVED")
        site.app.control.revoke(held)
        site.until(lambda: events[-1]["type"] == "task-revoked")
        states.event(events[-1])
        assert states.tasks[held].state == "REVOKED"


def test_celerys_own_rate_limit_command_is_refused(site):
    answer = site.control("rate_limit", task_name="work.hourly", rate_limit="1/s")
    assert answer["error"].startswith("rate_limit has no effect on work.hourly") and "limit_set" in answer["error"]
    assert site.control("rate_limit", task_name="work.free", rate_limit="1/s") == {
        "ok": "new rate limit set successfully"
    }
    site.control("rate_limit", task_name="work.free", rate_limit="")


@pytest.fixture
def app(tmp_path):
    """An app without workers."""
    app = Celery("local", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_always_eager = True
    install(app, Store(f"sqlite:{tmp_path}/limits.db"))
    return app


def test_eager_tasks_wait_as_in_workers(app):
    @app.task(limit="1/1h", limit_timeout=0.01, limit_key="key", shared=False)
    def eager(key):
        return current_permit().started

    assert eager.delay("a").get() and eager.apply(("b",)).get()
    assert isinstance(eager.delay("a").result, AcquireTimeout)


def test_eager_tasks_raise_as_in_workers(app):
    @app.task(limit="1/1h", on_limit="raise", shared=False)
    def eager():
        return True

    assert eager.delay().get()
    assert isinstance(eager.delay().result, Limited)


def test_a_plain_call_is_not_limited(app):
    @app.task(limit="1/1h", shared=False)
    def called(again=True):
        # Neither from outside nor from a running task, which has its own permit.
        return current_permit(), again and called(False)

    assert called(False) == (None, False) and called(False) == (None, False)
    outer, (inner, _) = called.delay().get()
    assert inner is outer is not None
    assert current_permit() is None
