// Limits the requests of a server, for any framework: chooses the limits and keys of a request, and writes the headers of the response.
// The modules that are named after frameworks read requests and write responses.

import type { ServerResponse } from "node:http";
import { type AddressOptions, Addresses, type Reader } from "./address.js";
import { StoreError, invalid } from "./errors.js";
import { fields, wholeSeconds } from "./fields.js";
import { warn } from "./hooks.js";
import { options as checkOptions } from "./input.js";
import type { Permit } from "./permit.js";
import {
  CheckedLimit,
  type RequestLimit,
  type RequestStart,
  type Shown,
  deniers,
  fullest,
  isSkipped,
  maybeBoolean,
  maybeFunction,
  show,
} from "./request-limit.js";

export type { RequestKey, RequestLimit } from "./request-limit.js";

/** How requests are limited. `Answer` is a response of the framework, which `onLimited` may return. */
export interface ServingOptions<R, Answer> extends AddressOptions {
  /** The limits of every request. A request that one of them denies is refused, and charged by none. Default: no limits. */
  limits?: readonly RequestLimit<R>[] | undefined;
  /** The requests that are not limited at all: paths such as "/health" and "/static/*", or a function of the request. */
  exempt?: readonly string[] | ((request: R) => boolean | PromiseLike<boolean>) | undefined;
  /**
   * Called when a request is refused, or would be without shadow mode. It returns a body (an object, a string or bytes), a response
   * of the framework, or nothing to send the default body.
   */
  onLimited?: OnLimited<R, Answer> | undefined;
  /** Whether responses have RateLimit and RateLimit-Policy. Default: true. */
  headers?: boolean | undefined;
}

/** Called when a request is refused. `answer` is the object for the framework's response, if it has one. */
export type OnLimited<R, Answer> = (request: R, limited: Limited, answer: Answer) => Reply<Answer> | PromiseLike<Reply<Answer>>;

/** The result of `onLimited`. */
export type Reply<Answer> = void | null | object | string | Uint8Array | Answer;

/** A request that was refused, or would have been without shadow mode. */
export interface Limited {
  /** The policy that denied, or "NAME/PART" for a part of it; of several, the one with the longest wait. */
  readonly name: string;
  /** The key of the request under this policy or part. */
  readonly key: string;
  /** The time in ms until a retry may succeed, not rounded. */
  readonly retryAfter: number;
  /** The units that the policy allows. */
  readonly limit: number;
  /** The units that are left for lighter requests. */
  readonly remaining: number;
  /** The names of all policies that denied. */
  readonly violated: readonly string[];
  /** Whether the request was admitted because the limit is in shadow mode. */
  readonly shadow: boolean;
  /** The status of the response. */
  readonly status: 429;
  /** The headers of the response: Retry-After, RateLimit and RateLimit-Policy. */
  readonly headers: Readonly<Record<string, string>>;
  /** The default body: problem details of RFC 9457. */
  readonly problem: Readonly<Record<string, unknown>>;
}

/** A request whose limit has no room for its key: the store, or the limit's share of it, is full. */
export interface Unavailable {
  readonly status: 503;
  readonly headers: Readonly<Record<string, string>>;
  readonly problem: Readonly<Record<string, unknown>>;
}

/** When a client may ask again whose limit was full, in seconds. */
const AGAIN = "1";

/** The time in ms between two warnings of a full limit. */
const PAUSE = 60_000;

/** The body of a refusal, and its type. */
export class Body {
  constructor(
    readonly content: string | Uint8Array<ArrayBuffer>,
    readonly type: string,
  ) {}
}

/** How a response ended: with a status, or because the client disconnected. */
export type Outcome = number | "left";

const GATE = ["limits", "exempt", "trustedProxies", "forwardedHeader", "ipv6Prefix", "onLimited", "headers"];

/** The permits of one request, until its response has ended. */
export class Entry {
  /** The admitted starts, in the order of the headers. */
  readonly taken: RequestStart[] = [];
  /** The limits that have admitted the request: a middleware that is used twice counts it once. */
  readonly passed = new Set<RequestLimit<any>>();
  #isOver = false;

  /** Whether the response has ended or the client has disconnected. */
  get isOver(): boolean {
    return this.#isOver;
  }

  /** Ends all permits: the response has ended, or the client has disconnected. No more are taken from now on. */
  async end(outcome: Outcome): Promise<void> {
    this.#isOver = true;
    await this.#end((limit) => outcome !== "left" && isSkipped(limit, outcome));
  }

  /** Cancels all permits. */
  async undo(): Promise<void> {
    await this.#end(() => true);
  }

  async #end(isUndone: (limit: RequestLimit<any>) => boolean): Promise<void> {
    if (this.taken.length === 0) return;
    const taken = this.taken.splice(0);
    await Promise.all(
      taken.map(async ({ options, policy, decision }) => {
        const permit = decision.permit as Permit;
        try {
          await (isUndone(options) ? permit.cancelAsync() : permit.completeAsync());
        } catch (error) {
          // The response is on its way, so this is only a warning. The permit ends with its lease, or with this process.
          warn(`a permit of ${policy.limiter.name} could not be ended`, error);
        }
      }),
    );
  }
}

/** Ends a request's permits when its node:http response has sent its last byte, or the client has disconnected. */
export function endWith(response: ServerResponse, entry: Entry): void {
  response.once("close", () => void entry.end(response.writableEnded ? response.statusCode : "left"));
}

/** The limits of an app, and how its requests are read. */
export class Gate<R, Answer> {
  /** The limits of every request. */
  readonly limits: readonly CheckedLimit<R>[];
  readonly #reader: Reader<R>;
  readonly #addresses: Addresses<R>;
  readonly #exempt: NonNullable<ServingOptions<R, Answer>["exempt"]>;
  readonly #onLimited: OnLimited<R, Answer> | undefined;
  readonly #hasHeaders: boolean;
  /** When a full limit is warned of again. */
  #warnsFrom = 0;

  /** `more` are options of the framework. */
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
    this.#hasHeaders = headers ?? true;
  }

  /** Checks the limits of a route, which its requests need in addition to those of the app. */
  route(limits: readonly RequestLimit<R>[]): readonly CheckedLimit<R>[] {
    return checked(limits, this.limits);
  }

  /** Returns whether a request is not limited at all. */
  isExempt(request: R): boolean | PromiseLike<boolean> {
    const exempt = this.#exempt;
    if (typeof exempt === "function") return exempt(request);
    if (exempt.length === 0) return false;
    const path = this.#reader.path(request);
    return exempt.some((one) => (one.endsWith("*") ? path.startsWith(one.slice(0, -1)) : path === one));
  }

  /**
   * Takes permits of these limits, once each, in addition to those that the request has: all, or none; then it returns why. It also takes none
   * after an error, or if the response has ended.
   */
  async enter(request: R, wanted: readonly CheckedLimit<R>[], entry: Entry, answer: Answer): Promise<Limited | Unavailable | null> {
    const limits = wanted.filter(({ given }) => !entry.passed.has(given));
    try {
      const starts: RequestStart[] = [];
      for (const limit of limits) {
        if (!limit.options.shadow) starts.push(await limit.startOf(request, this.#reader, this.#addresses));
      }
      const shown = [...entry.taken.filter(({ options }) => !options.shadow), ...starts];
      const violated = await takeAll(starts, entry);
      for (const one of starts) await show(one, this.#hasHeaders);
      if (violated.length > 0) {
        await entry.undo();
        return this.#limited(violated, shown, false);
      }
      for (const limit of limits) if (limit.options.shadow) await this.#shadow(limit, request, entry, answer);
    } catch (error) {
      await entry.undo();
      if (!(error instanceof StoreError && error.code === "store_full")) throw error;
      // A client that is new, among too many. It is not the app's fault, and a retry may succeed. There may be thousands a second.
      const now = performance.now();
      if (now >= this.#warnsFrom) {
        this.#warnsFrom = now + PAUSE;
        warn("a request got the status 503", error);
      }
      return {
        status: 503,
        headers: { "Retry-After": AGAIN },
        problem: { type: "about:blank", title: "Service Unavailable", status: 503 },
      };
    }
    for (const limit of limits) entry.passed.add(limit.given);
    if (entry.isOver) await entry.undo();
    return null;
  }

  /** Counts a request and never refuses it, even after an error. */
  async #shadow(limit: CheckedLimit<R>, request: R, entry: Entry, answer: Answer): Promise<void> {
    try {
      const one = await limit.startOf(request, this.#reader, this.#addresses);
      one.decision = await one.policy.limiter.decideAsync(one.start);
      if (one.decision.admitted) return void entry.taken.push(one);
      await show(one, this.#hasHeaders);
      await this.#onLimited?.(request, this.#limited([one], [], true), answer);
    } catch (error) {
      warn("a limit in shadow mode failed", error);
    }
  }

  #limited(violated: readonly RequestStart[], shown: readonly RequestStart[], shadow: boolean): Limited {
    const denied = violated.flatMap(deniers);
    const worst = denied.reduce((a, b) => (b.decision.retryAfter > a.decision.retryAfter ? b : a));
    const { limit, remaining } = worst.decision;
    const retryAfter = Math.max(...violated.map(({ decision }) => decision.retryAfter), worst.decision.retryAfter);
    const names = denied.map(({ policy }) => policy.name);
    return {
      name: worst.policy.name,
      key: worst.key,
      retryAfter,
      limit,
      remaining,
      violated: names,
      shadow,
      status: 429,
      headers: { "Retry-After": String(wholeSeconds(retryAfter)), ...(this.#hasHeaders ? fields(policies(shown), denied) : {}) },
      problem: {
        type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
        title: "Request cannot be satisfied as assigned quota has been exceeded",
        status: 429,
        "violated-policies": names,
      },
    };
  }

  /** Returns the headers of an admitted request's response. */
  headersOf(entry: Entry): Record<string, string> {
    if (!this.#hasHeaders) return {};
    const shown = entry.taken.filter(({ options }) => !options.shadow);
    return fields(policies(shown), shown.flatMap(fullest));
  }

  /** Returns the body of a refusal; or the result of `onLimited`, if the limit denied and `isAnswer` accepts it as a response. */
  async reply<A extends Answer>(
    request: R,
    limited: Limited | Unavailable,
    answer: Answer,
    isAnswer: (reply: unknown) => reply is A,
  ): Promise<Body | A> {
    const reply: unknown = (limited.status === 429 ? await this.#onLimited?.(request, limited, answer) : null) ?? limited.problem;
    if (isAnswer(reply)) return reply;
    if (typeof reply === "string") return new Body(reply, "text/plain; charset=utf-8");
    if (reply instanceof Uint8Array) return new Body(new Uint8Array(reply), "application/octet-stream");
    if (typeof reply === "object") return new Body(JSON.stringify(reply), "application/problem+json");
    throw invalid("onLimited", reply, "nothing, an object, a string, bytes or a response from it");
  }
}

/** Returns the policies of these starts. */
const policies = (starts: readonly RequestStart[]): Shown[] => starts.flatMap(({ shown }) => shown);

/** Checks limits of the same request, which may have other limits, too. */
function checked<R>(limits: readonly RequestLimit<R>[], others: readonly CheckedLimit<R>[] = []): CheckedLimit<R>[] {
  if (!Array.isArray(limits)) throw invalid("limits", limits, "an array of limits, each an object with a limiter");
  const found = limits.map((limit) => new CheckedLimit<R>(limit));
  const seen = new Set<string>();
  for (const limit of [...others, ...found]) {
    for (const name of limit.names()) {
      if (seen.has(name)) throw invalid("name", name, "a different name for each limit of a request: set its name");
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
 * Takes a permit of each. Returns those that denied; if there are any, the caller has to undo the entry.
 *
 * With several limits it peeks at all of them first. So a refusal does not touch the others, unless another request takes the last
 * units between the peek and the decision.
 */
async function takeAll(starts: RequestStart[], entry: Entry): Promise<RequestStart[]> {
  let order = starts;
  if (starts.length + entry.taken.length > 1) {
    await Promise.all(starts.map(async (one) => void (one.decision = await one.policy.limiter.peekAsync(one.start))));
    // A limit that is about to deny decides first: its counts and backoff need the denial.
    order = starts.toSorted((a, b) => Number(a.decision.admitted) - Number(b.decision.admitted));
  }
  for (const one of order) {
    one.decision = await one.policy.limiter.decideAsync(one.start);
    if (!one.decision.admitted) return starts.filter(({ decision }) => !decision?.admitted);
    entry.taken.push(one);
  }
  return [];
}
