// Joint starts: one start that charges each part of a composite for itself.

import { invalid } from "./errors.js";
import { unicode, weightOf, whole } from "./input.js";
import { Size } from "./layout.js";
import { type NativeLimiter, native } from "./native.js";

/** The keys of a composite's parts, by the parts' names; nothing for the empty key, which a part that is not named has, too. */
export type PartKeys = Readonly<Record<string, string | null | undefined>>;

/** Units of a composite's parts, by the parts' names. */
export type PartUnits = Readonly<Record<string, number>>;

/** The key of a start: a text, or one for each part of a composite. */
export type Key = string | PartKeys;

/** The weight of a start: units, or those of each part of a composite. */
export type Weight = number | PartUnits;

/** @internal The key of a start: a text, or one with charges. */
export type StartKey = string | JointKey;

interface Charge {
  key: string | null;
  weight: number | null;
}

/** @internal The key of a joint start: what each part of a composite is charged. */
export class JointKey {
  readonly #key: string;
  readonly #charges = new Map<string, Charge>();
  /** The core's key, once it is made. */
  #text: string | undefined;

  constructor(key: string, keys: PartKeys, weights: PartUnits) {
    this.#key = key;
    for (const [part, value] of Object.entries(keys)) this.#charge(part).key = unicode("key", value ?? "", ofPart(part));
    for (const [part, value] of Object.entries(weights)) this.#charge(part).weight = whole("weight", value, ofPart(part));
  }

  #charge(part: string): Charge {
    let charge = this.#charges.get(part);
    if (charge === undefined) this.#charges.set(part, (charge = { key: null, weight: null }));
    return charge;
  }

  /** Returns the key for the core. The limiter's parts have to be known, so it is made when the limiter is open. */
  textFor(limiter: NativeLimiter): string {
    if (this.#text === undefined) {
      const charges = [...this.#charges.values()];
      const text = native.jointKey(
        limiter,
        this.#key,
        [...this.#charges.keys()],
        charges.map(({ key }) => key),
        charges.map(({ weight }) => weight),
      );
      const size = Buffer.byteLength(text);
      if (size > Size.text) throw invalid("key", `${size} bytes long with those of all parts`, `at most ${Size.text} bytes`, true);
      this.#text = text;
    }
    return this.#text;
  }

  /** Returns it as people read it. The same charges have the same text. */
  toString(): string {
    const parts = [...this.#charges].map(([part, { key, weight }]) => {
      return part + (weight === null ? "" : `: ${weight}`) + (key === null ? "" : ` of ${JSON.stringify(key)}`);
    });
    if (this.#key !== "") parts.unshift(JSON.stringify(this.#key));
    return parts.sort().join(", ");
  }
}

const ofPart = (part: string): string => ` for part ${JSON.stringify(part)}`;

/** @internal Returns whether a value is a plain object: an instance of a class is a mistake. An empty one names no part. */
export function isParts(value: unknown): value is object {
  if (typeof value !== "object" || value === null) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

/** @internal Checks the key and the weight of a start, and returns its key: "" for none. */
export function startKeyOf(key: unknown, weight: unknown): StartKey {
  if (!isParts(key) && !isParts(weight)) return textKeyOf(key);
  return new JointKey(
    isParts(key) ? "" : textKeyOf(key),
    (isParts(key) ? key : {}) as PartKeys,
    (isParts(weight) ? weight : {}) as PartUnits,
  );
}

function textKeyOf(key: unknown): string {
  if (key === undefined) return "";
  if (typeof key !== "string") throw invalid("key", key, "a string, or an object with a key for each part of a composite");
  return key;
}

/** @internal Checks the weight of a start, and returns that of the parts without one of their own. Default: 1. */
export const startWeightOf = (weight: unknown): number => (isParts(weight) ? 1 : weightOf(weight));

/** @internal Returns a key as one text, which is the same for equal keys. */
export const nameOf = (key: Key): string => (typeof key === "string" ? key : inOrder(key));

/** @internal Returns a weight as one text, which is the same for equal weights, and valid JSON. */
export const weightText = (weight: Weight): string => (typeof weight === "number" ? String(weight) : inOrder(weight));

const inOrder = (parts: object): string => JSON.stringify(Object.fromEntries(Object.entries(parts).sort(([a], [b]) => (a < b ? -1 : 1))));

/** @internal Returns the units of a start at the limit that denied it, or another one of the same parts: 1 where no part is known. */
export function unitsAt(weight: Weight, deniedBy: string | null): number {
  if (typeof weight === "number") return weight;
  const limit = `/${deniedBy}`;
  return Object.entries(weight).find(([part]) => limit.endsWith(`/${part}`))?.[1] ?? 1;
}

/**
 * @internal Returns the key of the waiters to wake when a start with this key ends: any, if it charged parts with other keys, or its
 * key is not known because it came as a text.
 */
export const keyToWake = (key: StartKey | null): string | undefined => (typeof key === "string" ? key : undefined);

/** @internal Writes how many units the parts of a start used, for the call that settles it. */
export function settlementOf(actual: PartUnits): string {
  const parts = Object.entries(actual).map(([part, units]) => `${part}\0${whole("actual", units, ofPart(part))}`);
  return parts.join("\0");
}
