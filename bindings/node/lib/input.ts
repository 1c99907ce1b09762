// Checks what callers give: here the types, in the core the ranges.

import { invalid } from "./errors.js";

/** Milliseconds, or a text: a number and one of us, ms, s, m, h, d, such as "250ms", "1.5s", "1m". */
export type Duration = number | string;

const UNITS: Record<string, number> = { us: 1e-3, ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5 };
const LONGEST = 366 * 864e5;

/** A duration in ms. */
export function milliseconds(parameter: string, value: unknown): number {
  let ms = value;
  if (typeof value === "string") {
    const [, number, unit] = /^(\d+(?:\.\d+)?)(us|ms|s|m|h|d)$/.exec(value) ?? [];
    ms = unit === undefined ? NaN : Number(number) * UNITS[unit]!;
  }
  if (typeof ms === "number" && ms >= 0 && ms <= LONGEST) return ms;
  throw invalid(parameter, value, 'milliseconds, or a text such as "250ms", "1.5s" or "1m", up to 366 days');
}

/** A whole number, not negative; its range is the core's to check. */
export function whole(parameter: string, value: unknown): number {
  if (Number.isInteger(value) && (value as number) >= 0) return value as number;
  throw invalid(parameter, value, "a whole number, not negative");
}

/** How many units, 1 if it is not said. */
export const weightOf = (weight: unknown): number => (weight === undefined ? 1 : whole("weight", weight));

/** A number; its range is the core's to check. */
export function real(parameter: string, value: unknown, expected = "a number"): number {
  if (typeof value === "number") return value;
  throw invalid(parameter, value, expected);
}

/** A duration in ms, if there is one. */
export const maybeMilliseconds = (parameter: string, value: unknown): number | undefined =>
  value === undefined ? undefined : milliseconds(parameter, value);

/** A text that survives as UTF-8. */
export function unicode(parameter: string, value: unknown): string {
  if (typeof value !== "string") throw invalid(parameter, value, "a string");
  if (!value.isWellFormed()) throw invalid(parameter, value, "well-formed Unicode, and this has a lone surrogate");
  return value;
}

/** A key, "" for none. */
export function keyOf(value: unknown): string {
  if (value === undefined) return "";
  if (typeof value !== "string") throw invalid("key", value, "a string");
  return value;
}

/** One of some words. */
export function word(parameter: string, value: unknown, words: readonly string[]): string {
  if (words.includes(value as string)) return value as string;
  const quoted = words.map((word) => JSON.stringify(word));
  throw invalid(parameter, value, `${quoted.slice(0, -1).join(", ")} or ${quoted.at(-1)}`);
}

/** Refuses what is no object, and options that are not known: most are typing errors. */
export function options(given: unknown, known: readonly string[], parameter = "options"): void {
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    throw invalid(parameter, given, `an object with ${known.join(", ")}`);
  }
  for (const name in given) {
    if (!known.includes(name)) throw invalid(parameter, `an object with ${name}`, `only ${known.join(", ")}`, true);
  }
}
