"""A worker holds tasks that cannot start yet, in order, and runs all others."""

import time

import pytest

pytest_plugins = "workers"

HOUR = 3600


def test_tasks_over_the_limit_wait_and_others_run(site):
    for number in range(4):
        site.send("hourly", f"hold-{number}")
    site.until(lambda: site.started("hold"))
    site.passed_by("hold")
    (line,) = site.started("hold")
    assert line["tag"] == "hold-0" and line["permit"]
    limit = site.control("limits")["work.hourly"]
    assert (limit["policy"], limit["tasks"], limit["waiting"]["hold"]) == ("1/1h", ["work.hourly"], 3)
    assert not site.messages()  # They did not go back to the queue.


@pytest.mark.parametrize("task", ["shared", "annotated"])
def test_limits_however_they_are_declared(task, site):
    for number in range(2):
        site.send(task, f"{task}-{number}")
    site.until(lambda: site.started(task))
    site.passed_by(task)
    assert site.tags(task) == [f"{task}-0"]


def test_each_key_has_its_own_budget(site):
    for number in range(4):
        for tenant in "a", "b":
            site.send("keyed", f"keyed-{tenant}{number}", tenant)
    site.until(lambda: len(site.started("keyed")) == 4)
    site.passed_by("keyed")
    assert sorted(site.tags("keyed")) == ["keyed-a0", "keyed-a1", "keyed-b0", "keyed-b1"]


def test_a_weight_and_a_key_of_several_arguments(site):
    for number, tokens in enumerate([6, 4, 1]):
        site.send("weighted", f"weighted-{number}", "a", kwargs={"tokens": tokens})
    site.send("weighted", "weighted-other", kwargs={"tenant": "a", "model": "n", "tokens": 10})
    site.until(lambda: len(site.started("weighted")) == 3)
    site.passed_by("weighted")
    assert sorted(site.tags("weighted")) == ["weighted-0", "weighted-1", "weighted-other"]
    assert site.limiter("work.weighted").peek("a:m").remaining == 0


def test_several_limits_on_one_task(site):
    for number in range(4):
        site.send("composite", f"composite-{number}", f"composite{number}")
    # Both children of the pool are busy, so tasks without a limit wait for them, as always.
    site.until(lambda: len(site.started("composite")) == 2)
    (site.folder / "composite0").touch()
    site.until(lambda: len(site.started("composite")) == 3)
    for number in range(4):
        (site.folder / f"composite{number}").touch()
    site.until(lambda: len(site.started("composite")) == 4)
    limiter = site.limiter("work.composite")
    site.until(lambda: limiter.peek().remaining == 2)


def test_a_completion_starts_the_next_task(site):
    for number in range(3):
        site.send("alone", f"alone-{number}", f"alone{number}")
    for number in range(3):
        site.until(lambda number=number: len(site.started("alone")) == number + 1)
        site.passed_by(f"alone{number}")
        assert len(site.started("alone")) == number + 1
        # Usually the first one sent. On a busy machine the next one may overtake it on its way to the other process.
        (site.folder / site.tags("alone")[-1].replace("-", "")).touch()
    fences = [line["fence"] for line in site.started("alone")]
    assert fences == sorted(set(fences))


def test_alternatives_take_what_each_allows_and_the_task_knows_which(site):
    for number in range(7):
        site.send("chosen", f"chosen-{number}")
    site.until(lambda: len(site.started("chosen")) == 5)
    site.passed_by("chosen")

    def counts():
        names = [line["chosen"] for line in site.started("chosen")]
        return names.count("first"), names.count("second")

    assert counts() == (2, 3)
    # Two are held. More units at one provider start them there, and charge nothing at the other.
    site.store.override("second/rate", "9/1h")
    site.until(lambda: len(site.started("chosen")) == 7)
    assert counts() == (2, 5)
    assert len(set(site.tags("chosen"))) == 7
    assert [site.store.limiter(name).peek("chosen").remaining for name in ("first", "second/rate")] == [0, 9 - 5]
    site.until(lambda: site.store.limiter("second/concurrency").peek("chosen").remaining == 4)


def test_a_pause_holds_all_tasks(site):
    limiter = site.limiter("work.again")
    over = time.monotonic() + 2
    limiter.pause(2)
    site.send("again", "again")
    site.passed_by("again")
    site.until(lambda: len(site.started("again")) == 2)
    first, second = site.started("again")
    assert first["at"] >= over - 0.001
    # The task's own messages carry none of our headers, and only its own retry counts.
    assert (first["retries"], second["retries"]) == (0, 1)
    assert "workglow_limit" not in first["headers"] and "workglow_limit" not in second["headers"]


def test_a_revoked_task_returns_its_place(site):
    sent = [site.send("hourly", f"revoked-{number}") for number in range(5)]
    limiter = site.limiter("work.hourly")
    site.until(lambda: limiter.peek("revoked").retry_after > HOUR + 60)  # One task has started, and one has a place.
    for result in sent[1:]:  # The others wait for a place.
        site.app.control.revoke(result.id)
    for result in sent[1:]:
        site.until(lambda result=result: result.state == "REVOKED")
    site.until(lambda: limiter.peek("revoked").retry_after <= HOUR)
    assert "revoked" not in site.control("limits")["work.hourly"]["waiting"]
    assert len(site.started("revoked")) == 1


def test_an_expired_task_is_revoked(site):
    result = site.send("annotated", "expired", expires=0.5)
    site.until(lambda: result.state == "REVOKED")
    assert not site.started("expired")


def test_an_eta_comes_before_the_limit(site):
    for number in range(2):
        site.send("hourly", f"eta-{number}", countdown=0.3)
    site.until(lambda: site.control("limits")["work.hourly"]["waiting"].get("eta") == 1)
    site.until(lambda: site.started("eta"))
    site.passed_by("eta")
    assert len(site.started("eta")) == 1


def test_an_urgent_task_overtakes_waiting_ones(own_site):
    site = own_site
    worker = site.worker(concurrency=1)
    for number, priority in enumerate([5, 5, 9, 5, 0, 5]):
        site.send("hourly", f"urgent-{number}", priority=priority)
        # (The broker may deliver the more urgent of two messages first.)
        site.until(lambda seen=number: worker.log.read_text().count("received") == seen + 1)
    site.until(lambda: len(site.started("urgent")) == 1)
    site.passed_by("urgent")
    # (The length of the wait is not always known at once.)
    site.until(lambda: worker.log.read_text().count("limited by 'work.hourly' (key 'urgent'), waits") == 5)
    site.control("limit_set", name="work.hourly", policy="100/1h")
    site.until(lambda: len(site.started("urgent")) == 6)
    # With Redis the smallest priority is the most urgent.
    assert site.tags("urgent") == [f"urgent-{number}" for number in (0, 4, 1, 3, 5, 2)]
