// Who is at a limiter in this process: those who wait, and the functions that it lets run.

import { TooManyWaiters } from "./errors.js";

export class Crowd {
  /** How many wait, by their keys. */
  readonly #waiting = new Map<string, number>();
  #size = 0;
  #idle: (() => void)[] = [];

  /** Waits for `place`, as one of those with this key, who may be so many. */
  async wait<T>(limit: string, key: string, most: number, place: () => Promise<T>): Promise<T> {
    const before = this.#waiting.get(key) ?? 0;
    if (before >= most) {
      const of = key === "" ? "" : ` with key ${JSON.stringify(key)}`;
      throw new TooManyWaiters(`${before} wait for limit "${limit}"${of} already: maxWaiting is ${most}`);
    }
    this.#waiting.set(key, before + 1);
    try {
      return await this.stay(place);
    } finally {
      const left = this.#waiting.get(key)! - 1;
      if (left > 0) this.#waiting.set(key, left);
      else this.#waiting.delete(key);
    }
  }

  /** Is here until it is done. */
  async stay<T>(run: () => T | PromiseLike<T>): Promise<T> {
    this.#size++;
    try {
      return await run();
    } finally {
      if (--this.#size === 0) for (const resolve of this.#idle.splice(0)) resolve();
    }
  }

  /** Until nobody is here. */
  async empty(): Promise<void> {
    while (this.#size > 0) await new Promise<void>((resolve) => this.#idle.push(resolve));
  }
}
