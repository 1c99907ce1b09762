// A rate limit as packages ask it that count hits and refuse beyond a number of them.

import type { Decision } from "./calls.js";
import { RateLimiter } from "./family.js";
import type { Permit } from "./permit.js";
import { fitting } from "./serving.js";
import type { Store } from "./store.js";

/** What such a package is told. */
export interface Count {
  /** The hits of the last window; one more than the limit for a hit that was refused, which is not counted. */
  readonly hits: number;
  /** In ms: until a retry may succeed; of a hit that was counted, until the key is as new. */
  readonly after: number;
  /** That of a hit that was counted. */
  readonly permit: Permit | null;
}

/** So many hits in any rolling window, which is in ms. */
export class Hits {
  readonly max: number;
  readonly window: number;
  /** `null` for a limit of nothing. */
  readonly #limiter: RateLimiter | null;

  constructor(store: Store, name: string, max: number, window: number) {
    this.max = max;
    this.window = window;
    const windowSizeInSeconds = window / 1e3;
    this.#limiter = max === 0 ? null : new RateLimiter(store, name, { maxExecutions: max, windowSizeInSeconds });
  }

  /** Counts a hit, if there is room. */
  async add(key: string): Promise<Count> {
    if (this.#limiter === null) return { hits: 1, after: this.window, permit: null };
    const decision = await this.#limiter.decideAsync({ key: fitting(key) });
    const { admitted, retryAfter, resetAfter, permit } = decision;
    if (!admitted) return { hits: this.max + 1, after: retryAfter, permit };
    return { hits: Math.max(1, this.#used(decision)), after: resetAfter, permit };
  }

  /** How it stands with a key. */
  async look(key: string): Promise<Count> {
    if (this.#limiter === null) return { hits: 0, after: 0, permit: null };
    const decision = await this.#limiter.peekAsync({ key: fitting(key) });
    return { hits: this.#used(decision), after: decision.resetAfter, permit: null };
  }

  /** An operator's override may allow more, or less. */
  #used({ remaining }: Decision): number {
    return Math.max(0, this.max - remaining);
  }

  /** Forgets a key, or all. */
  async clear(key?: string): Promise<void> {
    await this.#limiter?.clear(key === undefined ? undefined : fitting(key));
  }
}
