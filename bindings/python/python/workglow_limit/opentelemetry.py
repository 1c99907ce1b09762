"""Metrics of a store for OpenTelemetry.

    from workglow_limit.opentelemetry import instrument

    instrument(store)

All processes of a "sqlite:" store tell the same, so instrument one of each machine, and do not add them up; on a server, each
tells its own counts.
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

#: What an instrument observes of a snapshot.
Seen: TypeAlias = Callable[[Snapshot], Iterable[Observation]]

#: A look serves the instruments of one collection, which follow each other at once.
AGE = 1.0


def instrument(
    store: Store, meter_provider: MeterProvider | None = None, keys: int = 0, *, show_keys: bool = False
) -> None:
    """Tells a meter of a store and all of its limits, whenever somebody collects. Each collection looks at the store once.

    keys: so many keys of each limit have values of their own, the busiest first (0 to 1000).
    show_keys: are they called by their texts, which can be secrets, instead of by ids?

    While the store fails nothing is told, and `workglow_limit.collection.errors` counts how often.
    """
    if meter_provider is None:
        meter_provider = get_meter_provider()
    check("store", store, Store)
    check("meter_provider", meter_provider, MeterProvider)
    # What a collection would refuse, nobody would hear of.
    Store("memory:").snapshot(keys=keys, show_keys=check_bool("show_keys", show_keys))
    meter, looks = meter_provider.get_meter("workglow_limit", __version__), Looks(store, keys, show_keys)
    kinds: dict[str, Callable[..., Any]] = {
        "gauge": meter.create_observable_gauge,
        "counter": meter.create_observable_counter,
        "sum": meter.create_observable_up_down_counter,
    }
    for kind, name, unit, description, seen in INSTRUMENTS:
        name = f"workglow_limit.{name}"
        kinds[kind](name, callbacks=[looks.callback(name, seen)], unit=unit, description=description)
    # The last: it counts the look of this collection, too.
    description = "Collections of which the store failed the look."
    meter.create_observable_counter("workglow_limit.collection.errors", [looks.failed], "{error}", description)


def check(parameter: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"{parameter} is {value!r}: expected a {expected.__name__}, not {type(value).__name__}")


class Looks:
    """The looks at a store, each for all instruments that ask for it once. Without a lock: a child may be forked meanwhile."""

    def __init__(self, store: Store, keys: int, show_keys: bool) -> None:
        self._store, self._keys, self._show_keys = store, keys, show_keys
        self._last: tuple[int, float, Snapshot | None, set[str]] = (0, 0.0, None, set())
        self._errors = 0

    def callback(self, name: str, seen: Seen) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """What observes for an instrument."""

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            snapshot = self._for(name)
            return () if snapshot is None else seen(snapshot)

        return observe

    def failed(self, _: CallbackOptions) -> Iterable[Observation]:
        """How often the store failed a look."""
        return (Observation(self._errors),)

    def _for(self, name: str) -> Snapshot | None:
        process, at, snapshot, served = self._last
        # An instrument that asks again is asked by the next collection.
        if name in served or process != getpid() or monotonic() - at > AGE:
            snapshot, served = self._look(), set[str]()
            self._last = getpid(), monotonic(), snapshot, served
        served.add(name)
        return snapshot

    def _look(self) -> Snapshot | None:
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
            # Of windows of the same length the fuller one, which comes first.
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


#: Kind, name, unit, description, and what is observed.
INSTRUMENTS: list[tuple[str, str, str, str, Seen]] = [
    ("gauge", "units.allowed", "{unit}", "Units that the limit allows a key in each of its windows.", of_usage("limit")),
    ("gauge", "units.used", "{unit}", "Units of each window in use by the key that uses most of it.", of_usage("used")),
    ("gauge", "units.peak", "{unit}", "The most units in use at a time, of one key, in the last minute or so.", of_limit(lambda of: of.peak)),
    ("gauge", "near", "1", "Is more than 80 % of the limit used (1), or not (0)?", of_limit(lambda of: int(of.near))),
    ("gauge", "leases", "{unit}", "Units of a concurrency limit that are held by running jobs.", of_limit(leases)),
    ("sum", "waiting", "{caller}", "Callers that wait for a start, in all processes.", of_limit(lambda of: of.waiting)),
    ("gauge", "paused", "1", "Is the limit paused (1), or not (0)?", of_limit(lambda of: int(of.paused_for > 0))),
    ("gauge", "paused_for", "s", "For how long the limit is still paused.", of_limit(lambda of: of.paused_for)),
    ("gauge", "retry_after", "s", "How long until the fullest key has room for one unit.", of_limit(lambda of: of.retry_after)),
    ("sum", "keys", "{key}", "Keys that are known.", of_limit(lambda of: of.keys)),
    ("counter", "starts.admitted", "{start}", "Starts that were admitted.", of_limit(lambda of: of.stats.admitted)),
    ("counter", "starts.denied", "{start}", "Attempts that were denied, and waiters whose time was up.", of_limit(lambda of: of.stats.denied)),
    ("counter", "starts.waited", "{start}", "Starts that had to wait, and places that were not ready at once.", of_limit(lambda of: of.stats.waited)),
    ("counter", "starts.cancelled", "{start}", "Permits and places that were cancelled while they counted.", of_limit(lambda of: of.stats.cancelled)),
    ("counter", "wait_time", "s", "How long starts waited, together.", of_limit(lambda of: of.stats.wait_time)),
    ("counter", "units.wanted", "{unit}", "Units that starts asked for.", of_limit(lambda of: of.stats.units_wanted)),
    ("counter", "units.granted", "{unit}", "Units that were granted.", of_limit(lambda of: of.stats.units_granted)),
    ("counter", "places.lost", "{place}", "Places whose owners came too late.", of_limit(lambda of: of.places_lost)),
    ("counter", "store.errors", "{error}", "Decisions that the store failed, in all processes.", of_limit(lambda of: of.stats.store_errors)),
    ("counter", "policy.changes", "{change}", "How often another policy came to hold.", of_limit(lambda of: of.stats.policy_changes)),
    ("gauge", "grants.held", "{unit}", "Units that a server has granted to this process, and that it has not used.", of_limit(lambda of: of.grants and of.grants.held)),
    ("counter", "server.requests", "{request}", "How often this process has asked the server.", of_limit(lambda of: of.grants and of.grants.requests)),
    ("gauge", "key.units.allowed", "{unit}", "Units that a hot key is allowed in its fullest window.", of_key(lambda of: of.usage[0].limit)),
    ("gauge", "key.units.used", "{unit}", "Units of a hot key's fullest window that are in use.", of_key(lambda of: of.usage[0].used)),
    ("counter", "key.starts.admitted", "{start}", "Starts of a hot key that were admitted.", of_key(lambda of: of.stats.admitted)),
    ("counter", "key.starts.denied", "{start}", "Attempts of a hot key that were denied.", of_key(lambda of: of.stats.denied)),
    ("counter", "key.units.granted", "{unit}", "Units that were granted to a hot key.", of_key(lambda of: of.stats.units_granted)),
    ("gauge", "ledger.lag", "s", "How long admitted units have been waiting to be written to the database, at most.", of_store(lambda of: of.ledger_lag)),
    ("gauge", "lane.size", "By", "Size of the lane, 0 where there is none.", of_store(lambda of: of.lane_bytes)),
    ("gauge", "processes", "{process}", "Processes of this machine that use the store.", of_store(lambda of: len(of.processes) or None)),
    ("counter", "failures", "{error}", "Decisions of this process that the store failed.", of_store(lambda of: of.failures)),
]
