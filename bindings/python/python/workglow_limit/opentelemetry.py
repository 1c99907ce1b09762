"""Metrics of a store for OpenTelemetry.

    from workglow_limit.opentelemetry import instrument

    instrument(store)

All processes of a "sqlite:" store report the same values, so instrument one process per machine and do not add them up.
On a server, each process reports its own counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from os import getpid
from time import monotonic
from typing import Any, TypeAlias

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider

from . import KeySnapshot, LimitSnapshot, Snapshot, Store, __version__
from ._limit import check_bool

__all__ = ["instrument"]

#: Returns the observations of one instrument from a snapshot.
Seen: TypeAlias = Callable[[Snapshot], Iterable[Observation]]

#: The longest age of a snapshot in seconds. One snapshot serves all instruments of a collection, which follow each
#: other at once.
AGE = 1.0


def instrument(
    store: Store, meter_provider: MeterProvider | None = None, keys: int = 0, *, show_keys: bool = False
) -> None:
    """Reports a store and all its limits to a meter. Each collection takes one snapshot of the store.

    keys: the largest number of keys per limit that have their own values, the busiest first (0 to 1000).
    show_keys: whether keys appear as their texts, which can be secrets, instead of ids.

    If the store fails, nothing is reported, and `workglow_limit.collection.errors` counts it.
    """
    if meter_provider is None:
        meter_provider = get_meter_provider()
    check("store", store, Store)
    check("meter_provider", meter_provider, MeterProvider)
    # Check the options now, because an error in a collection reaches no caller.
    Store("memory:").snapshot(keys=keys, show_keys=check_bool("show_keys", show_keys))
    meter, snapshots = meter_provider.get_meter("workglow_limit", __version__), Snapshots(store, keys, show_keys)
    kinds: dict[str, Callable[..., Any]] = {
        "gauge": meter.create_observable_gauge,
        "counter": meter.create_observable_counter,
        "sum": meter.create_observable_up_down_counter,
    }
    for kind, name, unit, description, seen in INSTRUMENTS:
        name = f"workglow_limit.{name}"
        kinds[kind](name, callbacks=[snapshots.callback(name, seen)], unit=unit, description=description)
    # The last instrument, so that it includes an error of this collection.
    description = "Collections that failed because of the store."
    meter.create_observable_counter("workglow_limit.collection.errors", [snapshots.failed], "{error}", description)


def check(parameter: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"{parameter} is {value!r}: expected a {expected.__name__}, not {type(value).__name__}")


class Snapshots:
    """The snapshots of a store. Each serves every instrument once. It has no lock, because a child may be forked at any
    time."""

    def __init__(self, store: Store, keys: int, show_keys: bool) -> None:
        self._store, self._keys, self._show_keys = store, keys, show_keys
        self._last: tuple[int, float, Snapshot | None, set[str]] = (0, 0.0, None, set())
        self._errors = 0

    def callback(self, name: str, seen: Seen) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Returns the callback of an instrument."""

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            snapshot = self._for(name)
            return () if snapshot is None else seen(snapshot)

        return observe

    def failed(self, _: CallbackOptions) -> Iterable[Observation]:
        """Reports the number of failed snapshots."""
        return (Observation(self._errors),)

    def _for(self, name: str) -> Snapshot | None:
        process, at, snapshot, served = self._last
        # A second call for the same instrument belongs to the next collection.
        if name in served or process != getpid() or monotonic() - at > AGE:
            snapshot, served = self._take(), set[str]()
            self._last = getpid(), monotonic(), snapshot, served
        served.add(name)
        return snapshot

    def _take(self) -> Snapshot | None:
        try:
            return self._store.snapshot(keys=self._keys, show_keys=self._show_keys)
        except Exception:
            self._errors += 1
            return None


def of_store(value: Callable[[Snapshot], float | None]) -> Seen:
    def seen(snapshot: Snapshot) -> Iterable[Observation]:
        of = value(snapshot)
        return () if of is None else (Observation(of),)

    return seen


def of_limit(value: Callable[[LimitSnapshot], float | None]) -> Seen:
    def seen(snapshot: Snapshot) -> Iterable[Observation]:
        for limit in snapshot.limits:
            of = value(limit)
            if of is not None:
                yield Observation(of, {"limit": limit.name})

    return seen


def of_usage(name: str) -> Seen:
    def seen(snapshot: Snapshot) -> Iterable[Observation]:
        for limit in snapshot.limits:
            # Of windows with the same length use the fuller one, which comes first.
            for usage in {one.window: one for one in reversed(limit.usage)}.values():
                window = {} if usage.window is None else {"window": str(usage.window).removesuffix(".0")}
                yield Observation(getattr(usage, name), {"limit": limit.name, **window})

    return seen


def of_key(value: Callable[[KeySnapshot], int]) -> Seen:
    def seen(snapshot: Snapshot) -> Iterable[Observation]:
        for limit in snapshot.limits:
            for key in limit.hot_keys:
                yield Observation(value(key), {"limit": limit.name, "key": key.key})

    return seen


def leases(limit: LimitSnapshot) -> int | None:
    return next((usage.used for usage in limit.usage if usage.window is None), None)


#: Kind, name, unit, description, and observations.
INSTRUMENTS: list[tuple[str, str, str, str, Seen]] = [
    (
        "gauge",
        "units.allowed",
        "{unit}",
        "Units that the limit allows a key in each of its windows.",
        of_usage("limit"),
    ),
    ("gauge", "units.used", "{unit}", "Units of each window in use by the key that uses most of it.", of_usage("used")),
    (
        "gauge",
        "units.peak",
        "{unit}",
        "The most units of one key in use at the same time, within about the last minute.",
        of_limit(lambda of: of.peak),
    ),
    ("gauge", "near", "1", "1 if more than 80 % of the limit is used, otherwise 0.", of_limit(lambda of: int(of.near))),
    ("gauge", "leases", "{unit}", "Units of a concurrency limit that are held by running jobs.", of_limit(leases)),
    ("sum", "waiting", "{caller}", "Callers that wait for a start, in all processes.", of_limit(lambda of: of.waiting)),
    ("gauge", "paused", "1", "1 if the limit is paused, otherwise 0.", of_limit(lambda of: int(of.paused_for > 0))),
    ("gauge", "paused_for", "s", "The time until the limit's gate opens.", of_limit(lambda of: of.paused_for)),
    (
        "gauge",
        "retry_after",
        "s",
        "The time until the fullest key admits one unit.",
        of_limit(lambda of: of.retry_after),
    ),
    ("sum", "keys", "{key}", "Keys that are known.", of_limit(lambda of: of.keys)),
    ("gauge", "keys.size", "By", "Memory that the limit's keys take.", of_limit(lambda of: of.bytes or None)),
    (
        "gauge",
        "keys.spare",
        "By",
        "Memory that further keys may take before new ones are refused.",
        of_limit(lambda of: of.spare_bytes if of.bytes else None),
    ),
    ("counter", "starts.admitted", "{start}", "Starts that were admitted.", of_limit(lambda of: of.stats.admitted)),
    (
        "counter",
        "starts.denied",
        "{start}",
        "Attempts that were denied, and waiters that timed out.",
        of_limit(lambda of: of.stats.denied),
    ),
    (
        "counter",
        "starts.waited",
        "{start}",
        "Starts that had to wait, and places that were not ready at once.",
        of_limit(lambda of: of.stats.waited),
    ),
    (
        "counter",
        "starts.cancelled",
        "{start}",
        "Permits and places that were cancelled while they counted.",
        of_limit(lambda of: of.stats.cancelled),
    ),
    ("counter", "wait_time", "s", "The total time that starts waited.", of_limit(lambda of: of.stats.wait_time)),
    ("counter", "units.wanted", "{unit}", "Units that were requested.", of_limit(lambda of: of.stats.units_wanted)),
    ("counter", "units.granted", "{unit}", "Units that were granted.", of_limit(lambda of: of.stats.units_granted)),
    ("counter", "places.lost", "{place}", "Places whose owners came too late.", of_limit(lambda of: of.places_lost)),
    (
        "counter",
        "store.errors",
        "{error}",
        "Decisions that failed because of the store, in all processes.",
        of_limit(lambda of: of.stats.store_errors),
    ),
    ("counter", "policy.changes", "{change}", "Policy changes.", of_limit(lambda of: of.stats.policy_changes)),
    (
        "gauge",
        "grants.held",
        "{unit}",
        "Units that a server has granted to this process, and that it has not used.",
        of_limit(lambda of: of.grants and of.grants.held),
    ),
    (
        "counter",
        "server.requests",
        "{request}",
        "Requests of this process to the server.",
        of_limit(lambda of: of.grants and of.grants.requests),
    ),
    (
        "gauge",
        "key.units.allowed",
        "{unit}",
        "Units that a hot key is allowed in its fullest window.",
        of_key(lambda of: of.usage[0].limit),
    ),
    (
        "gauge",
        "key.units.used",
        "{unit}",
        "Units of a hot key's fullest window that are in use.",
        of_key(lambda of: of.usage[0].used),
    ),
    (
        "counter",
        "key.starts.admitted",
        "{start}",
        "Starts of a hot key that were admitted.",
        of_key(lambda of: of.stats.admitted),
    ),
    (
        "counter",
        "key.starts.denied",
        "{start}",
        "Attempts of a hot key that were denied.",
        of_key(lambda of: of.stats.denied),
    ),
    (
        "counter",
        "key.units.granted",
        "{unit}",
        "Units that were granted to a hot key.",
        of_key(lambda of: of.stats.units_granted),
    ),
    (
        "gauge",
        "ledger.lag",
        "s",
        "The age of the oldest admitted units that are not yet in the database.",
        of_store(lambda of: of.ledger_lag),
    ),
    ("gauge", "lane.size", "By", "Size of the lane; 0 without one.", of_store(lambda of: of.lane_bytes)),
    ("gauge", "store.used", "By", "Memory of the store that is in use.", of_store(lambda of: of.used_bytes or None)),
    ("gauge", "store.max", "By", "The size up to which the store grows.", of_store(lambda of: of.max_bytes or None)),
    (
        "gauge",
        "processes",
        "{process}",
        "Processes of this machine that use the store.",
        of_store(lambda of: len(of.processes) or None),
    ),
    (
        "counter",
        "failures",
        "{error}",
        "Decisions of this process that failed because of the store.",
        of_store(lambda of: of.failures),
    ),
]
