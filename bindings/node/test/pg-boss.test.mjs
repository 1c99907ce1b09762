// pg-boss handlers with a limiter: real workers on a real Postgres.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { PgBoss } from "pg-boss";
import { ConcurrencyLimiter, NullLimiter, RateLimiter, Store } from "workglow-limit";
import { withLimiter } from "workglow-limit/pg-boss";
import { startPostgres } from "./postgres.mjs";

let postgres;
const bosses = [];
before(async () => {
  postgres = await startPostgres();
});
after(async () => {
  for (const boss of bosses) await boss.stop({ graceful: false });
  await postgres.stop();
});

async function start(options = {}) {
  const [, host] = /host=([^&]*)/.exec(postgres.url);
  const boss = new PgBoss({ host, user: "postgres", database: "postgres", supervise: false, schedule: false, ...options });
  boss.on("error", (error) => assert.fail(error));
  await boss.start();
  bosses.push(boss);
  return boss;
}
let shared;
const sharedBoss = () => (shared ??= start());

/** Makes a queue for the test. */
async function queueFor(t, options = {}, boss = sharedBoss()) {
  const made = await boss;
  const queue = t.name.replaceAll(/\W/g, "-").slice(0, 50);
  await made.createQueue(queue, { retryLimit: 3, retryDelay: 0, ...options });
  t.after(() => made.offWork(queue, { wait: false }).catch(() => {}));
  return {
    boss: made,
    queue,
    add: async (data, options = {}) => {
      const ids = [];
      for (const one of data) ids.push(await made.send(queue, one, typeof options === "function" ? options(one) : options));
      return ids;
    },
    /** The stored jobs when all have ended. */
    async ended(ids) {
      for (;;) {
        const jobs = await Promise.all(ids.map(async (id) => (await made.findJobs(queue, { id }))[0]));
        if (jobs.every(({ state }) => state === "completed" || state === "failed")) return jobs;
        await sleep(20);
      }
    },
  };
}

const limit = (max, seconds) => new RateLimiter(new Store("memory:"), "limit", { maxExecutions: max, windowSizeInSeconds: seconds });
const QUICK = { pollingIntervalSeconds: 0.5 };

test("a job that cannot start goes back, does not fail, and starts once", { timeout: 60_000 }, async (t) => {
  const { boss, queue, add, ended } = await queueFor(t);
  const [ran, delays] = [[], []];
  const handler = (job) => {
    ran.push({ i: job.data.i, data: job.data, retryCount: job.retryCount });
    return { i: job.data.i };
  };
  const onLimited = (job, { key, wait, hasPlace }) => delays.push([job.data.i, key, wait > 0, hasPlace]);
  const ids = await add(Array.from({ length: 9 }, (_, i) => ({ i, key: "k" })));
  const limited = withLimiter(boss, limit(3, 0.7), (job) => job.data.key, handler, { onLimited });
  await boss.work(queue, { ...QUICK, localConcurrency: 4 }, limited);
  const stored = await ended(ids);
  assert.deepEqual(
    stored.map(({ state, output, retryCount }) => [state, output, retryCount]),
    ids.map((_, i) => ["completed", { i }, 0]),
  );
  assert.deepEqual(
    ran.toSorted((a, b) => a.i - b.i),
    ids.map((_, i) => ({ i, data: { i, key: "k" }, retryCount: 0 })),
  );
  // (A machine that stands still for a window delays fewer.)
  assert.ok(delays.length > 0);
  for (const one of delays) assert.deepEqual(one.slice(1, 3), ["k", true]);
  assert.ok(delays.some(([, , , hasPlace]) => hasPlace));
});

test("jobs charge each part for itself, and come back with their places", { timeout: 60_000 }, async (t) => {
  const { boss, queue, add, ended } = await queueFor(t);
  const limiter = new Store("memory:").limiter("llm", "tokens: 10/700ms + tenant: 2/1h");
  const delays = [];
  const data = [6, 7, 8, 9].map((tokens, i) => ({ tokens, tenant: `t${i % 2}` }));
  const options = { weightOf: (job) => ({ tokens: job.data.tokens }), onLimited: (_, limited) => delays.push(limited) };
  const ids = await add(data);
  const limited = withLimiter(
    boss,
    limiter,
    (job) => ({ tenant: job.data.tenant }),
    (job) => job.data,
    options,
  );
  await boss.work(queue, { ...QUICK, localConcurrency: 4 }, limited);
  const stored = await ended(ids);
  assert.deepEqual(
    stored.map(({ state, output, retryCount }) => [state, output, retryCount]),
    data.map((one) => ["completed", one, 0]),
  );
  assert.ok(delays.length > 0);
  for (const { key, hasPlace } of delays) assert.deepEqual([Object.keys(key), hasPlace], [["tenant"], true]);
  for (const tenant of ["t0", "t1"]) assert.equal(limiter.peek({ key: { tenant } }).deniedBy, "llm/tenant");
});

test("a full key does not delay other keys", { timeout: 60_000 }, async (t) => {
  const { boss, queue, add, ended } = await queueFor(t);
  const keys = ["full", "full", "full", "a", "b", "full", "c"];
  const ids = await add(keys.map((key) => ({ key })));
  await boss.work(
    queue,
    QUICK,
    withLimiter(
      boss,
      limit(1, 600),
      (job) => job.data.key,
      (job) => ({ is: job.data.key }),
    ),
  );
  const others = await ended(ids.filter((_, i) => keys[i] !== "full"));
  assert.deepEqual(
    others.map(({ output }) => output.is),
    ["a", "b", "c"],
  );
  const full = await boss.findJobs(queue, { data: { key: "full" } });
  assert.deepEqual(full.map(({ state }) => state).toSorted(), ["completed", "retry", "retry", "retry"]);
  assert.deepEqual(
    full.map(({ retryCount }) => retryCount),
    [0, 0, 0, 0],
  );
});

test("each job of a batch is limited and ends separately", { timeout: 60_000 }, async (t) => {
  const { boss, queue, add, ended } = await queueFor(t, { retryLimit: 0 });
  const ids = await add(Array.from({ length: 8 }, (_, i) => ({ i })));
  const handler = ({ data: { i } }) => {
    if (i % 4 === 1) throw new Error(`not ${i}`);
    return { i };
  };
  await boss.work(queue, { ...QUICK, batchSize: 8 }, withLimiter(boss, limit(3, 0.5), null, handler));
  const stored = await ended(ids);
  for (const [i, { state, output, retryCount }] of stored.entries()) {
    assert.equal(retryCount, 0);
    assert.deepEqual([state, output.i ?? output.message], i % 4 === 1 ? ["failed", `not ${i}`] : ["completed", i]);
  }
});

test("a worker that gave a job back cannot end it, even if another worker has it", async (t) => {
  const { boss, queue, add } = await queueFor(t);
  const [id] = await add([{ i: 1 }]);
  const limiter = new ConcurrencyLimiter(1);
  assert.ok(limiter.tryAcquire());
  const handle = withLimiter(boss, limiter, null, () => assert.fail("it ran"), { hold: 0 });
  const mine = await boss.fetch(queue);
  assert.equal(await handle(mine), undefined);
  let theirs = [];
  while (theirs.length === 0) theirs = await boss.fetch(queue);
  assert.deepEqual([theirs[0].id, theirs[0].retryCount, theirs[0].data], [id, 0, { i: 1 }]);
  assert.equal((await boss.complete(queue, mine)).affected, 0);
  assert.equal((await boss.fail(queue, mine)).affected, 0);
  assert.equal((await boss.complete(queue, theirs)).affected, 1);
});

test("a job whose data are replaced while it waits starts with its place and the new data", { timeout: 60_000 }, async (t) => {
  const { boss, queue, add, ended } = await queueFor(t);
  const seen = [];
  let updated;
  const onLimited = (job) => void (updated ??= boss.update(queue, { is: "new" }, { id: job.id }));
  const handler = (job, permit) => void seen.push([job.data, permit.readyAt !== null]);
  const ids = await add([{ is: "old" }, { is: "old" }]);
  await boss.work(queue, QUICK, withLimiter(boss, limit(1, 4), null, handler, { onLimited, grace: "5s" }));
  await ended(ids);
  assert.equal((await updated).updated, 1);
  assert.deepEqual(seen, [
    [{ is: "old" }, false],
    [{ is: "new" }, true],
  ]);
});

test("an error of the handler is retried as often as the queue allows", { timeout: 60_000 }, async (t) => {
  const { boss, queue, add, ended } = await queueFor(t, { retryLimit: 2 });
  const tries = [];
  const handler = (job) => {
    tries.push(job.retryCount);
    throw new Error("again");
  };
  await boss.work(queue, QUICK, withLimiter(boss, limit(1, 0.3), null, handler));
  const [job] = await ended(await add([null]));
  assert.deepEqual([job.state, job.retryCount, job.data, tries], ["failed", 2, null, [0, 1, 2]]);
});

test("a queue that keeps the order of a key keeps it while its jobs are limited", { timeout: 60_000 }, async (t) => {
  const { boss, queue, add, ended } = await queueFor(t, { policy: "key_strict_fifo" });
  const ran = [];
  const ids = await add(
    [0, 1, 2, 3].map((i) => ({ i })),
    { singletonKey: "same" },
  );
  await boss.work(
    queue,
    { ...QUICK, localConcurrency: 3 },
    withLimiter(boss, limit(1, 0.4), null, (job) => void ran.push(job.data.i)),
  );
  await ended(ids);
  assert.deepEqual(ran, [0, 1, 2, 3]);
});

test("a schema with another name works", { timeout: 60_000 }, async (t) => {
  const { boss, queue, add, ended } = await queueFor(t, {}, start({ schema: "other" }));
  const ids = await add([{}, {}]);
  await boss.work(
    queue,
    QUICK,
    withLimiter(boss, limit(1, 0.5), null, () => ({ ok: true }), { schema: "other" }),
  );
  assert.deepEqual(
    (await ended(ids)).map(({ state, retryCount }) => [state, retryCount]),
    [
      ["completed", 0],
      ["completed", 0],
    ],
  );
});

test("invalid input is an error when the handler is made, and an old pg-boss is named", async () => {
  const boss = await sharedBoss();
  const limiter = new NullLimiter();
  const run = () => {};
  const refuses = (given, message) => assert.throws(() => withLimiter(...given), { name: "InvalidArgument", message });
  for (const bad of [undefined, null, {}, "postgres://"]) refuses([bad, limiter, null, run], /^boss is .*the PgBoss/);
  for (const bad of [undefined, {}]) refuses([boss, bad, null, run], /^limiter is .*a limiter/);
  refuses([boss, limiter, 5, run], /^keyOf is 5/);
  refuses([boss, limiter, null, undefined], /^handler is undefined/);
  for (const schema of ["", 5, null]) refuses([boss, limiter, null, run, { schema }], /^schema is/);
  for (const bad of [null, 5, { weight: 1 }, { hold: -1 }, { grace: "soon" }]) refuses([boss, limiter, null, run, bad], /./);
  assert.throws(() => withLimiter({ getDb() {} }, limiter, null, run), { code: "unsupported", message: /needs pg-boss 12\.35\.0/ });
});
