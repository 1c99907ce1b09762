// The fields of draft-ietf-httpapi-ratelimit-headers-10: RateLimit-Policy and RateLimit.

import type { Decision, Peek } from "./calls.js";
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

/** A limiter in headers: its name, and whether they can state its window. */
export class Policy {
  /** The name as a structured field string. */
  readonly #quoted: string;
  readonly #isOfConcurrency: boolean;
  #parts: readonly (readonly [string, Policy])[] | undefined;
  /**
   * Whether it allows a number per window. The window of a bucket is the time of one unit, and the window of a composite may not be
   * that of its smallest limit.
   */
  readonly isWindowed: boolean;

  /** `name` is printable ASCII, and `text` the policy, as far as it is known. */
  constructor(
    readonly limiter: Limiter,
    readonly name: string,
    readonly text = limiter instanceof NamedLimiter ? (limiter.policy ?? "") : "",
  ) {
    this.#quoted = `"${name.replace(/["\\]/g, "\\$&")}"`;
    this.#isOfConcurrency = limiter instanceof ConcurrencyLimiter || CONCURRENT.test(text);
    this.isWindowed = WINDOWED.some((of) => limiter instanceof of) || WINDOWS.test(text);
  }

  /** Returns the policies of a composite's parts, which are called "NAME/PART". */
  parts(): readonly (readonly [string, Policy])[] {
    this.#parts ??= Object.entries(this.limiter.parts).map(([part, limiter]) => {
      return [part, new Policy(limiter, `${this.name}/${part}`, limiter instanceof NamedLimiter ? limiter.policy : this.#textOf(part))];
    });
    return this.#parts;
  }

  /** Returns the policy of a part: those with its name, or the only one of its kind. */
  #textOf(part: string): string {
    const policies = this.text.split("+").map((policy) => policy.trim());
    const own = policies.filter((policy) => policy.startsWith(`${part}:`)).map((policy) => policy.slice(part.length + 1).trim());
    const unnamed = { rate: WINDOWS, concurrency: CONCURRENT }[part];
    return own.length > 0 || unnamed === undefined ? own.join(" + ") : policies.filter((policy) => unnamed.test(policy)).join(" + ");
  }

  /** Returns its item of RateLimit-Policy; empty without a limit. */
  quota({ limit }: Decision | Peek, window: number | null): string {
    if (!Number.isFinite(limit)) return "";
    const item = `${this.#quoted};q=${limit}`;
    if (this.#isOfConcurrency) return `${item};qu="concurrent-requests"`;
    // The field has whole seconds.
    return window === null || window < 1e3 ? item : `${item};w=${Math.ceil(window / 1e3)}`;
  }

  /** Returns its item of RateLimit; empty without a limit. */
  state({ admitted, limit, remaining, resetAfter, retryAfter }: Decision | Peek): string {
    if (!Number.isFinite(limit)) return "";
    const item = `${this.#quoted};r=${remaining}`;
    // The rest of a window is rounded up to a microsecond, which must not add a second.
    const after = admitted ? Math.ceil(resetAfter / 1e3 - 2e-6) : wholeSeconds(retryAfter);
    return after > 0 ? `${item};t=${after}` : item;
  }
}

/** A policy and its decision. */
export interface PolicyDecision {
  readonly policy: Policy;
  readonly decision: Decision | Peek;
  /** The window in ms, if it is known. */
  readonly window: number | null;
}

/** Returns the fields RateLimit-Policy of `policies`, and RateLimit of `states`. */
export function fields(policies: readonly PolicyDecision[], states: readonly PolicyDecision[]): Record<string, string> {
  const found: Record<string, string> = {};
  const quotas = listOf(policies, ({ policy, decision, window }) => policy.quota(decision, window));
  if (quotas !== "") found["RateLimit-Policy"] = quotas;
  const items = listOf(states, ({ policy, decision }) => policy.state(decision));
  if (items !== "") found.RateLimit = items;
  return found;
}

function listOf(decisions: readonly PolicyDecision[], itemOf: (one: PolicyDecision) => string): string {
  if (decisions.length === 1) return itemOf(decisions[0]!);
  return decisions
    .map(itemOf)
    .filter((item) => item !== "")
    .join(", ");
}

/** Rounds up to whole seconds, at least one, so that a retry is never too early. */
export const wholeSeconds = (ms: number): number => Math.max(1, Math.ceil(ms / 1e3));

const WINDOWED = [RateLimiter, FixedWindowLimiter, SlidingWindowCounterLimiter, DelayLimiter, EvenlySpacedRateLimiter];
const WINDOWS = /^\d+\/\S+(?: (?:fixed|counter|backoff .*))?$|^\d+\/\S+(?: \+ \d+\/\S+)*$/;
const CONCURRENT = /^\d+ concurrent[^+]*$/;
