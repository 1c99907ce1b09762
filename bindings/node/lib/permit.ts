// Permits: of admitted starts, and of places, which are starts in the future.

import { brand } from "./brand.js";
import { type PartUnits, type StartKey, isParts, keyToWake, settlementOf } from "./charges.js";
import { SyncUnsupported } from "./errors.js";
import { warn } from "./hooks.js";
import { whole } from "./input.js";
import type { Child, Found } from "./composite.js";
import type { Limiter } from "./limiter.js";
import { Num, Op, Status } from "./layout.js";
import { isTaken, native, numbers, putWords, takeLarge, takeText, takeWords } from "./native.js";
import { shown } from "./shown.js";
import { setTimeout } from "./timers.js";

/** A permit that was collected before it ended. */
interface LostPermit {
  readonly limiter: Limiter;
  readonly key: StartKey | null;
  readonly words: readonly number[];
}

const lostPermits = new FinalizationRegistry<LostPermit>(async ({ limiter, key, words }) => {
  try {
    await (endAtOnce(Op.complete, limiter, key, words, 1) || end(Op.complete, limiter, key, words, 1));
  } catch (error) {
    warn("a forgotten permit could not be completed", error);
  }
});

/**
 * The latest permits that hold units. Most end soon, and registering one with the collector costs more than its decision. So only
 * those that have not ended after `A_WHILE` are registered.
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

/** Ends a permit if that needs no server; returns whether it did. */
function endAtOnce(how: Op, limiter: Limiter, key: StartKey | null, words: readonly number[], actual: number, parts = ""): boolean {
  putWords(words);
  try {
    limiter._do(how, parts, actual);
  } catch (error) {
    if (error instanceof SyncUnsupported) return false;
    throw error;
  }
  ended(how, limiter, key);
  return true;
}

/** Ends or renews a permit without blocking the event loop. */
function end(how: Op, limiter: Limiter, key: StartKey | null, words: readonly number[], actual: number, parts = ""): Promise<void> {
  return new Promise((resolve, reject) => {
    putWords(words);
    limiter._ask(how, parts, actual, (answer) => {
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

function ended(how: Op, limiter: Limiter, key: StartKey | null): void {
  if (how === Op.renew || how === Op.arrived || (how === Op.complete && !limiter._holds)) return; // It freed no units.
  for (const bell of limiter._bells()) bell.ring(keyToWake(key));
}

/**
 * An admitted start, or a place: a start in the future, as `Limiter.reserve` takes it, which has not `started` until it is
 * presented.
 *
 * A permit ends by `complete()`, `cancel()` or `settle()`. Ending it again, in any way, has no effect. With `using` it completes
 * at the end of the scope. A forgotten permit completes when it is garbage-collected. Where a server has to be notified, these
 * methods do not wait for it, and report a failure as a process warning; `completeAsync()` and the others, and `await using`,
 * wait.
 */
export class Permit {
  /** False for a place. */
  readonly started: boolean;
  readonly #limiter: Limiter;
  readonly #key: StartKey | null;
  readonly #words: readonly number[];
  #ended = false;
  #ending: Promise<void> | undefined;
  #isWatched = false;
  /** The shortest wait in ms of a place that is ready, but whose units another start still holds. */
  #again = 0;

  /** @internal Takes the permit that the last call wrote. Its key is `null` if it came as a text. */
  constructor(limiter: Limiter, key: StartKey | null, started = true) {
    if (limiter === undefined) throw new TypeError("Permit has no public constructor: limiters return permits");
    this.started = started;
    this.#limiter = limiter;
    this.#key = key;
    this.#words = takeWords();
    if (limiter._holds) watchLater(this);
  }

  /** @internal Registers the permit, unless it has ended, so that it completes when it is garbage-collected. */
  _watch(): void {
    if (this.#ended) return;
    lostPermits.register(this, { limiter: this.#limiter, key: this.#key, words: this.#words }, this);
    this.#isWatched = true;
  }

  /** Completes the start: the job has ended. */
  complete(): void {
    this._end(Op.complete, this.#limiter);
  }

  /** Does the same as `complete()`, and waits for the store without blocking the event loop. */
  async completeAsync(): Promise<void> {
    await this.#endAsync(Op.complete);
  }

  /** Cancels the start or place: the job never ran, and its units are free again at once. */
  cancel(): void {
    this._end(this.#canceling, this.#limiter);
  }

  /** Does the same as `cancel()`, and waits for the store without blocking the event loop. */
  async cancelAsync(): Promise<void> {
    await this.#endAsync(this.#canceling);
  }

  get #canceling(): Op {
    // A place's text may have been used for a start.
    return this.started ? Op.cancel : Op.cancelPlace;
  }

  /**
   * Completes the start with `actual` units instead of its weight. Unused units are free again at once. Excess units are owed, up
   * to the limit's whole capacity, and delay later starts. Where units cool down, those that were used and those that are owed do so
   * from now on. A concurrency limit without a cooldown throws a `LimitError` with code "unsupported".
   * Of a composite, `actual` may name parts, such as `{ tokens: 830 }`: the others used what they were charged.
   * Parts that were charged weights of their own have to be named.
   */
  settle(actual: number | PartUnits): void {
    const { how, units, parts } = settling(actual);
    this._end(how, this.#limiter, units, parts);
  }

  /** Does the same as `settle()`, and waits for the store without blocking the event loop. */
  async settleAsync(actual: number | PartUnits): Promise<void> {
    const { how, units, parts } = settling(actual);
    await this.#endAsync(how, units, parts);
  }

  /** Does the same as `complete()`, for `using permit = …`. */
  [Symbol.dispose](): void {
    this._end(Op.complete, this.#limiter);
  }

  /** Does the same as `completeAsync()`, for `await using permit = …`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#endAsync(Op.complete);
  }

  /**
   * Says that the job has reached the server that counts it, as when the head of its response is here. A limit with a cooldown
   * counts it from now on instead of from its end. The permit remains. No effect on other limits.
   */
  arrived(): void {
    if (this.#ended || endAtOnce(Op.arrived, this.#limiter, this.#key, this.#words, 1)) return;
    this.arrivedAsync().catch((error: unknown) => warn("the arrival of a job could not be recorded", error));
  }

  /** Does the same as `arrived()`, and waits for the store without blocking the event loop. */
  async arrivedAsync(): Promise<void> {
    if (!this.#ended) await end(Op.arrived, this.#limiter, this.#key, this.#words, 1);
  }

  /**
   * Renews the lease of a shared concurrency limit: the start holds its units for a whole lease from now on. Throws `LeaseLost` if
   * the lease has ended. No effect on permits without a lease.
   */
  renew(): void {
    this._put();
    this.#limiter._do(Op.renew, "", 1);
  }

  /** Does the same as `renew()` without blocking the event loop. */
  async renewAsync(): Promise<void> {
    await end(Op.renew, this.#limiter, this.#key, this.#words, 1);
  }

  /**
   * The limiter that was charged, of a `FirstOfLimiter`: the object that it was made with. With `FirstOfLimiter`s in one another, the
   * innermost. For a `CompositeLimiter`: what its first part of this kind has chosen. `null` for others.
   */
  get chosen(): Child | null {
    return this.#findChosen()?.given ?? null;
  }

  /** @internal The same as a limiter. */
  _chosen(): Limiter | null {
    return this.#findChosen()?.limiter ?? null;
  }

  #findChosen(): Found | null {
    this._put();
    return this.#limiter._do(Op.chosen, "", 1) === Status.yes ? this.#limiter._find(Number(takeLarge())) : null;
  }

  /**
   * The fencing token of the lease: larger for each later lease of the same key, so that the protected resource can refuse the
   * holder of an older lease. `null` for permits without a lease.
   */
  get fence(): bigint | null {
    this._put();
    return this.#limiter._do(Op.fence, "", 1) === Status.yes ? takeLarge() : null;
  }

  /**
   * Returns a short text for another process that shares the limit: the text of a place for `Limiter.present` or `acquire`, the
   * text of a start for `Limiter.permit`. Permits of a limit of one process throw a `LimitError` with code "unsupported".
   */
  toText(): string {
    this._put();
    this.#limiter._do(Op.toText, "", 1);
    return takeText();
  }

  /** The time until the place is ready, in ms; 0 if it is ready or has started. */
  get wait(): number {
    return this.started ? 0 : Math.max(this.#readyIn(), this.#again);
  }

  /** When its place is or was ready, by the current wall clock, rounded up to the ms; `null` if it did not wait for one. */
  get readyAt(): Date | null {
    this.#ready();
    const ms = numbers[Num.time]!;
    return Number.isNaN(ms) ? null : new Date(ms);
  }

  /**
   * The same on the clock of `process.hrtime.bigint()`, in ns, for measurements. Never later than it was; on a server, by no more
   * than the delay of its replies.
   */
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

  /** @internal Ends it. `limiter` must be the one that returned it. */
  _end(how: Op, limiter: Limiter, actual = 1, parts = ""): void {
    if (this.#ended && limiter === this.#limiter) return;
    if (!endAtOnce(how, limiter, this.#key, this.#words, actual, parts)) {
      this.#endAsync(how, actual, parts).catch((error: unknown) => warn("a permit could not be ended", error));
      return;
    }
    this.#ended = true;
    if (this.#isWatched) lostPermits.unregister(this);
  }

  /** Does the same without blocking the event loop. Waits for an end that is on its way already. */
  async #endAsync(how: Op, actual = 1, parts = ""): Promise<void> {
    if (this.#ended) return this.#ending;
    this.#ended = true;
    this.#ending = end(how, this.#limiter, this.#key, this.#words, actual, parts);
    try {
      await this.#ending;
    } catch (error) {
      this.#ended = false;
      throw error;
    }
    if (this.#isWatched) lostPermits.unregister(this);
  }

  /** @internal Writes it for the next call. */
  _put(): void {
    putWords(this.#words);
  }

  /** @internal Returns the properties that `console.log` prints. */
  _shown(): object {
    return { limiter: this.#limiter.name, key: this.#key === null ? null : String(this.#key), started: this.started, ended: this.#ended };
  }

  /** @internal Returns whether this limiter returned it. */
  _isOf(limiter: Limiter): boolean {
    return this.#limiter === limiter;
  }

  /** @internal Marks it as used: a waiter, or the permit that replaced it, has its units. */
  _useUp(): void {
    this.#ended = true;
  }

  /** @internal Returns the permit that the last call exchanged it for: itself, if it was presented too early. */
  _presented(limiter: Limiter, started: boolean): Permit {
    const after = numbers[Num.retryAfter]! / 1e3;
    let permit: Permit = this;
    if (started || this.#ended || !isTaken(this.#words)) {
      this._useUp();
      permit = new Permit(limiter, this.#key, started);
    }
    return permit._waits(after);
  }

  /** @internal Notes the wait that a present returned, which matters if the place is ready. */
  _waits(after: number): this {
    this.#again = this.started || this.#readyIn() > 0 ? 0 : after;
    return this;
  }
}
/** Checks how many units a start used. */
function settling(actual: unknown): { how: Op; units: number; parts: string } {
  if (!isParts(actual)) return { how: Op.settle, units: whole("actual", actual), parts: "" };
  if (Object.keys(actual).length === 0) return { how: Op.complete, units: 1, parts: "" };
  return { how: Op.settleParts, units: 1, parts: settlementOf(actual as PartUnits) };
}

brand({ Permit }, native);
shown(Permit, (permit) => permit._shown());
