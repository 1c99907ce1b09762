// A limiter before the routes of Hono 4.

import type { ServerResponse } from "node:http";
import type { Context, MiddlewareHandler } from "hono";
import type { Reader } from "./address.js";
import { Entry, Gate, type RequestLimit, type ServingOptions, endWith } from "./serving.js";
import { endWithSignal, forNobody, isResponse, refusal, whenOver, withHeaders } from "./web.js";

export type { AddressOptions } from "./address.js";
export type { Limited, OnLimited, Reply, RequestLimit, ServingOptions } from "./serving.js";

/** How an app's requests are limited. `onLimited` may answer with a `Response`. */
export type LimitRequestsOptions = ServingOptions<Context, Response | void>;

/** A middleware, and those of routes. */
export interface LimitRequests extends MiddlewareHandler {
  /** The middleware of a route, whose requests take these limits beside those of the app: all of them, or nothing. */
  route(...limits: RequestLimit<Context>[]): MiddlewareHandler;
}

/** What @hono/node-server tells of a connection. */
interface Bindings {
  readonly incoming?: { readonly socket?: { readonly remoteAddress?: string | undefined; readonly destroyed?: boolean } };
  readonly outgoing?: ServerResponse;
}

const bindingsOf = ({ env }: Context): Bindings => (env?.server ?? env ?? {}) as Bindings;

const reader: Reader<Context> = {
  peer: (context) => bindingsOf(context).incoming?.socket?.remoteAddress,
  header: (context, name) => context.req.header(name),
  path: (context) => context.req.path,
  user: (context) => context.get("user") ?? context.get("jwtPayload"),
};

const entries = new WeakMap<Context, Entry>();

/**
 * Limits requests: a middleware, which answers 429 when there is no room. What a request has taken is held until its response is
 * over, or the client has left. The user is the variable `user`, or the `sub` of `jwtPayload`. Addresses are known
 * behind @hono/node-server.
 */
export function limitRequests(options: LimitRequestsOptions = {}): LimitRequests {
  const gate = new Gate(reader, options);

  const middleware = (limits: typeof gate.limits): MiddlewareHandler => {
    return async (context, next) => {
      if (await gate.isExempt(context)) return next();
      const { incoming, outgoing } = bindingsOf(context);
      let entry = entries.get(context);
      const isFirst = entry === undefined;
      if (entry === undefined) {
        entry = new Entry();
        entries.set(context, entry);
        // The server knows when the last byte is sent, which a body does not.
        if (outgoing !== undefined) endWith(outgoing, entry);
        else endWithSignal(context.req.raw, entry);
      }
      // Whoever has left has no address any more, and hears of nothing.
      if (incoming?.socket?.destroyed) return forNobody();
      const limited = await gate.enter(context, limits, entry, undefined);
      if (limited !== null) return refusal(limited, await gate.reply(context, limited, undefined, isResponse));
      if (entry.isOver) return forNobody();
      const headers = gate.headersOf(entry);
      await next();
      let response = withHeaders(context.res, headers); // Those of a route's limits are there already.
      if (isFirst && outgoing === undefined) response = whenOver(response, entry);
      if (response !== context.res) context.res = response;
    };
  };
  return Object.assign(middleware(gate.limits), {
    route: (...limits: RequestLimit<Context>[]) => middleware(gate.route(limits)),
  });
}
