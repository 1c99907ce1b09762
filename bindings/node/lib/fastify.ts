// Limits the requests of Fastify 5.

import type { ServerResponse } from "node:http";
import type { FastifyPluginAsync, FastifyReply, FastifyRequest, RouteOptions } from "fastify";
import type { Reader } from "./address.js";
import { invalid } from "./errors.js";
import { word } from "./input.js";
import { Body, Entry, Gate, type RequestLimit, type ServingOptions, endWith } from "./serving.js";

export type { AddressOptions, ForwardedHeader } from "./address.js";
export type { Limited, OnLimited, Reply, RequestKey, RequestLimit, ServingOptions } from "./serving.js";

declare module "fastify" {
  interface FastifyContextConfig {
    /** Limits that requests of this route also need. `false`: the route is not limited at all, not even by the app's limits. */
    limits?: readonly RequestLimit<FastifyRequest>[] | false;
  }
}

/** The options of `limitRequests`. `onLimited` may answer through its third argument, the reply, which it then returns. */
export interface LimitRequestsOptions extends ServingOptions<FastifyRequest, FastifyReply> {
  /** The hook that decides. Default: "onRequest". Later hooks know the user or the body. */
  hook?: "onRequest" | "preParsing" | "preValidation" | "preHandler" | undefined;
}

const entries = new WeakMap<ServerResponse, Entry>();

const HOOKS = ["onRequest", "preParsing", "preValidation", "preHandler"];

const reader: Reader<FastifyRequest> = {
  peer: (request) => request.socket.remoteAddress,
  header: (request, name) => request.headers[name]?.toString(),
  path: (request) => request.originalUrl.replace(/[?#].*/s, ""),
  user: (request) => (request as { user?: unknown }).user,
};

/**
 * A plugin that limits requests, and answers 429 to those that are denied. A request holds its permits until its response has ended
 * or the client has disconnected. `config: { limits: […] }` of a route adds limits to it. The user is `request.user`.
 */
export const limitRequests: FastifyPluginAsync<LimitRequestsOptions> = async (app, options) => {
  const gate = new Gate(reader, options, ["hook"]);
  const hook = word("hook", options.hook ?? "onRequest", HOOKS) as "onRequest";
  const routes = new WeakMap<object, typeof gate.limits>();

  /** Returns the limits of a route. */
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
  // Finds mistakes when the app starts.
  app.addHook("onRoute", ({ config }: RouteOptions) => void limitsOf(config));

  app.addHook(hook, async (request, reply) => {
    const limits = limitsOf(request.routeOptions.config);
    if (limits.length === 0 || (await gate.isExempt(request))) return;
    // A client that has disconnected has no address any more.
    if (reply.raw.destroyed || request.socket.destroyed) return reply.hijack();
    let entry = entries.get(reply.raw);
    if (entry === undefined) {
      entry = new Entry();
      entries.set(reply.raw, entry);
      endWith(reply.raw, entry);
    }
    const limited = await gate.enter(request, limits, entry, reply);
    if (entry.isOver) return reply.hijack();
    if (limited === null) return void reply.headers(gate.headersOf(entry));
    reply.code(limited.status).headers(limited.headers);
    let answer: Body | FastifyReply;
    try {
      answer = await gate.reply(request, limited, reply, (given): given is FastifyReply => given === reply);
    } catch (error) {
      reply.code(500); // Otherwise the error would be sent with the status 429.
      throw error;
    }
    if (!(answer instanceof Body) || reply.sent) return reply;
    return reply.type(answer.type).send(Buffer.from(answer.content)); // Fastify adds a charset to the type of a string.
  });
};

// Applies to the app that registers it, not only to routes that are registered within the plugin.
Object.assign(limitRequests, { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "workglow-limit" });
