// An operator's changes to a store, failures of a store, and limits of several windows.

import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import { test } from "node:test";
import * as package_ from "workglow-limit";
import { directory, manual } from "./helpers.mjs";

const { CompositeLimiter, InvalidArgument, ManualClock, NullLimiter, Permit, RateLimiter, Store } = package_;

/** Promises, because a synchronous call gives a busy disk only 40 ms: an override closes the limit for a moment. */
const limitOf = async (limiter, key) => (await limiter.peekAsync({ key })).limit;

test("an override holds above the declared policy until it is lifted", async (t) => {
  for (const url of ["memory:", `sqlite:${directory(t)}/limits.db`]) {
    const { store, limiter } = manual(package_, 5, 60, "mail", url);
    assert.equal(await limitOf(limiter), 5);
    assert.equal(await store.override("mail", "2/1m"), undefined);
    assert.equal(await limitOf(limiter), 2);
    const declared = new RateLimiter(store, "mail", { maxExecutions: 9, windowSizeInSeconds: 60 });
    assert.equal(await limitOf(declared), 2);
    await store.override("mail", "100/1m + 3/1s");
    assert.ok(await limiter.tryAcquireAsync({ weight: 3 }));
    assert.equal((await limiter.peekAsync()).retryAfter, 1000);
    assert.equal(await store.lift("mail"), undefined);
    assert.equal(await limitOf(limiter), 9);
    assert.equal((await limiter.peekAsync()).remaining, 6);
    await store.lift("mail");
    assert.equal(await limitOf(limiter), 9);
  }
});

// Such calls once failed until the limiter's first use.
test("calls by name know a limiter that was not used yet", async (t) => {
  const dir = directory(t);
  let files = 0;
  for (const url of [() => "memory:", () => `sqlite:${dir}/${files++}.db`]) {
    const made = () => {
      const { store, limiter } = manual(package_, 5, 60, "mail", url());
      return { store, limiters: [limiter, store.limiter("api", "5/1m + 2 concurrent")] };
    };
    const overridden = made();
    await overridden.store.override("mail", "9/1m");
    assert.equal(overridden.limiters[0].peek().limit, 9);
    const forgotten = made();
    for (const name of ["mail", "api"]) {
      await made().store.lift(name);
      await forgotten.store.forget(name);
    }
    assert.deepEqual(await forgotten.store.names(), []);
    assert.deepEqual(await made().store.names(), ["api", "mail"]);
    const seen = made()
      .store.snapshot()
      .limits.map((limit) => limit.name);
    assert.deepEqual(seen, ["api/concurrency", "api/rate", "mail"]);
    const { store } = made();
    assert.equal(store.limiter("api/concurrency").peek().limit, 2);
    assert.equal(RateLimiter.attach(store, "mail").peek().limit, 5);
  }
});

test("a key may have a policy of its own", async (t) => {
  for (const url of ["memory:", `sqlite:${directory(t)}/keys.db`]) {
    const { store, limiter } = manual(package_, 2, 60, "mail", url);
    await limiter.peekAsync();
    assert.equal(await store.override("mail", "5/1m", { key: "tenant" }), undefined);
    await store.override("mail", "3/1m", {});
    const limits = () => Promise.all(["tenant", "other", undefined].map((key) => limitOf(limiter, key)));
    assert.deepEqual(await limits(), [5, 3, 3]);
    assert.ok(await limiter.tryAcquireAsync({ key: "tenant", weight: 5 }));
    await store.override("mail", "4/1m", { key: "tenant" });
    assert.equal((await limiter.decideAsync({ key: "tenant" })).admitted, false);
    assert.deepEqual(await limits(), [4, 3, 3]);
    await store.lift("mail");
    assert.deepEqual(await limits(), [4, 2, 2]);
    for (let i = 0; i < 2; i++) {
      assert.equal(await store.lift("mail", { key: "tenant" }), undefined);
      assert.deepEqual(await limits(), [2, 2, 2]);
    }
  }
});

test("an override of several kinds is all or nothing", async (t) => {
  for (const url of ["memory:", `sqlite:${directory(t)}/limits.db`]) {
    const store = new Store(url);
    assert.ok(await store.limiter("api", "5/1h + 2 concurrent").tryAcquireAsync());
    const limits = () => Promise.all(["rate", "concurrency"].map((part) => limitOf(store.limiter(`api/${part}`))));
    await store.override("api", "3 concurrent + 7/1h");
    assert.deepEqual(await limits(), [7, 3]);
    for (const [wrong, why] of [
      [
        "9/1h + 5 concurent",
        /^policy is "9\/1h \+ 5 concurent": expected \/, per or concurrent \(such as 100\/1m, "5 per second" or 5 concurrent\) at character 10, not "concurent"$/,
      ],
      ["9/1h + delay 1s", /^policy is "delay 1s": expected at most one policy for each part of limit "api": rate, concurr/],
    ]) {
      await assert.rejects(store.override("api", wrong), { name: "InvalidArgument", message: why });
      assert.deepEqual(await limits(), [7, 3]);
    }
    await store.lift("api");
    assert.deepEqual(await limits(), [5, 2]);
  }
});

test("only declared limits can be overridden, by a policy of their kind", async (t) => {
  const { store, limiter } = manual(package_, 5, 60, "mail", `sqlite:${directory(t)}/limits.db`);
  await limiter.canProceed();
  const unknown = { name: "UnknownLimit", code: "unknown_limit", message: /"nail".*mail/ };
  await assert.rejects(store.override("nail", "2/1m"), unknown);
  await assert.rejects(store.lift("nail"), unknown);
  await assert.rejects(store.override("mail", "5 concurrent"), { name: "LimitError", code: "kind_mismatch" });
  assert.equal(await limitOf(limiter), 5);
});

test("a store can be flushed", async (t) => {
  for (const url of ["memory:", `sqlite:${directory(t)}/limits.db`]) {
    const { store, limiter } = manual(package_, 5, 60, "mail", url);
    assert.ok(await limiter.tryAcquireAsync());
    assert.equal(await store.flush(), undefined);
    assert.equal(store.failures, 0);
  }
});

test("every durability counts the same", async (t) => {
  for (const durability of ["budget", "commit", undefined]) {
    const store = new Store(`sqlite:${directory(t)}/limits.db`, { durability, clock: new ManualClock() });
    const limiter = new RateLimiter(store, "mail", { maxExecutions: 2, windowSizeInSeconds: 60 });
    for (const expected of [true, true, false]) assert.equal((await limiter.tryAcquireAsync()) !== null, expected);
  }
});

test("decisions follow onError when the store fails, and are counted", async (t) => {
  const dir = directory(t);
  const at = (onError) => {
    const store = new Store(`sqlite:${dir}/none/limits.db`, { onError });
    return { store, limiter: new RateLimiter(store, "mail", { maxExecutions: 2, windowSizeInSeconds: 60 }) };
  };
  for (const onError of ["raise", undefined]) {
    const { store, limiter } = at(onError);
    assert.throws(() => limiter.tryAcquire(), { name: "StoreError", code: "store_failure" });
    await assert.rejects(limiter.acquire(), { name: "StoreError", code: "store_failure" });
    await assert.rejects(limiter.canProceed(), { name: "StoreError", code: "store_failure" });
    assert.equal(store.failures, 3);
    // Each of those that wait for one opening, also behind a composite.
    const both = new CompositeLimiter([limiter, new NullLimiter()]);
    const asked = await Promise.allSettled([limiter.tryAcquireAsync(), limiter.acquire(), both.decideAsync(), both.acquire()]);
    assert.deepEqual(new Set(asked.map(({ reason }) => reason.name)), new Set(["StoreError"]));
    assert.equal(store.failures, 7);
  }
  const deny = at("deny");
  assert.equal(deny.limiter.tryAcquire(), null);
  assert.equal(deny.limiter.decide().admitted, false);
  await assert.rejects(deny.limiter.acquire({ timeout: 0 }), { name: "TimeoutError" });
  assert.equal(await deny.limiter.canProceed(), false);
  const admit = at("admit");
  for (let i = 0; i < 3; i++) {
    const permit = admit.limiter.tryAcquire();
    assert.ok(permit instanceof Permit);
    [() => permit.complete(), () => permit.cancel(), () => permit.settle(2)][i]();
  }
  (await admit.limiter.acquire()).complete();
  assert.equal(await admit.limiter.canProceed(), true);
  for (const { store } of [deny, admit]) assert.ok(store.failures > 0);
  // Errors that are not failures of the store are thrown.
  assert.throws(() => admit.limiter.tryAcquire({ weight: 0 }), { name: "InvalidArgument" });
  // The store is used again as soon as it works.
  mkdirSync(`${dir}/none`);
  for (const expected of [true, true, false]) assert.equal((await admit.limiter.tryAcquireAsync()) !== null, expected);
  assert.ok(new NullLimiter().tryAcquire());
});

test("a start needs free units in all windows", () => {
  const clock = new ManualClock();
  const windows = [
    { maxExecutions: 3, windowSizeInSeconds: 60 },
    { maxExecutions: 2, windowSizeInSeconds: 1.5 },
  ];
  const limiter = new RateLimiter(new Store("memory:", { clock }), "mail", { windows });
  assert.deepEqual(
    [1, 2, 3].map(() => limiter.tryAcquire() !== null),
    [true, true, false],
  );
  assert.equal(limiter.peek().retryAfter, 1500);
  clock.advance("1500ms");
  assert.deepEqual(
    [1, 2].map(() => limiter.tryAcquire() !== null),
    [true, false],
  );
  assert.equal(limiter.peek().retryAfter, 58_500);
  assert.throws(() => limiter.tryAcquire({ weight: 3 }), { name: "WeightExceedsCapacity" });
});

test("problems of a store are reported and repaired", async (t) => {
  const path = `${directory(t)}/limits.db`;
  const store = new Store(`sqlite:${path}`);
  await new RateLimiter(store, "jobs", { maxExecutions: 5, windowSizeInSeconds: 3600 }).tryAcquireAsync();
  assert.deepEqual(await store.verify(), []);
  assert.deepEqual(await new Store("memory:").verify({ repair: true }), []);
  writeFileSync(`${path}-lane`, "x".repeat(8192), { flag: "r+" });
  const again = new Store(`sqlite:${path}`);
  const [found, ...others] = await again.verify();
  assert.match(found.found, /^the lane: /);
  assert.deepEqual([found.isRepaired, others], [false, []]);
  assert.deepEqual(await again.verify({ repair: true }), [{ ...found, isRepaired: true }]);
  assert.deepEqual(await again.verify(), []);
  await assert.rejects(again.verify({ repair: "yes" }), InvalidArgument);
  await assert.rejects(again.verify({ mend: true }), InvalidArgument);
});
