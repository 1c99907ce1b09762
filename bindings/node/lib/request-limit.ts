// One limit of a server's requests: what each request is charged, and how it is named in responses.

import { createHash } from "node:crypto";
import type { Addresses, Reader } from "./address.js";
import type { Decision, Peek } from "./calls.js";
import { type Key, type Weight, isParts } from "./charges.js";
import { invalid } from "./errors.js";
import { Policy, type PolicyDecision } from "./fields.js";
import { warn } from "./hooks.js";
import { options as checkOptions } from "./input.js";
import { Limiter } from "./limiter.js";

/**
 * The key of a request: "address" for the client's address, "user" for the framework's user, "header:NAME" for a header, or a function
 * that returns it.
 */
export type RequestKey<R, K = string> = string | ((request: R) => K | null | undefined | PromiseLike<K | null | undefined>);

/** One limit of requests. Functions of the request may return promises. */
export interface RequestLimit<R> {
  /** A limiter; or limiters by the names of plans, of which `plan` chooses one for each request. */
  limiter: Limiter | Readonly<Record<string, Limiter>>;
  /**
   * The key of a request: "address" for the client's address, "user" for the framework's user, "header:NAME" for a header, or a
   * function that returns it. Requests with the same key share a budget. A request without the user or the header counts by its
   * address. Of a composite, an object with one of these for each part, or a function that returns keys of parts. Default: the empty
   * key for all requests.
   */
  key?: RequestKey<R, Key> | Readonly<Record<string, RequestKey<R> | null | undefined>> | undefined;
  /** The units that a request takes, at least 1, or those of each part of a composite; numbers or functions. Default: 1. */
  weight?:
    | number
    | ((request: R) => Weight | PromiseLike<Weight>)
    | Readonly<Record<string, number | ((request: R) => number | PromiseLike<number>)>>
    | undefined;
  /** Returns the name of a request's plan. */
  plan?: ((request: R) => string | PromiseLike<string>) | undefined;
  /**
   * Whether requests with a status of 400 or more do not count; or a function of such a status, if only some do not. A request whose
   * client disconnected counts, and so does one whose function throws or returns something else. Default: false.
   */
  skipFailed?: boolean | ((status: number) => boolean) | undefined;
  /** The same for requests with a lower status. Default: false. */
  skipSuccessful?: boolean | ((status: number) => boolean) | undefined;
  /** Whether the limit decides and counts but never refuses, and does not appear in headers. Default: false. */
  shadow?: boolean | undefined;
  /** The name of the policy in headers and bodies, in printable ASCII. Default: the limiter's name. */
  name?: string | undefined;
}

/** A policy as the response to one request shows it. */
export interface Shown extends PolicyDecision {
  readonly key: string;
}

/** The start of a request under one limit, and the decision about it. */
export interface RequestStart {
  readonly options: RequestLimit<any>;
  readonly policy: Policy;
  readonly start: { readonly key: Key; readonly weight: Weight };
  /** It is made before it is read. */
  decision: Decision | Peek;
  /** Its policy; or those of its parts, if they are charged for themselves. */
  shown: readonly Shown[];
}

/** The decision before it is made. */
const UNDECIDED = undefined as unknown as Decision;

const LIMIT = ["limiter", "key", "weight", "plan", "skipFailed", "skipSuccessful", "shadow", "name"];
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const PRINTABLE = /^[ -~]+$/;
/** The longest key in bytes. */
const LONGEST_KEY = 1_024;
/** The longest text of a part's key that is not hashed, if the keys of all parts are longer than a key can be. */
const SHORT_KEY = 100;

/** A limit with checked options. */
export class CheckedLimit<R> {
  readonly options: RequestLimit<R>;
  /** The program's own object, which tells it from others. */
  readonly given: RequestLimit<R>;
  /** The policies by the names of plans; by "" without plans. */
  readonly #policies: ReadonlyMap<string, Policy>;

  constructor(options: RequestLimit<R>) {
    if (options instanceof Limiter) throw invalid("limits", "an array with a limiter", "objects with limits: [{ limiter }]", true);
    checkOptions(options, LIMIT, "limits");
    const { limiter, key, weight = 1, plan, name } = options;
    this.options = { ...options };
    this.given = options;
    const limiters = limitersOf(limiter, plan);
    if (isParts(key)) for (const [part, of] of Object.entries(key)) checkKind(of ?? undefined, ofPart(part));
    else checkKind(key);
    if (isParts(weight)) {
      for (const [part, of] of Object.entries(weight)) if (typeof of !== "function") units(of, ofPart(part));
    } else if (typeof weight !== "function") units(weight);
    for (const part of [key, weight].flatMap((of) => (isParts(of) ? Object.keys(of) : []))) checkPart(part, [...limiters.values()]);
    for (const option of ["skipFailed", "skipSuccessful"] as const) {
      if (typeof options[option] !== "function") maybeBoolean(option, options[option], "true, false, or a function of the status");
    }
    maybeBoolean("shadow", options.shadow);
    if (options.skipFailed === true && options.skipSuccessful === true) {
      throw invalid("skipSuccessful", true, "not both this and skipFailed: nothing would be counted");
    }
    for (const one of name === undefined ? [...limiters.values()].map((limiter) => limiter.name) : [name]) {
      if (typeof one === "string" && PRINTABLE.test(one)) continue;
      throw invalid("name", one, "printable ASCII, for the headers: set the limit's name");
    }
    this.#policies = new Map([...limiters].map(([of, one]) => [of, new Policy(one, name ?? one.name)]));
  }

  /** Returns the names of its policies. */
  names(): Set<string> {
    return new Set([...this.#policies.values()].map((policy) => policy.name));
  }

  /** Returns the start of a request under this limit. */
  async startOf(request: R, reader: Reader<R>, addresses: Addresses<R>): Promise<RequestStart> {
    const { options } = this;
    const weight = await weightFor(options.weight, request);
    const named = options.plan === undefined ? "" : await options.plan(request);
    const policy = this.#policies.get(named);
    if (policy === undefined) throw invalid("plan", named, `one of ${[...this.#policies.keys()].join(", ")}`);
    const key = await keyFor(options.key, request, reader, addresses);
    return { options, policy, start: { key, weight }, decision: UNDECIDED, shown: [] };
  }
}

/** Finds what the response shows of a start that was decided. `hasHeaders`: whether it has headers. */
export async function show(one: RequestStart, hasHeaders: boolean): Promise<void> {
  const { policy, start, decision } = one;
  const { key, weight } = start;
  const isWhole = typeof key === "string" && typeof weight === "number";
  if (!isWhole && (hasHeaders || !decision.admitted)) {
    try {
      one.shown = await Promise.all(policy.parts().map(([name, part]) => shownPart(name, part, start, decision.admitted)));
      return;
    } catch (error) {
      warn(`the parts of ${policy.limiter.name} could not be read for the headers of a response`, error);
    }
  }
  const window = hasHeaders && isWhole && policy.isWindowed ? await policy.limiter._windowAsync() : null;
  one.shown = [{ policy, decision, window, key: typeof key === "string" ? key : "" }];
}

async function shownPart(name: string, policy: Policy, { key, weight }: RequestStart["start"], isAdmitted: boolean): Promise<Shown> {
  const own = (typeof key === "string" ? key : key[name]) ?? "";
  // Of a denial, whether this part denied; of an admission, how much it has left.
  const units = isAdmitted ? 0 : typeof weight === "number" ? weight : (weight[name] ?? 1);
  const decision = await policy.limiter.peekAsync({ key: own, weight: units });
  return { policy, decision, window: policy.isWindowed ? await policy.limiter._windowAsync() : null, key: own };
}

/** Returns the fullest part of an admitted start. */
export function fullest({ shown }: RequestStart): Shown[] {
  const share = ({ decision: { remaining, limit } }: Shown) => (Number.isFinite(limit) ? remaining / limit : Infinity);
  return shown.length === 0 ? [] : [shown.reduce((a, b) => (share(b) < share(a) ? b : a))];
}

/** Returns the parts that denied a start. If units are free since, it is the start itself. */
export function deniers({ shown, policy, decision }: RequestStart): Shown[] {
  const found = shown.filter((part) => !part.decision.admitted);
  return found.length > 0 ? found : [{ policy, decision, window: null, key: "" }];
}

function limitersOf(limiter: unknown, plan: unknown): Map<string, Limiter> {
  const expected = "a limiter of this package, or an object with limiters by the names of plans";
  if (limiter instanceof Limiter) {
    if (plan !== undefined) throw invalid("plan", plan, "none with a single limiter: pass limiters by the names of plans");
    return new Map([["", limiter]]);
  }
  if (typeof limiter !== "object" || limiter === null || Array.isArray(limiter)) throw invalid("limiter", limiter, expected);
  const limiters = Object.entries(limiter);
  for (const [name, one] of limiters) if (!(one instanceof Limiter)) throw invalid(`limiter.${name}`, one, "a limiter of this package");
  if (limiters.length === 0) throw invalid("limiter", "an empty object", expected, true);
  if (typeof plan !== "function") throw invalid("plan", plan, "a function of the request that returns the name of its plan");
  return new Map(limiters);
}

const ofPart = (part: string): string => ` for part ${JSON.stringify(part)}`;

function checkKind(key: unknown, of = ""): void {
  if (key === undefined || typeof key === "function") return;
  const expected = '"address", "user", "header:NAME", or a function of the request';
  if (typeof key !== "string") throw invalid("key", key, `a function of the request${of}`);
  const header = /^header:(.*)$/s.exec(key)?.[1];
  const isKnown = header === undefined ? ["address", "user"].includes(key) : TOKEN.test(header);
  if (!isKnown) throw invalid("key", key, expected + of);
}

/** Checks that limiters have a part of this name, if they are known yet. */
function checkPart(part: string, limiters: readonly Limiter[]): void {
  for (const limiter of limiters) {
    const names = limiter._partNames();
    if (names === null || names.some((name) => part === name || part.startsWith(`${name}/`))) continue;
    const known = names.length > 0 ? names.join(", ") : "it has none";
    throw invalid("part", part, `one of those of limiter "${limiter.name}": ${known}`);
  }
}

async function weightFor<R>(weight: RequestLimit<R>["weight"], request: R): Promise<Weight> {
  const given = typeof weight === "function" ? await weight(request) : (weight ?? 1);
  if (!isParts(given)) return units(given);
  const all: Record<string, number> = {};
  for (const [part, of] of Object.entries(given)) all[part] = units(typeof of === "function" ? await of(request) : of, ofPart(part));
  return all;
}

async function keyFor<R>(key: RequestLimit<R>["key"], request: R, reader: Reader<R>, addresses: Addresses<R>): Promise<Key> {
  const given = typeof key === "function" ? await key(request) : undefined;
  const parts = isParts(key) ? key : given;
  if (!isParts(parts))
    return typeof key === "function" ? fitting(keyIn(given)) : keyOf(key as string | undefined, request, reader, addresses);
  const all: Record<string, string> = {};
  for (const [part, of] of Object.entries(parts)) {
    if (typeof of === "function") all[part] = fitting(keyIn(await of(request), ofPart(part)));
    else if (parts === given) all[part] = fitting(keyIn(of, ofPart(part)));
    else all[part] = keyOf(of ?? undefined, request, reader, addresses);
  }
  if (Object.values(all).reduce((sum, key) => sum + Buffer.byteLength(key), 0) <= LONGEST_KEY) return all;
  for (const [part, key] of Object.entries(all)) if (key.length > SHORT_KEY) all[part] = hashed(key);
  return all;
}

/** Returns the key of a request for a limit whose `key` is not a function. */
function keyOf<R>(kind: string | undefined, request: R, reader: Reader<R>, addresses: Addresses<R>): string {
  if (kind === undefined) return "";
  if (kind === "address") return addresses.of(request);
  const found = kind === "user" ? userIn(reader.user(request)) : reader.header(request, kind.slice("header:".length).toLowerCase());
  if (found === undefined) return `address:${addresses.of(request)}`;
  // A value that clients choose must not look like a key that is made here.
  return /^(address|sha256):/.test(found) ? hashed(found) : fitting(found);
}

/** Returns the user's id from a framework's session or token. */
function userIn(user: unknown): string | undefined {
  if (user === undefined || user === null || user === "") return undefined;
  const { id, sub } = user as { id?: unknown; sub?: unknown };
  const found = typeof user === "object" ? (id ?? sub) : user;
  if (typeof found === "string" || typeof found === "number" || typeof found === "bigint") return String(found);
  throw invalid("user", user, "a string or number, or an object with an id or sub; otherwise pass a function as key");
}

/** @internal Returns a key that every store takes, of a text that clients choose and that may have any length. */
export function fitting(key: string): string {
  return key.length * 3 > LONGEST_KEY && Buffer.byteLength(key) > LONGEST_KEY ? hashed(key) : key.toWellFormed();
}

const hashed = (key: string): string => `sha256:${createHash("sha256").update(key).digest("hex")}`;

function keyIn(key: unknown, of = ""): string {
  if (key === undefined || key === null) return "";
  if (typeof key !== "string") throw invalid("key", key, `a string, or nothing, from its function${of}`);
  return key;
}

function units(weight: unknown, of = ""): number {
  if (Number.isSafeInteger(weight) && (weight as number) >= 1) return weight as number;
  throw invalid("weight", weight, `a whole number of at least 1, or a function of the request${of}`);
}

export function maybeFunction(parameter: string, value: unknown): void {
  if (value !== undefined && typeof value !== "function") throw invalid(parameter, value, "a function of the request");
}

export function maybeBoolean(parameter: string, value: unknown, expected = "true or false"): void {
  if (value !== undefined && typeof value !== "boolean") throw invalid(parameter, value, expected);
}

/** Returns whether a request with this status does not count. Its response is on its way, so errors are only warnings. */
export function isSkipped(limit: RequestLimit<any>, status: number): boolean {
  const option = status < 400 ? "skipSuccessful" : "skipFailed";
  const skip = limit[option];
  if (typeof skip !== "function") return skip ?? false;
  try {
    const answer: unknown = skip(status);
    if (typeof answer === "boolean") return answer;
    // If it is a promise, nobody else handles its rejection, which would end the process.
    Promise.resolve(answer).catch(() => {});
    throw invalid(option, answer, "true or false from its function");
  } catch (error) {
    warn(`${option} failed, so a request with the status ${status} counts`, error);
    return false;
  }
}
