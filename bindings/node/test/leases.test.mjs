// Shared concurrency: permits are leases, which end with their holders.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import * as package_ from "workglow-limit";
import { directory, settle } from "./helpers.mjs";

const { CompositeLimiter, ConcurrencyLimiter, LeaseLost, LimitError, ManualClock, RateLimiter, Store } = package_;

/** Starts a process that takes a lease, reports it, and holds it. */
async function holder(t, url, max, options = "") {
  const source = `
    import { ConcurrencyLimiter, Store } from "workglow-limit";
    const store = new Store(${JSON.stringify(url)});
    const limiter = new ConcurrencyLimiter(${max}, { store, name: "gpu"${options} });
    const permits = [];
    for (let permit; (permit = await limiter.tryAcquireAsync()); ) permits.push(permit);
    console.log(permits.length);
    setInterval(() => permits.length, 1000);
  `;
  const stdio = ["ignore", "pipe", "inherit"];
  const child = spawn(process.execPath, ["--input-type=module", "--eval", source], { cwd: import.meta.dirname, stdio });
  t.after(() => child.kill("SIGKILL"));
  const [said] = await once(child.stdout, "data");
  assert.equal(Number(said), max);
  return child;
}

test("a killed process returns its slots", async (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  const limiter = new ConcurrencyLimiter(3, { store: new Store(url), name: "gpu" });
  assert.equal(await limiter.canProceed(), true);
  const child = await holder(t, url, 3);
  assert.equal(await limiter.tryAcquireAsync(), null);
  await assert.rejects(limiter.acquire({ timeout: 30 }), { name: "TimeoutError" });
  const waiting = limiter.acquire({ timeout: "60s" });
  await settle();
  child.kill("SIGKILL");
  await once(child, "exit");
  const permits = [await waiting, await limiter.acquire({ timeout: "60s" }), await limiter.acquire({ timeout: "60s" })];
  assert.equal(await limiter.tryAcquireAsync(), null);
  for (const permit of permits) permit.complete();
});

test("a completion in another object or process wakes a waiter", async (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  const make = () => new ConcurrencyLimiter(1, { store: new Store(url), name: "gpu" });
  const [here, there] = [make(), make()];
  const permit = await here.acquire();
  assert.equal(await there.tryAcquireAsync(), null);
  const waiting = [there.acquire({ timeout: "60s" }), here.acquire({ timeout: "60s" })];
  await settle();
  permit.complete();
  const first = await Promise.race(waiting);
  first.complete();
  for (const each of await Promise.all(waiting)) each.complete();
  assert.ok(await there.tryAcquireAsync());
});

test("a lease ends in time, can be renewed before, and is lost afterwards", async (t) => {
  for (const url of ["memory:", `sqlite:${directory(t)}/limits.db`]) {
    const clock = new ManualClock();
    const store = new Store(url, { clock });
    const limiter = new ConcurrencyLimiter(1, { store, name: "gpu", lease: "10s" });
    const permit = await limiter.tryAcquireAsync();
    clock.advance("9s");
    await permit.renewAsync();
    clock.advance("9s");
    assert.equal(await limiter.tryAcquireAsync(), null);
    await permit.renewAsync();
    clock.advance("10s");
    const next = await limiter.tryAcquireAsync();
    assert.ok(next, "the lease had not ended");
    const lost = (error) => {
      assert.ok(error instanceof LeaseLost && error instanceof LimitError);
      assert.deepEqual([error.name, error.code, error.number], ["LeaseLost", "lease_lost", -14]);
      assert.match(error.message, /"gpu"/);
      return true;
    };
    await assert.rejects(permit.renewAsync(), lost);
    permit.complete();
    assert.equal(await limiter.tryAcquireAsync(), null, "a late completion ended the next lease");
    assert.equal(typeof permit.fence, "bigint");
    assert.ok(next.fence > permit.fence);
    next.complete();
    assert.ok(await limiter.tryAcquireAsync());
  }
});

test("permits without a lease have no fence, and need no renewal", () => {
  const store = new Store("memory:", { clock: new ManualClock() });
  const rate = new RateLimiter(store, "calls", { maxExecutions: 1, windowSizeInSeconds: 1 });
  for (const limiter of [rate, new package_.NullLimiter()]) {
    const permit = limiter.tryAcquire();
    assert.equal(permit.fence, null);
    permit.renew();
  }
});

test("a composite renews the leases of its children", () => {
  const clock = new ManualClock();
  const limiter = new CompositeLimiter([
    new ConcurrencyLimiter(1, { store: new Store("memory:", { clock }), name: "gpu", lease: "10s" }),
    { tryAcquire: () => 1, retryAfter: () => 0, cancel() {} },
  ]);
  const permit = limiter.tryAcquire();
  clock.advance("9s");
  permit.renew();
  clock.advance("9s");
  assert.equal(limiter.tryAcquire(), null);
  clock.advance("1s");
  assert.ok(limiter.tryAcquire());
  assert.throws(() => permit.renew(), LeaseLost);
});
