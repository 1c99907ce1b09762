// What an admitted start holds, and places: starts in the future.

import { brand } from "./brand.js";
import { warn } from "./hooks.js";
import { whole } from "./input.js";
import type { Limiter } from "./limiter.js";
import { Num, Op, Status, isTaken, native, numbers, putWords, takeLarge, takeText, takeWords } from "./native.js";

/** What is left to do for a permit that nobody ended and nobody can reach any more. */
interface Held {
  readonly limiter: Limiter;
  readonly key: string;
  readonly words: readonly number[];
}

const lost = new FinalizationRegistry<Held>(({ limiter, key, words }) => {
  try {
    end(Op.complete, limiter, key, words, 1);
  } catch (error) {
    warn("a permit that was forgotten could not be completed", error);
  }
});

/**
 * The latest permits that hold something. Most end soon, and to have one watched by the collector costs more than its decision: so
 * that begins a while later, for those that have not ended.
 */
const latest: Permit[] = [];
const MOST_LATEST = 500;
const A_WHILE = 50; // ms
let isTimed = false;

function watchLatest(): void {
  for (const permit of latest.splice(0)) permit._watch();
}

function watchLater(permit: Permit): void {
  if (latest.push(permit) === MOST_LATEST) return watchLatest();
  if (isTimed) return;
  isTimed = true;
  setTimeout(() => {
    isTimed = false;
    watchLatest();
  }, A_WHILE).unref();
}

function end(how: Op, limiter: Limiter, key: string, words: readonly number[], actual: number): void {
  putWords(words);
  limiter._do(how, "", actual);
  if (how === Op.complete && !limiter._holds) return; // It gave nothing back.
  for (const bell of limiter._bells()) bell.ring(key);
}

/**
 * An admitted start. It ends in one of `complete()`, `cancel()` and `settle()`; ending it again is a no-op, in whatever
 * way. With `using` it completes at the end of the scope. One that is forgotten completes when it is garbage-collected.
 *
 * Or a place: a start in the future, as `Limiter.reserve` takes it, which has not `started` until it is presented.
 */
export class Permit {
  /** False for a place. */
  readonly started: boolean;
  readonly #limiter: Limiter;
  readonly #key: string;
  readonly #words: readonly number[];
  #ended = false;
  #isWatched = false;
  /** In ms: how long to wait at least, where a place's time has come and somebody else still has to end. */
  #again = 0;

  /** @internal Of the call that was just made. */
  constructor(limiter: Limiter, key: string, started = true) {
    if (limiter === undefined) throw new TypeError("permits are given by limiters, not made");
    this.started = started;
    this.#limiter = limiter;
    this.#key = key;
    this.#words = takeWords();
    if (limiter._holds) watchLater(this);
  }

  /** @internal If it has not ended: lets it complete when nobody can reach it any more. */
  _watch(): void {
    if (this.#ended) return;
    lost.register(this, { limiter: this.#limiter, key: this.#key, words: this.#words }, this);
    this.#isWatched = true;
  }

  /** The job has ended. */
  complete(): void {
    this._end(Op.complete, this.#limiter);
  }

  /** The job never ran, or nobody will use the place: its units are free again at once. */
  cancel(): void {
    // Somebody may have started with a place's text meanwhile.
    this._end(this.started ? Op.cancel : Op.cancelPlace, this.#limiter);
  }

  /**
   * The job has ended, and was worth `actual` units instead of the weight that it started with. What it did not use is
   * free again at once; what it used beyond is owed, up to one whole capacity, and delays later starts. A concurrency
   * limit throws a `LimitError`, "unsupported".
   */
  settle(actual: number): void {
    this._end(Op.settle, this.#limiter, whole("actual", actual));
  }

  /** The same as `complete()`, for `using permit = …`. */
  [Symbol.dispose](): void {
    this._end(Op.complete, this.#limiter);
  }

  /**
   * Lets the lease of a shared concurrency limit begin anew: the start holds its units for the whole lease from now on.
   * Throws `LeaseLost` if it has ended meanwhile. A no-op for permits that are no leases.
   */
  renew(): void {
    this._put();
    this.#limiter._do(Op.renew, "", 1);
  }

  /**
   * Larger for every later lease of the same key, so that what the lease protects can refuse whoever comes late; `null`
   * for permits that are no leases.
   */
  get fence(): bigint | null {
    this._put();
    return this.#limiter._do(Op.fence, "", 1) === Status.yes ? takeLarge() : null;
  }

  /**
   * A short text, with which another process that has the same limit can go on: with a place by `Limiter.present` or
   * `acquire`, with a start by `Limiter.permit`. Permits that belong to one process throw a `LimitError`, "unsupported".
   */
  toText(): string {
    this._put();
    this.#limiter._do(Op.toText, "", 1);
    return takeText();
  }

  /** In ms: when to present a place; 0 if its time has come, or it started. */
  get wait(): number {
    return this.started ? 0 : Math.max(this.#readyIn(), this.#again);
  }

  /** When its place comes or came, if it had to wait for one; by the wall clock as it is now. Rounded up to the ms. */
  get readyAt(): Date | null {
    this.#ready();
    const ms = numbers[Num.time]!;
    return Number.isNaN(ms) ? null : new Date(ms);
  }

  /** The same in ns on the clock of `process.hrtime.bigint()`, never later than it was: for measuring. */
  get readyAtHrtime(): bigint | null {
    this.#ready();
    return takeLarge() || null;
  }

  #readyIn(): number {
    this.#ready();
    return numbers[Num.retryAfter]! / 1e3;
  }

  #ready(): void {
    this._put();
    this.#limiter._do(Op.readyAt, "", 1);
  }

  /** @internal Ends it at a limiter, which must be the one that gave it. */
  _end(how: Op, limiter: Limiter, actual = 1): void {
    if (this.#ended && limiter === this.#limiter) return;
    end(how, limiter, this.#key, this.#words, actual);
    this.#ended = true;
    if (this.#isWatched) lost.unregister(this);
  }

  /** @internal Puts it where the next call finds it. */
  _put(): void {
    putWords(this.#words);
  }

  /** @internal Did this limiter give it? */
  _isOf(limiter: Limiter): boolean {
    return this.#limiter === limiter;
  }

  /** @internal Somebody else has it now: a waiter, or the permit that came of it. */
  _useUp(): void {
    this.#ended = true;
  }

  /** @internal What came of presenting it, by the call that was just made: itself, if it was too early. */
  _presented(limiter: Limiter, started: boolean): Permit {
    const after = numbers[Num.retryAfter]! / 1e3;
    let permit: Permit = this;
    if (started || this.#ended || !isTaken(this.#words)) {
      this._useUp();
      permit = new Permit(limiter, this.#key, started);
    }
    return permit._waits(after);
  }

  /** @internal Notes how long it was told to wait, which matters where its time has come. */
  _waits(after: number): this {
    this.#again = this.started || this.#readyIn() > 0 ? 0 : after;
    return this;
  }
}
brand({ Permit }, native);
