// When jobs come back that were sent away without a place. Times are numbers here.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Backlog, Backlogs } from "../dist/cjs/backlog.js";

const denial = (retryAfter, resetAfter = 0, limit = 1) => ({ retryAfter, resetAfter, limit });

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
  const denial = { retryAfter: 2_000, resetAfter: 0, limit: 2, period: 1_000 };
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
