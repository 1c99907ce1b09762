// When jobs come back that were sent away without a place. Times are numbers here.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Backlog, Backlogs } from "../dist/cjs/backlog.js";

const denial = (retryAfter, resetAfter = 0, limit = 1) => ({ retryAfter, resetAfter, limit, deniedBy: "limit" });

test("the first job comes back when units may be free, and never at once", () => {
  assert.equal(new Backlog().append(1, 1000, denial(500)), 1500);
  assert.equal(new Backlog().append(1, 1000, denial(0)), 1010);
});

test("jobs come back one after the other, no slower than the limit allows", () => {
  const backlog = new Backlog();
  let last = backlog.append(1, 0, denial(100, 100, 1));
  for (let i = 1; i < 100; i++) {
    const next = backlog.append(1, i, denial(100, 100, 1));
    assert.ok(next > last && next <= last + 100);
    last = next;
  }
});

test("jobs come back somewhat faster than starts are granted, so most come in time and none is delayed", () => {
  const backlog = new Backlog();
  const due = Array.from({ length: 200 }, () => backlog.append(1, 0, denial(10)));
  let [starts, visits] = [0, 0];
  // One start every 50 ms, by the first job that comes.
  for (let free = 50; due.length > 0; ) {
    due.sort((a, b) => a - b);
    const now = due.shift();
    visits++;
    if (now < free) {
      due.push(backlog.append(1, now, denial(10)));
    } else {
      backlog.grant(1, now);
      starts++;
      free = Math.max(free + 50, now);
      assert.ok(now < 1.3 * 50 * (starts + 10), `start ${starts} at ${now}`);
    }
  }
  assert.equal(starts, 200);
  assert.ok(visits < 200 * 5, `${visits} visits for 200 starts`);
});

test("jobs that wait for a place come back one after the other, half a window before their turn at the earliest", () => {
  const backlog = new Backlog();
  const denial = { retryAfter: 2_000, resetAfter: 0, limit: 2, deniedBy: "limit", period: 1_000 };
  const back = Array.from({ length: 5 }, () => backlog.append(1, 0, denial));
  assert.deepEqual(back, [1_500, 1_505, 2_500, 2_505, 3_500]);
  // Jobs that came back have left the backlog.
  assert.equal(backlog.append(1, 2_500, denial), 5_000);
  assert.equal(new Backlog().append(1, 0, { ...denial, retryAfter: 100 }), 10, "never at once");
});

test("an empty backlog starts over", () => {
  const backlog = new Backlog();
  backlog.append(1, 0, denial(10));
  backlog.grant(1, 100);
  backlog.append(1, 10_000_000, denial(10));
  assert.ok(backlog.append(1, 10_000_000, denial(10)) <= 10_000_012);
});

test("each key has its own backlog, and idle keys are forgotten", () => {
  const backlogs = new Backlogs();
  assert.equal(backlogs.append("a", 1, 0, denial(100)), 100);
  assert.equal(backlogs.append("b", 1, 0, denial(100)), 100);
  assert.ok(backlogs.append("a", 1, 0, denial(100)) > 100);
  for (let i = 0; i < 10_000; i++) backlogs.append(`key ${i}`, 1, i * 1000, denial(10));
  assert.equal(backlogs.size <= 128, true);
  backlogs.grant("nobody", 1, 0);
  assert.equal(backlogs.append("a", 1, 0, denial(100)), 100, "it was forgotten");
});

test("jobs that are gone are forgotten, as if they had never asked", () => {
  const backlog = new Backlog();
  const all = [];
  for (let i = 0; i < 100; i++) {
    const at = backlog.append(1, 0, { ...denial(60_000), period: 60_000 });
    backlog.sendAway(`${i}`, { weight: 1, at, place: i < 3 ? `place ${i}` : null }, 0);
    all.push(`${i}`);
  }
  assert.equal(backlog.someAway(0, 8).length, 8);
  assert.deepEqual([backlog.someAway(0, 8)[0], backlog.someAway(0, 8)[7]], ["0", "99"]);
  assert.deepEqual(backlog.forget(["nobody"], 0), []);
  assert.deepEqual(backlog.forget(all.slice(1, 99), 0), ["place 1", "place 2"]);
  assert.deepEqual(backlog.allAway(0), ["0", "99"]);
  backlog.comeBack("99");
  assert.deepEqual([backlog.someAway(0, 8), backlog.forget(["0"], 0)], [["0"], ["place 0"]]);
  assert.ok(backlog.isEmpty(0));
  assert.equal(backlog.append(1, 0, denial(500)), 500);
});

test("of several limits, the units at the one that denied are counted", () => {
  const of = (deniedBy) => ({ ...denial(5_000, 0, 10), deniedBy });
  const weight = { tokens: 40 };
  const after = (deniedBy) => {
    const backlog = new Backlog();
    backlog.append(1, 0, of(deniedBy));
    backlog.grant(weight, 1000);
    const first = backlog.append(weight, 1000, of(deniedBy));
    return backlog.append(weight, 1000, of(deniedBy)) - first;
  };
  // 0.75 of a second for 40 units and the 10 of the limit, or for one and the 10.
  assert.equal(after("llm/tokens"), (750 / 50) * 40);
  assert.equal(after("tokens"), (750 / 50) * 40);
  assert.ok(Math.abs(after("llm/requests") - 750 / 11) < 1e-6);
  assert.ok(Math.abs(after("llm/more-tokens") - 750 / 11) < 1e-6);
});

test("jobs that are due may be on their way, so they are not looked for", () => {
  const backlog = new Backlog();
  for (let i = 0; i < 10_000; i++) backlog.sendAway(`${i}`, { weight: 1, at: i + 1, place: null }, i);
  assert.deepEqual([backlog.someAway(10_000, 8), backlog.allAway(10_000)], [[], []]);
  assert.ok(
    backlog.forget(
      Array.from({ length: 10_000 }, (_, i) => `${i}`),
      10_000,
    ).length === 0,
  );
});
