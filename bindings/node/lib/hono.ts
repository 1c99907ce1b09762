// Limits the requests of Hono 4.

import type { ServerResponse } from "node:http";
import type { Context, MiddlewareHandler } from "hono";
import { type Reader, UNIX } from "./address.js";
import { invalid } from "./errors.js";
import { Entry, Gate, type RequestLimit, type ServingOptions, endWith } from "./serving.js";
import { endWithSignal, forNobody, isResponse, refusal, whenOver, withHeaders } from "./web.js";

export type { AddressOptions, ForwardedHeader } from "./address.js";
export type { Limited, OnLimited, Reply, RequestKey, RequestLimit, ServingOptions } from "./serving.js";

/** The options of `limitRequests`. `onLimited` may return a `Response`. */
export type LimitRequestsOptions = ServingOptions<Context, Response | void>;

/** A middleware for an app, which makes middleware for routes. */
export interface LimitRequests extends MiddlewareHandler {
  /** Makes middleware for a route whose requests also need these limits: a request is admitted by all of them, or refused. */
  route(...limits: RequestLimit<Context>[]): MiddlewareHandler;
}

/** The connection of a request: from @hono/node-server, the server of Bun, or what Deno passes of a connection. */
interface Bindings {
  readonly requestIP?: (request: Request) => { readonly address: string } | null;
  readonly remoteAddr?: { readonly hostname?: string };
  readonly incoming?: { readonly socket?: { readonly remoteAddress?: string | undefined; readonly destroyed?: boolean } };
  readonly outgoing?: ServerResponse;
}

const bindingsOf = ({ env }: Context): Bindings => (env?.server ?? env ?? {}) as Bindings;

const readerOf = (options: LimitRequestsOptions): Reader<Context> => ({
  peer(context) {
    const { incoming, requestIP, remoteAddr } = bindingsOf(context);
    if (incoming !== undefined) return incoming.socket?.remoteAddress;
    if (requestIP !== undefined) return bindingsOf(context).requestIP!(context.req.raw)?.address;
    if (remoteAddr !== undefined) return remoteAddr.hostname;
    const { trustedProxies } = options;
    if (trustedProxies?.includes(UNIX)) return undefined;
    // Otherwise all clients would share one key.
    const expected = 'a list with "unix", or a function as key: this server does not tell Hono the address of the peer';
    throw invalid("trustedProxies", trustedProxies, expected);
  },
  header: (context, name) => context.req.header(name),
  path: (context) => context.req.path,
  user: (context) => context.get("user") ?? context.get("jwtPayload"),
});

const entries = new WeakMap<Context, Entry>();

/**
 * Returns middleware that limits requests, and answers 429 to those that are denied. A request holds its permits until its response
 * has ended or the client has disconnected. The user is the variable `user`, or the `sub` of `jwtPayload`. Addresses come from
 * @hono/node-server, Bun (`app.fetch` as the `fetch` of `Bun.serve`) or Deno (`Deno.serve(app.fetch)`). Elsewhere a request fails whose
 * key needs one, unless proxies report it: `trustedProxies: ["unix"]`.
 */
export function limitRequests(options: LimitRequestsOptions = {}): LimitRequests {
  const gate = new Gate(readerOf(options), options);

  const middleware = (limits: typeof gate.limits): MiddlewareHandler => {
    return async (context, next) => {
      if (await gate.isExempt(context)) return next();
      const { incoming, outgoing } = bindingsOf(context);
      let entry = entries.get(context);
      const isFirst = entry === undefined;
      if (entry === undefined) {
        entry = new Entry();
        entries.set(context, entry);
        // The server knows when the last byte is sent; a body does not.
        if (outgoing !== undefined) endWith(outgoing, entry);
        else endWithSignal(context.req.raw, entry);
      }
      // A client that has disconnected has no address any more, and gets no response.
      if (incoming?.socket?.destroyed) return forNobody();
      const limited = await gate.enter(context, limits, entry, undefined);
      if (limited !== null) return refusal(limited, await gate.reply(context, limited, undefined, isResponse));
      if (entry.isOver) return forNobody();
      const headers = gate.headersOf(entry);
      await next();
      let response = withHeaders(context.res, headers); // The headers of a route's limits are set already.
      if (isFirst && outgoing === undefined) response = whenOver(response, entry);
      if (response === context.res) return;
      // Hono 4.0 changes the headers of the response that it replaces, which a redirect forbids.
      context.res = undefined;
      context.res = response;
    };
  };
  return Object.assign(middleware(gate.limits), {
    route: (...limits: RequestLimit<Context>[]) => middleware(gate.route(limits)),
  });
}
