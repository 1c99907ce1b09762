// The short form: our limit holds, and a broken limit is detected.

import assert from "node:assert/strict";
import { test } from "node:test";
import { runFleet } from "./fleet.mjs";

const SHORT = { jobs: 15, limit: 10, windowMs: 1_000 };

for (const mode of ["ours", "ours-wait", "ours-storage"]) {
  test(`${mode}: the limit holds, and every job runs once`, async () => {
    const { total, starts, most, ran, ranOnce, asked } = await runFleet({ mode, ...SHORT });
    assert.deepEqual({ starts, ran, ranOnce }, { starts: total, ran: total, ranOnce: total });
    assert.ok(most <= SHORT.limit, `${most} in one window`);
    if (mode === "ours-wait") assert.equal(asked, total, "a waiting worker was denied");
    // The queue wakes denied workers immediately. If they asked then, each would ask some hundred times a second.
    assert.ok(asked < 10 * total, `asked ${asked} times for ${total} jobs`);
  });
}

test("a process that is killed while its workers wait takes no units with it", async () => {
  const { total, starts, most, ran, ranOnce } = await runFleet({ mode: "ours-wait", ...SHORT, jobs: 25, kill: 5 });
  assert.deepEqual({ ran, ranOnce }, { ran: total, ranOnce: total });
  assert.ok(starts >= total + 5, `${starts} starts, ${total} of them not of the killed process`);
  assert.ok(most <= SHORT.limit, `${most} in one window`);
});

test("a limit in each process is detected", async () => {
  const { most } = await runFleet({ mode: "ours", ...SHORT, plant: true });
  assert.ok(most > SHORT.limit, `${most} in one window`);
});
