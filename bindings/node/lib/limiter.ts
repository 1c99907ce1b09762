// The interface: what every limiter can be asked.

import type { AcquireOptions, Decision, ReserveOptions, StartOptions, Stats } from "./calls.js";
import { InvalidArgument, LimitError, StoreError, invalid, make, thrown } from "./errors.js";
import { type Hook, type HookEvent, Hooks, eventOf, hooks } from "./hooks.js";
import { type Duration, keyOf, maybeMilliseconds, milliseconds, options as checkOptions, unicode, whole } from "./input.js";
import { type NativeLimiter, Num, Op, Status, bind, call, deniedBy, native, numbers } from "./native.js";
import { Permit } from "./permit.js";
import type { Store } from "./store.js";
import { type Request, Room, Waiter } from "./waiting.js";

/** @internal Where a limiter lives. */
export interface Home {
  readonly store?: Store | undefined;
  /** Do its permits hold something that must be given back? */
  readonly holds?: boolean;
  /** Stands between the closure and its callers. */
  readonly wrap?: (closure: () => void) => () => void;
}

type Counts = [number, number, number, number, number, number, number, number, number];

const START = ["key", "weight"];
const ACQUIRE = [...START, "timeout", "signal", "place"];
const RESERVE = [...START, "maxWait", "grace"];

const weightOf = (weight: unknown): number => (weight === undefined ? 1 : whole("weight", weight));

/** "May this start now, and if not, when?" Every limiter answers to these methods. */
export abstract class Limiter {
  /** The limit's name: what `Decision.deniedBy` says. */
  readonly name: string;
  /** @internal */
  readonly _native: NativeLimiter;
  /** @internal The closure that calls it. */
  readonly _call: () => void;
  /** @internal Does a permit hold something that must be given back? */
  readonly _holds: boolean;
  /** @internal */
  readonly _hooks = new Hooks();
  /** @internal Are its places so short that timers are too coarse for them? */
  _isPrecise = false;

  readonly #store: Store | undefined;
  readonly #hasPlaces: boolean;
  readonly #rooms: readonly Room[];
  #opening: Promise<void> | null = null;
  #isOpen = false;

  /** @internal */
  constructor(made: NativeLimiter, { store, holds, wrap = (closure) => closure }: Home = {}) {
    this._native = made;
    this._call = wrap(bind(made));
    this.name = native.nameOf(made);
    this.#store = store;
    const clock = store?._clock;
    this.#hasPlaces = native.hasPlaces(made);
    this._holds = holds ?? !this.#hasPlaces;
    this.#rooms = [...(this._holds ? [new Room()] : []), ...(clock === undefined ? [] : [clock._room])];
    this.#isOpen = store === undefined || !store._isShared;
  }

  /** @internal The stores in which it lives. */
  _stores(): readonly Store[] {
    return this.#store === undefined ? [] : [this.#store];
  }

  /** @internal Do its waiters get a place in time that they can come too late for? */
  _givesPlaces(): boolean {
    return this.#hasPlaces && this.#store?._clock === undefined;
  }

  /** @internal Is this its name, or that of a limit that it consists of? */
  _names(limit: string): boolean {
    return limit === this.name;
  }

  /** @internal Is its state shared between processes? */
  _isShared(): boolean {
    return this.#store?._isShared ?? false;
  }

  /** @internal Where its waiters wait to be woken. */
  _rooms(): readonly Room[] {
    return this.#rooms;
  }

  /** @internal What has to be waited for before the first call, so that it does not block; `null` if nothing. */
  _opening(): Promise<unknown> | null {
    if (this.#isOpen) return null;
    this.#opening ??= native.openLimiter(this._native).then(
      () => void (this.#isOpen = true),
      (error) => {
        this.#opening = null; // The next use tries again.
        const reason = thrown(error);
        // The decision that follows fails too, and answers as the store was told to.
        if (!(this.#store?._alwaysAnswers && reason instanceof StoreError)) throw reason;
      },
    );
    return this.#opening;
  }

  /** @internal Calls the native half; `call` says what may not happen before the answer is read. */
  _do(op: Op, key: string, weight: number): Status {
    return hooks === 0 ? call(this._call, op, key, weight) : this.#overheard(op, key, weight);
  }

  #overheard(op: Op, key: string, weight: number): Status {
    const stores = this._stores();
    const before = stores.map((store) => store.failures);
    let failed: unknown;
    try {
      return call(this._call, op, key, weight);
    } catch (error) {
      failed = error;
      throw error;
    } finally {
      // One that answers whatever happens does not throw.
      const failing = stores.filter((store, i) => store.failures > before[i]!);
      if (failing.length > 0) failed ??= new StoreError("the store failed: see its onError", "store_failure", -9);
      this._failed(failed, key, weight, failing.length > 0 ? failing : stores);
    }
  }

  /** @internal Tells hooks of an error, if it is an event. */
  _failed(error: unknown, key: string, wanted: number, stores: readonly Store[] = this._stores()): void {
    const event = hooks === 0 ? null : eventOf(error);
    if (event === null) return;
    const payload = { limit: this.name, key, wanted, granted: 0, wait: 0, error: error as LimitError };
    for (const { _hooks } of [this, ...stores]) _hooks.tell(event, payload);
  }

  /** @internal Tells hooks that a start has to wait. */
  _throttled(limit: string, key: string, wanted: number, wait: number): void {
    const payload = { limit, key, wanted, granted: 0, wait, error: null };
    this._hooks.tell("throttled", payload);
    this.#store?._hooks.tell("throttled", payload);
  }

  /** @internal The same, by looking who would deny it now. */
  _waits(key: string, weight: number, wait?: number): void {
    try {
      const { deniedBy, retryAfter } = this.peek({ key, weight });
      this._throttled(deniedBy ?? this.name, key, weight, wait ?? retryAfter);
    } catch {
      // Nobody asked for this look: the next decision says what is wrong.
    }
  }

  /**
   * Calls `hook` at each such event of this limiter, soon after the decision; what this gives takes it away again.
   * `Store.on` listens to all limiters of a store.
   */
  on(event: HookEvent, hook: Hook): () => void {
    return this._hooks.on(event, hook);
  }

  /** Decides and records in one act: a permit, or `null`. A denial changes nothing. */
  tryAcquire(options?: StartOptions): Permit | null {
    let key = "";
    let weight = 1;
    if (options !== undefined) {
      checkOptions(options, START);
      key = keyOf(options.key);
      weight = weightOf(options.weight);
    }
    // Who listens wants to know who denied, too.
    if (hooks !== 0) return this.#decision(Op.decide, key, weight).permit;
    return call(this._call, Op.attempt, key, weight) === Status.yes ? new Permit(this, key) : null;
  }

  /** @internal The same, opening the store off the event loop. */
  async _tryAcquire(key: string): Promise<Permit | null> {
    await this.#opened(key);
    return this.tryAcquire({ key });
  }

  /** The same, answering with the whole decision. */
  decide(options: StartOptions = {}): Decision {
    checkOptions(options, START);
    return this.#decision(Op.decide, keyOf(options.key), weightOf(options.weight));
  }

  /** The decision that `decide` would give. Records nothing; `weight` may be 0. */
  peek(options: StartOptions = {}): Decision {
    checkOptions(options, START);
    return this.#decision(Op.peek, keyOf(options.key), weightOf(options.weight));
  }

  #decision(op: Op, key: string, weight: number): Decision {
    const admitted = this._do(op, key, weight) === Status.yes;
    const decision = {
      admitted,
      retryAfter: numbers[Num.retryAfter]! / 1e3,
      suggestedAfter: numbers[Num.suggestedAfter]! / 1e3,
      resetAfter: numbers[Num.resetAfter]! / 1e3,
      remaining: numbers[Num.remaining]!,
      limit: numbers[Num.limit]!,
      deniedBy: admitted ? null : deniedBy(this.name),
      permit: admitted && op === Op.decide ? new Permit(this, key) : null,
    };
    const { deniedBy: limit, retryAfter } = decision;
    if (limit !== null && op === Op.decide && hooks !== 0) this._throttled(limit, key, weight, retryAfter);
    return decision;
  }

  /**
   * Waits for a permit. Rejects with a `TimeoutError` when there is none before the timeout: at once, if that is known
   * at once. Waiters of a rate limit are served in the order in which they asked. Who gives up or runs out of time holds
   * nothing.
   */
  acquire(options: AcquireOptions = {}): Promise<Permit> {
    return new Promise((resolve, reject) => new Waiter(this, requestOf(options), resolve, reject).begin());
  }

  /** Waits for a permit, runs `fn`, and completes the permit whatever happened. */
  async schedule<T>(fn: (permit: Permit) => T | PromiseLike<T>, options?: AcquireOptions): Promise<T> {
    if (typeof fn !== "function") throw invalid("fn", fn, "a function");
    const permit = await this.acquire(options);
    try {
      return await fn(permit);
    } finally {
      permit.complete();
    }
  }

  /**
   * Takes a place: a start in the future, or now, which counts from now on. `null`, and nothing taken, if it would be
   * further away than `maxWait`. Present it, or `acquire` with it, when its `wait` is over; give it back with `cancel()`.
   * For limits that are a matter of time: others throw a `LimitError`, "unsupported".
   */
  reserve(options: ReserveOptions = {}): Permit | null {
    checkOptions(options, RESERVE);
    const key = keyOf(options.key);
    const weight = weightOf(options.weight);
    const maxWait = maybeMilliseconds("maxWait", options.maxWait) ?? -1;
    const grace = maybeMilliseconds("grace", options.grace) ?? -1;
    numbers[Num.time] = maxWait;
    numbers[Num.grace] = grace;
    if (this._do(Op.reserve, key, weight) === Status.yes) return new Permit(this, key, false);
    if (hooks !== 0) this._waits(key, weight);
    return null;
  }

  /**
   * Starts with a place, or its text, if its time has come. The permit says whether it `started`. If not, it is the place
   * to present after its `wait`: the same one if this was too early; a fresh one, which ends the old, if it came too
   * late, was used before, or was overtaken by a gate or another limit.
   */
  present(place: Permit | string): Permit {
    this._put("place", place);
    const started = this._do(Op.present, "", 1) === Status.yes;
    if (place instanceof Permit) return place._presented(this, started);
    const after = numbers[Num.retryAfter]! / 1e3;
    return new Permit(this, "", started)._waits(after);
  }

  /** The permit of a text that `toText` wrote, perhaps in another process: to complete, cancel or settle its start. */
  permit(text: string): Permit {
    if (typeof text !== "string") throw invalid("text", text, "a string");
    this._put("text", text);
    return new Permit(this, "");
  }

  /**
   * The place of such a text: to present it, or to give it back with `cancel()`, which does nothing if somebody has started
   * with it meanwhile.
   */
  place(text: string): Permit {
    if (typeof text !== "string") throw invalid("text", text, "a string");
    this._put("text", text);
    return new Permit(this, "", false);
  }

  /**
   * The shortest time over which starts are counted, in ms; `null` if they are not. The grace of a place costs the limit a
   * part of that. Opens the store.
   */
  get window(): number | null {
    return this._do(Op.window, "", 1) === Status.yes ? numbers[Num.retryAfter]! / 1e3 : null;
  }

  /** @internal Puts a permit where the next call finds it. */
  _put(parameter: string, given: Permit | string): void {
    if (given instanceof Permit) return given._put();
    if (typeof given !== "string") throw invalid(parameter, given, "a Permit or its text");
    try {
      this._do(Op.fromText, given, 1);
    } catch (error) {
      // Whether the text is too long, not Unicode or not a permit's.
      throw error instanceof InvalidArgument ? invalid(parameter, given, "the text of a permit or place") : error;
    }
  }

  /** Ends a permit of this limiter: the job has ended. Ending it again is a no-op. */
  complete(permit: Permit): void {
    if (!(permit instanceof Permit)) throw invalid("permit", permit, "a permit of this limiter");
    permit._end(Op.complete, this);
  }

  /** Would a start of weight 1 be admitted now? Changes nothing. */
  async canProceed(key?: string): Promise<boolean> {
    return (await this.#ask(Op.canProceed, key)) === Status.yes;
  }

  /** A job has started: recorded even when the limit is full, because the caller has already decided. */
  async recordJobStart(key?: string): Promise<void> {
    await this.#ask(Op.recordJobStart, key);
  }

  /** A job has ended: the oldest start without a permit that this process recorded on that key. */
  async recordJobCompletion(key?: string): Promise<void> {
    await this.#ask(Op.recordJobCompletion, key);
    for (const room of this._rooms()) room.ring(keyOf(key));
  }

  /** The earliest instant at which a start of weight 1 would be admitted; now, if now. Rounded up to the ms. */
  async getNextAvailableTime(key?: string): Promise<Date> {
    // What is asked is read in the same turn: see `call`.
    return this.#ask(Op.nextAvailableTime, key, 0, () => new Date(numbers[Num.time]!));
  }

  /** Imposes a gate: nobody starts before `date`. Gates only move later, except by `clear`. Without a key it binds all. */
  async setNextAvailableTime(date: Date, key?: string): Promise<void> {
    const ms = date instanceof Date ? date.getTime() : NaN;
    if (Number.isNaN(ms)) throw invalid("date", date, "a valid Date");
    await this.#ask(Op.setNextAvailableTime, key, ms);
  }

  /** A gate relative to now. */
  async pause(duration: Duration, key?: string): Promise<void> {
    await this.#ask(Op.pause, key, milliseconds("duration", duration));
  }

  /** Back to the initial state, gate included. Without a key: of all keys. */
  async clear(key?: string): Promise<void> {
    await this.#ask(Op.clear, key);
    for (const room of this._rooms()) room.ring();
  }

  /** What was counted: of a key, or without one of the whole limit. */
  stats(options: { key?: string | undefined } = {}): Stats {
    checkOptions(options, ["key"]);
    const key = unicode("key", keyOf(options.key));
    const [admitted, denied, unitsWanted, unitsGranted, waited, waitTime, cancelled, storeErrors, policyChanges] = make(
      () => native.stats(this._native, key) as Counts,
    );
    return { admitted, denied, unitsWanted, unitsGranted, waited, waitTime, cancelled, storeErrors, policyChanges };
  }

  #ask(op: Op, key: unknown, time?: number): Promise<Status>;
  #ask<T>(op: Op, key: unknown, time: number, read: () => T): Promise<T>;
  async #ask(op: Op, key: unknown, time = 0, read?: () => unknown): Promise<unknown> {
    const checked = keyOf(key);
    await this.#opened(checked);
    numbers[Num.time] = time;
    const status = this._do(op, checked, 1);
    return read === undefined ? status : read();
  }

  async #opened(key: string): Promise<void> {
    try {
      await this._opening();
    } catch (error) {
      this._failed(error, key, 1);
      throw error;
    }
  }
}

function requestOf(options: AcquireOptions): Request {
  checkOptions(options, ACQUIRE);
  const { key, weight, timeout, signal, place } = options;
  if (signal !== undefined && !(signal instanceof AbortSignal)) throw invalid("signal", signal, "an AbortSignal");
  if (place !== undefined) {
    for (const [name, value] of Object.entries({ key, weight })) {
      if (value !== undefined) throw invalid(name, value, "none beside a place, which has its own");
    }
    if (!(place instanceof Permit) && typeof place !== "string") throw invalid("place", place, "a Permit or its text");
    if (place instanceof Permit && place.started) {
      throw invalid("place", "a permit that has started", "a place that has not", true);
    }
  }
  return { key: keyOf(key), weight: weightOf(weight), timeout: maybeMilliseconds("timeout", timeout) ?? -1, signal, place };
}
