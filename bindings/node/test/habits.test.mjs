// Common uses of limiters in Node programs: errors, wrapped functions, bounded waiters, stopping, and printing.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { inspect } from "node:util";
import * as package_ from "workglow-limit";
import { directory, manual, settle } from "./helpers.mjs";

const {
  CompositeLimiter,
  ConcurrencyLimiter,
  InvalidArgument,
  LimitError,
  ManualClock,
  RateLimiter,
  Stopped,
  Store,
  TimeoutError,
  TooManyWaiters,
} = package_;

/** Limiters of 1 unit, in each kind of store. */
const ones = {
  memory: () => new ConcurrencyLimiter(1),
  "a file": (t) => new ConcurrencyLimiter(1, { store: new Store(`sqlite:${directory(t)}/limits.db`), name: "jobs" }),
  "a composite": () => new CompositeLimiter([new ConcurrencyLimiter(1)]),
};

test("a TimeoutError is a LimitError", async () => {
  const { limiter } = manual(package_, 1, 60);
  limiter.tryAcquire();
  const error = await limiter.acquire({ timeout: 0 }).catch((error) => error);
  assert.ok(error instanceof TimeoutError && error instanceof LimitError && error instanceof Error);
  assert.ok(!(error instanceof InvalidArgument) && !(new LimitError("", "x", -1) instanceof TimeoutError));
  assert.deepEqual([error.name, error.code, error.number, error.retryAfter], ["TimeoutError", "acquire_timeout", -18, 60_000]);
});

for (const [place, make] of Object.entries(ones)) {
  test(`${place}: a wrapped function acquires, runs and completes, also when it throws`, async (t) => {
    const limiter = make(t);
    let running = 0;
    const self = { factor: 3 };
    const times = limiter.wrap(async function times(a, b) {
      assert.equal(++running, 1);
      await settle();
      running--;
      if (a === 13) throw new RangeError("mine");
      return a * b * this.factor;
    });
    assert.equal(times.name, "times");
    const done = await Promise.allSettled([times.call(self, 1, 2), times.call(self, 13, 1), times.call(self, 3, 4)]);
    assert.deepEqual(
      done.map(({ value, reason }) => value ?? reason.message),
      [6, "mine", 36],
    );
    assert.equal(await limiter.wrap(() => 5, { timeout: 0 })(), 5);
    const held = await limiter.acquire({ key: "acme" });
    const byTenant = limiter.wrap(
      (tenant) => tenant,
      (tenant) => ({ key: tenant, timeout: 0 }),
    );
    assert.equal(await byTenant("other"), "other");
    await assert.rejects(byTenant("acme"), TimeoutError);
    held.complete();
    for (const bad of [undefined, null, 5]) assert.throws(() => limiter.wrap(bad), /^InvalidArgument: fn is /);
    assert.throws(() => limiter.wrap(() => {}, { tiemout: 1 }), /^InvalidArgument: options is /);
    assert.throws(() => limiter.wrap(() => {}, 5), /^InvalidArgument: options is /);
    await assert.rejects(
      limiter.wrap(
        () => {},
        () => 5,
      )(),
      /InvalidArgument: options is /,
    );
  });

  test(`${place}: one waiter more than maxWaiting rejects`, async (t) => {
    const limiter = make(t);
    const held = await limiter.acquire({ maxWaiting: 1 });
    const first = limiter.acquire({ maxWaiting: 2 });
    const aborter = new AbortController();
    const second = assert.rejects(limiter.acquire({ maxWaiting: 2, signal: aborter.signal }), { name: "AbortError" });
    const error = await limiter.acquire({ maxWaiting: 2 }).catch((error) => error);
    assert.ok(error instanceof TooManyWaiters && error instanceof LimitError);
    assert.equal(error.code, "too_many_waiters");
    assert.match(error.message, /^2 wait for limit ".*" already: maxWaiting is 2$/);
    (await limiter.acquire({ key: "other", maxWaiting: 1 })).complete();
    aborter.abort();
    await second;
    const third = limiter.acquire({ maxWaiting: 2 });
    held.complete();
    (await first).complete();
    (await third).complete();
    for (const bad of [0, -1, 1.5, "2", null, NaN]) await assert.rejects(limiter.acquire({ maxWaiting: bad }), /maxWaiting is /);
  });

  test(`${place}: idle resolves when no waiter waits and no function runs`, async (t) => {
    const limiter = make(t);
    await limiter.idle();
    let isIdle = false;
    const ends = [];
    const job = () => new Promise((resolve) => ends.push(resolve));
    const jobs = [limiter.schedule(job), limiter.schedule(job)];
    const idle = limiter.idle().then(() => (isIdle = true));
    for (const at of [0, 1]) {
      while (ends.length === at) await settle();
      assert.ok(!isIdle);
      ends[at]();
    }
    await Promise.all(jobs);
    await idle;
    const held = await limiter.acquire();
    await limiter.idle(); // It does not count this permit.
    const waiting = limiter.acquire();
    const later = limiter.idle().then(() => (isIdle = true));
    isIdle = false;
    await settle();
    assert.ok(!isIdle);
    held.complete();
    (await waiting).complete();
    await later;
  });

  test(`${place}: a stopped limiter admits no starts, and running functions end`, async (t) => {
    const limiter = make(t);
    let end;
    const running = limiter.schedule(() => new Promise((resolve) => (end = resolve)));
    while (end === undefined) await settle();
    const waiting = [limiter.acquire(), limiter.acquire({ key: "" }), limiter.schedule(() => assert.fail("it ran"))];
    const outcomes = Promise.allSettled(waiting);
    let isOver = false;
    const stopped = limiter.stop().then(() => (isOver = true));
    for (const { reason } of await outcomes) {
      assert.ok(reason instanceof Stopped && reason instanceof LimitError, String(reason));
      assert.equal(reason.code, "stopped");
    }
    for (const late of [
      limiter.acquire(),
      limiter.tryAcquireAsync(),
      limiter.decideAsync(),
      limiter.recordJobStart(),
      limiter.schedule(() => {}),
    ]) {
      await assert.rejects(late, Stopped);
    }
    assert.throws(() => limiter.tryAcquire({ key: "other" }), Stopped);
    assert.throws(() => limiter.decide(), Stopped);
    assert.equal(limiter.peek().admitted, false);
    assert.ok(!isOver);
    end("done");
    assert.equal(await running, "done");
    await stopped;
    await limiter.stop();
    assert.equal(limiter.peek().admitted, true);
    assert.throws(() => limiter.tryAcquire(), Stopped);
  });
}

test("a limiter can be stopped before it is opened, also by its name", async (t) => {
  const store = new Store(`sqlite:${directory(t)}/limits.db`);
  const limiter = store.limiter("api", "5/1m");
  const waiting = assert.rejects(limiter.acquire(), Stopped);
  await Promise.all([limiter.stop(), waiting]);
  const other = store.limiter("api", "5/1m");
  assert.ok(await other.acquire());
  const named = store.limiter("api");
  await named.stop();
  await assert.rejects(named.acquire(), Stopped);
  assert.equal(other.peek().remaining, 4);
});

test("a process that stopped its limiters can exit", () => {
  const program = `
    import { RateLimiter, Store } from "workglow-limit";
    const limiter = new RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 3600 });
    await limiter.acquire();
    limiter.acquire().catch((error) => console.log(error.name));
    limiter.stop();`;
  const options = { cwd: import.meta.dirname, timeout: 60_000, encoding: "utf8" };
  assert.equal(execFileSync(process.execPath, ["--input-type=module", "--eval", program], options), "Stopped\n");
});

test("console.log prints the meaning of objects", async () => {
  const clock = new ManualClock();
  clock.advance("2s");
  const store = new Store("memory:", { clock });
  const limiter = new RateLimiter(store, "api", { maxExecutions: 2, windowSizeInSeconds: 60 });
  const permit = limiter.tryAcquire({ key: "acme" });
  assert.equal(inspect(clock), "ManualClock { now: 2000 }");
  assert.equal(inspect(store), "Store { url: 'memory:' }");
  assert.equal(inspect(limiter), "RateLimiter { name: 'api', store: 'memory:' }");
  assert.equal(inspect(permit), "Permit { limiter: 'api', key: 'acme', started: true, ended: false }");
  assert.equal(inspect([[[limiter]]], { depth: 2 }), "[ [ [ [RateLimiter] ] ] ]");
  permit.complete();
  assert.match(inspect(permit), /ended: true/);
  assert.match(inspect(limiter.decide()), /permit: Permit \{/);
  await limiter.stop();
  assert.match(inspect(limiter), /stopped: true/);
  assert.equal(inspect(new CompositeLimiter([new ConcurrencyLimiter(5)], { name: "both" })).split(" ")[0], "CompositeLimiter");
});
