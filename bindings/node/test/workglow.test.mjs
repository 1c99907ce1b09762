// Both generations of Workglow's interface.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as package_ from "workglow-limit";
import { directory, manual } from "./helpers.mjs";

const { CompositeLimiter, ConcurrencyLimiter, InvalidArgument, NullLimiter, RateLimiter, Store, toWorkglow } = package_;

test("the first generation: check, start, complete", async () => {
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

test("the second generation: a token, which ends once", async () => {
  const { limiter: rate } = manual(package_, 2, 60);
  const limiter = toWorkglow(new CompositeLimiter([new ConcurrencyLimiter(1), rate]));
  const released = await limiter.tryAcquire();
  assert.ok(released);
  assert.equal(await limiter.tryAcquire(), null);
  await limiter.release(released);
  assert.equal(rate.peek().remaining, 2, "it never ran");
  await limiter.complete(await limiter.tryAcquire());
  assert.equal(rate.peek().remaining, 1);
  await limiter.complete(released);
  const last = await limiter.tryAcquire();
  assert.equal(await limiter.tryAcquire(), null);
  await limiter.complete(last);
  assert.equal(await limiter.tryAcquire(), null, "the rate is used up");
});

test("tokens of nobody, and of another limiter", async () => {
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
});

test("a key of a limiter", async () => {
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

test("the scope: are processes counted together?", (t) => {
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

test("a store is opened off the event loop, and its errors reject", async (t) => {
  const limiter = toWorkglow(RateLimiter.attach(new Store(`sqlite:${directory(t)}/limits.db`), "nobody"));
  for (const method of ["tryAcquire", "canProceed", "recordJobStart", "clear"]) {
    await assert.rejects(limiter[method](), { code: "unknown_limit" });
  }
});
