// Limits on the requests of a server, whatever its framework: which limits a request takes, by which keys, and what the
// response says of them. The modules named after frameworks read requests and write responses.

import { createHash } from "node:crypto";
import type { ServerResponse } from "node:http";
import { type AddressOptions, Addresses, type Reader } from "./address.js";
import type { Decision } from "./calls.js";
import { invalid } from "./errors.js";
import { type PolicyDecision, Policy, fields, wholeSeconds } from "./fields.js";
import { warn } from "./hooks.js";
import { options as checkOptions } from "./input.js";
import { Limiter } from "./limiter.js";
import type { Permit } from "./permit.js";

/** One limit of requests. Functions of the request may give promises. */
export interface RequestLimit<R> {
  /** Any limiter; or limiters by the names of plans, of which `plan` names one for each request. */
  limiter: Limiter | Readonly<Record<string, Limiter>>;
  /**
   * What shares a budget: all requests if not given; "address", those of a client; "user", those of whom the framework knows
   * to be signed in; "header:NAME"; or a function's answer, of which nothing is the empty key. A request without the user or
   * the header counts by its address.
   */
  key?: string | ((request: R) => string | null | undefined | PromiseLike<string | null | undefined>) | undefined;
  /** How many units a request takes, from 1 on: 1 if not given. */
  weight?: number | ((request: R) => number | PromiseLike<number>) | undefined;
  /** The name of the plan that a request is on. */
  plan?: ((request: R) => string | PromiseLike<string>) | undefined;
  /** Does not count requests that are answered with a status from 400 on. One that the client left counts. */
  skipFailed?: boolean | undefined;
  /** Does not count requests that are answered with a lower status. One that the client left counts. */
  skipSuccessful?: boolean | undefined;
  /** Decides and counts, but never refuses, and is not seen in headers. */
  shadow?: boolean | undefined;
  /** What headers and bodies call the policy, in printable ASCII: the limiter's name if not given. */
  name?: string | undefined;
}

/** How requests are limited. `Answer` is what `onLimited` may answer with beside bodies. */
export interface ServingOptions<R, Answer> extends AddressOptions {
  /** What every request takes: all of them, or nothing and a refusal. None if not given. */
  limits?: readonly RequestLimit<R>[] | undefined;
  /** What is not limited at all: paths such as "/health" and "/static/*", or a function of the request. */
  exempt?: readonly string[] | ((request: R) => boolean | PromiseLike<boolean>) | undefined;
  /**
   * Is called when a request is refused, or would be in shadow mode. It gives nothing (the usual body is sent), a body (an
   * object, a string or bytes), or an answer of the framework's.
   */
  onLimited?: OnLimited<R, Answer> | undefined;
  /** `false` leaves RateLimit and RateLimit-Policy out: `true` if not given. */
  headers?: boolean | undefined;
}

/** What is called when a request is refused. `answer` is where the framework writes its response, if it has such a place. */
export type OnLimited<R, Answer> = (
  request: R,
  limited: Limited,
  answer: Answer,
) => Reply<Answer> | PromiseLike<Reply<Answer>>;

/** What `onLimited` gives. */
export type Reply<Answer> = void | null | object | string | Uint8Array | Answer;

/** A request that was refused, or in shadow mode would have been. */
export interface Limited {
  /** The policy that said no; of several, that with the longest wait. */
  readonly name: string;
  /** The key that it counts by. */
  readonly key: string;
  /** In ms: when a retry may succeed, not rounded. */
  readonly retryAfter: number;
  /** What it allows. */
  readonly limit: number;
  /** What lighter requests could still have of it. */
  readonly remaining: number;
  /** The names of all policies that said no. */
  readonly violated: readonly string[];
  /** Was the request let through? */
  readonly shadow: boolean;
  /** What the response is made of. */
  readonly status: 429;
  /** Retry-After, and the fields of the draft. */
  readonly headers: Readonly<Record<string, string>>;
  /** The body: a problem of RFC 9457. */
  readonly problem: Readonly<Record<string, unknown>>;
}

/** The body of a refusal, and its type. */
export class Body {
  constructor(
    readonly content: string | Uint8Array<ArrayBuffer>,
    readonly type: string,
  ) {}
}

/** How a response ended: with a status below 400 or not, or without an end. */
export type Outcome = "successful" | "failed" | "left";

/** What one request asks of a limit, and then the answer. */
interface Asked extends PolicyDecision {
  readonly options: RequestLimit<any>;
  readonly start: { readonly key: string; readonly weight: number };
  decision: Decision;
  window: number | null;
}

/** What is asked has been answered as soon as anybody looks. */
const UNANSWERED = undefined as unknown as Decision;

const LIMIT = ["limiter", "key", "weight", "plan", "skipFailed", "skipSuccessful", "shadow", "name"];
const GATE = ["limits", "exempt", "trustedProxies", "forwardedHeader", "ipv6Prefix", "onLimited", "headers"];
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;
const PRINTABLE = /^[ -~]+$/;
/** What keys may be, in bytes. */
const LONGEST_KEY = 1_024;

/** A limit whose options are right. */
class CheckedLimit<R> {
  readonly options: RequestLimit<R>;
  /** By the names of plans; by "" if there are none. */
  readonly #policies: ReadonlyMap<string, Policy>;

  constructor(options: RequestLimit<R>) {
    checkOptions(options, LIMIT, "limits");
    const { limiter, key, weight = 1, plan, name } = options;
    this.options = { ...options };
    const limiters = limitersOf(limiter, plan);
    if (typeof key === "string") {
      const header = /^header:(.*)$/s.exec(key)?.[1];
      const isKnown = header === undefined ? ["address", "user"].includes(key) : TOKEN.test(header);
      if (!isKnown) throw invalid("key", key, '"address", "user", "header:" with the name of one, or a function of the request');
    } else maybeFunction("key", key);
    if (typeof weight !== "function") weightIn(weight);
    for (const option of ["skipFailed", "skipSuccessful", "shadow"] as const) maybeBoolean(option, options[option]);
    if (options.skipFailed && options.skipSuccessful) {
      throw invalid("skipSuccessful", true, "not both this and skipFailed: nothing would be counted");
    }
    for (const one of name === undefined ? [...limiters.values()].map((limiter) => limiter.name) : [name]) {
      if (typeof one === "string" && PRINTABLE.test(one)) continue;
      throw invalid("name", one, "printable ASCII, for the headers: give the limit a name");
    }
    this.#policies = new Map([...limiters].map(([of, one]) => [of, new Policy(one, name ?? one.name)]));
  }

  /** What its policies are called. */
  names(): Set<string> {
    return new Set([...this.#policies.values()].map((policy) => policy.name));
  }

  /** What a request asks of it. */
  async asked(request: R, reader: Reader<R>, addresses: Addresses<R>): Promise<Asked> {
    const { key, weight, plan } = this.options;
    const units = typeof weight === "function" ? weightIn(await weight(request)) : (weight ?? 1);
    const named = plan === undefined ? "" : await plan(request);
    const policy = this.#policies.get(named);
    if (policy === undefined) throw invalid("plan", named, `one of ${[...this.#policies.keys()].join(", ")}`);
    let text: string;
    if (typeof key !== "function") text = keyOf(key, request, reader, addresses);
    else text = fitting(keyIn(await key(request)));
    return { options: this.options, policy, start: { key: text, weight: units }, decision: UNANSWERED, window: null };
  }
}

function limitersOf(limiter: unknown, plan: unknown): Map<string, Limiter> {
  const expected = "a limiter of this package, or an object with limiters by the names of plans";
  if (limiter instanceof Limiter) {
    if (plan !== undefined) throw invalid("plan", plan, "none beside one limiter: give limiters by the names of plans");
    return new Map([["", limiter]]);
  }
  if (typeof limiter !== "object" || limiter === null || Array.isArray(limiter)) throw invalid("limiter", limiter, expected);
  const limiters = Object.entries(limiter);
  for (const [name, one] of limiters) if (!(one instanceof Limiter)) throw invalid(`limiter.${name}`, one, "a limiter of this package");
  if (limiters.length === 0) throw invalid("limiter", "an empty object", expected, true);
  if (typeof plan !== "function") throw invalid("plan", plan, "a function of the request that gives the name of its plan");
  return new Map(limiters);
}

/** The key of a request, if it is not a function that gives it. */
function keyOf<R>(kind: string | undefined, request: R, reader: Reader<R>, addresses: Addresses<R>): string {
  if (kind === undefined) return "";
  if (kind === "address") return addresses.of(request);
  const found = kind === "user" ? userIn(reader.user(request)) : reader.header(request, kind.slice("header:".length).toLowerCase());
  if (found === undefined) return `address:${addresses.of(request)}`;
  // What clients choose must not look like what is made here.
  return /^(address|sha256):/.test(found) ? hashed(found) : fitting(found);
}

/** Who is signed in, by what a framework's session or token says. */
function userIn(user: unknown): string | undefined {
  if (user === undefined || user === null || user === "") return undefined;
  const { id, sub } = user as { id?: unknown; sub?: unknown };
  const found = typeof user === "object" ? (id ?? sub) : user;
  if (typeof found === "string" || typeof found === "number" || typeof found === "bigint") return String(found);
  throw invalid("user", user, "a string or number, or an object with an id or sub; otherwise give a function as key");
}

/** @internal A key that every store takes: what clients send may be of any length. */
export function fitting(key: string): string {
  return key.length * 3 > LONGEST_KEY && Buffer.byteLength(key) > LONGEST_KEY ? hashed(key) : key.toWellFormed();
}

const hashed = (key: string): string => `sha256:${createHash("sha256").update(key).digest("hex")}`;

function keyIn(key: unknown): string {
  if (key === undefined || key === null) return "";
  if (typeof key !== "string") throw invalid("key", key, "a string, or nothing, from its function");
  return key;
}

function weightIn(weight: unknown): number {
  if (Number.isSafeInteger(weight) && (weight as number) >= 1) return weight as number;
  throw invalid("weight", weight, "a whole number from 1 on, or a function of the request");
}

function maybeFunction(parameter: string, value: unknown): void {
  if (value !== undefined && typeof value !== "function") throw invalid(parameter, value, "a function of the request");
}

function maybeBoolean(parameter: string, value: unknown): void {
  if (value !== undefined && typeof value !== "boolean") throw invalid(parameter, value, "true or false");
}

/** What one request has taken, until its response is over. */
export class Entry {
  /** Those that were admitted, in this order in the headers. */
  readonly taken: Asked[] = [];
  #isOver = false;

  /** Is there nobody left to answer? */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** The response is over, or nobody waits for it: ends what was taken, and nothing is taken from now on. */
  async end(outcome: Outcome): Promise<void> {
    this.#isOver = true;
    await this.#end((limit) => (outcome === "failed" && limit.skipFailed) || (outcome === "successful" && limit.skipSuccessful));
  }

  /** As if nobody had asked. */
  async undo(): Promise<void> {
    await this.#end(() => true);
  }

  async #end(isUndone: (limit: RequestLimit<any>) => boolean | undefined): Promise<void> {
    if (this.taken.length === 0) return;
    const taken = this.taken.splice(0);
    await Promise.all(
      taken.map(async ({ options, policy, decision }) => {
        const permit = decision.permit as Permit;
        try {
          await (isUndone(options) ? permit.cancelAsync() : permit.completeAsync());
        } catch (error) {
          // Nobody can be told: the response is on its way. What is held ends with its lease, or with this process.
          warn(`a permit of ${policy.limiter.name} could not be ended`, error);
        }
      }),
    );
  }
}

/** Ends what a request has taken when its response is over, by a response of node:http: its last byte is sent, or nobody reads it. */
export function endWith(response: ServerResponse, entry: Entry): void {
  response.once("close", () => {
    const outcome = response.statusCode < 400 ? "successful" : "failed";
    void entry.end(response.writableEnded ? outcome : "left");
  });
}

/** The limits of an app, and how its requests are read. */
export class Gate<R, Answer> {
  /** What every request takes. */
  readonly limits: readonly CheckedLimit<R>[];
  readonly #reader: Reader<R>;
  readonly #addresses: Addresses<R>;
  readonly #exempt: NonNullable<ServingOptions<R, Answer>["exempt"]>;
  readonly #onLimited: OnLimited<R, Answer> | undefined;
  readonly #tells: boolean;

  /** `more` are options of the framework's own. */
  constructor(reader: Reader<R>, options: ServingOptions<R, Answer>, more: readonly string[] = []) {
    checkOptions(options, [...GATE, ...more]);
    const { limits = [], exempt = [], onLimited, headers } = options;
    this.#reader = reader;
    this.#addresses = new Addresses(reader, options);
    this.limits = checked(limits);
    if (typeof exempt !== "function") checkPaths(exempt);
    this.#exempt = exempt;
    maybeFunction("onLimited", onLimited);
    this.#onLimited = onLimited;
    maybeBoolean("headers", headers);
    this.#tells = headers ?? true;
  }

  /** Limits of a route, which a request takes beside those of the app. */
  route(limits: readonly RequestLimit<R>[]): readonly CheckedLimit<R>[] {
    return checked(limits, this.limits);
  }

  /** Is a request not limited at all? */
  isExempt(request: R): boolean | PromiseLike<boolean> {
    const exempt = this.#exempt;
    if (typeof exempt === "function") return exempt(request);
    if (exempt.length === 0) return false;
    const path = this.#reader.path(request);
    return exempt.some((one) => (one.endsWith("*") ? path.startsWith(one.slice(0, -1)) : path === one));
  }

  /**
   * Takes what a request needs beside what it has taken: all of it, or nothing, and why. After an error nothing is taken either, nor if
   * the response is over meanwhile.
   */
  async enter(request: R, limits: readonly CheckedLimit<R>[], entry: Entry, answer: Answer): Promise<Limited | null> {
    try {
      const asked: Asked[] = [];
      for (const limit of limits) {
        if (!limit.options.shadow) asked.push(await limit.asked(request, this.#reader, this.#addresses));
      }
      const shown = [...entry.taken.filter(({ options }) => !options.shadow), ...asked];
      const violated = await takeAll(asked, entry);
      if (this.#tells) for (const one of asked) if (one.policy.isWindowed) one.window = await one.policy.limiter._windowAsync();
      if (violated.length > 0) {
        await entry.undo();
        return this.#limited(violated, shown, false);
      }
      for (const limit of limits) if (limit.options.shadow) await this.#shadow(limit, request, entry, answer);
    } catch (error) {
      await entry.undo();
      throw error;
    }
    if (entry.isOver) await entry.undo();
    return null;
  }

  /** Counts, and refuses nothing, whatever goes wrong. */
  async #shadow(limit: CheckedLimit<R>, request: R, entry: Entry, answer: Answer): Promise<void> {
    try {
      const asked = await limit.asked(request, this.#reader, this.#addresses);
      asked.decision = await asked.policy.limiter.decideAsync(asked.start);
      if (asked.decision.admitted) entry.taken.push(asked);
      else await this.#onLimited?.(request, this.#limited([asked], [], true), answer);
    } catch (error) {
      warn("a limit in shadow mode failed", error);
    }
  }

  #limited(violated: readonly Asked[], shown: readonly Asked[], shadow: boolean): Limited {
    const worst = violated.reduce((a, b) => (b.decision.retryAfter > a.decision.retryAfter ? b : a));
    const { retryAfter, limit, remaining } = worst.decision;
    const names = violated.map(({ policy }) => policy.name);
    return {
      name: worst.policy.name,
      key: worst.start.key,
      retryAfter,
      limit,
      remaining,
      violated: names,
      shadow,
      status: 429,
      headers: { "Retry-After": String(wholeSeconds(retryAfter)), ...(this.#tells ? fields(shown, violated) : {}) },
      problem: {
        type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Request cannot be satisfied as assigned quota has been exceeded",
        status: 429,
        "violated-policies": names,
      },
    };
  }

  /** What a response says of the limits. */
  headersOf(entry: Entry): Record<string, string> {
    if (!this.#tells) return {};
    const shown = entry.taken.filter(({ options }) => !options.shadow);
    return fields(shown, shown);
  }

  /** The body of a refusal and its type; or what `onLimited` answered with, if `isAnswer` says so. */
  async reply<A extends Answer>(
    request: R,
    limited: Limited,
    answer: Answer,
    isAnswer: (reply: unknown) => reply is A,
  ): Promise<Body | A> {
    const reply: unknown = (await this.#onLimited?.(request, limited, answer)) ?? limited.problem;
    if (isAnswer(reply)) return reply;
    if (typeof reply === "string") return new Body(reply, "text/plain; charset=utf-8");
    if (reply instanceof Uint8Array) return new Body(new Uint8Array(reply), "application/octet-stream");
    if (typeof reply === "object") return new Body(JSON.stringify(reply), "application/problem+json");
    throw invalid("onLimited", reply, "nothing, an object, a string, bytes or a response from it");
  }
}

/** Limits that may stand beside each other, and beside others. */
function checked<R>(limits: readonly RequestLimit<R>[], beside: readonly CheckedLimit<R>[] = []): CheckedLimit<R>[] {
  if (!Array.isArray(limits)) throw invalid("limits", limits, "an array of limits, each an object with a limiter");
  const found = limits.map((limit) => new CheckedLimit<R>(limit));
  const seen = new Set<string>();
  for (const limit of [...beside, ...found]) {
    for (const name of limit.names()) {
      if (seen.has(name)) throw invalid("name", name, "another name for each limit of a request: give this one a name");
      seen.add(name);
    }
  }
  return found;
}

function checkPaths(paths: unknown): void {
  const expected = 'an array of paths such as "/health" and "/static/*", or a function of the request';
  if (!Array.isArray(paths)) throw invalid("exempt", paths, expected);
  for (const path of paths) {
    if (typeof path !== "string" || !/^\/[^*?#]*\*?$/.test(path)) throw invalid("exempt", path, expected);
  }
}

/**
 * Takes each of these. Those that say no, if any do: then what the entry has is to be undone.
 *
 * Looks at all first, where there are several: so a refusal leaves the others alone, unless somebody was faster at the one
 * that refuses.
 */
async function takeAll(asked: Asked[], entry: Entry): Promise<Asked[]> {
  let order = asked;
  if (asked.length + entry.taken.length > 1) {
    await Promise.all(asked.map(async (one) => void (one.decision = await one.policy.limiter.peekAsync(one.start))));
    // Who is about to say no is asked first: it has to know, for its counts and its backoff.
    order = asked.toSorted((a, b) => Number(a.decision.admitted) - Number(b.decision.admitted));
  }
  for (const one of order) {
    one.decision = await one.policy.limiter.decideAsync(one.start);
    if (!one.decision.admitted) return asked.filter(({ decision }) => !decision?.admitted);
    entry.taken.push(one);
  }
  return [];
}
