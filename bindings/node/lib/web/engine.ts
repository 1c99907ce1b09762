// The limits of a store in WebAssembly: `bindings/web/src/abi.rs` is the other side. Every call returns at once.

import { version } from "./bytes.js";
import { type LimitError, errorOf } from "./errors.js";

/** What the module exports. */
interface Exports {
  readonly memory: WebAssembly.Memory;
  wgl_version?(): number;
  wgl_new(unixUs: number, seed: number): number;
  wgl_free(store: number): void;
  wgl_text(store: number, length: number): number;
  wgl_text_length(store: number): number;
  wgl_numbers(store: number): number;
  wgl_limit(store: number, name: number, policy: number, from: number, to: number): number;
  wgl_decide(store: number, limit: number, key: number, weight: number, looks: number, from: number, to: number): number;
  wgl_end(store: number, limit: number, key: number, weight: number, how: number, actual: number, from: number, to: number): number;
  wgl_pause(store: number, limit: number, key: number, us: number, from: number, to: number): number;
  wgl_clear(store: number, limit: number, key: number): number;
  wgl_override(store: number, name: number, policy: number, key: number, hasKey: number, from: number, to: number): number;
  wgl_unit(store: number, name: number): number;
  wgl_number(store: number, least: number): number;
  wgl_save(store: number, limit: number, key: number, from: number, to: number): number;
  wgl_load(store: number, limit: number, key: number, by: number, from: number, to: number): number;
  wgl_drop(store: number, limit: number, key: number): void;
  wgl_hold(store: number, limit: number, key: number, weight: number): void;
  wgl_overriding(store: number, limit: number, key: number, hasKey: number): void;
  wgl_part(store: number, limit: number, part: number): void;
}

type Call = Exclude<keyof Exports, "memory" | "wgl_version" | "wgl_new">;
type Given<K extends Call> = Parameters<Exports[K]> extends [number, ...infer Given extends number[]] ? Given : never;

/** A time of the store in µs, rounded both ways: the true time is none before the first number and none after the second. */
export type Time = readonly [from: number, to: number];

/** How a start ends: it ran, it never ran, or it ran and cost another number of units. */
export const enum How {
  completed,
  cancelled,
  settled,
}

/** What was decided about a start; times in ms. */
export interface Decided {
  readonly admitted: boolean;
  readonly retryAfter: number;
  readonly suggestedAfter: number;
  readonly resetAfter: number;
  readonly remaining: number;
  readonly limit: number;
  readonly deniedBy: string | null;
  /** Whether units are held until their start ends, so that nobody knows when some will be free. */
  readonly holds: boolean;
  /** Whether it matters when a start ends. */
  readonly isCounted: boolean;
  /** Whether it is denied until a start ends: nobody knows when. */
  readonly awaitsEnd: boolean;
  /** How the parts of the limit know the start. */
  readonly held: readonly number[];
  /** In which database, if in one, and what no other start in it is called. */
  readonly database?: string;
  readonly id?: string;
}

/** The numbers of a decision, and then those of the start in each part. */
const DECISION = 10;
const HELD = 4;
const MOST_PARTS = 16;

const encoder = new TextEncoder();
const decoder = new TextDecoder();

export class Engine {
  readonly #exports: Exports;
  readonly #store: number;
  readonly #parts: string[][] = [];
  /** The calls that have begun and not returned: one that the module has failed never does. */
  #begun = 0;
  #isClosed = false;
  readonly #freed: () => void;

  /** `freed`: called when this was closed and the instance is as good as new. */
  constructor(instance: WebAssembly.Instance, unixUs: number, freed = () => {}) {
    this.#exports = instance.exports as unknown as Exports;
    this.#store = this.#exports.wgl_new(unixUs, Math.random());
    this.#freed = freed;
  }

  /** Whether an instance is of the module of this version. */
  static fits({ exports }: WebAssembly.Instance): boolean {
    const number = version.split(".").reduce((number, part) => 1000 * number + Number.parseInt(part, 10), 0);
    return (exports as unknown as Exports).wgl_version?.() === number;
  }

  /** Calls the module. */
  #call<K extends Call>(name: K, ...given: Given<K>): ReturnType<Exports[K]> {
    if (this.#isClosed) throw new Error("this engine was closed");
    this.#begun++;
    const of = this.#exports[name] as unknown as (...given: number[]) => ReturnType<Exports[K]>;
    const answer = of(this.#store, ...given);
    this.#begun--;
    return answer;
  }

  /** Frees what it has. Later calls are errors. (If the module has failed, nobody knows what it has left.) */
  close(): void {
    if (this.#isClosed) return;
    if (this.#begun === 0) {
      this.#call("wgl_free");
      this.#freed();
    }
    this.#isClosed = true;
  }

  /** Passes the texts of a call, and returns their lengths. */
  #pass(...texts: (string | Uint8Array)[]): number[] {
    const all = texts.map((text) => (typeof text === "string" ? encoder.encode(text) : text));
    let at = this.#call(
      "wgl_text",
      all.reduce((sum, { length }) => sum + length, 0),
    );
    const memory = new Uint8Array(this.#exports.memory.buffer);
    for (const bytes of all) {
      memory.set(bytes, at);
      at += bytes.length;
    }
    return all.map(({ length }) => length);
  }

  /** The text of an answer. */
  #text(): string {
    return decoder.decode(this.#bytes());
  }

  #bytes(): Uint8Array {
    const length = this.#call("wgl_text_length");
    const at = this.#call("wgl_text", length);
    return new Uint8Array(this.#exports.memory.buffer, at, length);
  }

  /** A view of the numbers. The next call may make the memory larger, which takes it away. */
  #numbers(): Float64Array {
    const at = this.#call("wgl_numbers");
    return new Float64Array(this.#exports.memory.buffer, at, DECISION + HELD * MOST_PARTS);
  }

  /** Checks the answer of a call. */
  #checked(answer: number): number {
    if (answer < 0) throw this.#error(answer);
    return answer;
  }

  #error(number: number): LimitError {
    const text = this.#text();
    const space = text.indexOf(" ");
    return errorOf({ message: text.slice(space + 1), code: text.slice(0, space), number });
  }

  /** Declares a limit, or finds it if there is no policy. Returns its number. */
  limit(name: string, policy: string, time: Time): number {
    const [nameLength, policyLength] = this.#pass(name, policy);
    return this.#checked(this.#call("wgl_limit", nameLength!, policyLength!, ...time));
  }

  /** Decides on a start and records it; or only `looks`. */
  decide(limit: number, key: string, weight: number, time: Time, looks = false): Decided {
    const [length] = this.#pass(key);
    this.#checked(this.#call("wgl_decide", limit, length!, weight, Number(looks), ...time));
    const numbers = [...this.#numbers()];
    const [admitted, retry, suggested, remaining, most, reset, deniedBy, holds, isCounted, awaitsEnd] = numbers as unknown as Numbers;
    const isAdmitted = admitted !== 0;
    const count = isAdmitted && !looks ? this.#names(limit).length * HELD : 0;
    return {
      admitted: isAdmitted,
      retryAfter: retry / 1e3,
      suggestedAfter: suggested / 1e3,
      resetAfter: reset / 1e3,
      remaining,
      limit: most,
      holds: holds !== 0,
      isCounted: isCounted !== 0,
      awaitsEnd: awaitsEnd !== 0,
      held: numbers.slice(DECISION, DECISION + count),
      deniedBy: isAdmitted ? null : this.#names(limit)[deniedBy]!,
    };
  }

  /** The names of a limit's parts. */
  #names(limit: number): readonly string[] {
    const names = (this.#parts[limit] ??= []);
    while (names.length === 0 || names.at(-1) !== "") {
      this.#call("wgl_part", limit, names.length);
      names.push(this.#text());
    }
    return names.slice(0, -1);
  }

  /** Ends a start. */
  end(limit: number, key: string, weight: number, held: readonly number[], how: How, actual: number, time: Time): void {
    const [length] = this.#pass(key);
    this.#numbers().set(held, DECISION);
    this.#checked(this.#call("wgl_end", limit, length!, weight, how, actual, ...time));
  }

  /** Lets nobody start for so many ms. */
  pause(limit: number, key: string, ms: number, time: Time): void {
    const [length] = this.#pass(key);
    this.#checked(this.#call("wgl_pause", limit, length!, microseconds(ms), ...time));
  }

  /** Forgets all starts, and opens the gate. */
  clear(limit: number, key: string): void {
    const [length] = this.#pass(key);
    this.#checked(this.#call("wgl_clear", limit, length!));
  }

  /** Overrides the policies of a limit or key, or lifts what does if there is no policy. */
  override(name: string, policy: string, key: string | undefined, time: Time): void {
    const [nameLength, policyLength, keyLength] = this.#pass(name, policy, key ?? "");
    const hasKey = Number(key !== undefined);
    this.#checked(this.#call("wgl_override", nameLength!, policyLength!, keyLength!, hasKey, ...time));
  }

  /** Makes the number of the next start greater than this one, and returns the last one. */
  number(least = 0): number {
    return this.#call("wgl_number", least);
  }

  /** Returns the state of a key, and until when it matters, in µs; `null` if there is nothing to keep. With "": also of all keys. */
  save(limit: number, key: string, time: Time): { readonly words: Uint8Array; readonly until: number } | null {
    const [length] = this.#pass(key);
    const until = this.#call("wgl_save", limit, length!, ...time);
    const words = this.#bytes().slice();
    return words.length > 0 ? { words, until } : null;
  }

  /** Restores a key. `by`: when its policy changed, if it has, in µs. Returns whether this is no state of it: then it counts as used. */
  load(limit: number, key: string, words: Uint8Array, by: number, time: Time): boolean {
    const [length] = this.#pass(key, words);
    return this.#call("wgl_load", limit, length!, by, ...time) !== 0;
  }

  /** Forgets a key that can be restored, and its policies. */
  drop(limit: number, key: string): void {
    const [length] = this.#pass(key);
    this.#call("wgl_drop", limit, length!);
  }

  /** Gives a start of a lost key its units back. */
  hold(limit: number, key: string, weight: number, held: readonly number[]): void {
    const [length] = this.#pass(key);
    this.#numbers().set(held, DECISION);
    this.#call("wgl_hold", limit, length!, weight);
  }

  /** Returns the policies above the declared ones: of the limit, or of a key; "" if there are none. */
  overriding(limit: number, key: string | undefined): string {
    const [length] = this.#pass(key ?? "");
    this.#call("wgl_overriding", limit, length!, Number(key !== undefined));
    return this.#text();
  }

  /** Returns a unit of time in ms; NaN if policies know none of this name. */
  unitOfTime(name: string): number {
    const [length] = this.#pass(name);
    return this.#call("wgl_unit", length!) / 1e3 || Number.NaN;
  }
}

/** Rounds up. (0.2 ms are 200 µs, although 0.2 * 1e3 is more.) */
const microseconds = (ms: number): number => Math.ceil(Math.round(ms * 1e6) / 1e3);

type Numbers = readonly [number, number, number, number, number, number, number, number, number, number];
