// What can go wrong. The core's errors keep their stable names and numbers; the classes are for `instanceof`.

import { types } from "node:util";
import { brand } from "./brand.js";

/** An error of a limiter or store. A denial is none: it is a `null` or a `Decision`. */
export class LimitError extends Error {
  /** The error's stable name, the same in every language: "weight_exceeds_capacity", "store_timeout", … */
  readonly code: string;
  /** Its stable number, the same in every language; negative. */
  readonly number: number;

  constructor(message: string, code: string, number: number) {
    super(message);
    this.code = code;
    this.number = number;
  }
}

/** A parameter is of the wrong type or outside its range. Nothing was created or changed. */
export class InvalidArgument extends LimitError {}
/** More units were asked for at once than the limit could ever grant. */
export class WeightExceedsCapacity extends LimitError {}
/** No limit is declared under this name; the message lists those that are. */
export class UnknownLimit extends LimitError {}
/** The store could not be used: what is there is something else, or it failed, or is damaged, or full, or busy for too long. */
export class StoreError extends LimitError {}
/** The lease has ended: its units may be another start's by now. */
export class LeaseLost extends LimitError {}

/**
 * A call that answers at once would have to ask a server, for which an event loop does not wait. Nothing has changed. The
 * message names the call that gives a promise.
 */
export class SyncUnsupported extends LimitError {}

/** There was no room before the deadline of `acquire`. Nothing is held. */
export class TimeoutError extends LimitError {
  /** In ms: when a retry may succeed. */
  readonly retryAfter: number;

  constructor(message: string, retryAfter: number) {
    super(message, "acquire_timeout", -18);
    this.retryAfter = retryAfter;
  }
}

/** A limiter was stopped: who waited does so no longer, and nobody new is let in. Nothing is held. */
export class Stopped extends LimitError {
  constructor(message: string) {
    super(message, "stopped", -19);
  }
}

/** So many wait already as may. Nothing is held. */
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
  lease_lost: LeaseLost,
  would_wait: SyncUnsupported,
};

/** @internal What a limiter of the caller's own threw, on its way through the native half. */
export class Passed {
  constructor(readonly error: unknown) {}
}
brand({ Passed });

/** The message of an error, whatever realm made it: Node makes those of the native half in its first one. */
export const messageOf = (error: unknown): string => (types.isNativeError(error) ? error.message : "");

/** Makes a `LimitError` of what the native half threw: "NUMBER CODE MESSAGE". Anything else stays what it is. */
export function thrown(error: unknown): unknown {
  if (error instanceof Passed) return error.error;
  // By hand: to compile a regular expression where the stack has just run out ends the process.
  const message = messageOf(error);
  const [number = "", code = ""] = message.startsWith("-") ? message.split(" ", 2) : [];
  if (!Number.isInteger(Number(number)) || code === "") return error;
  return new (byCode[code] ?? LimitError)(message.slice(number.length + code.length + 2), code, Number(number));
}

/** The same of what a call threw that must not wait, which is told `instead` of what it would have to. */
export function refused(error: unknown, name: string, instead: string): unknown {
  const reason = thrown(error);
  if (!(reason instanceof SyncUnsupported)) return reason;
  const why = `${name} would have to ask a server, for which an event loop does not wait: await ${instead}`;
  return new SyncUnsupported(why, reason.code, reason.number);
}

/** Makes something native, with errors of this package. */
export function make<T>(how: () => T): T {
  try {
    return how();
  } catch (error) {
    throw thrown(error);
  }
}

/** An error that names the parameter, the value and what was expected; `told` if the value is a description already. */
export function invalid(parameter: string, value: unknown, expected: string, told = false): InvalidArgument {
  const given = told ? String(value) : describe(value);
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
