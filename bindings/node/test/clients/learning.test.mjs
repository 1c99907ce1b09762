// A limit that learns its policy from what a provider says about its own limits.

import assert from "node:assert/strict";
import { test } from "node:test";
import axios from "axios";
import { Agent, request } from "undici";
import { Store } from "workglow-limit";
import { limitAxios } from "workglow-limit/axios";
import { limitFetch } from "workglow-limit/fetch";
import { limitUndici } from "workglow-limit/undici";
import { quotasOf } from "../../dist/cjs/response.js";
import { settle } from "../helpers.mjs";
import { serve } from "./server.mjs";

const openai = (limit, left, reset) => ({
  "x-ratelimit-limit-requests": limit,
  "x-ratelimit-remaining-requests": left,
  "x-ratelimit-reset-requests": reset,
});

const anthropic = (kind, limit, left, reset) => ({
  Date: "Sat, 31 Jan 2026 12:00:00 GMT",
  [`anthropic-ratelimit-${kind}-limit`]: limit,
  [`anthropic-ratelimit-${kind}-remaining`]: left,
  [`anthropic-ratelimit-${kind}-reset`]: `2026-01-31T12:00:${reset}Z`,
});

test("the sizes of budgets are read, and what is not certain is left out", () => {
  for (const [headers, found] of [
    [{ "RateLimit-Policy": '"default";q=100;w=60' }, [["requests", 100, 60_000, false]]],
    [{ "RateLimit-Policy": '"requests";q=100;w=60, "burst";q=10;w=1' }, []], // Which of them?
    [{ "RateLimit-Policy": '"default";q=100;w=60;pk=:cGs=:' }, []],
    [{ "RateLimit-Policy": '"default";q=100;w=60;qu="content-bytes"' }, []],
    [{ "RateLimit-Policy": '"default";q=100' }, []],
    [{ "RateLimit-Policy": "100;w=60", RateLimit: "limit=100, remaining=50, reset=30" }, [["requests", 100, 60_000, false]]],
    [{ "RateLimit-Limit": "100, 100;w=60" }, [["requests", 100, 60_000, false]]],
    [{ "RateLimit-Limit": "100", "RateLimit-Remaining": "50", "RateLimit-Reset": "30" }, []],
    [{ "X-RateLimit-Limit": 5000, "X-RateLimit-Remaining": 2500, "X-RateLimit-Reset": 1800 }, []], // Not evenly refilled.
    [openai(500, 450, "6s"), []], // A whole second may be off by one.
    [openai(500, 450, "6.02s"), [["requests", 500, 60_200, true]]],
    [openai(10_000, 9980, "2m52.8s"), [["requests", 10_000, 86_400_000, true]]],
    [openai(500, 499, "120ms"), []], // One request: it may have been nearly two.
    [openai(500, "many", "6.02s"), []],
    [openai(500, 450, "soon"), []],
    [anthropic("requests", 50, 35, "18"), [["requests", 50, 60_000, true]]],
    [anthropic("input-tokens", 40_000, 20_000, "30"), [["input-tokens", 40_000, 60_000, true]]],
    [anthropic("output-tokens", 40_000, 36_000, "06"), []], // Rounded to thousands.
  ]) {
    const sizes = quotasOf({ status: 200, headers }).map((one) => [one.name, one.units, Math.round(one.window), one.isEstimated]);
    assert.deepEqual(sizes, found, JSON.stringify(headers));
  }
});

const STATED = { "RateLimit-Policy": '"requests";q=500;w=60, "tokens";q=9000;w=60' };

const clients = {
  fetch: (limiter, options) => {
    const send = limitFetch(limiter, options);
    return async (url) => (await send(url)).text();
  },
  axios: (limiter, options) => {
    const client = axios.create();
    limitAxios(client, limiter, options);
    return (url) => client.get(url);
  },
  undici: (limiter, options) => {
    const dispatcher = new Agent().compose(limitUndici(limiter, options));
    return async (url) => (await request(url, { dispatcher })).body.text();
  },
};

async function policies(store) {
  const { limits } = await store.snapshot();
  return Object.fromEntries(limits.map((limit) => [limit.name, [limit.policy, limit.overriddenBy]]));
}

async function until(store, holds) {
  while (!holds(await policies(store))) await settle();
}

for (const [name, make] of Object.entries(clients)) {
  test(`${name} learns a policy, which says where it comes from, and what was lifted is not learned again`, async (t) => {
    const { url } = await serve(t, (_, response) => response.writeHead(200, STATED).end("fine"));
    const store = new Store("memory:");
    const limiter = store.limiter("api", "requests: 100/1m + tokens: 100/1m + 5 concurrent");
    const [plain, keyed, last] = ["plain", "keyed", "last"].map((name) => store.limiter(name, "100/1m"));
    const get = make(limiter, { learn: true });
    await make(plain, {})(url);
    await make(keyed, { learn: true, key: "tenant-7" })(url);
    await get(url);
    const learned = "headers of 127.0.0.1";
    await make(last, { learn: true })(url); // The store learns in this order.
    await until(store, (all) => all.last?.[1] === learned);
    assert.deepEqual(await policies(store), {
      "api/requests": ["500/1m", learned],
      "api/tokens": ["100/1m", null], // No option says that this part counts tokens.
      "api/concurrency": ["5 concurrent", null],
      plain: ["100/1m", null],
      keyed: ["100/1m", null],
      last: ["500/1m", learned],
    });
    await store.lift("api");
    await get(url);
    await make(plain, { learn: true })(url);
    await until(store, (all) => all.plain[1] === learned);
    assert.deepEqual((await policies(store))["api/requests"], ["100/1m", null]);
  });
}

test("learn is true or false", () => {
  const limiter = new Store("memory:").limiter("api", "1/1s");
  for (const learn of [1, "yes", null]) assert.throws(() => limitFetch(limiter, { learn }), /learn is .*: expected true or false/);
});
