// The fields of draft-ietf-httpapi-ratelimit-headers-10: RateLimit-Policy and RateLimit.

import type { Decision } from "./calls.js";
import {
  ConcurrencyLimiter,
  DelayLimiter,
  EvenlySpacedRateLimiter,
  FixedWindowLimiter,
  RateLimiter,
  SlidingWindowCounterLimiter,
} from "./family.js";
import type { Limiter } from "./limiter.js";
import { NamedLimiter } from "./named.js";

/** What headers call a limiter, and whether they can say over which time it counts. */
export class Policy {
  /** As a string of structured fields. */
  readonly #quoted: string;
  readonly #isOfConcurrency: boolean;
  /** Is it so many per window? The window of a bucket is the time of one unit, and that of a composite need not be its limit's. */
  readonly isWindowed: boolean;

  /** `name` is printable ASCII. */
  constructor(
    readonly limiter: Limiter,
    readonly name: string,
  ) {
    const text = limiter instanceof NamedLimiter ? (limiter.policy ?? "") : "";
    this.#quoted = `"${name.replace(/["\\]/g, "\\$&")}"`;
    this.#isOfConcurrency = limiter instanceof ConcurrencyLimiter || CONCURRENT.test(text);
    this.isWindowed = WINDOWED.some((of) => limiter instanceof of) || WINDOWS.test(text);
  }

  /** Its item of RateLimit-Policy; empty where there is no limit. */
  quota({ limit }: Decision, window: number | null): string {
    if (!Number.isFinite(limit)) return "";
    const item = `${this.#quoted};q=${limit}`;
    if (this.#isOfConcurrency) return `${item};qu="concurrent-requests"`;
    // It counts whole seconds.
    return window === null || window < 1e3 ? item : `${item};w=${Math.ceil(window / 1e3)}`;
  }

  /** Its item of RateLimit; empty where there is no limit. */
  state({ admitted, limit, remaining, resetAfter, retryAfter }: Decision): string {
    if (!Number.isFinite(limit)) return "";
    const item = `${this.#quoted};r=${remaining}`;
    // What is left of a window is rounded up to a microsecond, and that is no second more.
    const after = admitted ? Math.ceil(resetAfter / 1e3 - 2e-6) : wholeSeconds(retryAfter);
    return after > 0 ? `${item};t=${after}` : item;
  }
}

/** What a policy answered. */
export interface Answered {
  readonly policy: Policy;
  readonly decision: Decision;
  /** Over which time it counts, in ms, if that is known. */
  readonly window: number | null;
}

/** The fields of these policies, and of how it stands with those. */
export function fields(policies: readonly Answered[], states: readonly Answered[]): Record<string, string> {
  const found: Record<string, string> = {};
  const quotas = listOf(policies, ({ policy, decision, window }) => policy.quota(decision, window));
  if (quotas !== "") found["RateLimit-Policy"] = quotas;
  const items = listOf(states, ({ policy, decision }) => policy.state(decision));
  if (items !== "") found["RateLimit"] = items;
  return found;
}

function listOf(answered: readonly Answered[], itemOf: (one: Answered) => string): string {
  if (answered.length === 1) return itemOf(answered[0]!);
  return answered.map(itemOf).filter((item) => item !== "").join(", ");
}

/** After so many a retry is no earlier than that. */
export const wholeSeconds = (ms: number): number => Math.max(1, Math.ceil(ms / 1e3));

const WINDOWED = [RateLimiter, FixedWindowLimiter, SlidingWindowCounterLimiter, DelayLimiter, EvenlySpacedRateLimiter];
const WINDOWS = /^\d+\/\S+(?: (?:fixed|counter|backoff .*))?$|^\d+\/\S+(?: \+ \d+\/\S+)*$/;
const CONCURRENT = /^\d+ concurrent[^+]*$/;
