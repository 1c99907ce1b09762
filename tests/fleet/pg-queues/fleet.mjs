// One run: worker processes, a full key, keys that are nearly idle, and the results.

import assert from "node:assert/strict";
import { execFileSync, fork } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { makeWorkerUtils } from "graphile-worker";
import pg from "pg";
import { startPostgres } from "../../../bindings/node/test/postgres.mjs";
import { pgBoss, quiet } from "./queues.mjs";

const EVIDENCE = join(import.meta.dirname, "../../../examples/fleet");
const COUNT = `import sys; sys.path.insert(0, sys.argv[1]); import evidence
for folder in sys.argv[3:]: print(evidence.most_in_any_window(evidence.read(folder), int(sys.argv[2])))`;

/** Returns the most starts of each folder that surely lie in one window. */
function mostInAnyWindow(folders, windowMs) {
  const output = execFileSync("python3", ["-c", COUNT, EVIDENCE, String(windowMs * 1e6), ...folders], { encoding: "utf8" });
  return output.trim().split("\n").map(Number);
}

/** Adds jobs to either queue, and returns those that have not ended. */
const queues = {
  async "pg-boss"(host, mode) {
    const boss = await pgBoss(host, 4);
    await boss.createQueue("fleet", { retryLimit: 10_000, retryDelay: 1 });
    // Of several jobs within a second it keeps one, and drops the others.
    const options = mode === "throttled" ? { singletonSeconds: 1 } : {};
    return {
      add: (jobs) =>
        boss.insert(
          "fleet",
          jobs.map((data) => ({ data, ...options, singletonKey: mode === "throttled" ? data.key : undefined })),
        ),
      async waiting() {
        const { rows } = await boss.getDb().executeSql("SELECT count(*) FROM pgboss.job WHERE name = 'fleet' AND state < 'completed'", []);
        return Number(rows[0].count);
      },
      close: () => boss.stop({ graceful: false }),
    };
  },
  async graphile(host, mode) {
    const pool = new pg.Pool({ host, user: "postgres", database: "postgres" });
    pool.on("error", () => {});
    pool.on("connect", (client) => client.on("error", () => {}));
    const utils = await makeWorkerUtils({ pgPool: pool, logger: quiet });
    await utils.migrate();
    // A named queue runs one job at a time; of the jobs of a key it keeps the last.
    const specOf = { serial: ({ key }) => ({ queueName: key }), keyed: ({ key }) => ({ jobKey: key }) }[mode] ?? (() => ({}));
    return {
      async add(jobs) {
        for (const payload of jobs) await utils.addJob("fleet", payload, { maxAttempts: 10_000, ...specOf(payload) });
      },
      async waiting() {
        const { rows } = await pool.query("SELECT count(*) FROM graphile_worker.jobs");
        return Number(rows[0].count);
      },
      async close() {
        await utils.release();
        await pool.end();
      },
    };
  },
};

/**
 * Runs `jobs` of a full key at once, and `idleJobs` of each of two others one after the other at the same time, in the queue "pg-boss"
 * or "graphile". `mode` is one of worker.mjs. With `plant` each process has a limit of its own, which must be detected.
 */
export async function runFleet({ queue, mode, jobs, idleJobs, limit, windowMs, jobMs, concurrency = 10, processes = 2, plant = false }) {
  const keys = ["full", "a", "b"];
  const folder = fs.mkdtempSync(join(tmpdir(), "workglow-limit-fleet-"));
  for (const key of keys) fs.mkdirSync(`${folder}/starts/${key}`, { recursive: true });
  fs.writeFileSync(`${folder}/ran`, "");
  const postgres = await startPostgres();
  const [, host] = /host=([^&]*)/.exec(postgres.url);
  const task = JSON.stringify({ queue, mode, host, folder, keys, limit, windowMs, jobMs, concurrency, plant });
  const workers = [];
  let end;
  try {
    end = await queues[queue](host, mode);
    // One after the other, as the first may have to make a table.
    for (let i = 0; i < processes; i++) {
      workers.push(fork(join(import.meta.dirname, "worker.mjs"), [task]));
      await Promise.race([once(workers[i], "message"), once(workers[i], "exit").then(() => assert.fail("a worker ended"))]);
    }
    const ideal = (Math.ceil(jobs / limit) - 1) * windowMs;
    await end.add(Array.from({ length: jobs }, (_, i) => ({ key: "full", i })));
    const idle = keys.slice(1).flatMap((key) => Array(idleJobs).fill(key));
    const sent = [];
    for (const i of idle.keys()) {
      await sleep((0.8 * ideal) / idle.length);
      sent.push(Date.now());
      await end.add([{ key: keys[1 + (i % 2)], i }]);
    }

    const deadline = Date.now() + 5 * ideal + 30_000;
    while ((await end.waiting()) > 0 && Date.now() < deadline) await sleep(100);

    const ran = fs
      .readFileSync(`${folder}/ran`, "utf8")
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line));
    const full = ran.filter(({ key }) => key === "full");
    const others = ran.filter(({ key }) => key !== "full");
    const most = mostInAnyWindow(
      keys.map((key) => `${folder}/starts/${key}`),
      windowMs,
    );
    return {
      total: jobs + idle.length,
      left: await end.waiting(),
      ran: ran.length,
      ranOnce: new Set(ran.map(({ key, i }) => `${key} ${i}`)).size,
      overLimit: Math.max(...most) - limit,
      most: Math.max(...most),
      span: full.at(-1).at - full[0].at,
      ideal,
      attempts: Math.max(...ran.map(({ attempts }) => attempts)),
      outOfTurn: Math.max(...full.map(({ i }, rank) => Math.abs(i - rank))),
      idleWaits: others.map(({ i, at }) => at - sent[i]).sort((a, b) => a - b),
      idleBegin: Math.min(...others.map(({ at }) => at)),
      fullEnd: full.at(-1).at,
    };
  } finally {
    for (const worker of workers) {
      if (!worker.connected) continue;
      worker.send("stop");
      await once(worker, "exit");
    }
    await end?.close();
    await postgres.stop();
    fs.rmSync(folder, { recursive: true });
  }
}
