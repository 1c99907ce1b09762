// Checks the types of arguments. The engine checks their ranges.

import { invalid } from "./errors.js";

/** A duration: milliseconds, or a text of a number and a unit (us, ms, s, m, h, d, or a word for it), such as "250ms" or "1 minute". */
export type Duration = number | string;

const LONGEST = 366 * 864e5;
const EXPECTED = 'milliseconds, or a text such as "250ms", "1.5s" or "1 minute" (us, ms, s, m, h, d, or a word for it), up to 366 days';

/** Returns a duration in ms. `sizeOf`: of a unit, in ms. */
export function milliseconds(parameter: string, value: unknown, sizeOf: (unit: string) => number): number {
  let ms = value;
  if (typeof value === "string") {
    const [, number, unit] = /^\s*(\d+(?:\.\d+)?)\s*([a-z]{1,12})\s*$/i.exec(value) ?? [];
    ms = unit === undefined ? NaN : Number(number) * sizeOf(unit);
  }
  if (typeof ms === "number" && ms >= 0 && ms <= LONGEST) return ms;
  throw invalid(parameter, value, EXPECTED);
}

/** Checks that a value is a whole number of at least 0, which a `number` counts exactly. */
export function whole(parameter: string, value: unknown): number {
  if (Number.isSafeInteger(value) && (value as number) >= 0) return value as number;
  throw invalid(parameter, value, "a whole number, not negative");
}

/** Checks that a value is a text that UTF-8 can represent. */
export function text(parameter: string, value: unknown): string {
  if (typeof value !== "string") throw invalid(parameter, value, "a string");
  if (!value.isWellFormed()) throw invalid(parameter, value, "well-formed Unicode, without lone surrogates");
  return value;
}

/** Checks a priority. Default: 0. */
export function priorityOf(value: unknown): number {
  if (value === undefined) return 0;
  if (typeof value === "number" && (value | 0) === value) return value;
  throw invalid("priority", value, "a whole number from -2147483648 to 2147483647");
}

/** Checks a signal, if there is one. */
export function signalOf(value: unknown): AbortSignal | undefined {
  if (value === undefined || value instanceof AbortSignal) return value;
  throw invalid("signal", value, "an AbortSignal");
}

/** Checks a key, and returns "" for none. */
export const keyOf = (value: unknown): string => (value === undefined ? "" : text("key", value));

/** Checks that options are an object, and that all of them are known. */
export function options<T extends object>(given: T | undefined, known: readonly string[]): Partial<T> {
  if (given === undefined) return {};
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    throw invalid("options", given, `an object with ${known.join(", ")}`);
  }
  const other = Object.keys(given).find((name) => !known.includes(name));
  if (other !== undefined) throw invalid("options", `with ${other}`, `an object with only ${known.join(", ")}`);
  return given;
}
