// What a store looks like at one moment, and its metrics.

import { type Stats, statsOf } from "./calls.js";
import { invalid, refused, thrown } from "./errors.js";
import { options as checkOptions, whole, word } from "./input.js";
import { type NativeOnlooker, type NativeSnapshot, native } from "./native.js";

/** What of a store is looked at. */
export interface SnapshotOptions {
  /** How many keys of each limit are told at most, the busiest first: 10 if not given, at most 1,000. */
  keys?: number | undefined;
  /** Are keys called by their texts, which can be secrets? If not, by ids. */
  showKeys?: boolean | undefined;
}

/** How metrics are written: "openmetrics" (OpenMetrics 1.0), or "prometheus" (its text format 0.0.4) for who does not know that. */
export type MetricsFormat = "openmetrics" | "prometheus";

/** What metrics are of. */
export interface MetricsOptions extends SnapshotOptions {
  /** How they are written: "openmetrics" if not given. */
  format?: MetricsFormat | undefined;
}

/** What a store looks like at one moment. Durations are in ms. */
export interface Snapshot {
  /** When it was taken, by the wall clock. */
  readonly at: Date;
  /** The store's address, without a password. */
  readonly store: string;
  /** All limits, by name. Those of a composite are called `name/KIND`. */
  readonly limits: readonly LimitSnapshot[];
  /** Are the counts those of all processes that share the store? On a server they are those of this process. */
  readonly countsAllProcesses: boolean;
  /** The processes of this machine that use the store. Empty where the store does not know: "memory:" and servers. */
  readonly processes: readonly ProcessSnapshot[];
  /** How long what was admitted has been waiting to be written to the database, at most. 0 where nothing waits. */
  readonly ledgerLag: number;
  /** The size of the lane in bytes; 0 where there is none. */
  readonly laneBytes: number;
  /** How often the store failed a decision of this process. */
  readonly failures: number;
}

/** What a limit looks like. */
export interface LimitSnapshot {
  /** Its name. */
  readonly name: string;
  /** The kind of its policies. */
  readonly kind:
    | "rate"
    | "concurrency"
    | "delay"
    | "evenly-spaced"
    | "token-bucket"
    | "leaky-bucket"
    | "fixed-window"
    | "sliding-window-counter";
  /** The policy that holds. */
  readonly policy: string;
  /** What programs declare. */
  readonly declared: string;
  /** What an operator put above it. */
  readonly override: string | null;
  /** What is used of each of its windows, by the key that uses most of it. There is at least one; the first is the fullest. */
  readonly usage: readonly Usage[];
  /** Which key that is: its text if texts are asked for, else "#" and its id. `null`: the limit without a key. */
  readonly fullest: string | null;
  /** Is more than 80 % of it used? */
  readonly isNear: boolean;
  /** The most units in use at a time, of one key, in the last minute or so. */
  readonly peak: number;
  /** How long until a start of weight 1 would be admitted, by the fullest key. */
  readonly retryAfter: number;
  /** For how long it is paused; 0 if it is not. */
  readonly pausedFor: number;
  /** How many callers wait, in all processes. */
  readonly waiting: number;
  /** How many starts had to wait, by how long. */
  readonly waits: Waits;
  /** How many places were lost, because their owners came too late. */
  readonly placesLost: number;
  /** What was counted. */
  readonly stats: Stats;
  /** How many keys are known. */
  readonly keys: number;
  /** The busiest keys, busiest first: as many as were asked for, at most. */
  readonly hotKeys: readonly KeySnapshot[];
  /** What this process holds of a server's grants. `null` where no server grants units. */
  readonly grants: GrantSnapshot | null;
}

/** What is used of a window, of a bucket or of what may run at once. */
export interface Usage {
  /** The units that are allowed. */
  readonly limit: number;
  /** Those that are in use. */
  readonly used: number;
  /** In how many ms. `null`: at once. */
  readonly window: number | null;
}

/** How many starts had to wait, by how long. */
export interface Waits {
  /** The longest wait of each class but the last, in ms. */
  readonly bounds: readonly number[];
  /** How many starts are in each class. The last has those that waited longer. */
  readonly counts: readonly number[];
}

/** What one key looks like. */
export interface KeySnapshot {
  /**
   * Its text if texts are asked for (of a long one the beginning), else "#" and its id, which stays the same as long as the store
   * exists.
   */
  readonly key: string;
  /** A policy of its own. */
  readonly override: string | null;
  /** What is used of each of its windows. The first is the fullest. */
  readonly usage: readonly Usage[];
  /** How long until a start of weight 1 would be admitted. */
  readonly retryAfter: number;
  /** For how long it is paused; 0 if it is not. */
  readonly pausedFor: number;
  /** What was counted. */
  readonly stats: Stats;
}

/** A process that uses the store. */
export interface ProcessSnapshot {
  /** Its number in the system, as it sees it itself: in a container, that of the container. */
  readonly pid: number;
  /** What it runs. */
  readonly program: string;
  /** For how long it has used the store, in ms. */
  readonly since: number;
}

/** What a server has granted to this process. */
export interface GrantSnapshot {
  /** The units that it holds and has not used. */
  readonly held: number;
  /** How often it asked the server. */
  readonly requests: number;
}

/** The `Content-Type` of what `Store.metrics` tells in a format: "openmetrics" if not given. */
export const metricsContentType = (format: MetricsFormat = "openmetrics"): string =>
  native.metricsContentType(checkFormat(format));

const checkFormat = (format: unknown): string => word("format", format, ["openmetrics", "prometheus"]);

/** What is asked of the native half. */
type Asked = readonly [keys: number, showKeys: boolean];

function checkSnapshotOptions(options: SnapshotOptions, known = ["keys", "showKeys"]): Asked {
  checkOptions(options, known);
  const { keys = 10, showKeys = false } = options;
  if (typeof showKeys !== "boolean") throw invalid("showKeys", showKeys, "true or false");
  return [whole("keys", keys), showKeys];
}

function checkMetricsOptions(options: MetricsOptions): readonly [...Asked, string] {
  const asked = checkSnapshotOptions(options, ["keys", "showKeys", "format"]);
  const { format = "openmetrics" } = options;
  return [...asked, checkFormat(format)];
}

/** @internal */
export function snapshot(onlooker: NativeOnlooker, options: SnapshotOptions): Snapshot {
  const asked = checkSnapshotOptions(options);
  return of(atOnce("snapshot()", () => native.snapshot(onlooker, ...asked)));
}

/** @internal */
export async function snapshotAsync(onlooker: NativeOnlooker, options: SnapshotOptions): Promise<Snapshot> {
  return of(await native.snapshotLater(onlooker, ...checkSnapshotOptions(options)).catch(rethrow));
}

/** @internal */
export function metrics(onlooker: NativeOnlooker, options: MetricsOptions): string {
  const asked = checkMetricsOptions(options);
  return atOnce("metrics()", () => native.metrics(onlooker, ...asked));
}

/** @internal */
export async function metricsAsync(onlooker: NativeOnlooker, options: MetricsOptions): Promise<string> {
  return native.metricsLater(onlooker, ...checkMetricsOptions(options)).catch(rethrow);
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

/** Of numbers in an order, the counts by their names; and of a number, the date. */
function of(seen: NativeSnapshot): Snapshot {
  const counted = <T extends { readonly stats: readonly number[] }>(one: T) => ({ ...one, stats: statsOf(one.stats) });
  const limits = seen.limits.map((limit) => ({ ...counted(limit), hotKeys: limit.hotKeys.map(counted) }));
  return { ...seen, at: new Date(seen.at), limits };
}
