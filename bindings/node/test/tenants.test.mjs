// Tenants of a shared limit: one budget, in which the key names whose start it is.

import assert from "node:assert/strict";
import { test } from "node:test";
import * as package_ from "workglow-limit";
import { directory, lined, settle } from "./helpers.mjs";

const { ConcurrencyLimiter, FixedWindowLimiter, LeakyBucketLimiter, ManualClock, RateLimiter, Store } = package_;

/** Returns the tenants in the order of their starts. All of them wait before the first one starts. */
async function starts(store, limiter, asks) {
  const order = [];
  let running = 0;
  const held = await limiter.acquire({ key: "holder" });
  const jobs = asks.map(async ([key, share]) => {
    const permit = await limiter.acquire({ key, share });
    assert.equal(++running, 1);
    order.push(key);
    await settle();
    running--;
    permit.complete();
  });
  await lined(store, asks.length);
  assert.deepEqual(order, []);
  held.complete();
  await Promise.all(jobs);
  return order;
}

const several = (count, key, share) => Array.from({ length: count }, () => [key, share]);
const urls = (t) => ["memory:", `sqlite:${directory(t)}/limits.db`];

test("a tenant with one job does not wait for another one with many", async (t) => {
  for (const url of urls(t)) {
    const store = new Store(url);
    const limiter = store.limiter("jobs", "1 concurrent shared");
    const order = await starts(store, limiter, [...several(30, "whale"), ["small"]]);
    assert.ok(order.indexOf("small") <= 1, `${order}`);
  }
});

test("starts are divided by shares: of a call, and as the store keeps them", async (t) => {
  for (const url of urls(t)) {
    const store = new Store(url);
    const limiter = store.limiter("jobs", "1 concurrent shared");
    (await limiter.acquire()).complete();
    await store.share("jobs", "b", 3);
    const order = await starts(store, limiter, [...several(20, "a"), ...several(20, "b"), ...several(20, "c", 2)]);
    // Two tenants that wait differ by one start each, per share: until one of them has no more.
    for (let i = 1; i <= order.lastIndexOf("b") + 1; i++) {
      const [a, b, c] = ["a", "b", "c"].map((key) => order.slice(0, i).filter((other) => other === key).length);
      assert.ok(
        Math.abs(a - b / 3) <= 1 + 1 / 3 && Math.abs(b / 3 - c / 2) <= 1 / 3 + 1 / 2 && Math.abs(a - c / 2) <= 1 + 1 / 2,
        `${order}`,
      );
    }
  }
});

test("all tenants have one budget, and one that comes back starts in the next window", async (t) => {
  for (const url of urls(t)) {
    const clock = new ManualClock();
    const store = new Store(url, { clock });
    const limiter = new RateLimiter(store, "calls", { maxExecutions: 4, windowSizeInSeconds: 60, shared: true });
    for (const key of ["whale", "whale", "whale", "small"]) assert.ok(await limiter.tryAcquireAsync({ key }));
    assert.equal((await limiter.peekAsync({ key: "another" })).remaining, 0);
    const order = [];
    const job = async (key) => {
      await limiter.acquire({ key });
      order.push(key);
    };
    const jobs = several(20, "whale").map(([key]) => job(key));
    await lined(store, 20);
    jobs.push(job("another"));
    await lined(store, 21);
    for (let window = 1; window <= 6; window++) {
      clock.advance("61s");
      while (order.length < Math.min(4 * window, 21)) await settle();
      assert.equal(order.length, Math.min(4 * window, 21));
    }
    await Promise.all(jobs);
    assert.ok(order.indexOf("another") < 8, `${order}`);
  }
});

test("schedule and wrap take a share", async () => {
  const store = new Store("memory:");
  const limiter = store.limiter("jobs", "1 concurrent shared");
  const held = await limiter.acquire();
  const order = [];
  const run = limiter.wrap(
    (key) => order.push(key),
    (key) => ({ key, share: 2 }),
  );
  const jobs = several(6, "a").map(([key]) => run(key));
  jobs.push(...several(6, "b").map(([key]) => limiter.schedule(() => order.push(key), { key })));
  await lined(store, 12);
  held.complete();
  await Promise.all(jobs);
  assert.ok([3, 4, 5].includes(order.slice(0, 6).filter((key) => key === "a").length), `${order}`);
});

test("what is shared, and what cannot be", async () => {
  const store = new Store("memory:");
  const made = [
    [new ConcurrencyLimiter(5, { store, name: "jobs", shared: true }), "5 concurrent shared"],
    [new FixedWindowLimiter(store, "quota", { maxExecutions: 5, windowSizeInSeconds: 3600, shared: true }), "5/1h fixed shared"],
  ];
  for (const [limiter, policy] of made) {
    assert.ok(limiter.tryAcquire({ key: "a" }));
    assert.equal(limiter.peek({ key: "b" }).remaining, 4);
    assert.equal(store.snapshot().limits.find(({ name }) => name === limiter.name).policy, policy);
  }
  const code = "invalid_argument";
  assert.throws(() => new ConcurrencyLimiter(5, { shared: true }), { code, message: /shared is true: expected false without a store/ });
  assert.throws(() => new ConcurrencyLimiter(5, { store, name: "x", shared: 1 }), { code, message: /shared is 1: expected true or false/ });
  assert.throws(() => new LeakyBucketLimiter(store, "x", { rate: 5, shared: true }), {
    code,
    message: /shared: expected only rate, period, queue/,
  });
  for (const share of [0, 1001, 1.5, "3", undefined]) {
    await assert.rejects(store.share("jobs", "a", share), { code, message: /^share is .*: expected a whole number from 1 to 1000/ });
  }
  await assert.rejects(store.share("jobs", undefined, 3), { code, message: /^key is undefined/ });
  await assert.rejects(store.share("jobs", "", 3), { code, message: /^key is / });
  await assert.rejects(store.share("nothing", "a", 3), { code: "unknown_limit" });
  (await store.limiter("alone", "1 concurrent").acquire({ key: "a", share: 3 })).complete();
  await assert.rejects(store.share("alone", "a", 3), /shared/);
});
