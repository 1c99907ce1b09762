// When those come back who were sent away without a place. Times are numbers here.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Line, Lines } from "../dist/cjs/line.js";

const denial = (retryAfter, resetAfter = 0, limit = 1) => ({ retryAfter, resetAfter, limit });

test("the first comes back when there may be room, and never at once", () => {
  assert.equal(new Line().append(1, 1000, denial(500)), 1500);
  assert.equal(new Line().append(1, 1000, denial(0)), 1010);
});

test("each comes back after the one before it, no slower than the limit allows", () => {
  const line = new Line();
  let last = line.append(1, 0, denial(100, 100, 1));
  for (let i = 1; i < 100; i++) {
    const next = line.append(1, i, denial(100, 100, 1));
    assert.ok(next > last && next <= last + 100);
    last = next;
  }
});

test("a backlog comes back somewhat faster than starts are granted, so that most come in time and none is kept", () => {
  const line = new Line();
  const due = Array.from({ length: 200 }, () => line.append(1, 0, denial(10)));
  let [starts, visits] = [0, 0];
  // One start each 50 ms, by whoever is there first.
  for (let free = 50; due.length > 0; ) {
    due.sort((a, b) => a - b);
    const now = due.shift();
    visits++;
    if (now < free) {
      due.push(line.append(1, now, denial(10)));
    } else {
      line.grant(1, now);
      starts++;
      free = Math.max(free + 50, now);
      assert.ok(now < 1.3 * 50 * (starts + 10), `start ${starts} at ${now}`);
    }
  }
  assert.equal(starts, 200);
  assert.ok(visits < 200 * 5, `${visits} visits for 200 starts`);
});

test("who waits for a place comes back half a window before its turn at the earliest, one after the other", () => {
  const line = new Line();
  const denial = { retryAfter: 2_000, resetAfter: 0, limit: 2, period: 1_000 };
  const back = Array.from({ length: 5 }, () => line.append(1, 0, denial));
  assert.deepEqual(back, [1_500, 1_505, 2_500, 2_505, 3_500]);
  // Those that came back are in it no longer.
  assert.equal(line.append(1, 2_500, denial), 5_000);
  assert.equal(new Line().append(1, 0, { ...denial, retryAfter: 100 }), 10, "never at once");
});

test("a line that was empty begins anew", () => {
  const line = new Line();
  line.append(1, 0, denial(10));
  line.grant(1, 100);
  line.append(1, 10_000_000, denial(10));
  assert.ok(line.append(1, 10_000_000, denial(10)) <= 10_000_012);
});

test("keys have lines of their own, and idle ones are forgotten", () => {
  const lines = new Lines();
  assert.equal(lines.append("a", 1, 0, denial(100)), 100);
  assert.equal(lines.append("b", 1, 0, denial(100)), 100);
  assert.ok(lines.append("a", 1, 0, denial(100)) > 100);
  for (let i = 0; i < 10_000; i++) lines.append(`key ${i}`, 1, i * 1000, denial(10));
  assert.equal(lines.size <= 128, true);
  lines.grant("nobody", 1, 0);
  assert.equal(lines.append("a", 1, 0, denial(100)), 100, "it was forgotten");
});
