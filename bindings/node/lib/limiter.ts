// The interface: what every limiter can be asked.

import { InvalidArgument, invalid } from "./errors.js";
import { type Duration, keyOf, milliseconds, options as checkOptions, whole } from "./input.js";
import { type NativeLimiter, Num, Op, Status, bind, call, deniedBy, native, numbers } from "./native.js";
import { Permit } from "./permit.js";
import { type Request, type Room, Waiter } from "./waiting.js";

/** What a start asks for. */
export interface StartOptions {
  /** One policy, a separate budget per key: at most 1,024 bytes. None is the empty key. */
  key?: string | undefined;
  /** How many units the start takes: 1 if not given. */
  weight?: number | undefined;
}

/** What a waiting start asks for. */
export interface AcquireOptions extends StartOptions {
  /** How long to wait at most; as long as it takes if not given. */
  timeout?: Duration | undefined;
  /** Gives up when it aborts, hands its place back and rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
  /** A place that was taken elsewhere, or its text, to wait with. It has its own key and weight, and is used up. */
  place?: Permit | string | undefined;
}

/** What a place is asked for. */
export interface ReserveOptions extends StartOptions {
  /** How far away it may be at most; however far if not given. */
  maxWait?: Duration | undefined;
  /** How long it is good for from its time on: a fortieth of the window, at most 50 ms, if not given. */
  grace?: Duration | undefined;
}

/** The whole answer to "may this start now, and if not, when?". */
export interface Decision {
  readonly admitted: boolean;
  /**
   * In ms; 0 if admitted. After this long a retry succeeds if nobody else took the room, and one microsecond earlier it
   * fails. For a concurrency limit a suggestion of when to look again.
   */
  readonly retryAfter: number;
  /** In ms: `retryAfter` for callers that requeue; never less. */
  readonly suggestedAfter: number;
  /** In ms: after this long with no further start the limiter is as new. */
  readonly resetAfter: number;
  /** The heaviest start that would be admitted after this; Infinity if there is no limit. */
  readonly remaining: number;
  /** What the limit allows; Infinity if there is none. */
  readonly limit: number;
  /** The name of the limit that said no. */
  readonly deniedBy: string | null;
  /** What the start holds, if it was admitted; always `null` in a `peek`. */
  readonly permit: Permit | null;
}

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
  readonly _holds: boolean = false;
  /** @internal Do its waiters get a place in time that they can come too late for? */
  readonly _givesPlaces: boolean = false;

  /** @internal Are those places so short that timers are too coarse for them? */
  _isPrecise = false;

  /** @internal */
  constructor(made: NativeLimiter) {
    this._native = made;
    this._call = bind(made);
    this.name = native.nameOf(made);
  }

  /** @internal What has to be waited for before the first call, so that it does not block; `null` if nothing. */
  _opening(): Promise<unknown> | null {
    return null;
  }

  /** @internal Where its waiters wait to be woken. */
  _rooms(): readonly Room[] {
    return [];
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
    return call(this._call, Op.attempt, key, weight) === Status.yes ? new Permit(this, key) : null;
  }

  /** The same, answering with the whole decision. */
  decide(options: StartOptions = {}): Decision {
    return this.#decision(Op.decide, options);
  }

  /** The decision that `decide` would give. Records nothing; `weight` may be 0. */
  peek(options: StartOptions = {}): Decision {
    return this.#decision(Op.peek, options);
  }

  #decision(op: Op, options: StartOptions): Decision {
    checkOptions(options, START);
    const key = keyOf(options.key);
    const admitted = call(this._call, op, key, weightOf(options.weight)) === Status.yes;
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
    const maxWait = optional("maxWait", options.maxWait);
    const grace = optional("grace", options.grace);
    numbers[Num.time] = maxWait;
    numbers[Num.grace] = grace;
    return call(this._call, Op.reserve, key, weight) === Status.yes ? new Permit(this, key, false) : null;
  }

  /**
   * Starts with a place, or its text, if its time has come. The permit says whether it `started`. If not, it is the place
   * to present after its `wait`: the same one if this was too early; a fresh one, which ends the old, if it came too
   * late, was used before, or was overtaken by a gate or another limit.
   */
  present(place: Permit | string): Permit {
    this._put("place", place);
    const started = call(this._call, Op.present, "", 1) === Status.yes;
    return place instanceof Permit ? place._presented(this, started) : new Permit(this, "", started);
  }

  /** The permit of a text that `toText` wrote, perhaps in another process: to complete, cancel or settle its start. */
  permit(text: string): Permit {
    if (typeof text !== "string") throw invalid("text", text, "a string");
    this._put("text", text);
    return new Permit(this, "");
  }

  /** @internal Puts a permit where the next call finds it. */
  _put(parameter: string, given: Permit | string): void {
    if (given instanceof Permit) return given._put();
    if (typeof given !== "string") throw invalid(parameter, given, "a Permit or its text");
    try {
      call(this._call, Op.fromText, given, 1);
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

  #ask(op: Op, key: unknown, time?: number): Promise<Status>;
  #ask<T>(op: Op, key: unknown, time: number, read: () => T): Promise<T>;
  async #ask(op: Op, key: unknown, time = 0, read?: () => unknown): Promise<unknown> {
    const checked = keyOf(key);
    await this._opening();
    numbers[Num.time] = time;
    const status = call(this._call, op, checked, 1);
    return read === undefined ? status : read();
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
  return { key: keyOf(key), weight: weightOf(weight), timeout: optional("timeout", timeout), signal, place };
}

/** A duration in ms, -1 for none. */
function optional(parameter: string, duration: Duration | undefined): number {
  return duration === undefined ? -1 : milliseconds(parameter, duration);
}
