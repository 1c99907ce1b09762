// Limiters that callers write, as children of a composite.

import { types } from "node:util";
import { LimitError, Passed, invalid, make, messageOf } from "./errors.js";
import { type Duration, milliseconds, unicode } from "./input.js";
import { Limiter } from "./limiter.js";
import { Question } from "./layout.js";
import { type Ask, type Closure, native, shared } from "./native.js";

/**
 * A limiter that you write: an object that a `CompositeLimiter` takes as a child. It is called in the middle of decisions, so its
 * methods return their results, never promises. A key is "" for none, a weight at least 1. An error that it throws reaches the
 * caller, and the other children are not charged.
 */
export interface CustomLimiter {
  /** The name in `Decision.deniedBy`. Default: "custom". */
  readonly name?: string | undefined;
  /** Whether all processes share its limit. Default: false. See `toWorkglow`. */
  readonly isShared?: boolean | undefined;
  /**
   * Decides and records in one step. Returns `null` to deny; any other value is a token, which is passed back when the start
   * ends.
   */
  tryAcquire(key: string, weight: number): unknown;
  /** Returns the time until such a start would be admitted; 0 for now. Records nothing. */
  retryAfter(key: string, weight: number): Duration;
  /** Undoes a start: the job never ran, or another child denied. */
  cancel(token: unknown): void;
  /** Completes a start: the job has ended. */
  complete?(token: unknown): void;
  /** Completes a start with its actual units. Default: calls `complete`. */
  settle?(token: unknown, actual: number): void;
  /** Sets a gate: no start for this time; with the key "", for all keys. */
  pause?(ms: number, key: string): void;
  /** Resets a key to its initial state; with the key "", all keys. */
  clear?(key: string): void;
  /** Records a start without a decision. */
  recordJobStart?(key: string): void;
  /** Records the end of a job that started without a decision. */
  recordJobCompletion?(key: string): void;
}

/**
 * An object with the six methods of Workglow's `ILimiter`, which return their results instead of promises. As a child of a
 * `CompositeLimiter` it counts starts and ignores their weight; a cancelled start counts as completed.
 */
export interface SixMethods {
  /** The name in `Decision.deniedBy`. Default: "custom". */
  readonly name?: string | undefined;
  /** Returns whether a start would be admitted now. */
  canProceed(key?: string): boolean;
  /** Records a start. */
  recordJobStart(key?: string): void;
  /** Records the end of a job. */
  recordJobCompletion(key?: string): void;
  /** Returns when a start would be admitted. */
  getNextAvailableTime(key?: string): Date;
  /** Sets a gate: no start before `date`. */
  setNextAvailableTime(date: Date, key?: string): void;
  /** Resets the limiter to its initial state. */
  clear(key?: string): void;
}

const SIX = ["canProceed", "recordJobStart", "recordJobCompletion", "getNextAvailableTime", "setNextAvailableTime", "clear"];
const CUSTOM = ["tryAcquire", "retryAfter", "cancel"];
const OPTIONAL = ["complete", "settle", "pause", "clear", "recordJobStart", "recordJobCompletion"];

/** The wait in ms for a limiter that denies without a time. */
const LOOK_AGAIN = 10;

/** @internal Makes a `Limiter` of a child of any kind. */
export function limiterOf(child: unknown): Limiter {
  if (child instanceof Limiter) return child;
  const object = (typeof child === "object" || typeof child === "function" ? (child ?? {}) : {}) as Record<string, unknown>;
  const lacks = (methods: string[]) => methods.find((name) => typeof object[name] !== "function");
  const isSix = lacks(CUSTOM) !== undefined && lacks(SIX) === undefined;
  // This check is first because Workglow's own limiters fail a later one, too.
  for (const name of [...CUSTOM, ...OPTIONAL, ...SIX]) {
    if (object[name]?.constructor?.name === "AsyncFunction") {
      const given = `an object whose ${name}() returns a promise`;
      throw invalid("limiter", given, "methods that return their results: they are called in the middle of a decision", true);
    }
  }
  const missing = isSix ? undefined : lacks(CUSTOM);
  if (missing !== undefined) {
    const isObject = child === object;
    const given = isObject ? `an object without ${missing}()` : child;
    const expected = "a limiter of this package, a CustomLimiter, or an object with Workglow's six methods";
    throw invalid("limiter", given, expected, isObject);
  }
  const name = object.name === undefined || typeof child === "function" ? "custom" : unicode("name", object.name);
  return new OwnLimiter(name, isSix ? ofSixMethods(name, child as SixMethods) : (child as CustomLimiter));
}

/** @internal Wraps a closure to throw the error of a child instead of the native half's error for it. */
export const passing = (closure: Closure): Closure => {
  /** The error of a call of a line, which reports it to its waiters in later calls. */
  let kept: unknown;
  return () => {
    const outer = shared.failure;
    shared.failure = undefined;
    try {
      const pending = closure();
      kept = shared.failure ?? kept;
      return pending;
    } catch (error) {
      const isTheirs = messageOf(error).startsWith("-15 ");
      throw isTheirs ? (shared.failure ?? kept ?? error) : error;
    } finally {
      shared.failure = outer;
    }
  };
};

/** A limiter that a caller wrote, with the whole interface. */
class OwnLimiter extends Limiter {
  /** Keeps the function alive: the native half has a weak reference. */
  readonly _asker: Ask;
  readonly #isShared: boolean;

  constructor(name: string, custom: CustomLimiter) {
    const ask = asker(name, custom);
    super(
      make(() => native.customLimiter(name, ask)),
      { holds: true, wrap: passing },
    );
    this._asker = ask;
    this.#isShared = custom.isShared === true;
  }

  override _isNative(): boolean {
    return false;
  }

  /** @internal */
  override _isShared(): boolean {
    return this.#isShared;
  }
}

/** Makes the function that asks a limiter, and keeps its tokens and errors. */
function asker(name: string, custom: CustomLimiter): Ask {
  const tokens = new Map<number, unknown>();
  let next = 0;

  const after = (key: string, weight: number): number => {
    const ms = answered(name, "retryAfter", custom.retryAfter(key, weight));
    try {
      return Math.ceil(milliseconds("retryAfter", ms) * 1e3);
    } catch (error) {
      throw failed(name, (error as Error).message);
    }
  };

  const decide = (key: string, weight: number): number => {
    const token = answered(name, "tryAcquire", custom.tryAcquire(key, weight));
    if (token === null) return -1 - after(key, weight);
    if (token === undefined || token === false) throw failed(name, `tryAcquire() returned ${token}: expected a token, or null`);
    tokens.set(next, token);
    return next++;
  };

  const end = (start: number, how: (token: unknown) => unknown): void => {
    const token = tokens.get(start);
    if (tokens.delete(start)) answered(name, "ending a start", how(token));
  };

  const answer: Ask = (question, text, number) => {
    switch (question) {
      case Question.decide:
        return decide(text, number);
      case Question.peek: {
        const us = after(text, number);
        return us === 0 ? 0 : -1 - us;
      }
      case Question.settle:
        if (custom.settle === undefined) return answer(Question.complete, "", number);
        end(number, (token) => custom.settle!(token, Number(text)));
        return 0;
      case Question.complete:
        end(number, (token) => custom.complete?.(token));
        return 0;
      case Question.cancel:
        end(number, (token) => custom.cancel(token));
        return 0;
      case Question.pause:
        answered(name, "pause", custom.pause?.(number, text));
        return 0;
      case Question.clear:
        answered(name, "clear", custom.clear?.(text));
        return 0;
      case Question.recordJobStart:
        answered(name, "recordJobStart", custom.recordJobStart?.(text));
        return 0;
      case Question.recordJobCompletion:
        answered(name, "recordJobCompletion", custom.recordJobCompletion?.(text));
        return 0;
    }
  };

  return (question, text, number) => {
    try {
      return answer(question, text, number);
    } catch (error) {
      shared.failure ??= new Passed(error);
      return NaN;
    }
  };
}

function failed(name: string, why: string): LimitError {
  return new LimitError(`limiter "${name}" failed: ${why}`, "custom_failure", -15);
}

/** Returns a result, and refuses promises. */
function answered<T>(name: string, method: string, answer: T): T {
  if (typeof (answer as PromiseLike<unknown> | null)?.then !== "function") return answer;
  // Its rejection is not reported: the error below is.
  void Promise.resolve(answer).catch(() => {});
  throw failed(name, `${method} returned a promise: expected a result, as it is called in the middle of a decision`);
}

/** Makes a limiter of Workglow's six methods. The tokens are the keys. */
function ofSixMethods(name: string, six: SixMethods): CustomLimiter {
  const orNone = (key: unknown) => (key === "" ? undefined : (key as string));
  const canProceed = (key: string) => answered(name, "canProceed", six.canProceed(orNone(key)));
  return {
    tryAcquire(key) {
      if (!canProceed(key)) return null;
      answered(name, "recordJobStart", six.recordJobStart(orNone(key)));
      return key;
    },
    retryAfter(key) {
      if (canProceed(key)) return 0;
      const next = answered(name, "getNextAvailableTime", six.getNextAvailableTime(orNone(key)));
      const ms = types.isDate(next) ? next.getTime() - Date.now() : NaN;
      return ms <= 0 ? LOOK_AGAIN : ms;
    },
    cancel: (key) => six.recordJobCompletion(orNone(key)),
    complete: (key) => six.recordJobCompletion(orNone(key)),
    pause: (ms, key) => six.setNextAvailableTime(new Date(Math.ceil(Date.now() + ms)), orNone(key)),
    clear: (key) => six.clear(orNone(key)),
    recordJobStart: (key) => six.recordJobStart(orNone(key)),
    recordJobCompletion: (key) => six.recordJobCompletion(orNone(key)),
  };
}
