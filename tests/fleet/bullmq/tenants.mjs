// A whale and three tenants on one shared limit: who starts when.
//
//     node tenants.mjs [JOBS]     the whale's, 300 by default
//
// Without tenants, the queue is held while the limit is full, which shows the throughput.

import { fork } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { Queue, QueueEvents } from "bullmq";
import { Store } from "workglow-limit";
import { startRedis } from "../../../bindings/node/test/redis.mjs";
import { mostInAnyWindow } from "./fleet.mjs";

export const SHARES = { whale: 1, acme: 1, birch: 3, cedar: 2 };

/**
 * Adds `jobs` of the whale at once, and then for each tenant as many as start while the whale has half of its own. `mode` is one of
 * worker.mjs.
 */
export async function runTenants({ mode = "tenants", jobs, limit, windowMs, jobMs = 5, concurrency = 8, processes = 3 }) {
  const folder = fs.mkdtempSync(join(tmpdir(), "workglow-limit-fleet-"));
  const keys = Object.keys(SHARES);
  for (const key of keys) fs.mkdirSync(`${folder}/starts/${key}`, { recursive: true });
  const redis = await startRedis();
  const connection = { host: "127.0.0.1", port: redis.port };
  const queue = new Queue("fleet", { connection });
  const events = new QueueEvents("fleet", { connection });
  const task = JSON.stringify({ mode, port: redis.port, folder, keys, limit, windowMs, jobMs, concurrency });
  const store = new Store(`sqlite:${folder}/limits.db`);
  const workers = [];
  try {
    let over = 0;
    let delays = 0;
    await events.waitUntilReady();
    events.on("delayed", () => delays++);
    for (const end of ["completed", "failed"]) events.on(end, () => over++);
    if (mode === "tenants") {
      await store.limiter("fleet", `${limit}/${windowMs}ms shared`).open();
      for (const [key, share] of Object.entries(SHARES)) await store.share("fleet", key, share);
    }
    for (let i = 0; i < processes; i++) workers.push(fork(join(import.meta.dirname, "worker.mjs"), [task]));
    await Promise.all(workers.map((worker) => once(worker, "message")));
    const of = Object.fromEntries(keys.map((key) => [key, key === "whale" ? jobs : Math.floor(jobs / 2) * SHARES[key]]));
    for (const key of keys) await queue.addBulk(Array.from({ length: of[key] }, () => ({ name: "job", data: { key } })));
    const total = keys.reduce((sum, key) => sum + of[key], 0);
    const ideal = (Math.ceil(total / limit) - 1) * windowMs;
    const deadline = Date.now() + 4 * ideal + 60_000;
    while (over < total && Date.now() < deadline) await sleep(100);
    const scripts = (await redis.scripts()) - total;
    const ended = await queue.getJobs(["completed", "failed"], 0, -1);
    const asked = new Map();
    if (mode === "tenants") {
      for (const line of fs.readFileSync(`${folder}/asked`, "utf8").trim().split("\n")) {
        const [id, at] = line.split(" ");
        if (!asked.has(id)) asked.set(id, Number(at));
      }
    }
    const starts = ended
      .filter((job) => job.returnvalue !== null)
      .map((job) => ({ key: job.data.key, at: job.returnvalue.started, asked: asked.get(job.id) ?? 0 }))
      .sort((a, b) => a.at - b.at);
    const ran = fs.readFileSync(`${folder}/ran`, "utf8").trim().split("\n");
    // One log of all: the budget is one.
    const all = `${folder}/all`;
    fs.mkdirSync(all);
    for (const key of keys)
      for (const file of fs.readdirSync(`${folder}/starts/${key}`))
        fs.copyFileSync(`${folder}/starts/${key}/${file}`, `${all}/${key}-${file}`);
    // From when all tenants wait until the first of them has no more jobs.
    const begin =
      Math.max(...keys.map((key) => Math.min(...starts.filter((start) => start.key === key).map((start) => start.asked)))) + windowMs;
    const end = Math.min(...keys.map((key) => starts.findLast((start) => start.key === key)?.at ?? 0));
    const counted = starts.filter(({ at }) => at >= begin && at < end);
    return {
      total,
      completed: ended.filter((job) => job.finishedOn && job.failedReason === undefined).length,
      ranOnce: new Set(ran).size,
      ran: ran.length,
      over: mostInAnyWindow([all], windowMs)[0] - limit,
      span: starts.at(-1).at - starts[0].at,
      ideal,
      first: Object.fromEntries(
        keys.map((key) => {
          const first = starts.find((start) => start.key === key);
          const since = Math.min(...starts.filter((start) => start.key === key).map((start) => start.asked));
          return [key, { wait: first.at - since, others: starts.filter(({ at }) => at > since && at < first.at).length }];
        }),
      ),
      counted: counted.length,
      parts: Object.fromEntries(
        keys.map((key) => [key, counted.filter((start) => start.key === key).length / Math.max(1, counted.length)]),
      ),
      delaysPerJob: delays / total,
      scriptsPerJob: scripts / total,
    };
  } finally {
    for (const worker of workers) {
      if (!worker.connected) continue;
      worker.send("stop");
      await once(worker, "exit");
    }
    await store.close();
    await Promise.all([queue, events].map((one) => one.close()));
    await redis.stop();
    fs.rmSync(folder, { recursive: true });
  }
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) {
  const jobs = Number(process.argv[2] ?? 300);
  for (const mode of ["tenants", "held"]) console.log(mode, await runTenants({ mode, jobs, limit: 20, windowMs: 1000 }));
  process.exit();
}
