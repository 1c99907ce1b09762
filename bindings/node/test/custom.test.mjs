// Limiters that callers write, as children of a composite.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Worker } from "node:worker_threads";
import * as package_ from "workglow-limit";
import { directory, manual, settle } from "./helpers.mjs";

const { CompositeLimiter, ConcurrencyLimiter, RateLimiter, Store } = package_;

/** A limiter that records its calls. It still admits `free` units. */
function recorder(free = Infinity) {
  const log = [];
  return {
    name: "mine",
    free,
    log,
    tryAcquire(key, weight) {
      log.push(["tryAcquire", key, weight]);
      if (this.free < weight) return null;
      this.free -= weight;
      return { key, weight };
    },
    retryAfter(key, weight) {
      return this.free < weight ? 125.5 : 0;
    },
    complete(token) {
      log.push(["complete", token]);
    },
    cancel(token) {
      log.push(["cancel", token]);
      this.free += token.weight;
    },
    settle(token, actual) {
      log.push(["settle", token, actual]);
    },
    pause: (ms, key) => log.push(["pause", ms, key]),
    clear: (key) => log.push(["clear", key]),
    recordJobStart: (key) => log.push(["recordJobStart", key]),
    recordJobCompletion: (key) => log.push(["recordJobCompletion", key]),
  };
}

test("a custom limiter is asked, and learns how each start ended", async () => {
  const mine = recorder(10);
  const limiter = new CompositeLimiter([new ConcurrencyLimiter(100), mine]);
  const token = { key: "k", weight: 2 };
  limiter.tryAcquire(token).complete();
  limiter.tryAcquire(token).cancel();
  const settled = limiter.tryAcquire(token);
  settled.settle(7);
  settled.complete();
  const asked = ["tryAcquire", "k", 2];
  assert.deepEqual(mine.log.splice(0), [asked, ["complete", token], asked, ["cancel", token], asked, ["settle", token, 7]]);
  assert.equal(mine.log.length, 0, "a permit ends once");
  await limiter.pause("1.5s", { key: "k" });
  await limiter.clear();
  await limiter.recordJobStart({ key: "k" });
  await limiter.recordJobCompletion({ key: "日本" });
  assert.deepEqual(mine.log.splice(0), [
    ["pause", 1500, "k"],
    ["clear", ""],
    ["recordJobStart", "k"],
    ["recordJobCompletion", "日本"],
  ]);
  await limiter.setNextAvailableTime(new Date(Date.now() + 10_000));
  const [[call, ms, key]] = mine.log;
  assert.ok(call === "pause" && key === "" && ms > 5_000 && ms <= 10_000, String(ms));
});

test("a custom limiter that denies is named, and the other children are not charged", () => {
  const { limiter: rate } = manual(package_, 5, 60);
  const limiter = new CompositeLimiter([rate, recorder(1)]);
  assert.ok(limiter.tryAcquire());
  const { admitted, retryAfter, deniedBy, permit } = limiter.decide();
  assert.deepEqual([admitted, retryAfter, deniedBy, permit], [false, 125.5, "mine", null]);
  assert.equal(limiter.peek().deniedBy, "mine");
  assert.equal(rate.peek().remaining, 4);
  const mine = recorder(3);
  const other = new CompositeLimiter([mine, { tryAcquire: () => null, retryAfter: () => 0, cancel() {} }]);
  assert.equal(other.decide().deniedBy, "custom");
  assert.equal(mine.free, 3);
});

test("methods keep their object, and a class works", () => {
  class Mine {
    #left = 1;
    tryAcquire() {
      return this.#left > 0 ? this.#left-- : null;
    }
    retryAfter() {
      return this.#left > 0 ? 0 : "1m";
    }
    cancel() {
      this.#left++;
    }
  }
  const limiter = new CompositeLimiter();
  limiter.add(new Mine());
  const permit = limiter.tryAcquire();
  assert.equal(limiter.decide().retryAfter, 60_000);
  permit.cancel();
  const again = limiter.tryAcquire();
  again.complete();
  assert.equal(limiter.tryAcquire(), null);
});

test("an error that a custom limiter throws reaches the caller unchanged", async () => {
  const mine = recorder();
  const { limiter: rate } = manual(package_, 5, 60);
  const limiter = new CompositeLimiter([rate, mine]);
  const permits = [limiter.tryAcquire(), limiter.tryAcquire(), limiter.tryAcquire()];
  const thrown = [new RangeError("mine"), "a text", undefined, new Error("-1 invalid_argument not ours"), { code: 5 }];
  for (const what of thrown) {
    const is = (error) => (assert.equal(error, what), true);
    const angry = () => {
      throw what;
    };
    Object.assign(mine, { tryAcquire: angry, retryAfter: () => 0 });
    assert.throws(() => limiter.tryAcquire(), is);
    assert.throws(() => limiter.decide(), is);
    await limiter.acquire().then(assert.fail, is);
    await limiter.schedule(assert.fail).then(assert.fail, is);
    mine.retryAfter = angry;
    assert.throws(() => limiter.peek(), is);
    await limiter.canProceed().then(assert.fail, is);
    mine.pause = angry;
    await limiter.pause(5).then(assert.fail, is);
    for (const method of ["recordJobStart", "recordJobCompletion", "clear"]) {
      mine[method] = angry;
      await limiter[method]().then(assert.fail, is);
    }
  }
  assert.equal(rate.peek().remaining, 5, "it was cleared, and then not charged");
  for (const [i, method] of ["complete", "cancel", "settle"].entries()) {
    mine[method] = () => {
      throw thrown[0];
    };
    assert.throws(
      () => permits[i][method](1),
      (error) => error === thrown[0],
    );
  }
});

test("the first error is thrown, and none is thrown twice", () => {
  const [first, second] = [recorder(), recorder()];
  const limiter = new CompositeLimiter([first, second]);
  second.tryAcquire = () => {
    throw new Error("second");
  };
  first.cancel = () => {
    throw new Error("first, later");
  };
  assert.throws(() => limiter.tryAcquire(), /^Error: second$/);
  second.tryAcquire = () => null;
  second.retryAfter = () => 0;
  assert.throws(() => limiter.tryAcquire(), /^Error: first, later$/);
  delete first.cancel;
  first.cancel = () => {};
  assert.equal(limiter.tryAcquire(), null);
});

test("invalid results of methods are errors", () => {
  const limiterOf = (changed) => new CompositeLimiter([{ ...recorder(), ...changed }]);
  const failure = (message) => ({ name: "LimitError", code: "custom_failure", number: -15, message });
  for (const answer of [undefined, false]) {
    const limiter = limiterOf({ tryAcquire: () => answer });
    const message = /^limiter "mine" failed: tryAcquire\(\) returned .*: expected a token, or null$/;
    assert.throws(() => limiter.tryAcquire(), failure(message));
  }
  for (const answer of [undefined, null, NaN, -1, Infinity, "soon", {}]) {
    const limiter = limiterOf({ retryAfter: () => answer });
    assert.throws(() => limiter.peek(), failure(/^limiter "mine" failed: retryAfter is .*: expected milliseconds/));
  }
  for (const token of [0, "", 5n, Symbol("s"), [], true]) {
    const mine = recorder();
    mine.tryAcquire = () => token;
    new CompositeLimiter([mine]).tryAcquire().complete();
    assert.deepEqual(mine.log, [["complete", token]]);
  }
});

test("promises are refused with the reason", async () => {
  const promise = /returned a promise: expected a result, as it is called in the middle of a decision/;
  const failure = { code: "custom_failure", message: promise };
  const later = () => Promise.reject(new Error("no code waits for this"));
  for (const method of ["tryAcquire", "retryAfter"]) {
    const limiter = new CompositeLimiter([{ ...recorder(), [method]: later }]);
    assert.throws(() => limiter.decide(), failure);
  }
  const mine = { ...recorder(), complete: later };
  assert.throws(() => new CompositeLimiter([mine]).tryAcquire().complete(), failure);
  for (const method of ["tryAcquire", "retryAfter", "cancel", "pause"]) {
    const limiter = new CompositeLimiter();
    const message = new RegExp(`^limiter is an object whose ${method}\\(\\) returns a promise: expected methods that return their results`);
    assert.throws(() => limiter.add({ ...recorder(), [method]: async () => null }), { code: "invalid_argument", message });
  }
  await settle();
});

test("waiters of a composite wait for a custom limiter", async () => {
  const mine = recorder(0);
  const limiter = new CompositeLimiter([new ConcurrencyLimiter(5), mine]);
  await assert.rejects(limiter.acquire({ timeout: 20 }), { name: "TimeoutError" });
  const waiting = limiter.acquire({ timeout: "60s" });
  mine.retryAfter = () => (mine.free < 1 ? 5 : 0);
  await settle();
  mine.free = 1;
  (await waiting).complete();
});

test("a custom limiter may use limiters of this package in the middle of a decision", () => {
  const { limiter: inner } = manual(package_, 3, 60, "inner");
  const both = new CompositeLimiter([inner, recorder()]);
  const log = [];
  const wrapper = {
    name: "wrapper",
    tryAcquire: (key, weight) => (log.push([key, weight]), both.tryAcquire({ key: `inner ${key}`, weight })),
    retryAfter: (key, weight) => both.peek({ key: `inner ${key}`, weight }).retryAfter,
    cancel: (permit) => permit.cancel(),
  };
  const { limiter: outer } = manual(package_, 5, 60, "outer");
  const limiter = new CompositeLimiter([wrapper, outer, recorder()]);
  const decision = limiter.decide({ key: "ключ", weight: 2 });
  assert.equal(decision.admitted, true);
  assert.deepEqual(log, [["ключ", 2]]);
  assert.equal(inner.peek({ key: "inner ключ" }).remaining, 1);
  assert.equal(outer.peek({ key: "ключ" }).remaining, 3);
  assert.equal(limiter.decide({ key: "ключ", weight: 2 }).deniedBy, "wrapper");
  decision.permit.cancel();
  assert.equal(inner.peek({ key: "inner ключ" }).remaining, 3);
  assert.equal(outer.peek({ key: "ключ" }).remaining, 5);
});

test("an error of a limiter within a limiter reaches the caller unchanged", () => {
  const mine = recorder();
  const error = new Error("innermost");
  mine.tryAcquire = () => {
    throw error;
  };
  const inner = new CompositeLimiter([mine]);
  const wrapper = { tryAcquire: () => inner.tryAcquire(), retryAfter: () => 0, cancel() {} };
  assert.throws(
    () => new CompositeLimiter([wrapper]).tryAcquire(),
    (e) => e === error,
  );
  // An error that is caught on the way is not reported.
  const careful = {
    ...wrapper,
    tryAcquire() {
      try {
        inner.tryAcquire();
      } catch {
        return null;
      }
    },
  };
  assert.equal(new CompositeLimiter([careful]).tryAcquire(), null);
});

test("a custom limiter that asks itself endlessly is only an error", () => {
  const limiter = new CompositeLimiter();
  limiter.add({ tryAcquire: () => limiter.tryAcquire(), retryAfter: () => 0, cancel() {} });
  // The error is from the code that found no stack left.
  assert.throws(() => limiter.tryAcquire(), /call stack|custom_failure|failed/);
  const { limiter: rate } = manual(package_, 1, 60);
  assert.ok(rate.tryAcquire());
});

test("a custom limiter works with limits in stores, which are opened first", async (t) => {
  const store = new Store(`sqlite:${directory(t)}/limits.db`);
  // Starts in longer windows are written first, and a composite like this one gives a busy disk only 40 ms.
  const rate = new RateLimiter(store, "calls", { maxExecutions: 2, windowSizeInSeconds: 60 });
  const limiter = new CompositeLimiter([recorder(), rate, new CompositeLimiter([recorder()])]);
  const permits = await Promise.all([limiter.acquire(), limiter.acquire()]);
  assert.equal(permits.length, 2);
  assert.equal(limiter.decide().deniedBy, "calls");
});

test("a forgotten custom limiter is collected, even if it refers to its composite", async () => {
  const { setFlagsFromString } = await import("node:v8");
  setFlagsFromString("--expose-gc");
  const collect = (await import("node:vm")).runInNewContext("gc");
  let collected = 0;
  const registry = new FinalizationRegistry(() => collected++);
  (() => {
    for (let i = 0; i < 10; i++) {
      const mine = recorder();
      mine.limiter = new CompositeLimiter([mine]);
      mine.limiter.tryAcquire().complete();
      registry.register(mine);
    }
  })();
  for (let i = 0; i < 200 && collected < 10; i++) {
    collect();
    await settle();
  }
  assert.equal(collected, 10);
});

test("a custom limiter in use is not collected, and its composite may be", async () => {
  const { setFlagsFromString } = await import("node:v8");
  setFlagsFromString("--expose-gc");
  const collect = (await import("node:vm")).runInNewContext("gc");
  const outer = new CompositeLimiter([new CompositeLimiter([recorder(1000)]), recorder(1000)]);
  for (let i = 0; i < 20; i++) {
    collect();
    await settle();
    assert.ok(outer.tryAcquire());
  }
});

test("a thread may end while its custom limiter is asked", async () => {
  const code = `
    import { CompositeLimiter } from ${JSON.stringify(import.meta.resolve("workglow-limit"))};
    import { parentPort } from "node:worker_threads";
    const forever = () => { parentPort.postMessage("asked"); for (;;); };
    new CompositeLimiter([{ tryAcquire: forever, retryAfter: () => 0, cancel() {} }]).tryAcquire();
  `;
  const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(code)}`));
  await new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject));
  assert.equal(await worker.terminate(), 1);
});

test("an object with the six methods works as a child", async () => {
  let running = 0;
  let gate = 0;
  const keys = [];
  const six = {
    canProceed: (key) => (keys.push(key), running < 2 && Date.now() >= gate),
    recordJobStart: () => void running++,
    recordJobCompletion: () => void running--,
    getNextAvailableTime: () => new Date(gate),
    setNextAvailableTime: (date) => void (gate = date.getTime()),
    clear: () => void (running = gate = 0),
  };
  const { limiter: rate } = manual(package_, 50, 60);
  const limiter = new CompositeLimiter([six, rate]);
  const permits = [limiter.tryAcquire({ key: "k", weight: 5 }), limiter.tryAcquire()];
  assert.equal(running, 2, "it counts starts");
  const { deniedBy, retryAfter } = limiter.decide();
  assert.deepEqual({ deniedBy, retryAfter }, { deniedBy: "custom", retryAfter: 10 });
  permits[0].complete();
  permits[1].cancel();
  assert.equal(running, 0);
  limiter.tryAcquire().settle(3);
  assert.equal(running, 0);
  await limiter.recordJobStart();
  assert.equal(running, 1);
  await limiter.recordJobCompletion();
  await limiter.pause("1h");
  assert.ok(gate > Date.now() + 3_000_000);
  assert.ok(limiter.peek().retryAfter > 3_000_000);
  await limiter.clear();
  assert.equal(limiter.peek().admitted, true);
  assert.ok(keys.includes("k") && keys.includes(undefined) && !keys.includes(""));
  const asynchronous = { ...six, canProceed: () => Promise.resolve(true) };
  assert.throws(() => new CompositeLimiter([asynchronous]).tryAcquire(), /canProceed returned a promise/);
  assert.throws(() => new CompositeLimiter([{ ...six, canProceed: async () => true }]), /canProceed\(\) returns a promise/);
  assert.throws(() => new CompositeLimiter([{ ...six, getNextAvailableTime: () => 5, canProceed: () => false }]).peek(), {
    code: "custom_failure",
  });
});
