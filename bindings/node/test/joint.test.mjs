// Joint starts: one start that charges each part of a composite for itself. Their exact decisions are in tests/vectors/joint.vec.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { test } from "node:test";
import { inspect, promisify } from "node:util";
import { CompositeLimiter, ConcurrencyLimiter, ManualClock, RateLimiter, Store } from "workglow-limit";
import { settle } from "./helpers.mjs";

const POLICY = "requests: 500/1m + tokens: 200000/1m + tenant: 2/1m + 5 concurrent";

test("a start charges each part for itself", async () => {
  const clock = new ManualClock();
  const llm = new Store("memory:", { clock }).limiter("openai", POLICY);
  const start = { weight: { tokens: 1200 }, key: { tenant: "acme" } };
  const permit = await llm.acquire({ ...start, timeout: "30s" });
  assert.match(inspect(permit), /tenant of "acme", tokens: 1200/, "what people read is not the core's key");
  assert.equal(llm.peek({ weight: { tokens: 198_800 } }).admitted, true);
  assert.equal(llm.peek({ weight: { tokens: 198_801 } }).admitted, false);
  permit.settle({ tokens: 830 });
  assert.equal(llm.peek({ weight: { tokens: 199_170 } }).admitted, true, "the unused tokens are free again");
  (await llm.tryAcquireAsync(start)).complete();
  const denial = llm.decide(start);
  assert.equal(denial.deniedBy, "openai/tenant");
  assert.equal(llm.tryAcquire(start), null);
  assert.equal(llm.tryAcquire({ ...start, key: { tenant: "other" } }).started, true, "one tenant holds up no other");
});

test("a waiter of one tenant does not hold up another, and a completed start wakes waiters with other keys", async () => {
  const llm = new Store("memory:").limiter("openai", "tenant: 1/1d + 1 concurrent");
  const of = (tenant) => ({ key: { tenant }, timeout: "1m" });
  const first = await llm.acquire(of("a"));
  const second = llm.acquire(of("b"));
  first.complete();
  (await second).complete();
  await assert.rejects(llm.acquire(of("a")), { name: "TimeoutError" }, "its tenant has no unit within the timeout");
});

test("a start that came as a text wakes waiters of all keys when it ends", async () => {
  const clock = new ManualClock();
  const llm = new Store("memory:", { clock }).limiter("openai", "tenant: 1/1m + 1 concurrent");
  llm.tryAcquire({ key: { tenant: "a" } }).complete();
  for (const start of [(place) => llm.acquire({ place }), (place) => llm.presentAsync(place)]) {
    const text = llm.reserve({ key: { tenant: "a" } }).toText();
    clock.advance("1m");
    const permit = await start(text);
    assert.equal(permit.started, true);
    const waiting = llm.acquire({ key: { tenant: "b" } });
    await settle();
    permit.complete();
    (await waiting).cancel();
  }
});

test("the parts of a composite of limiters have names", () => {
  const store = new Store("memory:");
  const tokens = new RateLimiter(store, "tokens", { maxExecutions: 10, windowSizeInSeconds: 60 });
  const slots = new ConcurrencyLimiter(2);
  const limiter = new CompositeLimiter({ spent: tokens, slots });
  assert.equal(limiter.tryAcquire({ weight: { spent: 10 } }).started, true);
  assert.equal(limiter.tryAcquire({ weight: { spent: 1 } }), null);
  assert.throws(() => limiter.add(new ConcurrencyLimiter(1), "slots"), /name/);
  limiter.add(new ConcurrencyLimiter(1), "more");
});

test("the parts of a composite are limiters", async () => {
  const clock = new ManualClock();
  const store = new Store("memory:", { clock });
  const llm = store.limiter("openai", "tokens: 100/1m + tenant: 2/1m + 1 concurrent");
  const start = await llm.acquire({ weight: { tokens: 60 }, key: { tenant: "acme" } });
  const { tokens, tenant, concurrency } = llm.parts;
  assert.deepEqual(Object.keys(llm.parts), ["tokens", "tenant", "concurrency"]);
  assert.deepEqual([tokens.name, tokens.peek().remaining, tenant.peek({ key: "acme" }).remaining], ["openai/tokens", 40, 1]);
  assert.equal(concurrency.tryAcquire(), null);
  const waiting = [llm.acquire(), concurrency.acquire()];
  await settle();
  start.complete();
  const first = await Promise.race(waiting);
  first.complete();
  for (const permit of await Promise.all(waiting)) permit.complete();
  const rate = new RateLimiter(store, "rate", { maxExecutions: 9, windowSizeInSeconds: 60 });
  assert.equal(new CompositeLimiter({ rate, slots: new ConcurrencyLimiter(2) }).parts.rate, rate);
  assert.deepEqual(rate.parts, {});
  assert.deepEqual(Object.keys(store.limiter("openai").parts), ["tokens", "tenant", "concurrency"]);
});

test("a forgotten permit of a limit with a concurrency among others completes when it is collected", async () => {
  const program = `
    import { Store } from "workglow-limit";
    const limiter = new Store("memory:").limiter("api", "1000/1h + 1 concurrent");
    for (let i = 0; i < 3; i++) {
      limiter.tryAcquire().started;
      while (limiter.peek().admitted === false) {
        await new Promise((resolve) => setTimeout(resolve, 5));
        gc();
      }
    }
    console.log("collected");`;
  const args = ["--expose-gc", "--input-type=module", "--eval", program];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: import.meta.dirname });
  assert.equal(stdout, "collected\n");
});

test("objects without parts name none", async () => {
  const llm = new Store("memory:").limiter("openai", POLICY);
  (await llm.acquire({ key: {}, weight: {} })).settle({});
  assert.deepEqual([llm.peek({ key: {} }).remaining, llm.parts.requests.peek().remaining], [1, 499]);
  const rate = new Store("memory:").limiter("mail", "5/1s");
  assert.equal(rate.tryAcquire({ key: {}, weight: {} }).started, true);
  assert.equal(rate.peek().remaining, 4);
  assert.equal(new CompositeLimiter({}).tryAcquire().started, true);
});

test("wrong parts are refused, and nothing is taken", async () => {
  const llm = new Store("memory:").limiter("openai", POLICY);
  for (const [options, wanted] of [
    [{ weight: { token: 1 } }, /part is "token": .*tokens/],
    [{ weight: { tokens: 1.5 } }, /weight is 1\.5.*for part "tokens"/],
    [{ weight: { tokens: "9" } }, /weight is .*for part "tokens"/],
    [{ weight: { tokens: 0 } }, /weight is 0.*part "tokens"/],
    [{ key: { tenant: 7 } }, /key is 7.*a string for part "tenant"/],
    [{ key: ["acme"] }, /key is .*a string, or an object/],
    [{ weight: { tokens: 200_001 } }, /200001/],
    [{ key: { tenant: "x".repeat(1025) } }, /key is 1025 bytes.*"tenant"/],
    [{ key: { tenant: "x".repeat(1024), requests: "y".repeat(1024), tokens: "z".repeat(1024) } }, /key is .*of all parts/],
  ]) {
    assert.throws(() => llm.tryAcquire(options), wanted, inspect(options));
    await assert.rejects(llm.acquire(options), wanted, inspect(options));
    await assert.rejects(llm.decideAsync(options), wanted, inspect(options));
  }
  assert.equal(llm.peek().remaining, 2);
  const permit = llm.tryAcquire();
  assert.throws(() => permit.settle({ nothing: 1 }), /part is "nothing"/);
  assert.throws(() => permit.settle({ tokens: -1 }), /actual is .*for part "tokens"/);
  permit.settle({ tokens: 3 });
  const single = new Store("memory:").limiter("mail", "5/1s");
  assert.throws(() => single.tryAcquire({ weight: { tokens: 1 } }), /part is/);
});

test("the text of a place carries its charges", async () => {
  const clock = new ManualClock();
  const store = new Store("memory:", { clock });
  const llm = store.limiter("openai", "tokens: 10/1s + tenant: 5/1s");
  llm.tryAcquire({ weight: { tokens: 10 } });
  const place = llm.reserve({ weight: { tokens: 7 }, key: { tenant: "acme" } });
  const text = place.toText();
  clock.advance(place.wait);
  assert.equal(llm.present(text).started, true);
  assert.equal(llm.peek({ weight: { tokens: 4 }, key: { tenant: "acme" } }).deniedBy, "openai/tokens");
});
