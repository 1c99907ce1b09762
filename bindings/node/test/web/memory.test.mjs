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
  clock.advance(1000);
  await new Promise(setImmediate);
  // One unit is free, for the heavy one that waits. A look says the same as a decision.
  assert.equal(await limiter.canProceed(), false);
  for (let i = 0; i < 3; i++) {
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
  // Node has no IndexedDB.
  await assert.rejects(web.open("indexeddb:x"), { code: "unsupported", message: /^store "indexeddb:x" needs IndexedDB/ });
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

test("what a settled start owes is owed, too, when its key was forgotten", { skip }, async () => {
  const clock = new web.ManualClock();
  const store = await web.open("memory:", { clock });
  const limiter = store.limiter("owed", "10/1s");
  const permit = await limiter.tryAcquire({ key: "a" });
  clock.advance(2000);
  for (let i = 0; i < 200; i++) await limiter.tryAcquire({ key: `${i}` });
  await permit.settle(10);
  assert.equal((await limiter.peek({ key: "a" })).remaining, 1);
});

test("names and keys that look alike together have different lines", { skip }, async () => {
  const store = await web.open("memory:", { clock: new web.ManualClock() });
  const [one, other] = [store.limiter("a", "1/1h"), store.limiter("a\nb", "1/1h")];
  await one.acquire({ key: "b\nc" });
  const controller = new AbortController();
  const waiting = one.acquire({ key: "b\nc", signal: controller.signal });
  // (It waits for nobody: a line of one is not the other's.)
  assert.ok(await other.tryAcquire({ key: "c" }));
  controller.abort();
  await assert.rejects(waiting, { name: "AbortError" });
});

test("a free limit starts a waiter that has no time, and a waiter that leaves is told when to retry", { skip }, async () => {
  const store = await web.open("memory:", { clock: new web.ManualClock() });
  const limiter = store.limiter("patient", "1 concurrent + 1/1h");
  assert.ok(await limiter.acquire({ timeout: 0 }));
  await assert.rejects(limiter.acquire({ timeout: 0 }), { code: "acquire_timeout", retryAfter: 36e5 });
  await assert.rejects(limiter.acquire({ timeout: 1 }), { code: "acquire_timeout", retryAfter: 36e5 });
});

test("a timeout may be longer than a timer can be", { skip }, async (t) => {
  const store = await web.open("memory:", { clock: new web.ManualClock() });
  const limiter = store.limiter("long", "1 concurrent");
  const held = await limiter.acquire();
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let ended = null;
  const waiting = limiter.acquire({ timeout: "60d" }).catch((error) => (ended = error));
  const turns = async () => {
    for (let i = 0; i < 100; i++) await null;
  };
  await turns();
  for (let days = 0; days < 59; days++) {
    t.mock.timers.tick(864e5);
    await turns();
    assert.equal(ended, null, `after ${days + 1} days`);
  }
  // (A timer that is set within a tick begins at its end.)
  t.mock.timers.tick(3 * 864e5);
  assert.equal((await waiting).code, "acquire_timeout");
  await held.complete();
});

test("many waiters leave, in any order, and the others stay in theirs", { skip }, async () => {
  const clock = new web.ManualClock();
  const store = await web.open("memory:", { clock });
  const limiter = store.limiter("leaving", "1/1s");
  await limiter.acquire();
  const order = [];
  const controllers = [];
  const waiting = Array.from({ length: 200 }, async (_, i) => {
    controllers[i] = new AbortController();
    await limiter.acquire({ signal: controllers[i].signal });
    order.push(i);
  });
  const ended = Promise.allSettled(waiting);
  // All have joined the line.
  await new Promise(setImmediate);
  const staying = [3, 50, 51, 199];
  for (let i = 199; i >= 0; i--) if (!staying.includes(i)) controllers[i].abort();
  await new Promise(setImmediate);
  for (let i = 0; i < staying.length; i++) {
    clock.advance(1000);
    await new Promise(setImmediate);
    assert.deepEqual(order, staying.slice(0, i + 1));
  }
  assert.equal((await ended).filter(({ status }) => status === "rejected").length, 196);
  clock.advance(1000);
  assert.ok(await limiter.tryAcquire());
});

test("the memory of the module may grow at any call", { skip }, async () => {
  const { Engine } = await import("../../dist/web/engine.js");
  const { compiled } = await import("../../dist/web/module.js");
  const { exports } = await WebAssembly.instantiate(await compiled(), {});
  const grows = ([name, of]) => [
    name,
    typeof of !== "function"
      ? of
      : (...given) => {
          exports.memory.grow(1);
          return of(...given);
        },
  ];
  const engine = new Engine({ exports: Object.fromEntries(Object.entries(exports).map(grows)) }, 0);
  const limit = engine.limit("a", "2 concurrent", [0, 0]);
  const { held } = engine.decide(limit, "k", 1, [0, 0]);
  assert.equal(held.length, 4);
  engine.end(limit, "k", 1, held, 0, 0, [1, 1]);
  assert.equal(engine.decide(limit, "k", 1, [2, 2], true).remaining, 2);
  assert.throws(() => engine.limit("", "1/1s", [0, 0]), { message: /^name is empty/ });
});

test("whoever waits for the end of a start sets no timer", { skip }, async (t) => {
  const store = await web.open("memory:");
  const limiter = store.limiter("slots", "1 concurrent + 100/1h");
  const permits = await Promise.all(Array.from({ length: 20 }, (_, i) => limiter.acquire({ key: `${i}` })));
  const timers = t.mock.method(globalThis, "setTimeout");
  const waiting = permits.map((_, i) => limiter.acquire({ key: `${i}` }));
  await limiter.peek();
  const set = timers.mock.callCount();
  for (const permit of permits) await permit.complete();
  await Promise.all(waiting);
  assert.equal(set, 0);
});

test("whoever waits for the end of a lease, of a cooldown or of a window is woken", { skip }, async () => {
  for (const policy of ["1 concurrent lease 1s", "1 concurrent cooldown 1s", "2 concurrent + 1/1s"]) {
    const clock = new web.ManualClock();
    const limiter = (await web.open("memory:", { clock })).limiter("timed", policy);
    const permit = await limiter.acquire();
    if (policy.includes("cooldown")) await permit.complete();
    const waiting = limiter.acquire();
    await limiter.peek();
    clock.advance(1_001);
    await waiting;
  }
});

test("a waiter that has left has no timer, and listens to no signal", { skip }, async (t) => {
  const limiter = (await web.open("memory:")).limiter("slots", "1 concurrent");
  const permit = await limiter.acquire();
  const [set, cleared] = ["setTimeout", "clearTimeout"].map((name) => t.mock.method(globalThis, name));
  const leaving = new AbortController();
  const waiting = limiter.acquire({ timeout: 60_000, signal: leaving.signal });
  await limiter.peek();
  leaving.abort();
  await assert.rejects(waiting, { name: "AbortError" });
  assert.deepEqual([set.mock.callCount(), cleared.mock.callCount()], [1, 1]);
  await permit.complete();
});

test("a signal that aborts while the limit is declared ends the wait", { skip }, async () => {
  const store = await web.open("memory:");
  await store.limiter("slots", "1 concurrent").acquire();
  const leaving = new AbortController();
  const waiting = store.limiter("slots", "1 concurrent").acquire({ signal: leaving.signal });
  leaving.abort();
  await assert.rejects(waiting, { name: "AbortError" });
});

test("a limit of another kind needs another name: the error says so", { skip }, async () => {
  const store = await web.open("memory:");
  await store.limiter("one", "3/1h").peek();
  await assert.rejects(store.limiter("one", "2 concurrent").peek(), { code: "kind_mismatch", message: /: use another name$/ });
});

test("stores that are opened and closed one after the other share an instance of the module, and nothing else", { skip }, async (t) => {
  const { open } = web;
  const made = t.mock.method(WebAssembly, "instantiate");
  for (let i = 0; i < 20; i++) {
    const store = await open("memory:");
    const limiter = store.limiter("one", "1/1h");
    assert.ok(await limiter.tryAcquire());
    assert.equal(await limiter.tryAcquire(), null);
    store.close();
  }
  assert.ok(made.mock.callCount() <= 1, `${made.mock.callCount()} instances`);
  // A store that is open has its own.
  const stores = await Promise.all([1, 2, 3].map(() => open("memory:")));
  for (const store of stores) assert.ok(await store.limiter("one", "1/1h").tryAcquire());
});

test("a store that was closed says so, whatever it is asked", { skip }, async () => {
  const store = await web.open("memory:");
  const limiter = store.limiter("one", "1/1h");
  const permit = await limiter.tryAcquire();
  store.close();
  const calls = [() => limiter.peek(), () => limiter.acquire({ timeout: "1s" }), () => limiter.pause("1m"), () => permit.cancel()];
  for (const call of calls) await assert.rejects(call, { code: "store_closed" });
});

test("permits of cleared starts take nothing back, whatever the limit is since", { skip }, async () => {
  for (const [policies, then] of [
    [["200/1h"], [10, "200/1h"]],
    [["200/1h"], ["9000/1h", 700, "4000/1h", 366, "9000/1h"]],
    [
      ["200/1h", "9000/1h"],
      [700, "4000/1h", 366, "9000/1h"],
    ],
  ]) {
    for (const clear of [{ key: "key" }, {}]) {
      const store = await web.open("memory:", { clock: new web.ManualClock() });
      let limiter = store.limiter("api", policies[0]);
      const permits = [await limiter.tryAcquire({ key: "key", weight: 39 }), await limiter.tryAcquire({ key: "key", weight: 43 })];
      const declare = async (policy) => {
        limiter = store.limiter("api", policy);
        await limiter.peek({ key: "key" });
      };
      await declare(policies.at(-1));
      await limiter.clear(clear);
      for (const step of then) {
        if (typeof step === "string") await declare(step);
        else assert.ok(await limiter.tryAcquire({ key: "key", weight: step }));
      }
      const { remaining } = await limiter.peek({ key: "key" });
      for (const permit of permits) await permit.cancel();
      assert.equal((await limiter.peek({ key: "key" })).remaining, remaining);
      store.close();
    }
  }
});
