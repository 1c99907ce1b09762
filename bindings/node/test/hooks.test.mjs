// Hooks: functions that are called when starts are delayed or cannot be decided.

import assert from "node:assert/strict";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import * as package_ from "workglow-limit";
import { directory, manual, settle } from "./helpers.mjs";

const { CompositeLimiter, ConcurrencyLimiter, LimitError, RateLimiter, Store, StoreError, UnknownLimit } = package_;

/** Returns the events since the last call, after all hooks have run. */
function listener(of, event) {
  const received = [];
  const off = of.on(event, (payload) => received.push(payload));
  return Object.assign(async () => (await settle(), received.splice(0)), { off });
}

test("a denial notifies the hooks of its limiter and its store, and no others", async () => {
  const { limiter, store } = manual(package_, 2, 60, "mail");
  const [ofLimiter, ofStore] = [listener(limiter, "throttled"), listener(store, "throttled")];
  limiter.tryAcquire({ weight: 2 });
  limiter.peek({ key: "k" });
  limiter.peek();
  await limiter.canProceed();
  assert.deepEqual(await ofLimiter(), []);
  const denial = { limit: "mail", key: "", wanted: 2, granted: 0, wait: 60_000, error: null };
  const attempts = [() => limiter.tryAcquire({ weight: 2 }), () => limiter.decide({ weight: 2 }).permit];
  attempts.push(() => limiter.reserve({ weight: 2, maxWait: "1s" }));
  for (const attempt of attempts) {
    assert.equal(attempt(), null);
    assert.deepEqual(await ofLimiter(), [denial]);
    assert.deepEqual(await ofStore(), [denial]);
  }
  ofLimiter.off();
  ofLimiter.off();
  assert.equal(limiter.tryAcquire(), null);
  assert.deepEqual(await ofLimiter(), []);
  assert.equal((await ofStore()).length, 1);
});

test("a waiter notifies hooks once", async () => {
  const { clock, limiter } = manual(package_, 1, 60, "mail");
  const received = listener(limiter, "throttled");
  (await limiter.acquire()).complete();
  assert.deepEqual(await received(), []);
  const waiting = limiter.acquire({ key: "" });
  await settle();
  clock.advance("30s");
  await settle();
  clock.advance("30s");
  await waiting;
  assert.deepEqual(await received(), [{ limit: "mail", key: "", wanted: 1, granted: 0, wait: 60_000, error: null }]);
  await assert.rejects(limiter.acquire({ timeout: "1s" }), { name: "TimeoutError" });
  assert.equal((await received()).length, 1);
});

test("a composite's denial notifies its hooks, and those of the child that denied", async () => {
  const { limiter: rate, store } = manual(package_, 1, 60, "calls");
  const slots = new ConcurrencyLimiter(5);
  const composite = new CompositeLimiter([slots, new CompositeLimiter([rate])]);
  const received = [composite, rate, store, slots].map((each) => listener(each, "throttled"));
  composite.tryAcquire();
  assert.equal(composite.tryAcquire(), null);
  const payloads = await Promise.all(received.map((each) => each()));
  assert.deepEqual(
    payloads.map((all) => all.map(({ limit }) => limit)),
    [["calls"], ["calls"], ["calls"], []],
  );
});

test("an undeclared name notifies hooks", async () => {
  const store = new Store("memory:");
  const received = listener(store, "unknown_limit");
  const limiter = store.limiter("nobody");
  assert.throws(() => limiter.tryAcquire({ key: "k", weight: 3 }), UnknownLimit);
  const [{ error, ...rest }] = await received();
  assert.deepEqual(rest, { limit: "nobody", key: "", wanted: 0, granted: 0, wait: 0 });
  assert.ok(error instanceof UnknownLimit);
  await assert.rejects(limiter.acquire(), UnknownLimit);
  assert.equal((await received()).length, 1);
  await assert.rejects(limiter.canProceed(), UnknownLimit);
  assert.equal((await received()).length, 1);
});

test("a failing store notifies hooks, whatever onError returns", async (t) => {
  const dir = directory(t);
  writeFileSync(`${dir}/file`, "not a directory");
  for (const onError of ["raise", "deny", "admit"]) {
    const store = new Store(`sqlite:${dir}/file/limits.db`, { onError });
    const limiter = new RateLimiter(store, "calls", { maxExecutions: 1, windowSizeInSeconds: 1 });
    const [ofStore, ofLimiter] = [listener(store, "store_error"), listener(limiter, "store_error")];
    const attempt = () => limiter.tryAcquire({ key: "k" });
    if (onError === "raise") assert.throws(attempt, StoreError);
    else assert.equal(attempt() !== null, onError === "admit");
    for (const received of [ofStore, ofLimiter]) {
      const [{ error, ...rest }, ...others] = await received();
      assert.deepEqual(rest, { limit: "calls", key: "k", wanted: 1, granted: 0, wait: 0 }, onError);
      assert.ok(error instanceof StoreError && error instanceof LimitError);
      assert.deepEqual(others, []);
    }
    const acquired = limiter.acquire({ timeout: 0 });
    if (onError === "admit") await acquired;
    else await assert.rejects(acquired);
    assert.ok((await ofStore()).length >= 1, onError);
  }
});

test("a hook that uses limiters does not change the result of the call that notified it", async (t) => {
  const dir = directory(t);
  writeFileSync(`${dir}/file`, "not a directory");
  const store = new Store(`sqlite:${dir}/file/limits.db`, { onError: "admit" });
  const limiter = new RateLimiter(store, "calls", { maxExecutions: 1, windowSizeInSeconds: 1 });
  const { limiter: other } = manual(package_, 1, 60);
  other.tryAcquire();
  let received = 0;
  store.on("store_error", () => void (received++, other.decide()));
  const { admitted, retryAfter, deniedBy } = limiter.decide();
  assert.deepEqual([admitted, retryAfter, deniedBy], [true, 0, null]);
  await settle();
  assert.equal(received, 1);
});

test("a hook may use its limiter, and an error that it throws breaks nothing", async () => {
  const { limiter } = manual(package_, 1, 60, "mail");
  limiter.tryAcquire();
  const hooks = [
    () => {
      throw new RangeError("mine");
    },
    async () => {
      throw "a text";
    },
  ];
  for (const [hook, message] of [
    [hooks[0], /a hook of "throttled" threw: RangeError: mine/],
    [hooks[1], /threw: a text/],
  ]) {
    const off = limiter.on("throttled", hook);
    const warned = once(process, "warning");
    const { admitted, retryAfter } = limiter.decide();
    assert.deepEqual({ admitted, retryAfter }, { admitted: false, retryAfter: 60_000 });
    const [warning] = await warned;
    assert.equal(warning.name, "WorkglowLimitWarning");
    assert.match(warning.message, message);
    off();
  }
  let others = 0;
  const off = limiter.on("throttled", () => void (limiter.tryAcquire({ key: "other" }) && others++));
  assert.equal(limiter.tryAcquire(), null);
  await settle();
  assert.equal(others, 1);
  off();
});

test("invalid events and hooks are errors", () => {
  const { limiter, store } = manual(package_, 1, 60);
  for (const each of [limiter, store]) {
    for (const event of ["", "Throttled", undefined, null, 5]) {
      const message = /^event is .*: expected "throttled", "unknown_limit" or "store_error"$/;
      assert.throws(() => each.on(event, () => {}), { code: "invalid_argument", message });
    }
    for (const hook of [undefined, null, {}, "f"]) {
      assert.throws(() => each.on("throttled", hook), { code: "invalid_argument", message: /^hook is .*: expected a function$/ });
    }
  }
});
