// One worker process. It gets its task as JSON, reports that it is ready, and works until it is stopped.

import fs from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";
import { RateLimiterPostgres } from "rate-limiter-flexible";
import { RateLimiter, Store } from "workglow-limit";
import { withLimiter as withGraphile } from "workglow-limit/graphile-worker";
import { withLimiter as withPgBoss } from "workglow-limit/pg-boss";
import { pgBoss, quiet } from "./queues.mjs";

const task = JSON.parse(process.argv[2]);
const { queue, mode, host, folder, keys, limit, windowMs, jobMs, concurrency, plant } = task;

const pool = new pg.Pool({ host, user: "postgres", database: "postgres", max: concurrency + 2 });
pool.on("error", () => {});
pool.on("connect", (client) => client.on("error", () => {}));
// Each write is one whole line.
const logs = Object.fromEntries(keys.map((key) => [key, fs.openSync(`${folder}/starts/${key}/worker-${process.pid}.log`, "a")]));

/** The job. It records the interval of its start, on the clock of the machine: see examples/fleet/evidence.py. */
async function run({ key, i }, attempts, a) {
  const b = process.hrtime.bigint();
  fs.writeSync(logs[key], `${a} ${b}\n`);
  fs.appendFileSync(`${folder}/ran`, `${JSON.stringify({ key, i, attempts, at: Date.now() })}\n`);
  await sleep(jobMs);
}

/** Runs a job with the permit of its start: the interval begins when the start was requested, or when its place was ready. */
const limited = (before, permit, data, attempts) => {
  const ready = permit.readyAtHrtime;
  return run(data, attempts, ready !== null && ready > before ? ready : before);
};

const store = new Store(plant ? "memory:" : `sqlite:${folder}/limits.db`);
const limiter = new RateLimiter(store, "fleet", { maxExecutions: limit, windowSizeInSeconds: windowMs / 1000 });
const asked = new WeakMap();

/** The usual recipe: the handler checks a shared counter. If it is full, the job fails and is retried. */
const flexible = await new Promise((resolve, reject) => {
  const options = { storeClient: pool, storeType: "pool", tableName: `flexible`, points: limit, duration: windowMs / 1000 };
  const made = new RateLimiterPostgres(options, (error) => (error ? reject(error) : resolve(made)));
});
const orFail = async (data, attempts) => {
  const before = process.hrtime.bigint();
  try {
    await flexible.consume(data.key);
  } catch (full) {
    throw full instanceof Error ? full : new Error("the limit is full");
  }
  await run(data, attempts, before);
};

const now = () => process.hrtime.bigint();
let stop;
if (queue === "pg-boss") {
  const boss = await pgBoss(host, concurrency + 2);
  const ours = withPgBoss(
    boss,
    limiter,
    (job) => job.data.key,
    (job, permit) => limited(asked.get(job), permit, job.data, job.retryCount),
  );
  const handlers = {
    ours(jobs) {
      for (const job of jobs) asked.set(job, now());
      return ours(jobs);
    },
    flexible: ([job]) => orFail(job.data, job.retryCount),
    throttled: ([job]) => run(job.data, job.retryCount, now()),
  };
  await boss.work("fleet", { localConcurrency: concurrency, pollingIntervalSeconds: 0.5 }, handlers[mode]);
  stop = () => boss.stop({ timeout: 5_000 });
} else {
  const { run: runWorkers } = await import("graphile-worker");
  const ours = withGraphile(
    limiter,
    (job) => job.payload.key,
    (data, { job }, permit) => limited(asked.get(job), permit, data, job.attempts - 1),
  );
  const tasks = {
    ours(payload, helpers) {
      asked.set(helpers.job, now());
      return ours(payload, helpers);
    },
    flexible: (payload, { job }) => orFail(payload, job.attempts - 1),
    /** One at a time, and no sooner than the limit's average: the jobs of a key are in a named queue. */
    async serial(payload, { job }) {
      const began = Date.now();
      await run(payload, job.attempts - 1, now());
      await sleep(windowMs / limit - (Date.now() - began));
    },
    keyed: (payload, { job }) => run(payload, job.attempts - 1, now()),
  };
  const runner = await runWorkers({
    pgPool: pool,
    logger: quiet,
    concurrency,
    pollInterval: 500,
    noHandleSignals: true,
    taskList: { fleet: tasks[mode] },
  });
  stop = () => runner.stop();
}

process.on("message", async () => {
  await stop();
  await pool.end();
  process.disconnect();
});
process.send("ready");
