// Runs tests/vectors/*.vec on every store. The format is in tests/vectors/README.md.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { CompositeLimiter, ConcurrencyLimiter, ManualClock, NullLimiter, RateLimiter, Store } from "workglow-limit";
import { directory } from "./helpers.mjs";

const vectors = join(import.meta.dirname, "../../../tests/vectors");
const files = readdirSync(vectors).filter((file) => file.endsWith(".vec"));

/** `a=b` words, and words alone under "". */
const fields = (words) => Object.fromEntries(words.map((w) => (w.includes("=") ? w.split("=") : ["", w])));
const words = (text) => text.split(/\s+/).filter((word) => word !== "");

function casesOf(file) {
  const cases = [];
  for (const [i, raw] of readFileSync(join(vectors, file), "utf8").split("\n").entries()) {
    const [first, ...rest] = words(raw.replace(/#.*/, ""));
    if (first === undefined) continue;
    if (first === "case") cases.push({ name: rest.join(" "), limiters: [], steps: [] });
    else if (first === "limiter") cases.at(-1).limiters.push(rest);
    else {
      const arrow = rest.indexOf("=>");
      const [call, ...given] = arrow < 0 ? rest : rest.slice(0, arrow);
      const wanted = arrow < 0 ? {} : fields(rest.slice(arrow + 1));
      cases.at(-1).steps.push({ line: i + 1, at: Number(first), call, given: fields(given), wanted });
    }
  }
  return cases;
}

function limiterOf(limiters, url, clock) {
  const store = new Store(url, { clock });
  const made = limiters.map(([kind, ...given], i) => {
    const numbers = given.map(Number);
    if (kind === "null") return new NullLimiter();
    if (kind === "concurrency") return new ConcurrencyLimiter(numbers[0], { clock });
    assert.equal(kind, "rate");
    const windows = [];
    for (let i = 0; i < numbers.length; i += 2) {
      windows.push({ maxExecutions: numbers[i], windowSizeInSeconds: numbers[i + 1] / 1e6 });
    }
    return new RateLimiter(store, `limit-${i + 1}`, windows.length === 1 ? windows[0] : { windows });
  });
  return made.length === 1 ? made[0] : new CompositeLimiter(made);
}

const us = (ms) => String(Math.round(ms * 1000));
const number = (n) => (n === Infinity ? "inf" : String(n));
const told = (d) => ({
  "": d.admitted ? "admitted" : "denied",
  retry: us(d.retryAfter),
  suggested: us(d.suggestedAfter),
  reset: us(d.resetAfter),
  remaining: number(d.remaining),
  limit: number(d.limit),
  by: String(d.deniedBy).replaceAll(" ", "_"),
});

async function answer(limiter, { call, given }, permits) {
  const { key } = given;
  const weight = given.weight === undefined ? undefined : Number(given.weight);
  const keep = (permit) => void (given.as !== undefined && permit !== null && permits.set(given.as, permit));
  switch (call) {
    case "decide": {
      const decision = limiter.decide({ key, weight });
      keep(decision.permit);
      return told(decision);
    }
    case "peek":
      return told(limiter.peek({ key, weight }));
    case "try_acquire": {
      const permit = limiter.tryAcquire({ key, weight });
      keep(permit);
      return { "": permit === null ? "denied" : "admitted" };
    }
    case "acquire":
      try {
        keep(await limiter.acquire({ key, weight, timeout: `${given.for}us` }));
        return { "": "admitted" };
      } catch (error) {
        if (error.name === "TimeoutError") return { "": "expired" };
        throw error;
      }
    case "can_proceed":
      return { "": (await limiter.canProceed(key)) ? "yes" : "no" };
    case "next_available":
      return { next: (await limiter.getNextAvailableTime(key)) - Date.now() };
    case "complete":
      return void limiter.complete(permits.get(given.permit));
    case "cancel":
      return void permits.get(given.permit).cancel();
    case "settle":
      return void permits.get(given.permit).settle(Number(given.actual));
    case "reserve": {
      const [maxWait, grace] = [given.for, given.grace].map((span) => (span === undefined ? undefined : `${span}us`));
      const place = limiter.reserve({ key, weight, maxWait, grace });
      if (place === null) return { "": "denied", after: us(limiter.peek({ key, weight }).retryAfter) };
      assert.equal(place.started, false);
      keep(place);
      return { "": "place", after: us(place.wait) };
    }
    case "present": {
      const permit = limiter.present(permits.get(given.permit));
      permits.set(given.permit, permit);
      return permit.started ? { "": "started" } : { "": "wait", after: us(permit.wait) };
    }
    case "pause":
      return limiter.pause(`${given.for}us`, key);
    case "record_job_start":
      return limiter.recordJobStart(key);
    case "record_job_completion":
      return limiter.recordJobCompletion(key);
    case "clear":
      return limiter.clear(key);
    default:
      assert.fail(`no call ${call}`);
  }
}

async function run({ limiters, steps }, url) {
  const clock = new ManualClock();
  const limiter = limiterOf(limiters, url, clock);
  const permits = new Map();
  let time = 0;
  for (const step of steps) {
    assert.ok(step.at >= time, "times only grow");
    clock.advance(`${step.at - time}us`);
    time = step.at;
    let got;
    try {
      got = (await answer(limiter, step, permits)) ?? {};
    } catch (error) {
      if (error.code === undefined || error.code === "ERR_ASSERTION") throw error;
      got = { error: error.code };
    }
    const where = `line ${step.line}, ${url}`;
    assert.equal(got.error, step.wanted.error, where);
    if (got.next !== undefined) {
      // The wall clock moves on between the call and the comparison.
      assert.ok(Math.abs(got.next - Number(step.wanted.retry) / 1000) < 2000, `${where}: ${got.next} ms`);
      continue;
    }
    for (const [field, value] of Object.entries(step.wanted)) assert.equal(got[field], value, `${where}: ${field}`);
  }
}

assert.ok(files.length >= 3);
for (const file of files) {
  test(file, async (t) => {
    const dir = directory(t);
    const cases = casesOf(file);
    assert.ok(cases.length > 0);
    for (const [i, one] of cases.entries()) {
      await t.test(one.name, async () => {
        await run(one, "memory:");
        await run(one, `sqlite:${dir}/${i}.db`);
      });
    }
  });
}
