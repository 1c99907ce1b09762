// Limits the requests of Express 5 and 4.

import type { ServerResponse } from "node:http";
import type { Request, RequestHandler, Response } from "express";
import type { Reader } from "./address.js";
import { Body, Entry, Gate, type RequestLimit, type ServingOptions, endWith } from "./serving.js";

export type { AddressOptions, ForwardedHeader } from "./address.js";
export type { Limited, OnLimited, Reply, RequestKey, RequestLimit, ServingOptions } from "./serving.js";

/** The options of `limitRequests`. `onLimited` may answer through its third argument, the response, which it then returns. */
export type LimitRequestsOptions = ServingOptions<Request, Response>;

/** A middleware for an app, which makes middleware for routes. */
export interface LimitRequests extends RequestHandler {
  /** Makes middleware for a route whose requests also need these limits: a request is admitted by all of them, or refused. */
  route(...limits: RequestLimit<Request>[]): RequestHandler;
}

const reader: Reader<Request> = {
  peer: (request) => request.socket.remoteAddress,
  header: (request, name) => request.headers[name]?.toString(),
  path: (request) => request.originalUrl.replace(/[?#].*/s, ""),
  user: ({ user, auth }: Request & { user?: unknown; auth?: unknown }) => user ?? auth,
};

function setHeaders(response: ServerResponse, headers: Readonly<Record<string, string>>): void {
  for (const name in headers) response.setHeader(name, headers[name]!);
}

const entries = new WeakMap<ServerResponse, Entry>();

/**
 * Returns middleware that limits requests, and answers 429 to those that are denied. A request holds its permits until its response
 * has ended or the client has disconnected. The user is `request.user`, or `request.auth`.
 */
export function limitRequests(options: LimitRequestsOptions = {}): LimitRequests {
  const gate = new Gate(reader, options);

  /** Returns whether the request continues. */
  async function isAdmitted(limits: typeof gate.limits, request: Request, response: Response): Promise<boolean> {
    let entry = entries.get(response);
    if (entry === undefined) {
      entry = new Entry();
      entries.set(response, entry);
      endWith(response, entry);
    }
    if (await gate.isExempt(request)) return true;
    // A client that has disconnected has no address any more.
    if (response.destroyed || request.socket.destroyed) return false;
    const limited = await gate.enter(request, limits, entry, response);
    if (entry.isOver || response.headersSent) return !entry.isOver;
    if (limited === null) {
      setHeaders(response, gate.headersOf(entry));
      return true;
    }
    response.statusCode = limited.status;
    setHeaders(response, limited.headers);
    let reply: Body | Response;
    try {
      reply = await gate.reply(request, limited, response, (given): given is Response => given === response);
    } catch (error) {
      response.statusCode = 500; // Otherwise the error would be sent with the status 429.
      throw error;
    }
    if (reply instanceof Body && !response.headersSent) response.setHeader("Content-Type", reply.type).end(reply.content);
    return false;
  }

  const middleware = (limits: typeof gate.limits): RequestHandler => {
    return (request, response, next) => {
      isAdmitted(limits, request, response).then((isAdmitted) => isAdmitted && next(), next);
    };
  };
  return Object.assign(middleware(gate.limits), {
    route: (...limits: RequestLimit<Request>[]) => middleware(gate.route(limits)),
  });
}
