// The activity of one limiter object in this process: its waiters, and the functions that it runs.

import type { StartKey } from "./charges.js";
import { TooManyWaiters } from "./errors.js";

export class Activity {
  /** The numbers of waiters, by key. */
  readonly #waiters = new Map<string, number>();
  #running = 0;
  #onIdle: (() => void)[] = [];

  /** Counts one more waiter of this key, of which there may be `most`. */
  join(limit: string, of: StartKey, most: number): void {
    const key = String(of);
    const before = this.#waiters.get(key) ?? 0;
    if (before >= most) {
      const named = key === "" ? "" : ` with key ${JSON.stringify(key)}`;
      throw new TooManyWaiters(`${before} wait for limit "${limit}"${named} already: maxWaiting is ${most}`);
    }
    this.#waiters.set(key, before + 1);
  }

  leave(of: StartKey): void {
    const key = String(of);
    const left = this.#waiters.get(key)! - 1;
    if (left > 0) this.#waiters.set(key, left);
    else this.#waiters.delete(key);
  }

  begin(): void {
    this.#running++;
  }

  end(): void {
    if (--this.#running === 0) for (const resolve of this.#onIdle.splice(0)) resolve();
  }

  /** Runs a function, and counts it until it is done. */
  async run<T>(fn: () => Promise<T>): Promise<T> {
    this.begin();
    try {
      return await fn();
    } finally {
      this.end();
    }
  }

  /** Resolves when nothing waits or runs. */
  async idle(): Promise<void> {
    while (this.#running > 0) await new Promise<void>((resolve) => this.#onIdle.push(resolve));
  }
}
