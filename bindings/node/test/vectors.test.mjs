// Runs tests/vectors/*.vec on every store. tests/vectors/README.md describes the format. If the environment variable WGL_CELLS names a
// directory, this writes there how many cases of each kind ran on each store.

import assert from "node:assert/strict";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import {
  CompositeLimiter,
  ConcurrencyLimiter,
  DelayLimiter,
  EvenlySpacedRateLimiter,
  FirstOfLimiter,
  FixedWindowLimiter,
  LeakyBucketLimiter,
  ManualClock,
  NullLimiter,
  RateLimiter,
  SlidingWindowCounterLimiter,
  Store,
  TokenBucketLimiter,
} from "workglow-limit";
import { directory, patiently } from "./helpers.mjs";
import { startPostgres } from "./postgres.mjs";
import { startRedis } from "./redis.mjs";

const vectors = join(import.meta.dirname, "../../../tests/vectors");
const files = readdirSync(vectors).filter((file) => file.endsWith(".vec"));

/** Parses `a=b` words, and collects other words under "". */
const fields = (words) => Object.fromEntries(words.map((w) => (w.includes("=") ? w.split("=") : ["", w])));
const words = (text) => text.split(/\s+/).filter((word) => word !== "");

/** The number of the last case: no two cases use limits of one name, so that they can share a server's database. */
let number = 0;

function casesOf(file) {
  const cases = [];
  for (const [i, raw] of readFileSync(join(vectors, file), "utf8").split("\n").entries()) {
    const [first, ...rest] = words(raw.replace(/#.*/, ""));
    if (first === undefined) continue;
    if (first === "case") cases.push({ name: rest.join(" "), number: ++number, limiters: [], steps: [] });
    else if (first === "first_of") cases.at(-1).isFirstOf = true;
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

/** Admits at most `max` units at once per key. Written as a user would. */
class Custom {
  name = "custom";
  #max;
  #used = new Map();

  constructor(max) {
    this.#max = max;
  }

  #take(key, units) {
    this.#used.set(key, (this.#used.get(key) ?? 0) + units);
  }

  #free = ({ key, weight }) => this.#take(key, -weight);
  cancel = this.#free;
  complete = this.#free;

  retryAfter(key, weight) {
    return (this.#used.get(key) ?? 0) + weight <= this.#max ? 0 : 10;
  }

  tryAcquire(key, weight) {
    if (this.retryAfter(key, weight) > 0) return null;
    this.#take(key, weight);
    return { key, weight };
  }

  clear(key) {
    if (key === "") this.#used.clear();
    else this.#used.delete(key);
  }
}

/** Returns the words that follow another one, if any. */
const wordsAfter = (given, word) => (given.includes(word) ? given.slice(given.indexOf(word) + 1) : []);

const KINDS = {
  null: () => new NullLimiter(),
  custom: (_store, _name, [max]) => new CompositeLimiter([new Custom(Number(max))]),
  policy: (store, name, words) => store.limiter(name, words.join(" ")),
  concurrency: (store, name, [max, lease]) =>
    new ConcurrencyLimiter(Number(max), { store, name, lease: lease === undefined ? undefined : `${lease}us` }),
  delay: (store, name, [delay]) => new DelayLimiter(`${delay}us`, { store, name }),
  evenly_spaced: (store, name, [max, window, how]) =>
    new EvenlySpacedRateLimiter({ ...windowOf(max, window), adaptive: how === "adaptive" }, { store, name }),
  token_bucket: (store, name, [rate, period, burst]) =>
    new TokenBucketLimiter(store, name, { rate: Number(rate), period: `${period}us`, burst: Number(burst) }),
  leaky_bucket: (store, name, [rate, period, queue]) =>
    new LeakyBucketLimiter(store, name, { rate: Number(rate), period: `${period}us`, queue: Number(queue) }),
  fixed_window: (store, name, [max, window]) => new FixedWindowLimiter(store, name, windowOf(max, window)),
  sliding_window_counter: (store, name, [max, window]) => new SlidingWindowCounterLimiter(store, name, windowOf(max, window)),
  rate(store, name, given) {
    const [initial, multiplier, max, jitter] = wordsAfter(given, "backoff");
    const numbers = initial === undefined ? given : given.slice(0, given.indexOf("backoff"));
    const windows = [];
    for (let i = 0; i < numbers.length; i += 2) windows.push(windowOf(numbers[i], numbers[i + 1]));
    const backoff = initial !== undefined && {
      initialBackoffDelay: `${initial}us`,
      backoffMultiplier: multiplier / 1000,
      maxBackoffDelay: `${max}us`,
      jitter,
    };
    return new RateLimiter(store, name, { ...(windows.length === 1 ? windows[0] : { windows }), ...backoff });
  },
};

const windowOf = (max, us) => ({ maxExecutions: Number(max), windowSizeInSeconds: us / 1e6 });

/** The name of a limit of a case, and what a case calls a limit. */
const nameOf = (limit, number) => `${limit}.${number}`;
const limitOf = (name, number) => name.replace(`.${number}`, "");

function limitersOf({ limiters, number, isFirstOf }, store) {
  const made = limiters.map(([kind, ...given], i) => {
    assert.ok(Object.hasOwn(KINDS, kind), `no kind ${kind}`);
    return KINDS[kind](store, nameOf(`limit-${i + 1}`, number), given);
  });
  if (isFirstOf) return [new FirstOfLimiter(made), made];
  return [made.length === 1 ? made[0] : new CompositeLimiter(made), made];
}

const us = (ms) => String(Math.round(ms * 1000));
const count = (n) => (n === Infinity ? "inf" : String(n));
const fieldsOf = (d, number) => ({
  "": d.admitted ? "admitted" : "denied",
  retry: us(d.retryAfter),
  suggested: us(d.suggestedAfter),
  reset: us(d.resetAfter),
  remaining: count(d.remaining),
  limit: count(d.limit),
  by: limitOf(String(d.deniedBy), number).replaceAll(" ", "_"),
});

/** Returns whether a call may have to wait. Then a promise is used, because a synchronous call gives up after 40 ms. */
const mayWait = (url) => url !== "memory:";
const isServed = (url) => !/^(memory|sqlite):/.test(url);
const ask = (store, of, name, ...given) => (mayWait(store.url) ? of[`${name}Async`](...given) : of[name](...given));

/** The name of a part in a case: a limit without a name of its own is called as in its store. */
const partOf = (part, number) => (/^limit-\d+$/.test(part) ? nameOf(part, number) : part);

/** Parses `PART:…,PART:…`. */
const partsOf = (text, number) =>
  text
    .split(",")
    .map((part) => part.split(":"))
    .map(([part, ...rest]) => [partOf(part, number), ...rest]);

/** The names of a case's parts. */
function namesOf({ limiters, number, isFirstOf }) {
  if (limiters.length > 1 && !isFirstOf) return limiters.map((_, i) => nameOf(`limit-${i + 1}`, number));
  return limiters[0].filter((word) => word.endsWith(":")).map((word) => word.slice(0, -1));
}

/**
 * Returns the options of a start. If it is a joint one, every part that differs from the usual is named: the others have no key, and
 * weight 1.
 */
function startOf(one, { key, charges, ...given }) {
  const weight = given.weight === undefined ? undefined : Number(given.weight);
  // Of a start that weighs nothing, no part weighs anything.
  if (charges === undefined || weight === 0) return { key, weight };
  const names = namesOf(one);
  const keys = key === undefined ? {} : Object.fromEntries(names.map((name) => [name, key]));
  const weights = weight === undefined ? {} : Object.fromEntries(names.map((name) => [name, weight]));
  const seen = new Set();
  for (const [part, units, of] of partsOf(charges, one.number)) {
    // An object cannot name a part twice: the call that is refused names one that does not exist.
    const name = seen.has(part) ? `${part} twice` : part;
    seen.add(part);
    if (of !== "-") keys[name] = of;
    if (units !== "-") weights[name] = Number(units);
  }
  // Without a part, an object is a mistake.
  const some = (parts) => (Object.keys(parts).length > 0 ? parts : undefined);
  return { key: some(keys), weight: some(weights) };
}

async function answer(store, [limiter, children], one, { call, given }, permits) {
  const { number } = one;
  const { key } = given;
  const start = startOf(one, given);
  // Of alternatives: which one has it.
  const chosen = (permit) => (one.isFirstOf && permit !== null ? { chosen: String(children.indexOf(permit.chosen)) } : {});
  const keep = (permit) => void (given.as !== undefined && permit !== null && permits.set(given.as, permit));
  switch (call) {
    case "decide": {
      const decision = await ask(store, limiter, "decide", start);
      keep(decision.permit);
      return { ...fieldsOf(decision, number), ...chosen(decision.permit) };
    }
    case "peek":
      return fieldsOf(await ask(store, limiter, "peek", start), number);
    case "try_acquire": {
      const permit = await ask(store, limiter, "tryAcquire", start);
      keep(permit);
      return { "": permit === null ? "denied" : "admitted", ...chosen(permit) };
    }
    case "acquire":
      try {
        const grace = given.grace === undefined ? undefined : `${given.grace}us`;
        keep(await limiter.acquire({ ...start, timeout: `${given.for}us`, grace }));
        return { "": "admitted" };
      } catch (error) {
        if (error.name === "TimeoutError") return { "": "expired" };
        throw error;
      }
    case "can_proceed":
      return { "": (await limiter.canProceed({ key })) ? "yes" : "no" };
    case "next_available":
      return { next: (await limiter.getNextAvailableTime({ key })) - Date.now() };
    // biome-ignore lint/suspicious/noFallthroughSwitchClause: where it may have to wait it is awaited like the others
    case "complete":
      if (!mayWait(store.url)) return void limiter.complete(permits.get(given.permit));
    case "cancel":
    case "arrived":
    case "renew":
      return void (await ask(store, permits.get(given.permit), call));
    case "settle": {
      const used = (given.parts === undefined ? [] : partsOf(given.parts, number)).map(([part, units]) => [part, Number(units)]);
      const actual = given.parts === undefined ? Number(given.actual) : Object.fromEntries(used);
      return void (await ask(store, permits.get(given.permit), "settle", actual));
    }
    case "reserve": {
      const [maxWait, grace] = [given.for, given.grace].map((span) => (span === undefined ? undefined : `${span}us`));
      const place = await ask(store, limiter, "reserve", { ...start, maxWait, grace });
      if (place === null) {
        const { retryAfter } = await ask(store, limiter, "peek", start);
        return { "": "denied", after: us(retryAfter) };
      }
      assert.equal(place.started, false);
      keep(place);
      return { "": "place", after: us(place.wait), ...chosen(place) };
    }
    case "present": {
      const permit = await ask(store, limiter, "present", permits.get(given.permit));
      permits.set(given.permit, permit);
      return { ...(permit.started ? { "": "started" } : { "": "wait", after: us(permit.wait) }), ...chosen(permit) };
    }
    case "stats": {
      const stats = await patiently(() => limiter.stats({ key }));
      const { admitted, denied, unitsWanted: wanted, unitsGranted: granted, waited, cancelled } = stats;
      const counts = { admitted, denied, wanted, granted, waited, cancelled };
      return Object.fromEntries(Object.entries(counts).map(([field, count]) => [field, String(count)]));
    }
    case "override":
      return store.override(nameOf(given.of ?? "limit-1", number), given.policy.replaceAll("_", " "), { key });
    case "lift":
      return store.lift(nameOf(given.of ?? "limit-1", number), { key });
    case "pause":
      return (given.of === undefined ? limiter : children[given.of.slice("limit-".length) - 1]).pause(`${given.for}us`, { key });
    case "record_job_start":
      return limiter.recordJobStart({ key });
    case "record_job_completion":
      return limiter.recordJobCompletion({ key });
    case "clear":
      return limiter.clear({ key });
    default:
      assert.fail(`no call ${call}`);
  }
}

/** An acquire without time to wait, which a server did not answer within 100 ms. */
class LateServer extends Error {}

/**
 * Runs a case. With a custom limiter even promises wait for the store for at most 40 ms, because such a limiter runs on the event loop.
 * A server once took longer, so the case is repeated then, with new limits.
 */
function run(one, url) {
  const isHasty = one.limiters.some(([kind]) => kind === "custom");
  const isLate = (error) => error instanceof LateServer || (isHasty && error.code === "store_timeout");
  return patiently(() => runOnce({ ...one, number: ++number }, url), isLate);
}

async function runOnce(one, url) {
  const clock = new ManualClock();
  const store = new Store(url, { clock, timeout: "1m" });
  const limiters = limitersOf(one, store);
  if (mayWait(url)) await limiters[0].open();
  const permits = new Map();
  let time = 0;
  for (const step of one.steps) {
    assert.ok(step.at >= time, "times only grow");
    clock.advance(`${step.at - time}us`);
    time = step.at;
    let got;
    try {
      got = (await answer(store, limiters, one, step, permits)) ?? {};
    } catch (error) {
      // No case is about a store that fails.
      if (error.code === undefined || ["ERR_ASSERTION", "store_timeout"].includes(error.code)) throw error;
      got = { error: error.code };
    }
    const where = `line ${step.line}, ${url}`;
    if (isServed(url) && got[""] === "expired" && step.wanted[""] === "admitted") throw new LateServer(where);
    assert.equal(got.error, step.wanted.error, where);
    if (got.next !== undefined) {
      // The wall clock advances between the call and the comparison.
      assert.ok(Math.abs(got.next - Number(step.wanted.retry) / 1000) < 2000, `${where}: ${got.next} ms`);
      continue;
    }
    for (const [field, value] of Object.entries(step.wanted)) assert.equal(got[field], value, `${where}: ${field}`);
  }
}

assert.ok(files.length >= 3);
let redis;
let postgres;
before(async () => ([redis, postgres] = await Promise.all([startRedis(), startPostgres()])));
after(() => Promise.all([redis?.stop(), postgres?.stop()]));

/** The number of cases that ran, by kind and store. */
const cells = new Map();

function ran({ limiters, isFirstOf }, store) {
  const kind = isFirstOf ? "first_of" : limiters.length > 1 ? "composite" : limiters[0][0];
  const cell = `${kind} ${store}`;
  cells.set(cell, (cells.get(cell) ?? 0) + 1);
}

after(() => {
  const { WGL_CELLS } = process.env;
  if (WGL_CELLS === undefined) return;
  mkdirSync(WGL_CELLS, { recursive: true });
  writeFileSync(
    join(WGL_CELLS, "node"),
    [...cells]
      .map(([cell, cases]) => `${cell} ${cases}\n`)
      .sort()
      .join(""),
  );
});

for (const file of files) {
  test(file, async (t) => {
    const dir = directory(t);
    const cases = casesOf(file);
    assert.ok(cases.length > 0);
    for (const [i, one] of cases.entries()) {
      await t.test(one.name, async () => {
        const urls = {
          memory: "memory:",
          sqlite: `sqlite:${dir}/${i}.db`,
          redis: redis.url,
          postgres: postgres.url,
        };
        for (const [store, url] of Object.entries(urls)) {
          await run(one, url);
          ran(one, store);
        }
      });
    }
  });
}
