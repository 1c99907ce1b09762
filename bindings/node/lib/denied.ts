// Holds Workglow's workers that were denied and ask again too early.

import type { Limiter } from "./limiter.js";
import type { Permit } from "./permit.js";

/** The longest wait, in ms, where a slot may become free at any moment. */
export const LOOK_AGAIN = 1_000;

/**
 * A worker that is denied puts its job back and learns when to try again. But a queue that reports changes wakes it for this same
 * job immediately, some hundred times a second. So a worker that asks before a start is possible waits here with its job, for at most
 * a second. It would do no other work in that time.
 */
export class DeniedWorkers {
  #until = 0;
  readonly #waiting = new Set<() => void>();

  constructor(readonly limiter: Limiter) {}

  /** Returns a permit or `null`, after a wait if the call is too early. */
  async tryAcquire(key: string): Promise<Permit | null> {
    const left = Math.min(this.#until - performance.now(), LOOK_AGAIN);
    if (left > 0) await this.#wait(left);
    const permit = await this.limiter.tryAcquireAsync({ key });
    // A manual clock does not advance while a worker waits.
    if (permit !== null || this.limiter._isManual()) return permit;
    const { retryAfter } = await this.limiter.peekAsync({ key });
    this.#until = performance.now() + Math.min(retryAfter, this.limiter._holds ? SLOT : Infinity);
    return null;
  }

  /** Lets the waiting workers ask: a start may be possible. */
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

/** The wait, in ms, for a slot that another process may free, of which this process is not notified. */
const SLOT = 50;
