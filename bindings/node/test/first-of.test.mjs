// Alternatives: the permit says which limiter was charged, and waiters follow whichever is free first.

import assert from "node:assert/strict";
import { test } from "node:test";
import { CompositeLimiter, ConcurrencyLimiter, FirstOfLimiter, ManualClock, Store } from "workglow-limit";

const store = () => new Store("memory:", { clock: new ManualClock() });

/** Starts and completes a job. Returns the limiter that was charged. */
function start(limiter, options) {
  const permit = limiter.tryAcquire(options);
  permit.complete();
  return permit.chosen;
}

/** Admits one start at once. Written as a user would. */
class Mine {
  name = "mine";
  #runs = 0;
  retryAfter = () => (this.#runs > 0 ? 10 : 0);
  tryAcquire = () => (this.#runs > 0 ? null : { number: ++this.#runs });
  complete = () => void this.#runs--;
  cancel = this.complete;
}

test("the permit says which", () => {
  const all = store();
  const [azure, openai] = [all.limiter("azure", "1/1s"), all.limiter("openai", "1/2s")];
  const either = new FirstOfLimiter([azure, openai]);
  const first = either.tryAcquire();
  assert.equal(first.chosen, azure);
  first.complete();
  assert.equal(first.chosen, azure, "after its end, too");
  assert.equal(start(either), openai);
  const denied = either.decide();
  assert.deepEqual([denied.deniedBy, denied.retryAfter], ["azure", 1000]);
  assert.equal(either.reserve().chosen, azure);
  assert.equal(start(new ConcurrencyLimiter(1)), null);
});

test("alternatives in composites and in one another", () => {
  const all = store();
  const [x, y, z] = ["x", "y", "z"].map((name) => all.limiter(name, "1/1s"));
  const nested = new FirstOfLimiter([x, new FirstOfLimiter([y, z])]);
  assert.deepEqual([start(nested), start(nested), start(nested)], [x, y, z]);
  const [a, b] = ["a", "b"].map((name) => all.limiter(name, "1/1s"));
  const both = new CompositeLimiter({ provider: new FirstOfLimiter([a, b]), all: all.limiter("all", "5/1s") });
  assert.deepEqual([start(both), start(both)], [a, b]);
});

test("parts of alternatives", () => {
  const all = store();
  const [one, two] = ["one", "two"].map((name) => all.limiter(name, "requests: 9/1s + tokens: 100/1s"));
  const either = new FirstOfLimiter([one, two]);
  const call = { weight: { tokens: 60 } };
  const permits = [either.tryAcquire(call), either.tryAcquire(call)];
  assert.deepEqual(
    permits.map((permit) => permit.chosen),
    [one, two],
  );
  permits[1].settle({ tokens: 5 });
  assert.ok(either.peek({ weight: { tokens: 95 } }).admitted);
  assert.throws(() => either.tryAcquire({ weight: { tokens: 101 } }), { code: "weight_exceeds_capacity", message: /one\/tokens/ });
  assert.throws(() => either.tryAcquire({ weight: { token: 1 } }), /expected a part of limiter "one": requests, tokens/);
});

test("an object written by the program", () => {
  const mine = new Mine();
  const either = new FirstOfLimiter([mine, store().limiter("x", "1/1s")]);
  const permit = either.tryAcquire();
  assert.equal(permit.chosen, mine);
  assert.equal(start(either).name, "x");
  permit.complete();
});

test("a waiter starts where a job ends", async () => {
  const slot = new ConcurrencyLimiter(1);
  const either = new FirstOfLimiter([new Store("memory:").limiter("hourly", "1/1h"), slot]);
  start(either);
  const job = either.tryAcquire();
  const waiting = [1, 2, 3].map(() => either.schedule((permit) => permit.chosen, { timeout: "10m" }));
  job.complete();
  assert.deepEqual(await Promise.all(waiting), [slot, slot, slot]);
});

test("wrong arguments", () => {
  const limiter = store().limiter("x", "1/1s");
  for (const wrong of [5, [], { x: limiter }]) {
    assert.throws(() => new FirstOfLimiter(wrong), { code: "invalid_argument", message: /array of limiters, the preferred one first/ });
  }
  const either = new FirstOfLimiter([limiter]);
  assert.throws(() => either.add(either), /one that contains this one/);
  assert.throws(() => either.add(5), { code: "invalid_argument" });
  const slots = new FirstOfLimiter([new ConcurrencyLimiter(1), new ConcurrencyLimiter(2)]);
  assert.throws(() => slots.reserve(), { code: "unsupported", message: /without a timed limit/ });
});
