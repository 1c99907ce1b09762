// `Store.close`: what it refuses, which waits it ends, and that the process can end.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { ConcurrencyLimiter, LimitError, RateLimiter, Store, StoreClosed, StoreError } from "workglow-limit";
import { directory } from "./helpers.mjs";

const urls = (t) => ["memory:", `sqlite:${directory(t)}/limits.db`];

const limiters = (store) => [
  new RateLimiter(store, "calls", { maxExecutions: 1, windowSizeInSeconds: 3600 }),
  new ConcurrencyLimiter(1, { store, name: "jobs" }),
  store.limiter("both", "1/1h + 1 concurrent"),
];

const closed = (error) => {
  assert.ok(error instanceof StoreClosed && error instanceof LimitError && !(error instanceof StoreError), String(error));
  assert.deepEqual([error.code, error.number, error.name], ["store_closed", -21, "StoreClosed"]);
  assert.match(error.message, /make another store/);
  return true;
};

test("later calls fail, and permits still end", async (t) => {
  for (const url of urls(t)) {
    const store = new Store(url, { onError: "admit" });
    await store.open();
    const all = limiters(store);
    const permits = all.map((limiter) => limiter.tryAcquire());
    await store.close();
    for (const limiter of all) {
      assert.throws(() => limiter.tryAcquire(), closed);
      assert.throws(() => limiter.decide(), closed);
      assert.throws(() => limiter.peek(), closed);
      await assert.rejects(limiter.acquire(), closed);
      await assert.rejects(limiter.tryAcquireAsync(), closed);
    }
    await assert.rejects(store.open(), closed);
    await assert.rejects(store.names(), closed);
    await assert.rejects(store.flush(), closed);
    assert.throws(() => store.snapshot(), closed);
    permits[0].cancel();
    permits[1].complete();
    permits[2].complete();
    await store.close();
    assert.equal(store.failures, 0);
  }
});

test("promises of starts that wait reject", async (t) => {
  for (const url of urls(t)) {
    const store = new Store(url);
    await store.open();
    const all = limiters(store);
    for (const limiter of all) assert.ok(limiter.tryAcquire());
    const waits = [...all, ...all].map((limiter) => limiter.acquire());
    const answers = Promise.allSettled(waits);
    await store[Symbol.asyncDispose]();
    for (const { status, reason } of await answers) {
      assert.equal(status, "rejected");
      closed(reason);
    }
  }
});

test("another store of the address goes on", async (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  const [one, two] = [new Store(url), new Store(url)];
  await Promise.all([one.open(), two.open()]);
  const permit = limiters(one)[1].tryAcquire();
  const wait = limiters(two)[1].acquire();
  await one.close();
  permit.complete();
  (await wait).complete();
  await two.close();
});

test("a process whose waits were ended ends by itself", (t) => {
  const program = `
    import { ConcurrencyLimiter, Store } from "workglow-limit";
    const store = new Store("sqlite:${directory(t)}/limits.db");
    await store.open();
    const jobs = new ConcurrencyLimiter(1, { store, name: "jobs" });
    const permit = jobs.tryAcquire();
    const wait = jobs.acquire().catch((error) => console.log(error.code));
    setTimeout(() => store.close(), 20);
    await wait;
    permit.complete();
  `;
  const options = { encoding: "utf8", timeout: 60_000, cwd: import.meta.dirname };
  const said = execFileSync(process.execPath, ["--input-type=module", "-e", program], options);
  assert.equal(said, "store_closed\n");
});
