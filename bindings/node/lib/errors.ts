// Errors. The core's errors keep their stable names and numbers; the classes are for `instanceof`.

import { types } from "node:util";
import { brand } from "./brand.js";

/** An error of a limiter or store. A denial is not an error: it is `null` or a `Decision`. */
export class LimitError extends Error {
  /** The error's stable name, the same in every language: "weight_exceeds_capacity", "store_timeout", … */
  readonly code: string;
  /** The error's stable number, the same in every language; negative. */
  readonly number: number;

  constructor(message: string, code: string, number: number) {
    super(message);
    this.code = code;
    this.number = number;
  }
}

/** A parameter has the wrong type or is outside its range. Nothing was created or changed. */
export class InvalidArgument extends LimitError {}
/** A start weighs more units than the limit can ever grant. */
export class WeightExceedsCapacity extends LimitError {}
/** No limit is declared under this name; the message lists those that are. */
export class UnknownLimit extends LimitError {}
/** The store could not be used: it is not a store, it failed, or it is damaged, full, or busy or silent for too long. */
export class StoreError extends LimitError {}
/** The store was closed by `Store.close`. Make another `Store` of its address to use it again. */
export class StoreClosed extends LimitError {}
/** The lease has ended: another start may hold its units. */
export class LeaseLost extends LimitError {}

/**
 * A synchronous call would have to ask a server, for which an event loop does not wait. Nothing has changed. The message names
 * the call that returns a promise.
 */
export class SyncUnsupported extends LimitError {}

/** `acquire` got no permit before its timeout. It holds no units. The stack has the lines that await it. */
export class TimeoutError extends LimitError {
  /** The time in ms after which a retry may succeed. */
  readonly retryAfter: number;

  constructor(message: string, retryAfter: number) {
    super(message, "acquire_timeout", -18);
    this.retryAfter = retryAfter;
  }
}

/** The limiter was stopped: its waiters and all later starts reject. They hold no units. */
export class Stopped extends LimitError {
  constructor(message: string) {
    super(message, "stopped", -19);
  }
}

/** As many waiters wait as `maxWaiting` allows. The call holds no units. */
export class TooManyWaiters extends LimitError {
  constructor(message: string) {
    super(message, "too_many_waiters", -20);
  }
}

const classes = {
  LimitError,
  InvalidArgument,
  WeightExceedsCapacity,
  UnknownLimit,
  StoreError,
  StoreClosed,
  LeaseLost,
  SyncUnsupported,
  Stopped,
  TimeoutError,
  TooManyWaiters,
};
for (const [name, of] of Object.entries(classes)) {
  Object.defineProperty(of.prototype, "name", { value: name, configurable: true, writable: true });
}
brand(classes);

const byCode: Record<string, typeof LimitError> = {
  invalid_argument: InvalidArgument,
  weight_exceeds_capacity: WeightExceedsCapacity,
  unknown_limit: UnknownLimit,
  not_a_store: StoreError,
  unsupported_version: StoreError,
  unsupported_file_system: StoreError,
  store_failure: StoreError,
  store_timeout: StoreError,
  store_full: StoreError,
  damaged: StoreError,
  store_closed: StoreClosed,
  lease_lost: LeaseLost,
  would_wait: SyncUnsupported,
};

/** @internal The error of a limiter that a caller wrote, on its way through the native half. */
export class Passed {
  constructor(readonly error: unknown) {}
}
brand({ Passed });

/** Returns the message of an error from any realm: Node makes the errors of the native half in its first realm. */
export const messageOf = (error: unknown): string => (types.isNativeError(error) ? error.message : "");

/** Makes a `LimitError` of an error of the native half, "NUMBER CODE MESSAGE". Returns any other error as it is. */
export function thrown(error: unknown): unknown {
  if (error instanceof Passed) return error.error;
  // Without a regular expression: compiling one ends the process if the stack has just overflowed.
  const message = messageOf(error);
  const [number = "", code = ""] = message.startsWith("-") ? message.split(" ", 2) : [];
  if (!Number.isInteger(Number(number)) || code === "") return error;
  return new (byCode[code] ?? LimitError)(message.slice(number.length + code.length + 2), code, Number(number));
}

/** Makes the error of a call that must not wait. For a server, its message names the call to use `instead`. */
export function refused(error: unknown, name: string, instead: string): unknown {
  const reason = thrown(error);
  if (!(reason instanceof SyncUnsupported)) return reason;
  const why = `${name} would have to ask a server, for which an event loop does not wait: await ${instead}`;
  return new SyncUnsupported(why, reason.code, reason.number);
}

/** Calls the native half, and throws errors of this package. */
export function make<T>(how: () => T): T {
  try {
    return how();
  } catch (error) {
    throw thrown(error);
  }
}

/** Makes an error with the parameter, the value and what was expected. `isDescription`: the value is a description. */
export function invalid(parameter: string, value: unknown, expected: string, isDescription = false): InvalidArgument {
  const given = isDescription ? String(value) : describe(value);
  return new InvalidArgument(`${parameter} is ${given}: expected ${expected}`, "invalid_argument", -1);
}

function describe(value: unknown): string {
  switch (typeof value) {
    case "string":
      return JSON.stringify(value.length > 64 ? `${value.slice(0, 64)}…` : value);
    case "bigint":
      return `${value}n`;
    case "function":
      return "a function";
    case "object":
      if (value === null) return "null";
      if (Array.isArray(value)) return "an array";
      return types.isDate(value) ? `the date ${Number.isNaN(value.getTime()) ? "NaN" : value.toISOString()}` : "an object";
    default:
      return String(value);
  }
}
