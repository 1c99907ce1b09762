// The metrics of a store for OpenTelemetry.

import { type Attributes, type BatchObservableCallback, type MeterProvider, type Observable, metrics } from "@opentelemetry/api";
import { invalid } from "./errors.js";
import { options as checkOptions } from "./input.js";
import type { KeySnapshot, LimitSnapshot, Snapshot, SnapshotOptions, Usage } from "./snapshot.js";
import { Store } from "./store.js";

/** The options of `instrument`. */
export interface InstrumentOptions extends SnapshotOptions {
  /** How many keys of each limit have metrics of their own, the busiest first. Default: 0; at most 1,000. */
  keys?: number | undefined;
  /** The provider of the meter. Default: the global provider. */
  meterProvider?: MeterProvider | undefined;
}

/**
 * Reports a store and all of its limits to a meter at each collection. Returns a function that stops it. Each collection takes one
 * snapshot, on the thread pool. If the store fails, nothing is reported, and `workglow_limit.collection.errors` counts the failure.
 *
 * All processes of a "sqlite:" store report the same numbers, so instrument one process of each machine, and do not add them up. On a
 * server, each process reports its own counts.
 */
export function instrument(store: Store, options: InstrumentOptions = {}): () => void {
  if (!(store instanceof Store)) throw invalid("store", store, "a Store");
  checkOptions(options, ["keys", "showKeys", "meterProvider"]);
  const { keys = 0, showKeys = false, meterProvider = metrics.getMeterProvider() } = options;
  if (typeof (meterProvider as { getMeter?: unknown } | null)?.getMeter !== "function") {
    throw invalid("meterProvider", meterProvider, "a MeterProvider");
  }
  // Throws for options that each collection would refuse without being noticed.
  new Store("memory:").snapshot({ keys, showKeys });

  const meter = meterProvider.getMeter("workglow_limit");
  const make = {
    gauge: meter.createObservableGauge.bind(meter),
    counter: meter.createObservableCounter.bind(meter),
    sum: meter.createObservableUpDownCounter.bind(meter),
  };
  const instruments = INSTRUMENTS.map(([kind, name, unit, description, seen]) => ({
    observable: make[kind](`workglow_limit.${name}`, { unit, description }) as Observable,
    seen,
  }));
  const failed = { unit: "{error}", description: "Collections that failed because of the store." };
  const errors = meter.createObservableCounter("workglow_limit.collection.errors", failed);

  let failures = 0;
  const report: BatchObservableCallback = async (result) => {
    const snapshot = await store.snapshotAsync({ keys, showKeys }).catch(() => void failures++);
    result.observe(errors, failures);
    if (snapshot === undefined) return;
    for (const { observable, seen } of instruments) {
      for (const [value, attributes] of seen(snapshot)) result.observe(observable, value, attributes);
    }
  };
  const observables = [errors, ...instruments.map(({ observable }) => observable)];
  meter.addBatchObservableCallback(report, observables);
  return () => meter.removeBatchObservableCallback(report, observables);
}

type Values = Iterable<readonly [value: number, attributes?: Attributes]>;
type Seen = (snapshot: Snapshot) => Values;

const ofStore =
  (value: (snapshot: Snapshot) => number | null): Seen =>
  (snapshot) => {
    const of = value(snapshot);
    return of === null ? [] : [[of]];
  };

const ofLimit = (value: (limit: LimitSnapshot) => number | null | undefined): Seen =>
  function* (snapshot) {
    for (const limit of snapshot.limits) {
      const of = value(limit) ?? null;
      if (of !== null) yield [of, { limit: limit.name }];
    }
  };

const ofUsage = (value: (usage: Usage) => number): Seen =>
  function* (snapshot) {
    for (const { name, usage } of snapshot.limits) {
      // Of windows with the same duration, the fuller one, which comes first.
      for (const one of new Map([...usage].reverse().map((one) => [one.window, one])).values()) {
        yield [value(one), one.window === null ? { limit: name } : { limit: name, window: String(one.window / 1e3) }];
      }
    }
  };

const ofKey = (value: (key: KeySnapshot) => number): Seen =>
  function* (snapshot) {
    for (const limit of snapshot.limits) {
      for (const key of limit.hotKeys) yield [value(key), { limit: limit.name, key: key.key }];
    }
  };

const leases = ({ usage }: LimitSnapshot) => usage.find(({ window }) => window === null)?.used;

type Kind = "gauge" | "counter" | "sum";

// As in Python's workglow_limit/opentelemetry.py.
// biome-ignore format: a table
const INSTRUMENTS: readonly (readonly [Kind, name: string, unit: string, description: string, Seen])[] = [
  ["gauge", "units.allowed", "{unit}", "Units that the limit allows a key in each of its windows.", ofUsage(({ limit }) => limit)],
  ["gauge", "units.used", "{unit}", "Units of each window in use by the key that uses most of it.", ofUsage(({ used }) => used)],
  ["gauge", "units.peak", "{unit}", "The most units of one key in use at the same time, within about the last minute.", ofLimit((of) => of.peak)],
  ["gauge", "near", "1", "1 if more than 80 % of the limit is used, otherwise 0.", ofLimit((of) => Number(of.near))],
  ["gauge", "leases", "{unit}", "Units of a concurrency limit that are held by running jobs.", ofLimit(leases)],
  ["sum", "waiting", "{caller}", "Callers that wait for a start, in all processes.", ofLimit((of) => of.waiting)],
  ["gauge", "paused", "1", "1 if the limit is paused, otherwise 0.", ofLimit((of) => Number(of.pausedFor > 0))],
  ["gauge", "paused_for", "s", "The time until the limit's gate opens.", ofLimit((of) => of.pausedFor / 1e3)],
  ["gauge", "retry_after", "s", "The time until the fullest key admits one unit.", ofLimit((of) => of.retryAfter / 1e3)],
  ["sum", "keys", "{key}", "Keys that are known.", ofLimit((of) => of.keys)],
  ["gauge", "keys.size", "By", "Memory that the limit's keys take.", ofLimit((of) => of.bytes || null)],
  ["gauge", "keys.spare", "By", "Memory that further keys may take before new ones are refused.", ofLimit((of) => (of.bytes ? of.spareBytes : null))],
  ["counter", "starts.admitted", "{start}", "Starts that were admitted.", ofLimit((of) => of.stats.admitted)],
  ["counter", "starts.denied", "{start}", "Attempts that were denied, and waiters that timed out.", ofLimit((of) => of.stats.denied)],
  ["counter", "starts.waited", "{start}", "Starts that had to wait, and places that were not ready at once.", ofLimit((of) => of.stats.waited)],
  ["counter", "starts.cancelled", "{start}", "Permits and places that were cancelled while they counted.", ofLimit((of) => of.stats.cancelled)],
  ["counter", "wait_time", "s", "The total time that starts waited.", ofLimit((of) => of.stats.waitTime / 1e3)],
  ["counter", "units.wanted", "{unit}", "Units that were requested.", ofLimit((of) => of.stats.unitsWanted)],
  ["counter", "units.granted", "{unit}", "Units that were granted.", ofLimit((of) => of.stats.unitsGranted)],
  ["counter", "places.lost", "{place}", "Places whose owners came too late.", ofLimit((of) => of.placesLost)],
  ["counter", "store.errors", "{error}", "Decisions that failed because of the store, in all processes.", ofLimit((of) => of.stats.storeErrors)],
  ["counter", "policy.changes", "{change}", "Policy changes.", ofLimit((of) => of.stats.policyChanges)],
  ["gauge", "grants.held", "{unit}", "Units that a server has granted to this process, and that it has not used.", ofLimit((of) => of.grants?.held)],
  ["counter", "server.requests", "{request}", "Requests of this process to the server.", ofLimit((of) => of.grants?.requests)],
  ["gauge", "key.units.allowed", "{unit}", "Units that a hot key is allowed in its fullest window.", ofKey((of) => of.usage[0]!.limit)],
  ["gauge", "key.units.used", "{unit}", "Units of a hot key's fullest window that are in use.", ofKey((of) => of.usage[0]!.used)],
  ["counter", "key.starts.admitted", "{start}", "Starts of a hot key that were admitted.", ofKey((of) => of.stats.admitted)],
  ["counter", "key.starts.denied", "{start}", "Attempts of a hot key that were denied.", ofKey((of) => of.stats.denied)],
  ["counter", "key.units.granted", "{unit}", "Units that were granted to a hot key.", ofKey((of) => of.stats.unitsGranted)],
  ["gauge", "ledger.lag", "s", "The age of the oldest admitted units that are not yet in the database.", ofStore((of) => of.ledgerLag / 1e3)],
  ["gauge", "lane.size", "By", "Size of the lane; 0 without one.", ofStore((of) => of.laneBytes)],
  ["gauge", "store.used", "By", "Memory of the store that is in use.", ofStore((of) => of.usedBytes || null)],
  ["gauge", "store.max", "By", "The size up to which the store grows.", ofStore((of) => of.maxBytes || null)],
  ["gauge", "processes", "{process}", "Processes of this machine that use the store.", ofStore((of) => of.processes.length || null)],
  ["counter", "failures", "{error}", "Decisions of this process that failed because of the store.", ofStore((of) => of.failures)],
];
