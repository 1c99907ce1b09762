"""The metrics of a store, read by parsers of the formats, and snapshots."""

import asyncio
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from threading import Event

import pytest
from conftest import lane_held, patiently, until
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as prometheus
from workglow_limit import (
    InvalidArgument,
    ManualClock,
    RateLimiter,
    Store,
    StoreError,
    StoreTimeout,
    metrics_content_type,
)

READERS = {"openmetrics": openmetrics, "prometheus": prometheus}
ODD = 'a "name"\\ of\nlines\r\t\x00\x85\u2028 日本 {x="y"} #'


def samples(text, form="openmetrics"):
    """Returns the values of a text by names and labels."""
    said = {}
    for family in READERS[form](text):
        assert family.documentation
        for sample in family.samples:
            series = sample.name, tuple(sorted(sample.labels.items()))
            assert series not in said
            said[series] = sample.value
    return said


def of(said, name, **labels):
    return said[f"workglow_limit_{name}", tuple(sorted(labels.items()))]


@pytest.mark.parametrize("form", READERS)
def test_metrics_report_the_counts(url, form):
    store = Store(url, clock=ManualClock())
    rate = store.limiter("rate", "10/1m")
    for _ in range(9):
        rate.try_acquire()
    rate.try_acquire(weight=2)
    jobs = store.limiter("jobs", "2 concurrent")
    held = jobs.try_acquire()
    store.override("jobs", "3 concurrent")
    stats = rate.stats()
    said = samples(store.metrics(format=form), form)
    assert of(said, "admitted_total", limit="rate") == stats.admitted == 9
    assert of(said, "denied_total", limit="rate") == stats.denied == 1
    assert of(said, "units_wanted_total", limit="rate") == stats.units_wanted == 11
    assert of(said, "units_granted_total", limit="rate") == stats.units_granted == 9
    assert of(said, "units_used", limit="rate", window="60") == 9
    assert of(said, "units_allowed", limit="rate", window="60") == 10
    assert of(said, "near", limit="rate") == 1
    assert of(said, "near", limit="jobs") == 0
    assert of(said, "leases", limit="jobs") == of(said, "units_used", limit="jobs") == 1
    assert ("workglow_limit_leases", (("limit", "rate"),)) not in said
    assert of(said, "info", limit="rate", kind="rate", policy="10/1m", overridden="false") == 1
    assert of(said, "info", limit="jobs", kind="concurrency", policy="3 concurrent", overridden="true") == 1
    assert of(said, "wait_seconds_bucket", limit="rate", le="+Inf") == of(said, "wait_seconds_count", limit="rate") == 0
    held.complete()


@pytest.mark.parametrize("form", READERS)
def test_names_are_escaped(url, form):
    store = Store(url)
    store.limiter(ODD, "10/1m").try_acquire(ODD)
    said = samples(store.metrics(format=form, show_keys=True), form)
    assert of(said, "admitted_total", limit=ODD) == 1


@pytest.mark.parametrize("form", READERS)
def test_an_empty_store(url, form):
    assert of(samples(Store(url).metrics(format=form), form), "failures_total") == 0


def test_promtool_accepts_the_text(url):
    if not shutil.which("promtool"):
        pytest.skip("there is no promtool: apt-get install prometheus")
    store = Store(url)
    store.limiter("rate", "10/1m + 4/1s").try_acquire("key")
    with store.limiter("jobs", "2 concurrent"):
        text = store.metrics(format="prometheus")
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_each_format_has_its_content_type():
    assert (
        metrics_content_type()
        == metrics_content_type("openmetrics")
        == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    )
    assert metrics_content_type("prometheus") == "text/plain; version=0.0.4; charset=utf-8"


def test_a_snapshot_has_all_fields(url):
    store = Store(url, clock=ManualClock())
    rate = store.limiter("rate", "10/1m")
    for _ in range(9):
        rate.try_acquire()
    jobs = store.limiter("jobs", "2 concurrent")
    held = jobs.try_acquire()
    store.override("rate", "20/1m")
    seen = store.snapshot()
    assert abs(seen.at - datetime.now(timezone.utc)) < timedelta(hours=1) and seen.at.tzinfo is not None
    assert (seen.store, seen.failures) == (url, 0)
    assert isinstance(seen.processes, tuple) and seen.ledger_lag >= 0 and seen.lane_bytes >= 0
    running, requests = seen.limits
    assert (running.name, running.kind, running.policy, running.override) == (
        "jobs",
        "concurrency",
        "2 concurrent",
        None,
    )
    assert [(usage.limit, usage.used, usage.window) for usage in running.usage] == [(2, 1, None)]
    assert (requests.name, requests.kind, requests.declared) == ("rate", "rate", "10/1m")
    assert requests.policy == requests.override == "20/1m"
    assert (requests.usage[0].limit, requests.usage[0].used, requests.usage[0].window) == (20, 9, 60.0)
    assert repr(requests.usage[0]) == "Usage(limit=20, used=9, window=60.0)"
    assert requests.usage == store.snapshot().limits[1].usage
    assert requests.stats == rate.stats()
    assert not requests.near and not running.near
    assert (requests.retry_after, requests.paused_for, requests.grants) == (0, 0, None)
    assert len(requests.waits.counts) == len(requests.waits.bounds) + 1 == 9
    assert requests.waits == running.waits
    assert repr(seen) == f'<Snapshot of "{url}": 2 limits>'
    assert repr(running) == '<LimitSnapshot "jobs": 2 concurrent, (Usage(limit=2, used=1, window=None),)>'
    held.complete()


@pytest.mark.parametrize("scheme", ["redis", "postgres"])
def test_on_a_server(scheme, server, postgres):
    url = server.url if scheme == "redis" else postgres
    store = Store(url)
    store.limiter("rate", "10/1m").try_acquire()
    said = samples(Store(url).metrics())
    assert of(said, "units_allowed", limit="rate", window="60") == 10
    said = samples(store.metrics())
    assert of(said, "admitted_total", limit="rate") == 1


def test_arguments_are_checked_before_the_store_opens(tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    range_ = "expected a whole number from 0 to 1000"
    for call in store.snapshot, store.metrics:
        for keys in -1, 1001, 2**70, -(2**70):
            with pytest.raises(InvalidArgument, match=f"^keys is {keys}: {range_}"):
                call(keys=keys)
        for keys in None, True, "5", 1.0:
            with pytest.raises(
                TypeError, match=f"^keys is {re.escape(repr(keys))}: expected a whole number, not {type(keys).__name__}"
            ):
                call(keys=keys)
        with pytest.raises(TypeError, match="^show_keys is 1: expected a bool, not int"):
            call(show_keys=1)
        with pytest.raises(TypeError, match="positional"):
            call(10)
    for call in store.metrics, lambda format: metrics_content_type(format):
        with pytest.raises(InvalidArgument, match="^format is 'json': expected 'openmetrics' or 'prometheus'"):
            call(format="json")
        with pytest.raises(TypeError, match="^format is None: expected a str, not NoneType"):
            call(format=None)
    assert os.listdir(tmp_path) == []
    for keys in 0, 1000:
        assert samples(store.metrics(keys=keys))


def test_a_failing_store_raises(tmp_path):
    for how in "raise", "deny", "admit":
        store = Store(f"sqlite:{tmp_path}/no/limits.db", on_error=how)
        for call in store.snapshot, store.metrics:
            with pytest.raises(StoreError, match="/no"):
                call()


def test_a_snapshot_releases_the_gil(tmp_path):
    path = tmp_path / "limits.db"
    Store(f"sqlite:{path}").open()
    store = Store(f"sqlite:{path}", timeout=30)
    started = Event()

    def look():
        started.set()
        return store.metrics()

    with ThreadPoolExecutor(1) as pool:
        with lane_held(path):
            first = pool.submit(look)
            started.wait()
        # If it had kept the GIL, this thread could not have released the lane before the timeout.
        assert first.result()


def test_a_failed_snapshot_does_not_affect_the_next(tmp_path):
    path = tmp_path / "limits.db"
    Store(f"sqlite:{path}").limiter("jobs", "2/1m").try_acquire()
    store = Store(f"sqlite:{path}", timeout=0.02)
    with lane_held(path):
        with pytest.raises(StoreTimeout):
            store.metrics()
    assert of(samples(patiently(store.metrics)), "admitted_total", limit="jobs") == 1


def test_many_threads_take_snapshots_at_once(url):
    store = Store(url)
    rate = RateLimiter(store, "rate", max_executions=1000, window_size_in_seconds=60)
    rate.try_acquire()
    with ThreadPoolExecutor(8) as pool:
        texts = [pool.submit(store.metrics, keys=i % 20) for i in range(200)]
        for _ in range(99):
            rate.try_acquire()
    counts = [of(samples(text.result()), "admitted_total", limit="rate") for text in texts[-8:]]
    assert all(1 <= count <= 100 for count in counts)
    until(lambda: of(samples(store.metrics()), "admitted_total", limit="rate") == 100)


def test_a_forked_child_takes_its_own_snapshot(url):
    store = Store(url)
    rate = RateLimiter(store, "rate", max_executions=1000, window_size_in_seconds=60)
    rate.try_acquire()
    store.metrics()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            rate.try_acquire()
            assert of(samples(store.metrics()), "admitted_total", limit="rate") >= 1
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert of(samples(store.metrics()), "admitted_total", limit="rate") >= 1


def test_a_thread_takes_snapshots_for_an_event_loop(url):
    store = Store(url)
    store.limiter("rate", "10/1m").try_acquire()

    async def look():
        return await asyncio.to_thread(store.metrics), await asyncio.to_thread(store.snapshot, keys=1)

    text, seen = asyncio.run(look())
    assert samples(text) and [limit.name for limit in seen.limits] == ["rate"] == [
        limit.name for limit in store.snapshot().limits
    ]
