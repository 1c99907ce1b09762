// The short form of tenants.mjs: checks that must hold on any machine, however busy.

import assert from "node:assert/strict";
import { test } from "node:test";
import { SHARES, runTenants } from "./tenants.mjs";

test("tenants beside a whale have starts by their shares, over three processes", { timeout: 600_000 }, async (t) => {
  const limit = 20;
  const result = await runTenants({ jobs: 60, limit, windowMs: 1000 });
  t.diagnostic(JSON.stringify(result));
  assert.ok(result.over <= 0, `${result.over} over the limit`);
  assert.deepEqual([result.completed, result.ran, result.ranOnce], Array(3).fill(result.total));
  for (const [key, share] of Object.entries(SHARES)) {
    const due = share / 7;
    assert.ok(Math.abs(result.parts[key] - due) < 0.1, `${key} has ${result.parts[key]} of ${result.counted} starts instead of ${due}`);
    // The whale has 60 jobs, and may have one of seven starts.
    assert.ok(result.first[key].others <= 2 * limit, `${result.first[key].others} starts before the first of ${key}`);
  }
});
