// Snapshots of stores, and metrics.

import { type Stats, statsOf } from "./calls.js";
import { invalid, refused, thrown } from "./errors.js";
import { options as checkOptions, whole, word } from "./input.js";
import { type NativeObserver, type NativeSnapshot, type NativeStore, native } from "./native.js";

/** The options of a snapshot. */
export interface SnapshotOptions {
  /** The most keys of each limit, the busiest first. Default: 10; at most 1,000. */
  keys?: number | undefined;
  /** Whether keys are shown as text, which may be secret. Default: false, which shows ids. */
  showKeys?: boolean | undefined;
}

/** The format of metrics: "openmetrics" (OpenMetrics 1.0), or "prometheus" (its text format 0.0.4) for readers without OpenMetrics. */
export type MetricsFormat = "openmetrics" | "prometheus";

/** The options of metrics. */
export interface MetricsOptions extends SnapshotOptions {
  /** The format. Default: "openmetrics". */
  format?: MetricsFormat | undefined;
}

/** A snapshot of a store. Durations are in ms. */
export interface Snapshot {
  /** When it was taken, by the wall clock. */
  readonly at: Date;
  /** The store's address, without a password. */
  readonly store: string;
  /** All limits, by name. The limits of a composite are named `name/KIND`. */
  readonly limits: readonly LimitSnapshot[];
  /** Whether counts are those of all processes that share the store. On a server they are those of this process. */
  readonly countsAllProcesses: boolean;
  /** The processes of this machine that use the store. Empty for "memory:" and servers, which do not know them. */
  readonly processes: readonly ProcessSnapshot[];
  /** The longest time that an admitted start has waited to be written to the database; 0 if none waits. */
  readonly ledgerLag: number;
  /** The size of the lane in bytes; 0 without one. */
  readonly laneBytes: number;
  /** The memory of the store that is in use, in bytes; 0 on a server. */
  readonly usedBytes: number;
  /** The size in bytes up to which this process lets the store grow (`maxSize`); 0 on a server. */
  readonly maxBytes: number;
  /** How many decisions of this process the store failed. */
  readonly failures: number;
}

/** The kind of a limit that no tenants share. */
export type LimitKind =
  | "rate"
  | "concurrency"
  | "delay"
  | "evenly-spaced"
  | "token-bucket"
  | "leaky-bucket"
  | "fixed-window"
  | "sliding-window-counter";

/** The snapshot of a limit. */
export interface LimitSnapshot {
  /** The limit's name. */
  readonly name: string;
  /** The kind of its policies; with "shared-" before it if tenants share the limit. */
  readonly kind: LimitKind | `shared-${Exclude<LimitKind, "leaky-bucket">}`;
  /** The policy in force. */
  readonly policy: string;
  /** The policy that programs declare. */
  readonly declared: string;
  /** The operator's override; `null` without one. */
  readonly override: string | null;
  /** What has put it there: "operator", or "headers of api.example.com" from which programs learned it; `null` without one. */
  readonly overriddenBy: string | null;
  /** The usage of each window by the key that uses most of it. There is at least one; the fullest is first. */
  readonly usage: readonly Usage[];
  /** That key: its text with `showKeys`, else "#" and its id. `null`: the limit without a key. */
  readonly fullest: string | null;
  /** Whether more than 80 % are used. */
  readonly near: boolean;
  /** The most units of one key that were in use at the same time in the last minute or so. */
  readonly peak: number;
  /** The time until a start of weight 1 of the fullest key would be admitted. */
  readonly retryAfter: number;
  /** The rest of a pause; 0 if it is not paused. */
  readonly pausedFor: number;
  /** The number of waiters in all processes. */
  readonly waiting: number;
  /** The starts that had to wait, by the duration of the wait. */
  readonly waits: Waits;
  /** The number of places that were lost because they were used too late. */
  readonly placesLost: number;
  /** The counts. */
  readonly stats: Stats;
  /** The number of known keys. */
  readonly keys: number;
  /** The memory that its keys take, in bytes; 0 on a server. */
  readonly bytes: number;
  /** The memory that further keys may take before new ones are refused, in bytes; 0 on a server. */
  readonly spareBytes: number;
  /** The busiest keys, busiest first, at most as many as `SnapshotOptions.keys`. */
  readonly hotKeys: readonly KeySnapshot[];
  /** The tenants of a shared limit: those that wait, the next one first, and then those for which a share is kept. */
  readonly tenants: readonly TenantSnapshot[];
  /** The units that a server granted to this process. `null` where no server grants units. */
  readonly grants: GrantSnapshot | null;
}

/** The usage of a window, of a bucket or of concurrent units. */
export interface Usage {
  /** The units that are allowed. */
  readonly limit: number;
  /** The units in use. */
  readonly used: number;
  /** The window's duration in ms. `null`: units that are in use at the same time. */
  readonly window: number | null;
}

/** A histogram of the starts that had to wait. */
export interface Waits {
  /** The longest wait of each class but the last, in ms. */
  readonly bounds: readonly number[];
  /** The number of starts in each class. The last class has all longer waits. */
  readonly counts: readonly number[];
}

/** The snapshot of a key. */
export interface KeySnapshot {
  /** Its text (the beginning of a long one) with `showKeys`, else "#" and its id, which never changes in a store. */
  readonly key: string;
  /** The operator's override of this key; `null` without one. */
  readonly override: string | null;
  /** The usage of each window. The fullest is first. */
  readonly usage: readonly Usage[];
  /** The time until a start of weight 1 would be admitted. */
  readonly retryAfter: number;
  /** The rest of a pause; 0 if it is not paused. */
  readonly pausedFor: number;
  /** The counts. */
  readonly stats: Stats;
}

/** The snapshot of a tenant. */
export interface TenantSnapshot {
  /** The text of its key with `showKeys`, if a share is kept for it; else "#" and the id of its key. */
  readonly key: string;
  /** The share that is kept for it. Calls may have their own. */
  readonly share: number;
  /** How long its first waiter has waited, in ms. `null`: it does not wait. */
  readonly waits: number | null;
}

/** A process that uses the store. */
export interface ProcessSnapshot {
  /** The process number, as the process sees it: in a container, the container's. */
  readonly pid: number;
  /** The program that it runs. */
  readonly program: string;
  /** How long it has used the store, in ms. */
  readonly since: number;
}

/** The units that a server granted to this process. */
export interface GrantSnapshot {
  /** The unused units. */
  readonly held: number;
  /** The number of requests to the server. */
  readonly requests: number;
}

/** Who had the units of a limit, or of a key of it, and who waited for them. Durations are in ms. */
export interface LineSnapshot {
  /**
   * The processes that have units of a limit of concurrent starts, the most units first. Empty for other limits: nobody has their units,
   * which are free again when time has passed.
   */
  readonly holders: readonly HolderSnapshot[];
  /**
   * The first waiter of each line, the next one first; those that are passed are last. A process has a line for each of its event loops,
   * and one for all of its threads. Of a "memory:" store only those of limits that tenants share: no other process waits for the others.
   */
  readonly heads: readonly HeadSnapshot[];
  /** The processes whose callers wait for the limit, the most callers first. */
  readonly waiting: readonly WaitingSnapshot[];
}

/** A process that has units of a limit. */
export interface HolderSnapshot {
  /** The process. `null`: it is not in the list of processes, or the store is "memory:". */
  readonly process: ProcessSnapshot | null;
  /** The number of its starts that have not ended. */
  readonly starts: number;
  /** Their units. */
  readonly units: number;
  /** Whether the starts have ended, and their units are free after the limit's cooldown. */
  readonly coolsDown: boolean;
}

/** The first waiter of a line. */
export interface HeadSnapshot {
  /** Its process, as in `HolderSnapshot`. */
  readonly process: ProcessSnapshot | null;
  /** How long it has waited, in ms. */
  readonly waits: number;
  /** The units that it wants. */
  readonly units: number;
  /** Its priority: less is sooner. */
  readonly priority: number;
  /** The tenant of a shared limit: "#" and the id of its key, as in `TenantSnapshot`. `null`: tenants do not share the limit. */
  readonly tenant: string | null;
  /** Whether it is passed, because its process does not run. */
  readonly passed: boolean;
}

/** The callers of a process that wait for a limit. */
export interface WaitingSnapshot {
  /** The process, as in `HolderSnapshot`. */
  readonly process: ProcessSnapshot | null;
  /** The number of its callers, for all keys of the limit together. */
  readonly callers: number;
}

/** Returns the `Content-Type` of `Store.metrics` in a format. Default: "openmetrics". */
export const metricsContentType = (format: MetricsFormat = "openmetrics"): string => native.metricsContentType(checkFormat(format));

const checkFormat = (format: unknown): string => word("format", format, ["openmetrics", "prometheus"]);

type SnapshotArguments = readonly [keys: number, showKeys: boolean];

function checkSnapshotOptions(options: SnapshotOptions, known = ["keys", "showKeys"]): SnapshotArguments {
  checkOptions(options, known);
  const { keys = 10, showKeys = false } = options;
  if (typeof showKeys !== "boolean") throw invalid("showKeys", showKeys, "true or false");
  return [whole("keys", keys), showKeys];
}

function checkMetricsOptions(options: MetricsOptions): readonly [...SnapshotArguments, string] {
  const args = checkSnapshotOptions(options, ["keys", "showKeys", "format"]);
  const { format = "openmetrics" } = options;
  return [...args, checkFormat(format)];
}

/** @internal */
export function snapshot(observer: NativeObserver, options: SnapshotOptions): Snapshot {
  const args = checkSnapshotOptions(options);
  return of(atOnce("snapshot()", () => native.snapshot(observer, ...args)));
}

/** @internal */
export async function snapshotAsync(observer: NativeObserver, options: SnapshotOptions): Promise<Snapshot> {
  return of(await native.snapshotLater(observer, ...checkSnapshotOptions(options)).catch(rethrow));
}

/** @internal */
export function line(store: NativeStore, name: string, key: string | undefined): LineSnapshot {
  return atOnce("line()", () => native.lineSnapshot(store, name, key));
}

/** @internal */
export async function lineAsync(store: NativeStore, name: string, key: string | undefined): Promise<LineSnapshot> {
  return native.lineSnapshotLater(store, name, key).catch(rethrow);
}

/** @internal */
export function metrics(observer: NativeObserver, options: MetricsOptions): string {
  const args = checkMetricsOptions(options);
  return atOnce("metrics()", () => native.metrics(observer, ...args));
}

/** @internal */
export async function metricsAsync(observer: NativeObserver, options: MetricsOptions): Promise<string> {
  return native.metricsLater(observer, ...checkMetricsOptions(options)).catch(rethrow);
}

function atOnce<T>(name: string, ask: () => T): T {
  try {
    return ask();
  } catch (error) {
    throw refused(error, name, name.replace("()", "Async()"));
  }
}

function rethrow(error: unknown): never {
  throw thrown(error);
}

/** Names the counts, and makes the time a date. */
function of(seen: NativeSnapshot): Snapshot {
  const counted = <T extends { readonly stats: readonly number[] }>(one: T) => ({ ...one, stats: statsOf(one.stats) });
  const limits = seen.limits.map((limit) => ({ ...counted(limit), hotKeys: limit.hotKeys.map(counted) }));
  return { ...seen, at: new Date(seen.at), limits };
}
