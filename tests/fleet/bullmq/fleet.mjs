// One run: worker processes, a full key, keys that are nearly idle, and the results.

import { execFileSync, fork } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Queue, QueueEvents } from "bullmq";
import { startRedis } from "../../../bindings/node/test/redis.mjs";

const EVIDENCE = join(import.meta.dirname, "../../../examples/fleet");
const COUNT = `import sys; sys.path.insert(0, sys.argv[1]); import evidence
for folder in sys.argv[3:]: print(evidence.most_in_any_window(evidence.read(folder), int(sys.argv[2])))`;

/** Returns the most starts of each folder that surely lie in one window. */
export function mostInAnyWindow(folders, windowMs) {
  const output = execFileSync("python3", ["-c", COUNT, EVIDENCE, String(windowMs * 1e6), ...folders], { encoding: "utf8" });
  return output.trim().split("\n").map(Number);
}

/** Asks each worker process for a number, and adds them up. */
async function sum(workers, question) {
  const answers = workers.map((worker) => once(worker, "message"));
  for (const worker of workers) worker.send(question);
  return (await Promise.all(answers)).reduce((all, [answer]) => all + answer, 0);
}

/**
 * Runs `jobs` of a full key at once, and `idleJobs` of each of four others one after the other at the same time.
 * `mode` is one of worker.mjs.
 */
export async function runFleet({ mode, jobs, idleJobs, limit, windowMs, jobMs, concurrency = 10, processes = 2, plant = false }) {
  const keys = idleJobs > 0 ? ["full", "a", "b", "c", "d"] : ["full"];
  const folder = fs.mkdtempSync(join(tmpdir(), "workglow-limit-fleet-"));
  for (const key of keys) fs.mkdirSync(`${folder}/starts/${key}`, { recursive: true });
  const redis = await startRedis();
  const connection = { host: "127.0.0.1", port: redis.port };
  const names = mode === "queues" ? keys.map((key) => `fleet-${key}`) : ["fleet"];
  const queues = names.map((name) => new Queue(name, { connection }));
  const queueOf = (key) => queues[mode === "queues" ? keys.indexOf(key) : 0];
  const events = names.map((name) => new QueueEvents(name, { connection }));
  const task = JSON.stringify({ mode, port: redis.port, folder, keys, limit, windowMs, jobMs, concurrency, plant });
  const workers = [];
  try {
    const ideal = (Math.ceil(jobs / limit) - 1) * windowMs;
    let [delays, over] = [0, 0];
    for (const one of events) {
      await one.waitUntilReady();
      one.on("delayed", () => delays++);
      for (const end of ["completed", "failed"]) one.on(end, () => over++);
    }
    for (let i = 0; i < processes; i++) workers.push(fork(join(import.meta.dirname, "worker.mjs"), [task]));
    await Promise.all(workers.map((worker) => once(worker, "message")));

    await queueOf("full").addBulk(Array.from({ length: jobs }, () => ({ name: "job", data: { key: "full" } })));
    const idle = keys.slice(1).flatMap((key) => Array(idleJobs).fill(key));
    for (const i of idle.keys()) {
      await sleep((0.8 * ideal) / idle.length);
      const key = keys[1 + (i % 4)];
      await queueOf(key).add("job", { key });
    }

    const total = jobs + idle.length;
    const deadline = Date.now() + 5 * ideal + 30_000;
    while (over < total && Date.now() < deadline) await sleep(100);
    // Each job was added by one process; the other processes are workers.
    const scripts = (await redis.scripts()) - total;
    const cpu = await sum(workers, "cpu");

    const ended = (await Promise.all(queues.map((queue) => queue.getJobs(["completed", "failed"], 0, -1)))).flat();
    const ran = fs.readFileSync(`${folder}/ran`, "utf8").trim().split("\n");
    const of = (full) => ended.filter((job) => (job.data.key === "full") === full && job.returnvalue !== null);
    const starts = of(true).map((job) => job.returnvalue.started);
    const order = of(true)
      .sort((a, b) => a.returnvalue.started - b.returnvalue.started)
      .map((job) => Number(job.id));
    const waits = of(false).map((job) => job.returnvalue.started - job.timestamp);
    const most = mostInAnyWindow(
      keys.map((key) => `${folder}/starts/${key}`),
      windowMs,
    );
    return {
      mode,
      total,
      completed: ended.filter((job) => job.finishedOn && job.failedReason === undefined).length,
      ran: ran.length,
      ranOnce: new Set(ran).size,
      overLimit: Math.max(...most) - limit,
      span: Math.max(...starts) - Math.min(...starts),
      ideal,
      delaysPerJob: delays / total,
      scriptsPerJob: scripts / total,
      mostDelays: Math.max(...ended.map((job) => job.attemptsStarted - job.attemptsMade)),
      attempts: Math.max(...ended.map((job) => job.attemptsMade)),
      idleWaits: waits.sort((a, b) => a - b),
      // How many younger jobs started before a job, at most.
      overtaken: Math.max(...order.map((id, i) => order.slice(0, i).filter((other) => other > id).length)),
      cpuPerJob: cpu / total,
      idleBegin: Math.min(...of(false).map((job) => job.returnvalue.started)),
      fullEnd: Math.max(...starts),
    };
  } finally {
    for (const worker of workers) {
      if (!worker.connected) continue;
      worker.send("stop");
      await once(worker, "exit");
    }
    await Promise.all([...queues, ...events].map((one) => one.close()));
    await redis.stop();
    fs.rmSync(folder, { recursive: true });
  }
}
