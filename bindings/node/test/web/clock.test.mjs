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
    heard[next].hear(leader.now()[1], { database: "one", number: i });
    time += 2;
    const before = leader.now();
    leader = new LeaderClock(clocks[next], heard[next].now("one").us, 0);
    const [from, to] = leader.now();
    assert.ok(from <= time, `after ${i} leaders it is ${time} µs, and ${from} is shown`);
    assert.ok(to <= before[1] + 1_000);
  }
});

test("the time of the latest leader counts, though it is behind", { skip }, async () => {
  const { HeardTime } = await import("../../dist/web/clock.js");
  let us = 0;
  const heard = new HeardTime({ now: () => [us, us], after: () => () => {}, unixUs: 0 });
  heard.hear(5_000, { database: "one", number: 1 });
  // It has heard the one before it late, and does not know that.
  heard.hear(2_000, { database: "one", number: 2 });
  us = 100;
  heard.hear(2_050, { database: "one", number: 2 });
  // One that stood still.
  heard.hear(9_000, { database: "one", number: 1 });
  assert.deepEqual(heard.now("one"), { us: 2_100, number: 2 });
  assert.equal(heard.now("two"), null);
  heard.hear(7, { database: "two", number: 1 });
  assert.deepEqual([heard.now("one"), heard.now("two")], [null, { us: 7, number: 1 }]);
});

test("a leader's clock calls what is due of very many timers, and says when the next one is", { skip }, async () => {
  const { LeaderClock } = await import("../../dist/web/clock.js");
  let us = 0;
  const clock = new LeaderClock({ now: () => [us, us], after: () => () => {}, unixUs: 0 }, 0, 0);
  let called = 0;
  const stops = Array.from({ length: 200_000 }, (_, i) => clock.after(i < 1_000 ? 10 : 20 + i, () => called++));
  assert.equal(clock.run(), 10);
  us = 10_000;
  assert.deepEqual([clock.run(), called], [1_010, 1_000]);
  // One that was stopped is not due.
  stops[1_000]();
  us = 1_020_000;
  assert.deepEqual([clock.run(), called], [1, 1_000]);
});
