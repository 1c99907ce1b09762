// What an admitted start holds.

import type { Limiter } from "./limiter.js";
import { Num, Op, call, numbers, putWords, readyMonotonic, takeWords } from "./native.js";

/** What is left to do for a permit that nobody ended and nobody can reach any more. */
interface Held {
  readonly limiter: Limiter;
  readonly key: string;
  readonly words: readonly number[];
}

const lost = new FinalizationRegistry<Held>(({ limiter, key, words }) => complete(limiter, key, words));

function complete(limiter: Limiter, key: string, words: readonly number[]): void {
  putWords(words);
  call(limiter._call, Op.complete, "", 1);
  for (const room of limiter._rooms()) room.ring(key);
}

/**
 * An admitted start. `complete()` says that the job has ended; with `using` it does so at the end of the scope. One that
 * is forgotten completes when it is garbage-collected.
 */
export class Permit {
  readonly #limiter: Limiter;
  readonly #key: string;
  readonly #words: readonly number[];
  #ended = false;

  /** @internal Of the call that was just made. */
  constructor(limiter: Limiter, key: string) {
    if (limiter === undefined) throw new TypeError("permits are given by limiters, not made");
    this.#limiter = limiter;
    this.#key = key;
    this.#words = takeWords();
    if (limiter._holds) lost.register(this, { limiter, key, words: this.#words }, this);
  }

  /** The job has ended. Doing it again is a no-op. */
  complete(): void {
    this._end(this.#limiter);
  }

  /** The same as `complete()`, for `using permit = …`. */
  [Symbol.dispose](): void {
    this._end(this.#limiter);
  }

  /** @internal Ends it at a limiter, which must be the one that gave it. */
  _end(limiter: Limiter): void {
    if (this.#ended && limiter === this.#limiter) return;
    complete(limiter, this.#key, this.#words);
    this.#ended = true;
    if (limiter._holds) lost.unregister(this);
  }

  /** When the start's place came, if it had to wait for one; by the wall clock as it is now. */
  get readyAt(): Date | null {
    this.#ready();
    const ms = numbers[Num.time]!;
    return Number.isNaN(ms) ? null : new Date(ms);
  }

  /** The same in ns on the clock of `process.hrtime.bigint()`, never later than it was: for measuring. */
  get readyAtHrtime(): bigint | null {
    this.#ready();
    return readyMonotonic();
  }

  #ready(): void {
    putWords(this.#words);
    call(this.#limiter._call, Op.readyAt, "", 1);
  }
}
