// The interface of every limiter.

import { types } from "node:util";
import { Activity } from "./activity.js";
import { brand } from "./brand.js";
import { type StartKey, startKeyOf, startWeightOf } from "./charges.js";
import {
  type AcquireOptions,
  type Decision,
  type Peek,
  type KeyOptions,
  type ReserveOptions,
  type StartOptions,
  type Stats,
  statsOf,
} from "./calls.js";
import type { Found } from "./composite.js";
import { InvalidArgument, Stopped, StoreError, TimeoutError, UnknownLimit, invalid, make, messageOf, refused, thrown } from "./errors.js";
import { type Hook, type HookEvent, listen } from "./hooks.js";
import { type Duration, keyOf, maybeMilliseconds, milliseconds, options as checkOptions, unicode, whole } from "./input.js";
import { Flag, Int, Num, Op, Status } from "./layout.js";
import {
  type Answer,
  type Closure,
  type NativeLimiter,
  ask,
  begin,
  bind,
  call,
  deniedBy,
  finish,
  ints,
  native,
  notifyHooks,
  numbers,
  shared,
  status,
} from "./native.js";
import { oneByOne } from "./one-by-one.js";
import { Permit } from "./permit.js";
import { type Request, requestOf } from "./request.js";
import { shown } from "./shown.js";
import type { Store } from "./store.js";
import { Bell, type Caller, Line } from "./waiting.js";

/** @internal How a limiter is set up. */
export interface LimiterSetup {
  /** The store that holds its limit. */
  readonly store?: Store | undefined;
  /** Whether its permits hold units until they end. */
  readonly holds?: boolean;
  /** Wraps the closure of the native half. */
  readonly wrap?: (closure: Closure) => Closure;
}

const START = ["key", "weight"];
/** The operations that start a job or take a place for one. */
const STARTS = new Set<number>([Op.attempt, Op.decide, Op.join, Op.joinWithPlace, Op.start, Op.reserve, Op.present, Op.recordJobStart]);
const FORECAST = ["key"];
const RESERVE = [...START, "maxWait", "grace"];

/** Decides whether a job may start now, and if not, when. All limiters have these methods. */
export abstract class Limiter {
  /** The limit's name, as in `Decision.deniedBy`. */
  readonly name: string;
  /** @internal The closure that calls it. */
  _call!: Closure;
  /** @internal Whether a permit holds units until it ends. */
  _holds = false;
  readonly #setup: LimiterSetup;
  readonly #store: Store | undefined;
  #native: NativeLimiter | undefined;
  readonly #parts = new Map<string, Limiter>();
  #line: Line | undefined;
  /** Those who have asked for a start and have not been decided, in order. */
  readonly #asked = new Set<() => void>();
  readonly #activity = new Activity();
  #isStopped = false;
  readonly #bells: readonly Bell[];
  #opening: Promise<void> | null = null;
  #isOpen = false;
  /** The latest error of the opening. */
  #notOpened: unknown;
  /** The hooks that were added before the native half was found. */
  #early: { readonly event: HookEvent; readonly hook: number; readonly begin: () => void }[] = [];

  /** @internal Takes the native half, or a name by which the first use finds it. */
  constructor(made: NativeLimiter | string, setup: LimiterSetup = {}) {
    this.#setup = setup;
    const { store } = setup;
    this.#store = store;
    const clock = store?._clock;
    this.#bells = clock === undefined ? [new Bell()] : [new Bell(), clock._bell];
    this.#isOpen = store === undefined || !store._isShared;
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

  /** @internal The number of its line of waiters in this thread. */
  readonly _lineNumber = ++shared.lastLine;

  /** @internal Sets the native half. */
  _bind(made: NativeLimiter): void {
    const { holds, wrap = (closure: Closure) => closure } = this.#setup;
    this.#native = made;
    const call = wrap(bind(made, this._lineNumber));
    const first: Closure = () => {
      if (this._call === first) this._call = call;
      const patient = this._stores().filter((store) => store._isPatient);
      for (const store of patient) store._isPatient = false;
      return patient.length > 0 ? native.patiently(call) : call();
    };
    this._call = first;
    if (this.#isStopped) this.#close();
    this._holds = holds ?? native.holds(made);
    for (const { begin } of this.#early.splice(0)) begin();
  }

  /** Finds the native half. If there is none, the core notifies the store's hooks. */
  #find(): void {
    try {
      this._bind(native.find(this.#store!._native, this.name, this.#store!._isPatient));
    } catch (error) {
      throw this.#notFound(error);
    }
  }

  #notFound(error: unknown): unknown {
    const event = thrown(error) instanceof UnknownLimit ? "unknown_limit" : "store_error";
    const details = { limit: this.name, key: "", wanted: 0, wait: 0, error: messageOf(error) };
    for (const { event: of, hook } of this.#early) if (of === event) shared.hooks.get(hook)?.({ hook, ...details });
    return error;
  }

  /** @internal */
  get _native(): NativeLimiter {
    if (this.#native === undefined) make(() => this.#find());
    return this.#native!;
  }

  /** The parts of a composite by their names, each of which is a limiter; none of other limiters. Opens the store. */
  get parts(): Readonly<Record<string, Limiter>> {
    return Object.fromEntries(make(() => native.partNames(this._native)).map((name) => [name, this._part(name)]));
  }

  /** @internal Returns their names; `null` while it is not known what its name stands for. */
  _partNames(): readonly string[] | null {
    return this.#native === undefined ? null : native.partNames(this.#native);
  }

  /** @internal Returns one of its parts. */
  _part(name: string): Limiter {
    let part = this.#parts.get(name);
    if (part === undefined) this.#parts.set(name, (part = new Part(this, native.partOf(this._native, name)!, this.#setup.store)));
    return part;
  }

  /** @internal Returns the stores that hold its limits. */
  _stores(): readonly Store[] {
    return this.#store === undefined ? [] : [this.#store];
  }

  /** @internal Returns the properties that `console.log` prints. */
  _shown(): object {
    return { name: this.name, ...(this.#store && { store: this.#store.url }), ...(this.#isStopped && { stopped: true }) };
  }

  /** @internal Returns whether it counts starts over less than `time` ms of the real clock. */
  _countsWithin(time: number): boolean {
    try {
      // Not through the property `window`: the waiter that needs this gets the error, and hooks are notified once.
      const counts = call(this._call, Op.window, "", 1) === Status.yes && numbers[Num.retryAfter]! / 1e3 < time;
      return counts && !this._isManual();
    } catch {
      return false;
    }
  }

  /** @internal Returns whether processes share its state. */
  _isShared(): boolean {
    return this.#store?._isShared ?? false;
  }

  /** @internal Returns the bells that wake its waiters. */
  _bells(): readonly Bell[] {
    return this.#bells;
  }

  /** @internal The number that no other limiter of this process has. */
  get _number(): number {
    return native.numberOf(this._native);
  }

  /** @internal Returns the limiter with this number among those that it consists of; `null` if there is none. */
  _find(_number: number): Found | null {
    return null;
  }

  /** @internal Opens the store before the first call, so that the call does not block; `null` if it is open. */
  _opening(): Promise<unknown> | null {
    if (this.#isOpen) return null;
    if (this.#store !== undefined) this.#store._isPatient = false;
    this.#opening ??= this.#open().then(
      () => void (this.#isOpen = true),
      (error) => {
        notifyHooks();
        this.#opening = null; // The next use tries again.
        const reason = thrown(error);
        // The decision that follows fails too, and returns what `onError` says.
        const answers = this.#native !== undefined && this.#store?._alwaysAnswers;
        if (answers && reason instanceof StoreError) return;
        this.#notOpened = reason;
        throw reason;
      },
    );
    return this.#opening;
  }

  /** @internal Counts a decision that was not made because its opening failed with this error, and returns the error. */
  _notDecided(error: unknown): unknown {
    if (error === this.#notOpened && error instanceof StoreError) native.countFailure(this.#store!._native);
    return error;
  }

  async #open(): Promise<void> {
    if (this.#native !== undefined) return native.openLimiter(this.#native);
    try {
      this._bind(await native.findLater(this.#store!._native, this.name));
    } catch (error) {
      throw this.#notFound(error);
    }
  }

  /** @internal Calls the native half. `call` says what must not happen before the result is read. */
  _do(op: number, key: StartKey, weight: number): Status {
    return call(this._call, op, this.#text(key), weight);
  }

  /** @internal Calls the native half, on the thread pool if the call would have to wait for the store: see `ask`. */
  _ask(op: Op, key: StartKey, weight: number, done: (answer: Answer) => void): void {
    if (!this._isNative()) return done(() => this._do(op | Flag.here, key, weight));
    let text: string;
    try {
      text = this.#text(key);
    } catch (error) {
      return done(() => {
        throw error;
      });
    }
    ask(this._call, op, text, weight, done);
  }

  /** Returns a key for the core. */
  #text(key: StartKey): string {
    return typeof key === "string" ? key : make(() => key.textFor(this._native));
  }

  /** @internal Returns whether a test moves its clock, so that no time passes while a store answers. */
  _isManual(): boolean {
    return this._stores().some((store) => store._clock !== undefined);
  }

  /** @internal Returns whether none of its limits is written in JavaScript. The thread pool can call only such limiters. */
  _isNative(): boolean {
    return true;
  }

  /** Declares or finds the limit in its store now instead of at the first use. */
  async open(): Promise<void> {
    await this._opening();
  }

  /**
   * Calls `hook` for each such event of this limiter, soon after the decision. Returns a function that removes the hook.
   * `Store.on` listens to all limiters of a store.
   */
  on(event: HookEvent, hook: Hook): () => void {
    let listening = 0;
    const begin = (number: number): void => {
      const start = () => void (listening = native.listen(this.#native!, event, shared.events, number));
      if (this.#native === undefined) this.#early.push({ event, hook: number, begin: start });
      else start();
    };
    return listen(event, hook, begin, () => {
      if (this.#native !== undefined) native.unlisten(this.#native, listening);
    });
  }

  /**
   * Decides and records in one step: returns a permit, or `null` if the start is denied. A denial changes nothing. Where a
   * server decides, this and every other synchronous call throws `SyncUnsupported`.
   */
  tryAcquire(options?: StartOptions): Permit | null {
    let key: StartKey = "";
    let weight = 1;
    if (options !== undefined) {
      checkOptions(options, START);
      key = startKeyOf(options.key, options.weight);
      weight = startWeightOf(options.weight);
    }
    if (this.#asked.size > 0) this.#startAsked();
    return this._do(Op.attempt, key, weight) === Status.yes ? new Permit(this, key) : null;
  }

  /** Does the same as `tryAcquire`, which waits for the store for at most 40 ms, without blocking the event loop. */
  async tryAcquireAsync(options: StartOptions = {}): Promise<Permit | null> {
    checkOptions(options, START);
    const key = startKeyOf(options.key, options.weight);
    const weight = startWeightOf(options.weight);
    this.#startAsked();
    return this.#ask(Op.attempt, key, weight, (status) => (status === Status.yes ? new Permit(this, key) : null));
  }

  /** Decides and records in one step, and returns the whole decision. */
  decide(options: StartOptions = {}): Decision {
    checkOptions(options, START);
    const key = startKeyOf(options.key, options.weight);
    const weight = startWeightOf(options.weight);
    this.#startAsked();
    return this.#decision(key, this._do(Op.decide, key, weight));
  }

  /** Does the same as `decide`, which waits for the store for at most 40 ms, without blocking the event loop. */
  async decideAsync(options: StartOptions = {}): Promise<Decision> {
    checkOptions(options, START);
    const key = startKeyOf(options.key, options.weight);
    const weight = startWeightOf(options.weight);
    this.#startAsked();
    return this.#ask(Op.decide, key, weight, (status) => this.#decision(key, status));
  }

  /** Returns the decision that `decide` would return, and records nothing. `weight` may be 0. */
  peek(options: StartOptions = {}): Peek {
    checkOptions(options, START);
    const key = startKeyOf(options.key, options.weight);
    return this.#peeked(this._do(Op.peek, key, startWeightOf(options.weight)));
  }

  /** Does the same as `peek` without blocking the event loop. */
  async peekAsync(options: StartOptions = {}): Promise<Peek> {
    checkOptions(options, START);
    const key = startKeyOf(options.key, options.weight);
    const weight = startWeightOf(options.weight);
    return this.#ask(Op.peek, key, weight, (status) => this.#peeked(status));
  }

  /** @internal Charges at most this many units that others have spent elsewhere, and leaves so many. Returns how many it has charged. */
  async _chargeOthers(key: string, units: number, leaving: number): Promise<number> {
    return this.#ask(Op.chargeOthers, key, units, () => numbers[Num.remaining]!, leaving);
  }

  /**
   * Returns in how many ms this many more starts will have begun, each of one unit, after the starts that are counted and the
   * first waiters that come before; `null` if nobody knows, because a start has to end before. Records nothing. The time is exact
   * for a rate with one window, a delay and a bucket where nobody waits, and otherwise a lower bound.
   */
  forecast(starts: number, options: Pick<StartOptions, "key"> = {}): number | null {
    checkOptions(options, FORECAST);
    return this.#after(this._do(Op.forecast, startKeyOf(options.key, undefined), whole("starts", starts)));
  }

  /** Does the same as `forecast` without blocking the event loop. */
  async forecastAsync(starts: number, options: Pick<StartOptions, "key"> = {}): Promise<number | null> {
    checkOptions(options, FORECAST);
    const key = startKeyOf(options.key, undefined);
    return this.#ask(Op.forecast, key, whole("starts", starts), (status) => this.#after(status));
  }

  #after(status: Status): number | null {
    return status === Status.yes ? numbers[Num.retryAfter]! / 1e3 : null;
  }

  #decision(key: StartKey, status: Status): Decision {
    const peek = this.#peeked(status);
    return peek.admitted ? { ...peek, permit: new Permit(this, key) } : peek;
  }

  #peeked(status: Status): Peek {
    const decided = {
      retryAfter: numbers[Num.retryAfter]! / 1e3,
      suggestedAfter: numbers[Num.suggestedAfter]! / 1e3,
      resetAfter: numbers[Num.resetAfter]! / 1e3,
      remaining: numbers[Num.remaining]!,
      limit: numbers[Num.limit]!,
      permit: null,
    };
    if (status === Status.yes) return { admitted: true, deniedBy: null, ...decided };
    return { admitted: false, deniedBy: deniedBy(this.name), ...decided };
  }

  /**
   * Waits for a permit. Rejects with a `TimeoutError` if there is none before the timeout: immediately, if that is known
   * immediately. A rate limit serves its waiters in the order of their calls. A waiter that gives up or times out holds no
   * units.
   */
  acquire(options?: AcquireOptions): Promise<Permit> {
    // Not an async function, whose caller would go on some microtasks later.
    return new Promise((resolve, reject) => {
      const request = requestOf(options);
      this.#activity.begin();
      const caller: Caller = {
        resolve: (permit) => {
          this.#activity.end();
          resolve(permit);
        },
        reject: (reason) => {
          this.#activity.end();
          if (reason instanceof TimeoutError) resolve(withCallers(reason));
          else reject(reason);
        },
      };
      const start = (): void => {
        if (this.#asked.delete(start)) this.#start(request, caller);
      };
      this.#asked.add(start);
      if (request.place === undefined) oneByOne(start);
      else this.#startAsked(); // It is known when it may start.
    });
  }

  /** Lets those who have asked already start, or wait, before a later caller takes units. */
  #startAsked(): void {
    for (const start of this.#asked) start();
  }

  #start(request: Request, caller: Caller): void {
    try {
      const permit = this.#startAtOnce(request);
      if (permit !== null) return caller.resolve(permit);
      const line = (this.#line ??= new Line(this));
      this.#activity.join(this.name, request.key, request.maxWaiting);
      line.acquire(request, {
        resolve: (permit) => {
          this.#activity.leave(request.key);
          caller.resolve(permit);
        },
        reject: (reason) => {
          this.#activity.leave(request.key);
          caller.reject(reason);
        },
      });
    } catch (error) {
      caller.reject(error);
    }
  }

  /** Returns a permit if units are free and the line is empty. */
  #startAtOnce({ key, weight, grace, signal, place }: Request): Permit | null {
    if (place !== undefined || signal?.aborted || !(this.#line?.isIdle ?? true)) return null;
    if (this._opening() !== null || !this._isNative()) return null;
    numbers[Num.grace] = grace;
    return this._do(Op.start | Flag.later, key, weight) === Status.yes ? new Permit(this, key) : null;
  }

  /** Waits for a permit, runs `fn`, and completes the permit when `fn` returns or throws. */
  async schedule<T>(fn: (permit: Permit) => T | PromiseLike<T>, options?: AcquireOptions): Promise<T> {
    if (typeof fn !== "function") throw invalid("fn", fn, "a function");
    return this.#activity.run(async () => {
      const permit = await this.acquire(options);
      try {
        return await fn(permit);
      } finally {
        await permit.completeAsync();
      }
    });
  }

  /**
   * Returns a function that waits for a permit before each call of `fn`. `options` may be a function of the arguments, such as
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
   * Resolves when no waiter of this process waits for this limiter object, and no function of `schedule` or `wrap` runs. Permits
   * that were taken in another way do not count.
   */
  async idle(): Promise<void> {
    await this.#activity.idle();
  }

  /**
   * Stops this limiter object: its waiters, and all later starts, reject with `Stopped`. Running functions continue and may
   * complete; this resolves when none of `schedule` and `wrap` runs. The limit itself, and others that share it, are unaffected.
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
    return new Stopped(`limiter "${this.name}" was stopped: it admits no starts`);
  }

  /** Refuses the operations that could start a job. */
  #close(): void {
    const open = this._call;
    this._call = () => {
      if (STARTS.has(ints[Int.operation]! & ~(Flag.later | Flag.here))) throw this.#stopped();
      return open();
    };
  }

  /**
   * Takes a place: a start in the future, or now, that the limit counts from this call on. Returns `null`, and takes nothing, if
   * the place would be further away than `maxWait`. Pass it to `present` or `acquire` when its `wait` is over, or give it back
   * with `cancel()`. Only limits that count starts over time have places: others throw a `LimitError` with code "unsupported".
   */
  reserve(options: ReserveOptions = {}): Permit | null {
    const { key, weight, maxWait, grace } = placeOf(options);
    this.#startAsked();
    numbers[Num.time] = maxWait;
    numbers[Num.grace] = grace;
    return this.#reserved(this._do(Op.reserve, key, weight), key);
  }

  /** Does the same as `reserve`, which waits for the store for at most 40 ms, without blocking the event loop. */
  async reserveAsync(options: ReserveOptions = {}): Promise<Permit | null> {
    const { key, weight, maxWait, grace } = placeOf(options);
    this.#startAsked();
    return this.#ask(Op.reserve, key, weight, (status) => this.#reserved(status, key), maxWait, grace);
  }

  #reserved(status: Status, key: StartKey): Permit | null {
    return status === Status.yes ? new Permit(this, key, false) : null;
  }

  /**
   * Starts with a place, or its text, if it is ready. The returned permit says whether it `started`. If not, it is the place to
   * present after its `wait`: the same place if this was too early; a new one, which replaces the old, if this was too late, or
   * the old one was used before or overtaken by a gate or another limit.
   */
  present(place: Permit | string): Permit {
    this._put("place", place);
    return this.#presented(place, this._do(Op.present, "", 1));
  }

  /** Does the same as `present` without blocking the event loop. */
  async presentAsync(place: Permit | string): Promise<Permit> {
    const put = () => this._put("place", place);
    return this.#ask(Op.present, "", 1, (status) => this.#presented(place, status), 0, 0, put);
  }

  #presented(place: Permit | string, status: Status): Permit {
    const started = status === Status.yes;
    if (place instanceof Permit) return place._presented(this, started);
    const after = numbers[Num.retryAfter]! / 1e3;
    return new Permit(this, null, started)._waits(after);
  }

  /** Returns the permit of a text that `toText` wrote, perhaps in another process, to complete, cancel or settle its start. */
  permit(text: string): Permit {
    if (typeof text !== "string") throw invalid("text", text, "a string");
    this._put("text", text);
    return new Permit(this, null);
  }

  /**
   * Returns the place of such a text, to present it, or to give it back with `cancel()`. That has no effect if a start has used
   * the place.
   */
  place(text: string): Permit {
    if (typeof text !== "string") throw invalid("text", text, "a string");
    this._put("text", text);
    return new Permit(this, null, false);
  }

  /**
   * The shortest time over which starts are counted, in ms; `null` if they are not counted over time. The grace of a place costs
   * the limit a part of it. Opens the store.
   */
  get window(): number | null {
    return this._do(Op.window, "", 1) === Status.yes ? numbers[Num.retryAfter]! / 1e3 : null;
  }

  /** @internal Returns the same without blocking the event loop; `null` also if the limit is not open. */
  async _windowAsync(): Promise<number | null> {
    if (!this.#isOpen) return null;
    return this.#ask(Op.window, "", 1, (status) => (status === Status.yes ? numbers[Num.retryAfter]! / 1e3 : null));
  }

  /** @internal Writes a permit for the next call. */
  _put(parameter: string, given: Permit | string): void {
    if (given instanceof Permit) return given._put();
    if (typeof given !== "string") throw invalid(parameter, given, "a Permit or its text");
    try {
      this._do(Op.fromText, given, 1);
    } catch (error) {
      // The text is too long, not Unicode, or not a permit's.
      throw error instanceof InvalidArgument ? invalid(parameter, given, "the text of a permit or place") : error;
    }
  }

  /** Completes a permit of this limiter: the job has ended. Ending a permit again has no effect. */
  complete(permit: Permit): void {
    if (!(permit instanceof Permit)) throw invalid("permit", permit, "a permit of this limiter");
    permit._end(Op.complete, this);
  }

  /** Returns whether a start of weight 1 would be admitted now. Records nothing. */
  async canProceed(options: KeyOptions = {}): Promise<boolean> {
    return this.#ask(Op.canProceed, keyIn(options), 1, (status) => status === Status.yes);
  }

  /** Records a start even if the limit is full, because the caller has already decided. */
  async recordJobStart(options: KeyOptions = {}): Promise<void> {
    await this.#ask(Op.recordJobStart, keyIn(options), 1, done);
  }

  /** Records the end of a job: of the oldest start without a permit that this process recorded for that key. */
  async recordJobCompletion(options: KeyOptions = {}): Promise<void> {
    const key = keyIn(options);
    await this.#ask(Op.recordJobCompletion, key, 1, done);
    for (const bell of this._bells()) bell.ring(key);
  }

  /** Returns the earliest time at which a start of weight 1 would be admitted, rounded up to the ms. */
  async getNextAvailableTime(options: KeyOptions = {}): Promise<Date> {
    return this.#ask(Op.nextAvailableTime, keyIn(options), 1, () => new Date(numbers[Num.time]!));
  }

  /** Sets a gate: no start before `when`; without a key, for all keys. Gates only move later, except by `clear`. */
  async setNextAvailableTime(when: Date, options: KeyOptions = {}): Promise<void> {
    const ms = types.isDate(when) ? when.getTime() : NaN;
    if (Number.isNaN(ms)) throw invalid("when", when, "a valid Date");
    await this.#ask(Op.setNextAvailableTime, keyIn(options), 1, done, ms);
  }

  /** Sets a gate: no start for this long; without a key, for all keys. */
  async pause(duration: Duration, options: KeyOptions = {}): Promise<void> {
    const ms = milliseconds("duration", duration);
    await this.#ask(Op.pause, keyIn(options), 1, done, ms);
  }

  /** Resets a key to its initial state, gate included; without a key, all keys. */
  async clear(options: KeyOptions = {}): Promise<void> {
    await this.#ask(Op.clear, keyIn(options), 1, done);
    for (const bell of this._bells()) bell.ring();
  }

  /** Returns the counts of a key; without one, of the whole limit. */
  stats(options: KeyOptions = {}): Stats {
    const key = unicode("key", keyIn(options));
    try {
      return statsOf(native.stats(this._native, key));
    } catch (error) {
      throw refused(error, "stats()", "open() before");
    }
  }

  /** Makes a call, on the thread pool if it has to wait for the store. `read` reads the result in the same turn: see `call`. */
  #ask<T>(op: Op, key: StartKey, weight: number, read: (status: Status) => T, time = 0, grace = 0, put?: () => void): T | Promise<T> {
    const ask = (): T | Promise<T> => {
      put?.();
      numbers[Num.time] = time;
      numbers[Num.grace] = grace;
      if (!this._isNative()) return read(this._do(op | Flag.here, key, weight));
      const pending = begin(this._call, op, this.#text(key), weight);
      return pending === undefined ? read(status()) : finish(pending, read);
    };
    const opening = this._opening();
    if (opening === null) return ask();
    return opening.then(ask, (error) => {
      throw this._notDecided(error);
    });
  }
}

/** A part of a limiter that a text has made. */
class Part extends Limiter {
  constructor(
    readonly _whole: Limiter,
    made: NativeLimiter,
    store: Store | undefined,
  ) {
    super(made, { store });
  }

  /** @internal Units that become free wake the waiters of the whole limiter, too. */
  override _bells(): readonly Bell[] {
    return this._whole._bells();
  }
}

/**
 * Rejects with an error whose stack has the lines that await this promise, though it was made in a timer. The engine finds them when a
 * function that they await runs, so no call has to note its lines beforehand.
 */
async function withCallers(error: Error): Promise<never> {
  // The promise that is resolved with this one waits for it after two turns.
  await null;
  await null;
  Error.captureStackTrace(error);
  throw error;
}

/** Reads nothing. */
const done = (): void => {};

/** Checks the options of a call about one key, and returns the key. */
function keyIn(options: KeyOptions): string {
  checkOptions(options, ["key"]);
  return keyOf(options.key);
}

/** Checks the options of a `reserve`. Durations are in ms, -1 for none. */
function placeOf(options: ReserveOptions): { key: StartKey; weight: number; maxWait: number; grace: number } {
  checkOptions(options, RESERVE);
  const key = startKeyOf(options.key, options.weight);
  const weight = startWeightOf(options.weight);
  const maxWait = maybeMilliseconds("maxWait", options.maxWait) ?? -1;
  const grace = maybeMilliseconds("grace", options.grace) ?? -1;
  return { key, weight, maxWait, grace };
}

brand({ Limiter }, native);
shown(Limiter, (limiter) => limiter._shown());
