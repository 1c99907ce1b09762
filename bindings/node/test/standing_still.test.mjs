// The event loop is never blocked, whatever another program does to the database.

import assert from "node:assert/strict";
import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { CompositeLimiter, ConcurrencyLimiter, RateLimiter, Store, StoreError } from "workglow-limit";
import { limitJob } from "workglow-limit/job";
import { directory } from "./helpers.mjs";

/** The locks that another program takes and holds until it is stopped. */
async function stranger(path, statements) {
  const shell = spawn("sqlite3", [path], { stdio: ["pipe", "pipe", "inherit"] });
  shell.stdin.write(`${statements}\nselect 'ready';\n`);
  for await (const words of shell.stdout) if (`${words}`.includes("ready")) break;
  return async () => {
    shell.kill();
    if (shell.exitCode === null && shell.signalCode === null) await once(shell, "exit");
  };
}

/** Waits for this many turns of the event loop. */
async function turns(count) {
  for (let i = 0; i < count; i++) await new Promise((resolve) => setTimeout(resolve, 1));
}

/** No call waits this long: a call that did would end the test. */
const FOREVER = "1h";

for (const how of ["begin immediate;", "begin; select count(*) from sqlite_master;"]) {
  /** Each start has to be written first. */
  const opened = async (t) => {
    const path = `${directory(t)}/limits.db`;
    const store = new Store(`sqlite:${path}`, { durability: "commit", timeout: FOREVER });
    await store.open();
    const limiter = new RateLimiter(store, "jobs", { maxExecutions: 100, windowSizeInSeconds: 3600 });
    await limiter.canProceed();
    return { path, store, limiter };
  };

  const calls = {
    acquire: (limiter) => limiter.acquire(),
    tryAcquireAsync: (limiter) => limiter.tryAcquireAsync(),
    decideAsync: async (limiter) => (await limiter.decideAsync()).permit,
    "acquire of a composite": (limiter) => new CompositeLimiter([limiter, new ConcurrencyLimiter(5)]).acquire(),
    "a job of a queue": (limiter) => limitJob(limiter, null, () => "ran", { delay: () => null }),
  };
  for (const [name, call] of Object.entries(calls)) {
    test(`${name} does not block, while another program does: ${how}`, async (t) => {
      const { path, limiter } = await opened(t);
      const end = await stranger(path, how);
      let isOver = false;
      const waiting = call(limiter).finally(() => (isOver = true));
      await turns(20);
      assert.ok(!isOver, "it had to wait for the database");
      await end();
      assert.ok(await waiting);
    });
  }

  test(`many calls at once do not block, while another program does: ${how}`, async (t) => {
    const { path, limiter } = await opened(t);
    const end = await stranger(path, how);
    const order = [];
    const waiting = Array.from({ length: 50 }, async (_, i) => {
      await limiter.acquire();
      order.push(i);
    });
    const left = new AbortController();
    const leaving = assert.rejects(limiter.acquire({ signal: left.signal }), { name: "AbortError" });
    await turns(20);
    left.abort();
    await leaving;
    await end();
    await Promise.all(waiting);
    assert.deepEqual(
      order,
      order.toSorted((a, b) => a - b),
    );
    assert.equal(limiter.peek().remaining, 50);
  });

  const starts = { ...calls, reserveAsync: (limiter) => limiter.reserveAsync() };
  for (const [name, call] of Object.entries(starts).filter(([name]) => !name.includes(" "))) {
    test(`calls of ${name} share a commit, after another program does: ${how}`, async (t) => {
      const { path, limiter } = await opened(t);
      // Another process counts: the locks of SQLite in this process end as soon as any code here closes the file.
      const commits = () => Number(execFileSync("sqlite3", [path, "select sequence from store"]));
      const before = commits();
      const end = await stranger(path, how);
      const waiting = Array.from({ length: 60 }, () => call(limiter));
      await turns(20);
      await end();
      assert.ok((await Promise.all(waiting)).every((permit) => permit !== null));
      // One that was on its way, one for the others, and one is due once a second.
      assert.ok(commits() - before < 15, `${commits() - before} commits`);
      assert.equal(limiter.peek().remaining, 40);
    });
  }

  test(`a wait ends with its own timeout, while another program does: ${how}`, async (t) => {
    const { path, limiter } = await opened(t);
    const end = await stranger(path, how);
    let started = 0;
    const patient = ["a", "b"].map((key) => limiter.acquire({ key }).then(() => started++));
    const hasty = ["a", "a", "b", "c"].map((key) => assert.rejects(limiter.acquire({ key, timeout: 50 }), { name: "TimeoutError" }));
    await Promise.all(hasty);
    assert.equal(started, 0);
    await end();
    await Promise.all(patient);
  });

  test(`a synchronous call gives up soon, while another program does: ${how}`, async (t) => {
    const { path, limiter } = await opened(t);
    const end = await stranger(path, how);
    assert.throws(() => limiter.tryAcquire(), StoreError);
    const waiting = limiter.tryAcquireAsync();
    await turns(20);
    await end();
    assert.ok(await waiting, "the call gave up soon");
    assert.equal(limiter.peek().remaining, 99, "failed calls count nothing");
  });
}

test("file and host name lookups work while many calls wait for the store", async (t) => {
  const path = `${directory(t)}/limits.db`;
  const store = new Store(`sqlite:${path}`, { durability: "commit", timeout: FOREVER });
  await store.open();
  const limiters = Array.from({ length: 20 }, (_, i) => store.limiter(`limit ${i}`, "5/1h"));
  for (const limiter of limiters) await limiter.canProceed();
  const end = await stranger(path, "begin immediate;");
  const waiting = limiters.map((limiter) => limiter.tryAcquireAsync());
  const { lookup } = await import("node:dns/promises");
  assert.ok(await lookup("localhost"));
  await end();
  assert.ok((await Promise.all(waiting)).every((permit) => permit !== null));
});
