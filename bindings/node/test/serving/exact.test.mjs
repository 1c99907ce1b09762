// Several processes of one server share one store, and never exceed the limit.

import assert from "node:assert/strict";
import cluster from "node:cluster";
import { once } from "node:events";
import { join } from "node:path";
import { test } from "node:test";
import { Store } from "workglow-limit";
import { directory, mostInAnyWindow, settle } from "../helpers.mjs";
import { startRedis } from "../redis.mjs";

const PROCESSES = 3;
const CLIENTS = 12;
const LIMIT = 40;
const WINDOW = 1; // s

const stores = {
  sqlite: (t) => `sqlite:${directory(t)}/limits.db`,
  redis: async (t) => {
    const redis = await startRedis();
    t.after(() => redis.stop());
    return redis.url;
  },
};

for (const [name, urlOf] of Object.entries(stores)) {
  test(`${name}: a cluster never admits more than the limit`, { timeout: 120_000 }, async (t) => {
    const url = await urlOf(t);
    cluster.setupPrimary({ exec: join(import.meta.dirname, "server.mjs"), args: [url, LIMIT, WINDOW] });
    const workers = Array.from({ length: PROCESSES }, () => cluster.fork());
    t.after(async () => {
      for (const worker of workers) worker.process.kill("SIGKILL");
      await Promise.all(workers.map((worker) => worker.isDead() || once(worker, "exit")));
    });
    const [[{ port }]] = await Promise.all(workers.map((worker) => once(worker, "listening")));

    const starts = [];
    const pids = new Set();
    let refused = 0;
    // On a busy machine it takes longer until all processes have had a part, and one had to refuse.
    const isEnough = () => starts.length >= 4 * LIMIT && pids.size === PROCESSES && refused > 0;
    const hammer = async () => {
      while (!isEnough()) {
        const response = await fetch(`http://127.0.0.1:${port}/`);
        const [pid, a, b] = (await response.text()).split(" ");
        if (response.status === 200) starts.push([BigInt(a), BigInt(b)]) && pids.add(pid);
        else {
          assert.equal(response.status, 429);
          refused++;
          await settle();
        }
      }
    };
    await Promise.all(Array.from({ length: CLIENTS }, hammer));

    assert.ok(mostInAnyWindow(starts, BigInt(WINDOW * 1e9)) <= LIMIT);
    const wide = new Store(url).limiter("wide");
    const { remaining } = await wide.peekAsync({ key: "k" });
    assert.equal(4096 - remaining, starts.length, "a refusal by one limit took units of another");
  });
}
