// Features of one framework.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import express from "express";
import fastify from "fastify";
import { Hono } from "hono";
import Koa from "koa";
import { ConcurrencyLimiter, NullLimiter, RateLimiter, Store } from "workglow-limit";
import { limitRequests as ofExpress } from "workglow-limit/express";
import { limitRequests as ofFastify } from "workglow-limit/fastify";
import { limitRequests as ofHono } from "workglow-limit/hono";
import { limitRequests as ofKoa } from "workglow-limit/koa";
import { limitRequests as ofNext } from "workglow-limit/next";
import { until } from "./servers.mjs";

const rate = (max, name = "api", store = new Store("memory:")) =>
  new RateLimiter(store, name, { maxExecutions: max, windowSizeInSeconds: 60 });

async function listening(t, app) {
  const server = app.listen(0, "127.0.0.1");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  await once(server, "listening");
  return `http://127.0.0.1:${server.address().port}`;
}

const answers = async (url, headers) => {
  const response = await fetch(url, { headers });
  return [response.status, response.headers.get("retry-after") !== null, await response.text()];
};

test("Express: onLimited may send the response, at once or later", async (t) => {
  const app = express();
  const onLimited = (request, { retryAfter }, response) => {
    if (request.path === "/") return response.json({ seconds: Math.ceil(retryAfter / 1e3) > 0 });
    setImmediate(() => response.status(503).send("later"));
    return response;
  };
  app.use(ofExpress({ limits: [{ limiter: rate(1) }], onLimited }));
  app.use((request, response) => response.send("ok"));
  const url = await listening(t, app);
  assert.deepEqual(await answers(url), [200, false, "ok"]);
  assert.deepEqual(await answers(url), [429, true, '{"seconds":true}']);
  assert.deepEqual(await answers(`${url}/later`), [503, true, "later"]);
});

test("Koa: onLimited may send the response, with the status of a refusal or another", async (t) => {
  const app = new Koa();
  const onLimited = (request, { retryAfter }, context) => {
    if (context.path !== "/") context.status = 503;
    context.body = { seconds: Math.ceil(retryAfter / 1e3) > 0 };
    return context;
  };
  app.use(ofKoa({ limits: [{ limiter: rate(1) }], onLimited }));
  app.use((context) => void (context.body = "ok"));
  const url = await listening(t, app);
  assert.deepEqual(await answers(url), [200, false, "ok"]);
  assert.deepEqual(await answers(url), [429, true, '{"seconds":true}']);
  assert.deepEqual(await answers(`${url}/other`), [503, true, '{"seconds":true}']);
});

test("Express: exempt paths are those of the whole app, wherever the middleware is mounted", async (t) => {
  const app = express();
  app.use("/api", ofExpress({ limits: [{ limiter: rate(1) }], exempt: ["/api/health"] }));
  app.use((request, response) => response.send("ok"));
  const url = await listening(t, app);
  const statuses = [];
  for (const path of ["/api/health", "/api/health", "/api/a", "/api/a", "/health"]) statuses.push((await answers(url + path))[0]);
  assert.deepEqual(statuses, [200, 200, 200, 429, 200]);
});

test("Express and Hono: a middleware that a request passes twice counts it once", async (t) => {
  const [ofOne, ofOther] = [rate(2), rate(2)];
  const limit = ofExpress({ limits: [{ limiter: ofOne }] });
  const app = express().use(limit, limit);
  app.get("/", limit, (request, response) => response.send("ok"));
  const url = await listening(t, app);
  const again = ofHono({ limits: [{ limiter: ofOther }] });
  const hono = new Hono().use(again, again).get("/", again, (context) => context.text("ok"));
  for (const ask of [() => fetch(url), () => hono.request("/")]) {
    const [first, second, third] = [await ask(), await ask(), await ask()];
    assert.deepEqual([first.status, second.status, third.status], [200, 200, 429]);
    assert.match(first.headers.get("ratelimit"), /^"api";r=1;t=\d+$/);
  }
});

test("Express: permits of two middlewares are held together, and freed together", async (t) => {
  const running = new ConcurrencyLimiter(1);
  const app = express();
  app.use(ofExpress({ limits: [{ limiter: running, name: "running" }] }));
  app.use(ofExpress({ limits: [{ limiter: rate(1) }] }));
  app.use((request, response) => response.send("ok"));
  const url = await listening(t, app);
  assert.equal((await answers(url))[0], 200);
  await until(() => running.peek().admitted);
  const { status, headers } = await fetch(url);
  assert.deepEqual([status, headers.get("ratelimit-policy")], [429, '"running";q=1;qu="concurrent-requests", "api";q=1;w=60']);
  assert.ok(running.peek().admitted, "the refusal did not free it at once");
});

test("Fastify: routes without limits, routes declared before the plugin, and unknown paths", async (t) => {
  const app = fastify();
  t.after(() => app.close());
  const limiter = rate(2);
  const store = new Store("memory:");
  app.register(ofFastify, { limits: [{ limiter }] });
  app.get("/free", { config: { limits: false } }, () => "free");
  app.get("/", { config: { limits: [{ limiter: rate(1, "route", store) }] } }, () => "ok");
  const status = async (url) => (await app.inject(url)).statusCode;
  assert.deepEqual([await status("/free"), await status("/free"), await status("/free")], [200, 200, 200]);
  assert.deepEqual([await status("/"), await status("/")], [200, 429]);
  assert.deepEqual([await status("/none"), await status("/none")], [404, 429]);
});

test("Fastify: a later hook knows the user, and onLimited may send the reply", async (t) => {
  const app = fastify();
  t.after(() => app.close());
  const onLimited = (request, { key }, reply) => reply.send({ key });
  await app.register(ofFastify, { hook: "preHandler", limits: [{ limiter: rate(1), key: "user" }], onLimited });
  app.addHook("preValidation", async (request) => void (request.user = { id: request.headers.user }));
  app.get("/", () => "ok");
  const ask = async (user) => app.inject({ url: "/", headers: { user } });
  assert.deepEqual([(await ask("a")).statusCode, (await ask("b")).statusCode], [200, 200]);
  const refused = await ask("a");
  assert.deepEqual(
    [refused.statusCode, refused.json(), refused.headers["content-type"]],
    [429, { key: "a" }, "application/json; charset=utf-8"],
  );
});

test("Hono: responses of the app, without a server, and bodies that are read late", async () => {
  const running = new ConcurrencyLimiter(1);
  const app = new Hono();
  app.use(async (context, next) => {
    context.set("jwtPayload", { sub: "ann" });
    await next();
  });
  const keys = [];
  const onLimited = (context, { key }) => void keys.push(key) ?? context.json({ slow: "down" }, 429, { "Retry-After": "7" });
  app.use(ofHono({ limits: [{ limiter: running, name: "running", key: "user" }], onLimited }));
  app.get("/", (context) => context.text("ok"));
  app.get("/redirect", () => Response.redirect("http://localhost/"));
  const first = await app.request("/");
  const refused = await app.request("/");
  assert.deepEqual([refused.status, refused.headers.get("retry-after"), await refused.json()], [429, "7", { slow: "down" }]);
  assert.ok(refused.headers.has("ratelimit"));
  assert.deepEqual(keys, ["ann"]);
  assert.equal(await first.text(), "ok");
  await until(() => running.peek({ key: "ann" }).admitted);
  const redirect = await app.request("/redirect");
  assert.deepEqual([redirect.status, redirect.headers.has("ratelimit")], [302, true]);
  await until(() => running.peek({ key: "ann" }).admitted);
  const left = await app.request("/");
  await left.body.cancel();
  await until(() => running.peek({ key: "ann" }).admitted);
});

test("Hono: the address of the peer is that of Bun and of Deno, and its absence is an error", async () => {
  const [keys, errors] = [[], []];
  const limiter = new NullLimiter();
  limiter.decideAsync = (start) => {
    keys.push(start.key);
    return NullLimiter.prototype.decideAsync.call(limiter, start);
  };
  const appOf = (options) => {
    const app = new Hono();
    app.onError((error, context) => context.text(String(errors.push(error.message)), 500));
    app.use(ofHono({ limits: [{ limiter, name: "all", key: "address" }], ...options }));
    return app.get("/", (context) => context.text("ok"));
  };
  class Server {
    requestIP() {
      return this.peer; // A method that needs its object, as Bun's does.
    }
    peer = { address: "192.0.2.1", family: "IPv4", port: 7 };
  }
  const bun = new Server();
  const deno = { remoteAddr: { transport: "tcp", hostname: "192.0.2.2", port: 7 } };
  const app = appOf({});
  for (const env of [bun, { server: bun }, deno]) assert.equal((await app.request("/", {}, env)).status, 200);
  assert.deepEqual(keys.splice(0), ["192.0.2.1", "192.0.2.1", "192.0.2.2"]);
  for (const env of [undefined, {}, { KV: {} }]) assert.equal((await app.request("/", {}, env)).status, 500);
  for (const error of errors) assert.match(error, /^trustedProxies is undefined: expected a list with "unix", or a function as key/);
  const proxied = appOf({ trustedProxies: ["unix"] });
  assert.equal((await proxied.request("/", { headers: { "X-Forwarded-For": "192.0.2.3" } })).status, 200);
  assert.deepEqual(keys, ["192.0.2.3"]);
});

test("Next: handlers get their arguments, and a thrown redirect is not a failure", async () => {
  const [store, signal] = [new Store("memory:"), new AbortController()];
  const limiter = rate(9, "api", store);
  const gate = ofNext({ limits: [{ limiter, skipFailed: true }] });
  const request = () => new Request("http://localhost/a/7?b", { signal: signal.signal });
  const handler = gate(async (request, { params }) => Response.json({ url: request.url, ...(await params) }));
  const response = await handler(request(), { params: Promise.resolve({ id: "7" }) });
  assert.deepEqual(await response.json(), { url: "http://localhost/a/7?b", id: "7" });
  const throwing = (digest) => gate(() => Promise.reject(Object.assign(new Error("planned"), { digest })));
  await assert.rejects(throwing("NEXT_REDIRECT;replace;/login;307;")(request()), /planned/);
  await until(() => limiter.peek().remaining === 7);
  for (const digest of ["NEXT_HTTP_ERROR_FALLBACK;404", "NEXT_NOT_FOUND", undefined])
    await assert.rejects(throwing(digest)(request()), /planned/);
  assert.equal(limiter.peek().remaining, 7);
  signal.abort();
  assert.equal((await handler(request(), { params: {} })).status, 408, "the client had disconnected");
  assert.equal(limiter.peek().remaining, 7);
});

test("Next: what a handler throws has a status, for functions of it", async () => {
  const seen = [];
  const noteIt = (status) => seen.push(status) < 0;
  const gate = ofNext({ limits: [{ limiter: rate(9), skipFailed: noteIt, skipSuccessful: noteIt }] });
  const digests = ["NEXT_REDIRECT;push;/a;b;308;", "NEXT_REDIRECT;replace;/a", "NEXT_HTTP_ERROR_FALLBACK;403", "NEXT_NOT_FOUND", undefined];
  for (const digest of digests) {
    const handler = gate(() => Promise.reject(Object.assign(new Error("planned"), { digest })));
    await assert.rejects(handler(new Request("http://localhost/")), /planned/);
  }
  assert.deepEqual(seen, [308, 307, 403, 500, 500]);
});

test("Next: addresses come from the proxy in front of it", async () => {
  const keys = [];
  const limiter = Object.assign(new NullLimiter(), {
    decideAsync: ({ key }) => (keys.push(key), NullLimiter.prototype.decideAsync.call(limiter, { key })),
  });
  const gate = ofNext({ limits: [{ limiter, key: "address", name: "all" }], trustedProxies: ["unix", "10.0.0.0/8"] });
  const handler = gate(() => new Response("ok"));
  await handler(new Request("http://localhost/", { headers: { "X-Forwarded-For": "1.1.1.1, 9.9.9.9, 10.0.0.1" } }));
  assert.deepEqual(keys, ["9.9.9.9"]);
});
