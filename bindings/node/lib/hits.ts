// A rate limit for packages that count hits and refuse those above a number.

import type { Decision, Peek } from "./calls.js";
import { RateLimiter } from "./family.js";
import type { Permit } from "./permit.js";
import { fitting } from "./request-limit.js";
import type { Store } from "./store.js";

/** The hits of a key. */
export interface Count {
  /** The hits of the last window; one more than the limit for a refused hit, which is not counted. */
  readonly hits: number;
  /** The time in ms until a retry may succeed; for a counted hit, until no hit of the key counts. */
  readonly after: number;
  /** The permit of a counted hit. */
  readonly permit: Permit | null;
}

/** Counts hits in any rolling window, up to a number. The window is in ms. */
export class Hits {
  readonly max: number;
  readonly window: number;
  /** `null` for a limit of 0. */
  readonly #limiter: RateLimiter | null;

  constructor(store: Store, name: string, max: number, window: number) {
    this.max = max;
    this.window = window;
    const windowSizeInSeconds = window / 1e3;
    this.#limiter = max === 0 ? null : new RateLimiter(store, name, { maxExecutions: max, windowSizeInSeconds });
  }

  /** Counts a hit, unless the limit is full. */
  async add(key: string): Promise<Count> {
    if (this.#limiter === null) return { hits: 1, after: this.window, permit: null };
    const decision = await this.#limiter.decideAsync({ key: fitting(key) });
    const { admitted, retryAfter, resetAfter, permit } = decision;
    if (!admitted) return { hits: this.max + 1, after: retryAfter, permit };
    return { hits: Math.max(1, this.#used(decision)), after: resetAfter, permit };
  }

  /** Returns the hits of a key. */
  async peek(key: string): Promise<Count> {
    if (this.#limiter === null) return { hits: 0, after: 0, permit: null };
    const decision = await this.#limiter.peekAsync({ key: fitting(key) });
    return { hits: this.#used(decision), after: decision.resetAfter, permit: null };
  }

  /** Returns the used hits. An operator's override may allow more, or fewer, than `max`. */
  #used({ remaining }: Decision | Peek): number {
    return Math.max(0, this.max - remaining);
  }

  /** Forgets the hits of a key; without one, of all keys. */
  async clear(key?: string): Promise<void> {
    await this.#limiter?.clear(key === undefined ? {} : { key: fitting(key) });
  }
}
