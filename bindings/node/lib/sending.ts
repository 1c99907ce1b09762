// Limits the requests of any HTTP client: takes permits before a request is sent, and ends them.

import { types } from "node:util";
import { sleepUnless } from "./aborting.js";
import { learn, watch } from "./budgets.js";
import type { PartKeys } from "./charges.js";
import { FirstOfLimiter } from "./composite.js";
import {
  DEMAND,
  type Demand,
  type DemandOptions,
  Demands,
  type Limits,
  type OutgoingRequest,
  type Start,
  type TokenParts,
  keyAt,
  unitsOf,
} from "./demand.js";
import { WeightExceedsCapacity, invalid } from "./errors.js";
import { warn } from "./hooks.js";
import type { HeedOptions } from "./http.js";
import { type Duration, maybeMilliseconds, milliseconds, options as checkOptions, shareOf, whole } from "./input.js";
import type { Limiter } from "./limiter.js";
import type { Permit } from "./permit.js";
import { isSignal, priorityOf } from "./request.js";
import { type Route, type Target, targetOf } from "./route.js";
import { type HttpResponse, headersOf, pauseOf, statusOf } from "./response.js";
import { Meter, type TokenKind, type Usage } from "./tokens.js";

export type { Destination, Route } from "./route.js";
export type { KeyOfRequest, Limits, OutgoingRequest, TokenParts, WeightOfRequest } from "./demand.js";

/** How the requests of an HTTP client are limited. */
export interface SendingOptions extends DemandOptions {
  /** Waiting requests with a lower number are sent first. Default: 0. */
  priority?: number | undefined;
  /** The share of a request's tenant in a shared limit: see `AcquireOptions.share`. */
  share?: number | undefined;
  /** The longest wait of a request, and of each retry, after which the client fails with a `TimeoutError`. Default: no timeout. */
  timeout?: Duration | undefined;
  /** When it aborts, or the request's own signal does, waiting requests give up. */
  signal?: AbortSignal | undefined;
  /**
   * Whether the server's rate limit headers pause the limit for all that share it, as `heed` of workglow-limit/http does. Pauses the
   * request's key; without one, all keys. Default: true.
   */
  heed?: boolean | Pick<HeedOptions, "default" | "longest"> | undefined;
  /**
   * Whether the limiter's rates become what the server's headers say about its own limits: as an override, which says where it comes
   * from. An operator's override stays. Default: false.
   */
  learn?: boolean | undefined;
  /**
   * How often a request is retried after a 429, 503 or 529. Default: 0; at most 100. Requests whose body is a stream, or that would
   * have to wait longer than `timeout`, are not retried.
   */
  retries?: number | undefined;
  /** Returns the used tokens from a JSON body, or from each JSON event of a stream. Default: reads those of OpenAI and Anthropic. */
  usage?: Usage | undefined;
  /**
   * Where a request goes, by the alternative of a `FirstOfLimiter` that was chosen: a function that returns a base URL, or an object with
   * `baseUrl` and `headers`. Credentials in the headers are not sent to another origin than the request's own, but for those of this function.
   * Default: where the request says.
   */
  route?: Route | undefined;
}

/** @internal The names of the options. */
export const OPTIONS = [...DEMAND, "priority", "share", "timeout", "signal", "heed", "learn", "retries", "usage", "route"];

/** The statuses after which the same request may be sent again. */
const REFUSALS = [429, 503, 529];

/** @internal A request of an HTTP client, as `Sending` needs it. */
export interface Attempts<R> {
  readonly signal?: AbortSignal | null | undefined;
  /** Whether its body can be sent twice. */
  readonly canRepeat: boolean;
  /** Sends the request, elsewhere if there is a target. */
  send(target: Target | null): Promise<R>;
  /** Returns the status and headers of a result. */
  answerOf(result: R): HttpResponse;
  /** Discards a result before another attempt. */
  discard(result: R): unknown;
  /** Returns whether the server has certainly seen nothing of the request. */
  neverArrived(error: unknown): boolean;
}

/** @internal Makes a request of its parts. Costly parts are computed on demand. */
export function outgoing(method: string, url: URL, headersOf: () => Headers, textOf: () => string | null): OutgoingRequest {
  let headers: Headers | undefined;
  let text: string | null | undefined;
  return {
    method: method.toUpperCase(),
    url,
    get headers() {
      return (headers ??= headersOf());
    },
    get text() {
      return text === undefined ? (text = textOf()) : text;
    },
  };
}

/** @internal Returns a body's text, if reading it does not consume the body. */
export function textOf(body: unknown): string | null {
  if (typeof body === "string") return body;
  if (body instanceof URLSearchParams) return String(body);
  if (types.isAnyArrayBuffer(body)) return Buffer.from(body).toString();
  return ArrayBuffer.isView(body) ? Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString() : null;
}

/** @internal Returns whether a body can be sent twice. */
export const isRepeatable = (body: unknown): boolean =>
  body == null || textOf(body) !== null || body instanceof Blob || body instanceof FormData;

/** @internal Limits the requests of a client. */
export class Sending {
  readonly #demands: Demands;
  readonly #usage: Usage | undefined;
  readonly #priority: number;
  readonly #share: number | undefined;
  readonly #timeout: number | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #heeds: boolean;
  readonly #learns: boolean;
  readonly #pauses: { readonly default: number; readonly longest: number };
  readonly #retries: number;
  readonly #route: Route | undefined;

  /** Checks the options. */
  constructor(limiter: Limits, options: SendingOptions, known: readonly string[] = OPTIONS) {
    checkOptions(options, known);
    const { priority, share, timeout, signal, retries = 0, tokens, estimate, usage, route } = options;
    this.#demands = new Demands(limiter, options);
    for (const [name, given] of Object.entries({ estimate, usage })) {
      if (given === undefined) continue;
      if (typeof given !== "function") throw invalid(name, given, "a function");
      if (tokens === undefined) throw invalid(name, given, "none without tokens, the part that counts them");
    }
    this.#usage = usage;
    if (route !== undefined && typeof route !== "function") throw invalid("route", route, "a function");
    this.#route = route;
    this.#priority = priorityOf(priority);
    this.#share = share === undefined ? undefined : shareOf(share);
    this.#timeout = maybeMilliseconds("timeout", timeout);
    if (signal !== undefined && !isSignal(signal)) throw invalid("signal", signal, "an AbortSignal");
    this.#signal = signal;
    const { heed = true } = options;
    if (typeof heed !== "boolean") checkOptions(heed, ["default", "longest"], "heed");
    const { default: usual = 1e3, longest = 36e5 } = typeof heed === "boolean" ? {} : heed;
    this.#heeds = heed !== false;
    const { learn: learns = false } = options;
    if (typeof learns !== "boolean") throw invalid("learn", learns, "true or false");
    this.#learns = learns;
    this.#pauses = { default: milliseconds("heed.default", usual), longest: milliseconds("heed.longest", longest) };
    this.#retries = whole("retries", retries);
    if (retries > 100) throw invalid("retries", retries, "a whole number up to 100");
  }

  /** Whether requests are measured by their tokens, which needs their text. */
  get needsText(): boolean {
    return this.#demands.needsText;
  }

  /** Returns what a request asks for before it is sent; `null` if it is not limited. */
  demand(request: OutgoingRequest): Demand | null {
    return this.#demands.of(request);
  }

  /** Sends a request when it is admitted, and retries it if asked to. Returns `Sent` to follow the body, if the request is limited. */
  async send<R>(demand: Demand | null, attempts: Attempts<R>): Promise<[R, Sent | null]> {
    const opening = demand?.limiter._opening();
    if (opening != null) await opening.catch(() => {}); // The start says why, and counts the failure.
    const start = demand === null ? null : this.#demands.startOf(demand);
    if (demand === null || start === null) return [await attempts.send(null), null];
    const signals = [this.#signal, attempts.signal].filter((signal) => signal != null);
    const signal = signals.length === 2 ? AbortSignal.any(signals) : signals[0];
    for (let attempt = 0; ; attempt++) {
      // A start is decided in the microtask before `await` returns, and the request follows at once.
      const permit = await this.#acquire(start, signal);
      const sent = new Sent(start.tokens, permit, this.#usage);
      let target: Target | null;
      try {
        target = targetOf(this.#route, permit.chosen, demand.url); // A retry may go elsewhere.
      } catch (error) {
        sent.cancel();
        throw error;
      }
      const watched = this.#heeds ? watch(usedOf(start, permit)) : null;
      let result: R;
      try {
        result = await attempts.send(target);
      } catch (error) {
        watched?.forget();
        if (attempts.neverArrived(error)) sent.cancel();
        else sent.end();
        throw error;
      }
      sent.arrived();
      try {
        const response = attempts.answerOf(result);
        const pause = pauseOf(response, this.#pauses);
        if (this.#learns) learn(usedOf(start, permit), response, (target?.url ?? demand.url).hostname);
        if (this.#heeds && pause) {
          watched?.forget(); // A paused limit takes no charges. A later response says what others have spent.
          await this.#pause(start, permit, pause);
        } else watched?.answered(response);
        sent.answered(response);
        if (attempt >= this.#retries || !attempts.canRepeat || !REFUSALS.includes(statusOf(response))) return [result, sent];
        const wait = pause ?? this.#pauses.default * 2 ** attempt;
        if (wait > (this.#timeout ?? Infinity)) return [result, sent];
        await attempts.discard(result);
        sent.end();
        // Otherwise the paused limit delays the retry.
        if (!this.#heeds || !pause) await sleepUnless(signal, Math.min(wait, this.#pauses.longest));
      } catch (error) {
        watched?.forget();
        sent.end();
        throw (error as Error | null)?.name === "AbortError" && signal?.aborted ? signal.reason : error;
      }
    }
  }

  /** Waits for a start. An estimate above the capacity of a part takes all of it. */
  async #acquire({ limiter, key, weight, tokens }: Start, signal: AbortSignal | undefined): Promise<Permit> {
    const options = { key, priority: this.#priority, share: this.#share, timeout: this.#timeout, signal };
    try {
      return await limiter.acquire({ ...options, weight });
    } catch (error) {
      // Of alternatives, those that are too small are left out.
      if (!(error instanceof WeightExceedsCapacity) || typeof weight !== "object" || limiter instanceof FirstOfLimiter) throw error;
      const fitting = { ...weight };
      const { parts } = limiter;
      for (const part of Object.values(tokens)) {
        const { limit } = await parts[part]!.peekAsync({ key: keyAt(key, part), weight: 0 });
        if (limit >= 1) fitting[part] = Math.min(fitting[part]!, limit);
      }
      if (Object.values(tokens).every((part) => fitting[part] === weight[part])) throw error;
      return limiter.acquire({ ...options, weight: fitting });
    }
  }

  /** Pauses the limit for as long as the server says. A failure must not cost the response, which has arrived. */
  async #pause(start: Start, permit: Permit, pause: number): Promise<void> {
    try {
      await Promise.all(refusedBy(start, permit._chosen()).map(([limiter, key]) => limiter.pause(pause, { key })));
    } catch (error) {
      warn("what a server said could not be heeded", error);
    }
  }
}

/** Returns a start as that of the alternative that was chosen, whose server counts it. */
function usedOf(start: Start, permit: Permit): Start {
  const chosen = start.limiter instanceof FirstOfLimiter ? permit._chosen() : null;
  return chosen === null ? start : { ...start, limiter: chosen };
}

/** Returns what a refusal pauses: of alternatives only the one that was used, and parts where they have keys of their own. */
function refusedBy({ limiter, key }: Start, chosen: Limiter | null): [Limiter, string | undefined][] {
  if (typeof key === "string") return [[chosen ?? limiter, key || undefined]];
  if (chosen === null) return pausesOf(limiter, key, "", undefined);
  let [path, own]: [string, string | undefined] = ["", undefined];
  const around = (at: Limiter) => Object.entries(at.parts).find(([, part]) => part._find(chosen._number) !== null);
  for (let next = around(limiter); next !== undefined; next = around(next[1])) {
    own = keyAt(key, path + next[0]) ?? own;
    path += `${next[0]}/`;
  }
  return pausesOf(chosen, key, path, own);
}

/** Returns the parts that have keys of their own, below a path that is empty or ends with "/". */
function pausesOf(limiter: Limiter, key: PartKeys, path: string, own: string | undefined): [Limiter, string | undefined][] {
  const parts = Object.keys(key).some((name) => name.startsWith(path)) ? Object.entries(limiter.parts) : [];
  if (parts.length === 0) return [[limiter, own]];
  return parts.flatMap(([name, part]) => pausesOf(part, key, `${path + name}/`, keyAt(key, path + name) ?? own));
}

/** @internal A request that was sent, with its permit, which ends when its response has been read. */
export class Sent {
  /** The parts that count its tokens. */
  readonly #tokens: TokenParts;
  readonly #permit: Permit;
  readonly #usage: Usage | undefined;
  #meter: Meter | undefined;
  /** Whether it used no tokens, if the response does not state any. */
  #isFree = false;
  #isOver = false;

  constructor(tokens: TokenParts, permit: Permit, usage: Usage | undefined) {
    this.#tokens = tokens;
    this.#permit = permit;
    this.#usage = usage;
  }

  /** Notes that the server has the request. */
  arrived(): void {
    try {
      this.#permit.arrived();
    } catch (error) {
      warn("the arrival of a request could not be recorded", error); // Its end says so again.
    }
  }

  /** Notes the head of the response. */
  answered(response: HttpResponse): void {
    if (Object.keys(this.#tokens).length === 0) return;
    const status = statusOf(response);
    // A refused request used no tokens.
    this.#isFree = (status >= 400 && status < 500) || REFUSALS.includes(status);
    const usage = this.#usage;
    const given =
      usage &&
      ((data: unknown) => {
        const used = usage(data, response);
        return used == null ? undefined : unitsOf("usage", used, this.#tokens);
      });
    this.#meter = new Meter(headersOf(response).get("content-type") ?? "", given);
  }

  /** Whether it reads the body. */
  get reads(): boolean {
    return this.#meter !== undefined;
  }

  /** Reads a part of the body. */
  write(part: Uint8Array | string): void {
    if (!this.#isOver) this.#ask(() => this.#meter?.write(part));
  }

  /** Completes the permit: the body has been read, dropped, or has failed. */
  end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const stated = this.#ask(() => this.#meter?.end());
    const used: Record<string, number> = {};
    for (const [kind, part] of Object.entries(this.#tokens)) {
      const units = stated?.[kind as TokenKind] ?? (this.#isFree ? 0 : undefined);
      if (units !== undefined) used[part] = units;
    }
    this.#finish(Object.keys(used).length > 0 ? this.#permit.settleAsync(used) : this.#permit.completeAsync());
  }

  /** Cancels the permit: the server has seen nothing of the request. */
  cancel(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#finish(this.#permit.cancelAsync());
  }

  /** Calls a function of the caller, whose error must not cost the response. */
  #ask<T>(read: () => T): T | undefined {
    try {
      return read();
    } catch (error) {
      this.#meter = undefined;
      warn("the usage of a response could not be read", error);
      return undefined;
    }
  }

  /** Ends a permit without delaying the end of the response. */
  #finish(ending: Promise<void>): void {
    ending.catch((error: unknown) => warn("a permit of a request could not be ended", error));
  }
}

/** The codes of errors before a connection was made. */
const BEFORE =
  /^(UND_ERR_CONNECT_TIMEOUT|ERR_INVALID_URL|ERR_INVALID_PROTOCOL|ERR_TLS_CERT_|CERT_|DEPTH_ZERO_|SELF_SIGNED_|UNABLE_TO_|ENOTFOUND$|EAI_|ECONNREFUSED$|EHOSTUNREACH$|ENETUNREACH$)/;

/** @internal Returns whether a request failed before the server could see anything of it; false if in doubt. */
export function neverArrived(error: unknown): boolean {
  for (let at: unknown = error; typeof at === "object" && at !== null; at = (at as { cause?: unknown }).cause) {
    const { code, syscall, errors } = at as { code?: unknown; syscall?: unknown; errors?: unknown };
    if (syscall === "connect" || syscall === "getaddrinfo" || (typeof code === "string" && BEFORE.test(code))) return true;
    if (Array.isArray(errors) && errors.length > 0 && errors.every(neverArrived)) return true;
  }
  return false;
}

/** Completes the requests of bodies that were collected before they were read to their end. */
const unread = new FinalizationRegistry<{ reader: ReadableStreamDefaultReader<Uint8Array>; sent: Sent }>(({ reader, sent }) => {
  sent.end();
  reader.cancel().catch(() => {});
});

/** @internal Returns a body that reports its parts and its end. */
export function followed(body: ReadableStream<Uint8Array>, sent: Sent): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  let weak: WeakRef<ReadableStreamDefaultController<Uint8Array>> | undefined;
  const stream = new ReadableStream<Uint8Array>(
    {
      start(controller) {
        weak = new WeakRef(controller); // The handler below must not keep a dropped body alive.
      },
      async pull(controller) {
        const { done, value } = await reader.read();
        if (done) {
          sent.end();
          return controller.close();
        }
        if (sent.reads) sent.write(value);
        controller.enqueue(value);
      },
      async cancel(reason) {
        sent.end();
        await reader.cancel(reason);
      },
    },
    { highWaterMark: 0 },
  );
  // The body may fail while it is not being read: by an abort, or a broken connection.
  reader.closed.catch((error: unknown) => {
    sent.end();
    try {
      weak?.deref()?.error(error);
    } catch {
      // The caller has cancelled it.
    }
  });
  unread.register(stream, { reader, sent });
  return stream;
}
