// The budgets that providers state: units that others spent with the same account are charged here, once, and nothing else is.

import Anthropic from "@anthropic-ai/sdk";
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { Permit, Store } from "workglow-limit";
import { limitFetch } from "workglow-limit/fetch";
import { budgetsOf } from "../../dist/cjs/response.js";
import { settle, together } from "../helpers.mjs";
import { provide } from "./provider.mjs";

const left = (limiter, key) => limiter.peek({ key, weight: 0 }).remaining;
const messages = [{ role: "user", content: "x".repeat(36) }];

async function until(holds) {
  while (!holds()) await settle();
}

/** The settlements that have begun: each before its response has been read. */
const settlements = [];
const { settleAsync } = Permit.prototype;
Permit.prototype.settleAsync = function (actual) {
  const settlement = settleAsync.call(this, actual);
  settlements.push(settlement);
  return settlement;
};

const settled = () => Promise.all(settlements.splice(0));

/** Makes a client with a limit of its own, and a function that asks once, until its start has been settled. */
function openai(url, policy, options = {}) {
  const limiter = new Store("memory:").limiter("llm", policy);
  const fetch = limitFetch(limiter, { tokens: "tokens", ...options });
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "key", maxRetries: 0, fetch });
  const ask = () => client.chat.completions.create({ model: "m", messages, max_tokens: 100 });
  return { limiter, ...limiter.parts, ask, askOnce: () => ask().then(settled) };
}

test("budgets are read from the headers of providers and of the IETF's drafts", () => {
  for (const [headers, found] of [
    [
      {
        "x-ratelimit-limit-requests": 60,
        "x-ratelimit-remaining-requests": 59,
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-remaining-tokens": 149_984,
        "x-ratelimit-reset-tokens": "6m0s",
      },
      { requests: [59, 1000], tokens: [149_984, 360_000] },
    ],
    [
      {
        Date: "Sat, 31 Jan 2026 12:00:00 GMT",
        "anthropic-ratelimit-requests-remaining": 0,
        "anthropic-ratelimit-requests-reset": "2026-01-31T12:00:30Z",
        "anthropic-ratelimit-input-tokens-remaining": 49_000, // It is rounded.
        "anthropic-ratelimit-output-tokens-remaining": 7_900,
      },
      { requests: [0, 30_000], "input-tokens": [49_500, null], "output-tokens": [7_900, null] },
    ],
    [{ RateLimit: '"requests";r=5;t=10, "tokens";a=50;w=30' }, { requests: [5, 10_000], tokens: [50, 30_000] }],
    [{ RateLimit: '"tokens";r=5', "RateLimit-Policy": '"tokens";q=100;w=60' }, { tokens: [5, 60_000] }],
    [{ "X-RateLimit-Remaining": 7, "X-RateLimit-Reset": 10 }, { requests: [7, 10_000] }],
    [{ "RateLimit-Remaining": -7 }, { requests: [0, null] }],
    [{ "x-ratelimit-remaining-requests": "many", "x-remaining": 5, "Retry-After": 5 }, {}],
  ]) {
    const budgets = [...budgetsOf({ status: 200, headers })].map(([name, { left, reset }]) => [name, [left, reset]]);
    assert.deepEqual(Object.fromEntries(budgets), found);
  }
});

test("what others spent is charged once, as soon as the provider says so", async (t) => {
  const { url, left: stated, spend } = await provide(t);
  const { requests, tokens, askOnce } = openai(url, "requests: 100/1h + tokens: 10000/1h");
  await askOnce(); // From now on it is known that the provider states its budgets.
  assert.equal(left(tokens), 9989);
  spend(40, 3000);
  for (let asked = 2; asked < 5; asked++) {
    await askOnce();
    await until(() => left(requests) === stated.requests);
    // The provider counts the most that a request may use, and we what it has used: that is charged when the next one finds the difference.
    await until(() => left(tokens) <= stated.tokens + 100);
  }
  assert.equal(left(requests), 56);
  assert.ok(left(tokens) >= stated.tokens, `${left(tokens)} left, where the provider says ${stated.tokens}`);
});

test("requests on their way together charge nothing of each other, and what others spend meanwhile once", async (t) => {
  const [first, second] = [together(30), together(30)];
  const {
    url,
    left: stated,
    spend,
  } = await provide(t, {
    requests: 1000,
    tokens: 100_000,
    hold: (arrived) => (arrived > 31 ? second() : arrived > 1 ? first() : undefined),
  });
  const { requests, ask, askOnce } = openai(url, "requests: 1000/1h + tokens: 100000/1h");
  await askOnce();
  await Promise.all(Array.from({ length: 30 }, ask));
  await settled();
  assert.equal(left(requests), 969, "nobody else has spent any");
  spend(50, 0);
  await Promise.all(Array.from({ length: 30 }, ask));
  await until(() => left(requests) === stated.requests);
  await settle();
  assert.equal(left(requests), 1000 - 61 - 50);
});

/** Returns a function from whose call on looks at these limiters are counted, and wait until they are opened. */
function holdLooks(...limiters) {
  let held = { looks: 0, gate: null };
  for (const limiter of limiters) {
    const { peekAsync } = limiter;
    limiter.peekAsync = async (options) => {
      held.looks++;
      await held.gate;
      return peekAsync.call(limiter, options);
    };
  }
  return () => {
    held = { looks: 0 };
    held.gate = new Promise((resolve) => (held.open = resolve));
    return held;
  };
}

test("no response and no pause waits for a comparison, of which one runs and one waits", async (t) => {
  const all = together(31);
  const {
    url,
    arrivals,
    left: stated,
    spend,
  } = await provide(t, { requests: 1000, hold: (arrived) => arrived > 1 && arrived < 32 && all() });
  const limiter = new Store("memory:").limiter("llm", "1000/1h");
  const hold = holdLooks(limiter);
  const send = limitFetch(limiter);
  const ask = async () => {
    const response = await send(`${url}/v1/chat/completions`, { method: "POST", body: "{}" });
    await response.text();
    return response.status;
  };
  await ask();
  spend(50, 0);
  const asked = Promise.all(Array.from({ length: 30 }, ask));
  await until(() => arrivals.length === 31);
  const first = hold();
  all();
  await asked;
  first.open();
  await until(() => left(limiter) === stated.requests);
  await settle();
  assert.deepEqual([left(limiter), first.looks], [1000 - 31 - 50, 2]);
  spend(10, 0);
  const second = hold();
  assert.equal(await ask(), 200);
  spend(stated.requests, 0);
  assert.equal(await ask(), 429);
  assert.ok(limiter.peek().retryAfter > 50_000, "paused");
  second.open();
});

test("clients of one limit charge what others spent once", async (t) => {
  const all = together(4);
  const { url, arrivals, spend } = await provide(t, { requests: 1000, hold: (arrived) => arrived > 3 && all() });
  const store = new Store("memory:");
  const [limiter, same] = [store.limiter("llm", "1000/1h"), store.limiter("llm", "1000/1h")];
  const hold = holdLooks(limiter, same);
  const sends = [limitFetch(limiter), limitFetch(limiter), limitFetch(same)];
  const ask = async (send) => (await send(`${url}/v1/chat/completions`, { method: "POST", body: "{}" })).text();
  for (const send of sends) await ask(send);
  spend(50, 0);
  const asked = Promise.all(sends.map(ask));
  await until(() => arrivals.length === 6);
  const { open } = hold();
  all();
  await asked;
  open();
  await until(() => left(limiter) <= 1000 - 6 - 50);
  await settle();
  assert.equal(left(limiter), 1000 - 6 - 50);
});

test("a provider with more left changes nothing, nor does one that is not heeded", async (t) => {
  const { url, spend } = await provide(t, { requests: 10_000, tokens: 10_000_000 });
  const small = openai(url, "requests: 100/1h + tokens: 10000/1h");
  for (let i = 0; i < 4; i++) await small.askOnce();
  assert.deepEqual([left(small.tokens), left(small.requests)], [10_000 - 4 * 11, 96]);
  spend(9_980, 0);
  const deaf = openai(url, "requests: 100/1h + tokens: 10000/1h", { heed: false });
  for (let i = 0; i < 4; i++) await deaf.askOnce();
  assert.deepEqual([left(deaf.tokens), left(deaf.requests)], [10_000 - 4 * 11, 96]);
});

test("the key of a request is charged, and a limit of requests alone is the provider's of requests", async (t) => {
  const { url, spend } = await provide(t);
  const limiter = new Store("memory:").limiter("llm", "100/1h");
  const send = limitFetch(limiter, { key: "account" });
  const ask = async () => (await send(`${url}/v1/chat/completions`, { method: "POST", body: "{}" })).text();
  await ask();
  spend(30, 0);
  await ask();
  await until(() => left(limiter, "account") === 68);
  assert.equal(left(limiter), 100);
});

test("Anthropic's rounded tokens charge nothing, and its kinds of tokens are budgets of their own", async (t) => {
  const { url, spend } = await provide(t, { tokens: 100_000 });
  const limiter = new Store("memory:").limiter("llm", "requests: 100/1h + in: 100000/1h + out: 100000/1h");
  const { requests, in: input, out: output } = limiter.parts;
  const fetch = limitFetch(limiter, { tokens: { input: "in", output: "out" } });
  const client = new Anthropic({ baseURL: url, apiKey: "key", maxRetries: 0, fetch });
  const ask = async () => {
    await client.messages.create({ model: "m", messages, max_tokens: 100 });
    await settled();
  };
  for (let i = 0; i < 3; i++) await ask();
  assert.deepEqual([left(input), left(output), left(requests)], [100_000 - 33, 100_000 - 12, 97]);
  spend(0, 20_000);
  await ask();
  // 500 more than it says, and what the request did not use.
  await until(() => left(input) <= 80_500 && left(output) <= 80_600);
  assert.ok(left(input) >= 79_000 && left(output) >= 79_000);
  assert.equal(left(requests), 96);
});

test("a refusal because of what others spent pauses instead, and leaves nothing held", async (t) => {
  const { url, spend } = await provide(t);
  const { limiter, requests, tokens, ask, askOnce } = openai(url, "requests: 100/1h + tokens: 10000/1h");
  await askOnce();
  spend(99, 5000);
  await assert.rejects(ask(), { status: 429 });
  const { retryAfter } = limiter.peek();
  assert.ok(retryAfter > 50_000 && retryAfter <= 60_000, `${retryAfter}`);
  await settle();
  assert.deepEqual([requests.stats().unitsGranted, tokens.stats().unitsGranted < 5000], [2, true], "nothing is charged");
  assert.deepEqual([requests.stats().denied, tokens.stats().denied], [0, 0]);
});
