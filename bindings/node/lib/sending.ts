// Limits the requests of any HTTP client: takes permits before a request is sent, and ends them.

import { types } from "node:util";
import { sleepUnless } from "./aborting.js";
import { WeightExceedsCapacity, invalid } from "./errors.js";
import { warn } from "./hooks.js";
import { type HeedOptions, heed } from "./http.js";
import { type Duration, maybeMilliseconds, milliseconds, options as checkOptions, unicode, whole } from "./input.js";
import { Limiter } from "./limiter.js";
import type { Permit } from "./permit.js";
import { isSignal, priorityOf } from "./request.js";
import { type HttpResponse, headersOf, pauseOf, statusOf } from "./response.js";
import { now } from "./timers.js";
import { Meter, type Usage, estimateOf } from "./tokens.js";

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

/** How the requests of an HTTP client are limited. */
export interface SendingOptions {
  /** The key whose budget a request uses. Default: the empty key. */
  key?: string | ((request: OutgoingRequest) => string | null | undefined) | undefined;
  /** The units of the limit that a request takes. Default: 1. */
  weight?: number | ((request: OutgoingRequest) => number) | undefined;
  /** Waiting requests with a lower number are sent first. Default: 0. */
  priority?: number | undefined;
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
   * How often a request is retried after a 429, 503 or 529. Default: 0; at most 100. Requests whose body is a stream, or that would
   * have to wait longer than `timeout`, are not retried.
   */
  retries?: number | undefined;
  /** The limit of tokens. A request takes its estimate before it is sent, and gives the rest back afterwards. */
  tokens?: Limits | undefined;
  /**
   * Returns how many tokens a request may take; 0 for none. Default: for a JSON body, one token for every four characters of its
   * texts, plus `max_completion_tokens`, `max_output_tokens` or `max_tokens`. An estimate above the whole limit takes the whole limit.
   */
  estimate?: ((request: OutgoingRequest) => number) | undefined;
  /** Returns the used tokens from a JSON body, or from each JSON event of a stream. Default: reads those of OpenAI and Anthropic. */
  usage?: Usage | undefined;
}

/** @internal The names of the options. */
export const OPTIONS = ["key", "weight", "priority", "timeout", "signal", "heed", "retries", "tokens", "estimate", "usage"];

/** The statuses after which the same request may be sent again. */
const REFUSALS = [429, 503, 529];

/** @internal A permit that a request needs. */
export interface Want {
  readonly limiter: Limiter;
  readonly key: string;
  weight: number;
  readonly areTokens: boolean;
}

/** @internal A request of an HTTP client, as `Sending` needs it. */
export interface Attempts<R> {
  readonly signal?: AbortSignal | null | undefined;
  /** Whether its body can be sent twice. */
  readonly canRepeat: boolean;
  /** Sends the request. */
  send(): Promise<R>;
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
  readonly #limiter: (request: OutgoingRequest) => Limiter | null | undefined;
  readonly #tokens: ((request: OutgoingRequest) => Limiter | null | undefined) | undefined;
  readonly #key: (request: OutgoingRequest) => string | null | undefined;
  readonly #weight: (request: OutgoingRequest) => number;
  readonly #estimate: (request: OutgoingRequest) => number;
  readonly #usage: Usage | undefined;
  readonly #priority: number;
  readonly #timeout: number | undefined;
  readonly #signal: AbortSignal | undefined;
  readonly #heeds: boolean;
  readonly #pauses: { readonly default: number; readonly longest: number };
  readonly #retries: number;
  /** The limit that was full last. The next request waits for it first, because the others are probably not full. */
  #fullest = 0;

  /** Checks the options. */
  constructor(limiter: Limits | null, options: SendingOptions, known: readonly string[] = OPTIONS) {
    checkOptions(options, known);
    const { key, weight = 1, priority, timeout, signal, retries = 0, tokens, estimate, usage } = options;
    if (limiter === null && tokens === undefined) throw invalid("limiter", limiter, `${A_LIMIT}; null only with tokens`);
    this.#limiter = limiter === null ? () => null : chooser("limiter", limiter);
    this.#tokens = tokens === undefined ? undefined : chooser("tokens", tokens);
    for (const [name, given] of Object.entries({ estimate, usage })) {
      if (given === undefined) continue;
      if (typeof given !== "function") throw invalid(name, given, "a function");
      if (tokens === undefined) throw invalid(name, given, "none without tokens, the limit of them");
    }
    const fixed = key === undefined || typeof key === "function" ? undefined : unicode("key", key);
    this.#key = typeof key === "function" ? key : () => fixed;
    if (typeof weight !== "function") whole("weight", weight);
    this.#weight = typeof weight === "function" ? weight : () => weight;
    this.#estimate = estimate ?? (({ text }) => estimateOf(text));
    this.#usage = usage;
    this.#priority = priorityOf(priority);
    this.#timeout = maybeMilliseconds("timeout", timeout);
    if (signal !== undefined && !isSignal(signal)) throw invalid("signal", signal, "an AbortSignal");
    this.#signal = signal;
    const { heed = true } = options;
    if (typeof heed !== "boolean") checkOptions(heed, ["default", "longest"], "heed");
    const { default: usual = 1e3, longest = 36e5 } = typeof heed === "boolean" ? {} : heed;
    this.#heeds = heed !== false;
    this.#pauses = { default: milliseconds("heed.default", usual), longest: milliseconds("heed.longest", longest) };
    this.#retries = whole("retries", retries);
    if (retries > 100) throw invalid("retries", retries, "a whole number up to 100");
  }

  /** Whether requests are measured by their tokens, which needs their text. */
  get needsText(): boolean {
    return this.#tokens !== undefined;
  }

  /** Sends a request when it is admitted, and retries it if asked to. Returns `Sent` to follow the body, if the request is limited. */
  async send<R>(wants: readonly Want[], attempts: Attempts<R>): Promise<[R, Sent | null]> {
    if (wants.length === 0) return [await attempts.send(), null];
    const signals = [this.#signal, attempts.signal].filter((signal) => signal != null);
    const signal = signals.length === 2 ? AbortSignal.any(signals) : signals[0];
    for (let attempt = 0; ; attempt++) {
      // A start is decided in the microtask before `await` returns, and the request follows at once.
      const permits = this.#isOne(wants) ? [await this.#wait(wants[0]!, signal)] : await this.#acquire(wants, signal);
      const sent = new Sent(wants, permits, this.#usage);
      let result: R;
      try {
        result = await attempts.send();
      } catch (error) {
        if (attempts.neverArrived(error)) sent.cancel();
        else sent.end();
        throw error;
      }
      sent.arrived();
      try {
        const response = attempts.answerOf(result);
        const pause = pauseOf(response, this.#pauses);
        if (this.#heeds && pause) await this.#pause(wants, permits, response);
        sent.answered(response);
        if (attempt >= this.#retries || !attempts.canRepeat || !REFUSALS.includes(statusOf(response))) return [result, sent];
        const wait = pause ?? this.#pauses.default * 2 ** attempt;
        if (wait > (this.#timeout ?? Infinity)) return [result, sent];
        await attempts.discard(result);
        sent.end();
        // Otherwise the paused limit delays the retry.
        if (!this.#heeds || !pause) await sleepUnless(signal, Math.min(wait, this.#pauses.longest));
      } catch (error) {
        sent.end();
        throw (error as Error | null)?.name === "AbortError" && signal?.aborted ? signal.reason : error;
      }
    }
  }

  /** Returns the permits that a request needs before it is sent; none if it is not limited. */
  wants(request: OutgoingRequest): Want[] {
    const [limiter, tokens] = [this.#limiter(request), this.#tokens?.(request)];
    for (const [name, given] of Object.entries({ limiter, tokens })) {
      if (given != null && !(given instanceof Limiter)) throw invalid(name, given, "a limiter from this function, or nothing");
    }
    if (limiter == null && tokens == null) return [];
    const key = this.#key(request) ?? "";
    if (typeof key !== "string") throw invalid("key", key, "a string from this function, or nothing");
    const wants: Want[] = [];
    if (limiter != null) wants.push({ limiter, key, weight: whole("weight", this.#weight(request)), areTokens: false });
    const estimate = tokens == null ? 0 : this.#estimate(request);
    if (!(typeof estimate === "number" && estimate >= 0 && estimate <= Number.MAX_SAFE_INTEGER)) {
      throw invalid("estimate", estimate, "a number of tokens from this function");
    }
    if (tokens != null && estimate > 0) wants.push({ limiter: tokens, key, weight: Math.ceil(estimate), areTokens: true });
    return wants;
  }

  #isOne(wants: readonly Want[]): boolean {
    return wants.length === 1 && !wants[0]!.areTokens;
  }

  #wait({ limiter, key, weight }: Want, signal: AbortSignal | undefined): Promise<Permit> {
    return limiter.acquire({ key, weight, priority: this.#priority, timeout: this.#timeout, signal });
  }

  /**
   * Takes a permit of each. A permit that is held during the wait for another would count earlier than its request is sent. So this
   * waits for the limit that was full last, and then the others must admit the request at once. If one does not, all permits are
   * given back, and this waits for that one.
   */
  async #acquire(wants: readonly Want[], signal: AbortSignal | undefined): Promise<Permit[]> {
    const end = this.#timeout === undefined ? undefined : now() + this.#timeout;
    let first = Math.min(this.#fullest, wants.length - 1);
    // A request that had to give its permit back precedes the others.
    for (let priority = this.#priority; ; priority = Math.max(priority - 1, -(2 ** 31))) {
      const timeout = end === undefined ? undefined : Math.max(0, end - now());
      const permits: Permit[] = [];
      const ask = async (at: number, wait: boolean): Promise<boolean> => {
        const { limiter, key, weight } = wants[at]!;
        const permit = wait
          ? await limiter.acquire({ key, weight, priority, timeout, signal })
          : await limiter.tryAcquireAsync({ key, weight });
        if (permit !== null) permits[at] = permit;
        return permit !== null;
      };
      try {
        await fitting(wants[first]!, () => ask(first, true));
        let full = -1;
        for (let at = 0; at < wants.length && full < 0; at++) {
          if (at !== first && !(await fitting(wants[at]!, () => ask(at, false)))) full = at;
        }
        signal?.throwIfAborted();
        if (full < 0) return permits;
        this.#fullest = first = full;
      } catch (error) {
        await Promise.all(permits.map((permit) => permit?.cancelAsync()));
        throw error;
      }
      await Promise.all(permits.map((permit) => permit?.cancelAsync()));
    }
  }

  /** Pauses the limits for as long as the server says. A failure must not cost the response, which has arrived. */
  async #pause(wants: readonly Want[], permits: readonly Permit[], response: HttpResponse): Promise<void> {
    const pause = ({ limiter, key }: Want, i: number) => {
      // Only the alternative that was used has refused.
      const chosen = permits[i]?.chosen;
      return heed(chosen instanceof Limiter ? chosen : limiter, response, { ...this.#pauses, key: key === "" ? undefined : key });
    };
    try {
      await Promise.all(wants.map(pause));
    } catch (error) {
      warn("what a server said could not be heeded", error);
    }
  }
}

/** @internal A request that was sent, with its permits, which end when its response has been read. */
export class Sent {
  readonly #wants: readonly Want[];
  readonly #permits: readonly Permit[];
  readonly #usage: Usage | undefined;
  #meter: Meter | undefined;
  /** The tokens if the response does not state them; `undefined`: the estimate. */
  #otherwise: number | undefined;
  #isOver = false;

  constructor(wants: readonly Want[], permits: readonly Permit[], usage: Usage | undefined) {
    this.#wants = wants;
    this.#permits = permits;
    this.#usage = usage;
  }

  /** Notes that the server has the request. */
  arrived(): void {
    for (const permit of this.#permits) {
      try {
        permit.arrived();
      } catch (error) {
        warn("the arrival of a request could not be recorded", error); // Its end says so again.
      }
    }
  }

  /** Notes the head of the response. */
  answered(response: HttpResponse): void {
    if (!this.#wants.some(({ areTokens }) => areTokens)) return;
    const status = statusOf(response);
    // A refused request used no tokens.
    if ((status >= 400 && status < 500) || REFUSALS.includes(status)) this.#otherwise = 0;
    this.#meter = new Meter(response, headersOf(response).get("content-type") ?? "", this.#usage);
  }

  /** Whether it reads the body. */
  get reads(): boolean {
    return this.#meter !== undefined;
  }

  /** Reads a part of the body. */
  write(part: Uint8Array | string): void {
    if (!this.#isOver) this.#ask(() => this.#meter?.write(part));
  }

  /** Completes the permits: the body has been read, dropped, or has failed. */
  end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const used = this.#ask(() => this.#meter?.end()) ?? this.#otherwise;
    this.#permits.forEach((permit, at) => {
      const actual = this.#wants[at]!.areTokens ? used : undefined;
      this.#finish(actual === undefined ? permit.completeAsync() : settled(permit, actual));
    });
  }

  /** Cancels the permits: the server has seen nothing of the request. */
  cancel(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const permit of this.#permits) this.#finish(permit.cancelAsync());
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

const A_LIMIT = "a limiter, an object of hosts and their limiters, or a function of the request";
const HOST = /^(\[[0-9a-f:.]+\]|[^\s/:@?#[\]]+)(:[0-9]{1,5})?$/;

/** Returns the function that chooses a request's limiter. */
function chooser(parameter: string, given: unknown): (request: OutgoingRequest) => Limiter | null | undefined {
  if (given instanceof Limiter) return () => given;
  if (typeof given === "function") return given as (request: OutgoingRequest) => Limiter | null | undefined;
  if (typeof given !== "object" || given === null || Array.isArray(given)) throw invalid(parameter, given, A_LIMIT);
  const byHost = new Map<string, Limiter>();
  for (const [name, limiter] of Object.entries(given)) {
    const host = name.toLowerCase();
    if (!HOST.test(host)) throw invalid(parameter, `an object with "${name}"`, 'hosts such as "api.example.com" or "127.0.0.1:8080"', true);
    if (!(limiter instanceof Limiter)) throw invalid(`${parameter}["${name}"]`, limiter, "a limiter");
    byHost.set(host, limiter);
  }
  if (byHost.size === 0) throw invalid(parameter, "an object without hosts", A_LIMIT, true);
  return ({ url }) => {
    const port = url.port || (url.protocol === "https:" ? "443" : "80");
    return byHost.get(`${url.hostname}:${port}`) ?? byHost.get(url.hostname);
  };
}

/** Asks for a permit; if the estimate exceeds the whole limit, asks for the whole limit. */
async function fitting(want: Want, ask: () => Promise<boolean>): Promise<boolean> {
  try {
    return await ask();
  } catch (error) {
    if (!want.areTokens || !(error instanceof WeightExceedsCapacity)) throw error;
    const { limit } = await want.limiter.peekAsync({ key: want.key, weight: 0 });
    if (limit >= want.weight || limit < 1) throw error;
    want.weight = limit;
    return ask();
  }
}

/** Settles a permit, or completes it if its limiter cannot settle. */
async function settled(permit: Permit, actual: number): Promise<void> {
  try {
    await permit.settleAsync(actual);
  } catch (error) {
    if ((error as { code?: unknown }).code !== "unsupported") throw error;
    await permit.completeAsync();
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
