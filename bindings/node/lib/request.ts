// The checked options of an `acquire`.

import type { AcquireOptions } from "./calls.js";
import { type StartKey, startKeyOf, startWeightOf } from "./charges.js";
import { invalid } from "./errors.js";
import { maybeMilliseconds, options as checkOptions, shareOf } from "./input.js";
import { Permit } from "./permit.js";

/** The checked options of an `acquire`. */
export interface Request {
  readonly key: StartKey;
  readonly weight: number;
  readonly priority: number;
  /** Of the tenant that the key names; 0: the one that the store keeps. */
  readonly share: number;
  /** The most waiters, this one included. */
  readonly maxWaiting: number;
  /** In ms; -1: no timeout. */
  readonly timeout: number;
  /** In ms; -1: the default. */
  readonly grace: number;
  readonly signal: AbortSignal | undefined;
  /** The place to wait with, instead of a key and a weight. */
  readonly place: Permit | string | undefined;
}

const ACQUIRE = ["key", "weight", "priority", "share", "timeout", "grace", "signal", "maxWaiting", "place"];

/** @internal Returns whether a value is an `AbortSignal`, of any realm or of jsdom. */
export const isSignal = (given: unknown): given is AbortSignal =>
  typeof (given as AbortSignal | null)?.aborted === "boolean" && typeof (given as AbortSignal).addEventListener === "function";

/** @internal Checks a priority. Default: 0. */
export function priorityOf(priority: unknown): number {
  if (priority === undefined) return 0;
  if (typeof priority === "number" && (priority | 0) === priority) return priority;
  throw invalid("priority", priority, "a whole number from -2147483648 to 2147483647");
}

const PLAIN: Request = {
  key: "",
  weight: 1,
  priority: 0,
  share: 0,
  maxWaiting: Infinity,
  timeout: -1,
  grace: -1,
  signal: undefined,
  place: undefined,
};

/** Checks the options of an `acquire`. */
export function requestOf(options: AcquireOptions | undefined): Request {
  if (options === undefined) return PLAIN;
  checkOptions(options, ACQUIRE);
  const { key, weight, priority, share, timeout, grace, signal, maxWaiting = Infinity, place } = options;
  if (!(Number.isInteger(maxWaiting) && maxWaiting >= 1) && maxWaiting !== Infinity) {
    throw invalid("maxWaiting", maxWaiting, "a whole number, at least 1");
  }
  if (signal !== undefined && !isSignal(signal)) throw invalid("signal", signal, "an AbortSignal");
  if (place !== undefined) {
    for (const [name, value] of Object.entries({ key, weight, priority, share, grace })) {
      if (value !== undefined) throw invalid(name, value, "none with a place, which has its own");
    }
    if (!(place instanceof Permit) && typeof place !== "string") throw invalid("place", place, "a Permit or its text");
    if (place instanceof Permit && place.started) {
      throw invalid("place", "a permit that has started", "a place that has not", true);
    }
  }
  return {
    key: startKeyOf(key, weight),
    weight: startWeightOf(weight),
    priority: priorityOf(priority),
    share: share === undefined ? 0 : shareOf(share),
    maxWaiting,
    timeout: maybeMilliseconds("timeout", timeout) ?? -1,
    grace: maybeMilliseconds("grace", grace) ?? -1,
    signal,
    place,
  };
}
