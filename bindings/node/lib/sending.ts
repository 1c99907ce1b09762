// A limiter in front of an HTTP client, whichever it is: permits before a request is sent, and what becomes of them.

import { types } from "node:util";
import { WeightExceedsCapacity, invalid } from "./errors.js";
import { warn } from "./hooks.js";
import { type HeedOptions, heed } from "./http.js";
import { type Duration, maybeMilliseconds, milliseconds, options as checkOptions, unicode, whole } from "./input.js";
import { Limiter } from "./limiter.js";
import { Permit } from "./permit.js";
import { isSignal, priorityOf } from "./request.js";
import { type HttpResponse, headersOf, pauseOf, statusOf } from "./response.js";
import { now, sleep } from "./timers.js";
import { Meter, type Usage, estimateOf } from "./tokens.js";

/** A request that is about to be sent, as functions of it see it. */
export interface OutgoingRequest {
  /** In capitals. */
  readonly method: string;
  /** Where it goes. */
  readonly url: URL;
  /** Its headers, as the caller set them. */
  readonly headers: Headers;
  /** Its body, if that is a text, or bytes of one; `null` for none, and for a stream, which can be read only once. */
  readonly text: string | null;
}

/**
 * What limits a request: a limiter, an object of hosts and their limiters ("api.example.com", or "127.0.0.1:8080" with the port,
 * which goes first; other hosts are not limited), or a function of the request that gives a limiter or nothing.
 */
export type Limits =
  | Limiter
  | { readonly [host: string]: Limiter }
  | ((request: OutgoingRequest) => Limiter | null | undefined);

/** How the requests of an HTTP client are limited. */
export interface SendingOptions {
  /** The key whose budget a request uses; the empty key if not given. */
  key?: string | ((request: OutgoingRequest) => string | null | undefined) | undefined;
  /** How many units of the limit a request takes: 1 if not given. */
  weight?: number | ((request: OutgoingRequest) => number) | undefined;
  /** Who is sent first among those who wait: lower numbers are; 0 if not given. */
  priority?: number | undefined;
  /** How long a request waits at most, and each retry again; as long as it takes if not given. Then the client fails with a `TimeoutError`. */
  timeout?: Duration | undefined;
  /** Those who wait give up when it aborts, and when the request's own signal does. */
  signal?: AbortSignal | undefined;
  /**
   * Does what the server says pause the limit for everyone, as `heed` of workglow-limit/http does it? It does if not given. The
   * request's key is paused, without one all keys.
   */
  heed?: boolean | Pick<HeedOptions, "default" | "longest"> | undefined;
  /**
   * How often a 429, 503 or 529 is sent again: 0 if not given, at most 100. Bodies that are streams are not sent again, nor is a
   * request that would have to wait for longer than `timeout`.
   */
  retries?: number | undefined;
  /** The limit of tokens: the estimate is taken of it before a request is sent, and the rest given back after. */
  tokens?: Limits | undefined;
  /**
   * How many tokens a request may take; 0: none. If not given, a JSON body's texts have a token for every four characters,
   * and what `max_completion_tokens`, `max_output_tokens` or `max_tokens` says comes to that. An estimate above all that the
   * limit allows takes all of it.
   */
  estimate?: ((request: OutgoingRequest) => number) | undefined;
  /** Reads from a JSON body, or each JSON event of a stream, how many were used. If not given, what OpenAI and Anthropic say. */
  usage?: Usage | undefined;
}

/** @internal The names of the options. */
export const OPTIONS = ["key", "weight", "priority", "timeout", "signal", "heed", "retries", "tokens", "estimate", "usage"];

/** After these the same request may be sent again. */
const REFUSALS = [429, 503, 529];

/** @internal What one of the limits was asked for. */
export interface Want {
  readonly limiter: Limiter;
  readonly key: string;
  weight: number;
  readonly areTokens: boolean;
}

/** @internal A request that an HTTP client sends, as `Sending` has to know it. */
export interface Attempts<R> {
  readonly signal?: AbortSignal | null | undefined;
  /** Can its body be sent twice? */
  readonly canRepeat: boolean;
  /** Sends it. */
  send(): Promise<R>;
  /** The status and headers of what came back. */
  answerOf(result: R): HttpResponse;
  /** What came back is not wanted: another attempt follows. */
  discard(result: R): unknown;
  /** Is it certain that the server has seen nothing of it? */
  neverArrived(error: unknown): boolean;
}

/** @internal Makes a request of parts, the costly ones on demand. */
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

/** @internal A body's text, if it can be had without using the body up. */
export function textOf(body: unknown): string | null {
  if (typeof body === "string") return body;
  if (body instanceof URLSearchParams) return String(body);
  if (types.isAnyArrayBuffer(body)) return Buffer.from(body).toString();
  return ArrayBuffer.isView(body) ? Buffer.from(body.buffer, body.byteOffset, body.byteLength).toString() : null;
}

/** @internal Can a body be sent twice? */
export const isRepeatable = (body: unknown): boolean =>
  body == null || textOf(body) !== null || body instanceof Blob || body instanceof FormData;

/** @internal What stands before a client. */
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
  /** The limit that was short last: the next request begins there, because the others will hardly be. */
  #shortest = 0;

  /** Checks what a caller gave. */
  constructor(limiter: Limits | null, options: SendingOptions, known: readonly string[] = OPTIONS) {
    checkOptions(options, known);
    const { key, weight = 1, priority, timeout, signal, retries = 0, tokens, estimate, usage } = options;
    if (limiter === null && tokens === undefined) throw invalid("limiter", limiter, `${A_LIMIT}; null only beside tokens`);
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

  /** Are requests measured by their tokens, for which their text is needed? */
  get needsText(): boolean {
    return this.#tokens !== undefined;
  }

  /** Sends a request when it may be, and again if it shall be. What it gives follows the body, if anything limits it. */
  async send<R>(wants: readonly Want[], attempts: Attempts<R>): Promise<[R, Sent | null]> {
    if (wants.length === 0) return [await attempts.send(), null];
    const signals = [this.#signal, attempts.signal].filter((signal) => signal != null);
    const signal = signals.length === 2 ? AbortSignal.any(signals) : signals[0];
    for (let attempt = 0; ; attempt++) {
      const sent = new Sent(wants, await this.#acquire(wants, signal), this.#usage);
      let result: R;
      try {
        result = await attempts.send();
      } catch (error) {
        if (attempts.neverArrived(error)) sent.cancel();
        else sent.end();
        throw error;
      }
      try {
        const response = attempts.answerOf(result);
        const pause = pauseOf(response, this.#pauses);
        if (this.#heeds && pause > 0) await this.#pause(wants, response);
        sent.answered(response);
        if (attempt >= this.#retries || !attempts.canRepeat || !REFUSALS.includes(statusOf(response))) return [result, sent];
        const wait = pause || this.#pauses.default * 2 ** attempt;
        if (wait > (this.#timeout ?? Infinity)) return [result, sent];
        await attempts.discard(result);
        sent.end();
        // Otherwise the limit itself holds it up.
        if (!this.#heeds || pause === 0) await sleep(Math.min(wait, this.#pauses.longest), undefined, { signal });
      } catch (error) {
        sent.end();
        throw (error as Error | null)?.name === "AbortError" && signal?.aborted ? signal.reason : error;
      }
    }
  }

  /** What a request needs before it is sent; nothing if it is not limited. */
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

  /**
   * A permit of each. To keep one's start while waiting for another's would send later than it counts, so the one that is short is
   * waited for, the others must have room then, and if one has none all are given back and that one is waited for.
   */
  async #acquire(wants: readonly Want[], signal: AbortSignal | undefined): Promise<Permit[]> {
    const end = this.#timeout === undefined ? undefined : now() + this.#timeout;
    let first = Math.min(this.#shortest, wants.length - 1);
    // Who had to give back what it waited for goes before the others.
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
        let short = -1;
        for (let at = 0; at < wants.length && short < 0; at++) {
          if (at !== first && !(await fitting(wants[at]!, () => ask(at, false)))) short = at;
        }
        signal?.throwIfAborted();
        if (short < 0) return permits;
        this.#shortest = first = short;
      } catch (error) {
        await Promise.all(permits.map((permit) => permit?.cancelAsync()));
        throw error;
      }
      await Promise.all(permits.map((permit) => permit?.cancelAsync()));
    }
  }

  /** Lets nobody start for as long as the server says. The answer is there, so it is passed on whatever happens. */
  async #pause(wants: readonly Want[], response: HttpResponse): Promise<void> {
    try {
      await Promise.all(wants.map(({ limiter, key }) => heed(limiter, response, { ...this.#pauses, key: key === "" ? undefined : key })));
    } catch (error) {
      warn("what a server said could not be heeded", error);
    }
  }
}

/** @internal A request that was sent, and holds permits until its response has been read. */
export class Sent {
  readonly #wants: readonly Want[];
  readonly #permits: readonly Permit[];
  readonly #usage: Usage | undefined;
  #meter: Meter | undefined;
  /** What it cost if its response does not say so; `undefined`: what was estimated. */
  #otherwise: number | undefined;
  #isOver = false;

  constructor(wants: readonly Want[], permits: readonly Permit[], usage: Usage | undefined) {
    this.#wants = wants;
    this.#permits = permits;
    this.#usage = usage;
  }

  /** The server has answered; its body follows. */
  answered(response: HttpResponse): void {
    if (!this.#wants.some(({ areTokens }) => areTokens)) return;
    const status = statusOf(response);
    // What was refused was not worked on.
    if ((status >= 400 && status < 500) || REFUSALS.includes(status)) this.#otherwise = 0;
    this.#meter = new Meter(response, headersOf(response).get("content-type") ?? "", this.#usage);
  }

  /** Does it want to see the body? */
  get reads(): boolean {
    return this.#meter !== undefined;
  }

  /** A part of the body has come. */
  write(part: Uint8Array | string): void {
    if (!this.#isOver) this.#ask(() => this.#meter?.write(part));
  }

  /** The body has been read, or nobody will, or it has failed. */
  end(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    const used = this.#ask(() => this.#meter?.end()) ?? this.#otherwise;
    this.#permits.forEach((permit, at) => {
      const actual = this.#wants[at]!.areTokens ? used : undefined;
      this.#finish(actual === undefined ? permit.completeAsync() : settled(permit, actual));
    });
  }

  /** The server has never heard of it. */
  cancel(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    for (const permit of this.#permits) this.#finish(permit.cancelAsync());
  }

  /** What a function of the caller's throws must not cost the response. */
  #ask<T>(read: () => T): T | undefined {
    try {
      return read();
    } catch (error) {
      this.#meter = undefined;
      warn("the usage of a response could not be read", error);
      return undefined;
    }
  }

  /** Nobody waits for a store at the end of a response. */
  #finish(ending: Promise<void>): void {
    ending.catch((error: unknown) => warn("a permit of a request could not be ended", error));
  }
}

const A_LIMIT = "a limiter, an object of hosts and their limiters, or a function of the request";
const HOST = /^(\[[0-9a-f:.]+\]|[^\s/:@?#[\]]+)(:[0-9]{1,5})?$/;

/** What chooses a request's limiter. */
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

/** Asks, and if the estimate is more than the limit ever allows, for all of it. */
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

/** Ends it with what it cost; where there is nothing to settle, it just ends. */
async function settled(permit: Permit, actual: number): Promise<void> {
  try {
    await permit.settleAsync(actual);
  } catch (error) {
    if ((error as { code?: unknown }).code !== "unsupported") throw error;
    await permit.completeAsync();
  }
}

/** Errors of a connection that was not there yet: a request follows only once it is. */
const BEFORE = /^(UND_ERR_CONNECT_TIMEOUT|ERR_INVALID_URL|ERR_INVALID_PROTOCOL|ERR_TLS_CERT_|CERT_|DEPTH_ZERO_|SELF_SIGNED_|UNABLE_TO_|ENOTFOUND$|EAI_|ECONNREFUSED$|EHOSTUNREACH$|ENETUNREACH$)/;

/** @internal Did it fail before the server could see anything of the request? If in doubt, no. */
export function neverArrived(error: unknown): boolean {
  for (let at: unknown = error; typeof at === "object" && at !== null; at = (at as { cause?: unknown }).cause) {
    const { code, syscall, errors } = at as { code?: unknown; syscall?: unknown; errors?: unknown };
    if (syscall === "connect" || syscall === "getaddrinfo" || (typeof code === "string" && BEFORE.test(code))) return true;
    if (Array.isArray(errors) && errors.length > 0 && errors.every(neverArrived)) return true;
  }
  return false;
}

/** Bodies that nobody can reach any more, and that nobody has read to their end. */
const unread = new FinalizationRegistry<{ reader: ReadableStreamDefaultReader<Uint8Array>; sent: Sent }>(({ reader, sent }) => {
  sent.end();
  reader.cancel().catch(() => {});
});

/** @internal A body that tells what passes by, and when it ends. */
export function followed(body: ReadableStream<Uint8Array>, sent: Sent): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  let weak: WeakRef<ReadableStreamDefaultController<Uint8Array>> | undefined;
  const stream = new ReadableStream<Uint8Array>(
    {
      start(controller) {
        weak = new WeakRef(controller); // What is below must not keep a body that was dropped.
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
  // It may fail while nobody reads: an abort, or a connection that breaks.
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

