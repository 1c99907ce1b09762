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

/** A limiter, and what it answered. */
export interface Policy {
  readonly limiter: Limiter;
  /** What headers call it: printable ASCII. */
  readonly name: string;
  readonly decision: Decision;
  /** Over which time its limit counts, in ms, where the headers can say that. */
  readonly window: number | null;
}

/** The fields of these policies, and of how it stands with those. */
export function fields(policies: readonly Policy[], states: readonly Policy[]): Record<string, string> {
  const lists = { "RateLimit-Policy": policies.map(policyOf), RateLimit: states.map(stateOf) };
  const found = Object.entries(lists).map(([name, items]) => [name, items.filter((item) => item !== "").join(", ")]);
  return Object.fromEntries(found.filter(([, list]) => list !== ""));
}

/** Empty where there is no limit. */
function policyOf({ name, limiter, decision, window }: Policy): string {
  if (!Number.isFinite(decision.limit)) return "";
  const item = `${quoted(name)};q=${decision.limit}`;
  if (isOfConcurrency(limiter)) return `${item};qu="concurrent-requests"`;
  // It counts whole seconds.
  return window === null || window < 1e3 ? item : `${item};w=${Math.ceil(window / 1e3)}`;
}

function stateOf({ name, decision }: Policy): string {
  if (!Number.isFinite(decision.limit)) return "";
  const item = `${quoted(name)};r=${decision.remaining}`;
  // What is left of a window is rounded up to a microsecond, and that is no second more.
  const after = decision.admitted ? Math.ceil(decision.resetAfter / 1e3 - 2e-6) : wholeSeconds(decision.retryAfter);
  return after > 0 ? `${item};t=${after}` : item;
}

/** After so many a retry is no earlier than that. */
export const wholeSeconds = (ms: number): number => Math.max(1, Math.ceil(ms / 1e3));

/** A string of structured fields. */
const quoted = (name: string): string => `"${name.replace(/["\\]/g, "\\$&")}"`;

const WINDOWED = [RateLimiter, FixedWindowLimiter, SlidingWindowCounterLimiter, DelayLimiter, EvenlySpacedRateLimiter];
const WINDOWS = /^\d+\/\S+(?: (?:fixed|counter|backoff .*))?$|^\d+\/\S+(?: \+ \d+\/\S+)*$/;
const CONCURRENT = /^\d+ concurrent/;

const policyIn = (limiter: Limiter): string => (limiter instanceof NamedLimiter ? (limiter.policy ?? "") : "");

/** Is it so many per window? The window of a bucket is the time of one unit, and that of a composite need not be its limit's. */
export const isWindowed = (limiter: Limiter): boolean =>
  WINDOWED.some((of) => limiter instanceof of) || WINDOWS.test(policyIn(limiter));

const isOfConcurrency = (limiter: Limiter): boolean =>
  limiter instanceof ConcurrencyLimiter || (CONCURRENT.test(policyIn(limiter)) && !policyIn(limiter).includes("+"));
