// One process: a JobQueueServer with jobs of its own. It gets its task as JSON, reports that it is ready, begins when it is started, and
// reports the results.

import fs from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import {
  InMemoryQueueStorage,
  InMemoryRateLimiterStorage,
  Job,
  JobQueueClient,
  JobQueueServer,
  RateLimiter as TheirRateLimiter,
} from "@workglow/job-queue";
import { RateLimiter, Store } from "workglow-limit";
import { WorkglowRateLimiterStorage, toWorkglow } from "workglow-limit/workglow";

// Workglow expects it, and Node has it from version 22.
Promise.withResolvers ??= () => {
  let resolve, reject;
  const promise = new Promise((...both) => ([resolve, reject] = both));
  return { promise, resolve, reject };
};

const { mode, folder, jobs, limit, windowMs, jobMs, workers, plant, quiet } = JSON.parse(process.argv[2]);

const policy = { maxExecutions: limit, windowSizeInSeconds: windowMs / 1000 };
const store = new Store(plant ? "memory:" : `sqlite:${folder}/limits.db`);
const ours = () => new RateLimiter(store, "fleet", policy);
const theirs = (storage, backoff) => new TheirRateLimiter(storage, "fleet", { ...policy, ...backoff });

const modes = {
  ours: () => toWorkglow(ours()),
  "ours-wait": () => toWorkglow(ours(), { wait: "5s" }),
  "ours-storage": () => theirs(new WorkglowRateLimiterStorage(store), { initialBackoffDelay: 1, maxBackoffDelay: 2 }),
  "ours-storage-backoff": () => theirs(new WorkglowRateLimiterStorage(store)),
  memory: () => theirs(new InMemoryRateLimiterStorage()),
  async sqlite() {
    const { Sqlite } = await import("@workglow/sqlite/storage");
    const { SqliteRateLimiterStorage } = await import("@workglow/sqlite/job-queue");
    await Sqlite.init();
    const storage = new SqliteRateLimiterStorage(new Sqlite.Database(`${folder}/theirs.db`));
    await storage.migrate();
    return theirs(storage);
  },
};

const limiter = await modes[mode]();
const log = fs.openSync(`${folder}/starts/worker-${process.pid}.log`, "a");
let asked = 0;
const tryAcquire = limiter.tryAcquire.bind(limiter);
/** Records the interval of each start, on the clock of the machine: see examples/fleet/evidence.py. */
limiter.tryAcquire = async () => {
  asked++;
  const before = process.hrtime.bigint();
  const token = await tryAcquire();
  if (token !== null) fs.writeSync(log, `${token.readyAtHrtime ?? before} ${process.hrtime.bigint()}\n`);
  return token;
};

const ran = [];
class Work extends Job {
  async execute({ i }) {
    ran.push(i);
    await sleep(jobMs);
    return {};
  }
}

/** A queue that does not report its changes, as those in databases do not. */
class QuietQueueStorage extends InMemoryQueueStorage {
  subscribeToChanges() {
    throw new Error("not supported");
  }
}

const storage = new (quiet ? QuietQueueStorage : InMemoryQueueStorage)("fleet");
const server = new JobQueueServer(Work, { storage, queueName: "fleet", limiter, workerCount: workers });
const client = new JobQueueClient({ storage, queueName: "fleet" });
client.attach(server);
const handles = [];
for (let i = 0; i < jobs; i++) handles.push(await client.send({ i }));

process.once("message", async () => {
  const cpu = process.cpuUsage();
  await server.start();
  await Promise.all(handles.map((handle) => handle.waitFor()));
  await server.stop();
  const { user, system } = process.cpuUsage(cpu);
  process.send({ ran: ran.length, ranOnce: new Set(ran).size, asked, cpuMs: (user + system) / 1e3 });
  process.disconnect();
});
process.send("ready");
