// Every invalid option is an error when the app is made. It names the parameter, the value and what was expected.

import assert from "node:assert/strict";
import { test } from "node:test";
import fastify from "fastify";
import { InvalidArgument, NullLimiter, RateLimiter, Store } from "workglow-limit";
import { limitRequests as express } from "workglow-limit/express";
import { LimitStore } from "workglow-limit/express-rate-limit";
import { limitRequests as ofFastify } from "workglow-limit/fastify";
import { limitStore } from "workglow-limit/fastify-rate-limit";
import { limitRequests as hono } from "workglow-limit/hono";
import { limitRequests as koa } from "workglow-limit/koa";
import { LimitStorage } from "workglow-limit/nestjs-throttler";
import { limitRequests as next } from "workglow-limit/next";

const limiter = new NullLimiter();
const named = (name) => new RateLimiter(new Store("memory:"), name, { maxExecutions: 1, windowSizeInSeconds: 1 });
const plan = () => "free";
const joint = new Store("memory:").limiter("joint", "tokens: 9/1m + tenant: 5/1m");

const LIMITS = [
  [7, /limits is 7: expected an array/],
  [[7], /limits is 7: expected an object with limiter, key/],
  [[limiter], /limits is an array with a limiter: expected objects with limits: \[\{ limiter \}\]/],
  [{ limiter }, /limits is an object: expected an array/],
  [[{}], /limiter is undefined: expected a limiter of this package, or an object/],
  [[{ limiter: "100/1m" }], /limiter is "100\/1m": expected a limiter/],
  [[{ limiter: [limiter] }], /limiter is an array/],
  [[{ limiter: {}, plan }], /limiter is an empty object/],
  [[{ limiter: { free: limiter } }], /plan is undefined: expected a function/],
  [[{ limiter: { free: limiter }, plan: "free" }], /plan is "free": expected a function/],
  [[{ limiter: { free: 7 }, plan }], /limiter\.free is 7: expected a limiter/],
  [[{ limiter, plan }], /plan is a function: expected none with a single limiter/],
  [[{ limiter: joint, key: { tenant: "ip" } }], /key is "ip": expected "address", .* for part "tenant"/],
  [[{ limiter: joint, key: { tenant: 7 } }], /key is 7: expected a function of the request for part "tenant"/],
  [[{ limiter: joint, key: { tenat: "user" } }], /part is "tenat": expected one of those of limiter "joint": tokens, tenant/],
  [[{ limiter, weight: { tokens: 1 } }], /part is "tokens": .*it has none/],
  [[{ limiter: joint, weight: { tokens: 0 } }], /weight is 0: expected a whole number .* for part "tokens"/],
  [[{ limiter, key: "ip" }], /key is "ip": expected "address", "user", "header:NAME"/],
  [[{ limiter, key: "header:" }], /key is "header:"/],
  [[{ limiter, key: "header:a b" }], /key is "header:a b"/],
  [[{ limiter, key: 7 }], /key is 7/],
  [[{ limiter, weight: 0 }], /weight is 0: expected a whole number of at least 1/],
  [[{ limiter, weight: 1.5 }], /weight is 1.5/],
  [[{ limiter, weight: NaN }], /weight is NaN/],
  [[{ limiter, weight: "2" }], /weight is "2"/],
  [[{ limiter, skipFailed: 1 }], /skipFailed is 1: expected true, false, or a function of the status/],
  [[{ limiter, skipSuccessful: "yes" }], /skipSuccessful is "yes"/],
  [[{ limiter, shadow: null }], /shadow is null/],
  [[{ limiter, skipFailed: true, skipSuccessful: true }], /skipSuccessful is true: expected not both/],
  [[{ limiter, name: "größe" }], /name is "größe": expected printable ASCII/],
  [[{ limiter, name: "" }], /name is ""/],
  [[{ limiter, name: "a\nb" }], /name is "a\\nb"/],
  [[{ limiter: named("größe") }], /name is "größe": expected printable ASCII/],
  [
    [
      { limiter, name: "a" },
      { limiter, name: "a" },
    ],
    /name is "a": expected a different name/,
  ],
  [[{ limiter: named("a") }, { limiter, name: "a" }], /name is "a": expected a different name/],
  [[{ limiter, windowMs: 7 }], /limits is an object with windowMs: expected only limiter/],
];

const OPTIONS = [
  ["exempt", "/health", /exempt is "\/health": expected an array of paths/],
  ["exempt", ["health"], /exempt is "health"/],
  ["exempt", ["/*/health"], /exempt is "\/\*\/health"/],
  ["exempt", ["/health?a"], /exempt is "\/health\?a"/],
  ["exempt", [7], /exempt is 7/],
  ["trustedProxies", "10.0.0.0/8", /trustedProxies is "10.0.0.0\/8": expected a list/],
  ["trustedProxies", ["10.0.0.0/33"], /trustedProxies is "10.0.0.0\/33"/],
  ["trustedProxies", ["10.1.0.0/8"], /trustedProxies is "10.1.0.0\/8": .*without bits beyond the prefix/],
  ["trustedProxies", ["2001:db8::/129"], /trustedProxies is "2001:db8::\/129"/],
  ["trustedProxies", ["2001:db8::1/64"], /without bits beyond the prefix/],
  ["trustedProxies", ["loopback"], /trustedProxies is "loopback"/],
  ["trustedProxies", [true], /trustedProxies is true/],
  ["forwardedHeader", "X-Client-IP", /forwardedHeader is "X-Client-IP": expected "X-Forwarded-For", "Forwarded", .* or "X-Real-IP"/],
  ["forwardedHeader", 7, /forwardedHeader is 7/],
  ["ipv6Prefix", 0, /ipv6Prefix is 0: expected a whole number from 1 to 128/],
  ["ipv6Prefix", 129, /ipv6Prefix is 129/],
  ["ipv6Prefix", 56.5, /ipv6Prefix is 56.5/],
  ["onLimited", "no", /onLimited is "no": expected a function/],
  ["headers", 1, /headers is 1: expected true or false/],
  ["limit", [], /options is an object with limit: expected only limits, exempt/],
];

const refuses = (make, message) =>
  assert.throws(make, (error) => (error instanceof InvalidArgument && message.test(error.message)) || assert.fail(error));

for (const [framework, limitRequests] of Object.entries({ express, hono, koa, next })) {
  test(`${framework}: invalid limits of the app and of a route are errors`, () => {
    for (const [limits, message] of LIMITS) refuses(() => limitRequests({ limits }), message);
    for (const [limits, message] of LIMITS.filter(([limits]) => Array.isArray(limits))) {
      const gate = limitRequests();
      refuses(() => (framework === "next" ? gate(() => new Response(), ...limits) : gate.route(...limits)), message);
    }
    const gate = limitRequests({ limits: [{ limiter, name: "a" }] });
    refuses(() => (framework === "next" ? gate(() => 0, { limiter, name: "a" }) : gate.route({ limiter, name: "a" })), /a different name/);
  });

  test(`${framework}: invalid options are errors`, () => {
    for (const [option, value, message] of OPTIONS) refuses(() => limitRequests({ [option]: value }), message);
    for (const options of [null, 7, []]) refuses(() => limitRequests(options), /options is .*: expected an object/);
  });
}

test("fastify: invalid limits and options fail the start of the app", async () => {
  const rejects = (options, message, route) => {
    const app = fastify();
    app.register(ofFastify, options);
    if (route) app.register(async (app) => void app.get("/", { config: { limits: route } }, () => "ok"));
    return assert.rejects(async () => app.ready(), message);
  };
  for (const [limits, message] of LIMITS) await rejects({ limits }, message);
  for (const [limits, message] of LIMITS.slice(5)) await rejects({}, message, limits);
  for (const [option, value, message] of OPTIONS) await rejects({ [option]: value }, message);
  await rejects({ hook: "onSend" }, /hook is "onSend": expected "onRequest", "preParsing", "preValidation" or "preHandler"/);
  await rejects({}, /config\.limits is 7: expected an array of limits, or false/, 7);
});

test("next: keys that a route handler cannot compute are errors", () => {
  refuses(() => next({ limits: [{ limiter, name: "a", key: "user" }] }), /key is "user": expected a function/);
  refuses(() => next({ limits: [{ limiter: joint, key: { tenant: "user" } }] }), /key is "user": expected a function/);
  for (const key of ["address", "header:X-API-Key"]) {
    refuses(() => next({ limits: [{ limiter, name: "a", key }] }), /trustedProxies is undefined: expected a list with "unix"/);
    refuses(() => next({ trustedProxies: ["10.0.0.0/8"] })(() => 0, { limiter, name: "a", key }), /expected a list with "unix"/);
    next({ limits: [{ limiter, name: "a", key }], trustedProxies: ["unix"] });
  }
  refuses(() => next()(7), /handler is 7: expected a route handler/);
});

test("invalid options of the store for express-rate-limit are errors", () => {
  const store = new Store("memory:");
  refuses(() => new LimitStore("memory:"), /store is "memory:": expected a Store/);
  refuses(() => new LimitStore(store, { prefix: "a" }), /options is an object with prefix: expected only name, max/);
  refuses(() => new LimitStore(store, { name: 7 }), /name is 7/);
  refuses(() => new LimitStore(store, { name: "" }), /name is ""/);
  refuses(() => new LimitStore(store, { max: -1 }), /max is -1/);
  refuses(() => new LimitStore(store).init({ limit: () => 5, windowMs: 1000 }), /max is undefined: expected the largest result of limit/);
  refuses(() => new LimitStore(store).init({ limit: 2.5, windowMs: 1000 }), /2\.5/);
  refuses(() => new LimitStore(store).init({ limit: 5, windowMs: 0 }), /0/);
});

test("invalid options of the store for @fastify/rate-limit are errors", () => {
  const store = new Store("memory:");
  refuses(() => limitStore({}), /store is an object: expected a Store/);
  refuses(() => limitStore(store, 7), /name is 7/);
  refuses(() => limitStore(store, ""), /name is ""/);
  const make = (options) => new (limitStore(store))({ max: 5, timeWindow: 1000, ban: -1, ...options });
  refuses(() => make({ ban: 0 }), /ban is 0: expected none/);
  refuses(() => make({ continueExceeding: true }), /continueExceeding is true: expected false/);
  refuses(() => make({ exponentialBackoff: true }), /exponentialBackoff is true: expected false/);
  refuses(() => make({ timeWindow: 0 }), /timeWindow is 0: expected more than 0 ms/);
  refuses(() => make().child({ max: 5, timeWindow: 1000, ban: 3 }), /ban is 3/);
});

test("invalid options of the storage for @nestjs/throttler are errors", async () => {
  const store = new Store("memory:");
  refuses(() => new LimitStorage("memory:"), /store is "memory:": expected a Store/);
  refuses(() => new LimitStorage(store, { prefix: "a" }), /options is an object with prefix: expected only name/);
  refuses(() => new LimitStorage(store, { name: "" }), /name is ""/);
  const storage = new LimitStorage(store);
  await assert.rejects(storage.increment("k", 1000, 5, 3000, "default"), /blockDuration is 3000: expected none, or the ttl, 1000/);
  await assert.rejects(storage.increment("k", 0, 5, 0, "default"), /ttl is 0: expected more than 0 ms/);
  await assert.rejects(storage.increment("k", 1000, 2.5, 1000, "default"), /2\.5/);
});
