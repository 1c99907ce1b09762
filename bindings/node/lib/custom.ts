// Limiters that callers write themselves, as children of a composite.

import { types } from "node:util";
import { LimitError, Passed, invalid, make, messageOf } from "./errors.js";
import { type Duration, milliseconds, unicode } from "./input.js";
import { Limiter } from "./limiter.js";
import { Question } from "./layout.js";
import { type Ask, type Closure, native, shared } from "./native.js";

/**
 * A limiter of your own: an object that a `CompositeLimiter` takes as a child. It is called in the middle of decisions, so
 * each method answers at once, never with a promise. Keys are "" for none, weights at least 1. What it throws reaches
 * the caller, and the other children are charged nothing.
 */
export interface CustomLimiter {
  /** What `Decision.deniedBy` says: "custom" if not given. */
  readonly name?: string | undefined;
  /** Does it hold for all processes, and not only for this one? See `toWorkglow`. */
  readonly isShared?: boolean | undefined;
  /** Decides and records in one act: anything but `null` is a token, which comes back when the start ends. `null`: denied. */
  tryAcquire(key: string, weight: number): unknown;
  /** After how long such a start would be admitted; 0 for at once. Changes nothing. */
  retryAfter(key: string, weight: number): Duration;
  /** The job never ran, or another child denied: as if it had never been admitted. */
  cancel(token: unknown): void;
  /** The job ran. */
  complete?(token: unknown): void;
  /** The job ran, and was worth so many units. If there is none, `complete` is called. */
  settle?(token: unknown, actual: number): void;
  /** A gate: nobody starts for so many ms. With the key "" it binds all keys. */
  pause?(ms: number, key: string): void;
  /** Back to the initial state; with the key "", of all keys. */
  clear?(key: string): void;
  /** A job has started without asking. */
  recordJobStart?(key: string): void;
  /** A job that started without asking has ended. */
  recordJobCompletion?(key: string): void;
}

/**
 * An object with the six methods of Workglow's `ILimiter`, but answering at once instead of with promises. As a child of a
 * `CompositeLimiter` it counts starts, whatever they weigh; one that was cancelled is a completed one to it.
 */
export interface SixMethods {
  /** What `deniedBy` says: its class's name if there is none. */
  readonly name?: string | undefined;
  /** Would a start be admitted now? */
  canProceed(key?: string): boolean;
  /** A job has started. */
  recordJobStart(key?: string): void;
  /** A job has ended. */
  recordJobCompletion(key?: string): void;
  /** When a start would be admitted. */
  getNextAvailableTime(key?: string): Date;
  /** Nobody starts before `date`. */
  setNextAvailableTime(date: Date, key?: string): void;
  /** Back to the initial state. */
  clear(key?: string): void;
}

const SIX = ["canProceed", "recordJobStart", "recordJobCompletion", "getNextAvailableTime", "setNextAvailableTime", "clear"];
const CUSTOM = ["tryAcquire", "retryAfter", "cancel"];
const OPTIONAL = ["complete", "settle", "pause", "clear", "recordJobStart", "recordJobCompletion"];

/** When to look again, in ms, where a limiter says no and not for how long. */
const LOOK_AGAIN = 10;

/** @internal The limiter of a child, whatever was given. */
export function limiterOf(child: unknown): Limiter {
  if (child instanceof Limiter) return child;
  const object = (typeof child === "object" || typeof child === "function" ? (child ?? {}) : {}) as Record<string, unknown>;
  const lacks = (methods: string[]) => methods.find((name) => typeof object[name] !== "function");
  const isSix = lacks(CUSTOM) !== undefined && lacks(SIX) === undefined;
  // First, because Workglow's own limiters have another fault, too.
  for (const name of [...CUSTOM, ...OPTIONAL, ...SIX]) {
    if (object[name]?.constructor?.name === "AsyncFunction") {
      const given = `an object whose ${name}() gives a promise`;
      throw invalid("limiter", given, "one that answers at once: children are asked in the middle of a decision", true);
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

/** @internal A closure that throws what was thrown within it, and not what the native half made of that. */
export const passing = (closure: Closure): Closure => {
  /** What was thrown within a call that went on: a line's, which tells its waiters in the calls that follow. */
  let kept: unknown;
  return () => {
    const outer = shared.failure;
    shared.failure = undefined;
    try {
      const later = closure();
      kept = shared.failure ?? kept;
      return later;
    } catch (error) {
      const isTheirs = messageOf(error).startsWith("-15 ");
      throw isTheirs ? (shared.failure ?? kept ?? error) : error;
    } finally {
      shared.failure = outer;
    }
  };
};

/** A caller's own limiter, with the whole interface. */
class OwnLimiter extends Limiter {
  /** Kept here, as the native half only has a weak reference. */
  readonly _asker: Ask;
  readonly #isShared: boolean;

  constructor(name: string, custom: CustomLimiter) {
    const ask = asker(name, custom);
    super(make(() => native.customLimiter(name, ask)), { holds: true, wrap: passing });
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

/** Asks a limiter: keeps its tokens, and what it throws. */
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
    if (token === undefined || token === false) throw failed(name, `tryAcquire() gave ${token}: expected a token, or null`);
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
        if (custom.settle !== undefined) {
          end(number, (token) => custom.settle!(token, Number(text)));
          return 0;
        }
      // Falls through: it has ended.
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

/** Refuses promises. */
function answered<T>(name: string, method: string, answer: T): T {
  if (typeof (answer as PromiseLike<unknown> | null)?.then !== "function") return answer;
  // Whatever becomes of it, it was told.
  void Promise.resolve(answer).catch(() => {});
  throw failed(name, `${method} gave a promise, and it is asked in the middle of a decision: expected an answer at once`);
}

/** Workglow's six methods as a limiter, whose tokens are the keys. */
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
