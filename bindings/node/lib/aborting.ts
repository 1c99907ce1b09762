// Listens to abort signals: one listener of a signal for all who wait, because Node warns of a leak when there are more than ten.

import { clearTimeout, setTimeout } from "./timers.js";

/** Those who wait with one signal. */
class Waiting {
  readonly #signal: AbortSignal;
  readonly #all = new Set<() => void>();
  readonly #listener = (): void => {
    waiting.delete(this.#signal);
    for (const abort of this.#all) abort();
  };

  constructor(signal: AbortSignal) {
    this.#signal = signal;
    signal.addEventListener("abort", this.#listener);
  }

  add(abort: () => void): void {
    this.#all.add(abort);
  }

  delete(abort: () => void): void {
    if (!this.#all.delete(abort) || this.#all.size > 0) return;
    waiting.delete(this.#signal);
    this.#signal.removeEventListener("abort", this.#listener);
  }
}

const waiting = new WeakMap<AbortSignal, Waiting>();

/** Calls `abort`, a function of its own for each call, when the signal aborts. Returns a function that ends this. */
export function onAbort(signal: AbortSignal, abort: () => void): () => void {
  let all = waiting.get(signal);
  if (all === undefined) waiting.set(signal, (all = new Waiting(signal)));
  all.add(abort);
  return () => all.delete(abort);
}

/** Waits this many ms. Rejects with the signal's reason when it aborts. */
export function sleepUnless(signal: AbortSignal | undefined, ms: number): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const timer = setTimeout(() => {
      end?.();
      resolve();
    }, ms);
    const end =
      signal &&
      onAbort(signal, () => {
        clearTimeout(timer);
        reject(signal.reason);
      });
  });
}
