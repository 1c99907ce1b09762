// The same app in each framework, with its real server on a free port.

import { once } from "node:events";
import { createServer } from "node:http";
import { Readable, pipeline } from "node:stream";
import { createAdaptorServer, getRequestListener } from "@hono/node-server";
import express from "express";
import express4 from "express-4";
import fastify from "fastify";
import { Hono } from "hono";
import Koa from "koa";
import * as ofExpress from "workglow-limit/express";
import * as ofFastify from "workglow-limit/fastify";
import * as ofHono from "workglow-limit/hono";
import * as ofKoa from "workglow-limit/koa";
import * as ofNext from "workglow-limit/next";

/** The ports of clients whose connections the servers have seen closed. */
export const closed = new Set();

/**
 * Starts an app in a framework. `routes` are handlers by path, each a function that returns `{ status, body }` (default: 200 and "ok"),
 * where a body may be an async iterable; or `{ limits, handler }`. `twice`: the middleware is used twice.
 */
export async function start(t, framework, { twice = false, ...options }, routes = { "/": () => ({}) }) {
  const found = Object.entries(routes).map(([path, route]) => {
    const { handler, limits } = typeof route === "function" ? { handler: route } : route;
    return { path, limits, handle: async () => ({ status: 200, body: "ok", ...(await handler()) }) };
  });
  const server = await FRAMEWORKS[framework](options, found, twice ? 2 : 1);
  server.on("connection", (socket) => {
    const { remotePort } = socket;
    socket.once("close", () => closed.add(remotePort));
  });
  if (!server.listening) await once(server.listen(0, "127.0.0.1"), "listening");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

const isStream = (body) => typeof body !== "string";

const withExpress = (express) => (options, routes, times) => {
  const app = express();
  app.set("env", "test"); // Prints no errors.
  const gate = ofExpress.limitRequests(options);
  for (let i = 0; i < times; i++) app.use(gate);
  for (const { path, limits, handle } of routes) {
    app.get(path, ...(limits ? [gate.route(...limits)] : []), async (request, response, next) => {
      try {
        const { status, body } = await handle();
        response.status(status);
        if (isStream(body)) pipeline(Readable.from(body), response, () => {});
        else response.send(body);
      } catch (error) {
        next(error);
      }
    });
  }
  return createServer(app);
};

async function withFastify(options, routes, times) {
  const app = fastify({ forceCloseConnections: true });
  for (let i = 0; i < times; i++) await app.register(ofFastify.limitRequests, options);
  for (const { path, limits, handle } of routes) {
    app.get(path, { config: limits && { limits } }, async (request, reply) => {
      const { status, body } = await handle();
      return reply.code(status).send(isStream(body) ? Readable.from(body) : body);
    });
  }
  await app.listen({ port: 0, host: "127.0.0.1" });
  return app.server;
}

const responseOf = ({ status, body }) => new Response(isStream(body) ? ReadableStream.from(body) : body, { status });

function withHono(options, routes, times) {
  const app = new Hono();
  app.onError((error, context) => context.text("Internal Server Error", 500));
  const gate = ofHono.limitRequests(options);
  for (let i = 0; i < times; i++) app.use(gate);
  for (const { path, limits, handle } of routes) {
    app.get(path, ...(limits ? [gate.route(...limits)] : []), async () => responseOf(await handle()));
  }
  return createAdaptorServer(app);
}

function withKoa(options, routes, times) {
  const app = new Koa();
  app.silent = true;
  const gate = ofKoa.limitRequests(options);
  for (let i = 0; i < times; i++) app.use(gate);
  for (const { path, limits, handle } of routes) {
    const here = (middleware) => (context, next) => (context.path === path ? middleware(context, next) : next());
    if (limits) app.use(here(gate.route(...limits)));
    app.use(
      here(async (context) => {
        const { status, body } = await handle();
        context.status = status;
        context.body = isStream(body) ? Readable.from(body) : body;
      }),
    );
  }
  return createServer(app.callback());
}

/** Next passes the standard `Request` and sends the standard `Response`; the server here is Hono's. */
function withNext(options, routes) {
  const gate = ofNext.limitRequests({ ...options, trustedProxies: ["unix", ...(options.trustedProxies ?? [])] });
  const handlers = new Map(routes.map(({ path, limits = [], handle }) => [path, gate(async () => responseOf(await handle()), ...limits)]));
  const fetch = async (request) => {
    try {
      return await handlers.get(new URL(request.url).pathname)(request);
    } catch {
      return new Response("Internal Server Error", { status: 500 });
    }
  };
  return createServer(getRequestListener(fetch, { overrideGlobalObjects: false }));
}

const FRAMEWORKS = {
  "Express 5": withExpress(express),
  "Express 4": withExpress(express4),
  Fastify: withFastify,
  Koa: withKoa,
  Next: withNext,
  Hono: withHono, // Last: its server of version 1 replaces the global `Response`.
};

export const frameworks = Object.keys(FRAMEWORKS);

/** Waits for what a server does after its client has the response. If it never happens, the test's timeout reports it. */
export async function until(isSo) {
  while (!(await isSo())) await new Promise((resolve) => setTimeout(resolve, 5));
}
