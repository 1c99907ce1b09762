// Ends of permits, and places: reserved starts that are presented, waited for and passed on as text.

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import * as package_ from "workglow-limit";
import { directory, manual, settle } from "./helpers.mjs";

const { CompositeLimiter, ConcurrencyLimiter, LimitError, NullLimiter, Permit, RateLimiter, Store } = package_;

const foreign = { name: "LimitError", code: "foreign_permit", number: -12 };
const unsupported = { name: "LimitError", code: "unsupported", number: -13 };

/** A full limit of one start a minute, so that a place is a minute away. It is open, so that waiters ask at once. */
async function full() {
  const made = manual(package_, 1, 60);
  await made.limiter.canProceed();
  assert.ok(made.limiter.tryAcquire());
  return made;
}

test("a cancelled start frees its units once", () => {
  const { limiter } = manual(package_, 5, 60);
  const [first, second] = [limiter.tryAcquire({ weight: 2 }), limiter.tryAcquire({ weight: 2 })];
  assert.equal(limiter.peek().remaining, 1);
  first.cancel();
  assert.equal(limiter.peek().remaining, 3);
  for (const end of [() => first.cancel(), () => first.settle(5), () => first.complete()]) end();
  assert.equal(limiter.peek().remaining, 3);
  second.complete();
  second.cancel();
  second.settle(0);
  assert.equal(limiter.peek().remaining, 3, "a completed permit was changed");
});

test("a settled start frees its unused units, and owes excess units", () => {
  const { clock, limiter } = manual(package_, 10, 60);
  const [less, more, nothing] = [5, 1, 2].map((weight) => limiter.tryAcquire({ weight }));
  less.settle(3);
  assert.equal(limiter.peek().remaining, 4);
  nothing.settle(0);
  assert.equal(limiter.peek().remaining, 6);
  more.settle(5);
  assert.equal(limiter.peek().remaining, 2);
  for (const permit of [less, more, nothing]) permit.settle(9);
  for (const permit of [less, more, nothing]) permit.cancel();
  assert.equal(limiter.peek().remaining, 2);
  assert.equal(limiter.tryAcquire({ weight: 3 }), null);
  clock.advance("1m");
  assert.equal(limiter.peek().remaining, 10);
});

test("a permit that could not be settled may still complete", () => {
  const limiter = new ConcurrencyLimiter(1);
  const permit = limiter.tryAcquire();
  assert.throws(() => permit.settle(2), unsupported);
  assert.equal(limiter.tryAcquire(), null);
  permit[Symbol.dispose]();
  assert.ok(limiter.tryAcquire());
});

test("a cancelled concurrency permit wakes a waiter", async () => {
  const limiter = new ConcurrencyLimiter(1);
  const composite = new CompositeLimiter([limiter]);
  const held = composite.tryAcquire();
  const waiting = limiter.acquire();
  held.cancel();
  assert.equal(limiter.tryAcquire(), null);
  (await waiting).cancel();
  held.cancel();
  assert.ok(limiter.tryAcquire());
  assert.equal(limiter.tryAcquire(), null);
});

test("a place is a start in the future", async () => {
  const { clock, limiter } = await full();
  const place = limiter.reserve();
  assert.ok(place instanceof Permit);
  assert.equal(place.started, false);
  assert.equal(place.wait, 60_000);
  assert.ok(Math.abs(place.readyAt - Date.now() - 60_000) < 30_000);
  assert.equal(typeof place.readyAtHrtime, "bigint");
  assert.ok(limiter.peek().retryAfter > 60_000, "it did not count from now on");
  clock.advance("59s");
  assert.equal(place.wait, 1000);
  assert.equal(limiter.present(place), place, "a place that was presented too early changed");
  clock.advance("1s");
  assert.equal(place.wait, 0);
  const permit = limiter.present(place);
  assert.notEqual(permit, place);
  assert.deepEqual([permit.started, permit.wait, place.started], [true, 0, false]);
  const { retryAfter } = limiter.peek();
  place.cancel();
  assert.equal(limiter.peek().retryAfter, retryAfter, "a used place was cancelled with its start");
  permit.cancel();
  assert.equal(limiter.peek().admitted, true);
});

test("a place may be ready at once, and has a key and a weight", () => {
  const { limiter } = manual(package_, 3, 60);
  const place = limiter.reserve({ key: "k", weight: 2, grace: 0 });
  assert.deepEqual([place.started, place.wait], [false, 0]);
  assert.equal(limiter.peek({ key: "k" }).remaining, 1);
  assert.equal(limiter.peek().remaining, 3);
  assert.equal(limiter.present(place).started, true);
  assert.equal(limiter.peek({ key: "k" }).remaining, 1);
});

test("a place that would be too far away is null, and takes nothing", async () => {
  const { limiter } = await full();
  for (const maxWait of [0, 59_999, "59s"]) assert.equal(limiter.reserve({ maxWait }), null);
  assert.equal(limiter.peek().retryAfter, 60_000);
  assert.equal(limiter.reserve({ maxWait: "1m" }).wait, 60_000);
});

test("a cancelled place is free again", async () => {
  const { limiter } = await full();
  limiter.reserve().cancel();
  assert.equal(limiter.peek().retryAfter, 60_000);
  const place = limiter.reserve();
  place.complete();
  place.cancel();
  assert.ok(limiter.peek().retryAfter > 60_000, "a place that was given back was cancelled again");
});

test("a place that another object started with is not given back", async () => {
  const { limiter } = manual(package_, 1, 60);
  await limiter.canProceed();
  const text = limiter.reserve().toText();
  const start = limiter.present(text);
  const place = limiter.place(text);
  assert.deepEqual([start.started, place.started], [true, false]);
  place.cancel();
  assert.equal(limiter.peek().remaining, 0);
  start.cancel();
  limiter.place(limiter.reserve().toText()).cancel();
  assert.equal(limiter.peek().remaining, 1);
  assert.throws(() => limiter.place(7), { code: "invalid_argument" });
});

test("a ready place that waits for a slot says when to retry, also as text", () => {
  const store = new Store("memory:");
  const limiter = store.limiter("both", "5/1m + 1 concurrent");
  const running = limiter.tryAcquire();
  const place = limiter.reserve();
  const text = place.toText();
  assert.ok(limiter.present(text).wait > 0);
  assert.ok(limiter.present(place).wait > 0);
  running.complete();
});

test("window is the time of which a grace costs a part", () => {
  const store = new Store("memory:");
  const window = (policy) => store.limiter(policy, policy).window;
  assert.deepEqual(["10/2s + 100/1m + 5 concurrent", "10/2s burst 20", "5 concurrent"].map(window), [2000, 200, null]);
  assert.equal(new NullLimiter().window, null);
});

test("a place is valid until its grace ends, and is then exchanged for a place, never for a start", async () => {
  for (const [late, started] of [
    ["5s", true],
    ["5001ms", false],
  ]) {
    const { clock, limiter } = await full();
    const place = limiter.reserve({ grace: "5s" });
    clock.advance("1m");
    clock.advance(late);
    const next = limiter.present(place);
    assert.notEqual(next, place);
    assert.equal(next.started, started);
    const before = limiter.peek();
    place.cancel();
    assert.deepEqual(limiter.peek(), before, "the old place had not ended");
    if (!started) {
      clock.advance(next.wait);
      assert.equal(limiter.present(next).started, true);
    }
  }
});

test("a place that a gate overtakes waits for the gate", async () => {
  const { clock, limiter } = await full();
  const place = limiter.reserve();
  await limiter.pause("10m");
  clock.advance("1m");
  const next = limiter.present(place);
  assert.equal(next.started, false);
  assert.equal(next.wait, 540_000);
  clock.advance("9m");
  assert.equal(limiter.present(next).started, true);
});

test("the text of a place goes to another process, and starts once", async (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  const { clock, limiter: here } = manual(package_, 1, 60, "jobs", url);
  // The other process has its own store and limiter on the same file.
  const there = new Store(url, { clock }).limiter("jobs");
  const first = await here.tryAcquireAsync();
  const place = await here.reserveAsync();
  const text = place.toText();
  assert.match(text, /^[\x21-\x7e]{1,127}$/);
  assert.equal((await there.presentAsync(text)).started, false);
  clock.advance("1m");
  const started = await there.presentAsync(text);
  assert.equal(started.started, true);
  const again = await here.presentAsync(text);
  assert.equal(again.started, false, "it started twice");
  await again.cancelAsync();
  assert.equal((await there.peekAsync()).admitted, false);
  const sent = here.permit(started.toText());
  assert.equal(sent.started, true);
  await sent.cancelAsync();
  await sent.cancelAsync();
  assert.equal((await there.peekAsync()).admitted, true);
  await started.cancelAsync();
  await there.permit(first.toText()).settleAsync(0); // It has left the window.
  assert.equal((await there.peekAsync()).admitted, true);
  const other = new RateLimiter(new Store(url, { clock }), "others", { maxExecutions: 1, windowSizeInSeconds: 60 });
  await other.open();
  for (const call of ["permit", "present"]) assert.throws(() => other[call](text), foreign);
  await assert.rejects(other.acquire({ place: text }), foreign);
});

test("a settled text changes the units of its start", () => {
  const { limiter } = manual(package_, 5, 60);
  const text = limiter.tryAcquire({ key: "k", weight: 4 }).toText();
  limiter.permit(text).settle(1);
  assert.equal(limiter.peek({ key: "k" }).remaining, 4);
  limiter.permit(text).settle(3); // Another object, which does not know that the permit ended: the store does.
  assert.equal(limiter.peek({ key: "k" }).remaining, 4);
});

test("a place of another limiter is an error, and does not change", async () => {
  const [{ limiter: one }, { limiter: other }] = [await full(), await full()];
  const place = one.reserve();
  assert.throws(() => other.present(place), foreign);
  const controller = new AbortController();
  const refused = other.acquire({ place, signal: controller.signal });
  controller.abort(); // Gives up the wait.
  await assert.rejects(refused, foreign);
  assert.throws(() => new NullLimiter().present(place), foreign);
  await assert.rejects(new NullLimiter().acquire({ place }), foreign);
  await assert.rejects(new ConcurrencyLimiter(1).acquire({ place }), unsupported);
  await assert.rejects(new CompositeLimiter([one]).acquire({ place }), foreign);
  place.cancel();
  assert.equal(one.peek().retryAfter, 60_000);
});

test("acquire waits with a place, or with its text, and uses it up", async () => {
  for (const given of [(place) => place, (place) => place.toText()]) {
    const { clock, limiter } = await full();
    const place = limiter.reserve();
    let permit;
    const waiting = limiter.acquire({ place: given(place), timeout: "1m" }).then((p) => (permit = p));
    const { retryAfter } = limiter.peek();
    if (given(place) === place) place.cancel(); // It belongs to the waiter.
    assert.equal(limiter.peek().retryAfter, retryAfter);
    clock.advance("59s");
    await settle();
    assert.equal(permit, undefined);
    clock.advance("1s");
    await waiting;
    assert.equal(permit.started, true);
    assert.equal(limiter.tryAcquire(), null);
  }
});

test("a waiter that times out holds no place", async () => {
  const { clock, limiter } = await full();
  for (const timeout of [0, "59s"]) {
    await assert.rejects(limiter.acquire({ timeout }), { name: "TimeoutError" });
    const place = limiter.reserve();
    await assert.rejects(limiter.acquire({ timeout, place }), { name: "TimeoutError" });
    place.cancel();
    assert.equal(limiter.peek().retryAfter, 60_000);
  }
  // A gate may be set before that.
  const waiting = assert.rejects(limiter.acquire({ timeout: "90s" }), { name: "TimeoutError" });
  await limiter.pause("10m");
  clock.advance("1m");
  await waiting;
  clock.advance("9m");
  assert.equal(limiter.peek().admitted, true);
});

test("a waiter that gives up returns its place, and only that", async () => {
  const { limiter } = await full();
  const reason = new RangeError("mine");
  for (const options of [() => ({}), () => ({ place: limiter.reserve() }), () => ({ place: limiter.reserve().toText() })]) {
    const controller = new AbortController();
    const waiting = limiter.acquire({ ...options(), signal: controller.signal });
    await settle();
    assert.ok(limiter.peek().retryAfter > 60_000);
    controller.abort(reason);
    assert.equal(limiter.peek().retryAfter, 60_000, "the place was not returned at once");
    await assert.rejects(waiting, reason);
  }
  const place = limiter.reserve();
  await assert.rejects(limiter.acquire({ place, signal: AbortSignal.abort(reason) }), reason);
  assert.ok(limiter.peek().retryAfter > 60_000, "a waiter that was aborted before took the place");
  place.cancel();
  assert.equal(limiter.peek().retryAfter, 60_000);
});

test("no listener is left on a signal after the wait", async () => {
  const { clock, limiter } = await full();
  const { signal } = new AbortController();
  const listeners = () => getEventListeners(signal, "abort").length;
  const waiting = limiter.acquire({ signal });
  await settle();
  assert.equal(listeners(), 1);
  clock.advance("1m");
  await waiting;
  assert.equal(listeners(), 0);
  await assert.rejects(limiter.acquire({ signal, timeout: 0 }), { name: "TimeoutError" });
  await assert.rejects(limiter.acquire({ signal, weight: 2 }), { name: "WeightExceedsCapacity" });
  await new NullLimiter().acquire({ signal });
  assert.equal(listeners(), 0);
});

test("all waits with one signal have one listener", async () => {
  const { clock, limiter } = await full();
  const controller = new AbortController();
  const { signal } = controller;
  const listeners = () => getEventListeners(signal, "abort").length;
  const waits = Array.from({ length: 20 }, () => limiter.acquire({ signal }));
  await settle();
  assert.equal(listeners(), 1);
  clock.advance("1m");
  await waits[0];
  assert.equal(listeners(), 1);
  const reason = new Error("mine");
  controller.abort(reason);
  for (const wait of waits.slice(1)) await assert.rejects(wait, reason);
  assert.equal(listeners(), 0);
});

test("schedule waits with a place", async () => {
  const { clock, limiter } = await full();
  const result = limiter.schedule((permit) => permit.started, { place: limiter.reserve(), timeout: "1m" });
  clock.advance("1m");
  assert.equal(await result, true);
});

test("without a limit a place is ready, and ending it has no effect", async () => {
  const limiter = new NullLimiter();
  const place = limiter.reserve({ key: "k", weight: 5, maxWait: 0, grace: "1h" });
  assert.deepEqual([place.started, place.wait, place.readyAt], [false, 0, null]);
  const text = place.toText();
  const permit = limiter.present(place);
  assert.deepEqual([permit.started, limiter.present(text).started, limiter.permit(text).started], [true, true, true]);
  for (const one of [permit, place]) {
    one.settle(7);
    one.cancel();
  }
  for (const given of [limiter.reserve(), text]) (await limiter.acquire({ place: given })).settle(1);
  assert.equal(await limiter.schedule(() => 42, { place: text }), 42);
});

test("limits that do not count starts over time have no places", async () => {
  for (const limiter of [new ConcurrencyLimiter(1), new CompositeLimiter([new ConcurrencyLimiter(1)])]) {
    const permit = limiter.tryAcquire();
    for (const call of [() => limiter.reserve(), () => limiter.present("x"), () => permit.toText(), () => limiter.permit("x")]) {
      assert.throws(call, unsupported);
    }
    assert.throws(() => limiter.present(permit), LimitError);
    await assert.rejects(limiter.acquire({ place: "x" }), unsupported);
    permit.complete();
    assert.ok(limiter.tryAcquire(), "the failed call ended the permit");
  }
});
