// Checks the types of arguments. The core checks their ranges.

import { invalid } from "./errors.js";
import { native } from "./native.js";

/** A duration: milliseconds, or a text of a number and a unit (us, ms, s, m, h, d, or a word for it), such as "250ms", "1.5s" or "1 minute". */
export type Duration = number | string;

/** The units of time that were read before, in ms. */
const units = new Map<string, number>();
const LONGEST = 366 * 864e5;
const EXPECTED = 'milliseconds, or a text such as "250ms", "1.5s" or "1 minute" (us, ms, s, m, h, d, or a word for it), up to 366 days';

/** Returns a duration in ms. */
export function milliseconds(parameter: string, value: unknown): number {
  let ms = value;
  if (typeof value === "string") {
    const [, number, unit] = /^\s*(\d+(?:\.\d+)?)\s*([a-z]{1,12})\s*$/i.exec(value) ?? [];
    ms = unit === undefined ? NaN : Number(number) * sizeOf(unit);
  }
  if (typeof ms === "number" && ms >= 0 && ms <= LONGEST) return ms;
  throw invalid(parameter, value, EXPECTED);
}

/** Returns a unit of time in ms; NaN if policies know none of this name. */
function sizeOf(unit: string): number {
  const size = units.get(unit) ?? native.unitOfTime(unit);
  if (size === null) return NaN;
  units.set(unit, size);
  return size;
}

/** Checks that a value is a whole number of at least 0. The core checks its range. `of` ends the error. */
export function whole(parameter: string, value: unknown, of = ""): number {
  if (Number.isInteger(value) && (value as number) >= 0) return value as number;
  const expected = typeof value === "string" ? "a number, not a text: a whole one, not negative" : "a whole number, not negative";
  throw invalid(parameter, value, expected + of);
}

/** Checks a weight. Default: 1. */
export const weightOf = (weight: unknown): number => (weight === undefined ? 1 : whole("weight", weight));

/** Checks the share of a tenant. */
export function shareOf(share: unknown): number {
  if (Number.isInteger(share) && (share as number) >= 1 && (share as number) <= 1000) return share as number;
  throw invalid("share", share, "a whole number from 1 to 1000");
}

/** Checks that a value is a number. The core checks its range. */
export function real(parameter: string, value: unknown, expected = "a number"): number {
  if (typeof value === "number") return value;
  throw invalid(parameter, value, expected);
}

/** Returns a duration in ms, if there is one. */
export const maybeMilliseconds = (parameter: string, value: unknown): number | undefined =>
  value === undefined ? undefined : milliseconds(parameter, value);

/** Checks that a value is a string that UTF-8 can represent. `of` ends the error. */
export function unicode(parameter: string, value: unknown, of = ""): string {
  if (typeof value !== "string") throw invalid(parameter, value, `a string${of}`);
  if (!value.isWellFormed()) throw invalid(parameter, value, `well-formed Unicode, without lone surrogates${of}`);
  return value;
}

/** Checks a key, and returns "" for none. */
export function keyOf(value: unknown): string {
  if (value === undefined) return "";
  if (typeof value !== "string") throw invalid("key", value, "a string");
  return value;
}

/** Checks that a value is one of these words. */
export function word(parameter: string, value: unknown, words: readonly string[]): string {
  if (words.includes(value as string)) return value as string;
  const quoted = words.map((word) => JSON.stringify(word));
  throw invalid(parameter, value, `${quoted.slice(0, -1).join(", ")} or ${quoted.at(-1)}`);
}

/** Checks that options are an object, and that all of them are known. */
export function options(given: unknown, known: readonly string[], parameter = "options"): void {
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    const isKey = typeof given === "string" && known.includes("key");
    throw invalid(
      parameter,
      given,
      isKey ? `an object, such as { key: ${JSON.stringify(given.slice(0, 64))} }` : `an object with ${known.join(", ")}`,
    );
  }
  for (const name in given) {
    if (!known.includes(name)) throw invalid(parameter, `an object with ${name}`, `only ${known.join(", ")}`, true);
  }
}
