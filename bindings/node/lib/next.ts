// Limits the route handlers and the proxy of Next.js, which take a `Request` and return a `Response`.

import { UNIX, type Reader } from "./address.js";
import { isParts } from "./charges.js";
import { invalid } from "./errors.js";
import { Entry, Gate, type RequestLimit, type ServingOptions } from "./serving.js";
import { endWithSignal, forNobody, isResponse, refusal, whenOver, withHeaders } from "./web.js";

export type { AddressOptions, ForwardedHeader } from "./address.js";
export type { Limited, OnLimited, Reply, RequestKey, RequestLimit, ServingOptions } from "./serving.js";

/** The options of `limitRequests`. `onLimited` may return a `Response`. */
export type LimitRequestsOptions = ServingOptions<Request, Response | void>;

/** A route handler, as a route file exports it under `GET`, `POST`, … */
export type RouteHandler<R extends Request, Rest extends unknown[], A extends Response> = (request: R, ...rest: Rest) => A | PromiseLike<A>;

/** Wraps a handler, whose requests also need these limits: a request is admitted by all of them, or refused. */
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
 * Returns a function that wraps route handlers, which then answer 429 to requests that are denied. A request holds its permits until
 * its response has ended or the client has disconnected.
 *
 * A route handler does not see the address of the connection. Counting by address needs a proxy that reports it, declared as
 * `trustedProxies: ["unix", …]`: the peer that connects to Next is trusted, and so are the other proxies in the list.
 */
export function limitRequests(options: LimitRequestsOptions = {}): LimitRequests {
  const gate = new Gate(reader, options);
  checkKeys(options.limits);

  function checkKeys(limits: readonly RequestLimit<Request>[] = []): void {
    for (const key of limits.flatMap((limit): unknown[] => (isParts(limit.key) ? Object.values(limit.key) : [limit.key]))) {
      if (key === "user") throw invalid("key", key, "a function of the request: a route handler does not see the user");
      if (typeof key !== "string" || options.trustedProxies?.includes(UNIX)) continue;
      const expected = 'a list with "unix" where keys need addresses: a route handler learns them from proxies only';
      throw invalid("trustedProxies", options.trustedProxies, expected);
    }
  }

  return (handler, ...limits) => {
    if (typeof handler !== "function") throw invalid("handler", handler, "a route handler");
    const all = [...gate.limits, ...gate.route(limits)];
    checkKeys(limits);
    return async (request, ...rest) => {
      // Next caches at build time the response of a GET handler that reads nothing of its request.
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
        // Next's redirect() and notFound() throw, with their status: "NEXT_REDIRECT;replace;/url;307;", "NEXT_HTTP_ERROR_FALLBACK;404".
        const { digest } = (error ?? {}) as { digest?: unknown };
        const [, kind, status] = /^(NEXT_\w+)(?:.*;(\d{3});?$)?/s.exec(String(digest)) ?? [];
        await entry.end(Number(status ?? (kind === "NEXT_REDIRECT" ? 307 : 500)));
        throw error;
      }
    };
  };
}
