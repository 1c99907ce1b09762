// A limiter in a dispatcher of undici's: an interceptor, so that all that goes through the dispatcher is limited.

import { Writable } from "node:stream";
import { createBrotliDecompress, createGunzip, createInflate } from "node:zlib";
import { type Limits, type OutgoingRequest, Sending, type SendingOptions, type Sent, type Want, isRepeatable, outgoing, textOf } from "./sending.js";

export type { Limits, OutgoingRequest, SendingOptions } from "./sending.js";
export type { Usage } from "./tokens.js";

// What is needed of undici: the types of its versions are not the same.

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
 * An interceptor, as the `compose` of undici 7's and 8's dispatchers takes it.
 *
 * @typeParam D The type of a dispatcher's `dispatch`, in either version.
 */
export type UndiciInterceptor = <D extends (options: any, handler: any) => boolean>(dispatch: D) => D;

/** A response whose head has come. */
interface Head {
  readonly statusCode: number;
  readonly headers: Record<string, string | string[] | undefined>;
}

/**
 * An interceptor for `dispatcher.compose(…)` of undici 7 and 8: requests wait for `limiter` before they are dispatched; `null`
 * instead of one if `tokens` alone limit them. With `setGlobalDispatcher` it limits Node's own `fetch`, too, whose bodies it sees as
 * streams: they are not sent again, and their tokens have to be told by `estimate`.
 */
export function limitUndici(limiter: Limits | null, options: SendingOptions = {}): UndiciInterceptor {
  const sending = new Sending(limiter, options);
  const intercept = (dispatch: Dispatch): Dispatch =>
    function limitedDispatch(options, handler) {
      const request = requestOf(options);
      if (request === null) return dispatch(options, handler); // It says what is wrong.
      let wants: Want[] = [];
      let failure: unknown;
      try {
        wants = sending.wants(request);
      } catch (error) {
        failure = error; // A dispatcher tells its handler.
      }
      if (wants.length === 0 && failure === undefined) return dispatch(options, handler);
      const exchange = new Exchange(dispatch, options, handler);
      const attempts = {
        signal: exchange.signal,
        canRepeat: isRepeatable(options.body),
        send: () => exchange.send(),
        answerOf: (head: Head) => head,
        discard: () => exchange.discard(),
        neverArrived: () => !exchange.isConnected,
      };
      const sent = failure === undefined ? sending.send(wants, attempts) : Promise.reject(failure);
      sent.then(
        ([, sent]) => exchange.pass(sent!),
        (error: Error) => exchange.fail(error),
      );
      return true;
    };
  return intercept as UndiciInterceptor;
}

/** The clients and pools of undici 7 do not tell interceptors where they go. */
const NOWHERE = "http://origin.invalid";

/** `null` if it goes nowhere. */
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

/** undici takes a flat list, pairs, or an object. */
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

/** One request, and the attempts that it takes. Its handler knows one controller, which is there before any connection. */
class Exchange implements Controller, Handler {
  /** Has the attempt that is under way a connection? */
  isConnected = false;
  readonly #dispatch: Dispatch;
  readonly #options: Options;
  readonly #handler: Handler;
  readonly #aborter = new AbortController();
  #target: Controller | undefined;
  #head: ((head: Head) => void) | undefined;
  #failed: ((error: Error) => void) | undefined;
  #discarded: (() => void) | undefined;
  /** What came of a response that nobody has decided upon yet: it may end even while it is paused. */
  #held: (() => void)[] | undefined;
  #sent: Sent | undefined;
  #body: Body | undefined;
  #isPaused = false;

  constructor(dispatch: Dispatch, options: Options, handler: Handler) {
    this.#dispatch = dispatch;
    this.#options = options;
    this.#handler = handler;
    handler.onRequestStart?.(this, null);
  }

  /** Aborts when the request is aborted that waits. */
  get signal(): AbortSignal {
    return this.#aborter.signal;
  }

  /** Dispatches it: gives the response's head, and holds what follows. */
  send(): Promise<Head> {
    return new Promise((resolve, reject) => {
      this.isConnected = false;
      this.#target = undefined;
      this.#head = resolve;
      this.#failed = reject;
      this.#held = undefined;
      this.#discarded = undefined;
      this.#dispatch(this.#options, this);
    });
  }

  /** Reads what is left of a response that nobody wants. */
  discard(): Promise<void> {
    return new Promise((resolve) => {
      this.#held = undefined;
      if (this.#failed === undefined) return resolve(); // It has ended.
      this.#discarded = resolve;
      this.#target!.resume();
    });
  }

  /** Lets the handler have the response. */
  pass(sent: Sent): void {
    this.#sent = sent;
    const held = this.#held ?? [];
    this.#held = undefined;
    try {
      for (const event of held) event();
    } catch (error) {
      sent.end();
      // As undici does with what a handler throws.
      if (this.#failed === undefined) return this.fail(error as Error);
      this.#target?.abort(error as Error);
    }
    if (!this.#isPaused) this.#target?.resume();
  }

  /** There will be no response. */
  fail(error: Error): void {
    this.#handler.onResponseError?.(this, error);
  }

  // What the handler asks for.

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
    if (this.#held === undefined) this.#target?.resume();
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

  // What the connection says.

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

  onResponseStart(controller: Controller, statusCode: number, headers: Head["headers"], statusMessage?: string): void {
    const start = () => this.#handler.onResponseStart?.(this, statusCode, headers, statusMessage);
    if (statusCode < 200) return start();
    this.#held = [
      () => {
        if (this.#sent!.reads) this.#body = bodyOf(headers, this.#sent!);
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

  /** The head of a response has come. */
  #settle(head: Head): void {
    this.#head!(head);
    this.#head = undefined;
  }

  /** The response has ended. */
  #over(): void {
    this.#failed = undefined;
    this.#discarded?.();
  }

  #pass(event: () => void): void {
    if (this.#discarded !== undefined) return;
    if (this.#held === undefined) event();
    else this.#held.push(event);
  }

  #end(): void {
    if (this.#body === undefined) this.#sent?.end();
    else this.#body.end();
  }
}

/** A body on its way to whoever looks for its usage. */
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

/** Dispatchers see a body as it was sent: compressed. */
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
