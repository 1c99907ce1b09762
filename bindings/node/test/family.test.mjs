// The limiters of each kind, and limits by name. Their exact decisions are in the shared vectors.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import * as package_ from "workglow-limit";
import { directory } from "./helpers.mjs";

const {
  CompositeLimiter,
  ConcurrencyLimiter,
  DelayLimiter,
  EvenlySpacedRateLimiter,
  FixedWindowLimiter,
  FlowControl,
  LeakyBucketLimiter,
  Limiter,
  ManualClock,
  RateLimiter,
  SlidingWindowCounterLimiter,
  Store,
  TokenBucketLimiter,
} = package_;

const window = { maxExecutions: 2, windowSizeInSeconds: 60 };
/** Each kind: its class, and a function that makes a limiter of two units in a store. */
const KINDS = [
  [RateLimiter, (store, name) => new RateLimiter(store, name, window)],
  [ConcurrencyLimiter, (store, name) => new ConcurrencyLimiter(2, { store, name, lease: "1m" })],
  [DelayLimiter, (store, name) => new DelayLimiter("1m", { store, name })],
  [EvenlySpacedRateLimiter, (store, name) => new EvenlySpacedRateLimiter(window, { store, name })],
  [TokenBucketLimiter, (store, name) => new TokenBucketLimiter(store, name, { rate: 2, period: "1m" })],
  [LeakyBucketLimiter, (store, name) => new LeakyBucketLimiter(store, name, { rate: 2, period: "1m", queue: 2 })],
  [FixedWindowLimiter, (store, name) => new FixedWindowLimiter(store, name, window)],
  [SlidingWindowCounterLimiter, (store, name) => new SlidingWindowCounterLimiter(store, name, window)],
];

/** Returns how many starts are admitted now. */
function starts(limiter) {
  let admitted = 0;
  while (admitted < 100 && limiter.tryAcquire()) admitted++;
  return admitted;
}

for (const [kind, make] of KINDS) {
  test(`${kind.name} is shared under its name, by which the store finds it`, async (t) => {
    const url = `sqlite:${directory(t)}/limits.db`;
    const clock = new ManualClock();
    const store = new Store(url, { clock });
    const fresh = store.limiter("limit");
    await assert.rejects(fresh.acquire(), { code: "unknown_limit" });
    const limiter = make(store, "limit");
    assert.ok(limiter instanceof kind && limiter instanceof Limiter);
    assert.equal(limiter.name, "limit");
    assert.equal(await limiter.canProceed(), true);
    const attached = store.limiter("limit");
    await attached.open();
    const most = starts(limiter);
    assert.ok(most >= 1 && most <= 2, String(most));
    assert.equal(attached.tryAcquire(), null);
    assert.equal(attached.peek().deniedBy, "limit");
    const [, other] = KINDS.find(([other]) => other !== kind);
    await assert.rejects(other(store, "limit").acquire(), { code: "kind_mismatch", number: -5 });
    await limiter.clear();
    assert.equal(starts(attached), most);
  });
}

test("a limiter without a store has its own limit", () => {
  const clock = new ManualClock();
  const make = [
    () => new ConcurrencyLimiter(1, { clock }),
    () => new DelayLimiter(50, { clock }),
    () => new EvenlySpacedRateLimiter({ maxExecutions: 1, windowSizeInSeconds: 1 }, { clock }),
  ];
  for (const one of make) {
    const [first, second] = [one(), one()];
    assert.equal(starts(first), 1);
    assert.equal(starts(second), 1);
  }
});

test("the default delay is 50 ms", () => {
  const clock = new ManualClock();
  for (const [limiter, ms] of [
    [new DelayLimiter(undefined, { clock }), 50],
    [new DelayLimiter("1.5s", { clock }), 1500],
  ]) {
    assert.ok(limiter.tryAcquire());
    assert.equal(limiter.decide().retryAfter, ms);
    clock.advance(ms - 0.001);
    assert.equal(limiter.tryAcquire(), null);
    clock.advance("1us");
    assert.ok(limiter.tryAcquire());
  }
  assert.ok(new DelayLimiter().tryAcquire());
});

test("evenly spaced starts come closer by the duration of jobs, unless adaptive is false", () => {
  for (const [adaptive, wait] of [
    [undefined, 750],
    [true, 750],
    [false, 1000],
  ]) {
    const clock = new ManualClock();
    const limiter = new EvenlySpacedRateLimiter({ maxExecutions: 60, windowSizeInSeconds: 60, adaptive }, { clock });
    const permit = limiter.tryAcquire();
    assert.equal(limiter.peek().retryAfter, 1000);
    clock.advance(250);
    permit.complete();
    clock.advance(750);
    assert.ok(limiter.tryAcquire());
    assert.equal(limiter.peek().retryAfter, wait);
  }
});

test("a rate limiter's backoff grows with denials", () => {
  const clock = new ManualClock();
  const store = new Store("memory:", { clock });
  const backoff = { initialBackoffDelay: "2s", backoffMultiplier: 1.5, maxBackoffDelay: 4000, jitter: "none" };
  const limiter = new RateLimiter(store, "calls", { maxExecutions: 1, windowSizeInSeconds: 1, ...backoff });
  assert.ok(limiter.tryAcquire());
  assert.deepEqual([limiter.decide().retryAfter, limiter.peek().suggestedAfter], [1000, 2000]);
  // The backoff is advice for callers that requeue: a start is admitted as soon as units are free.
  clock.advance("1s");
  assert.ok(limiter.tryAcquire());
  const jitters = { scaled: [10_000, 20_000], full: [1000, 10_000], equal: [5000, 10_000], none: [10_000, 10_000] };
  for (const [jitter, [least, most]] of Object.entries(jitters)) {
    const options = { maxExecutions: 1, windowSizeInSeconds: 1, initialBackoffDelay: "10s", jitter };
    const limiter = new RateLimiter(store, jitter, options);
    limiter.tryAcquire();
    for (let i = 0; i < 50; i++) {
      const { suggestedAfter } = limiter.decide();
      assert.ok(suggestedAfter >= least && suggestedAfter <= most, `${jitter}: ${suggestedAfter}`);
    }
  }
});

test("a bucket's default burst is its rate, and its default period a second", () => {
  const clock = new ManualClock();
  const store = new Store("memory:", { clock });
  const bucket = new TokenBucketLimiter(store, "tokens", { rate: 10 });
  assert.equal(bucket.peek().limit, 10);
  assert.equal(starts(bucket), 10);
  assert.equal(bucket.peek().retryAfter, 100);
  assert.equal(starts(new TokenBucketLimiter(store, "burst", { rate: 10, period: "1m", burst: 20 })), 20);
  const leaky = new LeakyBucketLimiter(store, "leaky", { rate: 10 });
  assert.equal(starts(leaky), 1);
  assert.equal(leaky.peek().retryAfter, 100);
});

test("fixed windows follow the wall clock, and sliding window counters estimate", () => {
  const store = new Store("memory:", { clock: new ManualClock() });
  for (const kind of [FixedWindowLimiter, SlidingWindowCounterLimiter]) {
    const limiter = new kind(store, kind.name, { maxExecutions: 3, windowSizeInSeconds: 3600 });
    assert.equal(starts(limiter), 3);
    assert.equal(limiter.peek().limit, 3);
  }
});

test("a limiter can be made from a text", async (t) => {
  const path = `${directory(t)}/limits.db`;
  const { existsSync } = await import("node:fs");
  const store = new Store(`sqlite:${path}`);
  const limiter = store.limiter("openai", "3/1m + 2 concurrent");
  assert.ok(limiter instanceof Limiter);
  assert.equal(existsSync(path), false);
  const first = await limiter.acquire();
  const second = limiter.tryAcquire();
  assert.ok(second);
  assert.match(limiter.decide().deniedBy, /^openai\/concurrency/);
  first.complete();
  second.complete();
  assert.ok(limiter.tryAcquire());
  assert.match(limiter.decide().deniedBy, /^openai\/rate/);
  const found = new Store(`sqlite:${path}`).limiter("openai");
  assert.ok(found instanceof Limiter);
  assert.equal(await found.tryAcquireAsync(), null);
  const one = store.limiter("one", "2/1m");
  await one.open();
  assert.equal(starts(one), 2);
  assert.throws(() => store.limiter("two", "2/1h +"), { code: "invalid_argument", message: /^policy is / });
});

test("a name alone attaches to any kind at the first use, and an unknown name lists the known ones", async (t) => {
  const store = new Store("memory:", { clock: new ManualClock() });
  for (const [kind, make] of KINDS) {
    const limiter = make(store, kind.name);
    assert.equal(await limiter.canProceed(), true);
    const found = store.limiter(kind.name);
    assert.equal(found.name, kind.name);
    const most = starts(found);
    assert.ok(most >= 1);
    assert.equal(limiter.tryAcquire(), null);
  }
  const unknown = { name: "UnknownLimit", code: "unknown_limit", message: /RateLimiter/ };
  const early = store.limiter("early");
  assert.throws(() => early.tryAcquire(), unknown);
  await assert.rejects(early.acquire(), unknown);
  await assert.rejects(early.canProceed(), unknown);
  assert.throws(() => early.stats(), unknown);
  const permits = [store.limiter("early", "2 concurrent").tryAcquire(), await early.acquire()];
  assert.equal(early.tryAcquire(), null);
  for (const permit of permits) permit.complete();

  // In a file, the first use opens the store without blocking the event loop.
  const url = `sqlite:${directory(t)}/limits.db`;
  const absent = new Store(url).limiter("limit");
  await assert.rejects(absent.canProceed(), { code: "unknown_limit" });
  await new Store(url).limiter("limit", "2/1h").acquire();
  assert.ok(await absent.acquire());
  await assert.rejects(absent.acquire({ timeout: 0 }), { name: "TimeoutError" });
  const found = new Store(url).limiter("limit");
  await found.open();
  assert.equal(await new CompositeLimiter([found]).tryAcquireAsync(), null);
});

test("a file declares limits", async (t) => {
  const dir = directory(t);
  const store = new Store("memory:", { clock: new ManualClock() });
  writeFileSync(`${dir}/limits.toml`, '[stripe]\nallowed = 2\nperiod = "1m"\n\n[mail]\nallowed = 1\nperiod = "1h"\n');
  assert.deepEqual((await store.load(`${dir}/limits.toml`)).sort(), ["mail", "stripe"]);
  assert.equal(starts(store.limiter("stripe")), 2);
  writeFileSync(`${dir}/bad.toml`, "[stripe]\nallowed = -2\n");
  await assert.rejects(store.load(`${dir}/bad.toml`), { code: "invalid_argument" });
  await assert.rejects(store.load(`${dir}/none.toml`), { code: "invalid_argument", message: /^file is .*none\.toml/ });
});

test("flow control makes a limiter of a rate and a parallelism", () => {
  const store = new Store("memory:", { clock: new ManualClock() });
  const flow = new FlowControl({ key: "openai", rate: 3, period: "1m", parallelism: 2 });
  assert.deepEqual({ ...flow }, { key: "openai", rate: 3, period: 60_000, parallelism: 2 });
  const limiter = store.limiter(flow);
  const permits = [limiter.tryAcquire(), limiter.tryAcquire()];
  assert.match(limiter.decide().deniedBy, /concurrency/);
  for (const permit of permits) permit.complete();
  assert.ok(limiter.tryAcquire());
  assert.match(limiter.decide().deniedBy, /rate/);
  assert.equal(starts(store.limiter(new FlowControl({ key: "one", parallelism: 4 }))), 4);
  assert.equal(starts(store.limiter(new FlowControl({ key: "two", rate: 5 }))), 5);
});

test("stats count starts", () => {
  const clock = new ManualClock();
  const limiter = new RateLimiter(new Store("memory:", { clock }), "calls", { maxExecutions: 3, windowSizeInSeconds: 60 });
  const zero = { admitted: 0, denied: 0, unitsWanted: 0, unitsGranted: 0, waited: 0, waitTime: 0, cancelled: 0 };
  assert.deepEqual(limiter.stats(), { ...zero, storeErrors: 0, policyChanges: 0 });
  limiter.tryAcquire({ key: "a", weight: 2 });
  limiter.tryAcquire({ key: "b" }).cancel();
  assert.equal(limiter.tryAcquire({ key: "a", weight: 3 }), null);
  limiter.peek();
  const { admitted, denied, unitsWanted, unitsGranted, cancelled } = limiter.stats();
  assert.deepEqual(
    { admitted, denied, unitsWanted, unitsGranted, cancelled },
    {
      admitted: 2,
      denied: 1,
      unitsWanted: 6,
      unitsGranted: 3,
      cancelled: 1,
    },
  );
  assert.equal(limiter.stats({ key: "a" }).unitsGranted, 2);
  assert.equal(limiter.stats({ key: "b" }).denied, 0);
});
