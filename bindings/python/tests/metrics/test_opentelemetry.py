"""Metrics of a store for OpenTelemetry's SDK."""

import re

import pytest
from conftest import run
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from workglow_limit import InvalidArgument, ManualClock, Store, opentelemetry
from workglow_limit.opentelemetry import instrument


class Counting:
    """Counts the snapshots of stores."""

    def __init__(self, monkeypatch):
        self.count = 0
        take = opentelemetry.Snapshots._take

        def counted(snapshots):
            self.count += 1
            return take(snapshots)

        monkeypatch.setattr(opentelemetry.Snapshots, "_take", counted)
        monkeypatch.setattr(opentelemetry, "AGE", 1e9)  # A collection may take long on a busy machine.


@pytest.fixture
def reader():
    """A reader that collects on request, the only one of its provider."""
    reader = InMemoryMetricReader()
    reader.provider = MeterProvider([reader])
    yield reader
    reader.provider.shutdown()


def collected(reader):
    """Collects now, and returns units and values with their attributes, by name."""
    data = reader.get_metrics_data()
    metrics = (
        [metric for of in data.resource_metrics for scope in of.scope_metrics for metric in scope.metrics]
        if data
        else []
    )
    assert len({metric.name for metric in metrics}) == len(metrics)
    return {
        metric.name.removeprefix("workglow_limit."): (
            metric.unit,
            [(point.value, dict(point.attributes)) for point in metric.data.data_points],
        )
        for metric in metrics
    }


def used(url):
    store = Store(url, clock=ManualClock())
    rate = store.limiter("rate", "10/1m")
    for _ in range(9):
        rate.try_acquire()
    rate.try_acquire(weight=2)
    return store, store.limiter("jobs", "2 concurrent").try_acquire()


def test_each_collection_takes_one_snapshot(url, reader, monkeypatch):
    counting = Counting(monkeypatch)
    store, held = used(url)
    instrument(store, reader.provider)
    said = collected(reader)
    assert counting.count == 1
    jobs, rate = {"limit": "jobs"}, {"limit": "rate"}
    assert said["units.used"] == ("{unit}", [(1, jobs), (9, {**rate, "window": "60"})])
    assert said["units.allowed"] == ("{unit}", [(2, jobs), (10, {**rate, "window": "60"})])
    assert said["near"] == ("1", [(0, jobs), (1, rate)])
    assert said["leases"] == ("{unit}", [(1, jobs)])
    assert said["starts.admitted"] == ("{start}", [(1, jobs), (9, rate)])
    assert said["starts.denied"] == ("{start}", [(0, jobs), (1, rate)])
    assert said["units.wanted"] == ("{unit}", [(1, jobs), (11, rate)])
    assert said["wait_time"] == ("s", [(0, jobs), (0, rate)])
    assert said["failures"] == ("{error}", [(0, {})])
    assert said["collection.errors"] == ("{error}", [(0, {})])
    assert "grants.held" not in said and "key.units.used" not in said
    store.limiter("rate").try_acquire()
    assert collected(reader)["starts.admitted"][1] == [(1, jobs), (10, rate)]
    assert counting.count == 2
    monkeypatch.setattr(opentelemetry, "AGE", -1.0)
    assert collected(reader)["starts.admitted"][1] == [(1, jobs), (10, rate)]
    assert counting.count > 3
    held.complete()


def test_counters_are_monotonic_and_gauges_are_not(url, reader):
    store, held = used(url)
    instrument(store, reader.provider, keys=5, show_keys=True)
    data = reader.get_metrics_data()
    kinds = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        kinds[metric.name.removeprefix("workglow_limit.")] = (
            type(metric.data).__name__,
            getattr(metric.data, "is_monotonic", None),
        )
    assert kinds["units.used"] == ("Gauge", None)
    assert kinds["starts.admitted"] == ("Sum", True)
    assert kinds["waiting"] == ("Sum", False)
    held.complete()


def test_a_failing_store_is_counted_and_breaks_no_collection(tmp_path, reader):
    instrument(Store(f"sqlite:{tmp_path}/no/limits.db"), reader.provider)
    others = reader.provider.get_meter("another").create_counter("others")
    for count in 1, 2:
        others.add(1)
        said = collected(reader)
        assert said["others"][1] == [(count, {})]
        assert said["collection.errors"][1] == [(count, {})]
        assert "units.used" not in said
    (tmp_path / "no").mkdir()
    assert collected(reader)["failures"][1] == [(0, {})]


def test_a_forked_child_takes_its_own_snapshot():
    program = """
import os, sys
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from workglow_limit import Store
from workglow_limit.opentelemetry import instrument

reader = InMemoryMetricReader()
store = Store("memory:")
limiter = store.limiter("rate", "10/1m")
limiter.try_acquire()
instrument(store, MeterProvider([reader]))

def admitted():
    for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:
        if metric.name == "workglow_limit.starts.admitted":
            return metric.data.data_points[0].value

assert admitted() == 1
pid = os.fork()
limiter.try_acquire()
assert admitted() == 2
if pid:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
    run(program)


def test_the_default_provider_is_the_global_one():
    program = """
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from workglow_limit import Store
from workglow_limit.opentelemetry import instrument

reader = InMemoryMetricReader()
set_meter_provider(MeterProvider([reader]))
instrument(Store("memory:"))
print([metric.name for metric in reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics])
"""
    assert "workglow_limit.failures" in run(program)


def test_arguments_are_checked(tmp_path):
    store = Store(f"sqlite:{tmp_path}/limits.db")
    provider = NoOpMeterProvider()
    with pytest.raises(TypeError, match=r"^store is 'memory:': expected a Store, not str$"):
        instrument("memory:")
    with pytest.raises(TypeError, match=r"^meter_provider is 5: expected a MeterProvider, not int$"):
        instrument(store, 5)
    for keys in -1, 1001:
        with pytest.raises(InvalidArgument, match=f"^keys is {keys}: expected a whole number from 0 to 1000"):
            instrument(store, provider, keys)
    for keys in "5", None, True:
        with pytest.raises(TypeError, match=f"^keys is {re.escape(repr(keys))}: expected a whole number"):
            instrument(store, provider, keys)
    with pytest.raises(TypeError, match="^show_keys is 1: expected a bool, not int$"):
        instrument(store, provider, show_keys=1)
    assert list(tmp_path.iterdir()) == []
