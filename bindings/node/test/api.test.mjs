// The package's interface, call by call. Tests use a manual clock unless they are about waiting.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import * as package_ from "workglow-limit";
import { directory, manual, settle } from "./helpers.mjs";

const { CompositeLimiter, ConcurrencyLimiter, Limiter, NullLimiter, Permit, RateLimiter, Store } = package_;

test("every call of docs/calls.md exists", () => {
  const text = readFileSync(join(import.meta.dirname, "../../../docs/calls.md"), "utf8");
  const names = [...text.matchAll(/^\| `\w+[^|]*\| `(\w+)[^|]*\| /gm)].map(([, name]) => name);
  assert.ok(names.length >= 20, `${names.length} calls`);
  const limiter = new NullLimiter();
  for (const name of names) assert.ok(name in limiter || name in Permit.prototype, name);
});

test("tryAcquire returns a permit or null", () => {
  const { clock, limiter } = manual(package_, 2, 1);
  assert.ok(limiter.tryAcquire() instanceof Permit);
  assert.ok(limiter.tryAcquire({}) instanceof Permit);
  assert.equal(limiter.tryAcquire(), null);
  assert.ok(limiter.tryAcquire({ key: "tenant-ü-😀", weight: 2 }));
  assert.equal(limiter.tryAcquire({ key: "tenant-ü-😀" }), null);
  clock.advance("1s");
  assert.ok(limiter.tryAcquire());
});

test("tryAcquireAsync and decideAsync open the store without blocking the event loop, and return the same results", async (t) => {
  for (const url of ["memory:", `sqlite:${directory(t)}/limits.db`]) {
    const limiter = new Store(url).limiter("limit", "2/1h");
    const first = limiter.tryAcquireAsync({ key: "k" });
    assert.ok(first instanceof Promise);
    assert.ok((await first) instanceof Permit);
    assert.equal((await limiter.decideAsync({ key: "k" })).admitted, true);
    assert.equal((await limiter.decideAsync({ key: "k" })).deniedBy, "limit");
    assert.equal(await limiter.tryAcquireAsync({ key: "k" }), null);
    await assert.rejects(limiter.tryAcquireAsync({ weight: 3 }), { code: "weight_exceeds_capacity" });
    await assert.rejects(limiter.decideAsync({ wieght: 3 }), { code: "invalid_argument" });
  }
});

test("keys of any length and script are distinct", () => {
  const { limiter } = manual(package_, 1, 1);
  const keys = ["a", "b", "é", "日本", "x".repeat(64), "x".repeat(65), "x".repeat(1024), "日".repeat(341), "a\0", "a\0b"];
  for (const key of keys) assert.ok(limiter.tryAcquire({ key }), key);
  for (const key of keys) assert.equal(limiter.tryAcquire({ key }), null, key);
});

test("a decision has all fields", () => {
  const { limiter } = manual(package_, 2, 1.5, "mail");
  const first = limiter.decide({ weight: 2 });
  assert.ok(first.permit instanceof Permit);
  const { permit: _, ...admitted } = first;
  const none = { retryAfter: 0, suggestedAfter: 0, deniedBy: null };
  assert.deepEqual(admitted, { admitted: true, resetAfter: 1500, remaining: 0, limit: 2, ...none });
  const denied = { admitted: false, remaining: 0, limit: 2, deniedBy: "mail", permit: null };
  const times = { retryAfter: 1500, resetAfter: 1500 };
  for (const { suggestedAfter, ...rest } of [limiter.decide(), limiter.peek()]) {
    assert.deepEqual(rest, { ...denied, ...times });
    // The backoff is 1 s to 2 s.
    assert.ok(suggestedAfter >= 1500 && suggestedAfter <= 2000, String(suggestedAfter));
  }
  assert.equal(limiter.peek({ key: "other" }).permit, null);
});

test("a forecast says when more starts will have begun", async () => {
  const { clock, limiter } = manual(package_, 10, 1);
  const key = "k";
  assert.ok(limiter.tryAcquire({ key }));
  clock.advance(250);
  assert.deepEqual(
    [1, 9, 10, 19, 29].map((starts) => limiter.forecast(starts, { key })),
    [0, 0, 750, 1000, 2000],
  );
  assert.equal(await limiter.forecastAsync(19, { key }), 1000);
  const slots = new ConcurrencyLimiter(2);
  assert.deepEqual([slots.forecast(2), slots.forecast(3), await slots.forecastAsync(3)], [0, null, null]);
  assert.equal(limiter.stats({ key }).denied, 0);
  for (const starts of [0, -1, 1.5, 1e9 + 1, "3", undefined, null]) {
    const about = { name: "InvalidArgument", message: /^starts is .*: expected a / };
    assert.throws(() => limiter.forecast(starts), about);
    await assert.rejects(limiter.forecastAsync(starts), about);
  }
  assert.throws(() => limiter.forecast(1, { weight: 2 }), { name: "InvalidArgument" });
});

test("durations may be fractions of a millisecond", () => {
  const { clock, limiter } = manual(package_, 1, 0.0015);
  limiter.tryAcquire();
  clock.advance("250us");
  assert.equal(limiter.decide().retryAfter, 1.25);
  clock.advance(0.25);
  assert.equal(limiter.decide().retryAfter, 1);
  assert.equal(clock.now(), 0.5);
});

test("NullLimiter has the limit Infinity", () => {
  const decision = new NullLimiter().decide({ weight: 2 ** 60 });
  assert.equal(decision.limit, Infinity);
  assert.equal(decision.remaining, Infinity);
  decision.permit.complete();
});

test("the six methods and pause work together", async () => {
  const { clock, limiter } = manual(package_, 1, 60);
  assert.equal(await limiter.canProceed(), true);
  assert.equal(await limiter.recordJobStart(), undefined);
  assert.equal(await limiter.canProceed(), false);
  assert.equal(await limiter.canProceed({ key: "k" }), true);
  assert.equal(await limiter.recordJobCompletion(), undefined);
  const next = await limiter.getNextAvailableTime();
  assert.ok(next instanceof Date);
  assert.ok(next - Date.now() > 50_000 && next - Date.now() <= 60_001);
  clock.advance("1m");
  await limiter.pause("90s", { key: "k" });
  assert.equal(limiter.peek({ key: "k" }).retryAfter, 90_000);
  assert.equal(await limiter.canProceed(), true);
  await limiter.setNextAvailableTime(new Date(Date.now() + 3_600_000));
  assert.ok(limiter.peek().retryAfter > 3_500_000);
  await limiter.clear();
  assert.equal(await limiter.canProceed({ key: "k" }), true);
});

test("a concurrency permit ends once, by complete, by its limiter or by dispose", () => {
  const limiter = new ConcurrencyLimiter(1);
  assert.equal(limiter.name, "1 concurrent");
  const endings = [(p) => p.complete(), (p) => limiter.complete(p), (p) => p[Symbol.dispose]()];
  for (const end of endings) {
    const permit = limiter.tryAcquire();
    assert.equal(limiter.tryAcquire(), null);
    end(permit);
    const next = limiter.tryAcquire();
    for (const again of endings) again(permit);
    assert.equal(limiter.tryAcquire(), null, "ending a permit twice freed the next start's unit");
    next.complete();
  }
});

test("a permit of another limiter is an error, and does not end", () => {
  const [one, other] = [new ConcurrencyLimiter(1), new ConcurrencyLimiter(1)];
  const permit = one.tryAcquire();
  const error = { name: "LimitError", code: "foreign_permit", number: -12 };
  assert.throws(() => other.complete(permit), error);
  assert.equal(one.tryAcquire(), null);
  permit.complete();
  assert.throws(() => other.complete(permit), error);
});

test("a composite needs every child, names the one that denied, and takes more children", () => {
  const { clock, limiter: rate } = manual(package_, 3, 1, "calls");
  const composite = new CompositeLimiter([new ConcurrencyLimiter(2)]);
  const first = composite.tryAcquire();
  composite.add(rate);
  const second = composite.tryAcquire();
  assert.equal(composite.decide().deniedBy, "2 concurrent");
  first.complete();
  second.complete();
  composite.tryAcquire({ weight: 2 }).complete();
  assert.equal(composite.decide().deniedBy, "calls");
  assert.equal(composite.decide().retryAfter, 1000);
  clock.advance(1000);
  assert.ok(composite.tryAcquire());
  assert.ok(new CompositeLimiter().tryAcquire());
});

test("a composite cannot contain itself", () => {
  const [outer, inner] = [new CompositeLimiter(), new CompositeLimiter()];
  outer.add(inner);
  for (const bad of [outer, inner]) assert.throws(() => inner.add(bad), /limiter is one that contains this one/);
  assert.ok(outer.tryAcquire());
});

test("schedule runs a function with a permit, and completes it when the function returns or throws", async () => {
  const limiter = new ConcurrencyLimiter(1);
  assert.equal(await limiter.schedule(async (permit) => (assert.ok(permit instanceof Permit), 42)), 42);
  await assert.rejects(
    limiter.schedule(() => {
      throw new RangeError("mine");
    }),
    RangeError,
  );
  await assert.rejects(limiter.schedule("no"), { code: "invalid_argument", message: 'fn is "no": expected a function' });
  let running = 0;
  let most = 0;
  const job = async () => {
    most = Math.max(most, ++running);
    await settle();
    running--;
  };
  await Promise.all(Array.from({ length: 5 }, () => limiter.schedule(job)));
  assert.equal(most, 1);
});

test("schedule runs nothing for a waiter that gave up or timed out", async () => {
  const limiter = new ConcurrencyLimiter(1);
  const held = limiter.tryAcquire();
  await assert.rejects(limiter.schedule(assert.fail, { timeout: 1 }), { name: "TimeoutError" });
  const reason = new RangeError("mine");
  const waiting = new AbortController();
  const scheduled = limiter.schedule(assert.fail, { signal: waiting.signal });
  await settle();
  waiting.abort(reason);
  await assert.rejects(scheduled, reason);
  await assert.rejects(limiter.schedule(assert.fail, { signal: AbortSignal.timeout(1) }), { name: "TimeoutError" });
  held.complete();
  // Once the function runs, it handles its signal itself, and may end the permit in any way.
  const running = new AbortController();
  const job = (permit) => (running.abort(), permit.cancel(), running.signal.aborted);
  assert.equal(await limiter.schedule(job, { signal: running.signal }), true);
  assert.equal(limiter.peek().remaining, 1);
});

test("using, as TypeScript compiles it, completes a permit at the end of its scope", (t) => {
  const dir = directory(t);
  const root = join(import.meta.dirname, "..");
  mkdirSync(join(dir, "node_modules"));
  symlinkSync(root, join(dir, "node_modules/workglow-limit"));
  writeFileSync(
    join(dir, "scopes.mts"),
    `import { ConcurrencyLimiter } from "workglow-limit";
    const limiter = new ConcurrencyLimiter(1);
    const free = () => limiter.peek().remaining;
    try {
      using permit = await limiter.acquire();
      console.log(permit.started, free());
      throw new RangeError("mine");
    } catch (error) {
      console.log((error as Error).message, free());
    }
    {
      using first = limiter.tryAcquire();
      using second = limiter.tryAcquire();
      console.log(first !== null, second !== null, free());
    }
    console.log(free());`,
  );
  const types = ["--typeRoots", join(root, "node_modules/@types"), "--types", "node"];
  const options = ["--target", "es2022", "--lib", "es2022,esnext.disposable", "--module", "nodenext", "--strict", ...types];
  const run = (...command) => execFileSync(process.execPath, command, { cwd: dir, encoding: "utf8" });
  run(join(root, "node_modules/typescript/bin/tsc"), ...options, "scopes.mts");
  assert.equal(run("scopes.mjs"), "true 0\nmine 1\ntrue false 0\n1\n");
});

test("a forgotten name may be declared as another kind", async (t) => {
  const store = new Store(`sqlite:${directory(t)}/limits.db`);
  const limiter = new RateLimiter(store, "mail", { maxExecutions: 1, windowSizeInSeconds: 60 });
  assert.ok(await limiter.tryAcquireAsync());
  await store.forget("mail");
  assert.deepEqual(await store.names(), []);
  await assert.rejects(store.forget("mail"), { name: "UnknownLimit", message: /mail/ });
  await assert.rejects(store.forget(1), { name: "InvalidArgument", message: /name/ });
  assert.ok(await store.limiter("mail", "2 concurrent").tryAcquireAsync());
  await assert.rejects(limiter.tryAcquireAsync(), { code: "kind_mismatch" });
});

test("a store attaches to declared limits, lists them, and opens nothing early", async (t) => {
  const path = `${directory(t)}/limits.db`;
  const { existsSync, statSync } = await import("node:fs");
  const store = new Store(`sqlite:${path}`, { mode: 0o660, timeout: "1m" });
  const limiter = new RateLimiter(store, "mail", { maxExecutions: 1, windowSizeInSeconds: 60 });
  assert.equal(limiter.name, "mail");
  assert.equal(existsSync(path), false);
  await store.open();
  assert.equal(statSync(path).mode & 0o777, 0o660);
  assert.deepEqual(await store.names(), ["mail"]);
  assert.equal(await limiter.canProceed(), true);
  const attached = new Store(`sqlite:${path}`).limiter("mail");
  assert.ok(attached instanceof Limiter);
  assert.ok(await attached.tryAcquireAsync());
  assert.equal(limiter.tryAcquire(), null);
  const unknown = store.limiter("nail");
  const error = { name: "UnknownLimit", code: "unknown_limit", number: -4, message: /"nail".*mail/ };
  await assert.rejects(unknown.tryAcquireAsync(), error);
  await assert.rejects(unknown.acquire(), error);
  await assert.rejects(unknown.canProceed(), error);
});

test("a limit that was unknown at the first use may be declared before the next", async () => {
  const store = new Store("memory:");
  const attached = store.limiter("late");
  await assert.rejects(attached.acquire(), { code: "unknown_limit" });
  await new RateLimiter(store, "late", { maxExecutions: 1, windowSizeInSeconds: 60 }).canProceed();
  assert.ok(await attached.acquire());
});

test("a forgotten concurrency permit completes when it is collected", async () => {
  const { setFlagsFromString } = await import("node:v8");
  setFlagsFromString("--expose-gc");
  const collect = (await import("node:vm")).runInNewContext("gc");
  const limiter = new ConcurrencyLimiter(1);
  (() => assert.ok(limiter.tryAcquire()))();
  assert.equal(limiter.tryAcquire(), null);
  for (let i = 0; i < 100 && !limiter.peek().admitted; i++) {
    collect();
    await settle();
  }
  assert.ok(limiter.tryAcquire());
});

test("a getter of the options may use a limiter", () => {
  const { limiter } = manual(package_, 1, 1);
  const options = {
    get key() {
      return limiter.tryAcquire({ key: "inner" }) ? "outer" : "inner";
    },
  };
  assert.ok(limiter.tryAcquire(options));
  assert.equal(limiter.tryAcquire({ key: "outer" }), null);
});
