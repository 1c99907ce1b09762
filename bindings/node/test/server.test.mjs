// Limits on a server: no request blocks the event loop, and errors are reported.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Worker } from "node:worker_threads";
import {
  CompositeLimiter,
  ConcurrencyLimiter,
  doctor,
  LimitError,
  postgresSchema,
  RateLimiter,
  Store,
  SyncUnsupported,
} from "workglow-limit";
import { patiently } from "./helpers.mjs";
import { startPostgres } from "./postgres.mjs";
import { startRedis } from "./redis.mjs";

let server;
let database = 0;
before(async () => (server = await startRedis()));
after(() => server.stop());

/** A new store, each of whose starts is a request. */
const newStore = (options = { timeout: "20s" }) => new Store(`${server.url}?db=${++database}&grants=never`, options);
const rate = (store, max = 100) => new RateLimiter(store, "api", { maxExecutions: max, windowSizeInSeconds: 3600 });
const jobs = (store) => new ConcurrencyLimiter(2, { store, name: "jobs" });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Returns the results of calls whose requests reach the server late. A call that blocked the event loop would never get its reply. */
async function late(...asked) {
  process.kill(server.pid, "SIGSTOP");
  try {
    const answers = asked.map((ask) => ask());
    const isAnswered = await Promise.race([...answers.filter((answer) => answer !== undefined), sleep(50).then(() => "late")]);
    assert.equal(isAnswered, "late");
    process.kill(server.pid, "SIGCONT");
    return await Promise.all(answers);
  } finally {
    process.kill(server.pid, "SIGCONT");
  }
}

test("each of many simultaneous calls gets its own reply", async () => {
  const store = newStore();
  const limiters = Array.from({ length: 20 }, (_, i) => store.limiter(`limit-${i}`, `${i + 1}/1h`));
  const asked = limiters.flatMap((limiter) => [limiter.decideAsync(), limiter.peekAsync({ key: "other" })]);
  const seen = (await Promise.all(asked)).map(({ limit, remaining }) => [limit, remaining]);
  assert.deepEqual(
    seen,
    limiters.flatMap((_, i) => [
      [i + 1, i],
      [i + 1, i + 1],
    ]),
  );
});

test("synchronous calls name the call to use instead", async () => {
  const limiter = rate(newStore());
  const refused = (call, name, instead) =>
    assert.throws(call, (error) => {
      assert.ok(error instanceof SyncUnsupported && error instanceof LimitError, String(error));
      assert.equal(error.name, "SyncUnsupported");
      assert.equal(error.code, "would_wait");
      assert.equal(error.message.startsWith(`${name} would have to ask a server`), true, error.message);
      assert.equal(error.message.endsWith(`await ${instead}`), true, error.message);
      return true;
    });
  refused(() => limiter.window, "window", "open() before");
  refused(() => limiter.stats(), "stats()", "open() before");
  await limiter.open();
  assert.equal(limiter.window, 3_600_000);
  assert.equal(limiter.stats().admitted, 0);
  refused(() => limiter.tryAcquire(), "tryAcquire()", "tryAcquireAsync()");
  refused(() => limiter.decide(), "decide()", "decideAsync()");
  refused(() => limiter.peek(), "peek()", "peekAsync()");
  refused(() => limiter.reserve(), "reserve()", "reserveAsync()");
  const place = await limiter.reserveAsync();
  refused(() => limiter.present(place), "present()", "presentAsync()");
  assert.equal((await limiter.presentAsync(place)).started, true);
  const held = await jobs(newStore()).acquire();
  refused(() => held.renew(), "renew()", "renewAsync()");
  await held.renewAsync();
  await held.completeAsync();
  assert.equal((await limiter.peekAsync()).remaining, 99);
});

test("no call that asks the server blocks the event loop", async (t) => {
  const store = newStore();
  const [limiter, running] = [rate(store), jobs(store)];
  const both = new CompositeLimiter([rate(newStore()), jobs(newStore())]);
  const place = await limiter.reserveAsync();
  const [started, settled, held] = [await limiter.acquire(), await limiter.acquire(), await running.acquire()];
  const calls = {
    tryAcquire: () => limiter.tryAcquireAsync({ key: "a" }),
    decide: () => both.decideAsync(),
    peek: () => limiter.peekAsync(),
    acquire: () => limiter.acquire(),
    schedule: () => both.schedule(() => 1),
    reserve: () => limiter.reserveAsync(),
    present: () => limiter.presentAsync(place),
    cancel: () => started.cancelAsync(),
    settle: () => settled.settleAsync(5),
    renew: () => held.renewAsync(),
    complete: () => held.completeAsync(),
    canProceed: () => limiter.canProceed(),
    recordJobStart: () => limiter.recordJobStart(),
    getNextAvailableTime: () => limiter.getNextAvailableTime(),
    pause: () => limiter.pause(1, { key: "b" }),
    clear: () => limiter.clear({ key: "b" }),
    override: () => store.override("api", "50/1h"),
    lift: () => store.lift("api"),
    names: () => store.names(),
  };
  for (const [name, call] of Object.entries(calls)) await t.test(name, () => late(call));
});

test("an end is sent without waiting, and can be waited for", async () => {
  const limiter = jobs(newStore());
  const first = await limiter.acquire();
  const second = await limiter.acquire();
  await late(
    () => first.complete(),
    () => second[Symbol.dispose](),
  );
  await Promise.all([first.completeAsync(), second[Symbol.asyncDispose]()]);
  assert.equal((await limiter.peekAsync()).remaining, 2);
  // It wakes a waiter of this process.
  const held = [await limiter.acquire(), await limiter.acquire()];
  const waits = limiter.acquire({ timeout: "20s" });
  held[0].complete();
  await (await waits).completeAsync();
  await limiter.schedule(() => {});
  held[1].cancel();
  await held[1].cancelAsync();
  assert.equal((await limiter.peekAsync()).remaining, 2);
});

test("a start needs no request to end", async () => {
  const limiter = rate(newStore());
  const permit = await limiter.acquire();
  process.kill(server.pid, "SIGSTOP");
  try {
    permit.complete();
    await (async () => permit.completeAsync())();
  } finally {
    process.kill(server.pid, "SIGCONT");
  }
});

// It counted from the end of opening, which takes as long as the store waits.
test("a timeout covers opening a limit", async () => {
  const store = newStore();
  const limiters = [rate(store), jobs(store), new CompositeLimiter([rate(newStore()), jobs(newStore())]), store.limiter("text", "1/1h")];
  process.kill(server.pid, "SIGSTOP");
  try {
    for (const limiter of limiters) await assert.rejects(limiter.acquire({ timeout: 20 }), { name: "TimeoutError" });
  } finally {
    process.kill(server.pid, "SIGCONT");
  }
  for (const limiter of limiters) await limiter.acquire({ timeout: "20s" });
});

test("granted units are decided without a request", async () => {
  const limiter = new RateLimiter(new Store(`${server.url}?db=${++database}`), "api", {
    maxExecutions: 1_000_000,
    windowSizeInSeconds: 60,
  });
  let permit = null;
  while (!permit) {
    for (let i = 0; i < 200; i++) await limiter.tryAcquireAsync();
    try {
      permit = limiter.tryAcquire();
    } catch (error) {
      // No granted units were left at that moment.
      assert.ok(error instanceof SyncUnsupported, String(error));
    }
  }
  permit.cancel();
});

test("a custom limiter works with a server", async () => {
  const own = { tryAcquire: () => ({}), retryAfter: () => 0, cancel: () => {} };
  const both = await patiently(async () => {
    const both = new CompositeLimiter([own, rate(newStore(), 1)]);
    await both.schedule(() => {});
    assert.equal(await both.tryAcquireAsync(), null);
    return both;
  });
  assert.throws(() => both.tryAcquire(), { name: "SyncUnsupported" });
});

test("a waiter that gives up holds no units", async () => {
  const limiter = new RateLimiter(newStore(), "api", { maxExecutions: 1, windowSizeInSeconds: 3600 });
  await limiter.acquire();
  await assert.rejects(limiter.acquire({ signal: AbortSignal.timeout(50) }));
  const place = await limiter.reserveAsync();
  await assert.rejects(limiter.acquire({ place, signal: AbortSignal.timeout(50) }));
  while ((await limiter.peekAsync()).retryAfter > 3_600_000) await sleep(5);
});

test("threads share a limit", async () => {
  const { url } = newStore();
  const work = `
    const { parentPort, workerData } = require("node:worker_threads");
    const { RateLimiter, Store } = require(workerData.of);
    const limiter = new RateLimiter(new Store(workerData.url), "api", { maxExecutions: 50, windowSizeInSeconds: 3600 });
    const ask = async () => {
      let admitted = 0;
      for (let i = 0; i < 40; i++) if ((await limiter.tryAcquireAsync()) !== null) admitted++;
      return admitted;
    };
    void ask().then((admitted) => parentPort.postMessage(admitted));`;
  const workerData = { url, of: new URL("../dist/cjs/index.js", import.meta.url).pathname };
  const threads = [1, 2].map(() => new Worker(work, { eval: true, workerData }));
  const counts = await Promise.all(
    threads.map((thread) => new Promise((resolve, reject) => thread.on("message", resolve).on("error", reject))),
  );
  assert.equal(counts[0] + counts[1], 50);
});

test("a silent server delays no waiter beyond its own timeout", async () => {
  const limiter = rate(newStore());
  await limiter.acquire({ key: "known" });
  process.kill(server.pid, "SIGSTOP");
  let patient;
  try {
    patient = Array.from({ length: 100 }, (_, i) => limiter.acquire({ key: `patient ${i}` }));
    // On keys of their own, and on one that the server has been asked for. If they waited for the others, the patient ones would meet
    // the store's timeout first.
    const short = ["patient 0", ...Array(20).keys()].map((key) => limiter.acquire({ key: String(key), timeout: 1 }));
    for (const { reason } of await Promise.allSettled(short)) assert.equal(reason?.name, "TimeoutError", String(reason));
  } finally {
    process.kill(server.pid, "SIGCONT");
  }
  await Promise.all(patient);
});

test("a waiter that gives up while the server is asked holds no units", async () => {
  const limiter = rate(newStore(), 1);
  await limiter.acquire({ key: "known" });
  process.kill(server.pid, "SIGSTOP");
  try {
    const mine = new AbortController();
    const left = limiter.acquire({ key: "left", signal: mine.signal });
    await sleep(0);
    mine.abort();
    await assert.rejects(left, { name: "AbortError" });
  } finally {
    process.kill(server.pid, "SIGCONT");
  }
  while ((await limiter.tryAcquireAsync({ key: "left" })) === null) await sleep(5);
});

test("a worker that ends while a server is asked leaves nothing behind", async () => {
  const { url } = newStore();
  const own = rate(new Store(url, { timeout: "20s" }), 1);
  await own.acquire({ key: "known" });
  const work = `
    const { parentPort, workerData } = require("node:worker_threads");
    const { RateLimiter, Store } = require(workerData.of);
    const store = new Store(workerData.url, { timeout: "20s" });
    const limiter = new RateLimiter(store, "api", { maxExecutions: 1, windowSizeInSeconds: 3600 });
    parentPort.once("message", () => {
      void limiter.acquire({ key: "left" });
      parentPort.postMessage("asks");
    });
    void limiter.open().then(() => parentPort.postMessage("ready"));`;
  const workerData = { url, of: new URL("../dist/cjs/index.js", import.meta.url).pathname };
  const worker = new Worker(work, { eval: true, workerData });
  const answer = () => new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject));
  await answer();
  process.kill(server.pid, "SIGSTOP");
  try {
    worker.postMessage("ask");
    await answer();
    await worker.terminate();
  } finally {
    process.kill(server.pid, "SIGCONT");
  }
  while ((await own.tryAcquireAsync({ key: "left" })) === null) await sleep(5);
});

test("errors are reported without the password", async () => {
  for (const bad of ["redis://", "redis://host:port"]) assert.throws(() => new Store(bad), { code: "invalid_url" });
  const isReported = (host) => (error) => {
    assert.equal(error.name, "StoreError");
    assert.ok(error.message.includes(host) && !error.message.includes("secret"), error.message);
    return true;
  };
  await assert.rejects(rate(new Store("redis://user:secret@127.0.0.1:1/0")).acquire(), isReported("127.0.0.1:1"));
  await server.command("CONFIG SET requirepass right");
  try {
    await assert.rejects(rate(new Store(`${server.url}?pass=secret`)).tryAcquireAsync(), isReported(server.url));
  } finally {
    await server.command('AUTH right\r\nCONFIG SET requirepass ""');
  }
});

test("decisions without a server follow onError", async () => {
  const own = await startRedis();
  const limiters = ["raise", "deny", "admit"].map((onError) => rate(new Store(own.url, { timeout: 200, onError })));
  const check = async (code) => {
    const [raises, denies, admits] = limiters;
    await assert.rejects(raises.tryAcquireAsync(), (error) => error.code === code && error.message.includes(own.url));
    assert.equal(await denies.tryAcquireAsync(), null);
    assert.notEqual(await admits.tryAcquireAsync(), null);
  };
  try {
    // A busy server may need longer than this timeout.
    for (const limiter of limiters) while ((await limiter.tryAcquireAsync().catch(() => null)) === null);
    process.kill(own.pid, "SIGSTOP");
    await check("store_timeout");
  } finally {
    process.kill(own.pid, "SIGCONT");
    await own.stop();
  }
  await check("store_failure");
});

test("the doctor names the bad settings of a server", async () => {
  assert.deepEqual(await doctor("memory:"), []);
  const [finding, ...others] = await doctor(server.url);
  const { what, ...rest } = finding;
  assert.deepEqual(rest, { severity: "danger", setting: "appendonly", value: "no", instead: "yes" });
  assert.match(what, /forgotten/);
  for (const { severity } of others) assert.ok(["danger", "warning", "note"].includes(severity), severity);
  await assert.rejects(doctor("nonsense:"), { code: "invalid_url" });
  await assert.rejects(doctor("redis://127.0.0.1:1"), { code: "store_failure" });
  await assert.rejects(doctor(5), { code: "invalid_argument" });
});

test("the schema of Postgres can be made and checked", async () => {
  const postgres = await startPostgres();
  try {
    const [{ what, ...rest }] = await doctor(postgres.url);
    assert.match(what, /power cut/);
    assert.deepEqual(rest, { severity: "danger", setting: "fsync", value: "off", instead: "on" });
    assert.match(postgresSchema(), /CREATE SCHEMA workglow_limit;/);
    const limiter = rate(new Store(postgres.url, { timeout: "20s" }), 2);
    const got = [];
    for (let i = 0; i < 3; i++) got.push((await limiter.tryAcquireAsync()) !== null);
    assert.deepEqual(got, [true, true, false]);
  } finally {
    await postgres.stop();
  }
});

test("a password is not shown", () => {
  const shown = (url) => new Store(url).url;
  assert.equal(shown("redis://user:secret@127.0.0.1:1/2"), "redis://…@127.0.0.1:1/2");
  assert.equal(shown("redis+unix:///none?db=1&pass=secret"), "redis+unix:///none?db=1");
  assert.equal(shown("redis://127.0.0.1:1"), "redis://127.0.0.1:1");
  assert.equal(shown("memory:"), "memory:");
});
