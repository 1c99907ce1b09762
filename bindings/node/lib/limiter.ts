// The interface: what every limiter can be asked.

import { types } from "node:util";
import { brand } from "./brand.js";
import { type AcquireOptions, type Decision, type ReserveOptions, type StartOptions, type Stats, statsOf } from "./calls.js";
import { Crowd } from "./crowd.js";
import { InvalidArgument, Stopped, StoreError, UnknownLimit, invalid, make, messageOf, refused, thrown } from "./errors.js";
import { type Hook, type HookEvent, listen } from "./hooks.js";
import { type Duration, keyOf, maybeMilliseconds, milliseconds, options as checkOptions, unicode, weightOf } from "./input.js";
import {
  type Answer,
  type Closure,
  HERE,
  Int,
  LATER,
  type NativeLimiter,
  Num,
  Op,
  Status,
  ask,
  begin,
  bind,
  call,
  deniedBy,
  finish,
  ints,
  native,
  numbers,
  shared,
  status,
  tellHooks,
} from "./native.js";
import { Permit } from "./permit.js";
import { type Request, requestOf } from "./request.js";
import { shown } from "./shown.js";
import type { Store } from "./store.js";
import { Bell, Line } from "./waiting.js";

/** @internal Where a limiter lives. */
export interface Home {
  readonly store?: Store | undefined;
  /** Do its permits hold something that must be given back? */
  readonly holds?: boolean;
  /** Stands between the closure and its callers. */
  readonly wrap?: (closure: Closure) => Closure;
}

const START = ["key", "weight"];
/** The calls that start something, or take a place for it. */
const STARTS = new Set<number>([Op.attempt, Op.decide, Op.join, Op.joinWithPlace, Op.start, Op.reserve, Op.present, Op.recordJobStart]);
const RESERVE = [...START, "maxWait", "grace"];

/** "May this start now, and if not, when?" Every limiter answers to these methods. */
export abstract class Limiter {
  /** The limit's name: what `Decision.deniedBy` says. */
  readonly name: string;
  /** @internal The closure that calls it. */
  _call!: Closure;
  /** @internal Does a permit hold something that must be given back? */
  _holds = false;
  readonly #home: Home;
  readonly #store: Store | undefined;
  #native: NativeLimiter | undefined;
  #line: Line | undefined;
  readonly #crowd = new Crowd();
  #isStopped = false;
  readonly #bells: readonly Bell[];
  #opening: Promise<void> | null = null;
  #isOpen = false;
  /** Lets those listen that came before its native half was found. */
  #early: { readonly event: HookEvent; readonly hook: number; readonly begin: () => void }[] = [];

  /** @internal With a name instead of what was made, the first use finds it. */
  constructor(made: NativeLimiter | string, home: Home = {}) {
    this.#home = home;
    this.#store = home.store;
    const clock = home.store?._clock;
    this.#bells = clock === undefined ? [new Bell()] : [new Bell(), clock._bell];
    this.#isOpen = home.store === undefined || !home.store._isShared;
    if (typeof made === "string") {
      this.name = made;
      this._call = () => {
        this.#find();
        return this._call();
      };
    } else {
      this.name = native.nameOf(made);
      this._bind(made);
    }
  }

  /** @internal Takes its native half. */
  _bind(made: NativeLimiter): void {
    const { holds, wrap = (closure: Closure) => closure } = this.#home;
    this.#native = made;
    this._call = wrap(bind(made));
    if (this.#isStopped) this.#close();
    this._holds = holds ?? !native.hasPlaces(made);
    for (const { begin } of this.#early.splice(0)) begin();
  }

  /** Finds its native half. The store's hooks hear from the core that there is none. */
  #find(): void {
    try {
      this._bind(native.find(this.#store!._native, this.name));
    } catch (error) {
      throw this.#notFound(error);
    }
  }

  #notFound(error: unknown): unknown {
    const event = thrown(error) instanceof UnknownLimit ? "unknown_limit" : "store_error";
    const telling = { limit: this.name, key: "", wanted: 1, wait: 0, error: messageOf(error) };
    for (const { event: of, hook } of this.#early) if (of === event) shared.hooks.get(hook)?.({ hook, ...telling });
    return error;
  }

  /** @internal */
  get _native(): NativeLimiter {
    if (this.#native === undefined) make(() => this.#find());
    return this.#native!;
  }

  /** @internal The stores in which it lives. */
  _stores(): readonly Store[] {
    return this.#store === undefined ? [] : [this.#store];
  }

  /** @internal What is printed of it. */
  _shown(): object {
    return { name: this.name, ...(this.#store && { store: this.#store.url }), ...(this.#isStopped && { stopped: true }) };
  }

  /** @internal Does it count over a time this short, in ms, by the real clock? */
  _countsWithin(time: number): boolean {
    try {
      // Not by `window`: who waits for it is told what is wrong, and hooks once.
      const counts = call(this._call, Op.window, "", 1) === Status.yes && numbers[Num.retryAfter]! / 1e3 < time;
      return counts && this._stores().every((store) => store._clock === undefined);
    } catch {
      return false;
    }
  }

  /** @internal Is its state shared between processes? */
  _isShared(): boolean {
    return this.#store?._isShared ?? false;
  }

  /** @internal What wakes those who wait for it. */
  _bells(): readonly Bell[] {
    return this.#bells;
  }

  /** @internal What has to be waited for before the first call, so that it does not block; `null` if nothing. */
  _opening(): Promise<unknown> | null {
    if (this.#isOpen) return null;
    this.#opening ??= this.#open().then(
      () => void (this.#isOpen = true),
      (error) => {
        tellHooks();
        this.#opening = null; // The next use tries again.
        const reason = thrown(error);
        // The decision that follows fails too, and answers as the store was told to.
        const answers = this.#native !== undefined && this.#store?._alwaysAnswers;
        if (!(answers && reason instanceof StoreError)) throw reason;
      },
    );
    return this.#opening;
  }

  async #open(): Promise<void> {
    if (this.#native !== undefined) return native.openLimiter(this.#native);
    try {
      this._bind(await native.findLater(this.#store!._native, this.name));
    } catch (error) {
      throw this.#notFound(error);
    }
  }

  /** @internal Calls the native half; `call` says what may not happen before the answer is read. */
  _do(op: number, key: string, weight: number): Status {
    return call(this._call, op, key, weight);
  }

  /** @internal The same; what would have to wait for the store does so on the thread pool: see `ask`. */
  _ask(op: Op, key: string, weight: number, done: (answer: Answer) => void): void {
    if (this._isNative()) ask(this._call, op, key, weight, done);
    else done(() => this._do(op | HERE, key, weight));
  }

  /** @internal Is it without limiters that are written in JavaScript? The thread pool can call those only. */
  _isNative(): boolean {
    return true;
  }

  /** Declares or finds it in its store now, instead of at its first use. */
  async open(): Promise<void> {
    await this._opening();
  }

  /**
   * Calls `hook` at each such event of this limiter, soon after the decision; what this gives takes it away again.
   * `Store.on` listens to all limiters of a store.
   */
  on(event: HookEvent, hook: Hook): () => void {
    let listening = 0;
    const begin = (number: number): void => {
      const start = () => void (listening = native.listen(this.#native!, event, shared.told, number));
      if (this.#native === undefined) this.#early.push({ event, hook: number, begin: start });
      else start();
    };
    return listen(event, hook, begin, () => {
      if (this.#native !== undefined) native.unlisten(this.#native, listening);
    });
  }

  /**
   * Decides and records in one act: a permit, or `null`. A denial changes nothing. Where a server decides, this and all that
   * answers at once throws `SyncUnsupported`.
   */
  tryAcquire(options?: StartOptions): Permit | null {
    let key = "";
    let weight = 1;
    if (options !== undefined) {
      checkOptions(options, START);
      key = keyOf(options.key);
      weight = weightOf(options.weight);
    }
    return call(this._call, Op.attempt, key, weight) === Status.yes ? new Permit(this, key) : null;
  }

  /** The same. What has to wait for the store does so off the event loop, which `tryAcquire` does for 40 ms at most. */
  async tryAcquireAsync(options: StartOptions = {}): Promise<Permit | null> {
    checkOptions(options, START);
    const key = keyOf(options.key);
    const weight = weightOf(options.weight);
    return this.#ask(Op.attempt, key, weight, (status) => (status === Status.yes ? new Permit(this, key) : null));
  }

  /** The same, answering with the whole decision. */
  decide(options: StartOptions = {}): Decision {
    checkOptions(options, START);
    const key = keyOf(options.key);
    return this.#answer(Op.decide, key, this._do(Op.decide, key, weightOf(options.weight)));
  }

  /** The same. What has to wait for the store does so off the event loop, which `decide` does for 40 ms at most. */
  async decideAsync(options: StartOptions = {}): Promise<Decision> {
    checkOptions(options, START);
    const key = keyOf(options.key);
    const weight = weightOf(options.weight);
    return this.#ask(Op.decide, key, weight, (status) => this.#answer(Op.decide, key, status));
  }

  /** The decision that `decide` would give. Records nothing; `weight` may be 0. */
  peek(options: StartOptions = {}): Decision {
    checkOptions(options, START);
    const key = keyOf(options.key);
    return this.#answer(Op.peek, key, this._do(Op.peek, key, weightOf(options.weight)));
  }

  /** The same. What has to wait for the store does so off the event loop. */
  async peekAsync(options: StartOptions = {}): Promise<Decision> {
    checkOptions(options, START);
    const key = keyOf(options.key);
    const weight = weightOf(options.weight);
    return this.#ask(Op.peek, key, weight, (status) => this.#answer(Op.peek, key, status));
  }

  #answer(op: Op, key: string, status: Status): Decision {
    const admitted = status === Status.yes;
    return {
      admitted,
      retryAfter: numbers[Num.retryAfter]! / 1e3,
      suggestedAfter: numbers[Num.suggestedAfter]! / 1e3,
      resetAfter: numbers[Num.resetAfter]! / 1e3,
      remaining: numbers[Num.remaining]!,
      limit: numbers[Num.limit]!,
      deniedBy: admitted ? null : deniedBy(this.name),
      permit: admitted && op === Op.decide ? new Permit(this, key) : null,
    };
  }

  /**
   * Waits for a permit. Rejects with a `TimeoutError` when there is none before the timeout: at once, if that is known
   * at once. Waiters of a rate limit are served in the order in which they asked. Who gives up or runs out of time holds
   * nothing.
   */
  async acquire(options?: AcquireOptions): Promise<Permit> {
    const request = requestOf(options);
    const permit = this.#startAtOnce(request);
    if (permit !== null) return permit;
    const line = (this.#line ??= new Line(this));
    return this.#crowd.wait(this.name, request.key, request.maxWaiting, () => line.acquire(request));
  }

  /** A permit, if there is room and nobody waits. */
  #startAtOnce({ key, weight, grace, signal, place }: Request): Permit | null {
    if (place !== undefined || signal?.aborted || !(this.#line?.isIdle ?? true)) return null;
    if (this._opening() !== null || !this._isNative()) return null;
    numbers[Num.grace] = grace;
    return call(this._call, Op.start | LATER, key, weight) === Status.yes ? new Permit(this, key) : null;
  }

  /** Waits for a permit, runs `fn`, and completes the permit whatever happened. */
  async schedule<T>(fn: (permit: Permit) => T | PromiseLike<T>, options?: AcquireOptions): Promise<T> {
    if (typeof fn !== "function") throw invalid("fn", fn, "a function");
    return this.#crowd.stay(async () => {
      const permit = await this.acquire(options);
      try {
        return await fn(permit);
      } finally {
        await permit.completeAsync();
      }
    });
  }

  /**
   * A function that does what `fn` does, each time when this limiter admits it. `options` may be a function of its arguments, such as
   * `(tenant) => ({ key: tenant })`.
   */
  wrap<This, A extends unknown[], T>(
    fn: (this: This, ...args: A) => T | PromiseLike<T>,
    options?: AcquireOptions | ((...args: A) => AcquireOptions | undefined),
  ): (this: This, ...args: A) => Promise<T> {
    if (typeof fn !== "function") throw invalid("fn", fn, "a function");
    if (typeof options !== "function") requestOf(options);
    const limiter = this;
    const wrapped = async function (this: This, ...args: A): Promise<T> {
      const asked = typeof options === "function" ? options(...args) : options;
      return limiter.schedule(() => fn.apply(this, args), asked);
    };
    return Object.defineProperty(wrapped, "name", { value: fn.name, configurable: true });
  }

  /**
   * Resolves when nobody of this process waits for this limiter object, and no function of `schedule` or `wrap` runs. It does not
   * know of permits that were taken otherwise.
   */
  async idle(): Promise<void> {
    await this.#crowd.empty();
  }

  /**
   * Lets nobody start any more with this limiter object: who waits rejects with `Stopped`, and so does every later start. Those that
   * run go on, and may complete; this resolves when none of `schedule` and `wrap` runs. The limit, and others who share it, go on.
   */
  async stop(): Promise<void> {
    if (!this.#isStopped) {
      this.#isStopped = true;
      if (this.#native !== undefined) this.#close();
      this.#line?.stop(this.#stopped());
    }
    await this.idle();
  }

  #stopped(): Stopped {
    return new Stopped(`limiter "${this.name}" was stopped: it lets nobody start`);
  }

  /** Lets no call through that might start something. */
  #close(): void {
    const open = this._call;
    this._call = () => {
      if (STARTS.has(ints[Int.op]! & 0xff)) throw this.#stopped();
      return open();
    };
  }

  /**
   * Takes a place: a start in the future, or now, which counts from now on. `null`, and nothing taken, if it would be
   * further away than `maxWait`. Present it, or `acquire` with it, when its `wait` is over; give it back with `cancel()`.
   * For limits that are a matter of time: others throw a `LimitError`, "unsupported".
   */
  reserve(options: ReserveOptions = {}): Permit | null {
    const { key, weight, maxWait, grace } = placeOf(options);
    numbers[Num.time] = maxWait;
    numbers[Num.grace] = grace;
    return this.#reserved(this._do(Op.reserve, key, weight), key);
  }

  /** The same. What has to wait for the store does so off the event loop, which `reserve` does for 40 ms at most. */
  async reserveAsync(options: ReserveOptions = {}): Promise<Permit | null> {
    const { key, weight, maxWait, grace } = placeOf(options);
    return this.#ask(Op.reserve, key, weight, (status) => this.#reserved(status, key), maxWait, grace);
  }

  #reserved(status: Status, key: string): Permit | null {
    return status === Status.yes ? new Permit(this, key, false) : null;
  }

  /**
   * Starts with a place, or its text, if its time has come. The permit says whether it `started`. If not, it is the place
   * to present after its `wait`: the same one if this was too early; a fresh one, which ends the old, if it came too
   * late, was used before, or was overtaken by a gate or another limit.
   */
  present(place: Permit | string): Permit {
    this._put("place", place);
    return this.#presented(place, this._do(Op.present, "", 1));
  }

  /** The same. What has to wait for the store does so off the event loop. */
  async presentAsync(place: Permit | string): Promise<Permit> {
    await this._opening();
    const put = () => this._put("place", place);
    return this.#ask(Op.present, "", 1, (status) => this.#presented(place, status), 0, 0, put);
  }

  #presented(place: Permit | string, status: Status): Permit {
    const started = status === Status.yes;
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

  /** @internal The same, off the event loop; `null` also if nobody knows, as it is not open. */
  async _windowAsync(): Promise<number | null> {
    if (!this.#isOpen) return null;
    return this.#ask(Op.window, "", 1, (status) => (status === Status.yes ? numbers[Num.retryAfter]! / 1e3 : null));
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
    return this.#ask(Op.canProceed, keyOf(key), 1, (status) => status === Status.yes);
  }

  /** A job has started: recorded even when the limit is full, because the caller has already decided. */
  async recordJobStart(key?: string): Promise<void> {
    await this.#ask(Op.recordJobStart, keyOf(key), 1, done);
  }

  /** A job has ended: the oldest start without a permit that this process recorded on that key. */
  async recordJobCompletion(key?: string): Promise<void> {
    await this.#ask(Op.recordJobCompletion, keyOf(key), 1, done);
    for (const bell of this._bells()) bell.ring(keyOf(key));
  }

  /** The earliest instant at which a start of weight 1 would be admitted; now, if now. Rounded up to the ms. */
  async getNextAvailableTime(key?: string): Promise<Date> {
    return this.#ask(Op.nextAvailableTime, keyOf(key), 1, () => new Date(numbers[Num.time]!));
  }

  /** Imposes a gate: nobody starts before `date`. Gates only move later, except by `clear`. Without a key it binds all. */
  async setNextAvailableTime(date: Date, key?: string): Promise<void> {
    const ms = types.isDate(date) ? date.getTime() : NaN;
    if (Number.isNaN(ms)) throw invalid("date", date, "a valid Date");
    await this.#ask(Op.setNextAvailableTime, keyOf(key), 1, done, ms);
  }

  /** A gate relative to now. */
  async pause(duration: Duration, key?: string): Promise<void> {
    const ms = milliseconds("duration", duration);
    await this.#ask(Op.pause, keyOf(key), 1, done, ms);
  }

  /** Back to the initial state, gate included. Without a key: of all keys. */
  async clear(key?: string): Promise<void> {
    await this.#ask(Op.clear, keyOf(key), 1, done);
    for (const bell of this._bells()) bell.ring();
  }

  /** What was counted: of a key, or without one of the whole limit. */
  stats(options: { key?: string | undefined } = {}): Stats {
    checkOptions(options, ["key"]);
    const key = unicode("key", keyOf(options.key));
    try {
      return statsOf(native.stats(this._native, key));
    } catch (error) {
      throw refused(error, "stats()", "open() before");
    }
  }

  /** What a call answers: at once, or when the thread pool has done what had to wait for the store. `read` reads the answer in the same turn: see `call`. */
  #ask<T>(
    op: Op,
    key: string,
    weight: number,
    read: (status: Status) => T,
    time = 0,
    grace = 0,
    put?: () => void,
  ): T | Promise<T> {
    const ask = (): T | Promise<T> => {
      put?.();
      numbers[Num.time] = time;
      numbers[Num.grace] = grace;
      if (!this._isNative()) return read(this._do(op | HERE, key, weight));
      const later = begin(this._call, op, key, weight);
      return later === undefined ? read(status()) : finish(later, read);
    };
    const opening = this._opening();
    return opening === null ? ask() : opening.then(ask);
  }
}

/** Reads nothing. */
const done = (): void => {};

/** What a `reserve` asks for, durations in ms and -1 for none. */
function placeOf(options: ReserveOptions): { key: string; weight: number; maxWait: number; grace: number } {
  checkOptions(options, RESERVE);
  const key = keyOf(options.key);
  const weight = weightOf(options.weight);
  const maxWait = maybeMilliseconds("maxWait", options.maxWait) ?? -1;
  const grace = maybeMilliseconds("grace", options.grace) ?? -1;
  return { key, weight, maxWait, grace };
}

brand({ Limiter }, native);
shown(Limiter, (limiter) => limiter._shown());
