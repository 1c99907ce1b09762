// A limiter before the route handlers and the proxy of Next.js, which take a `Request` and give a `Response`.

import { UNIX, type Reader } from "./address.js";
import { invalid } from "./errors.js";
import { Entry, Gate, type RequestLimit, type ServingOptions } from "./serving.js";
import { endWithSignal, forNobody, isResponse, refusal, whenOver, withHeaders } from "./web.js";

export type { AddressOptions } from "./address.js";
export type { Limited, OnLimited, Reply, RequestLimit, ServingOptions } from "./serving.js";

/** How route handlers are limited. `onLimited` may answer with a `Response`. */
export type LimitRequestsOptions = ServingOptions<Request, Response | void>;

/** A route handler: what a route file exports as `GET`, `POST`, … */
export type RouteHandler<R extends Request, Rest extends unknown[], A extends Response> = (
  request: R,
  ...rest: Rest
) => A | PromiseLike<A>;

/** Wraps a handler, whose requests also take these limits: all of them, or nothing. */
export type LimitRequests = <R extends Request, Rest extends unknown[], A extends Response>(
  handler: RouteHandler<R, Rest, A>,
  ...limits: RequestLimit<Request>[]
) => (request: R, ...rest: Rest) => Promise<Response>;

const reader: Reader<Request> = {
  peer: () => undefined,
  header: (request, name) => request.headers.get(name) ?? undefined,
  path: (request) => new URL(request.url).pathname,
  user: () => undefined,
};

/**
 * Limits requests: gives a function that wraps route handlers, so that they answer 429 when there is no room. What a request has taken
 * is held until its response is over, or the client has left.
 *
 * A handler is not told who has connected. So to count by address needs a proxy that says so, declared as
 * `trustedProxies: ["unix", …]`: whoever connects to Next is trusted, and then all others that are listed.
 */
export function limitRequests(options: LimitRequestsOptions = {}): LimitRequests {
  const gate = new Gate(reader, options);
  checkKeys(options.limits);

  function checkKeys(limits: readonly RequestLimit<Request>[] = []): void {
    for (const { key } of limits) {
      if (key === "user") throw invalid("key", key, "a function of the request: a route handler is not told who is signed in");
      if (typeof key !== "string" || options.trustedProxies?.includes(UNIX)) continue;
      const expected = 'a list with "unix" where keys need addresses: a route handler is told them by proxies only';
      throw invalid("trustedProxies", options.trustedProxies, expected);
    }
  }

  return (handler, ...limits) => {
    if (typeof handler !== "function") throw invalid("handler", handler, "a route handler");
    const all = [...gate.limits, ...gate.route(limits)];
    checkKeys(limits);
    return async (request, ...rest) => {
      // Next answers a GET that has read nothing of its request once, when it builds, and then never asks again.
      request.headers.has("host");
      if (await gate.isExempt(request)) return handler(request, ...rest);
      const entry = new Entry();
      endWithSignal(request, entry);
      const limited = await gate.enter(request, all, entry, undefined);
      if (limited !== null) return refusal(limited, await gate.reply(request, limited, undefined, isResponse));
      if (entry.isOver) return forNobody();
      const headers = gate.headersOf(entry);
      try {
        return whenOver(withHeaders(await handler(request, ...rest), headers), entry);
      } catch (error) {
        // Next's redirect() throws, and is an answer like others.
        const { digest } = (error ?? {}) as { digest?: unknown };
        await entry.end(String(digest).startsWith("NEXT_REDIRECT") ? "successful" : "failed");
        throw error;
      }
    };
  };
}
