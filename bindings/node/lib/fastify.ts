// A limiter before the routes of Fastify 5.

import type { FastifyPluginAsync, FastifyReply, FastifyRequest, RouteOptions } from "fastify";
import type { Reader } from "./address.js";
import { invalid } from "./errors.js";
import { word } from "./input.js";
import { Body, Entry, Gate, type RequestLimit, type ServingOptions, endWith } from "./serving.js";

export type { AddressOptions } from "./address.js";
export type { Limited, OnLimited, Reply, RequestLimit, ServingOptions } from "./serving.js";

declare module "fastify" {
  interface FastifyContextConfig {
    /** What requests of this route take beside the limits of the app: all of them, or nothing. `false`: it is not limited at all. */
    limits?: readonly RequestLimit<FastifyRequest>[] | false;
  }
}

/** How an app's requests are limited. `onLimited` may answer with its third argument, and gives that then. */
export interface LimitRequestsOptions extends ServingOptions<FastifyRequest, FastifyReply> {
  /** When: "onRequest" if not given. Later ones know who is signed in, or the body. */
  hook?: "onRequest" | "preParsing" | "preValidation" | "preHandler" | undefined;
}

const HOOKS = ["onRequest", "preParsing", "preValidation", "preHandler"];

const reader: Reader<FastifyRequest> = {
  peer: (request) => request.socket.remoteAddress,
  header: (request, name) => request.headers[name]?.toString(),
  path: (request) => request.originalUrl.replace(/[?#].*/s, ""),
  user: (request) => (request as { user?: unknown }).user,
};

/**
 * Limits requests: a plugin, which answers 429 when there is no room. What a request has taken is held until its response is over,
 * or the client has left. `config: { limits: […] }` of a route adds limits to it. The user is `request.user`.
 */
export const limitRequests: FastifyPluginAsync<LimitRequestsOptions> = async (app, options) => {
  const gate = new Gate(reader, options, ["hook"]);
  const hook = word("hook", options.hook ?? "onRequest", HOOKS) as "onRequest";
  const routes = new WeakMap<object, typeof gate.limits>();

  /** What requests of a route take. */
  const limitsOf = (config: { limits?: unknown } = {}): typeof gate.limits => {
    const { limits } = config;
    if (limits === undefined || limits === false) return limits === false ? [] : gate.limits;
    let found = routes.get(config);
    if (found === undefined) {
      if (!Array.isArray(limits)) throw invalid("config.limits", limits, "an array of limits, or false");
      found = [...gate.limits, ...gate.route(limits)];
      routes.set(config, found);
    }
    return found;
  };
  // So that mistakes are found when the app starts.
  app.addHook("onRoute", ({ config }: RouteOptions) => void limitsOf(config));

  app.addHook(hook, async (request, reply) => {
    const limits = limitsOf(request.routeOptions.config);
    if (limits.length === 0 || (await gate.isExempt(request))) return;
    // Whoever has left has no address any more.
    if (reply.raw.destroyed || request.socket.destroyed) return reply.hijack();
    const entry = new Entry();
    endWith(reply.raw, entry);
    const limited = await gate.enter(request, limits, entry, reply);
    if (entry.isOver) return reply.hijack();
    if (limited === null) return void reply.headers(gate.headersOf(entry));
    reply.code(limited.status).headers(limited.headers);
    let answer: Body | FastifyReply;
    try {
      answer = await gate.reply(request, limited, reply, (given): given is FastifyReply => given === reply);
    } catch (error) {
      reply.code(500); // Otherwise the error would be answered with what is there already.
      throw error;
    }
    if (!(answer instanceof Body) || reply.sent) return reply;
    return reply.type(answer.type).send(Buffer.from(answer.content)); // To a string's type it adds a charset.
  });
};

// For all of the app that registers it, and not only for what is registered in it.
Object.assign(limitRequests, { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "workglow-limit" });
