// Workglow's workers that were denied, and ask again before it is of any use.

import type { Limiter } from "./limiter.js";
import type { Permit } from "./permit.js";

/** Where slots are held, one may come free at any moment, so nobody is sent away for longer than this, in ms. */
export const LOOK_AGAIN = 1_000;

/**
 * A worker that is denied puts its job back and is told when to look again. But queues that tell of their changes wake it
 * for that very job, at once, some hundred times a second. So whoever asks again before there can be room waits for it here,
 * with its job, for a second at most: it would not do anything else with the worker.
 */
export class Denied {
  #until = 0;
  readonly #waiting = new Set<() => void>();

  constructor(readonly limiter: Limiter) {}

  /** A permit, or `null`: at once, but for those who come too soon. */
  async orAsk(key: string): Promise<Permit | null> {
    const left = Math.min(this.#until - performance.now(), LOOK_AGAIN);
    if (left > 0) await this.#wait(left);
    const permit = await this.limiter.tryAcquireAsync({ key });
    // By a manual clock nothing comes by waiting.
    if (permit !== null || this.limiter._stores().some((store) => store._clock !== undefined)) return permit;
    const { retryAfter } = await this.limiter.peekAsync({ key });
    this.#until = performance.now() + Math.min(retryAfter, this.limiter._holds ? SLOT : Infinity);
    return null;
  }

  /** There may be room now: those who wait ask. */
  end(): void {
    this.#until = 0;
    for (const wake of this.#waiting) wake();
  }

  #wait(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        clearTimeout(timer);
        this.#waiting.delete(wake);
        resolve();
      };
      const timer = setTimeout(wake, Math.ceil(ms));
      this.#waiting.add(wake);
    });
  }
}

/** The same where another process may end what holds a slot, which nobody here is told of. */
const SLOT = 50;
