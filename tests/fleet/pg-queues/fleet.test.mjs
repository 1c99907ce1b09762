// The short form of the table: checks that must hold on any machine, however busy.

import assert from "node:assert/strict";
import { test } from "node:test";
import { runFleet } from "./fleet.mjs";

const work = { mode: "ours", jobs: 50, idleJobs: 6, limit: 10, windowMs: 1000, jobMs: 20 };

for (const queue of ["pg-boss", "graphile"]) {
  test(`${queue}: two processes keep the limit of each key, each job runs once, and a full key delays no other`, {
    timeout: 120_000,
  }, async (t) => {
    const result = await runFleet({ queue, ...work });
    assert.ok(result.overLimit <= 0, `${result.overLimit} over the limit`);
    assert.deepEqual([result.left, result.ran, result.ranOnce], [0, result.total, result.total]);
    assert.equal(result.attempts, 0);
    assert.ok(result.idleBegin < result.fullEnd, "jobs of other keys waited for the full one");
    t.diagnostic(`${result.span} ms from first to last start (ideal ${result.ideal}), at most ${result.outOfTurn} out of turn`);
  });

  test(`${queue}: a limit in each process is detected`, { timeout: 120_000 }, async () => {
    const result = await runFleet({ queue, ...work, plant: true });
    assert.ok(result.overLimit > 0, "the measurement does not detect a broken limit");
  });
}
