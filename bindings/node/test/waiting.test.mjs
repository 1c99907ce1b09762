// `acquire`: places in time, completions, timeouts, aborts.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { Worker } from "node:worker_threads";
import * as package_ from "workglow-limit";
import { directory, lined, manual, settle } from "./helpers.mjs";

const { CompositeLimiter, ConcurrencyLimiter, ManualClock, RateLimiter, Store, TimeoutError } = package_;

test("a waiter of a rate limit gets its place, and knows when it was ready", async (t) => {
  for (const url of ["memory:", `sqlite:${directory(t)}/limits.db`]) {
    const limiter = new RateLimiter(new Store(url), "calls", { maxExecutions: 1, windowSizeInSeconds: 0.2 });
    const first = await limiter.acquire();
    assert.equal(first.readyAt, null);
    assert.equal(first.readyAtHrtime, null);
    const before = process.hrtime.bigint();
    let second = first;
    // A waiter that was late for its place may have started without another one.
    while (second.readyAt === null) second = await limiter.acquire({ timeout: "30s" });
    assert.ok(second.readyAt instanceof Date);
    assert.equal(typeof second.readyAtHrtime, "bigint");
    assert.ok(second.readyAtHrtime > before - 1_000_000_000n && second.readyAtHrtime <= process.hrtime.bigint());
    assert.ok(Math.abs(second.readyAt.getTime() - Date.now()) < 60_000);
  }
});

test("each waiter gets a place of its own, a window apart, even where timers are too coarse", async () => {
  const limiter = new RateLimiter(new Store("memory:"), "calls", { maxExecutions: 1, windowSizeInSeconds: 0.005 });
  await limiter.acquire();
  const permits = await Promise.all(Array.from({ length: 10 }, () => limiter.acquire({ timeout: "60s" })));
  // A waiter that was late for its place may have started without another one.
  const places = permits.map((permit) => permit.readyAtHrtime).filter((ns) => ns !== null);
  const ready = places.sort((a, b) => (a < b ? -1 : 1));
  // Minus a microsecond or so, because each is rounded down on another clock.
  for (let i = 1; i < ready.length; i++) assert.ok(ready[i] - ready[i - 1] > 4_900_000n, String(ready));
});

test("a timeout says when to retry, and is immediate if that is known", async () => {
  const { clock, limiter } = manual(package_, 1, 60);
  limiter.tryAcquire();
  clock.advance("10s");
  for (const timeout of [0, 49_999, "49s"]) {
    const error = await limiter.acquire({ timeout }).catch((e) => e);
    assert.ok(error instanceof TimeoutError);
    assert.equal(error.name, "TimeoutError");
    assert.equal(error.retryAfter, 50_000);
    assert.match(error.message, /"limit" has no free units within \d+ ms: retry after 50000 ms/);
  }
  const busy = new ConcurrencyLimiter(1);
  const held = busy.tryAcquire(); // Kept: one that is collected completes.
  await assert.rejects(busy.acquire({ timeout: 20 }), { name: "TimeoutError" });
  held.complete();
});

test("a timeout's stack has the lines that await it", async () => {
  const busy = new ConcurrencyLimiter(1);
  const held = busy.tryAcquire();
  async function asking(call) {
    await call();
  }
  async function callsAsking(call) {
    await asking(call);
  }
  // Known at once, in a timer, and inside of a function of the package.
  for (const call of [
    () => busy.acquire({ timeout: 0 }),
    () => busy.acquire({ timeout: 20 }),
    () => busy.schedule(() => {}, { timeout: 20 }),
  ]) {
    const { name, message, stack } = await callsAsking(call).catch((error) => error);
    assert.equal(name, "TimeoutError");
    assert.ok(stack.startsWith(`TimeoutError: ${message}\n`), stack);
    assert.match(stack, /at async asking .*waiting\.test\.mjs:\d+[^]*at async callsAsking .*waiting\.test\.mjs:\d+/);
  }
  held.complete();
});

test("a manual clock wakes its waiters", async () => {
  const { clock, limiter } = manual(package_, 1, 3600);
  limiter.tryAcquire();
  let permit;
  const waiting = limiter.acquire().then((p) => (permit = p));
  await settle();
  clock.advance("30m");
  await settle();
  assert.equal(permit, undefined);
  clock.advance("30m");
  await waiting;
  assert.ok(permit);
});

test("a waiter that is late for its place keeps it with enough grace", async () => {
  for (const grace of [undefined, 0, "100ms", 500, "1m"]) {
    const { clock, limiter } = manual(package_, 1, 60);
    limiter.tryAcquire();
    let permit;
    const waiting = limiter.acquire({ grace }).then((p) => (permit = p));
    await settle();
    const behind = limiter.reserve();
    clock.advance("60300ms"); // In one step, so the waiter is late.
    if (grace === 500 || grace === "1m") {
      assert.ok((await waiting).readyAt < behind.readyAt, String(grace));
    } else {
      await settle();
      assert.equal(permit, undefined, "it did not wait again");
      clock.advance("200s");
      await waiting;
    }
  }
});

test("a completion wakes the first waiter of its key, in the same turn", async () => {
  // By a real clock, a call that a busy machine interrupts for some milliseconds leaves the rest to the next one.
  const store = new Store("memory:", { clock: new ManualClock() });
  const limiter = new ConcurrencyLimiter(1, { store, name: "jobs" });
  const composite = new CompositeLimiter([limiter]);
  const held = limiter.tryAcquire({ key: "a" });
  const kept = limiter.tryAcquire({ key: "b" });
  const order = [];
  const wait = (who, of, key) => of.acquire({ key }).then((p) => (order.push(who), p));
  const waiting = [wait("first", limiter, "a"), wait("second", composite, "a")];
  const other = wait("other", limiter, "b");
  await lined(store, 3);
  held.complete();
  // Not even a newcomer precedes it.
  assert.equal(limiter.tryAcquire({ key: "a" }), null);
  const permit = await waiting[0];
  assert.deepEqual(order, ["first"]);
  permit.complete();
  assert.equal(limiter.tryAcquire({ key: "a" }), null);
  await waiting[1];
  await limiter.clear();
  await other;
  assert.deepEqual(order, ["first", "second", "other"]);
  kept.complete();
});

test("waiters start by priority, and then in the order of their calls", async () => {
  for (const make of [
    (store) => new ConcurrencyLimiter(1, { store, name: "jobs" }),
    (store) => new RateLimiter(store, "calls", { maxExecutions: 1, windowSizeInSeconds: 1 }),
    (store) => new CompositeLimiter([new ConcurrencyLimiter(1, { store, name: "jobs" })]),
  ]) {
    // By a real clock, the window of a rate limit might be over before all of them have joined.
    const clock = new ManualClock();
    const store = new Store("memory:", { clock });
    const limiter = make(store);
    const held = await limiter.acquire();
    const order = [];
    const job = async (who, priority) => {
      const permit = await limiter.acquire({ priority });
      order.push(who);
      permit.complete();
    };
    const jobs = [
      ["b1", 0],
      ["c1", 7],
      ["a1", -3],
      ["b2", undefined],
      ["a2", -3],
      ["c2", 7],
    ].map(([who, p]) => job(who, p));
    await lined(store, 6);
    held.complete();
    let areOver = false;
    const all = Promise.all(jobs).finally(() => (areOver = true));
    // Each window has one start, also where a busy machine is slow to wake its waiter.
    for (let windows = 1; !areOver; windows++) {
      clock.advance("1s");
      while (!areOver && limiter instanceof RateLimiter && order.length < windows) await settle();
      await settle();
    }
    await all;
    // The waiter that the first place was taken for starts with it, unless a waiter with a lower number precedes it.
    assert.deepEqual(order, ["a1", "a2", "b1", "b2", "c1", "c2"]);
  }
});

test("20,000 waiters of a concurrency limit start one after the other, in order", async () => {
  const limiter = new ConcurrencyLimiter(5);
  const order = [];
  let most = 0;
  let running = 0;
  const job = async (i) => {
    const permit = await limiter.acquire();
    most = Math.max(most, ++running);
    order.push(i);
    await new Promise(setImmediate);
    running--;
    permit.complete();
  };
  await Promise.all(Array.from({ length: 20_000 }, (_, i) => job(i)));
  assert.equal(most, 5);
  assert.ok(order.length === 20_000 && order.every((who, i) => who === i));
});

test("thousands of waiters of a rate limit start in order and never exceed the limit, even if some leave", async () => {
  const clock = new package_.ManualClock();
  const limiter = new RateLimiter(new Store("memory:", { clock }), "calls", { maxExecutions: 100, windowSizeInSeconds: 1 });
  const order = [];
  const gone = [];
  const aborters = [];
  for (let i = 0; i < 5_000; i++) {
    const aborter = i % 10 === 3 ? new AbortController() : undefined;
    if (aborter !== undefined) aborters.push(aborter);
    limiter.acquire({ signal: aborter?.signal }).then(
      () => order.push(i),
      () => gone.push(i),
    );
  }
  while (order.length < 100) await settle();
  await settle();
  assert.equal(order.length, 100);
  for (const aborter of aborters) aborter.abort();
  const before = order.length - order.filter((i) => i % 10 === 3).length;
  for (let seconds = 1; order.length + gone.length < 5_000; seconds++) {
    assert.ok(seconds < 100, `${order.length} started in ${seconds} s`);
    clock.advance("1s");
    await settle();
    assert.ok(order.length <= 100 * (seconds + 1));
  }
  assert.ok(before >= 90 && gone.length >= 480);
  assert.deepEqual(
    order,
    [...order].sort((a, b) => a - b),
  );
});

test("a custom limiter may wait, and make others wait, in the middle of a decision", async () => {
  let limiter;
  const inner = [];
  const own = {
    free: 0,
    tryAcquire() {
      if (this.free === 0) return null;
      // No other waiter is in this line.
      if (inner.length < 3) inner.push(limiter.acquire().then((permit) => permit.complete()));
      return {};
    },
    retryAfter: () => (own.free === 0 ? 5 : 0),
    cancel() {},
  };
  limiter = new CompositeLimiter([own]);
  const waiting = [limiter.acquire(), limiter.acquire()];
  own.free = 1;
  for (const permit of await Promise.all(waiting)) permit.complete();
  await Promise.all(inner);
  assert.equal(inner.length, 3);
});

test("an error of a custom limiter reaches its waiter unchanged", async () => {
  const mine = new RangeError("mine");
  const own = {
    broken: false,
    tryAcquire() {
      if (own.broken) throw mine;
      return null;
    },
    retryAfter: () => 5,
    cancel() {},
  };
  const waiting = new CompositeLimiter([own]).acquire();
  await settle();
  own.broken = true;
  own.retryAfter = () => 0;
  await assert.rejects(waiting, (error) => error === mine);
});

test("a completed job without a permit wakes a waiter", async () => {
  const limiter = new ConcurrencyLimiter(1);
  await limiter.recordJobStart();
  const waiting = limiter.acquire();
  await settle();
  await limiter.recordJobCompletion();
  assert.equal(limiter.tryAcquire(), null);
  (await waiting).complete();
});

test("an abort rejects with its reason before, while opening and while waiting, and holds nothing", async (t) => {
  const limiter = new ConcurrencyLimiter(1);
  const reason = new RangeError("mine");
  await assert.rejects(limiter.acquire({ signal: AbortSignal.abort(reason) }), reason);
  const held = limiter.tryAcquire();
  assert.ok(held, "an aborted acquire took a unit");
  const waiting = new AbortController();
  const promise = limiter.acquire({ signal: waiting.signal });
  const next = limiter.acquire();
  await settle();
  waiting.abort(reason);
  await assert.rejects(promise, reason);
  held.complete();
  (await next).complete();
  assert.ok(limiter.tryAcquire());

  const opening = new AbortController();
  const store = new Store(`sqlite:${directory(t)}/limits.db`);
  const rate = new RateLimiter(store, "calls", { maxExecutions: 1, windowSizeInSeconds: 3600 });
  const early = rate.acquire({ signal: opening.signal });
  opening.abort(reason);
  await assert.rejects(early, reason);
  assert.ok(await rate.acquire());

  const place = new AbortController();
  const late = rate.acquire({ signal: place.signal });
  await settle();
  place.abort();
  await assert.rejects(late, { name: "AbortError" });
  const done = new AbortController();
  (await limiter.acquire({ key: "k", signal: done.signal })).complete();
  done.abort(); // No listener is left.
});

test("a process stays alive for its waiters, and exits at once when they gave up", () => {
  const run = (code) => {
    const source = `import { ConcurrencyLimiter, RateLimiter, Store } from "workglow-limit"; ${code}`;
    const options = { cwd: import.meta.dirname, timeout: 60_000, encoding: "utf8" };
    return execFileSync(process.execPath, ["--input-type=module", "--eval", source], options);
  };
  const hour = `const l = new RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 3600 });
    await l.acquire(); const c = new AbortController(); l.acquire({ signal: c.signal }).catch(() => console.log("gone"));`;
  // A timer of an hour that was left behind would exceed the timeout of this test.
  assert.equal(run(`${hour} setTimeout(() => c.abort(), 20);`), "gone\n");
  const short = `const l = new RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 0.2 });`;
  assert.equal(run(`${short} l.acquire(); l.acquire().then(() => console.log("waited"));`), "waited\n");
});

test("a worker thread that has ended has no waiters", async (t) => {
  const store = new Store(`sqlite:${directory(t)}/limits.db`);
  const limiter = store.limiter("jobs", "1 concurrent + 1/1h");
  const permit = await limiter.acquire();
  const source = `const { parentPort, workerData } = require("node:worker_threads");
    import(workerData.file).then(({ Store }) => {
      const limiter = new Store(workerData.url).limiter("jobs", "1 concurrent + 1/1h");
      for (let i = 0; i < 18; i++) limiter.acquire();
    });
    parentPort.on("message", () => process.exit());`;
  const workerData = { url: store.url, file: import.meta.resolve("workglow-limit") };
  for (const end of ["terminate", "exit"]) {
    const worker = new Worker(source, { eval: true, workerData });
    await lined(store, 18, 18);
    const exited = once(worker, "exit");
    if (end === "terminate") await worker.terminate();
    else worker.postMessage("exit");
    await exited;
    await lined(store, 0, 0);
  }
  await permit.cancelAsync();
});

test("no caller passes a waiter, in the same turn or with another key", async () => {
  const limiter = new ConcurrencyLimiter(1);
  const started = [];
  const start = async (name, options) => {
    const permit = await limiter.acquire(options);
    started.push(name);
    await settle();
    permit.complete();
  };
  const held = await limiter.acquire();
  const first = start("first");
  await start("other key", { key: "k" });
  held.complete();
  await Promise.all([first, start("second"), start("third")]);
  assert.deepEqual(started, ["other key", "first", "second", "third"]);
});

/** Ways to start: each runs `work` once, as soon as it may start. */
const WAYS = {
  acquire: async (limiter, work) => {
    await limiter.acquire();
    work();
  },
  schedule: (limiter, work) => limiter.schedule(work),
  wrap: (limiter, work) => limiter.wrap(work)(),
};

// Some new keys need more memory, which the thread pool makes. It used to decide the start, too: while the loop was busy, so that it
// counted long before its work began.
test("the first start of a key is decided when its work begins, though it had to wait for space", async (t) => {
  for (const url of ["memory:", `sqlite:${directory(t)}/limits.db`]) {
    const clock = new ManualClock();
    const limiter = new RateLimiter(new Store(url, { clock }), "calls", { maxExecutions: 1, windowSizeInSeconds: 1 });
    await limiter.open();
    let late = 0;
    for (let n = 0; n < 200; n++) {
      const key = `key ${n}`;
      let hasBegun = false;
      const start = limiter.acquire({ key }).then(() => (hasBegun = true));
      for (let turn = 0; turn < 100 && !hasBegun; turn++) await null;
      if (!hasBegun) {
        late++;
        for (let turn = 0; turn < 3; turn++) await new Promise((resolve) => setImmediate(resolve));
      }
      if (!hasBegun) {
        // The loop is busy, and the thread pool is not.
        Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50);
        clock.advance("60ms");
      }
      await start;
      clock.advance("999ms");
      assert.equal(limiter.peek({ key }).remaining, 0, `${url}: ${key} began less than a second ago`);
    }
    assert.ok(late > 0, url);
  }
});

// A start counts from its decision. Once all of them were decided first and the work of all of them followed, later than the limit knew:
// with the next ones, twice the limit started within a window.
test("each start is decided when its work begins, however many ask at once", async () => {
  for (const [name, start] of Object.entries(WAYS)) {
    for (const isWaiting of [false, true]) {
      const { clock, limiter } = manual(package_, 3, 1);
      let begun = 0;
      const work = () => {
        begun++;
        clock.advance("5ms");
      };
      if (isWaiting) for (let n = 0; n < 3; n++) limiter.tryAcquire();
      const all = Promise.all([1, 2, 3].map(() => start(limiter, work)));
      await settle();
      if (isWaiting) {
        assert.equal(begun, 0);
        clock.advance("1s");
      }
      await all;
      assert.equal(begun, 3);
      // The first two began at least a second ago, the third one less than that.
      clock.advance("994ms");
      assert.equal(limiter.peek().remaining, 2, `${name}, ${isWaiting ? "after a wait" : "at once"}`);
    }
  }
});
