// Limits the requests of undici's dispatchers, through an interceptor.

import { Writable } from "node:stream";
import { createBrotliDecompress, createGunzip, createInflate } from "node:zlib";
import type { Demand } from "./demand.js";
import { type Target, changed, relocated } from "./route.js";
import { type Limits, type OutgoingRequest, Sending, type SendingOptions, type Sent, isRepeatable, outgoing, textOf } from "./sending.js";

export type { Destination, KeyOfRequest, Limits, OutgoingRequest, Route, SendingOptions, TokenParts, WeightOfRequest } from "./sending.js";
export type { TokenKind, Tokens, Usage } from "./tokens.js";

// The part of undici's types that is needed: they differ between its versions.

interface Options {
  readonly method: string;
  readonly origin?: string | URL;
  readonly path: string;
  readonly headers?: unknown;
  readonly body?: unknown;
}

interface Controller {
  readonly aborted: boolean;
  readonly paused: boolean;
  readonly reason: Error | null;
  readonly rawHeaders?: unknown;
  readonly rawTrailers?: unknown;
  abort(reason: Error): void;
  pause(): void;
  resume(): void;
}

interface Handler {
  onRequestStart?(controller: Controller, context: unknown): void;
  onRequestUpgrade?(controller: Controller, statusCode: number, headers: Head["headers"], socket: unknown): void;
  onResponseStart?(controller: Controller, statusCode: number, headers: Head["headers"], statusMessage?: string): void;
  onResponseData?(controller: Controller, chunk: Buffer): void;
  onResponseEnd?(controller: Controller, trailers: Head["headers"]): void;
  onResponseError?(controller: Controller, error: Error): void;
  onBodySent?(...sent: unknown[]): void;
  onRequestSent?(): void;
  onResponseStarted?(): void;
}

type Dispatch = (options: Options, handler: Handler) => boolean;

/**
 * An interceptor for `compose` of a dispatcher of undici 7 or 8.
 *
 * @typeParam D The type of a dispatcher's `dispatch`, in either version.
 */
export type UndiciInterceptor = <D extends (options: any, handler: any) => boolean>(dispatch: D) => D;

/** The head of a response. */
interface Head {
  readonly statusCode: number;
  readonly headers: Record<string, string | string[] | undefined>;
}

/**
 * Returns an interceptor for `dispatcher.compose(…)` of undici 7 and 8. Requests wait for `limiter` before they are dispatched. With `setGlobalDispatcher` it also limits Node's own `fetch`, whose bodies it sees as streams:
 * they are not retried, and `estimate` has to return their tokens.
 */
export function limitUndici(limiter: Limits, options: SendingOptions = {}): UndiciInterceptor {
  const sending = new Sending(limiter, options);
  const intercept = (dispatch: Dispatch): Dispatch =>
    function limitedDispatch(options, handler) {
      const request = requestOf(options);
      if (request === null) return dispatch(options, handler); // It reports the error.
      let demand: Demand | null = null;
      let failure: unknown;
      try {
        demand = sending.demand(request);
      } catch (error) {
        failure = error; // A dispatcher reports errors to its handler.
      }
      if (demand === null && failure === undefined) return dispatch(options, handler);
      const exchange = new Exchange(dispatch, options, handler);
      const attempts = {
        signal: exchange.signal,
        canRepeat: isRepeatable(options.body),
        send: (target: Target | null) => exchange.send(target),
        answerOf: (head: Head) => head,
        discard: () => exchange.discard(),
        neverArrived: () => !exchange.isConnected,
      };
      const sent = failure === undefined ? sending.send(demand, attempts) : Promise.reject(failure);
      sent.then(
        ([, sent]) => exchange.pass(sent),
        (error: Error) => exchange.fail(error),
      );
      return true;
    };
  return intercept as UndiciInterceptor;
}

/** The origin of requests without one: clients and pools of undici 7 do not pass it to interceptors. */
const NOWHERE = "http://origin.invalid";

/** Returns what is known about a request; `null` without a valid URL. */
function requestOf({ method, origin = NOWHERE, path, headers, body }: Options): OutgoingRequest | null {
  let url: URL;
  try {
    url = new URL(path.startsWith("/") ? new URL(origin).origin + path : path, origin);
  } catch {
    return null;
  }
  return outgoing(
    method,
    url,
    () => headersOf(headers),
    () => textOf(body),
  );
}

function elsewhere(options: Options, target: Target): Options {
  const { origin, pathname, search } = target.url;
  return { ...options, origin, path: pathname + search, headers: Object.fromEntries(changed(headersOf(options.headers), target)) };
}

/** Returns the headers of a request: undici takes a flat list, pairs, or an object. */
function headersOf(given: unknown): Headers {
  const headers = new Headers();
  const isFlat = Array.isArray(given) && !Array.isArray(given[0]);
  const flat = isFlat ? given.map(String) : [];
  let pairs: Iterable<[string, unknown]> = Object.entries(given ?? {});
  if (isFlat) pairs = flat.flatMap((name, at) => (at % 2 === 0 ? [[name, flat[at + 1]] as [string, unknown]] : []));
  else if (Symbol.iterator in ((given ?? {}) as object)) pairs = given as Iterable<[string, unknown]>;
  for (const [name, value] of pairs) {
    for (const one of Array.isArray(value) ? value : [value]) if (one != null) headers.append(name, String(one));
  }
  return headers;
}

/** One request with its attempts. Its handler has one controller for all of them, even before there is a connection. */
class Exchange implements Controller, Handler {
  /** Whether the current attempt has a connection. */
  isConnected = false;
  readonly #dispatch: Dispatch;
  readonly #options: Options;
  readonly #handler: Handler;
  readonly #aborter = new AbortController();
  #target: Controller | undefined;
  #head: ((head: Head) => void) | undefined;
  #failed: ((error: Error) => void) | undefined;
  #discarded: (() => void) | undefined;
  /** The events of a response that is not accepted or discarded yet. It may end even while it is paused. */
  #pending: (() => void)[] | undefined;
  #sent: Sent | null = null;
  /** Where the current attempt went, if it went elsewhere. */
  #to: Target | null = null;
  #body: Body | undefined;
  #isPaused = false;

  constructor(dispatch: Dispatch, options: Options, handler: Handler) {
    this.#dispatch = dispatch;
    this.#options = options;
    this.#handler = handler;
    handler.onRequestStart?.(this, null);
  }

  /** The signal of the waiting request. */
  get signal(): AbortSignal {
    return this.#aborter.signal;
  }

  /** Dispatches the request: returns the response's head, and keeps the events that follow. */
  send(target: Target | null): Promise<Head> {
    return new Promise((resolve, reject) => {
      this.isConnected = false;
      this.#to = target;
      this.#target = undefined;
      this.#head = resolve;
      this.#failed = reject;
      this.#pending = undefined;
      this.#discarded = undefined;
      this.#dispatch(target === null ? this.#options : elsewhere(this.#options, target), this);
    });
  }

  /** Reads the rest of a response without passing it on. */
  discard(): Promise<void> {
    return new Promise((resolve) => {
      this.#pending = undefined;
      if (this.#failed === undefined) return resolve(); // It has ended.
      this.#discarded = resolve;
      this.#target!.resume();
    });
  }

  /** Passes the response to the handler. */
  pass(sent: Sent | null): void {
    this.#sent = sent;
    const pending = this.#pending ?? [];
    this.#pending = undefined;
    try {
      for (const event of pending) event();
    } catch (error) {
      sent?.end();
      // As undici does if a handler throws.
      if (this.#failed === undefined) return this.fail(error as Error);
      this.#target?.abort(error as Error);
    }
    if (!this.#isPaused) this.#target?.resume();
  }

  /** Reports to the handler that there is no response. */
  fail(error: Error): void {
    this.#handler.onResponseError?.(this, error);
  }

  // Calls of the handler.

  abort(reason: Error): void {
    if (!this.aborted) this.#aborter.abort(reason);
    this.#target?.abort(reason);
  }

  pause(): void {
    this.#isPaused = true;
    this.#target?.pause();
  }

  resume(): void {
    this.#isPaused = false;
    if (this.#pending === undefined) this.#target?.resume();
  }

  get aborted(): boolean {
    return this.signal.aborted || (this.#target?.aborted ?? false);
  }

  get paused(): boolean {
    return this.#isPaused;
  }

  get reason(): Error | null {
    return (this.signal.reason as Error | undefined) ?? this.#target?.reason ?? null;
  }

  get rawHeaders(): unknown {
    return this.#target?.rawHeaders;
  }

  get rawTrailers(): unknown {
    return this.#target?.rawTrailers;
  }

  // Calls of the connection.

  onRequestStart(controller: Controller): void {
    this.isConnected = true;
    this.#target = controller;
    if (this.signal.aborted) controller.abort(this.signal.reason as Error);
  }

  onRequestUpgrade(controller: Controller, statusCode: number, headers: Head["headers"], socket: unknown): void {
    this.#target = controller;
    this.#handler.onRequestUpgrade?.(this, statusCode, headers, socket);
    this.#settle({ statusCode, headers });
  }

  onResponseStart(controller: Controller, statusCode: number, given: Head["headers"], statusMessage?: string): void {
    const { location } = given;
    const isMoved = this.#to !== null && typeof location === "string";
    const headers = isMoved ? { ...given, location: relocated(location, this.#to!) } : given;
    const start = () => this.#handler.onResponseStart?.(this, statusCode, headers, statusMessage);
    if (statusCode < 200) return start();
    this.#pending = [
      () => {
        if (this.#sent?.reads) this.#body = bodyOf(headers, this.#sent);
        start();
      },
    ];
    controller.pause();
    this.#settle({ statusCode, headers });
  }

  onResponseData(_controller: Controller, chunk: Buffer): void {
    this.#pass(() => {
      this.#body?.write(chunk);
      this.#handler.onResponseData?.(this, chunk);
    });
  }

  onResponseEnd(_controller: Controller, trailers: Head["headers"]): void {
    this.#over();
    this.#pass(() => {
      this.#end();
      this.#handler.onResponseEnd?.(this, trailers);
    });
  }

  onResponseError(_controller: Controller, error: Error): void {
    const failed = this.#failed;
    this.#over();
    if (this.#head !== undefined) return failed?.(error);
    this.#pass(() => {
      this.#end();
      this.#handler.onResponseError?.(this, error);
    });
  }

  onBodySent(...sent: unknown[]): void {
    this.#handler.onBodySent?.(...sent);
  }

  onRequestSent(): void {
    this.#handler.onRequestSent?.();
  }

  onResponseStarted(): void {
    this.#handler.onResponseStarted?.();
  }

  /** Notes the head of a response. */
  #settle(head: Head): void {
    this.#head!(head);
    this.#head = undefined;
  }

  /** Notes the end of a response. */
  #over(): void {
    this.#failed = undefined;
    this.#discarded?.();
  }

  #pass(event: () => void): void {
    if (this.#discarded !== undefined) return;
    if (this.#pending === undefined) event();
    else this.#pending.push(event);
  }

  #end(): void {
    if (this.#body === undefined) this.#sent?.end();
    else this.#body.end();
  }
}

/** A body that is read for its usage. */
interface Body {
  write(chunk: Buffer): void;
  end(): void;
}

const DECODERS: Record<string, () => NodeJS.ReadWriteStream> = {
  gzip: createGunzip,
  "x-gzip": createGunzip,
  deflate: createInflate,
  br: createBrotliDecompress,
};

/** Makes the reader of a body, which dispatchers see as it was sent: compressed. */
function bodyOf(headers: Head["headers"], sent: Sent): Body {
  const decoder = DECODERS[String(headers["content-encoding"] ?? "").toLowerCase()]?.();
  if (decoder === undefined) return { write: (chunk) => sent.write(chunk), end: () => sent.end() };
  const end = () => sent.end();
  decoder.on("error", end).pipe(
    new Writable({
      write(chunk: Buffer, _encoding, done) {
        sent.write(chunk);
        done();
      },
      final: (done) => (end(), done()),
    }),
  );
  return { write: (chunk) => void decoder.write(chunk), end: () => void decoder.end() };
}
