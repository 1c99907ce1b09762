// Limits `fetch`: Node's, undici's, and clients that take a `fetch` as an option.

import { invalid } from "./errors.js";
import { type Target, changed } from "./route.js";
import {
  type Limits,
  OPTIONS,
  type OutgoingRequest,
  Sending,
  type SendingOptions,
  type Sent,
  followed,
  isRepeatable,
  neverArrived,
  outgoing,
  textOf,
} from "./sending.js";

export type { Destination, KeyOfRequest, Limits, OutgoingRequest, Route, SendingOptions, TokenParts, WeightOfRequest } from "./sending.js";
export type { TokenKind, Tokens, Usage } from "./tokens.js";

type Input = Parameters<typeof fetch>[0];

/** The options of `limitFetch`. */
export interface LimitFetchOptions extends SendingOptions {
  /** The function that sends the requests. Default: Node's `fetch`. */
  fetch?: typeof fetch | undefined;
}

/**
 * Returns a `fetch` whose requests wait for `limiter` before they are sent. The permit ends
 * when the body has been read, cancelled or dropped, so a concurrency limit counts open responses. A redirect is part of its
 * request. A request rejects with a `TimeoutError` if it gets no permit in time, and with the signal's reason if it is aborted.
 */
export function limitFetch(limiter: Limits, options: LimitFetchOptions = {}): typeof fetch {
  const sending = new Sending(limiter, options, [...OPTIONS, "fetch"]);
  const { fetch: given } = options;
  if (given !== undefined && typeof given !== "function") throw invalid("fetch", given, "a function such as fetch");

  return async function limitedFetch(input: Input, init?: RequestInit): Promise<Response> {
    const send = given ?? globalThis.fetch;
    const request = await requestOf(input, init, sending.needsText);
    if (request === null) return send(input, init); // It reports the error.
    const [response, sent] = await sending.send(sending.demand(request), {
      signal: init?.signal ?? (isRequest(input) ? input.signal : undefined),
      canRepeat: isRepeatable(init?.body) && (init?.body != null || !isRequest(input) || input.body === null),
      send: (target) => (target === null ? send(input, init) : sendElsewhere(send, input, init, target)),
      answerOf: (response) => response,
      discard: (response) => response.body?.cancel(),
      neverArrived,
    });
    return sent === null ? response : follow(response, sent);
  };
}

const isRequest = (input: unknown): input is Request => typeof input === "object" && input !== null && "url" in input;

function sendElsewhere(send: typeof fetch, input: Input, init: RequestInit | undefined, target: Target): Promise<Response> {
  const headers = changed(new Headers(init?.headers ?? (isRequest(input) ? input.headers : undefined)), target);
  // (A request with a body is sent once.)
  return send(isRequest(input) ? new Request(target.url, input) : target.url, { ...init, headers });
}

/** Returns what is known about a request; `null` without a valid URL. */
async function requestOf(input: Input, init: RequestInit | undefined, needsText: boolean): Promise<OutgoingRequest | null> {
  const whole = isRequest(input) ? input : undefined;
  let url: URL;
  try {
    url = new URL(whole?.url ?? String(input));
  } catch {
    return null;
  }
  const body = init?.body;
  let text: string | undefined;
  const isText = /json|text|form-urlencoded/i.test(whole?.headers.get("content-type") ?? "");
  if (needsText && isText && body == null && whole?.body && !whole.bodyUsed) text = await whole.clone().text();
  return outgoing(
    init?.method ?? whole?.method ?? "GET",
    url,
    () => new Headers(init?.headers ?? whole?.headers),
    () => text ?? textOf(body),
  );
}

/** Returns the same response with a body that ends the permits. */
function follow(response: Response, sent: Sent): Response {
  // Test doubles, and clients with bodies of another kind, have no stream.
  if (typeof response.body?.getReader !== "function" || response.bodyUsed || response.body.locked) {
    sent.end();
    return response;
  }
  const { status, statusText, headers } = response;
  const Kind = response.constructor as typeof Response;
  const isUsual = status >= 200 && status <= 599;
  const same = new Kind(followed(response.body, sent), { status: isUsual ? status : 200, statusText, headers });
  return like(response, same);
}

/** Copies the properties of a response that its constructor does not take. */
function like(response: Response, same: Response): Response {
  for (const name of ["url", "redirected", "type", "status"] as const) {
    if (same[name] !== response[name]) Object.defineProperty(same, name, { value: response[name], configurable: true });
  }
  Object.defineProperty(same, "clone", {
    value: () => like(response, (Object.getPrototypeOf(same) as Response).clone.call(same)),
    configurable: true,
    writable: true,
  });
  return same;
}
