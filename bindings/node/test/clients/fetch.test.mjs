// workglow-limit/fetch: the response, unread bodies, and Node's own fetch through a dispatcher.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { createRequire } from "node:module";
import { test } from "node:test";
import { promisify } from "node:util";
import { CompositeLimiter, ConcurrencyLimiter, Store } from "workglow-limit";
import { limitFetch } from "workglow-limit/fetch";
import { limitUndici } from "workglow-limit/undici";
import { settle } from "../helpers.mjs";
import { undici } from "./clients.mjs";
import { model, serve } from "./server.mjs";

const left = (limiter) => limiter.peek({ weight: 0 }).remaining;

async function until(holds) {
  while (!holds()) await settle();
}

test("the response is unchanged, and so is its clone", async (t) => {
  const { url } = await serve(t, (request, response) => {
    if (request.url === "/from") return response.writeHead(302, { location: "/to" }).end();
    response
      .writeHead(request.url === "/999" ? 999 : 200, "Right", [
        ["set-cookie", "a=1"],
        ["set-cookie", "b=2"],
      ])
      .end('{"a":1}');
  });
  const limiter = new ConcurrencyLimiter(1);
  const send = limitFetch(limiter);
  const response = await send(new URL("/from", url));
  const plain = await fetch(new URL("/from", url));
  for (const one of [response, response.clone()]) {
    assert.ok(one instanceof Response);
    for (const name of ["url", "redirected", "type", "status", "statusText", "ok"]) assert.equal(one[name], plain[name], name);
    assert.deepEqual([...one.headers.getSetCookie()], ["a=1", "b=2"]);
    if (one !== response) assert.deepEqual(await one.json(), { a: 1 });
  }
  assert.deepEqual(await response.json(), { a: 1 });
  await until(() => left(limiter) === 1);
  assert.equal((await send(new Request(`${url}/`, { method: "POST", body: "x" }))).status, 200);
  await assert.rejects(send("no url"), TypeError);
});

test("a Request is limited by its contents, and sent once", async (t) => {
  const { url, arrivals } = await serve(t, (request, response) =>
    response.writeHead(503, { "content-type": "application/json" }).end("{}"),
  );
  const tokens = new Store("memory:").limiter("tokens", "100/1h");
  const texts = [];
  const send = limitFetch(
    { "127.0.0.1": new CompositeLimiter({ slots: new ConcurrencyLimiter(1), tokens }) },
    {
      tokens: "tokens",
      estimate: ({ method, headers, text }) => texts.push([method, headers.get("x-a"), text]),
      retries: 3,
      heed: { default: 1 },
    },
  );
  const headers = { "content-type": "application/json", "x-a": "1" };
  const refused = await send(new Request(url, { method: "PUT", headers, body: '{"a":1}' }));
  assert.deepEqual([refused.status, await refused.text()], [503, "{}"]);
  assert.deepEqual(texts, [["PUT", "1", '{"a":1}']]);
  assert.deepEqual(
    arrivals.map(({ body }) => body),
    ['{"a":1}'],
  ); // Its body was a stream.
  assert.equal(await (await send(new Request(url))).text(), "{}");
  assert.equal(arrivals.length, 5);
  assert.deepEqual(texts[1], ["GET", null, null]);
});

test("a response without a body, and a test double, end at once", async (t) => {
  const { url } = await serve(t, (request, response) => response.writeHead(204).end());
  const limiter = new ConcurrencyLimiter(1);
  assert.equal((await limitFetch(limiter)(url)).status, 204);
  assert.equal((await limitFetch(limiter)(url, { method: "HEAD" })).status, 204);
  const fake = { status: 200, headers: new Headers(), json: async () => 5 };
  assert.equal(await limitFetch(limiter, { fetch: async () => fake })(url), fake);
  await until(() => left(limiter) === 1);
});

test("a response that is dropped unread ends when it is collected", async (t) => {
  const { url } = await serve(t, (request, response) => response.write("never read"));
  const program = `
    import { ConcurrencyLimiter } from "workglow-limit";
    import { limitFetch } from "workglow-limit/fetch";
    const limiter = new ConcurrencyLimiter(1);
    const send = limitFetch(limiter);
    for (let i = 0; i < 3; i++) {
      await send(process.env.URL);
      while (limiter.peek({ weight: 0 }).remaining === 0) {
        await new Promise((resolve) => setTimeout(resolve, 5));
        gc();
      }
    }
    console.log("collected");
    process.exit();`;

  const args = ["--expose-gc", "--input-type=module", "--eval", program];
  const { stdout } = await promisify(execFile)(process.execPath, args, { cwd: import.meta.dirname, env: { ...process.env, URL: url } });
  assert.equal(stdout, "collected\n");
});

for (const [version, { Agent }] of Object.entries(undici)) {
  test(`undici ${version}: errors of handlers and of invalid requests are reported as undici reports them`, async (t) => {
    const { url } = await serve(t);
    const limiter = new ConcurrencyLimiter(1);
    const agent = new Agent();
    t.after(() => agent.close());
    const limited = agent.compose(limitUndici(limiter));
    const outcome = (options, where) =>
      new Promise((resolve) => {
        const handler = {
          onRequestStart() {},
          onResponseStart() {},
          onResponseData() {},
          onResponseEnd: () => resolve("ended"),
          onResponseError: (_, error) => resolve(error.message),
        };
        if (where)
          handler[where] = () => {
            throw new Error("mine");
          };
        limited.dispatch(options, handler);
      });
    for (const where of ["onResponseStart", "onResponseData", "onResponseEnd"]) {
      assert.equal(await outcome({ origin: url, path: "/", method: "GET" }, where), "mine", where);
      await until(() => left(limiter) === 1);
    }
    assert.equal(await outcome({ origin: url, path: "/", method: "GET" }), "ended");
    await assert.rejects(undici[version].request(url, { method: "G T", dispatcher: limited }), /invalid request method/);
    await until(() => left(limiter) === 1);
  });
}

for (const [version, { Client }] of Object.entries(undici)) {
  test(`a client of undici ${version}, which has one origin, is limited`, async (t) => {
    const { url, arrivals } = await serve(t);
    const limiter = new ConcurrencyLimiter(1);
    const client = new Client(url);
    t.after(() => client.close());
    const { body } = await client.compose(limitUndici(limiter, { key: ({ url }) => url.pathname })).request({ path: "/a", method: "GET" });
    assert.equal(await body.text(), "fine");
    assert.equal(arrivals.length, 1);
    assert.equal(limiter.stats({ key: "/a" }).admitted, 1);
  });
}

for (const [version, { Agent, getGlobalDispatcher, setGlobalDispatcher }] of Object.entries(undici)) {
  test(`Node's own fetch is limited by the global dispatcher of undici ${version}`, async (t) => {
    const { url, arrivals } = await serve(t, model());
    const before = getGlobalDispatcher();
    t.after(() => setGlobalDispatcher(before));
    const limiter = new Store("memory:").limiter("requests", "5/1h + 1 concurrent");
    const agent = new Agent();
    t.after(() => agent.close());
    setGlobalDispatcher(agent.compose(limitUndici({ "127.0.0.1": limiter })));
    const body = JSON.stringify({ stream: true });
    const texts = [0, 1, 2].map(async () => (await fetch(`${url}/v1/messages`, { method: "POST", body })).text());
    for (const text of await Promise.all(texts)) assert.match(text, /message_stop/);
    assert.equal(arrivals.length, 3);
    assert.ok(arrivals.every((arrival) => arrival.body === body));
    await until(() => left(limiter) === 1);
    const held = limiter.tryAcquire();
    const aborter = new AbortController();
    const waiting = assert.rejects(fetch(url, { signal: aborter.signal }), { name: "AbortError" });
    await settle();
    aborter.abort();
    await waiting;
    held.cancel();
    await until(() => limiter.stats().admitted === 4);
    assert.equal(arrivals.length, 3);
  });
}

test("CommonJS limits, too, with imported limiters", async (t) => {
  const require = createRequire(import.meta.url);
  const { url } = await serve(t);
  const limiter = new ConcurrencyLimiter(1);
  for (const name of ["axios", "fetch", "undici"])
    assert.deepEqual(require(`workglow-limit/${name}`), { ...(await import(`workglow-limit/${name}`)) });
  assert.equal(await (await require("workglow-limit/fetch").limitFetch(limiter)(url)).text(), "fine");
});
