// The package in separate realms, as Jest and Vitest load it: the code is loaded in each, the addon once.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { test } from "node:test";
import vm from "node:vm";

const root = join(import.meta.dirname, "../dist/cjs");
const real = createRequire(join(root, "index.js"));

/** The globals that a test runner adds to a realm: those that are not part of the language. */
function realm() {
  const context = vm.createContext();
  const language = new Set(vm.runInContext("Object.getOwnPropertyNames(globalThis)", context));
  for (const name of Object.getOwnPropertyNames(globalThis)) {
    if (!language.has(name)) context[name] = globalThis[name];
  }
  const modules = new Map();
  const load = (file) => {
    if (modules.has(file)) return modules.get(file).exports;
    const module = { exports: {} };
    modules.set(file, module);
    const wrapped = `(function (exports, require, module, __filename, __dirname) {${readFileSync(file, "utf8")}\n})`;
    const require = (name) => (/\.c?js$/.test(name) && name.startsWith(".") ? load(join(dirname(file), name)) : real(name));
    require.resolve = real.resolve;
    vm.runInContext(wrapped, context, { filename: file })(module.exports, require, module, file, dirname(file));
    return module.exports;
  };
  return { ...load(join(root, "index.js")), run: (code) => vm.runInContext(code, context), load };
}

test("errors belong to the realm, with their classes, codes and messages", async () => {
  const { Store, RateLimiter, LimitError, InvalidArgument, WeightExceedsCapacity, TimeoutError, UnknownLimit, run } = realm();
  const InnerError = run("Error");
  assert.notEqual(InnerError, Error);
  const store = new Store("memory:");
  const limiter = new RateLimiter(store, "few", { maxExecutions: 2, windowSizeInSeconds: 60 });
  const isOne =
    (code, ...classes) =>
    (error) => {
      for (const of of [InnerError, LimitError, ...classes]) assert.ok(error instanceof of, `${error} is no ${of.name}`);
      assert.equal(error.code, code);
      return true;
    };
  assert.throws(() => limiter.tryAcquire({ weight: 3 }), isOne("weight_exceeds_capacity", WeightExceedsCapacity));
  assert.throws(() => new Store("nothing:"), isOne("invalid_url"));
  assert.throws(() => new RateLimiter(store, "", {}), isOne("invalid_argument", InvalidArgument));
  await assert.rejects(limiter.canProceed({ key: "k".repeat(1_025) }), isOne("invalid_argument", InvalidArgument));
  await assert.rejects(store.limiter("nothing").acquire(), isOne("unknown_limit", UnknownLimit));
  await assert.rejects(store.lift("nothing"), isOne("unknown_limit", UnknownLimit));
  limiter.tryAcquire({ weight: 2 });
  await assert.rejects(limiter.acquire({ timeout: 1 }), (error) => error instanceof TimeoutError && error instanceof InnerError);
});

test("an error of a custom limiter passes through unchanged", () => {
  const { CompositeLimiter, run } = realm();
  const mine = run(`({
    tryAcquire() { throw new RangeError("mine"); },
    retryAfter: () => 0,
    cancel() {},
  })`);
  const composite = new CompositeLimiter([mine]);
  assert.throws(
    () => composite.tryAcquire(),
    (error) => error instanceof run("RangeError") && error.message === "mine",
  );
});

test("objects of one realm work in another", async () => {
  const [one, other] = [realm(), realm()];
  assert.notEqual(one.Store, other.Store);
  const clock = new one.ManualClock();
  const store = new one.Store("memory:", { clock });
  assert.ok(store instanceof other.Store);
  assert.ok(!(store instanceof other.Limiter));
  const limiter = new other.RateLimiter(store, "limit", { maxExecutions: 2, windowSizeInSeconds: 1 });
  assert.ok(limiter instanceof one.RateLimiter);
  assert.ok(!(limiter instanceof one.DelayLimiter));

  const both = new one.CompositeLimiter([limiter, new other.ConcurrencyLimiter(1)]);
  const permit = both.tryAcquire();
  assert.ok(permit instanceof other.Permit);
  assert.equal(both.tryAcquire(), null);
  both.complete(permit);

  const same = new one.RateLimiter(store, "limit", { maxExecutions: 2, windowSizeInSeconds: 1 });
  assert.ok(same.tryAcquire());
  const place = same.reserve();
  assert.equal(place.started, false);
  assert.throws(
    () => new other.NullLimiter().complete(place),
    (error) => error instanceof one.LimitError,
  );
  const waiting = same.acquire({ place });
  clock.advance("1s");
  assert.equal((await waiting).started, true);

  const { toWorkglow } = other.load(join(root, "workglow.js"));
  const workglow = toWorkglow(same);
  await workglow.release(await workglow.tryAcquire());
});

test("a hook of one realm is notified of a limiter of another", async () => {
  const [one, other] = [realm(), realm()];
  const store = new one.Store("memory:");
  const limiter = new other.RateLimiter(store, "limit", { maxExecutions: 1, windowSizeInSeconds: 60 });
  const limits = [];
  const stop = store.on("throttled", ({ limit }) => limits.push(limit));
  limiter.tryAcquire();
  limiter.tryAcquire();
  await new Promise(setImmediate);
  stop();
  assert.deepEqual(limits, ["limit"]);
});

test("a limiter of one realm takes a child of another", () => {
  const [one, other] = [realm(), realm()];
  const failing = {
    tryAcquire() {
      throw new TypeError("theirs");
    },
    retryAfter: () => 0,
    cancel() {},
  };
  const child = new one.CompositeLimiter([failing]);
  const outer = new other.CompositeLimiter([child]);
  assert.throws(() => outer.tryAcquire(), { name: "TypeError", message: "theirs" });
});

test("an abort signal and a date may be of another realm", async () => {
  const { RateLimiter, Store } = realm();
  const limiter = new RateLimiter(new Store("memory:"), "limit", { maxExecutions: 1, windowSizeInSeconds: 60 });
  await limiter.setNextAvailableTime(new Date(Date.now() + 60_000));
  const aborter = new AbortController();
  const waiting = limiter.acquire({ signal: aborter.signal });
  aborter.abort(new Error("enough"));
  await assert.rejects(waiting, { message: "enough" });
});
