// All generations of Workglow's interface, and its service tokens.

import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import * as theirs from "@workglow/job-queue";
import { globalServiceRegistry } from "@workglow/util";
import * as package_ from "workglow-limit";
import * as workglow from "workglow-limit/workglow";
import { directory, manual, settle } from "./helpers.mjs";

const { CompositeLimiter, ConcurrencyLimiter, InvalidArgument, ManualClock, NullLimiter, RateLimiter, Store, toWorkglow } = package_;

test("the first generation checks, starts and completes", async () => {
  const limiter = toWorkglow(new ConcurrencyLimiter(1));
  assert.equal(await limiter.canProceed(), true);
  await limiter.recordJobStart();
  assert.equal(await limiter.canProceed(), false);
  await limiter.recordJobCompletion();
  assert.equal(await limiter.canProceed(), true);
  await limiter.setNextAvailableTime(new Date(Date.now() + 60_000));
  const next = await limiter.getNextAvailableTime();
  assert.ok(next instanceof Date && next > Date.now() + 50_000);
  assert.equal(await limiter.canProceed(), false);
  await limiter.clear();
  assert.equal(await limiter.canProceed(), true);
});

test("the second generation starts with a token, and ends the oldest without one", async () => {
  const slots = new ConcurrencyLimiter(2);
  const limiter = toWorkglow(slots);
  const [first, second] = [await limiter.tryAcquire(), await limiter.tryAcquire()];
  assert.equal(await limiter.tryAcquire(), null);
  await limiter.recordJobCompletion();
  assert.equal(slots.peek().remaining, 1);
  await limiter.complete(first);
  assert.equal(slots.peek().remaining, 1, "the oldest start did not end");
  await limiter.release(second);
  assert.equal(slots.peek().remaining, 2);
  await limiter.recordJobCompletion();
  assert.equal(slots.peek().remaining, 2, "a start was left");
});

test("the third generation uses a token, which ends once", async () => {
  const { limiter: rate } = manual(package_, 2, 60);
  const limiter = toWorkglow(new CompositeLimiter([new ConcurrencyLimiter(1), rate]));
  const released = await limiter.tryAcquire();
  assert.ok(released);
  assert.equal(await limiter.tryAcquire(), null);
  await limiter.release(released);
  assert.equal(rate.peek().remaining, 2, "a start that never ran counted");
  await limiter.complete(await limiter.tryAcquire());
  assert.equal(rate.peek().remaining, 1);
  await limiter.complete(released);
  const last = await limiter.tryAcquire();
  assert.equal(await limiter.tryAcquire(), null);
  await limiter.complete(last);
  assert.equal(await limiter.tryAcquire(), null, "the rate was not used up");
});

test("invalid tokens, and those of another limiter, are errors", async () => {
  const limiter = toWorkglow(new ConcurrencyLimiter(1));
  const token = await limiter.tryAcquire();
  for (const bad of [undefined, null, {}, 5, new ConcurrencyLimiter(1).tryAcquire()]) {
    await assert.rejects(limiter.release(bad), InvalidArgument);
    await assert.rejects(limiter.complete(bad), InvalidArgument);
  }
  assert.equal(await limiter.tryAcquire(), null);
  await limiter.complete(token);
  for (const bad of [undefined, null, {}, { tryAcquire() {} }]) assert.throws(() => toWorkglow(bad), InvalidArgument);
  assert.throws(() => toWorkglow(new NullLimiter(), { key: 5 }), InvalidArgument);
  assert.throws(() => toWorkglow(new NullLimiter(), { kye: "k" }), InvalidArgument);
  for (const wait of ["soon", -1, NaN, true, 30_000, "1m"]) {
    assert.throws(() => toWorkglow(new NullLimiter(), { wait }), { name: "InvalidArgument", message: /^wait is / });
  }
});

test("with `wait`, a worker gets its place in order instead of a denial", async () => {
  const { limiter: rate, clock } = manual(package_, 1, 5);
  const limiter = toWorkglow(rate, { wait: "20s" });
  assert.ok(await limiter.tryAcquire());
  const order = [];
  const asked = [1, 2, 3].map((n) => limiter.tryAcquire().then((token) => (order.push(n), token)));
  await settle();
  assert.deepEqual(order, []);
  for (const upTo of [[1], [1, 2], [1, 2, 3]]) {
    // A place counts from the end of its grace, a fortieth of the window and at most 50 ms.
    clock.advance(5_050);
    await settle();
    assert.deepEqual(order, upTo);
  }
  assert.equal(rate.stats().denied, 0);
  for (const token of await Promise.all(asked)) await limiter.complete(token);
  assert.equal(await toWorkglow(rate, { wait: "4s" }).tryAcquire(), null, "its place was not further away");
  assert.equal(rate.stats().denied, 1);
});

test("a denied worker that asks too soon waits until a start is possible", async () => {
  const soon = toWorkglow(new RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 3 }));
  assert.ok(await soon.tryAcquire());
  let asked = 1;
  while ((await soon.tryAcquire()) === null) asked++;
  assert.ok(asked <= 6, `it asked ${asked} times`);
  for (const [limiter, end] of [
    [new RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 600 }), "release"],
    [new ConcurrencyLimiter(1), "complete"],
    [new RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 600 }), "clear"],
  ]) {
    const late = toWorkglow(limiter);
    const token = await late.tryAcquire();
    assert.equal(await late.tryAcquire(), null);
    const waiting = late.tryAcquire();
    await late[end](token);
    assert.ok(await waiting, end);
  }
  const never = toWorkglow(new RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 600 }));
  assert.ok(await never.tryAcquire());
  for (let i = 0; i < 2; i++) assert.equal(await never.tryAcquire(), null, "it did not ask again after a second");
});

test("getNextAvailableTime is exact, or soon where a slot may become free", async (t) => {
  const store = new Store(`sqlite:${directory(t)}/limits.db`);
  const leased = new ConcurrencyLimiter(1, { store, name: "gpu", lease: "1h" });
  const rate = new RateLimiter(store, "calls", { maxExecutions: 1, windowSizeInSeconds: 3600 });
  const away = async (limiter) => (await toWorkglow(limiter).getNextAvailableTime()) - Date.now();
  assert.ok((await away(leased)) <= 1);
  assert.ok(await leased.tryAcquireAsync());
  assert.ok(await rate.tryAcquireAsync());
  assert.ok((await leased.getNextAvailableTime()) - Date.now() > 3_500_000);
  assert.ok((await away(leased)) <= 1_000, "the lease ends with its job");
  assert.ok((await away(new CompositeLimiter([leased, rate]))) <= 1_000);
  assert.ok((await away(rate)) > 3_500_000, "the window is exact");
  await leased.pause("30m");
  assert.ok((await away(leased)) > 1_700_000, "the pause is exact");
});

test("a store failure at the end of a job is counted, and the queue continues", async (t) => {
  const dir = directory(t);
  const clock = new ManualClock();
  const store = new Store(`sqlite:${dir}/limits.db`, { timeout: 100, clock });
  const limiter = toWorkglow(new RateLimiter(store, "calls", { maxExecutions: 5, windowSizeInSeconds: 60 }));
  const tokens = [await limiter.tryAcquire(), await limiter.tryAcquire()];
  rmSync(dir, { recursive: true, maxRetries: 20 });
  assert.throws(() => tokens[0].cancel(), { name: "StoreError" });
  const before = store.failures;
  await limiter.release(tokens[1]);
  assert.ok(store.failures > before);
  clock.advance(2000); // A start checks once a second whether the store's files still exist.
  await assert.rejects(limiter.tryAcquire(), { name: "StoreError" });
  const denying = new Store(`sqlite:${dir}/limits.db`, { onError: "deny" });
  const calls = new RateLimiter(denying, "calls", { maxExecutions: 5, windowSizeInSeconds: 60 });
  for (const wait of [undefined, "1s"]) assert.equal(await toWorkglow(calls, { wait }).tryAcquire(), null);
});

test("the service tokens are Workglow's", () => {
  const ids = {
    JOB_LIMITER: "jobqueue.limiter",
    CONCURRENT_JOB_LIMITER: "jobqueue.limiter.concurrent",
    EVENLY_SPACED_JOB_RATE_LIMITER: "jobqueue.limiter.rate.evenlyspaced",
    NULL_JOB_LIMITER: "jobqueue.limiter.null",
    RATE_LIMITER_STORAGE: "ratelimiter.storage",
  };
  for (const [name, id] of Object.entries(ids)) {
    assert.equal(workglow[name].id, id);
    assert.deepEqual(workglow[name], theirs[name]);
    const service = toWorkglow(new NullLimiter());
    globalServiceRegistry.registerInstance(workglow[name], service);
    assert.equal(globalServiceRegistry.get(theirs[name]), service);
  }
});

test("both entries export the same function, in both module systems", () => {
  assert.equal(workglow.toWorkglow, toWorkglow);
  const cjs = createRequire(import.meta.url)("workglow-limit/workglow");
  assert.deepEqual(Object.keys(cjs).sort(), Object.keys(workglow).sort());
});

test("toWorkglow limits one key", async () => {
  const { limiter } = manual(package_, 1, 60);
  const [a, b] = ["a", "b"].map((key) => toWorkglow(limiter, { key }));
  assert.ok(await a.tryAcquire());
  assert.equal(await a.tryAcquire(), null);
  assert.ok(await b.tryAcquire());
  assert.equal(await a.canProceed(), false);
  await a.clear();
  assert.equal(await a.canProceed(), true);
  assert.equal(await b.canProceed(), false);
});

test("the scope says whether processes share the limit", (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  const rate = (url) => new RateLimiter(new Store(url), "calls", { maxExecutions: 1, windowSizeInSeconds: 1 });
  const scope = (limiter) => toWorkglow(limiter).scope;
  const own = { tryAcquire: () => 1, retryAfter: () => 0, cancel() {} };
  assert.equal(scope(rate(url)), "cluster");
  assert.equal(scope(rate("memory:")), "process");
  assert.equal(scope(new ConcurrencyLimiter(1)), "process");
  assert.equal(scope(new ConcurrencyLimiter(1, { store: new Store(url), name: "gpu" })), "cluster");
  assert.equal(scope(new CompositeLimiter([rate(url), new ConcurrencyLimiter(1)])), "process");
  assert.equal(scope(new CompositeLimiter([rate(url), rate(url)])), "cluster");
  assert.equal(scope(new CompositeLimiter([rate(url), own])), "process");
  assert.equal(scope(new CompositeLimiter([rate(url), { ...own, isShared: true }])), "cluster");
  assert.equal(scope(new CompositeLimiter()), "process");
});

test("a store opens without blocking the event loop, and its errors reject", async (t) => {
  const limiter = toWorkglow(new Store(`sqlite:${directory(t)}/limits.db`).limiter("nobody"));
  for (const method of ["tryAcquire", "canProceed", "recordJobStart", "clear"]) {
    await assert.rejects(limiter[method](), { code: "unknown_limit" });
  }
});
