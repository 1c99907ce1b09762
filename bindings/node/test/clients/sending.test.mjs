// workglow-limit/fetch, /undici and /axios: what holds for each client, with a real server.

import assert from "node:assert/strict";
import { once } from "node:events";
import { Readable } from "node:stream";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import * as package_ from "workglow-limit";
import { limitAxios } from "workglow-limit/axios";
import { limitFetch } from "workglow-limit/fetch";
import { limitUndici } from "workglow-limit/undici";
import axios from "axios";
import { manual, settle, together } from "../helpers.mjs";
import { clients, isEager, isWhole } from "./clients.mjs";
import { deadPort, model, mostInAnyWindow, serve } from "./server.mjs";

const { CompositeLimiter, ConcurrencyLimiter, RateLimiter, Store, TimeoutError } = package_;
const rate = (max, seconds = 3600) => new RateLimiter(new Store("memory:"), "rate", { maxExecutions: max, windowSizeInSeconds: seconds });

/** Waits until a condition holds. If it never does, the test's timeout reports it. */
async function until(holds) {
  while (!(await holds())) await settle();
}

/** Returns the remaining units of a limit. */
const left = (limiter, key) => limiter.peek({ key, weight: 0 }).remaining;

for (const [client, make] of Object.entries(clients)) {
  test(`${client}: requests and responses are the same as without a limit`, async (t) => {
    const { url, arrivals } = await serve(t, (request, response, body) => response.writeHead(418, { "x-one": "1" }).end(`got ${body}`));
    const limiter = rate(2);
    const send = make(limiter, {}, t);
    const response = await send(`${url}/a?b=c`, { method: "POST", headers: { "x-two": "2" }, body: "ümlaut" });
    assert.deepEqual([response.status, response.headers.get("x-one"), await response.text()], [418, "1", "got ümlaut"]);
    const [{ method, path, headers, body }] = arrivals;
    assert.deepEqual([method, path, headers["x-two"], body], ["POST", "/a?b=c", "2", "ümlaut"]);
    assert.equal(left(limiter), 1);
  });

  test(`${client}: the server never receives more requests than the limit`, async (t) => {
    const { url, arrivals } = await serve(t);
    // Without a timeout, a start is between the call and the arrival. On a busy machine some starts cannot be placed in a window.
    const send = make(rate(4, 0.1), { timeout: 0 }, t);
    const refused = [];
    const ask = async () => {
      const a = process.hrtime.bigint();
      await send(url, { headers: { "x-a": String(a) } }).then((response) => response.text());
    };
    // More at once than the limit, so that some are refused however slow the machine is.
    for (let round = 0; arrivals.length < 24; round++) {
      assert.ok(round < 10_000);
      await Promise.all(Array.from({ length: 6 }, () => ask().catch((error) => refused.push(error))));
      await settle();
    }
    assert.ok(refused.length > 0 && refused.every((error) => error instanceof TimeoutError), String(refused[0]));
    const starts = arrivals.map(({ at, headers }) => ({ a: BigInt(headers["x-a"]), b: at }));
    assert.ok(mostInAnyWindow(starts, 100_000_000n) <= 4);
  });

  test(`${client}: waiting requests are sent in order`, async (t) => {
    const { url, arrivals } = await serve(t);
    const { clock, limiter } = manual(package_, 2, 10);
    const send = make(limiter, {}, t);
    const sent = [0, 1, 2, 3, 4].map(async (number) => (await send(`${url}/${number}`)).text());
    await until(() => arrivals.length === 2);
    for (const count of [4, 5]) {
      const before = arrivals.length;
      await settle();
      assert.equal(arrivals.length, before);
      clock.advance("11s");
      await until(() => arrivals.length === count);
    }
    await Promise.all(sent);
    assert.deepEqual(arrivals.map(({ path }) => path.slice(1)).toSorted(), ["0", "1", "2", "3", "4"]);
  });

  test(`${client}: a concurrency limit counts open responses exactly`, async (t) => {
    let open = 0;
    let most = 0;
    const meet = together(3);
    const { url } = await serve(t, async (request, response) => {
      most = Math.max(most, ++open);
      response.write("be");
      await meet();
      await settle();
      open--;
      response.end("gin");
    });
    const send = make(new ConcurrencyLimiter(3), {}, t);
    const bodies = await Promise.all(Array.from({ length: 20 }, async () => (await send(url)).text()));
    assert.deepEqual(new Set(bodies), new Set(["begin"]));
    assert.equal(most, 3);
  });

  if (!isWhole(client)) {
    test(`${client}: a permit is held until the body is read, cancelled or broken`, async (t) => {
      const { url } = await serve(t, (request, response) => {
        response.write("x");
        if (request.url === "/break") setTimeout(() => response.destroy(), 5);
        else if (request.url === "/read") response.end("y");
      });
      const limiter = new ConcurrencyLimiter(1);
      const send = make(limiter, {}, t);
      const read = await send(`${url}/read`);
      if (!isEager(client)) assert.equal(left(limiter), 0);
      assert.equal(await read.text(), "xy");
      await until(() => left(limiter) === 1);
      const open = await send(`${url}/open`);
      assert.equal(left(limiter), 0);
      await open.cancel();
      await until(() => left(limiter) === 1);
      const broken = await send(`${url}/break`);
      await assert.rejects(broken.text());
      await until(() => left(limiter) === 1);
      const aborter = new AbortController();
      const aborted = await send(`${url}/open`, { signal: aborter.signal });
      const text = assert.rejects(aborted.text());
      aborter.abort();
      await text;
      await until(() => left(limiter) === 1);
    });
  }

  test(`${client}: a request that never arrived costs nothing, and one that may have arrived does`, async (t) => {
    const limiter = rate(3);
    const send = make(limiter, {}, t);
    await assert.rejects(send(`http://127.0.0.1:${await deadPort(t)}/`));
    await assert.rejects(send("http://no-such-host.invalid/"));
    await until(() => left(limiter) === 3);
    const { url } = await serve(t, (request, response) => response.destroy());
    await assert.rejects(send(url));
    await settle();
    assert.equal(left(limiter), 2);
  });

  test(`${client}: hosts, functions and keys choose the limit`, async (t) => {
    const [one, two] = [await serve(t), await serve(t)];
    const [first, second] = [rate(9), rate(9)];
    const get = async (send, url, init) => (await send(url, init)).text();
    const byHost = make(
      { [`127.0.0.1:${one.port}`]: first },
      { key: ({ headers }) => headers.get("x-tenant"), weight: ({ url }) => Number(url.searchParams.get("w") ?? 1) },
      t,
    );
    await get(byHost, `${one.url}/?w=4`, { headers: { "X-Tenant": "acme" } });
    await get(byHost, one.url);
    await get(byHost, two.url); // Not limited.
    assert.deepEqual([left(first, "acme"), left(first), left(first, "other")], [5, 8, 9]);
    const byFunction = make(
      ({ method, url }) => (method === "PUT" && url.port === String(two.port) ? second : null),
      { key: "k", weight: 2 },
      t,
    );
    await get(byFunction, one.url, { method: "PUT", body: "x" });
    await get(byFunction, two.url, { method: "PUT", body: "x" });
    await get(byFunction, two.url);
    assert.deepEqual([left(second, "k"), left(second)], [7, 9]);
    assert.equal(one.arrivals.length + two.arrivals.length, 6);
  });

  test(`${client}: a request that times out or is aborted is not sent, and holds nothing`, async (t) => {
    const { url, arrivals } = await serve(t);
    const limiter = new ConcurrencyLimiter(1);
    const held = limiter.tryAcquire();
    const error = await make(limiter, { timeout: 5 }, t)(url).catch((error) => error);
    assert.ok(error instanceof TimeoutError, String(error));
    const [own, all] = [new AbortController(), new AbortController()];
    const send = make(limiter, { signal: all.signal }, t);
    const waiting = [assert.rejects(send(url, { signal: own.signal })), assert.rejects(send(url))];
    await settle();
    own.abort();
    await waiting[0];
    all.abort();
    await waiting[1];
    held.complete();
    assert.equal(left(limiter), 1);
    assert.equal(arrivals.length, 0);
  });

  test(`${client}: the server's headers pause the limit, for the key of the request`, async (t) => {
    const { url } = await serve(t, (request, response) => {
      const answers = {
        "/429": [429, { "retry-after": "20" }],
        "/503": [503, { "retry-after": "30" }],
        "/none": [429, {}],
        "/empty": [200, { ratelimit: '"x";r=0;t=7' }],
      };
      response.writeHead(...answers[request.url]).end("slow down");
    });
    for (const [path, options, pause] of [
      ["/429", {}, 20_000],
      ["/429", { heed: { longest: "5s" } }, 5000],
      ["/429", { heed: false }, 0],
      ["/503", {}, 30_000],
      ["/none", { heed: { default: "3s" } }, 3000],
      ["/empty", {}, 7000],
    ]) {
      const { limiter } = manual(package_, 9, 60);
      const response = await make(limiter, options, t)(url + path);
      assert.equal(await response.text(), "slow down");
      assert.equal(limiter.peek({ key: "other" }).retryAfter, pause, path);
    }
    const { limiter } = manual(package_, 9, 60);
    await (await make(limiter, { key: "k" }, t)(`${url}/429`)).text();
    assert.deepEqual([limiter.peek({ key: "k" }).retryAfter, limiter.peek().retryAfter], [20_000, 0]);
    const store = new package_.Store("memory:", { clock: new package_.ManualClock() });
    const [one, two] = ["one", "two"].map((name) => store.limiter(name, "9/1m"));
    await (await make(new package_.FirstOfLimiter([one, two]), {}, t)(`${url}/429`)).text();
    assert.deepEqual([one.peek().retryAfter, two.peek().retryAfter], [20_000, 0], "the alternative that was used");
    for (const key of ["p", undefined]) {
      const [tenant, three, four] = ["tenant", "three", "four"].map((name) => store.limiter(`${name} ${key}`, "9/1m"));
      const both = new CompositeLimiter({ tenant, provider: new package_.FirstOfLimiter([three, four]) });
      await (await make(both, { key: { tenant: "t", provider: key } }, t)(`${url}/429`)).text();
      const pauses = [three.peek({ key }), three.peek({ key: "x" }), four.peek({ key }), tenant.peek({ key: "t" })];
      const found = pauses.map(({ retryAfter }) => retryAfter);
      assert.deepEqual(found, [20_000, key ? 0 : 20_000, 0, 0], "and only that, with the key of its part");
    }
    const [inner, other] = ["inner", "other"].map((name) => store.limiter(name, "requests: 9/1m + tokens: 9/1m"));
    const nested = new CompositeLimiter({ provider: new package_.FirstOfLimiter([inner, other]) });
    await (await make(nested, { key: { provider: "p", "provider/tokens": "t" } }, t)(`${url}/429`)).text();
    const parts = [inner.parts.requests, inner.parts.tokens, other.parts.requests, other.parts.tokens];
    const found = parts.map((part) => ["p", "t", ""].map((key) => part.peek({ key }).retryAfter));
    assert.deepEqual(found, [
      [20_000, 0, 0],
      [0, 20_000, 0],
      [0, 0, 0],
      [0, 0, 0],
    ]);
    const paused = [];
    const own = { tryAcquire: () => 1, retryAfter: () => 0, cancel() {}, pause: (ms, key) => paused.push([ms, key]) };
    await (await make(new package_.FirstOfLimiter([own, two]), {}, t)(`${url}/429`)).text();
    assert.deepEqual([paused, two.peek().retryAfter], [[[20_000, ""]], 0], "one of the program");
  });

  test(`${client}: refused requests are retried as often as allowed, with the same body`, async (t) => {
    let refusals = 2;
    const { url, arrivals } = await serve(t, (request, response, body) => {
      if (refusals-- > 0) response.writeHead(refusals ? 429 : 503).end("refused".repeat(10_000));
      else response.end(`got ${body}`);
    });
    const heed = { default: 5 };
    for (const [retries, status, count] of [
      [0, 429, 1],
      [1, 503, 2],
      [2, 200, 3],
      [9, 200, 3],
    ]) {
      refusals = 2;
      arrivals.length = 0;
      const limiter = new ConcurrencyLimiter(1); // If a refusal kept its permit, the retry would wait forever.
      const response = await make(limiter, { retries, heed }, t)(url, { method: "POST", body: "again" });
      const text = await response.text();
      assert.deepEqual([response.status, arrivals.length], [status, count]);
      assert.equal(text, status === 200 ? "got again" : "refused".repeat(10_000));
      assert.ok(arrivals.every(({ body }) => body === "again"));
      await until(() => left(limiter) === 1);
    }
    // No retry if the wait is longer than the timeout, or the body can be read only once.
    refusals = 1;
    arrivals.length = 0;
    await (await make(rate(9), { retries: 3, timeout: "2s", heed: { default: "3s" } }, t)(url)).text();
    assert.equal(arrivals.length, 1);
    if (client.startsWith("axios by fetch")) return; // It does not send Node's streams.
    refusals = 1;
    const once = await make(rate(9), { retries: 3, heed }, t)(url, { method: "POST", body: Readable.from(["a", "b"]) });
    assert.equal(await once.text(), "refused".repeat(10_000));
    assert.deepEqual(
      arrivals.map(({ body }) => body),
      ["", "ab"],
    );
  });

  test(`${client}: tokens are estimated, and settled by the used tokens of the response`, async (t) => {
    const { url } = await serve(t, model());
    const tokens = rate(1000);
    const send = make(new CompositeLimiter({ tokens }), { tokens: "tokens" }, t);
    const ask = async (path, body, headers) => {
      const before = left(tokens);
      const response = await send(url + path, {
        method: "POST",
        headers: { "content-type": "application/json", ...headers },
        body: JSON.stringify(body),
      });
      const held = before - left(tokens);
      await response.text();
      return held;
    };
    const messages = [{ role: "user", content: "x".repeat(36) }]; // With "user": 10 tokens.
    for (const [path, body, used] of [
      ["/v1/chat/completions", { messages, max_tokens: 100 }, 11],
      ["/v1/chat/completions", { messages, max_completion_tokens: 100, stream: true, stream_options: { include_usage: true } }, 11],
      ["/v1/chat/completions", { messages, max_tokens: 100, stream: true }, 110], // The response does not state its tokens.
      ["/v1/messages", { messages, max_tokens: 100 }, 15],
      ["/v1/messages", { messages, max_tokens: 100, stream: true }, 15],
    ]) {
      await tokens.clear();
      const held = await ask(path, body);
      if (!isWhole(client) && !isEager(client)) assert.equal(held, 110, path);
      await until(() => left(tokens) === 1000 - used);
    }
    // An estimate above the limit takes the whole limit; a request without a JSON body takes nothing.
    await tokens.clear();
    await ask("/v1/messages", { messages, max_tokens: 1e6 });
    await until(() => left(tokens) === 985);
    await (await send(url)).text();
    await settle();
    assert.equal(left(tokens), 985);
  });

  test(`${client}: a refusal uses no tokens, and an aborted response those stated so far`, async (t) => {
    const { url } = await serve(t, (request, response) => {
      if (request.url !== "/stream")
        return response.writeHead(Number(request.url.slice(1)), { "content-type": "application/json" }).end('{"error":{}}');
      response.writeHead(200, { "content-type": "text/event-stream" });
      response.write('data: {"message":{"usage":{"input_tokens":9,"output_tokens":1}}}\n\n');
      setTimeout(() => response.destroy(), 5);
    });
    for (const [path, cost] of [
      ["/400", 0],
      ["/429", 0],
      ["/503", 0],
      ["/529", 0],
      ["/500", 50],
      ["/200", 50],
      ["/stream", isWhole(client) ? 50 : 10],
    ]) {
      const tokens = rate(100);
      const send = make(new CompositeLimiter({ tokens }), { tokens: "tokens", estimate: () => 49.5, heed: false }, t);
      await send(url + path)
        .then((response) => response.text())
        .catch((error) => assert.equal(path, "/stream", error));
      await until(() => left(tokens) === 100 - cost);
    }
  });

  test(`${client}: functions of the caller estimate and read usage; their errors are reported`, async (t) => {
    const { url } = await serve(t, (request, response) =>
      response.writeHead(200, { "content-type": "application/x+json; charset=utf-8", "x-cost": "3" }).end('{"cost":2.5}'),
    );
    const tokens = rate(100);
    const usage = ({ cost }, { headers }) => cost * Number(typeof headers.get === "function" ? headers.get("x-cost") : headers["x-cost"]);
    const limiter = new CompositeLimiter({ tokens });
    const of = (options) => make(limiter, { tokens: "tokens", ...options }, t);
    await (await of({ estimate: ({ text }) => text.length, usage })(url, { method: "POST", body: "1234567890" })).text();
    await until(() => left(tokens) === 92);
    const warned = once(process, "warning");
    const bad = () => {
      throw new Error("mine");
    };
    assert.equal(await (await of({ estimate: () => 1, usage: bad })(url)).text(), '{"cost":2.5}');
    assert.match((await warned)[0].message, /usage.*mine/s);
    for (const [options, message] of [
      [{ estimate: bad }, /mine/],
      [{ estimate: () => -1 }, /estimate is -1/],
      [{ key: () => 5 }, /key is 5/],
      [{ estimate: () => ({ input: 1 }) }, /estimate is undefined/],
      [{ key: () => ({ tokens: 5 }) }, /key is 5.*for part "tokens"/],
      [{ weight: { tokens: () => "1" } }, /weight is "1".*for part "tokens"/],
      [{ weight: { other: 1 }, estimate: () => 1 }, /part is "other"/],
    ]) {
      await assert.rejects(of(options)(url), message);
    }
    await assert.rejects(make(() => 5, {}, t)(url), /limiter is 5/);
    await assert.rejects(
      make(() => rate(1), { tokens: "tokens" }, t)(url),
      /tokens is "tokens": expected a part of limiter "rate": it has none/,
    );
    await assert.rejects(make(rate(1), { weight: () => 0.5 }, t)(url), /^InvalidArgument: weight is 0.5/);
    await assert.rejects(make(rate(1), { weight: () => 2 }, t)(url), { name: "WeightExceedsCapacity" });
  });

  test(`${client}: requests, tokens and open responses are one start, and none takes unused units`, async (t) => {
    let open = 0;
    let most = 0;
    const { url, arrivals } = await serve(t, async (request, response, body) => {
      most = Math.max(most, ++open);
      await settle();
      open--;
      await model()(request, response, body);
    });
    const clock = new package_.ManualClock();
    const store = new Store("memory:", { clock });
    const limiter = store.limiter("llm", "requests: 4/1m + tokens: 60/1m + 3 concurrent");
    const { requests, tokens, concurrency } = limiter.parts;
    const send = make(limiter, { tokens: "tokens", estimate: () => 20 }, t);
    const body = JSON.stringify({ messages: [] });
    const sent = Array.from({ length: 12 }, async () => (await send(`${url}/v1/messages`, { method: "POST", body })).text());
    let isOver = false;
    const all = Promise.all(sent).finally(() => (isOver = true));
    for (let minutes = 1; !isOver; minutes++) {
      await settle();
      await settle();
      assert.ok(arrivals.length <= 4 * minutes && minutes < 1000, `${arrivals.length} in ${minutes} minutes`);
      clock.advance("1m");
    }
    await all;
    assert.equal(arrivals.length, 12);
    assert.ok(most <= 3, String(most));
    assert.equal(requests.stats().admitted, 12, "each was one start");
    clock.advance("2m");
    await until(() => left(concurrency) === 3);
    assert.deepEqual([left(requests), left(tokens)], [4, 60]);
  });

  test(`${client}: kinds of tokens and keys of parts are charged for themselves`, async (t) => {
    const { url } = await serve(t, model());
    const limiter = new Store("memory:").limiter("llm", "requests: 9/1h + in: 100/1h + out: 100/1h + tenant: 9/1h");
    const { requests, in: input, out: output, tenant } = limiter.parts;
    const send = make(limiter, { tokens: { input: "in", output: "out" }, key: { tenant: ({ headers }) => headers.get("x-tenant") } }, t);
    const headers = { "content-type": "application/json", "x-tenant": "acme" };
    const messages = [{ role: "user", content: "x".repeat(36) }];
    const answer = await send(`${url}/v1/messages`, { method: "POST", headers, body: JSON.stringify({ messages, max_tokens: 30 }) });
    if (!isWhole(client) && !isEager(client)) assert.deepEqual([left(input), left(output)], [90, 70]);
    await answer.text();
    await until(() => left(output) === 96);
    assert.deepEqual([left(input), left(requests), left(tenant, "acme"), left(tenant)], [89, 8, 8, 9]);
    await (await send(url, { headers })).text(); // It has no tokens.
    await settle();
    assert.deepEqual([left(input), left(output), left(requests), left(tenant, "acme")], [89, 96, 7, 7]);
    const double = make(limiter, { tokens: { output: "out" }, estimate: () => 1000, weight: 2, key: "k" }, t);
    await (await double(`${url}/v1/messages`, { method: "POST", headers, body: "{}" })).text();
    await until(() => left(output, "k") === 96);
    assert.deepEqual([left(input, "k"), left(requests, "k"), left(tenant, "k")], [98, 7, 7]);
  });

  test(`${client}: an exhausted limit does not delay requests to other hosts`, async (t) => {
    const { url, arrivals } = await serve(t);
    const full = rate(1);
    full.tryAcquire();
    const aborter = new AbortController();
    const send = make({ localhost: full, "127.0.0.1": rate(100) }, { signal: aborter.signal }, t);
    const waiting = assert.rejects(send(`http://localhost:${new URL(url).port}/`));
    for (let i = 0; i < 10; i++) await (await send(url)).text();
    assert.equal(arrivals.length, 10);
    aborter.abort();
    await waiting;
  });
}

test("a dispatcher reads the usage of a compressed stream", async (t) => {
  const { url } = await serve(t, (request, response) => {
    const packed = gzipSync('data: {"usage":{"total_tokens":12}}\n\n');
    response.writeHead(200, { "content-type": "text/event-stream", "content-encoding": "gzip" }).end(packed);
  });
  for (const [client, make] of Object.entries(clients)) {
    const tokens = rate(100);
    const response = await make(new CompositeLimiter({ tokens }), { tokens: "tokens", estimate: () => 50 }, t)(url);
    await response.text();
    await until(() => left(tokens) === 88);
    assert.ok(client);
  }
});

test("invalid options are named when a client is limited", () => {
  const limiter = rate(1);
  const made = {
    fetch: limitFetch,
    undici: limitUndici,
    axios: (limiter, options) => limitAxios(axios.create(), limiter, options),
  };
  for (const make of Object.values(made)) {
    const wrong = (name, given, options) =>
      assert.throws(() => make(given, options), { name: "InvalidArgument", message: new RegExp(`^${name} is `) });
    for (const bad of [undefined, null, 5, "x", [], {}, [limiter]]) wrong("limiter", bad, {});
    wrong('limiter\\["a.example"\\]', { "a.example": 5 });
    for (const host of ["https://a.example", "a.example/path", "", "a.example:x", "a b"]) wrong("limiter", { [host]: limiter });
    for (const bad of [5, null, "x", []]) wrong("options", limiter, bad);
    for (const [name, bad] of Object.entries({
      key: [5, ["k"], "\ud800", { tokens: 5 }],
      weight: ["1", 1.5, -1, [1], { tokens: "1" }],
      priority: [0.5, "high"],
      timeout: [-1, "soon", NaN],
      signal: [5, {}],
      retries: [-1, 1.5, 101, "3"],
      tokens: [5, null, [], { x: "tokens" }, "tokens"],
      heed: [5, null, "yes", { defualt: 1 }],
    })) {
      for (const value of bad) wrong(name, limiter, { [name]: value });
    }
    wrong("heed.default", limiter, { heed: { default: "soon" } });
    wrong("heed.longest", limiter, { heed: { longest: -1 } });
    for (const name of ["estimate", "usage"]) {
      wrong(name, limiter, { [name]: () => 1 }); // There is no limit of tokens.
      wrong(name, new CompositeLimiter({ tokens: limiter }), { [name]: 5, tokens: "tokens" });
    }
    wrong("options", limiter, { tiemout: 1 });
  }
  assert.throws(() => limitFetch(limiter, { fetch: 5 }), /^InvalidArgument: fetch is 5/);
  assert.throws(() => limitUndici(limiter, { fetch }), /^InvalidArgument: options is /);
  for (const bad of [undefined, null, 5, {}]) assert.throws(() => limitAxios(bad, limiter), /^InvalidArgument: instance is /);
});
