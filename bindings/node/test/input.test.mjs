// Invalid input: an error names the parameter and the value, and nothing is created.

import assert from "node:assert/strict";
import { existsSync, readdirSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import * as package_ from "workglow-limit";
import { directory, manual } from "./helpers.mjs";

const { CompositeLimiter, ConcurrencyLimiter, DelayLimiter, EvenlySpacedRateLimiter, FixedWindowLimiter } = package_;
const { FlowControl, InvalidArgument, LeakyBucketLimiter, LimitError, ManualClock, NullLimiter, RateLimiter } = package_;
const { SlidingWindowCounterLimiter, Store, TokenBucketLimiter } = package_;

/** Checks that this is an error of the package about one parameter. */
const about = (parameter) => (error) => {
  assert.ok(error instanceof InvalidArgument && error instanceof LimitError && error instanceof Error, String(error));
  assert.equal(error.name, "InvalidArgument");
  assert.equal(error.code, "invalid_argument");
  assert.equal(error.number, -1);
  assert.match(error.message, new RegExp(`^${parameter} is .+: expected `));
  return true;
};

const NO_NUMBERS = ["x", null, Symbol("s"), 5n, new Map(), [], () => {}, true];
const NO_COUNTS = [NaN, -1, 1.5, Infinity, -Infinity, ...NO_NUMBERS];

test("weights are checked", () => {
  const { limiter } = manual(package_, 5, 1);
  for (const one of [limiter, new ConcurrencyLimiter(5), new NullLimiter(), new CompositeLimiter([limiter])]) {
    for (const weight of [0, ...NO_COUNTS]) {
      assert.throws(() => one.tryAcquire({ weight }), about("weight"));
      assert.throws(() => one.decide({ weight }), about("weight"));
      if (weight !== 0) assert.throws(() => one.reserve({ weight }), about("weight"));
      if (weight !== 0) assert.throws(() => one.peek({ weight }), about("weight"));
    }
  }
  const tooMuch = { name: "WeightExceedsCapacity", code: "weight_exceeds_capacity", number: -2 };
  for (const weight of [6, 2 ** 53, 2 ** 60, Number.MAX_VALUE]) {
    assert.throws(() => limiter.tryAcquire({ weight }), tooMuch);
  }
  assert.equal(limiter.peek().remaining, 5);
});

test("keys are checked", async () => {
  const { limiter } = manual(package_, 1, 1);
  const bad = [null, 1, NaN, Symbol("s"), new Map(), [], true, "\ud800", "a\udc00b", "x".repeat(1025), "日".repeat(342)];
  bad.push("x".repeat(100_000), "\ud800".repeat(2000));
  for (const key of bad) {
    assert.throws(() => limiter.tryAcquire({ key }), about("key"));
    assert.throws(() => limiter.peek({ key }), about("key"));
    assert.throws(() => new NullLimiter().reserve({ key }), about("key"));
    await assert.rejects(limiter.acquire({ key }), about("key"));
    for (const method of ["canProceed", "recordJobStart", "recordJobCompletion", "getNextAvailableTime", "clear"]) {
      await assert.rejects(limiter[method]({ key }), about("key"));
    }
    await assert.rejects(limiter.pause(1, { key }), about("key"));
    await assert.rejects(limiter.setNextAvailableTime(new Date(), { key }), about("key"));
  }
  assert.throws(() => limiter.tryAcquire({ key: "x".repeat(1025) }), /key is 1025 bytes long/);
  assert.throws(() => limiter.tryAcquire({ key: "x".repeat(100_000) }), /key is 100000 bytes long/);
  assert.ok(limiter.tryAcquire());
});

test("options are checked", async () => {
  const { limiter } = manual(package_, 1, 1);
  assert.throws(() => limiter.tryAcquire({ wieght: 2 }), /^InvalidArgument: options is an object with wieght: .*key, weight/);
  assert.throws(() => limiter.tryAcquire({ timeout: 2 }), about("options"));
  for (const bad of [null, "key", 5, [], Symbol("s"), () => {}]) {
    assert.throws(() => limiter.tryAcquire(bad), about("options"));
    assert.throws(() => limiter.decide(bad), about("options"));
    assert.throws(() => limiter.reserve(bad), about("options"));
    await assert.rejects(limiter.acquire(bad), about("options"));
    assert.throws(() => new Store("memory:", bad), about("options"));
  }
  assert.throws(() => limiter.reserve({ timeout: 5 }), /timeout: expected only key, weight, maxWait, grace/);
  await assert.rejects(
    limiter.acquire({ timeOut: 5 }),
    /timeOut: expected only key, weight, priority, share, timeout, grace, signal, maxWaiting, place/,
  );
  await assert.rejects(limiter.acquire({ signal: {} }), about("signal"));
  for (const priority of [null, "1", 0.5, NaN, 2 ** 31, -(2 ** 31) - 1, 1n]) {
    await assert.rejects(limiter.acquire({ priority }), about("priority"));
  }
  for (const share of [null, "1", 0, -1, 0.5, NaN, 1001, 1n]) {
    await assert.rejects(limiter.acquire({ share }), about("share"));
    await assert.rejects(limiter.acquire({ share }), /: expected a whole number from 1 to 1000/);
  }
  assert.ok(limiter.tryAcquire());
});

test("durations and dates are checked", async () => {
  const { clock, limiter } = manual(package_, 1, 1);
  const bad = [NaN, -1, Infinity, 2 ** 60, "x", "", "1", "-1s", "1 M", "1e3ms", "1w", "367d", null, Symbol("s"), {}, 5n];
  for (const value of bad) {
    await assert.rejects(limiter.acquire({ timeout: value }), about("timeout"));
    await assert.rejects(limiter.acquire({ grace: value }), about("grace"));
    await assert.rejects(limiter.pause(value), about("duration"));
    assert.throws(() => limiter.reserve({ maxWait: value }), about("maxWait"));
    assert.throws(() => limiter.reserve({ grace: value }), about("grace"));
    assert.throws(() => clock.advance(value), about("by"));
    assert.throws(() => new Store("memory:", { timeout: value }), about("timeout"));
  }
  await assert.rejects(limiter.pause(undefined), about("duration"));
  for (const date of [new Date(NaN), Date.now(), "2030-01-01", null, undefined, new Date(8.64e15)]) {
    await assert.rejects(limiter.setNextAvailableTime(date), about("when"));
  }
  await limiter.setNextAvailableTime(new Date(-8.64e15)); // In the past: no gate.
  assert.equal(clock.now(), 0);
  assert.ok(limiter.tryAcquire());
});

test("the actual weight of a start is checked", () => {
  const limiter = new ConcurrencyLimiter(1);
  const permit = limiter.tryAcquire();
  for (const actual of [undefined, ...NO_COUNTS]) assert.throws(() => permit.settle(actual), about("actual"));
  assert.equal(limiter.tryAcquire(), null, "it was ended");
  permit.complete();
  assert.throws(() => permit.settle(-1), about("actual"));
});

test("places and texts are checked", async () => {
  for (const limiter of [new NullLimiter(), new ConcurrencyLimiter(1), manual(package_, 1, 1).limiter]) {
    for (const bad of [undefined, null, 5, {}, [], Symbol("s"), () => {}]) {
      assert.throws(() => limiter.present(bad), about("place"));
      assert.throws(() => limiter.permit(bad), about("text"));
      if (bad !== undefined) await assert.rejects(limiter.acquire({ place: bad }), about("place"));
    }
    assert.throws(() => limiter.permit(limiter.tryAcquire()), about("text"));
    for (const [name, value] of [
      ["key", "k"],
      ["key", ""],
      ["weight", 1],
      ["grace", 0],
    ]) {
      const expected = new RegExp(`^InvalidArgument: ${name} is .*: expected none with a place, which has its own$`);
      await assert.rejects(limiter.acquire({ place: "x", [name]: value }), expected);
    }
  }
  const started = new ConcurrencyLimiter(1).tryAcquire();
  const expected = /place is a permit that has started: expected a place that has not/;
  await assert.rejects(new ConcurrencyLimiter(1).acquire({ place: started }), expected);
});

test("texts that are not a permit's are errors", async () => {
  for (const limiter of [new NullLimiter(), manual(package_, 1, 1).limiter]) {
    for (const text of ["", "x", "wgl", "wgl-", "wgl1.", "\0", "é", "\ud800", "x".repeat(2000), "日".repeat(100_000)]) {
      assert.throws(() => limiter.present(text), about("place"));
      assert.throws(() => limiter.permit(text), about("text"));
      assert.throws(() => limiter.permit(text), /expected the text of a permit or place$/);
      await assert.rejects(limiter.acquire({ place: text }), about("place"));
    }
  }
});

test("options of stores are checked", async (t) => {
  const dir = directory(t);
  for (const url of [null, undefined, 5, {}, new URL("file:///x"), "sqlite:\ud800"]) {
    assert.throws(() => new Store(url), about("url"));
  }
  for (const url of ["", "x", "redis:", "sqlite:", "memory:x", "mysql://h"]) {
    assert.throws(() => new Store(url), { name: "LimitError", code: "invalid_url", number: -3 });
  }
  const nowhere = new Store(`sqlite:${dir}/no/such/limits.db`);
  await assert.rejects(nowhere.open(), { name: "StoreError", code: "store_failure" });
  assert.throws(() => new Store(`sqlite:${dir}/a\0b`).limiter("x").tryAcquire(), LimitError);
  writeFileSync(`${dir}/note.txt`, "This is not a database.".repeat(100));
  await assert.rejects(new Store(`sqlite:${dir}/note.txt`).names(), { name: "StoreError", code: "not_a_store" });
  for (const mode of [...NO_COUNTS, 0o1000, 0o400, 2 ** 60]) {
    assert.throws(() => new Store(`sqlite:${dir}/limits.db`, { mode }), about("mode"));
  }
  for (const maxSize of [...NO_COUNTS, 1, 2 ** 20 - 1, 2 ** 32 + 1]) {
    assert.throws(() => new Store("memory:", { maxSize }), about("maxSize"));
  }
  const words = { onError: '"raise", "deny" or "admit"', durability: '"budget" or "commit"' };
  for (const [name, accepted] of Object.entries(words)) {
    for (const word of ["", "Raise", "raise ", "budgets", null, 1, {}, Symbol("s"), ["raise"], ["budget"]]) {
      assert.throws(() => new Store("memory:", { [name]: word }), about(name));
      assert.throws(() => new Store("memory:", { [name]: word }), { message: new RegExp(`expected ${accepted}$`) });
    }
  }
  assert.throws(() => new Store("memory:", { clock: {} }), about("clock"));
  assert.throws(() => new Store("memory:", { tiemout: 5 }), about("options"));
  assert.deepEqual(readdirSync(dir), ["note.txt"]);
});

test("overrides are checked", async () => {
  const { store } = manual(package_, 1, 1);
  for (const bad of [undefined, null, 5, {}, "\ud800"]) {
    await assert.rejects(store.override(bad, "1/1s"), about("name"));
    await assert.rejects(store.override("limit", bad), about("policy"));
    await assert.rejects(store.lift(bad), about("name"));
  }
  for (const key of [null, 5, {}, "", "\ud800", "k".repeat(1025)]) {
    await assert.rejects(store.override("limit", "1/1s", { key }), about("key"));
    await assert.rejects(store.lift("limit", { key }), about("key"));
  }
  await assert.rejects(store.override("limit", "1/1s", "key"), about("options"));
  await assert.rejects(store.lift("limit", { kee: "x" }), about("options"));
  for (const policy of ["", "5", "5/", "/1s", "5/1y", "-5/1s", "5/1s +", "many"]) {
    await assert.rejects(store.override("limit", policy), about("policy"));
  }
  for (const policy of ["0/1s", "1000000001/1s", "5/0s", "5/367d", "0 concurrent"]) {
    await assert.rejects(store.override("limit", policy), about("policy"));
  }
});

test("options of rate limiters are checked", async (t) => {
  const dir = directory(t);
  const store = new Store(`sqlite:${dir}/limits.db`);
  const good = { maxExecutions: 1, windowSizeInSeconds: 1 };
  const make = (options, name) => () => new RateLimiter(store, name, options);
  for (const maxExecutions of [0, 1_000_000_001, 2 ** 60, undefined, ...NO_COUNTS]) {
    assert.throws(make({ ...good, maxExecutions }, "x"), about("maxExecutions"));
  }
  for (const windowSizeInSeconds of [0, NaN, -1, Infinity, 2 ** 60, 1e-10, undefined, "1m", ...NO_NUMBERS]) {
    assert.throws(make({ ...good, windowSizeInSeconds }, "x"), about("windowSizeInSeconds"));
  }
  for (const name of ["", "x".repeat(1025), "\ud800", null, undefined, 5]) {
    assert.throws(make(good, name), about("name"));
    assert.throws(() => store.limiter(name, "1/1s"), about("name"));
    assert.throws(() => store.limiter(name), about("name"));
  }
  assert.throws(make({ ...good, window: 1 }, "x"), about("options"));
  for (const bad of [undefined, null, 5]) assert.throws(make(bad, "x"), about("options"));
  const either = /^InvalidArgument: options is an object with (both|neither): expected either maxExecutions .* or windows$/;
  const both = [
    { ...good, windows: [good] },
    { maxExecutions: 1, windows: [good] },
    { windowSizeInSeconds: 1, windows: [] },
  ];
  for (const bad of [{}, { windows: undefined }, ...both]) assert.throws(make(bad, "x"), either);
  for (const windows of [null, 5, "1/1s", good, new Set([good])]) assert.throws(make({ windows }, "x"), about("windows"));
  for (const windows of [[], Array(5).fill(good), [good, null], [good, [1, 1]], [{ ...good, windows: [] }]]) {
    assert.throws(make({ windows }, "x"), about("windows"));
  }
  for (const maxExecutions of [0, 4097, 1.5, "5", undefined]) {
    assert.throws(make({ windows: [good, { ...good, maxExecutions }] }, "x"), about("maxExecutions"));
  }
  for (const windowSizeInSeconds of [0, -1, NaN, 2 ** 60, "1s", undefined]) {
    assert.throws(make({ windows: [good, { ...good, windowSizeInSeconds }] }, "x"), about("windowSizeInSeconds"));
  }
  for (const bad of [undefined, null, "memory:", {}]) assert.throws(() => new RateLimiter(bad, "x", good), about("store"));
  assert.equal(existsSync(`${dir}/limits.db`), false);
  assert.deepEqual(readdirSync(dir), []);
});

test("backoffs are checked", () => {
  const window = { maxExecutions: 1, windowSizeInSeconds: 1 };
  const make = (backoff) => () => new RateLimiter(new Store("memory:"), "x", { ...window, ...backoff });
  for (const name of ["initialBackoffDelay", "maxBackoffDelay"]) {
    for (const value of [0, "0s", "5", "1y", NaN, -1, Infinity, 2 ** 60, ...NO_NUMBERS]) {
      assert.throws(make({ [name]: value }), about(name));
    }
  }
  for (const backoffMultiplier of [1, 0, 1.0004, 1001, "2", NaN, -2, Infinity, ...NO_NUMBERS]) {
    assert.throws(make({ backoffMultiplier }), about("backoffMultiplier"));
  }
  assert.throws(make({ initialBackoffDelay: 600_001 }), about("maxBackoffDelay"));
  for (const jitter of ["", "Full", null, 1, true]) assert.throws(make({ jitter }), about("jitter"));
});

test("windows, spacing and delays are checked", async (t) => {
  const dir = directory(t);
  const store = new Store(`sqlite:${dir}/limits.db`);
  const good = { maxExecutions: 1, windowSizeInSeconds: 1 };
  const kinds = [FixedWindowLimiter, SlidingWindowCounterLimiter].map((kind) => (options) => new kind(store, "x", options));
  kinds.push((options) => new EvenlySpacedRateLimiter(options));
  kinds.push((options) => new EvenlySpacedRateLimiter(options, { store, name: "x" }));
  for (const make of kinds) {
    for (const maxExecutions of [0, 1_000_000_001, 2 ** 60, undefined, ...NO_COUNTS]) {
      assert.throws(() => make({ ...good, maxExecutions }), about("maxExecutions"));
    }
    for (const windowSizeInSeconds of [0, NaN, -1, Infinity, 2 ** 60, 1e-10, undefined, "1m", ...NO_NUMBERS]) {
      assert.throws(() => make({ ...good, windowSizeInSeconds }), about("windowSizeInSeconds"));
    }
    for (const bad of [undefined, null, 5, { ...good, windows: [] }]) assert.throws(() => make(bad), about("(options|spacing)"));
  }
  for (const adaptive of [null, 0, 1, "yes"]) {
    assert.throws(() => new EvenlySpacedRateLimiter({ ...good, adaptive }), about("adaptive"));
  }
  assert.throws(() => new EvenlySpacedRateLimiter({ ...good, maxExecutions: 4097 }), about("maxExecutions"));
  assert.ok(new EvenlySpacedRateLimiter({ ...good, maxExecutions: 4097, adaptive: false }));
  for (const delay of [0, "0ms", "50", "1 y", NaN, -1, Infinity, 367 * 864e5, null, {}, [], 5n, true]) {
    assert.throws(() => new DelayLimiter(delay), about("delay"));
    assert.throws(() => new DelayLimiter(delay, { store, name: "x" }), about("delay"));
  }
  assert.deepEqual(readdirSync(dir), []);
});

test("a duration is milliseconds, or a text with the units that policies have", () => {
  const clock = new ManualClock();
  for (const [text, ms] of [
    ["250ms", 250],
    ["1.5s", 1_500],
    ["30 seconds", 30_000],
    [" 2 Min ", 120_000],
    ["1hour", 3_600_000],
    ["500 us", 0.5],
  ]) {
    const before = clock.now();
    clock.advance(text);
    assert.equal(clock.now() - before, ms, text);
  }
  const expected = /^by is .*: expected milliseconds, or a text such as "250ms", "1.5s" or "1 minute" /;
  for (const text of ["", "5", "s", "1M", "1 month", "1s2", "1 s s", "-1s", "1e3s", "1.s", "367d"]) {
    assert.throws(() => clock.advance(text), { message: expected }, text);
  }
});

test("a duration of nothing is quoted in a unit that people write", () => {
  const store = new Store("memory:");
  const flow = (options) => store.limiter(new FlowControl({ key: "x", ...options }));
  const refused = (make, message) => assert.throws(make, { name: "InvalidArgument", message });
  refused(() => new TokenBucketLimiter(store, "x", { rate: 1, period: 0 }), "period is 0s: expected 1 µs to 366 days");
  refused(() => flow({ rate: 1, period: 0 }), "period is 0s: expected 1 µs to 366 days");
  refused(() => flow({ rate: 0 }), "rate is 0: expected a whole number from 1 to 1000000000");
  refused(() => store.limiter("x", "5/0s"), 'policy is "5/0s": expected window at character 3 to be 1 µs to 366 days, not 0s');
});

test("options of buckets are checked", () => {
  const store = new Store("memory:");
  for (const [kind, size] of [
    [TokenBucketLimiter, "burst"],
    [LeakyBucketLimiter, "queue"],
  ]) {
    const make = (options) => () => new kind(store, "x", options);
    for (const count of [0, 1_000_000_001, 2 ** 60, ...NO_COUNTS]) {
      assert.throws(make({ rate: count }), about("rate"));
      assert.throws(make({ rate: 1, [size]: count }), about(size));
    }
    for (const period of [0, "0s", "1", "1y", NaN, -1, Infinity, 367 * 864e5, ...NO_NUMBERS]) {
      assert.throws(make({ rate: 1, period }), about("period"));
    }
    // More than 366 days of tokens.
    assert.throws(make({ rate: 1, period: "366d", [size]: 2 }), about(size));
    for (const bad of [undefined, null, 5, {}]) assert.throws(make(bad), about("(options|rate)"));
    assert.throws(make({ rate: 1, [size === "burst" ? "queue" : "burst"]: 1 }), about("options"));
    for (const name of ["", "x".repeat(1025), "\ud800", null, undefined, 5]) {
      assert.throws(() => new kind(store, name, { rate: 1 }), about("name"));
    }
    assert.throws(() => new kind("memory:", "x", { rate: 1 }), about("store"));
  }
});

test("store, name and clock of a limiter are checked", () => {
  const clock = new ManualClock();
  const store = new Store("memory:");
  const kinds = [(options) => new ConcurrencyLimiter(1, options), (options) => new DelayLimiter(1, options)];
  kinds.push((options) => new EvenlySpacedRateLimiter({ maxExecutions: 1, windowSizeInSeconds: 1 }, options));
  for (const make of kinds) {
    for (const bad of [null, 5, "memory:", []]) assert.throws(() => make(bad), about("options"));
    assert.throws(() => make({ sotre: store }), about("options"));
    for (const bad of [1, "memory:", {}, null]) assert.throws(() => make({ store: bad, name: "x" }), about("store"));
    for (const name of [undefined, null, "", 5, "\ud800", "x".repeat(1025)]) {
      assert.throws(() => make({ store, name }), about("name"));
    }
    assert.throws(() => make({ name: "x" }), about("name"));
    assert.throws(() => make({ store, name: "x", clock }), about("clock"));
    for (const bad of [{}, null, 5]) assert.throws(() => make({ clock: bad }), about("clock"));
  }
  for (const lease of [0, "0s", "1", NaN, -1, 367 * 864e5, ...NO_NUMBERS]) {
    assert.throws(() => new ConcurrencyLimiter(1, { store, name: "x", lease }), about("lease"));
  }
  assert.throws(() => new ConcurrencyLimiter(1, { lease: "1m" }), about("lease"));
});

test("names of limits are checked", async () => {
  const store = new Store("memory:");
  for (const text of ["", "5", "5/", "/1s", "5/1y", "-5/1s", "5/1s +", "many", "0/1s", "5/0s", "x".repeat(5000)]) {
    assert.throws(() => store.limiter("x", text), about("policy"));
  }
  for (const text of [null, 5, {}, { name: "x" }, "\ud800"]) {
    assert.throws(() => store.limiter("x", text), about("policy"));
  }
  for (const file of [undefined, null, 5, {}, "\ud800"]) await assert.rejects(store.load(file), about("path"));
  const flow = (options) => () => new FlowControl({ key: "x", ...options });
  assert.throws(flow({}), about("options"));
  assert.throws(flow({ rate: 1, perido: 1 }), about("options"));
  for (const bad of [undefined, null, 5, "x"]) assert.throws(() => new FlowControl(bad), about("options"));
  for (const key of [undefined, null, 5, "\ud800"]) assert.throws(flow({ key, rate: 1 }), about("key"));
  for (const count of NO_COUNTS) {
    assert.throws(flow({ rate: count }), about("rate"));
    assert.throws(flow({ parallelism: count }), about("parallelism"));
  }
  for (const period of ["1", "1y", NaN, -1, Infinity, {}]) assert.throws(flow({ rate: 1, period }), about("period"));
  assert.throws(flow({ parallelism: 1, period: "1s" }), about("period"));
  const made = [{ rate: 0 }, { rate: 1, period: 0 }, { parallelism: 0 }, { parallelism: 65_536 }, { key: "", rate: 1 }];
  for (const options of made) assert.throws(() => store.limiter(flow(options)()), InvalidArgument);
  assert.throws(() => store.limiter(flow({ rate: 1 })(), "1/1s"), about("policy"));
});

test("children of composites are checked", () => {
  const good = { tryAcquire: () => 1, retryAfter: () => 0, cancel() {} };
  const bads = [undefined, null, 5, "x", {}, [], () => {}, { tryAcquire() {} }, { ...good, cancel: 5 }, { canProceed() {} }];
  for (const bad of bads) {
    assert.throws(() => new CompositeLimiter([bad]), about("limiter"));
    assert.throws(() => new CompositeLimiter().add(bad), about("limiter"));
  }
  assert.throws(() => new CompositeLimiter([{ ...good, cancel: undefined }]), /an object without cancel\(\): expected a limiter/);
  for (const name of ["", "x".repeat(1025), "\ud800", null, 5]) {
    assert.throws(() => new CompositeLimiter([{ ...good, name }]), about("name"));
  }
  let asked = 0;
  const counting = { ...good, tryAcquire: () => ++asked };
  for (const options of [{ weight: 0 }, { weight: -1 }, { key: "\ud800" }, { key: "x".repeat(1025) }]) {
    assert.throws(() => new CompositeLimiter([counting]).tryAcquire(options), InvalidArgument);
  }
  assert.equal(asked, 0);
});

test("the key of stats is checked", () => {
  const { limiter } = manual(package_, 1, 1);
  for (const key of [null, 5, "\ud800", "x".repeat(1025)]) assert.throws(() => limiter.stats({ key }), about("key"));
  for (const bad of [null, 5, "k", { kye: "k" }]) assert.throws(() => limiter.stats(bad), about("options"));
});

test("other invalid arguments are errors", () => {
  for (const max of [0, 65_536, 2 ** 60, undefined, ...NO_COUNTS]) {
    assert.throws(() => new ConcurrencyLimiter(max), about("maxConcurrentJobs"));
  }
  assert.throws(() => new CompositeLimiter(new NullLimiter()), about("limiters"));
  for (const bad of [undefined, null, {}, []]) assert.throws(() => new NullLimiter().complete(bad), about("permit"));
  assert.throws(() => new package_.Permit(), TypeError);
});

test("messages say what is meant instead", async () => {
  const limiter = new NullLimiter();
  await assert.rejects(limiter.acquire("acme"), /^InvalidArgument: options is "acme": expected an object, such as \{ key: "acme" \}$/);
  assert.throws(() => limiter.tryAcquire("acme"), /such as \{ key: "acme" \}/);
  assert.throws(
    () => new RateLimiter(new Store("memory:"), "a", { maxExecutions: "100", windowSizeInSeconds: 1 }),
    /^InvalidArgument: maxExecutions is "100": expected a number, not a text: a whole one, not negative$/,
  );
  await assert.rejects(limiter.acquire({ timeout: "30 parsecs" }), /timeout is "30 parsecs": .*"1 minute" \(us, ms, s, m, h, d, or/);
});
