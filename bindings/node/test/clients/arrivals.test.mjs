// What a server counts: with a cooldown, no window has more requests than the limit as they arrive there, however late they do.

import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { Store } from "workglow-limit";
import { directory } from "../helpers.mjs";
import { startRedis } from "../redis.mjs";
import { clients } from "./clients.mjs";
import { serve } from "./server.mjs";

let redis, counting, origin;
before(async () => {
  redis = await startRedis();
  counting = fork(join(import.meta.dirname, "counting.mjs"));
  [origin] = await once(counting, "message");
  origin = `http://127.0.0.1:${origin}`;
});
after(() => {
  counting.disconnect();
  return redis.stop();
});

const stores = { memory: () => "memory:", sqlite: (t) => `sqlite:${directory(t)}/limits.db`, redis: () => redis.url };

/** Blocks the event loop half of the time, until it is stopped. */
function busy() {
  let timer;
  const block = () => {
    for (const end = performance.now() + 5; performance.now() < end; );
    timer = setTimeout(block, 5);
  };
  block();
  return () => clearTimeout(timer);
}

/** The most of these moments, which are in order, in any window that is half open. */
function mostWithin(moments, window) {
  let most = 0;
  let first = 0;
  for (const [at, moment] of moments.entries()) {
    while (moments[first] <= moment - window) first++;
    most = Math.max(most, at - first + 1);
  }
  return most;
}

const cases = Object.keys(clients).map((client) => ["memory", client]);
for (const [name, client] of [...cases, ["sqlite", "fetch"], ["redis", "fetch"], ["redis", "undici 7"]]) {
  test(`${name}, ${client}: no window has more requests as the server counts them`, async (t) => {
    const [limit, window, requests] = [12, 100, 60];
    const store = new Store(stores[name](t), { timeout: "30s" });
    const limiter = store.limiter(client, `${limit} concurrent cooldown ${window}ms`);
    await limiter.open();
    const send = clients[client](limiter, {}, t);
    const path = `/${encodeURIComponent(`${name} ${client}`)}`;
    const stop = busy();
    try {
      await Promise.all(Array.from({ length: requests }, async () => (await send(origin + path)).text()));
    } finally {
      stop();
    }
    const seen = await (await fetch(`${origin}/arrivals?of=${encodeURIComponent(path)}`)).json();
    const moments = seen.map(BigInt).sort((a, b) => (a < b ? -1 : 1));
    assert.equal(moments.length, requests);
    const most = mostWithin(moments, BigInt(window) * 1_000_000n);
    t.diagnostic(`${most} of ${limit} in any ${window} ms, ${requests} in ${(moments.at(-1) - moments[0]) / 1_000_000n} ms`);
    assert.ok(most <= limit, `${most} of ${limit}`);
  });
}

// (axios shows the head of a response only as a stream.)
const streaming = Object.keys(clients).filter((client) => !client.startsWith("axios") || client.endsWith("stream"));
for (const client of streaming) {
  test(`${client}: a response that is still being read has arrived`, async (t) => {
    const bodies = [];
    const { url } = await serve(t, (_request, response) => {
      response.write("head");
      bodies.push(response);
      // The first body ends only when the second request is here.
      if (bodies.length === 2) for (const body of bodies) body.end("body");
    });
    const limiter = new Store("memory:").limiter("one", "1 concurrent cooldown 1ms");
    const send = clients[client](limiter, {}, t);
    const read = async () => (await send(url)).text();
    assert.deepEqual(await Promise.all([read(), read()]), ["headbody", "headbody"]);
  });
}
