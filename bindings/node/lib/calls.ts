// What limiters are asked, and what they answer.

import type { Duration } from "./input.js";
import type { Permit } from "./permit.js";

/** What a start asks for. */
export interface StartOptions {
  /** One policy, a separate budget per key: at most 1,024 bytes. None is the empty key. */
  key?: string | undefined;
  /** How many units the start takes: 1 if not given. */
  weight?: number | undefined;
}

/** What a waiting start asks for. */
export interface AcquireOptions extends StartOptions {
  /** Who starts first among those who wait: lower numbers do, and then who asked first; 0 if not given. */
  priority?: number | undefined;
  /** How long to wait at most; as long as it takes if not given. */
  timeout?: Duration | undefined;
  /**
   * For who may be held up, by a busy event loop or a pause of the garbage collector, say: so late it still starts with its place, at
   * least; a fortieth of the window, at most 50 ms, if not given. While its place is kept for it nobody else has that start, so ask for
   * no more than is needed.
   */
  grace?: Duration | undefined;
  /** Gives up when it aborts, hands its place back and rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /**
   * Rejects with `TooManyWaiters` if so many of this process already wait for this limiter object with the same key, those included
   * whose decision a store is asked for; at least 1.
   */
  maxWaiting?: number | undefined;
  /** A place that was taken elsewhere, or its text, to wait with. It has its own key, weight and grace, and is used up. */
  place?: Permit | string | undefined;
}

/** What a place is asked for. */
export interface ReserveOptions extends StartOptions {
  /** How far away it may be at most; however far if not given. */
  maxWait?: Duration | undefined;
  /** How long it is good for from its time on: a fortieth of the window, at most 50 ms, if not given. */
  grace?: Duration | undefined;
}

/** The whole answer to "may this start now, and if not, when?". */
export interface Decision {
  /** May it start now? */
  readonly admitted: boolean;
  /**
   * In ms; 0 if admitted. After this long a retry succeeds if nobody else took the room, and one microsecond earlier it
   * fails. For a concurrency limit a suggestion of when to look again.
   */
  readonly retryAfter: number;
  /** In ms: `retryAfter` for callers that requeue; never less. */
  readonly suggestedAfter: number;
  /** In ms: after this long with no further start the limiter is as new. */
  readonly resetAfter: number;
  /** The heaviest start that would be admitted after this; Infinity if there is no limit. */
  readonly remaining: number;
  /** What the limit allows; Infinity if there is none. */
  readonly limit: number;
  /** The name of the limit that said no. */
  readonly deniedBy: string | null;
  /** What the start holds, if it was admitted; always `null` in a `peek`. */
  readonly permit: Permit | null;
}

/** What was counted, by all who share the limit; of what the others counted, the last second may be missing. */
export interface Stats {
  /** Starts that were admitted, at once or after a wait. */
  readonly admitted: number;
  /** Attempts that were denied. */
  readonly denied: number;
  /** The units that were asked for. */
  readonly unitsWanted: number;
  /** Those that were granted. */
  readonly unitsGranted: number;
  /** Starts that had to wait for a place. */
  readonly waited: number;
  /** How long they waited, together; in ms. */
  readonly waitTime: number;
  /** Permits and places that were cancelled. */
  readonly cancelled: number;
  /** Decisions that the store failed, whatever was answered instead. */
  readonly storeErrors: number;
  /** How often another policy came to hold. */
  readonly policyChanges: number;
}

/** @internal Counts as they come from the native half: `counts` in `src/lib.rs`. */
export function statsOf(counts: readonly number[]): Stats {
  const [admitted, denied, unitsWanted, unitsGranted, waited, waitTime, cancelled, storeErrors, policyChanges] = counts as Counts;
  return { admitted, denied, unitsWanted, unitsGranted, waited, waitTime, cancelled, storeErrors, policyChanges };
}

type Counts = readonly [number, number, number, number, number, number, number, number, number];
