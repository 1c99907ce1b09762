// workglow-limit/web in "memory:", with the clock of the machine: never over, in which order waiters start, and how starts end.

import assert from "node:assert/strict";
import { test } from "node:test";
import { skip, web } from "./built.mjs";

/** The most starts that lie wholly in a window of so many ms. Each lies between the two moments of its call, and none begins before another. */
function mostIn(starts, window) {
  let [most, from] = [0, 0];
  starts.forEach(([, end], i) => {
    while (from <= i && starts[from][0] <= end - window) from++;
    most = Math.max(most, i - from + 1);
  });
  return most;
}

for (const [policy, limit, window] of [
  ["5/50ms", 5, 50],
  ["5000/300ms", 5000, 300],
  ["delay 5ms", 1, 5],
  ["3/20ms spaced strictly", 3, 20],
  ["10/100ms queue 5", 1, 10],
]) {
  test(`never over in a tight loop: ${policy}`, { skip }, async () => {
    const store = await web.open("memory:");
    const limiter = store.limiter("tight", policy);
    const starts = [];
    // More than one window: so some are denied, unless this machine is too busy to ask often enough.
    while (starts.length < 20 || starts.length < 1.2 * limit) {
      const before = performance.now();
      const decision = await limiter.decide();
      if (decision.admitted) starts.push([before, performance.now()]);
    }
    const most = mostIn(starts, window);
    assert.ok(most <= limit, `${most} starts in ${window} ms`);
    store.close();
  });
}

test("waiters start in the order in which they asked, and nobody overtakes them", { skip }, async () => {
  const clock = new web.ManualClock();
  const store = await web.open("memory:", { clock });
  const limiter = store.limiter("line", "2/1s");
  await limiter.acquire({ weight: 2 });
  const order = [];
  const waiters = ["a", "b", "c"].map((name, i) => limiter.acquire({ weight: i === 0 ? 2 : 1 }).then(() => order.push(name)));
  const first = limiter.acquire({ priority: -1 }).then(() => order.push("first"));
  // Something is free for a lighter start as soon as for the first of the line.
  const denied = await limiter.decide();
  assert.equal(denied.admitted, false);
  assert.equal(denied.retryAfter, 1000);
  for (let i = 0; i < 4; i++) {
    clock.advance(1000);
    await new Promise(setImmediate);
  }
  await Promise.all([...waiters, first]);
  assert.deepEqual(order, ["first", "a", "b", "c"]);
});

test("a waiter that would wait too long rejects at once, and others after their timeout or by their signal", { skip }, async () => {
  const clock = new web.ManualClock();
  const store = await web.open("memory:", { clock });
  const limiter = store.limiter("late", "1/1h");
  await limiter.acquire();
  await assert.rejects(limiter.acquire({ timeout: "1m" }), { name: "TimeoutError", code: "acquire_timeout", retryAfter: 36e5 });
  const controller = new AbortController();
  const aborted = limiter.acquire({ signal: controller.signal });
  const behind = limiter.acquire({ timeout: 1 });
  await assert.rejects(behind, { code: "acquire_timeout" });
  controller.abort(new Error("enough"));
  await assert.rejects(aborted, { message: "enough" });
  // Nobody waits any more.
  clock.advance(36e5);
  assert.ok(await limiter.tryAcquire());
});

test("a slot that becomes free starts the first waiter", { skip }, async () => {
  const store = await web.open("memory:");
  const limiter = store.limiter("slots", "1 concurrent + 100/1m");
  const running = await limiter.acquire();
  const waiting = limiter.schedule(() => "ran");
  assert.equal(await limiter.tryAcquire(), null);
  await running.complete();
  await running.complete();
  assert.equal(await waiting, "ran");
  const double = limiter.wrap(async (number) => 2 * number, { timeout: "1m" });
  assert.equal(await double(4), 8);
  assert.deepEqual((await limiter.peek()).remaining, 1);
});

test("limits are shared by name, and errors name what is wrong", { skip }, async () => {
  const store = await web.open("memory:");
  await assert.rejects(store.limiter("none").tryAcquire(), { name: "UnknownLimit", code: "unknown_limit" });
  const limiter = store.limiter("one", "2/1h");
  assert.ok(await limiter.tryAcquire());
  assert.equal((await store.limiter("one").peek()).remaining, 1);
  await assert.rejects(store.limiter("one", "5 concurrent").tryAcquire(), { code: "kind_mismatch" });
  await assert.rejects(limiter.tryAcquire({ weight: 3 }), { name: "WeightExceedsCapacity" });
  await assert.rejects(limiter.tryAcquire({ weight: 0 }), { name: "InvalidArgument", message: /^weight is 0: expected/ });
  await assert.rejects(limiter.tryAcquire({ keys: "a" }), { name: "InvalidArgument", message: /with keys/ });
  await assert.rejects(store.limiter("bad", "5 per fortnight").tryAcquire(), { name: "InvalidArgument", message: /character 7/ });
  const shared = { code: "unsupported", message: /^"5\/1m shared" is not supported here: tenants/ };
  await assert.rejects(store.limiter("shared", "5/1m shared").tryAcquire(), shared);
  await assert.rejects(store.limiter("shared", "2 concurrent + 5/1m shared").tryAcquire(), shared);
  store.limiter("two", "2/1h");
  await assert.rejects(store.override("two", "5/1m shared"), shared);
  await assert.rejects(web.open("redis://there"), { name: "InvalidArgument", message: /^url is "redis:\/\/there"/ });
  await assert.rejects(web.open("indexeddb:x"), { code: "invalid_argument", message: /^url is "indexeddb:x": expected "memory:"/ });
  store.close();
  await assert.rejects(limiter.tryAcquire(), { name: "StoreClosed", code: "store_closed" });
});

test("many keys: idle ones are forgotten, and none loses a start", { skip }, async () => {
  const clock = new web.ManualClock();
  const store = await web.open("memory:", { clock });
  const limiter = store.limiter("keys", "1/1s");
  for (let round = 0; round < 3; round++) {
    for (let i = 0; i < 1000; i++) assert.ok(await limiter.tryAcquire({ key: `${i}` }), `${round} ${i}`);
    for (let i = 0; i < 1000; i++) assert.equal(await limiter.tryAcquire({ key: `${i}` }), null);
    clock.advance(1000);
  }
});
