// Workglow's own RateLimiter with a store of this package.

import assert from "node:assert/strict";
import { test } from "node:test";
import { RateLimiter as Theirs } from "@workglow/job-queue";
import { RateLimiter as Older } from "workglow-job-queue-0.2.31";
import { InvalidArgument, ManualClock, RateLimiter, Store } from "workglow-limit";
import { WorkglowRateLimiterStorage } from "workglow-limit/workglow";
import { directory } from "./helpers.mjs";

const minute = (maxExecutions) => ({ maxExecutions, windowSizeInSeconds: 60 });

/** Makes a storage with a clock that stands still, and the limiter of its queue "mail". */
function still(url = "memory:", options) {
  const clock = new ManualClock();
  const store = new Store(url, { clock });
  return { clock, store, storage: new WorkglowRateLimiterStorage(store, options), mail: store.limiter("mail") };
}

/** Checks that an instant is so many seconds after a moment between `since` and now: a call may take any time. */
function checkIn(at, seconds, since, message = "the instant") {
  const [first, last, is] = [since, Date.now(), new Date(at).getTime()].map((ms, i) => (i < 2 ? ms + seconds * 1_000 : ms));
  assert.ok(first - 3 <= is && is <= last + 3, `${message}: ${is}, not from ${first} to ${last}`);
}

test("Workglow's limiter decides, gives units back, and says when to retry", async () => {
  const { clock, storage } = still();
  const since = Date.now();
  const limiter = new Theirs(storage, "mail", { ...minute(2), initialBackoffDelay: 1, maxBackoffDelay: 2 });
  assert.equal(limiter.scope, "process");
  const first = await limiter.tryAcquire();
  assert.ok(first);
  clock.advance("20s");
  assert.ok(await limiter.tryAcquire());
  assert.equal(await limiter.tryAcquire(), null);
  checkIn(await limiter.getNextAvailableTime(), 40, since, "when the oldest leaves the window");
  await limiter.release(first);
  await limiter.release(first);
  assert.ok(await limiter.tryAcquire());
  await limiter.complete(first);
  assert.equal(await limiter.tryAcquire(), null, "a job that ran did not count");
  checkIn(await limiter.getNextAvailableTime(), 60, since);
  await limiter.clear();
  assert.ok(await limiter.tryAcquire());
});

test("many reservations at once, through several objects, never exceed the limit", async (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  const limiters = [Theirs, Older, Theirs].map(
    (Limiter) => new Limiter(new WorkglowRateLimiterStorage(new Store(url)), "mail", { ...minute(10) }),
  );
  assert.equal(limiters[0].scope, "cluster");
  const asked = Array.from({ length: 60 }, (_, i) => limiters[i % 3].tryAcquire());
  assert.equal((await Promise.all(asked)).filter((token) => token !== null).length, 10);
  // It is the limit of that name for other limiters, too.
  assert.equal(await new Store(url).limiter("mail").tryAcquireAsync(), null);
});

test("a pause by either side holds for Workglow's limiter, and free units do not end it", async () => {
  for (const Limiter of [Theirs, Older]) {
    const { storage, mail, clock } = still();
    const limiter = new Limiter(storage, "mail", minute(2));
    const since = Date.now();
    await limiter.setNextAvailableTime(new Date(since + 30_000));
    checkIn(await limiter.getNextAvailableTime(), 30, since, "before the limit is declared");
    assert.equal(await limiter.tryAcquire(), null);
    checkIn(await storage.getNextAvailableTime("mail"), 30, since);
    await storage.setNextAvailableTime("mail", new Date(0).toISOString());
    assert.equal(await limiter.tryAcquire(), null, "the pause moved back");
    clock.advance("31s");
    assert.equal(await storage.getNextAvailableTime("mail"), undefined);
    assert.ok(await limiter.tryAcquire());
    await mail.pause("1m");
    assert.equal(await limiter.tryAcquire(), null);
    await limiter.clear();
    assert.ok(await limiter.tryAcquire());
  }
});

test("of two early pauses the later one holds, and clear removes it", async () => {
  const { storage } = still();
  const since = Date.now();
  const at = (s) => new Date(since + s * 1_000).toISOString();
  for (const s of [50, 20]) await storage.setNextAvailableTime("mail", at(s));
  checkIn(await storage.getNextAvailableTime("mail"), 50, since);
  await storage.clear("mail");
  assert.equal(await storage.getNextAvailableTime("mail"), undefined);
  assert.ok(await storage.tryReserveExecution("mail", 1, 60_000));
});

test("an early pause holds as soon as the limit is declared", async () => {
  const { store, storage } = still();
  const since = Date.now();
  await storage.setNextAvailableTime("mail", new Date(since + 50_000).toISOString());
  const declared = new RateLimiter(store, "mail", minute(1));
  assert.equal(await declared.canProceed(), true);
  checkIn(await storage.getNextAvailableTime("mail"), 50, since);
  assert.equal(await declared.canProceed(), false);
});

test("the older pair counts, then records, even if the limit is full", async () => {
  const { storage, mail, clock } = still();
  const limiter = new Older(storage, "mail", { ...minute(2), initialBackoffDelay: 1, maxBackoffDelay: 2 });
  await limiter.release(await limiter.tryAcquire());
  assert.equal(await limiter.canProceed(), true);
  await limiter.recordJobStart();
  assert.equal(await limiter.canProceed(), true);
  await limiter.recordJobStart();
  assert.equal(await limiter.canProceed(), false);
  await limiter.recordJobStart();
  assert.equal(mail.peek().remaining, 0);
  clock.advance("61s");
  assert.equal(await limiter.canProceed(), true);
});

test("the older pair without a declared limit counts as Workglow's own storage does, in all processes", async (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  const since = Date.now();
  const limiters = [new Store(url), new Store(url)].map((store) => {
    const storage = new WorkglowRateLimiterStorage(store);
    return new Older(storage, "mail", { ...minute(3), initialBackoffDelay: 1, maxBackoffDelay: 2 });
  });
  const [one, other] = limiters;
  await one.recordJobStart(); // Before a window is known.
  assert.deepEqual(await Promise.all(limiters.map((limiter) => limiter.canProceed())), [true, true]);
  await other.recordJobStart();
  await one.recordJobStart();
  for (const limiter of limiters) {
    assert.equal(await limiter.canProceed(), false);
    await limiter.recordJobStart();
  }
  // If the window is full, it also pauses the queue, here for 2 to 4 ms.
  await new Promise((resolve) => setTimeout(resolve, 20));
  for (const limiter of limiters) {
    const storage = new WorkglowRateLimiterStorage(new Store(url));
    assert.equal(await storage.getExecutionCount("mail", new Date(Date.now() - 60_000).toISOString()), 5);
    checkIn(await limiter.getNextAvailableTime(), 60, since);
  }
  await one.clear();
  assert.equal(await other.canProceed(), true);
  // As soon as a limit is declared it holds, and counts the starts so far.
  await other.recordJobStart();
  const token = await one.tryAcquire();
  assert.ok(token);
  assert.ok(await other.tryAcquire());
  assert.equal(await one.tryAcquire(), null);
});

test("the older pair follows a changed window", async () => {
  const { clock, storage } = still();
  const count = (ms) => storage.getExecutionCount("mail", new Date(Date.now() - ms).toISOString());
  await storage.recordExecution("mail");
  assert.equal(await count(1_000), 1);
  clock.advance("3s");
  assert.equal(await count(1_000), 0);
  await storage.recordExecution("mail");
  const longer = await count(3_600_000);
  assert.ok(longer >= 1, "the start was forgotten with its window");
  clock.advance("30m");
  assert.equal(await count(3_600_000), longer);
  clock.advance("31m");
  assert.equal(await count(3_600_000), 0);
});

test("the storage returns the times of single starts", async () => {
  const { storage, clock } = still();
  const count = () => storage.getExecutionCount("mail", new Date(0).toISOString());
  const since = Date.now();
  const newest = (offset) => storage.getOldestExecutionAtOffset("mail", offset);
  assert.equal(await count(), 0);
  assert.equal(await newest(0), undefined);
  for (let i = 0; i < 3; i++) {
    assert.ok(await storage.tryReserveExecution("mail", 5, 60_000));
    clock.advance("10s");
  }
  assert.equal(await count(), 3);
  for (const [n, seconds] of [-10, -20, -30].entries()) checkIn(await newest(n), seconds, since);
  assert.equal(await newest(3), undefined);
  clock.advance("35s");
  assert.equal(await count(), 2);
  for (const [n, seconds] of [-45, -55].entries()) checkIn(await newest(n), seconds, since);
});

test("keys have separate budgets", async () => {
  const { store } = still();
  const [a, b] = ["a", "b"].map((key) => new WorkglowRateLimiterStorage(store, { key }));
  assert.ok(await a.tryReserveExecution("mail", 1, 60_000));
  assert.equal(await a.tryReserveExecution("mail", 1, 60_000), null);
  assert.ok(await b.tryReserveExecution("mail", 1, 60_000));
  await a.clear("mail");
  assert.equal(await b.tryReserveExecution("mail", 1, 60_000), null);
  assert.ok(await a.tryReserveExecution("mail", 1, 60_000));
});

test("several limits of one queue all hold", async () => {
  const { storage, clock } = still();
  const reserve = async (max, ms) => (await storage.tryReserveExecution("mail", max, ms)) !== null;
  assert.deepEqual([await reserve(3, 60_000), await reserve(1, 1_000)], [true, false], "one start was within that second");
  clock.advance("1s");
  assert.deepEqual([await reserve(1, 1_000), await reserve(3, 60_000)], [true, false]);
  clock.advance("1s");
  assert.deepEqual([await reserve(9, 60_000), await reserve(9, 60_000)], [true, false]);
  clock.advance("1s");
  assert.equal(await reserve(9, 60_000), false, "three starts within a minute were not counted");
  await storage.tryReserveExecution("mail", 9, 2_000);
  await storage.tryReserveExecution("mail", 9, 3_000);
  await assert.rejects(storage.tryReserveExecution("mail", 9, 4_000), { name: "InvalidArgument", message: /windows/ });
  clock.advance("1m");
  assert.ok(await reserve(3, 60_000));
});

test("an operator's override holds above the requested limit", async () => {
  const { store, storage } = still();
  await storage.tryReserveExecution("mail", 5, 60_000);
  await store.override("mail", "1/1m");
  assert.equal(await storage.tryReserveExecution("mail", 5, 60_000), null);
  await store.lift("mail");
  assert.ok(await storage.tryReserveExecution("mail", 5, 60_000));
});

test("the storage opens by either name, and has no migrations", async (t) => {
  const dir = directory(t);
  const storage = new WorkglowRateLimiterStorage(new Store(`sqlite:${dir}/limits.db`));
  assert.equal(await storage.migrate(), undefined);
  assert.equal(await storage.setupDatabase(), undefined);
  assert.deepEqual(storage.getMigrations(), []);
  const nowhere = new WorkglowRateLimiterStorage(new Store(`sqlite:${dir}/none/limits.db`));
  await assert.rejects(nowhere.migrate(), { name: "StoreError" });
  await assert.rejects(nowhere.tryReserveExecution("mail", 1, 1_000), { name: "StoreError" });
  await assert.rejects(nowhere.getNextAvailableTime("mail"), { name: "StoreError" });
  const denying = new WorkglowRateLimiterStorage(new Store(`sqlite:${dir}/none/limits.db`, { onError: "deny" }));
  assert.equal(await denying.tryReserveExecution("mail", 1, 1_000), null);
});

test("invalid input is named, and nothing is declared", async () => {
  const { store, storage } = still();
  assert.throws(() => new WorkglowRateLimiterStorage("memory:"), InvalidArgument);
  assert.throws(() => new WorkglowRateLimiterStorage(store, { key: 5 }), { message: /^key is 5/ });
  assert.throws(() => new WorkglowRateLimiterStorage(store, { prefixes: [] }), { message: /prefixes/ });
  const rejects = (promise, message) => assert.rejects(promise, { name: "InvalidArgument", message });
  for (const max of [0, -1, 1.5, NaN, Infinity, "5", undefined]) {
    await rejects(storage.tryReserveExecution("mail", max, 60_000), /max/i);
  }
  for (const ms of [0, -1, NaN, Infinity, "60000", undefined]) {
    await rejects(storage.tryReserveExecution("mail", 1, ms), /window/i);
  }
  for (const queueName of [5, undefined, "\ud800"]) {
    await rejects(storage.tryReserveExecution(queueName, 1, 60_000), /^queueName is/);
    await rejects(storage.getNextAvailableTime(queueName), /^queueName is/);
    await rejects(storage.clear(queueName), /^queueName is/);
  }
  assert.deepEqual(await store.names(), []);
  await rejects(storage.setNextAvailableTime("mail", "tomorrow"), /^nextAvailableAt is "tomorrow"/);
  await rejects(storage.setNextAvailableTime("mail", new Date()), /^nextAvailableAt is/);
  await rejects(storage.getExecutionCount("mail", "once"), /^windowStartTime is "once"/);
  await rejects(storage.getOldestExecutionAtOffset("mail", -1), /^offset is -1/);
  const foreign = store.limiter("mail");
  assert.ok(await storage.tryReserveExecution("mail", 2, 60_000));
  for (const token of [undefined, null, 5, {}, foreign.tryAcquire()]) {
    await rejects(storage.releaseExecution("mail", token), /^token is/);
  }
  assert.equal(await storage.tryReserveExecution("mail", 2, 60_000), null);
});
