// Waiting: the core says for how long, timers sleep, and whoever makes room wakes those who wait for it.

import { TimeoutError } from "./errors.js";
import { hooks } from "./hooks.js";
import type { Limiter } from "./limiter.js";
import { Int, Num, Op, Status, ints, numbers } from "./native.js";
import { Permit } from "./permit.js";

/** The longest that a timer of Node's takes. */
const LONGEST_TIMER = 2 ** 31 - 1;

/** How late a timer may well be, in ms. */
const SLACK = 2;

/** What an `acquire` asked for. */
export interface Request {
  readonly key: string;
  readonly weight: number;
  /** In ms; -1: as long as it takes. */
  readonly timeout: number;
  readonly signal: AbortSignal | undefined;
  /** What to wait with instead of a key and a weight. */
  readonly place: Permit | string | undefined;
}

/** Those in this thread who wait for the same thing to happen, in the order in which they came. */
export class Room {
  readonly #waiters = new Map<string, Set<Waiter>>();

  enter(key: string, waiter: Waiter): void {
    const queue = this.#waiters.get(key);
    if (queue === undefined) this.#waiters.set(key, new Set([waiter]));
    else queue.add(waiter);
  }

  leave(key: string, waiter: Waiter): void {
    const queue = this.#waiters.get(key);
    if (queue?.delete(waiter) && queue.size === 0) this.#waiters.delete(key);
  }

  /** There may be room on a key: for the first, and if it was enough, for the next. Without a key: for everyone. */
  ring(key?: string): void {
    if (key === undefined) {
      for (const queue of [...this.#waiters.values()]) for (const waiter of [...queue]) waiter.step();
      return;
    }
    for (const waiter of this.#waiters.get(key) ?? []) if (!waiter.step()) return;
  }
}

/** One `acquire`, from its first look until its promise is settled. */
export class Waiter {
  readonly #limiter: Limiter;
  readonly #request: Request;
  readonly #resolve: (permit: Permit) => void;
  readonly #reject: (reason: unknown) => void;
  #state: "new" | "waiting" | "settled" = "new";
  /** The core's number for it, once it has to wait. */
  #id = 0;
  #timer: NodeJS.Timeout | undefined;
  #immediate: NodeJS.Immediate | undefined;
  /** When the present sleep is over, on the clock of `performance.now()`. */
  #due = Infinity;

  constructor(
    limiter: Limiter,
    request: Request,
    resolve: (permit: Permit) => void,
    reject: (reason: unknown) => void,
  ) {
    this.#limiter = limiter;
    this.#request = request;
    this.#resolve = resolve;
    this.#reject = reject;
  }

  begin(): void {
    const { signal } = this.#request;
    if (signal?.aborted) return this.#reject(signal.reason);
    signal?.addEventListener("abort", this.#abort);
    const opening = this.#limiter._opening();
    if (opening === null) this.step();
    else opening.then(() => this.step(), (error) => this.#cannotOpen(error));
  }

  #cannotOpen(error: unknown): void {
    this.#limiter._failed(error, this.#request.key, this.#request.weight);
    this.#fail(error);
  }

  /** Looks again. True if it need not wait any more. */
  step(): boolean {
    if (this.#state === "settled") return true;
    this.#cancelSleep();
    const { key, weight, timeout, place } = this.#request;
    try {
      const brings = this.#state === "new" && place !== undefined;
      if (brings) this.#limiter._put("place", place);
      numbers[Num.time] = timeout;
      ints[Int.waiter] = this.#id;
      const status = this.#limiter._do(brings ? Op.stepWithPlace : Op.step, key, weight);
      // From its first step on the place is the waiter's.
      if (brings && place instanceof Permit) place._useUp();
      if (status === Status.yes) {
        const permit = new Permit(this.#limiter, key);
        this.#settle();
        this.#resolve(permit);
        return true;
      }
      const after = numbers[Num.retryAfter]! / 1e3;
      if (status === Status.sleep) {
        this.#id = ints[Int.waiter]!;
        this.#tell(after);
        this.#sleep(after);
        return false;
      }
      this.#tell(after);
      const { name } = this.#limiter;
      this.#fail(new TimeoutError(`no room in limit "${name}" within ${timeout} ms: retry after ${after} ms`, after));
    } catch (error) {
      this.#fail(error);
    }
    return true;
  }

  /** Tells hooks that it has to wait, or is denied: once. */
  #tell(after: number): void {
    const { key, weight, place } = this.#request;
    if (hooks !== 0 && this.#state === "new" && place === undefined) this.#limiter._waits(key, weight, after);
  }

  #sleep(ms: number): void {
    if (this.#state === "new") {
      this.#state = "waiting";
      for (const room of this.#limiter._rooms()) room.enter(this.#request.key, this);
    }
    const now = performance.now();
    // A place in a short window is good for less than timers are late. Once one was lost so, waiters watch the clock.
    const late = now - this.#due;
    if (this.#limiter._givesPlaces() && late > 0 && late < SLACK) this.#limiter._isPrecise = true;
    this.#due = now + ms;
    if (!this.#limiter._isPrecise) {
      this.#timer = setTimeout(() => this.step(), Math.min(Math.ceil(ms), LONGEST_TIMER));
    } else if (ms > SLACK) {
      this.#timer = setTimeout(() => this.step(), Math.min(ms - SLACK, LONGEST_TIMER));
    } else {
      this.#immediate = setImmediate(() => this.step());
    }
  }

  #cancelSleep(): void {
    clearTimeout(this.#timer);
    clearImmediate(this.#immediate);
  }

  readonly #abort = (): void => this.#fail(this.#request.signal?.reason);

  #fail(reason: unknown): void {
    if (this.#state === "settled") return;
    if (this.#state === "waiting") {
      ints[Int.waiter] = this.#id;
      this.#limiter._do(Op.giveUp, "", 1);
    }
    this.#settle();
    this.#reject(reason);
  }

  #settle(): void {
    this.#cancelSleep();
    this.#request.signal?.removeEventListener("abort", this.#abort);
    if (this.#state === "waiting") for (const room of this.#limiter._rooms()) room.leave(this.#request.key, this);
    this.#state = "settled";
  }
}
