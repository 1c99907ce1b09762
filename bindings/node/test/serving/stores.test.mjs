// The stores for express-rate-limit and @fastify/rate-limit, in these packages.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import "reflect-metadata"; // Before Nest's decorators.
import { Controller, Get, Module } from "@nestjs/common";
import { APP_GUARD, NestFactory } from "@nestjs/core";
import { ThrottlerGuard, ThrottlerModule } from "@nestjs/throttler";
import fastifyRateLimit from "@fastify/rate-limit";
import express from "express";
import { rateLimit } from "express-rate-limit";
import fastify from "fastify";
import { ManualClock, Store } from "workglow-limit";
import { LimitStore } from "workglow-limit/express-rate-limit";
import { limitStore } from "workglow-limit/fastify-rate-limit";
import { LimitStorage } from "workglow-limit/nestjs-throttler";
import { directory } from "../helpers.mjs";
import { until } from "./servers.mjs";

const WINDOW = 60_000;
const byClock = () => {
  const clock = new ManualClock();
  return { clock, store: new Store("memory:", { clock }) };
};

async function served(t, ...handlers) {
  const app = express();
  app.set("env", "test");
  for (const handler of handlers) app.use(handler);
  app.get("/", (request, response) => response.send("ok"));
  app.get("/400", (request, response) => response.status(400).send("no"));
  const server = app.listen(0, "127.0.0.1");
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  await once(server, "listening");
  return `http://127.0.0.1:${server.address().port}`;
}

const statuses = async (count, url) => {
  const found = [];
  for (let i = 0; i < count; i++) found.push((await fetch(url)).status);
  return found;
};

/** A limiter of the package with our store. A warning of the package fails the test. */
const limited = (store, options = {}, own = {}) => {
  const logger = { error: assert.fail, warn: assert.fail };
  return rateLimit({ windowMs: WINDOW, limit: 3, standardHeaders: "draft-8", logger, ...options, store: new LimitStore(store, own) });
};

test("express-rate-limit: the limit holds in a rolling window, not from boundary to boundary", async (t) => {
  const { clock, store } = byClock();
  const url = await served(t, limited(store));
  assert.deepEqual(await statuses(1, url), [200]);
  clock.advance(WINDOW - 1);
  assert.deepEqual(await statuses(3, url), [200, 200, 429]);
  clock.advance(1);
  assert.deepEqual(await statuses(2, url), [200, 429], "only the first hit has left the window");
  clock.advance(WINDOW - 2);
  assert.deepEqual(await statuses(1, url), [429]);
  clock.advance(1);
  assert.deepEqual(await statuses(3, url), [200, 200, 429]);
});

test("express-rate-limit: a refusal consumes nothing, and says when to retry", async (t) => {
  const { clock, store } = byClock();
  const url = await served(t, limited(store));
  await statuses(1, url);
  clock.advance("20s");
  assert.deepEqual(await statuses(6, url), [200, 200, 429, 429, 429, 429]);
  const { headers } = await fetch(url);
  assert.equal(headers.get("retry-after"), "40");
  assert.match(headers.get("ratelimit"), /; r=0; t=40$/);
  clock.advance("40s");
  assert.deepEqual(await statuses(2, url), [200, 429]);
});

test("express-rate-limit: two stores share a limit, also of processes with one file", async (t) => {
  const file = `sqlite:${directory(t)}/limits.db`;
  const [a, b] = [await served(t, limited(new Store(file))), await served(t, limited(new Store(file)))];
  assert.deepEqual([...(await statuses(2, a)), ...(await statuses(2, b)), ...(await statuses(1, a))], [200, 200, 200, 429, 429]);
});

test("express-rate-limit: several limiters of one store have names, and count a request once each", async (t) => {
  const store = new Store("memory:");
  const url = await served(t, limited(store, { limit: 2 }, { name: "two" }), limited(store, { limit: 5 }, { name: "five" }));
  assert.deepEqual(await statuses(3, url), [200, 200, 429]);
});

test("express-rate-limit: failed requests are undone; refusals, which fail too, were never counted", async (t) => {
  const store = new Store("memory:");
  const url = await served(t, limited(store, { skipFailedRequests: true }));
  await statuses(1, url);
  const limiter = store.limiter("express-rate-limit");
  for (let i = 1; i <= 5; i++) {
    assert.deepEqual(await statuses(1, `${url}/400`), [400]);
    await until(() => limiter.stats().cancelled === i);
  }
  assert.deepEqual(await statuses(9, url), [200, 200, ...Array(7).fill(429)]);
  assert.equal(limiter.stats().cancelled, 5);
});

test("express-rate-limit: the oldest hit that still counts is undone", async () => {
  const store = new Store("memory:");
  const hits = new LimitStore(store);
  hits.init({ limit: 3, windowMs: WINDOW, skipFailedRequests: false, skipSuccessfulRequests: true });
  for (const expected of [1, 2, 3, 4, 4]) assert.equal((await hits.increment("a")).totalHits, expected);
  await hits.decrement("a");
  for (const expected of [3, 4]) assert.equal((await hits.increment("a")).totalHits, expected);
  for (let i = 0; i < 5; i++) await hits.decrement("a");
  assert.equal((await hits.get("a")).totalHits, 0);
  await hits.decrement("b");
  assert.equal(await hits.get("b"), undefined);
  await hits.increment("b");
  await hits.resetKey("b");
  assert.equal(await hits.get("b"), undefined);
  await hits.increment("a");
  await hits.resetAll();
  assert.equal(await hits.get("a"), undefined);
});

test("express-rate-limit: the limit may be a function, or 0", async (t) => {
  const store = new Store("memory:");
  const limit = ({ path }) => (path === "/" ? 2 : 4);
  const url = await served(t, limited(store, { limit }, { max: 4 }));
  assert.deepEqual(await statuses(3, url), [200, 200, 429]);
  assert.deepEqual(await statuses(2, `${url}/400`), [400, 429], "hits up to the largest limit are counted");
  const logger = { error: assert.fail, warn: () => {} }; // It warns of a limit of 0.
  assert.deepEqual(await statuses(2, await served(t, limited(store, { limit: 0, logger }, { name: "none" }))), [429, 429]);
});

test("express-rate-limit: mistakes that the package only logs fail each request", async (t) => {
  const logged = [];
  const logger = { error: (error) => logged.push(error.message), warn: assert.fail };
  let middleware;
  try {
    middleware = limited(new Store("memory:"), { limit: () => 5, logger });
  } catch (error) {
    return assert.match(error.message, /^max is undefined: expected the largest/); // Version 8.0 throws it.
  }
  const url = await served(t, middleware);
  assert.match(logged[0], /max is undefined: expected the largest result of limit/);
  assert.deepEqual(await statuses(2, url), [500, 500]);
  await assert.rejects(new LimitStore(new Store("memory:")).increment("a"), /store is used before init\(\)/);
});

test("express-rate-limit: an operator's override holds", async (t) => {
  const store = new Store("memory:");
  const url = await served(t, limited(store));
  await statuses(1, url);
  await store.override("express-rate-limit", "2/1m");
  assert.deepEqual(await statuses(2, url), [200, 429]);
  await store.override("express-rate-limit", "9/1m");
  assert.deepEqual(await statuses(2, url), [200, 200], "the package's own number refused a hit that the operator allows");
});

async function app(t, options, routes = {}) {
  const app = fastify({ forceCloseConnections: true });
  t.after(() => app.close());
  await app.register(fastifyRateLimit, { max: 3, timeWindow: WINDOW, ...options });
  app.get("/", () => "ok");
  for (const [path, rateLimit] of Object.entries(routes)) app.get(path, { config: { rateLimit } }, () => "ok");
  return app.listen({ port: 0, host: "127.0.0.1" });
}

test("@fastify/rate-limit: the limit holds in a rolling window, and a refusal consumes nothing", async (t) => {
  const { clock, store } = byClock();
  const url = await app(t, { store: limitStore(store) });
  assert.deepEqual(await statuses(1, url), [200]);
  clock.advance("20s");
  assert.deepEqual(await statuses(5, url), [200, 200, 429, 429, 429]);
  const { headers } = await fetch(url);
  assert.deepEqual([headers.get("retry-after"), headers.get("x-ratelimit-remaining")], ["40", "0"]);
  clock.advance("40s");
  const response = await fetch(url);
  assert.deepEqual([response.status, response.headers.get("x-ratelimit-remaining")], [200, "0"]);
  assert.deepEqual(await statuses(1, url), [429]);
  clock.advance("20s");
  assert.deepEqual(await statuses(3, url), [200, 200, 429]);
});

test("@fastify/rate-limit: routes have limits of their own, and processes share them", async (t) => {
  const file = `sqlite:${directory(t)}/limits.db`;
  const routes = { "/a": { max: 1 }, "/b": { max: 2, timeWindow: "1 hour" } };
  const [one, two] = [
    await app(t, { store: limitStore(new Store(file)) }, routes),
    await app(t, { store: limitStore(new Store(file)) }, routes),
  ];
  assert.deepEqual([...(await statuses(1, `${one}/a`)), ...(await statuses(1, `${two}/a`))], [200, 429]);
  assert.deepEqual([...(await statuses(1, `${one}/b`)), ...(await statuses(2, `${two}/b`))], [200, 200, 429]);
  assert.deepEqual([...(await statuses(2, one)), ...(await statuses(2, two))], [200, 200, 200, 429]);
  assert.deepEqual(
    (await new Store(file).names()).filter((name) => name.includes("GET")),
    ["fastify-rate-limit/GET /a", "fastify-rate-limit/GET /b"],
  );
});

test("@fastify/rate-limit: the numbers of functions make plans", async (t) => {
  const max = async (request) => Number(request.headers["x-max"]);
  const keyGenerator = () => 42; // Keys may be numbers.
  const url = await app(t, { store: limitStore(new Store("memory:")), max, timeWindow: () => WINDOW, keyGenerator });
  const ask = async (max) => (await fetch(url, { headers: { "x-max": max } })).status;
  assert.deepEqual([await ask(1), await ask(1), await ask(2), await ask(2), await ask(2), await ask(0)], [200, 429, 200, 200, 429, 429]);
  assert.equal(await ask("many"), 500);
});

test("@fastify/rate-limit: reading does not count", async (t) => {
  const instance = fastify();
  t.after(() => instance.close());
  await instance.register(fastifyRateLimit, { max: 2, timeWindow: WINDOW, global: false, store: limitStore(new Store("memory:")) });
  const check = instance.createRateLimit();
  const remaining = async (options) => (await check({ ip: "1.2.3.4", routeOptions: {} }, options)).remaining;
  assert.deepEqual([await remaining({ increment: false }), await remaining(), await remaining({ increment: false })], [2, 1, 1]);
});

test("@fastify/rate-limit: options that count refusals are errors when the app starts", async (t) => {
  for (const options of [{ ban: 2 }, { continueExceeding: true }, { exponentialBackoff: true }]) {
    await assert.rejects(app(t, { store: limitStore(new Store("memory:")), ...options }), /: expected (none|false)/);
  }
});

/** Starts a Nest app whose requests are counted by our storage. Decorators are called, as JavaScript has none. */
async function nest(t, storage, throttlers) {
  class Api {
    get() {
      return "ok";
    }
  }
  Controller()(Api);
  Get()(Api.prototype, "get", Object.getOwnPropertyDescriptor(Api.prototype, "get"));
  class App {}
  Module({
    imports: [ThrottlerModule.forRoot({ throttlers, storage })],
    controllers: [Api],
    providers: [{ provide: APP_GUARD, useClass: ThrottlerGuard }],
  })(App);
  const app = await NestFactory.create(App, { logger: false });
  t.after(() => app.close());
  await app.listen(0, "127.0.0.1");
  return `http://127.0.0.1:${app.getHttpServer().address().port}`;
}

test("@nestjs/throttler: the limit holds in a rolling window, and a refusal consumes nothing", async (t) => {
  const { clock, store } = byClock();
  const url = await nest(t, new LimitStorage(store), [{ ttl: WINDOW, limit: 3 }]);
  assert.deepEqual(await statuses(1, url), [200]);
  clock.advance(WINDOW - 2_500);
  const { headers } = await fetch(url);
  assert.deepEqual([headers.get("x-ratelimit-limit"), headers.get("x-ratelimit-remaining")], ["3", "1"]);
  assert.deepEqual(await statuses(2, url), [200, 429]);
  const refused = await fetch(url);
  assert.deepEqual([refused.status, refused.headers.get("retry-after")], [429, "3"]);
  clock.advance(2_500);
  assert.deepEqual(await statuses(2, url), [200, 429], "only the first hit has left the window");
});

test("@nestjs/throttler: throttlers have limits of their own, which apps with one file share", async (t) => {
  const throttlers = [
    { name: "burst", ttl: 1_000_000, limit: 4 },
    { name: "day", ttl: 86_400_000, limit: 3 },
  ];
  const url = `sqlite:${directory(t)}/limits.db`;
  const [one, other] = [
    await nest(t, new LimitStorage(new Store(url)), throttlers),
    await nest(t, new LimitStorage(new Store(url)), throttlers),
  ];
  assert.deepEqual(await statuses(2, one), [200, 200]);
  assert.deepEqual(await statuses(2, other), [200, 429]);
  const names = await new Store(url).names();
  assert.deepEqual(names, ["nestjs-throttler/burst/4 per 1000000 ms", "nestjs-throttler/day/3 per 86400000 ms"]);
});
