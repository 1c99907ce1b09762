// BullMQ processors with a limiter: real workers on a real Redis.

import assert from "node:assert/strict";
import { execFileSync, fork } from "node:child_process";
import { once } from "node:events";
import { cpSync, mkdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Job, Queue, QueueEvents, UnrecoverableError, Worker } from "bullmq";
import { ConcurrencyLimiter, FirstOfLimiter, InvalidArgument, NullLimiter, RateLimiter, Store } from "workglow-limit";
import { withLimiter } from "workglow-limit/bullmq";
import { directory } from "./helpers.mjs";
import { startPostgres } from "./postgres.mjs";
import { startRedis } from "./redis.mjs";

const { version } = createRequire(import.meta.url)("bullmq/package.json");

let redis;
let postgres;
let connection;
before(async () => {
  [redis, postgres] = await Promise.all([startRedis(), startPostgres()]);
  connection = { host: "127.0.0.1", port: redis.port };
});
after(() => Promise.all([redis.stop(), postgres.stop()]));

/** Makes a queue for the test, workers for it, and a record of its jobs. */
async function queueFor(t) {
  const name = t.name.replaceAll(/\W/g, "-");
  const queue = new Queue(name, { connection });
  const events = new QueueEvents(name, { connection });
  events.setMaxListeners(0);
  queue.setMaxListeners(0);
  const closing = [queue, events];
  await events.waitUntilReady();
  t.after(async () => {
    for (const one of closing.reverse()) await one.close();
  });
  return {
    name,
    queue,
    events,
    work(processor, options = {}) {
      const worker = new Worker(name, processor, { connection, concurrency: 5, ...options });
      worker.on("error", (error) => assert.fail(error));
      closing.push(worker);
      return worker;
    },
    add: (...data) => Promise.all(data.map((one) => queue.add("job", one))),
    /** The stored jobs when all have ended. */
    async ended(jobs) {
      await Promise.all(jobs.map((job) => job.waitUntilFinished(events).catch(() => {})));
      return Promise.all(jobs.map((job) => queue.getJob(job.id)));
    },
  };
}

/** Returns the place that is stored next to a delayed job. */
async function placeOf(queue, id) {
  const [place] = /wgl\S+/.exec(await redis.command(`GET ${queue.toKey(`workglow-limit:${id}`)}`));
  return place;
}

const storeFor = (t) => new Store(`sqlite:${directory(t)}/limits.db`);

const limit = (t, max, seconds, store = storeFor(t)) =>
  new RateLimiter(store, "limit", { maxExecutions: max, windowSizeInSeconds: seconds });

/** Whether no queue is held: this BullMQ loses jobs that go back to their queue when a hold has just ended. */
const holdsNone = typeof Job.prototype.moveToWait !== "function" && "this BullMQ holds no queue";

/** A function that returns keys: jobs are delayed, as others may be able to start. */
const oneKey = () => "k";

test("a job that cannot start is delayed, does not fail, and starts once with its place", async (t) => {
  const { work, add, ended } = await queueFor(t);
  const delays = [];
  const ran = [];
  const seen = [];
  const processor = (job) => {
    ran.push(job.id);
    seen.push(job.data);
    return job.data.i;
  };
  const onLimited = (job, { key, wait, hasPlace }) => delays.push([job.id, key, wait > 0, hasPlace]);
  const limiter = limit(t, 3, 1);
  const data = Array.from({ length: 12 }, (_, i) => ({ i, key: "k" }));
  const jobs = await add(...data); // One attempt each: a job that used another attempt would fail.
  work(withLimiter(limiter, (job) => job.data.key, processor, { hold: 50, onLimited }));
  const stored = await ended(jobs);
  for (const [i, job] of stored.entries()) {
    assert.equal(job.failedReason, undefined);
    assert.deepEqual([job.returnvalue, job.attemptsMade, job.stalledCounter ?? 0], [i, 1, 0]); // BullMQ 5.0 does not count stalls.
    assert.deepEqual(job.data, data[i]);
  }
  assert.deepEqual(ran.toSorted(), jobs.map((job) => job.id).toSorted());
  for (const one of seen) assert.deepEqual(Object.keys(one), ["i", "key"], "its processor got the place");
  // (A machine that stands still for a window delays fewer.)
  assert.ok(delays.length > 0);
  for (const one of delays) assert.deepEqual(one.slice(1), ["k", true, true]);
  assert.equal(Math.max(...stored.map((job) => job.attemptsStarted)) > 1, true);
});

test("a full key does not delay other keys", async (t) => {
  const { queue, work, add, ended } = await queueFor(t);
  const jobs = await add(...["full", "full", "full", "a", "b", "full", "c"].map((key) => ({ key })));
  const limiter = limit(t, 1, 600);
  work(
    withLimiter(
      limiter,
      (job) => job.data.key,
      (job) => job.data.key,
    ),
    { concurrency: 1 },
  );
  const others = await ended(jobs.filter(({ data }) => data.key !== "full"));
  assert.deepEqual(
    others.map((job) => job.returnvalue),
    ["a", "b", "c"],
  );
  const states = await Promise.all(jobs.filter(({ data }) => data.key === "full").map((job) => job.getState()));
  assert.deepEqual(states.toSorted(), ["completed", "delayed", "delayed", "delayed"]);
  assert.equal(await queue.getFailedCount(), 0);
});

test("jobs charge each part for itself, with texts of places that say so", async (t) => {
  const { queue, work, add, ended } = await queueFor(t);
  const limiter = storeFor(t).limiter("llm", "tokens: 10/1s + tenant: 4/600s");
  const away = [];
  const options = {
    weightOf: ({ data }) => ({ tokens: data.tokens }),
    hold: 0,
    grace: "20s",
    onLimited: (job, at) => away.push([job.id, at]),
  };
  let full;
  const isFull = new Promise((resolve) => (full = resolve));
  const processor = (job, token, signal, permit) => (job.data.tenant === "full" ? full() : permit.settle({ tokens: 1 }));
  const keyOf = ({ data }) => ({ tenant: data.tenant });
  const tenants = await add(...Array(5).fill({ tenant: "full", tokens: 1 }));
  work(withLimiter(limiter, keyOf, processor, options), { concurrency: 1 });
  await isFull;
  const jobs = await add(...[9, 6, 10, 5].map((tokens, i) => ({ tenant: `t${i % 2}`, tokens })));
  for (const job of await ended([...tenants.slice(0, 4), ...jobs])) assert.deepEqual([job.attemptsMade, job.failedReason], [1, undefined]);
  while (!away.some(([id]) => id === tenants[4].id)) await new Promise((resolve) => setTimeout(resolve, 5));
  const [, { key, wait, hasPlace }] = away.find(([id]) => id === tenants[4].id);
  assert.deepEqual([key, wait > 1000, hasPlace], [{ tenant: "full" }, true, true]);
  const place = limiter.place(await placeOf(queue, tenants[4].id));
  assert.ok(place.wait > 1000);
  for (const tenant of ["t0", "t1"]) assert.equal(limiter.peek({ key: { tenant }, weight: { tenant: 3 } }).admitted, false, tenant);
  for (const tenant of ["t0", "t1"]) assert.equal(limiter.peek({ key: { tenant }, weight: { tenant: 2 } }).deniedBy, null, tenant);
});

for (const [kind, keyOf] of [
  ["with keys", oneKey],
  ["without keys", null],
]) {
  test(`${kind}, jobs take what each alternative allows, and know which was chosen`, { timeout: 60_000 }, async (t) => {
    const { work, add, ended } = await queueFor(t);
    const store = storeFor(t);
    const limits = [store.limiter("one", "5/1h"), store.limiter("two", "20/1h + 4 concurrent")];
    const jobs = await add(...Array.from({ length: 12 }, (_, i) => ({ i })));
    const chosen = [];
    const processor = (job, _token, _signal, permit) => (chosen.push(permit.chosen), job.data.i);
    work(withLimiter(new FirstOfLimiter(limits), keyOf, processor));
    const stored = await ended(jobs);
    assert.deepEqual(
      stored.map((job) => job.returnvalue),
      jobs.map((job) => job.data.i),
    );
    // Each start is charged to the one that was chosen, and to no other.
    const counts = limits.map((limiter) => chosen.filter((one) => one === limiter).length);
    const key = keyOf?.() ?? "";
    assert.deepEqual(
      limits.map((limiter) => limiter.stats({ key }).admitted),
      counts,
    );
    assert.ok(chosen.length === 12 && counts.every((count) => count >= 2), String(counts));
  });
}

test("a place is used once, even if two jobs bring it", async (t) => {
  const { queue, work, add, ended } = await queueFor(t);
  const starts = [];
  const asked = new Map();
  const processor = (job, token, signal, permit) =>
    starts.push({ a: permit.readyAtHrtime ?? asked.get(job.id), b: process.hrtime.bigint() });
  const jobs = await add({}, {});
  let thief;
  const onLimited = async ({ id }) => {
    const place = await placeOf(queue, id);
    thief ??= queue.add("job", { "workglow-limit": place }, { delay: 1200 });
  };
  const limited = withLimiter(limit(t, 1, 1.5), null, processor, { onLimited });
  work((job, ...rest) => {
    asked.set(job.id, process.hrtime.bigint());
    return limited(job, ...rest);
  });
  await ended(jobs);
  const [stored] = await ended([await thief]);
  assert.equal(stored.attemptsMade, 1);
  starts.sort((one, other) => Number(one.b - other.b));
  assert.equal(starts.length, 3);
  for (const i of [1, 2]) assert.ok(starts[i].b - starts[i - 1].a >= 1_500_000_000n, "two starts in one window");
});

/** The addresses of one store of each kind that processes share. */
const stores = { sqlite: (t) => `sqlite:${directory(t)}/limits.db`, redis: () => redis.url, postgres: () => postgres.url };

for (const [kind, urlOf] of Object.entries(stores)) {
  test(`${kind}: jobs of a backlog use no attempts for being limited`, { timeout: 60_000 }, async (t) => {
    const { name, work, add, ended } = await queueFor(t);
    const limiter = new Store(urlOf(t)).limiter(name, "3/1s + 2/300ms");
    let delayed = 0;
    work(withLimiter(limiter, null, (job) => job.data.i, { onLimited: () => delayed++ }));
    const stored = await ended(await add(...Array.from({ length: 8 }, (_, i) => ({ i }))));
    assert.deepEqual(
      stored.map((job) => [job.returnvalue, job.attemptsMade]),
      stored.map((_, i) => [i, 1]),
    );
    assert.ok(delayed > 0, "none was delayed");
  });

  test(`${kind}: the job of a killed worker comes back, and the slot of its start is free`, { timeout: 60_000 }, async (t) => {
    const { name, work, add, ended } = await queueFor(t);
    const [url, policy] = [urlOf(t), "50/1m + 1 concurrent"];
    const env = { ...process.env, TEST_STORE: url, TEST_POLICY: policy, TEST_QUEUE: name, TEST_PORT: String(redis.port) };
    const victim = fork(join(import.meta.dirname, "bullmq_worker.mjs"), { env });
    t.after(() => victim.kill("SIGKILL"));
    const jobs = await add({ i: 0 }, { i: 1 });
    await once(victim, "message");
    victim.kill("SIGKILL");
    await once(victim, "exit");
    const limiter = new Store(url).limiter("limit", policy);
    work(
      withLimiter(limiter, null, (job) => job.data.i),
      { stalledInterval: 500 },
    );
    const stored = await ended(jobs);
    assert.deepEqual(
      stored.map((job) => [job.returnvalue, job.attemptsMade]),
      [
        [0, 1],
        [1, 1],
      ],
    );
    assert.equal(
      stored.some((job) => (job.stalledCounter ?? 1) === 1),
      true,
    );
  });
}

test("without keys, jobs stay in the queue, and start in its order", { timeout: 60_000, skip: holdsNone }, async (t) => {
  const { queue, work, add, ended } = await queueFor(t);
  const ran = [];
  const newcomers = [];
  const processor = async (job) => {
    ran.push(job.data.i);
    if (job.data.i < 10) newcomers.push(...(await add({ i: 20 + job.data.i })));
  };
  const limited = [];
  const onLimited = (job, { key, wait, hasPlace }) => limited.push([key, wait > 0, hasPlace]);
  const jobs = await add(...Array.from({ length: 20 }, (_, i) => ({ i })));
  work(withLimiter(limit(t, 3, 0.5), null, processor, { onLimited, hold: 0 }), { concurrency: 1 });
  await ended(jobs);
  const stored = await ended([...jobs, ...newcomers]);
  assert.deepEqual(
    ran,
    Array.from({ length: 30 }, (_, i) => i),
  );
  for (const job of stored) assert.deepEqual([job.attemptsMade, job.failedReason, job.stalledCounter ?? 0], [1, undefined, 0]);
  assert.ok(limited.length > 0, "none was limited");
  for (const one of limited) assert.deepEqual(one, ["", true, false]);
  assert.equal(await queue.getDelayedCount(), 0);
});

test("without keys, the job with the first priority starts first", { timeout: 60_000, skip: holdsNone }, async (t) => {
  const { queue, work, ended } = await queueFor(t);
  const ran = [];
  let urgent;
  const processor = async (job) => {
    ran.push(job.opts.priority);
    urgent ??= await queue.add("job", {}, { priority: 1 });
  };
  const jobs = await Promise.all(Array.from({ length: 12 }, () => queue.add("job", {}, { priority: 10 })));
  work(withLimiter(limit(t, 1, 0.2), null, processor, { hold: 0 }), { concurrency: 1 });
  await ended(jobs);
  await ended([urgent]);
  assert.deepEqual(ran, [10, 1, ...Array(11).fill(10)]);
});

test("without keys, a processor that another one calls holds no queue, whose other jobs may not be limited", async (t) => {
  const { queue, work, ended } = await queueFor(t);
  const limiter = limit(t, 1, 600);
  const limited = withLimiter(limiter, null, () => "limited");
  const [, waits, free] = [await queue.add("limited", {}), await queue.add("limited", {}), await queue.add("free", {})];
  work((job, ...rest) => (job.name === "free" ? "free" : limited(job, ...rest)), { concurrency: 1 });
  const [stored] = await ended([free]);
  assert.equal(stored.returnvalue, "free");
  assert.equal(await waits.getState(), "delayed");
});

test("without keys, a queue that BullMQ limits for the program is not held, which would reset BullMQ's count", async (t) => {
  const kinds = {
    worker: { options: { limiter: { max: 1000, duration: 600_000 } } },
    queue: { limitQueue: (queue) => queue.setGlobalRateLimit(1000, 600_000) },
  };
  if (typeof Queue.prototype.setGlobalRateLimit !== "function") delete kinds.queue;
  for (const [kind, { options, limitQueue }] of Object.entries(kinds)) {
    const { queue, work, add } = await queueFor({ name: `${t.name} ${kind}`, after: t.after.bind(t) });
    await limitQueue?.(queue);
    let isLimited;
    const wasLimited = new Promise((resolve) => (isLimited = resolve));
    const limiter = limit(t, 1, 600);
    await limiter.acquire();
    const worker = work(
      withLimiter(limiter, null, () => assert.fail("it started"), { onLimited: isLimited }),
      options,
    );
    const [job] = await add({});
    await wasLimited;
    assert.equal(await job.getState(), "delayed");
    assert.deepEqual(worker.opts.limiter, options?.limiter);
  }
});

test("without keys, a queue whose limit also has a concurrency is not held", { timeout: 60_000 }, async (t) => {
  const store = storeFor(t);
  const declared = store.limiter("limit", "100/10m + 1 concurrent");
  const held = await declared.acquire(); // Kept: a permit that is collected completes, and frees its slot.
  for (const [kind, limiter] of Object.entries({ declared, attached: store.limiter("limit") })) {
    const { work, add } = await queueFor({ name: `${t.name} ${kind}`, after: t.after.bind(t) });
    const worker = work(withLimiter(limiter, null, () => assert.fail("it started"), { hold: 0 }));
    const [job] = await add({});
    // It is delayed again and again. An attached limiter is known after the first denial.
    for (let state; state !== "delayed"; state = await job.getState()) {
      assert.notEqual(state, "failed", job.failedReason);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
    assert.equal(worker.opts.limiter, undefined);
  }
  held.complete();
});

test("without keys, a place of an earlier policy holds no queue", { timeout: 60_000, skip: holdsNone }, async (t) => {
  const { queue, work, add, ended } = await queueFor(t);
  const store = storeFor(t);
  const earlier = store.limiter("limit", "1/1h");
  await earlier.acquire();
  let limited = 0;
  const first = work(withLimiter(earlier, null, () => assert.fail("it started"), { onLimited: () => limited++ }));
  const jobs = await add({}, {}, {});
  // A job that is not back in the queue when its worker closes stays with it until it is found stalled.
  while (limited === 0 || (await queue.getWaitingCount()) < 3) await new Promise((resolve) => setTimeout(resolve, 5));
  await first.close();
  const left = Number(/-?\d+/.exec(await redis.command(`PTTL ${queue.toKey("workglow-limit:next")}`))[0]);
  assert.ok(left > 3_600_000, `the place is kept for ${left} ms`);
  await store.limiter("limit", "1/500ms").peekAsync();
  await queue.removeRateLimitKey();
  work(
    withLimiter(store.limiter("limit"), null, () => {}, { hold: 0 }),
    { concurrency: 1 },
  );
  for (const job of await ended(jobs)) assert.deepEqual([job.attemptsMade, job.failedReason], [1, undefined]);
});

test("without keys, a worker is handed more jobs when the limit was raised", { timeout: 60_000, skip: holdsNone }, async (t) => {
  const { work, add, ended } = await queueFor(t);
  const store = storeFor(t);
  const limiter = store.limiter("limit", "2/200ms");
  const worker = work(withLimiter(limiter, null, () => {}, { hold: 0 }));
  await ended(await add({}, {}, {}, {}, {}));
  assert.equal(worker.opts.limiter.max, 2);
  await store.override("limit", "50/200ms");
  await ended(await add({}));
  assert.equal(worker.opts.limiter.max, 50);
});

test("without keys, several workers start jobs of all weights", { timeout: 60_000 }, async (t) => {
  const { work, add, ended } = await queueFor(t);
  const store = storeFor(t);
  const weights = [1, 3, 1, 2, 3, 1, 1, 2, 3, 1];
  for (let i = 0; i < 3; i++) {
    const limiter = store.limiter("limit", "3/300ms");
    work(
      withLimiter(limiter, null, () => {}, { weightOf: (job) => job.data.weight, hold: 0 }),
      { concurrency: 2 },
    );
  }
  const stored = await ended(await add(...weights.map((weight) => ({ weight }))));
  assert.deepEqual(
    stored.map((job) => [job.attemptsMade, job.failedReason]),
    weights.map(() => [1, undefined]),
  );
});

test("without keys, several workers start jobs with weights of each part", { timeout: 60_000 }, async (t) => {
  const { name, work, add, ended } = await queueFor(t);
  const store = storeFor(t);
  const limiter = store.limiter("llm", "requests: 5/400ms + tokens: 300/400ms");
  const weights = [100, 300, 100, 200, 300, 100, 100, 200, 300, 100];
  const starts = [];
  for (let i = 0; i < 3; i++) {
    const run = (job) => void starts.push([performance.now(), job.data.tokens]);
    work(withLimiter(limiter, null, run, { weightOf: ({ data }) => ({ tokens: data.tokens }), hold: 0 }), { concurrency: 2 });
  }
  assert.ok(name);
  const stored = await ended(await add(...weights.map((tokens) => ({ tokens }))));
  assert.deepEqual(
    stored.map((job) => [job.attemptsMade, job.failedReason]),
    weights.map(() => [1, undefined]),
  );
  assert.deepEqual(starts.map(([, tokens]) => tokens).toSorted(), weights.toSorted());
  assert.equal(store.limiter("llm/tokens").stats().unitsGranted, 1800);
});

test("a pause delays all jobs", async (t) => {
  const { work, add, ended } = await queueFor(t);
  const limiter = limit(t, 2, 0.5);
  const starts = [];
  let paused;
  const processor = async (job) => {
    starts.push(process.hrtime.bigint());
    if (job.data.i !== 0) return;
    paused = process.hrtime.bigint();
    await limiter.pause("1500ms");
  };
  const jobs = await add(...Array.from({ length: 6 }, (_, i) => ({ i })));
  work(withLimiter(limiter, null, processor), { concurrency: 1 });
  const stored = await ended(jobs);
  assert.deepEqual(
    stored.map((job) => [job.attemptsMade, job.failedReason]),
    Array(6).fill([1, undefined]),
  );
  assert.equal(starts.length, 6);
  for (const start of starts.slice(1)) assert.ok(start >= paused + 1_500_000_000n, "it started during the pause");
});

test("without places, delayed jobs come back one after the other", async (t) => {
  const store = new Store(`sqlite:${directory(t)}/limits.db`);
  const policies = { concurrency: "1 concurrent", bucket: "20/1s burst 2", both: "8/1s + 1 concurrent" };
  for (const [kind, policy] of Object.entries(policies)) {
    const limiter = store.limiter(kind, policy);
    const { work, add, ended } = await queueFor({ name: `${t.name} ${kind}`, after: t.after.bind(t) });
    let [running, most] = [0, 0];
    const processor = async () => {
      most = Math.max(most, ++running);
      await new Promise((resolve) => setTimeout(resolve, 20));
      running--;
    };
    const jobs = await add(...Array(12).fill({ x: 1 }));
    work(withLimiter(limiter, null, processor, { hold: 0 }));
    const stored = await ended(jobs);
    assert.deepEqual(
      stored.map((job) => [job.attemptsMade, job.failedReason, job.data]),
      Array(12).fill([1, undefined, { x: 1 }]),
    );
    if (kind !== "bucket") assert.equal(most, 1);
  }
});

/** BullMQ 5.0 has only the options of a job. */
const priorityOf = (job) => (version.startsWith("5.0.") ? job.opts : job).priority;

test("a job keeps its BullMQ priority while it is limited", { timeout: 60_000 }, async (t) => {
  const { queue, work, ended } = await queueFor(t);
  const priorities = [7, 2, 9, 4, 1, 6];
  const ran = [];
  const processor = (job) => void ran.push([job.data.priority, priorityOf(job), job.opts.priority]);
  // A worker that is later than this loses the place of a job, and so its turn.
  const worker = work(withLimiter(limit(t, 1, 0.3), oneKey, processor, { grace: 2_000 }), { concurrency: 1, autorun: false });
  const jobs = await Promise.all(priorities.map((priority) => queue.add("job", { priority }, { priority })));
  void worker.run();
  const stored = await ended(jobs);
  assert.deepEqual(
    stored.map((job) => [priorityOf(job), job.attemptsMade]),
    priorities.map((priority) => [priority, 1]),
  );
  assert.deepEqual(
    ran,
    priorities.toSorted().map((priority) => Array(3).fill(priority)),
  );
});

test("a job whose data are replaced while it waits runs once, with the new data", { timeout: 60_000 }, async (t) => {
  const { queue, work, add, ended } = await queueFor(t);
  const limited = new Set();
  const onLimited = async (job) => {
    limited.add(job.data.i);
    await (await queue.getJob(job.id)).updateData({ ...job.data, is: "new" });
  };
  const ran = [];
  work(
    withLimiter(limit(t, 1, 0.7), oneKey, (job) => void ran.push(job.data), { onLimited, grace: 2_000 }),
    { concurrency: 1 },
  );
  const jobs = [];
  for (const i of [0, 1, 2, 3]) jobs.push(...(await add({ i })));
  const stored = await ended(jobs);
  assert.deepEqual(
    stored.map((job) => job.failedReason),
    Array(4).fill(undefined),
  );
  // (On a machine that stands still, a job may find the window over.)
  assert.ok(limited.size > 0);
  // Not asserted: their order. A machine that stands still for longer than the grace makes a place void.
  assert.deepEqual(
    ran.sort((a, b) => a.i - b.i),
    [0, 1, 2, 3].map((i) => (limited.has(i) ? { i, is: "new" } : { i })),
  );
});

test("a job that replaces a delayed one gets its place, so a job that is replaced often still starts", { timeout: 60_000 }, async (t) => {
  if (version.startsWith("5.0.")) return t.skip("BullMQ 5.0 replaces no jobs");
  const { queue, work } = await queueFor(t);
  const limiter = limit(t, 1, 4);
  assert.ok(await limiter.acquire({ key: "k" }));
  let ran = null;
  const places = new Set();
  const onLimited = async (job) => places.add(await placeOf(queue, "de:same"));
  work(withLimiter(limiter, oneKey, (job) => void (ran ??= job.data.i), { onLimited, hold: 50 }));
  let i = 0;
  for (; ran === null; i++) {
    // Faster than the limit: with a new place, each job would wait longer than the one before.
    await queue.add("job", { i }, { deduplication: { id: "same", replace: true, ttl: 60_000, extend: true } });
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  assert.ok(ran > 1, "it was never replaced");
  assert.equal(places.size, 1);
});

test("under a global concurrency, workers do not sleep past due jobs", { timeout: 60_000 }, async (t) => {
  if (version.startsWith("5.0.")) return t.skip("BullMQ 5.0 has no global concurrency");
  const { queue, work, add, ended } = await queueFor(t);
  await queue.setGlobalConcurrency(1);
  const limiter = limit(t, 4, 0.5);
  const processor = () => new Promise((resolve) => setTimeout(resolve, 20));
  // Without a promotion, a worker that found the queue full would sleep for ten minutes.
  for (let i = 0; i < 2; i++) work(withLimiter(limiter, null, processor), { drainDelay: 600 });
  const stored = await ended(await add(...Array(16).fill({})));
  assert.deepEqual(
    stored.map((job) => [job.attemptsMade, job.failedReason]),
    Array(16).fill([1, undefined]),
  );
});

test("a job that another worker has delayed again stays delayed", { timeout: 60_000 }, async (t) => {
  const { queue, work, add, ended } = await queueFor(t);
  const limiter = limit(t, 1, 1);
  await limiter.acquire({ key: "k" });
  let isSent;
  const sent = new Promise((resolve) => (isSent = resolve));
  const first = work(
    withLimiter(limiter, oneKey, () => assert.fail("it started"), { hold: 0, onLimited: isSent }),
    { autorun: false, concurrency: 1 },
  );
  void first.run();
  const [job] = await add({ again: true });
  await sent;
  await first.pause(true);
  // Before the second worker starts, which would otherwise take the job when it is due.
  await (await queue.getJob(job.id)).promote();
  const handed = [];
  work(async (job, token) => {
    handed.push(job.id);
    if (!job.data.again) return;
    await job.moveToDelayed(Date.now() + 600_000, token);
    throw Object.assign(new Error("DelayedError"), { name: "DelayedError" });
  });
  // Due after the moment at which the first worker wakes one.
  const last = await queue.add("job", {}, { delay: 2_000 });
  await ended([last]);
  assert.deepEqual(handed, [job.id, last.id]);
  assert.equal(await job.getState(), "delayed");
});

test("a job is not kept in memory while it is delayed", { timeout: 60_000 }, async (t) => {
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc");
  const { work, add } = await queueFor(t);
  const limiter = limit(t, 1, 600);
  await limiter.acquire({ key: "k" });
  const jobs = [];
  const onLimited = (job) => void jobs.push(new WeakRef(job));
  work(withLimiter(limiter, oneKey, () => assert.fail("it started"), { onLimited }));
  await add({}, {}, {});
  while (jobs.length < 3 || jobs.some((job) => job.deref() !== undefined)) {
    await new Promise((resolve) => setTimeout(resolve, 5));
    collect();
  }
});

for (const policy of ["1/10m", "1/10m + 5 concurrent"]) {
  test(`${policy}: jobs do not wait for jobs that were removed while they were delayed`, { timeout: 60_000 }, async (t) => {
    const { queue, work, add, ended } = await queueFor(t);
    const limiter = storeFor(t).limiter("limit", policy);
    const keyOf = (job) => job.data.key;
    const held = await limiter.acquire({ key: "k" });
    let limited = 0;
    work(withLimiter(limiter, keyOf, (job) => job.data.i, { onLimited: () => limited++ }));
    const wereLimited = async (count) => {
      while (limited < count) await new Promise((resolve) => setTimeout(resolve, 5));
    };
    // More than there are places for.
    const jobs = await add(...Array(12).fill({ key: "k" }));
    await wereLimited(12);
    for (const job of jobs) await job.remove();
    held.cancel();
    const fresh = await add(...[0, 1, 2].map((i) => ({ i, key: "k" })));
    await Promise.race(fresh.map((job) => ended([job])));
    await wereLimited(14);
    const states = await Promise.all(fresh.map((job) => job.getState()));
    assert.deepEqual(states.toSorted(), ["completed", "delayed", "delayed"]);
    // The next ones have the next places, not those behind the removed jobs.
    const waits = await Promise.all(fresh.map(async ({ id }) => (await queue.getJob(id)).delay));
    assert.ok(Math.max(...waits) < 1_500_000, `they wait ${waits} ms`);
  });
}

test("an old BullMQ version is an error that names the version", async () => {
  const processor = withLimiter(new NullLimiter(), null, () => assert.fail("it ran"));
  const message = /^withLimiter needs BullMQ 5\.0\.0 or newer, .*: this is \d+\.\d+\.\d+$/;
  await assert.rejects(processor({ id: "1", data: {}, opts: {}, moveToDelayed() {} }), { code: "unsupported", message });
});

test("data that are not an object are unchanged", async (t) => {
  const { work, add, ended } = await queueFor(t);
  const data = ["text", ["list"], 5, null, "more"];
  const delays = [];
  const jobs = await add(...data);
  work(withLimiter(limit(t, 1, 0.2), oneKey, (job) => job.data, { onLimited: (job, { hasPlace }) => delays.push(hasPlace) }));
  const stored = await ended(jobs);
  assert.deepEqual(
    stored.map((job) => [job.data, job.returnvalue, job.attemptsMade]),
    data.map((one) => [one, one, 1]),
  );
  assert.ok(
    delays.some((hasPlace) => hasPlace),
    "jobs with such data have places, too",
  );
});

test("weights, the permit and a throwing hook work", async (t) => {
  const { work, add, ended } = await queueFor(t);
  const limiter = limit(t, 10, 600);
  const onLimited = () => {
    throw new Error("mine");
  };
  const warned = once(process, "warning");
  const processor = (job, token, signal, permit) => {
    assert.ok((signal instanceof AbortSignal || version.startsWith("5.0.")) && permit.started && typeof token === "string");
    if (job.data.used !== undefined) permit.settle(job.data.used);
    return limiter.peek().remaining;
  };
  work(withLimiter(limiter, null, processor, { weightOf: (job) => job.data.weight, onLimited }), { concurrency: 1 });
  const [six] = await ended(await add({ weight: 6, used: 2 }));
  assert.equal(six.returnvalue, 8);
  const [eight] = await ended(await add({ weight: 8 }));
  assert.equal(eight.returnvalue, 0);
  await add({ weight: 1 });
  assert.match((await warned)[0].message, /onLimited threw.*mine/);
});

test("an error of the processor fails the job, and its start has ended", async (t) => {
  const { work, queue, ended } = await queueFor(t);
  const limiter = new ConcurrencyLimiter(1);
  let tries = 0;
  const processor = () => {
    if (++tries < 3) throw new Error("again");
    throw new UnrecoverableError("never");
  };
  work(withLimiter(limiter, null, processor));
  const [job] = await ended([await queue.add("job", {}, { attempts: 5 })]);
  assert.deepEqual([job.attemptsMade, job.failedReason, tries], [3, "never", 3]);
  assert.ok(limiter.tryAcquire());
});

test("a job whose start cannot be decided fails with the reason", async (t) => {
  const { work, add, ended } = await queueFor(t);
  const keys = { number: 5, long: "k".repeat(2000), heavy: "heavy", half: "half" };
  const weightOf = (job) => ({ heavy: 11, half: 0.5 })[job.data.key] ?? 1;
  const processor = withLimiter(
    limit(t, 10, 60),
    (job) => keys[job.data.key],
    () => assert.fail("it ran"),
    { weightOf },
  );
  work(processor);
  const stored = await ended(await add(...Object.keys(keys).map((key) => ({ key }))));
  const reasons = [/^key is 5: expected a string, or an object/, /key.*1024/, /10/, /^weight is 0.5: expected a whole number/];
  for (const [i, reason] of reasons.entries()) assert.match(stored[i].failedReason, reason);
});

test("a place of an earlier limit is ignored", async (t) => {
  const { queue, work, add, ended } = await queueFor(t);
  const others = new RateLimiter(new Store("memory:"), "others", { maxExecutions: 1, windowSizeInSeconds: 60 });
  assert.ok(others.tryAcquire());
  const odd = [others.reserve().toText(), "wgl9.x", "", 5, { text: 5 }, ["x"], null];
  const jobs = await add(...odd.map((one, i) => ({ i, "workglow-limit": one })));
  work(withLimiter(limit(t, 100, 60), null, (job) => job.data.i));
  const stored = await ended(jobs);
  assert.deepEqual(
    stored.map((job) => job.returnvalue),
    jobs.map((_, i) => i),
  );
  assert.equal(await queue.getFailedCount(), 0);
});

test("a sandboxed processor is limited", { timeout: 60_000 }, async (t) => {
  process.env.TEST_STORE = `sqlite:${directory(t)}/limits.db`;
  process.env.TEST_POLICY = "2/1s";
  const { work, add, ended } = await queueFor(t);
  const data = Array.from({ length: 6 }, (_, i) => ({ i, key: "k" }));
  const jobs = await add(...data);
  work(new URL("bullmq_worker.mjs", import.meta.url), { concurrency: 2 });
  const stored = await ended(jobs);
  assert.deepEqual(
    stored.map((job) => [job.failedReason, job.attemptsMade]),
    Array(6).fill([undefined, 1]),
  );
  assert.deepEqual(
    stored.map((job) => job.returnvalue.data),
    data,
  );
  for (const job of stored) assert.notEqual(job.returnvalue.pid, process.pid);
});

test("invalid input is an error when the processor is made", () => {
  const limiter = new NullLimiter();
  const run = () => {};
  for (const bad of [undefined, null, {}, 5, { tryAcquire() {} }]) {
    assert.throws(() => withLimiter(bad, null, run), { name: "InvalidArgument", message: /^limiter is .*: expected a limiter/ });
  }
  for (const bad of [undefined, null, {}, "file.js", new URL("file:///x.js")]) {
    assert.throws(() => withLimiter(limiter, null, bad), { name: "InvalidArgument", message: /^processor is .*sandboxed/ });
  }
  for (const bad of ["key", 5, {}]) assert.throws(() => withLimiter(limiter, bad, run), /^InvalidArgument: keyOf is .*a function$/);
  for (const bad of [null, 5, { weight: 1 }, { weightOf: 1 }, { onLimited: "x" }, { hold: -1 }, { grace: "soon" }, { hold: NaN }]) {
    assert.throws(() => withLimiter(limiter, null, run, bad), InvalidArgument);
  }
  assert.equal(withLimiter(limiter, undefined, run).length, 3, "BullMQ checks how many parameters a processor has");
});

test("the package never loads bullmq, and takes the jobs of any copy", (t) => {
  const dir = directory(t);
  const root = join(import.meta.dirname, "..");
  mkdirSync(join(dir, "node_modules/workglow-limit"), { recursive: true });
  for (const part of ["dist", "package.json"])
    cpSync(join(root, part), join(dir, "node_modules/workglow-limit", part), { recursive: true });
  const says = (code) => execFileSync(process.execPath, ["-e", code], { cwd: dir, encoding: "utf8" });
  for (const load of ["import", "(async (x) => require(x))"]) {
    for (const entry of ["", "/bullmq"]) {
      assert.match(says(`${load}("workglow-limit${entry}").then((entry) => console.log(typeof entry))`), /object/);
    }
  }
});
