// One worker process. It gets its task as JSON, reports that it is ready, and works until it is stopped.

import fs from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { Worker } from "bullmq";
import { RateLimiter, Store } from "workglow-limit";
import { withLimiter } from "workglow-limit/bullmq";

const { mode, port, folder, keys, limit, windowMs, jobMs, concurrency, plant } = JSON.parse(process.argv[2]);

const connection = { host: "127.0.0.1", port };
// Each write is one whole line.
const logs = Object.fromEntries(keys.map((key) => [key, fs.openSync(`${folder}/starts/${key}/worker-${process.pid}.log`, "a")]));

if (mode === "tenants") logs.asked = fs.openSync(`${folder}/asked`, "a");

/** The job. It records the interval of its start, on the clock of the machine: see examples/fleet/evidence.py. */
async function run(job, a) {
  const b = process.hrtime.bigint();
  const started = Date.now();
  fs.writeSync(logs[job.data.key], `${a} ${b}\n`);
  fs.appendFileSync(`${folder}/ran`, `${job.queueName} ${job.id}\n`);
  await sleep(jobMs);
  return { started };
}

/** The earliest time at which a worker asked for a job: `processedOn` is the clock just before, in whole ms. */
const fetched = (job) => process.hrtime.bigint() - BigInt(Date.now() + 1 - job.processedOn) * 1_000_000n;

/** A job that waits in its worker starts when its place is ready, and not when it asked. */
const notBefore = (asked, { readyAtHrtime: ready }) => (ready !== null && ready > asked ? ready : asked);

function openLimiter() {
  const store = new Store(plant ? "memory:" : `sqlite:${folder}/limits.db`);
  return new RateLimiter(store, "fleet", { maxExecutions: limit, windowSizeInSeconds: windowMs / 1000 });
}

const modes = {
  /** Ours: a budget for each key. */
  ours() {
    const asked = new WeakMap();
    const limited = withLimiter(
      openLimiter(),
      (job) => job.data.key,
      (job, token, signal, permit) => run(job, notBefore(asked.get(job), permit)),
    );
    const processor = (job, token, signal) => {
      asked.set(job, process.hrtime.bigint());
      return limited(job, token, signal);
    };
    return [new Worker("fleet", processor, { connection, concurrency })];
  },
  /** Ours: one budget that tenants share. */
  tenants() {
    const store = new Store(`sqlite:${folder}/limits.db`);
    const asked = new WeakMap();
    const limited = withLimiter(
      store.limiter("fleet", `${limit}/${windowMs}ms shared`),
      (job) => job.data.key,
      (job, token, signal, permit) => run(job, notBefore(asked.get(job), permit)),
    );
    const processor = (job, token, signal) => {
      asked.set(job, process.hrtime.bigint());
      fs.writeSync(logs.asked, `${job.id} ${Date.now()}\n`);
      return limited(job, token, signal);
    };
    return [new Worker("fleet", processor, { connection, concurrency })];
  },
  /** Ours: one budget. The queue is held while it is used up, for which the processor of the worker has to be ours. */
  held() {
    const limited = withLimiter(openLimiter(), null, (job, token, signal, permit) => run(job, notBefore(fetched(job), permit)));
    return [new Worker("fleet", limited, { connection, concurrency })];
  },
  /** BullMQ's limiter: one for the queue. */
  limiter: () => [
    new Worker("fleet", (job) => run(job, fetched(job)), {
      connection,
      concurrency,
      limiter: { max: limit, duration: windowMs },
    }),
  ],
  /** BullMQ's limiter with a queue, and a worker in each process, for each key. */
  queues: () =>
    keys.map(
      (key) =>
        new Worker(`fleet-${key}`, (job) => run(job, fetched(job)), {
          connection,
          concurrency,
          limiter: { max: limit, duration: windowMs },
        }),
    ),
};

const workers = modes[mode]();
for (const worker of workers) worker.on("error", (error) => console.error(error));
await Promise.all(workers.map((worker) => worker.waitUntilReady()));
const began = process.cpuUsage();
process.on("message", async (message) => {
  if (message === "cpu") {
    const { user, system } = process.cpuUsage(began);
    return process.send((user + system) / 1000);
  }
  await Promise.all(workers.map((worker) => worker.close()));
  process.disconnect();
});
process.send("ready");
