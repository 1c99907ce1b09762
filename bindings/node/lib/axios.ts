// Limits the requests of axios.

import { Transform, pipeline } from "node:stream";
import { type AxiosAdapter, type AxiosResponse, CanceledError, type InternalAxiosRequestConfig, getAdapter, isAxiosError } from "axios";
import { invalid } from "./errors.js";
import type { Target } from "./route.js";
import { type Limits, Sending, type SendingOptions, type Sent, followed, isRepeatable, neverArrived, outgoing, textOf } from "./sending.js";

export type { Destination, KeyOfRequest, Limits, OutgoingRequest, Route, SendingOptions, TokenParts, WeightOfRequest } from "./sending.js";
export type { TokenKind, Tokens, Usage } from "./tokens.js";

/** The part of an axios instance that is needed: axios's types differ between its two module systems. */
export interface AxiosLike {
  /** The interceptors. */
  readonly interceptors: {
    /** The interceptors of requests. */
    readonly request: {
      /** Adds an interceptor. */
      use(intercept: (config: any) => any): number;
      /** Removes an interceptor. */
      eject(id: number): void;
    };
  };
  /** Returns the URL of a request. */
  getUri(config?: any): string;
}

/** What the limited adapters send with, each by its own. */
const inner = new WeakMap<object, InternalAxiosRequestConfig["adapter"]>();

/** The result of an attempt: a response, perhaps with the error that carried it. */
interface Result {
  readonly response: AxiosResponse;
  readonly error?: unknown;
}

/**
 * Makes each request of an axios instance (or of `axios` itself) wait for `limiter` before it is sent. Returns a function that removes the limit. axios's own `timeout` starts when a request is sent. A waiting request that
 * is aborted fails with axios's `CanceledError`.
 */
export function limitAxios(instance: AxiosLike, limiter: Limits, options: SendingOptions = {}): () => void {
  if (typeof instance?.interceptors?.request?.use !== "function") throw invalid("instance", instance, "an axios instance");
  const sending = new Sending(limiter, options);
  const { request: interceptors } = instance.interceptors;
  const number = interceptors.use((config: InternalAxiosRequestConfig) => {
    const given = config.adapter;
    // Last before the request is sent, when its body is final.
    const limited: AxiosAdapter = (config) => {
      // Who sends the config of an error again passes the interceptors again, which would limit it twice.
      const own = unlimited(given);
      if (own === undefined) delete config.adapter;
      else config.adapter = own;
      return send(sending, instance, config, getAdapter(given, config));
    };
    inner.set(limited, given);
    config.adapter = limited;
    return config;
  });
  return () => interceptors.eject(number);
}

/** Returns the adapter inside all limits. */
function unlimited(adapter: InternalAxiosRequestConfig["adapter"]): InternalAxiosRequestConfig["adapter"] {
  while (typeof adapter === "function" && inner.has(adapter)) adapter = inner.get(adapter);
  return adapter;
}

async function send(
  sending: Sending,
  instance: AxiosLike,
  config: InternalAxiosRequestConfig,
  adapter: (config: InternalAxiosRequestConfig) => Promise<AxiosResponse>,
): Promise<AxiosResponse> {
  const url = urlOf(instance, config);
  if (url === null) return adapter(config); // It reports the error.
  const request = outgoing(
    config.method ?? "get",
    url,
    () => new Headers(config.headers.toJSON(true) as Record<string, string>),
    () => textOf(config.data),
  );
  const { signal, stop } = signalOf(config);
  try {
    const [{ response, error }, sent] = await sending.send<Result>(sending.demand(request), {
      signal,
      canRepeat: isRepeatable(config.data),
      send: (target) => resultOf(adapter(target === null ? config : elsewhere(config, target)), config),
      answerOf: ({ response }) => response,
      discard: ({ response: { data } }) => void (data?.destroy?.() ?? data?.cancel?.()),
      neverArrived,
    });
    if (sent !== null) follow(response, sent);
    if (error !== undefined) throw error;
    return response;
  } catch (error) {
    // axios's own error for an aborted request.
    throw signal?.aborted && error === signal.reason ? new CanceledError(undefined, config) : error;
  } finally {
    stop();
  }
}

function elsewhere(config: InternalAxiosRequestConfig, { url, without, headers: others, isForeign }: Target): InternalAxiosRequestConfig {
  const headers = config.headers.concat();
  headers.delete([...without]);
  headers.set({ ...others });
  const moved: InternalAxiosRequestConfig = { ...config, url: String(url), headers };
  delete moved.baseURL; // The URL has them already.
  delete moved.params;
  if (isForeign || Object.keys(others).some((name) => name.toLowerCase() === "authorization")) delete moved.auth; // It would replace the header.
  return moved;
}

function urlOf(instance: AxiosLike, config: InternalAxiosRequestConfig): URL | null {
  try {
    return new URL(instance.getUri(config));
  } catch {
    return null;
  }
}

/** Returns the signal of a request, combined with its older cancel token if it has one. */
function signalOf({ signal, cancelToken }: InternalAxiosRequestConfig): { signal: AbortSignal | undefined; stop: () => void } {
  const own = signal as AbortSignal | undefined;
  if (cancelToken === undefined) return { signal: own, stop: () => {} };
  const aborter = new AbortController();
  const abort = () => aborter.abort();
  const token = cancelToken as typeof cancelToken & { subscribe(listener: () => void): void; unsubscribe(listener: () => void): void };
  token.subscribe(abort);
  const both = own === undefined ? aborter.signal : AbortSignal.any([own, aborter.signal]);
  return { signal: both, stop: () => token.unsubscribe(abort) };
}

/** Returns the response, also of an error that axios made of the status. Both have the request's own config, to send it again. */
async function resultOf(answer: Promise<AxiosResponse>, config: InternalAxiosRequestConfig): Promise<Result> {
  try {
    const response = await answer;
    response.config = config;
    return { response };
  } catch (error) {
    if (!isAxiosError(error)) throw error;
    error.config = config;
    if (error.response === undefined) throw error;
    error.response.config = config;
    return { response: error.response, error };
  }
}

/** Ends the permits when the body ends: now, if it has been read already. */
function follow(response: AxiosResponse, sent: Sent): void {
  const data: unknown = response.data;
  if (typeof (data as NodeJS.ReadableStream | null)?.pipe === "function") {
    const passing = new Transform({
      transform(chunk: Buffer, _encoding, done) {
        if (sent.reads) sent.write(chunk);
        done(null, chunk);
      },
    });
    response.data = pipeline(data as NodeJS.ReadableStream, passing, () => sent.end());
    return;
  }
  if (data instanceof ReadableStream) {
    response.data = followed(data as ReadableStream<Uint8Array>, sent);
    return;
  }
  const text = textOf(data);
  if (text !== null) sent.write(text);
  sent.end();
}
