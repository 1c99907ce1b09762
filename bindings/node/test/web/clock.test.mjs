// The store's time when leaders change: no faster than time passes, however clocks are rounded.

import assert from "node:assert/strict";
import { test } from "node:test";
import { skip } from "./built.mjs";

test("the time of leaders never runs ahead, though their clocks are rounded differently", { skip }, async () => {
  const { HeardTime, LeaderClock } = await import("../../dist/web/clock.js");
  let time = 0;
  // The clocks of two programs, which began at different times: each shows whole milliseconds.
  const clocks = [250, 750].map((ahead) => ({
    now: () => {
      const from = Math.floor((time + ahead) / 1_000) * 1_000;
      return [from, from + 1_000];
    },
    after: () => () => {},
    unixUs: 0,
  }));
  const heard = clocks.map((clock) => new HeardTime(clock));
  let leader = new LeaderClock(clocks[0], 1_000, 0);
  for (let i = 1; i <= 2_000; i++) {
    const [next, at] = [i % 2, 1_000 * i];
    // It hears of the time just before its own clock moves on, and leads just after.
    time = at + (next === 1 ? 249 : 749);
    heard[next].hear(leader.now()[1]);
    time += 2;
    const before = leader.now();
    leader = new LeaderClock(clocks[next], heard[next].now(), 0);
    const [from, to] = leader.now();
    assert.ok(from <= time, `after ${i} leaders it is ${time} µs, and ${from} is shown`);
    assert.ok(to <= before[1] + 1_000);
  }
});
