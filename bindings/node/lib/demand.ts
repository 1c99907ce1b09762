// What a request takes before it is sent: one start of a limiter, with the tokens that it may use.

import { type Key, type Weight, isParts } from "./charges.js";
import { CompositeLimiter, FirstOfLimiter } from "./composite.js";
import { invalid } from "./errors.js";
import { unicode, whole } from "./input.js";
import { Limiter } from "./limiter.js";
import { KINDS, type TokenKind, type Tokens, estimateOf } from "./tokens.js";

/** A request that is about to be sent, as the option functions get it. */
export interface OutgoingRequest {
  /** The method in upper case. */
  readonly method: string;
  /** The URL. */
  readonly url: URL;
  /** The headers, as the caller set them. */
  readonly headers: Headers;
  /** The body, if it is text or bytes of text; `null` without a body, and for a stream, which can be read only once. */
  readonly text: string | null;
}

/**
 * The limiter of requests: one limiter; an object of hosts and their limiters ("api.example.com", or with a port "127.0.0.1:8080",
 * which has precedence; other hosts are not limited); or a function of the request that returns a limiter or nothing.
 */
export type Limits = Limiter | { readonly [host: string]: Limiter } | ((request: OutgoingRequest) => Limiter | null | undefined);

/** The key of a request: a text, a function of the request, or either of these for each part of the limiter. */
export type KeyOfRequest =
  | string
  | ((request: OutgoingRequest) => Key | null | undefined)
  | Readonly<Record<string, string | null | undefined | ((request: OutgoingRequest) => string | null | undefined)>>;

/** The weight of a request: units, a function of the request, or either of these for each part of the limiter. */
export type WeightOfRequest =
  | number
  | ((request: OutgoingRequest) => Weight)
  | Readonly<Record<string, number | ((request: OutgoingRequest) => number)>>;

/** The parts of a limiter that count tokens, by the kind of tokens. */
export type TokenParts = { readonly [kind in TokenKind]?: string };

/** What a request takes. */
export interface DemandOptions {
  /** The key whose budget a request uses, or those of the limiter's parts. Default: the empty key. */
  key?: KeyOfRequest | null | undefined;
  /** The units of the limit that a request takes, or those of its parts. Default: 1. */
  weight?: WeightOfRequest | undefined;
  /**
   * The part of the limiter that counts tokens: "tokens" for "requests: 500/1m + tokens: 200000/1m"; or the parts that count
   * `input`, `output` and `total` tokens. A start takes the request's estimate, and is settled by what the response says was used.
   */
  tokens?: string | TokenParts | undefined;
  /**
   * Returns how many tokens a request may take, of each kind if there are several; 0 if the request has none, which then takes only
   * the other parts. Default: for a JSON body, one token for every four characters of its texts, plus `max_completion_tokens`,
   * `max_output_tokens` or `max_tokens`. An estimate above a whole limit takes the whole limit.
   */
  estimate?: ((request: OutgoingRequest) => number | Tokens) | undefined;
}

/** @internal The names of these options. */
export const DEMAND = ["key", "weight", "tokens", "estimate"];

/** @internal What one request asks for, before its limiter is open. */
export interface Demand {
  readonly url: URL;
  readonly limiter: Limiter;
  readonly key: Key;
  readonly weight: Weight;
  /** The tokens that it may use. */
  readonly tokens: Tokens;
}

/** @internal The start that it takes. */
export interface Start {
  readonly limiter: Limiter;
  readonly key: Key;
  readonly weight: Weight;
  /** The parts that count its tokens. */
  readonly tokens: TokenParts;
}

/** @internal Finds what requests take. */
export class Demands {
  /** The parts that count tokens. */
  readonly tokens: TokenParts;
  readonly #limiter: (request: OutgoingRequest) => Limiter | null | undefined;
  readonly #key: (request: OutgoingRequest) => Key;
  readonly #weight: (request: OutgoingRequest) => Weight;
  readonly #estimate: (request: OutgoingRequest) => number | Tokens;
  /** What is left of limiters without their parts that count tokens. */
  readonly #tokenless = new WeakMap<Limiter, Limiter>();

  constructor(limiter: Limits, { key, weight, tokens, estimate }: DemandOptions) {
    this.tokens = tokenParts(tokens);
    this.#limiter = chooser(limiter, (one) => this.#check(one));
    this.#key = derivation(key, keyIn);
    this.#weight = derivation(weight ?? 1, (value, of) => whole("weight", value, of));
    this.#estimate = estimate ?? (({ text }) => estimateOf(text));
  }

  /** Whether requests are measured by their tokens, which needs their text. */
  get needsText(): boolean {
    return Object.keys(this.tokens).length > 0;
  }

  /** Returns what a request asks for; `null` if it is not limited. */
  of(request: OutgoingRequest): Demand | null {
    const limiter = this.#limiter(request);
    if (limiter == null) return null;
    const [key, weight] = [this.#key(request), this.#weight(request)];
    return {
      url: request.url,
      limiter,
      key,
      weight,
      tokens: this.needsText ? unitsOf("estimate", this.#estimate(request), this.tokens) : {},
    };
  }

  /** Returns the start for it; `null` if the limiter has no part without tokens for a request that has none. The limiter is open. */
  startOf({ limiter, key, weight, tokens }: Demand): Start | null {
    if (!this.needsText) return { limiter, key, weight, tokens: {} };
    this.#check(limiter);
    // Of alternatives, whose other parts are not known before one is chosen, it takes one token.
    const isFree = Object.values(tokens).every((units) => units === 0);
    if (isFree && !(limiter instanceof FirstOfLimiter)) return this.#withoutTokens(limiter, key, weight);
    if (typeof weight === "number" && weight > 1 && limiter instanceof FirstOfLimiter) {
      throw invalid("weight", weight, "an object of the alternatives' parts and their weights, because tokens is given");
    }
    const units: Record<string, number> = {};
    if (typeof weight === "object") Object.assign(units, weight);
    else if (weight !== 1) for (const part of limiter._partNames() ?? []) units[part] = weight;
    for (const [kind, part] of Object.entries(this.tokens)) units[part] = Math.max(tokens[kind as TokenKind] ?? 0, 1);
    return { limiter, key, weight: units, tokens: this.tokens };
  }

  #withoutTokens(limiter: Limiter, key: Key, weight: Weight): Start | null {
    let others = this.#tokenless.get(limiter);
    if (others === undefined) this.#tokenless.set(limiter, (others = new CompositeLimiter(this.#others(limiter.parts))));
    if (others._partNames()?.length === 0) return null;
    return { limiter: others, key: this.#others(key), weight: this.#others(weight), tokens: {} };
  }

  /** Returns what belongs to the parts that do not count tokens. */
  #others<T>(parts: T): T {
    if (typeof parts !== "object") return parts;
    const counting = Object.values(this.tokens);
    return Object.fromEntries(Object.entries(parts as object).filter(([part]) => !counting.includes(part))) as T;
  }

  /** Checks that a limiter has the parts that count tokens, if it is known yet. */
  #check(limiter: Limiter): void {
    const names = limiter._partNames();
    if (names === null) return;
    for (const part of Object.values(this.tokens)) {
      const known = names.length > 0 ? names.join(", ") : "it has none";
      if (!names.includes(part)) throw invalid("tokens", part, `a part of limiter "${limiter.name}": ${known}`);
    }
  }
}

/** @internal Returns the key with which a part is charged; nothing for all keys. */
export function keyAt(key: Key, part: string): string | undefined {
  const own = typeof key === "string" ? key : key[part];
  return own == null || own === "" ? undefined : own;
}

/** @internal Returns units of each kind of tokens, of one number if there is one kind. */
export function unitsOf(parameter: string, given: unknown, parts: TokenParts): Tokens {
  const kinds = Object.keys(parts) as TokenKind[];
  const expected = `a number of tokens from this function${kinds.length > 1 ? `, or one for each of ${kinds.join(", ")}` : ""}`;
  const units: Partial<Record<TokenKind, number>> = {};
  if (typeof given === "number" && kinds.length > 1) throw invalid(parameter, given, `an object with ${kinds.join(", ")}`);
  for (const kind of kinds) {
    const value: unknown = typeof given === "object" && given !== null ? (given as Tokens)[kind] : given;
    if (typeof value !== "number" || !(value >= 0 && value <= Number.MAX_SAFE_INTEGER)) throw invalid(parameter, value, expected);
    units[kind] = Math.ceil(value);
  }
  return units;
}

function tokenParts(tokens: unknown): TokenParts {
  if (tokens === undefined) return {};
  if (typeof tokens === "string") return { total: tokens };
  const expected = `the name of the part that counts tokens, or an object of ${KINDS.join(", ")} and such names`;
  if (!isParts(tokens)) throw invalid("tokens", tokens, expected);
  for (const [kind, part] of Object.entries(tokens)) {
    if (!KINDS.includes(kind as TokenKind)) throw invalid("tokens", `an object with ${JSON.stringify(kind)}`, expected, true);
    if (typeof part !== "string") throw invalid(`tokens.${kind}`, part, "the name of a part");
  }
  return { ...tokens };
}

/** Checks a key, and returns its text. */
function keyIn(key: unknown, of?: string): string {
  if (key === undefined || key === null) return "";
  return unicode("key", key, of ?? ", or nothing");
}

/** Returns the function that derives a value from a request, or one for each of some parts. `check` checks a value. */
function derivation<T extends string | number>(
  given: unknown,
  check: (value: unknown, of?: string) => T,
): (request: OutgoingRequest) => T | Readonly<Record<string, T>> {
  const ofPart = (part: string): string => ` for part ${JSON.stringify(part)}`;
  if (typeof given === "function") {
    return (request) => {
      const value: unknown = given(request);
      if (!isParts(value)) return check(value);
      return Object.fromEntries(Object.entries(value).map(([part, of]) => [part, check(of, ofPart(part))]));
    };
  }
  if (!isParts(given)) {
    const fixed = check(given);
    return () => fixed;
  }
  const parts = Object.entries(given).map(([part, of]): [string, (request: OutgoingRequest) => T] => {
    if (typeof of === "function") return [part, (request) => check(of(request), ofPart(part))];
    const fixed = check(of, ofPart(part));
    return [part, () => fixed];
  });
  return (request) => Object.fromEntries(parts.map(([part, of]) => [part, of(request)]));
}

const A_LIMIT = "a limiter, an object of hosts and their limiters, or a function of the request";
const HOST = /^(\[[0-9a-f:.]+\]|[^\s/:@?#[\]]+)(:[0-9]{1,5})?$/;

/** Returns the function that chooses a request's limiter. */
function chooser(given: unknown, check: (limiter: Limiter) => void): (request: OutgoingRequest) => Limiter | null | undefined {
  if (given instanceof Limiter) {
    check(given);
    return () => given;
  }
  if (typeof given === "function") {
    return (request) => {
      const limiter: unknown = given(request);
      if (limiter == null || limiter instanceof Limiter) return limiter;
      throw invalid("limiter", limiter, "a limiter from this function, or nothing");
    };
  }
  if (typeof given !== "object" || given === null || Array.isArray(given)) throw invalid("limiter", given, A_LIMIT);
  const byHost = new Map<string, Limiter>();
  for (const [name, limiter] of Object.entries(given)) {
    const host = name.toLowerCase();
    if (!HOST.test(host)) throw invalid("limiter", `an object with "${name}"`, 'hosts such as "api.example.com" or "127.0.0.1:8080"', true);
    if (!(limiter instanceof Limiter)) throw invalid(`limiter["${name}"]`, limiter, "a limiter");
    check(limiter);
    byHost.set(host, limiter);
  }
  if (byHost.size === 0) throw invalid("limiter", "an object without hosts", A_LIMIT, true);
  return ({ url }) => {
    const port = url.port || (url.protocol === "https:" ? "443" : "80");
    return byHost.get(`${url.hostname}:${port}`) ?? byHost.get(url.hostname);
  };
}
