// Limits the requests of Koa 2 and 3.

import type { ServerResponse } from "node:http";
import type { Context, Middleware } from "koa";
import type { Reader } from "./address.js";
import { Body, Entry, Gate, type RequestLimit, type ServingOptions, endWith } from "./serving.js";

export type { AddressOptions, ForwardedHeader } from "./address.js";
export type { Limited, OnLimited, Reply, RequestKey, RequestLimit, ServingOptions } from "./serving.js";

/** The options of `limitRequests`. `onLimited` may answer through its third argument, the context, which it then returns. */
export type LimitRequestsOptions = ServingOptions<Context, Context>;

/** A middleware for an app, which makes middleware for routes. */
export interface LimitRequests extends Middleware {
  /** Makes middleware for a route whose requests also need these limits: a request is admitted by all of them, or refused. */
  route(...limits: RequestLimit<Context>[]): Middleware;
}

const reader: Reader<Context> = {
  peer: (context) => context.req.socket.remoteAddress,
  header: (context, name) => context.req.headers[name]?.toString(),
  path: (context) => context.originalUrl.replace(/[?#].*/s, ""),
  user: ({ state }) => state.user,
};

const entries = new WeakMap<ServerResponse, Entry>();

/**
 * Returns middleware that limits requests, and answers 429 to those that are denied. A request holds its permits until its response
 * has ended or the client has disconnected. The user is `ctx.state.user`.
 */
export function limitRequests(options: LimitRequestsOptions = {}): LimitRequests {
  const gate = new Gate(reader, options);

  const middleware = (limits: typeof gate.limits): Middleware => {
    return async (context, next) => {
      if (await gate.isExempt(context)) return next();
      const { res: response } = context;
      let entry = entries.get(response);
      if (entry === undefined) {
        entry = new Entry();
        entries.set(response, entry);
        endWith(response, entry);
      }
      // A client that has disconnected has no address any more, and gets no response.
      if (response.destroyed || context.req.socket.destroyed) return leave(context);
      const limited = await gate.enter(context, limits, entry, context);
      if (entry.isOver) return leave(context);
      if (limited === null) {
        context.set(gate.headersOf(entry));
        return next();
      }
      context.status = limited.status;
      const reply = await gate.reply(context, limited, context, (given): given is Context => given === context);
      context.set(limited.headers);
      if (!(reply instanceof Body)) return;
      context.body = typeof reply.content === "string" ? reply.content : Buffer.from(reply.content);
      context.type = reply.type;
    };
  };
  return Object.assign(middleware(gate.limits), {
    route: (...limits: RequestLimit<Context>[]) => middleware(gate.route(limits)),
  });
}

/** Leaves a response to nobody. */
function leave(context: Context): void {
  context.respond = false;
}
