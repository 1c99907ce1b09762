// What an admitted start holds, and places: starts in the future.

import { brand } from "./brand.js";
import { SyncUnsupported } from "./errors.js";
import { warn } from "./hooks.js";
import { whole } from "./input.js";
import type { Limiter } from "./limiter.js";
import { Num, Op, Status, isTaken, native, numbers, putWords, takeLarge, takeText, takeWords } from "./native.js";
import { shown } from "./shown.js";
import { setTimeout } from "./timers.js";

/** What is left to do for a permit that nobody ended and nobody can reach any more. */
interface Held {
  readonly limiter: Limiter;
  readonly key: string;
  readonly words: readonly number[];
}

const lost = new FinalizationRegistry<Held>(async ({ limiter, key, words }) => {
  try {
    await (endAtOnce(Op.complete, limiter, key, words, 1) || end(Op.complete, limiter, key, words, 1));
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

/** Does it end without asking a server? */
function endAtOnce(how: Op, limiter: Limiter, key: string, words: readonly number[], actual: number): boolean {
  putWords(words);
  try {
    limiter._do(how, "", actual);
  } catch (error) {
    if (error instanceof SyncUnsupported) return false;
    throw error;
  }
  ended(how, limiter, key);
  return true;
}

/** Ends it off the event loop, if that has to wait. */
function end(how: Op, limiter: Limiter, key: string, words: readonly number[], actual: number): Promise<void> {
  return new Promise((resolve, reject) => {
    putWords(words);
    limiter._ask(how, "", actual, (answer) => {
      try {
        answer();
        ended(how, limiter, key);
        resolve();
      } catch (error) {
        reject(error);
      }
    });
  });
}

function ended(how: Op, limiter: Limiter, key: string): void {
  if (how === Op.renew || (how === Op.complete && !limiter._holds)) return; // It gave nothing back.
  for (const bell of limiter._bells()) bell.ring(key);
}

/**
 * An admitted start. It ends in one of `complete()`, `cancel()` and `settle()`; ending it again is a no-op, in whatever
 * way. With `using` it completes at the end of the scope. One that is forgotten completes when it is garbage-collected.
 * Where a server has to be told, these send it on its way, and what fails there is a warning of the process; `completeAsync()`
 * and the others, and `await using`, wait until it is done.
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
  #ending: Promise<void> | undefined;
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

  /** The same. What has to wait for the store does so off the event loop, as with all that follow. */
  async completeAsync(): Promise<void> {
    await this.#endAsync(Op.complete);
  }

  /** The job never ran, or nobody will use the place: its units are free again at once. */
  cancel(): void {
    this._end(this.#canceling, this.#limiter);
  }

  /** The same. */
  async cancelAsync(): Promise<void> {
    await this.#endAsync(this.#canceling);
  }

  get #canceling(): Op {
    // Somebody may have started with a place's text meanwhile.
    return this.started ? Op.cancel : Op.cancelPlace;
  }

  /**
   * The job has ended, and was worth `actual` units instead of the weight that it started with. What it did not use is
   * free again at once; what it used beyond is owed, up to one whole capacity, and delays later starts. A concurrency
   * limit throws a `LimitError`, "unsupported".
   */
  settle(actual: number): void {
    this._end(Op.settle, this.#limiter, whole("actual", actual));
  }

  /** The same. */
  async settleAsync(actual: number): Promise<void> {
    await this.#endAsync(Op.settle, whole("actual", actual));
  }

  /** The same as `complete()`, for `using permit = …`. */
  [Symbol.dispose](): void {
    this._end(Op.complete, this.#limiter);
  }

  /** The same as `completeAsync()`, for `await using permit = …`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#endAsync(Op.complete);
  }

  /**
   * Lets the lease of a shared concurrency limit begin anew: the start holds its units for the whole lease from now on.
   * Throws `LeaseLost` if it has ended meanwhile. A no-op for permits that are no leases.
   */
  renew(): void {
    this._put();
    this.#limiter._do(Op.renew, "", 1);
  }

  /** The same. */
  async renewAsync(): Promise<void> {
    await end(Op.renew, this.#limiter, this.#key, this.#words, 1);
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

  /** The same in ns on the clock of `process.hrtime.bigint()`, never later than it was (on a server: by no more than its answers are late): for measuring. */
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
    if (!endAtOnce(how, limiter, this.#key, this.#words, actual)) {
      this.#endAsync(how, actual).catch((error: unknown) => warn("a permit could not be ended", error));
      return;
    }
    this.#ended = true;
    if (this.#isWatched) lost.unregister(this);
  }

  /** The same, where it may wait. What was sent before is waited for. */
  async #endAsync(how: Op, actual = 1): Promise<void> {
    if (this.#ended) return this.#ending;
    this.#ended = true;
    this.#ending = end(how, this.#limiter, this.#key, this.#words, actual);
    try {
      await this.#ending;
    } catch (error) {
      this.#ended = false;
      throw error;
    }
    if (this.#isWatched) lost.unregister(this);
  }

  /** @internal Puts it where the next call finds it. */
  _put(): void {
    putWords(this.#words);
  }

  /** @internal What is printed of it. */
  _shown(): object {
    return { limiter: this.#limiter.name, key: this.#key, started: this.started, ended: this.#ended };
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
shown(Permit, (permit) => permit._shown());
