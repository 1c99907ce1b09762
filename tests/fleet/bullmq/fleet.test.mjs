// The short form of the table: checks that must hold on any machine, however busy.

import assert from "node:assert/strict";
import { test } from "node:test";
import { runFleet } from "./fleet.mjs";

const work = { mode: "ours", jobs: 50, idleJobs: 4, limit: 10, windowMs: 1000, jobMs: 20 };

test("two processes keep the limit of each key, each job runs once, and a full key delays no other", { timeout: 120_000 }, async (t) => {
  const result = await runFleet(work);
  assert.ok(result.overLimit <= 0, `${result.overLimit} over the limit`);
  assert.deepEqual([result.completed, result.ran, result.ranOnce], Array(3).fill(result.total));
  assert.equal(result.attempts, 1);
  assert.ok(result.mostDelays >= 1, "no job was limited");
  assert.ok(result.idleBegin < result.fullEnd, "jobs of other keys waited for the full one");
  // Not asserted: a worker also polls by time, and a job that is late for its place needs another one.
  t.diagnostic(`${result.scriptsPerJob.toFixed(1)} Redis scripts per job`);
});

test("a limit in each process is detected", { timeout: 120_000 }, async () => {
  const result = await runFleet({ ...work, plant: true });
  assert.ok(result.overLimit > 0, "the measurement does not detect a broken limit");
});
