// Limits the jobs of any queue, here of the simplest possible one.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { ConcurrencyLimiter, RateLimiter, Store } from "workglow-limit";
import { limitJob } from "workglow-limit/job";

/** A limit for each test. */
const limit = (max, seconds) => new RateLimiter(new Store("memory:"), "limit", { maxExecutions: max, windowSizeInSeconds: seconds });

/** Hands out a job again each time it is delayed, and returns what happened. */
async function work(limiter, key, options = {}) {
  const delays = [];
  let place = null;
  for (;;) {
    const came = place;
    const result = await limitJob(limiter, key, (permit) => ({ started: permit.started, placed: permit.readyAt !== null }), {
      ...options,
      place: came,
      delay(wait, text) {
        delays.push({ wait, hasPlace: text !== null });
        place = text;
        return sleep(wait, "sent away");
      },
    });
    if (result !== "sent away") return { ...result, delays };
  }
}

test("a job starts now, waits a moment, or is delayed once and starts with its place", async () => {
  const limiter = limit(1, 6); // If the second job began when this is nearly over, it would not be delayed.
  assert.deepEqual(await work(limiter, "k"), { started: true, placed: false, delays: [] });
  // A long grace, so that a busy machine is not late.
  const options = { grace: "10s" };
  const { started, placed, delays } = await work(limiter, "k", options);
  assert.deepEqual([started, placed], [true, true]);
  assert.equal(delays.length, 1);
  assert.ok(Number.isInteger(delays[0].wait) && delays[0].hasPlace);
  const held = await work(limiter, "k", { ...options, hold: "10s" });
  assert.deepEqual(held, { started: true, placed: true, delays: [] }, "it waited in the worker");
});

test("the result or error of delay is passed on, and a place that could not leave is freed", async () => {
  const limiter = limit(1, 600);
  const permit = limiter.tryAcquire();
  const error = new Error("the queue is gone");
  const delay = () => Promise.reject(error);
  await assert.rejects(
    limitJob(limiter, null, () => assert.fail("it ran"), { delay }),
    error,
  );
  permit.cancel();
  assert.ok(limiter.tryAcquire(), "the place was not freed");
});

test("a place is used for one start, and an invalid place is ignored", async () => {
  const limiter = limit(1, 600);
  const other = limit(1, 600);
  assert.ok(other.tryAcquire());
  const void_ = other.reserve().toText();
  for (const place of [void_, "", "wgl1.x", "x".repeat(5_000)]) {
    const result = await limitJob(limiter, `key ${place.slice(0, 9)}`, () => "ran", { place, delay: () => "sent away" });
    assert.equal(result, "ran");
  }
  limiter.tryAcquire({ key: "k" });
  const places = [];
  const delay = (wait, place) => void places.push(place);
  await limitJob(limiter, "k", () => assert.fail("it ran"), { delay });
  await limitJob(limiter, "k", () => assert.fail("it ran"), { delay, place: places[0] });
  assert.deepEqual([places.length, places[1]], [2, places[0]], "a job that comes early is delayed with the same place");
});

test("jobs beyond all places come back in turn, and each starts once", { timeout: 60_000 }, async () => {
  const limiter = limit(5, 0.4);
  const starts = await Promise.all(Array.from({ length: 60 }, () => work(limiter, "k")));
  assert.ok(starts.every(({ started }) => started));
  assert.ok(
    starts.some(({ delays }) => delays.some(({ hasPlace }) => !hasPlace)),
    "there were places for all",
  );
});

test("without places, a delayed job asks again", async () => {
  const limiter = new ConcurrencyLimiter(1);
  const held = limiter.tryAcquire();
  const delays = [];
  const options = { hold: 0, delay: (wait, place) => delays.push([wait > 0, place]) };
  await limitJob(limiter, "", () => assert.fail("it ran"), options);
  assert.deepEqual(delays, [[true, null]]);
  held.complete();
  assert.equal(await limitJob(limiter, "", () => "ran", options), "ran");
  assert.ok(limiter.tryAcquire(), "its permit did not complete");
});

test("a job charges each part for itself, at once and with its place", async () => {
  const limiter = new Store("memory:").limiter("llm", "tokens: 10/6s + tenant: 5/1h");
  const start = { weight: { tokens: 7 }, grace: "10s", hold: 0 };
  assert.equal((await work(limiter, { tenant: "acme" }, start)).delays.length, 0);
  const { started, delays } = await work(limiter, { tenant: "other" }, start);
  assert.deepEqual([started, delays.length, delays[0].hasPlace], [true, 1, true], "its tokens are the scarce part");
  for (const tenant of ["acme", "other"]) assert.equal(limiter.decide({ key: { tenant }, weight: { tenant: 4 } }).admitted, true, tenant);
  assert.equal(limiter.decide({ key: { tenant: "acme" } }).deniedBy, "llm/tenant");
  assert.equal((await work(limiter, { tenant: "third" }, { ...start, hold: "10s" })).delays.length, 0, "it waited in the worker");
});

test("jobs of a full part with its own key are sent away, and those with others start", async () => {
  const limiter = new Store("memory:").limiter("llm", "tokens: 100/1h + tenant: 1/1h");
  const delay = () => "sent away";
  const run = (tenant, tokens = 1) => limitJob(limiter, { tenant }, () => "ran", { weight: { tokens }, delay, hold: 0 });
  const answers = [];
  for (const tenant of ["a", "a", "b", null, "a"]) answers.push(await run(tenant));
  assert.deepEqual(answers, ["ran", "sent away", "ran", "ran", "sent away"]);
  assert.equal(await run("c", 97), "ran");
});

test("an error of the job is thrown, and its start has ended", async () => {
  const limiter = new ConcurrencyLimiter(1);
  const error = new Error("mine");
  await assert.rejects(
    limitJob(limiter, null, () => Promise.reject(error), { delay: () => {} }),
    error,
  );
  assert.ok(limiter.tryAcquire());
});

test("invalid input is named, and nothing is asked", async () => {
  const limiter = limit(1, 600);
  const delay = () => {};
  const bad = [
    [[{}, "", () => {}, { delay }], /^limiter is an object: expected a limiter/],
    [[limiter, 5, () => {}, { delay }], /^key is 5: expected a string/],
    [[limiter, "", "job", { delay }], /^job is "job": expected a function/],
    [[limiter, "", () => {}, {}], /^delay is undefined: expected a function/],
    [[limiter, "", () => {}, undefined], /^options is undefined/],
    [[limiter, "", () => {}, { delay, place: 5 }], /^place is 5: expected the text/],
    [[limiter, "", () => {}, { delay, weight: 0.5 }], /^weight is 0.5: expected a whole number/],
    [[limiter, "", () => {}, { delay, weight: { tokens: 0.5 } }], /^weight is 0.5: expected a whole number.* for part "tokens"/],
    [[limiter, { tenant: 5 }, () => {}, { delay }], /^key is 5: expected a string for part "tenant"/],
    [[limiter, ["acme"], () => {}, { delay }], /^key is an array: expected a string, or an object/],
    [[limiter, { tenant: "acme" }, () => {}, { delay }], /^part is "tenant"/],
    [[limiter, "", () => {}, { delay, hold: -1 }], /^hold is -1/],
    [[limiter, "", () => {}, { delay, grace: "soon" }], /^grace is "soon"/],
    [[limiter, "", () => {}, { delay, wait: 1 }], /wait/],
  ];
  for (const [given, message] of bad) await assert.rejects(limitJob(...given), { name: "InvalidArgument", message });
  await assert.rejects(
    limitJob(limiter, "", () => {}, { delay, weight: 2 }),
    { name: "WeightExceedsCapacity" },
  );
  assert.ok(limiter.tryAcquire());
});
