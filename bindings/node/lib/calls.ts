// The options and results of a limiter's calls.

import type { Key, Weight } from "./charges.js";
import type { Duration } from "./input.js";
import type { Permit } from "./permit.js";

/** The option of a call about one key. */
export interface KeyOptions {
  /** The key, at most 1,024 bytes of UTF-8. Default: none. Each call says what it means then: all keys, or the empty one. */
  key?: string | undefined;
}

/** The options of a start. */
export interface StartOptions {
  /**
   * The key, at most 1,024 bytes of UTF-8. Each key has a separate budget under the same policy. Default: the empty key. Of a
   * composite, a key for each part, such as `{ tenant: "acme" }`; the other parts are charged with the empty key.
   */
  key?: Key | undefined;
  /**
   * The units that the start takes. Default: 1. Of a composite, the units of each part, such as `{ tokens: 1200 }`; the other parts
   * are charged 1.
   */
  weight?: Weight | undefined;
}

/** The options of a start that waits. */
export interface AcquireOptions extends StartOptions {
  /** Waiters with a lower number start first; waiters with the same number start in the order of their calls. Default: 0. */
  priority?: number | undefined;
  /**
   * Of a shared limit, such as "500/1m shared", the share of the tenant that the key names: 1 to 1,000. While tenants wait, one with
   * share 3 gets three starts where one with 1 gets one. Default: the one that `Store.share` has set, or 1. Other limits ignore it.
   */
  share?: number | undefined;
  /** The longest wait. Default: no timeout. */
  timeout?: Duration | undefined;
  /**
   * How late the waiter may be, at least, and still start with its place: because the event loop was busy, or the garbage
   * collector ran. Default: a fortieth of the window, at most 50 ms. No other start can use the place during its grace, so pass no
   * more than is needed.
   */
  grace?: Duration | undefined;
  /** When it aborts, the waiter gives its place back and rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /**
   * Rejects with `TooManyWaiters` if this many waiters of this process already wait for this limiter object with the same key,
   * including those that wait for a store's decision. At least 1.
   */
  maxWaiting?: number | undefined;
  /** A place that was taken elsewhere, or its text, to wait with. It has its own key, weight and grace, and can be used once. */
  place?: Permit | string | undefined;
}

/** The options of a place. */
export interface ReserveOptions extends StartOptions {
  /** The longest time until the place is ready. Default: no limit. */
  maxWait?: Duration | undefined;
  /** How late the place may be used. Default: a fortieth of the window, at most 50 ms. */
  grace?: Duration | undefined;
}

/** The numbers of a decision about a start. */
export interface DecisionNumbers {
  /**
   * The time in ms after which a retry succeeds if no other start took the units; a retry one microsecond earlier fails. 0 if
   * admitted. For a concurrency limit, a suggestion of when to retry.
   */
  readonly retryAfter: number;
  /** The time in ms after which a caller that requeues should retry, with the limit's backoff; at least `retryAfter`. */
  readonly suggestedAfter: number;
  /** The time in ms after which the limiter is in its initial state if no further start is admitted. */
  readonly resetAfter: number;
  /** The weight of the heaviest start that would be admitted after this decision; Infinity without a limit. */
  readonly remaining: number;
  /** The units that the limit allows; Infinity without a limit. */
  readonly limit: number;
}

/** The decision that a start is admitted. */
export interface Admission extends DecisionNumbers {
  /** It was admitted. */
  readonly admitted: true;
  /** No limit denied. */
  readonly deniedBy: null;
  /** The permit of the start. */
  readonly permit: Permit;
}

/** The decision that a start is denied. */
export interface Denial extends DecisionNumbers {
  /** It was not admitted. */
  readonly admitted: false;
  /** The name of the limit that denied. */
  readonly deniedBy: string;
  /** There is no start. */
  readonly permit: null;
}

/** The whole decision about a start: `admitted` says which. */
export type Decision = Admission | Denial;

/** What a decision would be. Nothing was recorded, so there is no permit. */
export type Peek = (Omit<Admission, "permit"> & Pick<Denial, "permit">) | Denial;

/** The counts of all processes that share the limit. The last second of other processes may be missing. */
export interface Stats {
  /** Starts that were admitted, at once or after a wait. */
  readonly admitted: number;
  /** Denied attempts. */
  readonly denied: number;
  /** Units that were requested. */
  readonly unitsWanted: number;
  /** Units that were granted. */
  readonly unitsGranted: number;
  /** Starts that had to wait for a place. */
  readonly waited: number;
  /** The sum of their waits, in ms. */
  readonly waitTime: number;
  /** Permits and places that were cancelled. */
  readonly cancelled: number;
  /** Decisions in which the store failed, whatever `onError` returned instead. */
  readonly storeErrors: number;
  /** How often the policy changed. */
  readonly policyChanges: number;
}

/** @internal Names the counts of the native half, which are in the order of `counts` in `src/lib.rs`. */
export function statsOf(counts: readonly number[]): Stats {
  const [admitted, denied, unitsWanted, unitsGranted, waited, waitTime, cancelled, storeErrors, policyChanges] = counts as Counts;
  return { admitted, denied, unitsWanted, unitsGranted, waited, waitTime, cancelled, storeErrors, policyChanges };
}

type Counts = readonly [number, number, number, number, number, number, number, number, number];
