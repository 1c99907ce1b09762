// The errors of the main entry that can happen here, with the same names, codes and numbers.

/** An error of a limiter or store. A denial is not an error: it is `null` or a `Decision`. */
export class LimitError extends Error {
  /** The error's stable name, the same in every language: "weight_exceeds_capacity", "kind_mismatch", … */
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
/** The store could not be used: it failed, or it is damaged. */
export class StoreError extends LimitError {}
/** The store was closed by `Store.close`. */
export class StoreClosed extends LimitError {}

/** `acquire` got no permit before its timeout. It holds no units. */
export class TimeoutError extends LimitError {
  /** The time in ms after which a retry may succeed. */
  readonly retryAfter: number;

  constructor(message: string, retryAfter: number) {
    super(message, "acquire_timeout", -18);
    this.retryAfter = retryAfter;
  }
}

const classes = { LimitError, InvalidArgument, WeightExceedsCapacity, UnknownLimit, StoreError, StoreClosed, TimeoutError };
for (const [name, of] of Object.entries(classes)) {
  Object.defineProperty(of.prototype, "name", { value: name, configurable: true, writable: true });
}

const byCode: Record<string, typeof LimitError> = {
  invalid_argument: InvalidArgument,
  weight_exceeds_capacity: WeightExceedsCapacity,
  unknown_limit: UnknownLimit,
  store_failure: StoreError,
  damaged: StoreError,
  store_closed: StoreClosed,
};

/** An error as the engine tells it. */
export interface PlainError {
  readonly message: string;
  readonly code: string;
  readonly number: number;
}

/** Makes the error of its parts. */
export const errorOf = ({ message, code, number }: PlainError): LimitError => new (byCode[code] ?? LimitError)(message, code, number);

/** Makes an error with the parameter, the value and what was expected. */
export function invalid(parameter: string, value: unknown, expected: string): InvalidArgument {
  let given = typeof value === "function" ? "a function" : "an object";
  if (typeof value === "string") given = JSON.stringify(value.slice(0, 64));
  else if (value === null || !["object", "function"].includes(typeof value)) given = String(value);
  return new InvalidArgument(`${parameter} is ${given}: expected ${expected}`, "invalid_argument", -1);
}
