// Graphile Worker tasks with a limiter: real workers on a real Postgres.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { NullLimiter, RateLimiter, Store } from "workglow-limit";
import { withLimiter } from "workglow-limit/graphile-worker";
import { startPostgres } from "./postgres.mjs";

let postgres;
const errors = [];
const logger = new Logger(() => (level, message) => void (level === "error" && errors.push(message)));
before(async () => {
  postgres = await startPostgres();
});
after(() => postgres.stop());

/** Makes a schema for the test, workers for it, and access to its jobs. */
async function queueFor(t) {
  const schema = t.name.replaceAll(/\W/g, "_").slice(0, 40);
  const options = { connectionString: postgres.url, schema, logger };
  const utils = await makeWorkerUtils(options);
  await utils.migrate();
  let runner;
  t.after(async () => {
    await runner?.stop();
    await utils.release();
  });
  const query = (text, values) => utils.withPgClient((client) => client.query(text, values));
  return {
    schema,
    add: (payload, spec) => utils.addJob("task", payload, spec),
    jobs: async () => (await query(`SELECT * FROM "${schema}".jobs ORDER BY id`)).rows,
    async work(task, settings = {}) {
      runner = await run({ ...options, concurrency: 3, pollInterval: 200, noHandleSignals: true, taskList: { task }, ...settings });
    },
    async drained() {
      while (Number((await query(`SELECT count(*) FROM "${schema}".jobs`)).rows[0].count) > 0) await sleep(20);
    },
  };
}

const limit = (max, seconds) => new RateLimiter(new Store("memory:"), "limit", { maxExecutions: max, windowSizeInSeconds: seconds });

test("a job that cannot start is put back, does not fail, and starts once", { timeout: 60_000 }, async (t) => {
  const { schema, add, work, drained } = await queueFor(t);
  const [ran, delays] = [[], []];
  for (let i = 0; i < 9; i++) await add({ i, key: "k" }, { maxAttempts: 1, priority: i, flags: ["f"] });
  const task = (payload, { job }) => void ran.push([payload, job.payload, job.attempts, job.priority, job.flags]);
  const onLimited = (job, { key, wait, hasPlace }) => delays.push([job.payload.i, key, wait > 0, hasPlace]);
  await work(withLimiter(limit(3, 0.7), (job) => job.payload.key, task, { schema, onLimited }));
  await drained();
  const sorted = ran.toSorted(([a], [b]) => a.i - b.i);
  assert.deepEqual(
    sorted,
    sorted.map((_, i) => [{ i, key: "k" }, { i, key: "k" }, 1, i, { f: true }]),
  );
  assert.equal(ran.length, 9);
  // (A machine that stands still for a window delays fewer.)
  assert.ok(delays.length > 0);
  for (const one of delays) assert.deepEqual(one.slice(1, 3), ["k", true]);
  assert.ok(delays.some(([, , , hasPlace]) => hasPlace));
  assert.deepEqual(errors, []);
});

test("jobs charge each part for itself, and come back with their places", { timeout: 60_000 }, async (t) => {
  const { schema, add, work, drained } = await queueFor(t);
  const limiter = new Store("memory:").limiter("llm", "tokens: 10/700ms + tenant: 2/1h");
  const [ran, delays] = [[], []];
  const data = [6, 7, 8, 9].map((tokens, i) => ({ tokens, tenant: `t${i % 2}` }));
  for (const one of data) await add(one, { maxAttempts: 1 });
  const weightOf = (job) => ({ tokens: job.payload.tokens });
  const options = { schema, weightOf, onLimited: (_, limited) => delays.push(limited) };
  await work(
    withLimiter(
      limiter,
      (job) => ({ tenant: job.payload.tenant }),
      (payload) => void ran.push(payload),
      options,
    ),
  );
  await drained();
  assert.deepEqual(
    ran.toSorted((a, b) => a.tokens - b.tokens),
    data,
  );
  assert.ok(delays.length > 0);
  for (const { key, hasPlace } of delays) assert.deepEqual([Object.keys(key), hasPlace], [["tenant"], true]);
  for (const tenant of ["t0", "t1"]) assert.equal(limiter.peek({ key: { tenant } }).deniedBy, "llm/tenant");
  assert.deepEqual(errors, []);
});

test("a full key does not delay other keys", { timeout: 60_000 }, async (t) => {
  const { schema, add, jobs, work } = await queueFor(t);
  for (const key of ["full", "full", "full", "a", "b", "full", "c"]) await add({ key });
  const ran = [];
  await work(
    withLimiter(
      limit(1, 600),
      (job) => job.payload.key,
      ({ key }) => void ran.push(key),
      { schema },
    ),
    { concurrency: 1 },
  );
  while (ran.length < 4 || (await jobs()).length > 3) await sleep(20);
  assert.deepEqual(ran, ["full", "a", "b", "c"]);
  assert.deepEqual(
    (await jobs()).map(({ attempts, last_error: error, locked_at: locked }) => [attempts, error, locked]),
    Array(3).fill([0, null, null]),
  );
});

test("named queues run one job at a time, and are free for others while a limited job waits", { timeout: 60_000 }, async (t) => {
  const { schema, add, work, drained } = await queueFor(t);
  for (const [i, key] of ["full", "full", "a", "full", "b"].entries()) await add({ i, key }, { queueName: "serial" });
  const ran = [];
  let running = 0;
  const task = async ({ key }) => {
    assert.equal(++running, 1);
    await sleep(20);
    running--;
    ran.push(key);
  };
  await work(withLimiter(limit(1, 1.2), (job) => job.payload.key, task, { schema }));
  await drained();
  assert.equal(ran.length, 5);
  assert.deepEqual(errors, []);
});

test("a job that another job replaces, or that is removed, is not put back", { timeout: 60_000 }, async (t) => {
  const { schema, add, jobs, work } = await queueFor(t);
  const limiter = limit(1, 600);
  assert.ok(limiter.tryAcquire());
  await add({ is: "old" }, { jobKey: "same" });
  const limited = withLimiter(limiter, null, () => assert.fail("it ran"), { schema });
  let replaced = 0;
  await work((payload, helpers) => {
    const query = async (...given) => {
      // While the worker has it, as late as possible.
      if (payload.is === "old" && replaced++ === 0) await add({ is: "new" }, { jobKey: "same" });
      return helpers.query(...given);
    };
    return limited(payload, { ...helpers, query });
  });
  let left;
  do {
    await sleep(20);
    left = await jobs();
  } while (left.length !== 1 || left[0].locked_at !== null || left[0].run_at < new Date(Date.now() + 60_000));
  assert.deepEqual([left[0].key, left[0].attempts], ["same", 0]);
});

test("a job that is replaced faster than the limit admits starts in its turn", { timeout: 60_000 }, async (t) => {
  const { schema, add, work } = await queueFor(t);
  const limiter = limit(1, 4);
  let ran = null;
  await work(withLimiter(limiter, null, (payload) => void (ran ??= payload.i), { schema }));
  assert.ok(await limiter.acquire());
  let i = 0;
  for (; ran === null; i++) {
    await add({ i }, { jobKey: "same" });
    await sleep(50);
  }
  assert.ok(ran > 1, "it was never replaced");
});

test("an error of the task uses one attempt", { timeout: 60_000 }, async (t) => {
  const { schema, add, work, drained } = await queueFor(t);
  const limiter = limit(1, 0.3);
  const attempts = [];
  const task = (payload, { job }) => {
    attempts.push(job.attempts);
    if (job.attempts === 1) throw new Error("once");
  };
  await add(null);
  await add(["a", "list"]);
  await work(withLimiter(limiter, null, task, { schema }), { concurrency: 1 });
  await drained();
  assert.deepEqual(attempts.toSorted(), [1, 1, 2, 2]);
  assert.equal(errors.splice(0).filter((message) => /once/.test(message)).length, 2);
});

test("invalid input is an error when the task is made", async () => {
  const limiter = new NullLimiter();
  const refuses = (given, message) => assert.throws(() => withLimiter(...given), { name: "InvalidArgument", message });
  for (const bad of [undefined, {}]) refuses([bad, null, () => {}], /^limiter is .*a limiter/);
  refuses([limiter, "key", () => {}], /^keyOf is "key"/);
  refuses([limiter, null, "task"], /^task is "task"/);
  for (const schema of ["", 5, null]) refuses([limiter, null, () => {}, { schema }], /^schema is/);
  for (const bad of [null, 5, { weight: 1 }, { hold: -1 }]) refuses([limiter, null, () => {}, bad], /./);
  await assert.rejects(withLimiter(limiter, null, () => {})({}, { job: {} }), { code: "unsupported", message: /Graphile Worker 0\.16/ });
});
