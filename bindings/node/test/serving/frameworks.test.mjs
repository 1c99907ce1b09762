// The entry of each framework, with the framework's own server and real connections.

import assert from "node:assert/strict";
import { get } from "node:http";
import { test } from "node:test";
import { CompositeLimiter, ConcurrencyLimiter, ManualClock, NullLimiter, RateLimiter, Store } from "workglow-limit";
import { frameworks, start, until } from "./servers.mjs";

// Its clock stands still unless a test moves it, so a slow machine does not change what headers say.
const memory = () => new Store("memory:", { clock: new ManualClock() });
const rate = (max, name = "api", store = memory()) => new RateLimiter(store, name, { maxExecutions: max, windowSizeInSeconds: 60 });

const used = ({ limiter }, key) => {
  const { limit, remaining } = limiter.peek({ key });
  return limit - remaining;
};

/** A limit that strangers have filled, with the key "known". */
function full(options = {}) {
  const store = new Store("memory:", { maxSize: 1 << 20, ...options });
  const limiter = store.limiter("jobs", "1000/1h");
  limiter.decide({ key: "known" });
  for (let i = 0; store.failures === 0; i++) {
    try {
      limiter.decide({ key: `stranger ${i}` });
    } catch (error) {
      assert.equal(error.code, "store_full");
    }
  }
  return limiter;
}

/** Parses the list of a structured field: names and parameters. */
const listOf = (field) =>
  Object.fromEntries(
    field.split(", ").map((member) => {
      const [, name, parameters] = /^"([^"]*)"((?:;[a-z]+=(?:\d+|"[^"]*"))*)$/.exec(member);
      return [
        name,
        Object.fromEntries(
          parameters
            .split(";")
            .slice(1)
            .map((one) => [one.split("=")[0], JSON.parse(one.split("=")[1])]),
        ),
      ];
    }),
  );

const ask = async (url, headers = {}) => {
  const response = await fetch(url, { headers, redirect: "manual" });
  return { status: response.status, headers: response.headers, body: await response.text() };
};

const statuses = async (count, url, headers) => {
  const found = [];
  for (let i = 0; i < count; i++) found.push((await ask(url, headers)).status);
  return found;
};

/** A body whose parts are sent on demand. */
function pieces() {
  const { promise, resolve } = Promise.withResolvers?.() ?? deferred();
  async function* body() {
    yield "first ";
    await promise;
    yield "last";
  }
  return { body, end: resolve };
}

function deferred() {
  let resolve;
  return { promise: new Promise((how) => (resolve = how)), resolve: (value) => resolve(value) };
}

/** Sends a request, and disconnects after the first bytes of the body. */
const leave = (url) =>
  new Promise((resolve, reject) => {
    const request = get(url, { agent: false }, (response) => response.once("data", () => resolve(request.destroy())));
    request.once("error", reject);
  });

for (const framework of frameworks) {
  test(`${framework}: one start charges each part of a limit, and responses name the fullest part and those that denied`, async (t) => {
    const limiter = memory().limiter("api", "requests: 20/1m + tenant: 3/1m + client: 10/2m + 5 concurrent");
    const url = await start(t, framework, {
      limits: [{ limiter, key: { tenant: "header:X-Tenant", client: "address" }, weight: { requests: 2 } }],
    });
    const first = await ask(url, { "x-tenant": "acme" });
    assert.equal(first.status, 200);
    assert.deepEqual(listOf(first.headers.get("ratelimit-policy")), {
      "api/requests": { q: 20, w: 60 },
      "api/tenant": { q: 3, w: 60 },
      "api/client": { q: 10, w: 120 },
      "api/concurrency": { q: 5, qu: "concurrent-requests" },
    });
    assert.deepEqual(listOf(first.headers.get("ratelimit")), { "api/tenant": { r: 2, t: 60 } });
    assert.deepEqual(await statuses(2, url, { "x-tenant": "acme" }), [200, 200]);
    const denied = await ask(url, { "x-tenant": "acme" });
    assert.equal(denied.status, 429);
    assert.deepEqual(listOf(denied.headers.get("ratelimit")), { "api/tenant": { r: 0, t: 60 } });
    assert.equal(denied.headers.get("retry-after"), "60");
    assert.deepEqual(JSON.parse(denied.body)["violated-policies"], ["api/tenant"]);
    // No other part was charged, so other tenants start.
    const { requests, tenant } = limiter.parts;
    await until(() => used({ limiter: limiter.parts.concurrency }) === 0);
    assert.deepEqual([requests.peek({ weight: 0 }).remaining, tenant.peek({ key: "acme", weight: 0 }).remaining], [14, 0]);
    const other = await ask(url, { "x-tenant": "other" });
    assert.deepEqual(listOf(other.headers.get("ratelimit")), { "api/requests": { r: 12, t: 60 } });
  });

  const it = (name, run) => test(`${framework}: ${name}`, { timeout: 60_000 }, run);

  it("a refusal has a status, fields and a problem", async (t) => {
    const url = await start(t, framework, { limits: [{ limiter: rate(2), key: "header:x-api-key" }] });
    const first = await ask(url, { "X-Api-Key": "a" });
    assert.deepEqual([first.status, first.body, first.headers.get("retry-after")], [200, "ok", null]);
    assert.deepEqual(listOf(first.headers.get("ratelimit-policy")), { api: { q: 2, w: 60 } });
    assert.deepEqual(listOf(first.headers.get("ratelimit")), { api: { r: 1, t: 60 } });
    assert.deepEqual(listOf((await ask(url, { "X-Api-Key": "a" })).headers.get("ratelimit")).api.r, 0);

    const { status, headers, body } = await ask(url, { "X-Api-Key": "a" });
    assert.equal(status, 429);
    assert.equal(headers.get("content-type"), "application/problem+json");
    assert.deepEqual(JSON.parse(body), {
      type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
      title: "Request cannot be satisfied as assigned quota has been exceeded",
      status: 429,
      "violated-policies": ["api"],
    });
    const after = Number(headers.get("retry-after"));
    assert.ok(Number.isInteger(after) && after >= 1 && after <= 60);
    assert.deepEqual(listOf(headers.get("ratelimit-policy")), { api: { q: 2, w: 60 } });
    assert.deepEqual(listOf(headers.get("ratelimit")), { api: { r: 0, t: after } });
    assert.equal((await ask(url, { "X-Api-Key": "b" })).status, 200, "another key");
  });

  it("Retry-After is rounded up, so a retry succeeds", async (t) => {
    const clock = new ManualClock();
    const store = new Store("memory:", { clock });
    const url = await start(t, framework, { limits: [{ limiter: store.limiter("api", "1/1500ms") }] });
    await ask(url);
    clock.advance(400);
    const { headers } = await ask(url);
    assert.equal(headers.get("retry-after"), "2"); // 1.1 s
    assert.deepEqual(listOf(headers.get("ratelimit-policy")), { api: { q: 1, w: 2 } });
    clock.advance("2s");
    assert.equal((await ask(url)).status, 200);
  });

  it("a request needs all of several limits, and a refusal takes units of none", async (t) => {
    const store = memory();
    const [wide, narrow] = [rate(10, "wide", store), rate(1, "narrow", store)];
    const url = await start(t, framework, { limits: [{ limiter: wide }, { limiter: narrow }] });
    const [first, second] = [await ask(url), await ask(url)];
    assert.deepEqual(listOf(first.headers.get("ratelimit")), { wide: { r: 9, t: 60 }, narrow: { r: 0, t: 60 } });
    assert.equal(second.status, 429);
    assert.deepEqual(JSON.parse(second.body)["violated-policies"], ["narrow"]);
    assert.deepEqual(Object.keys(listOf(second.headers.get("ratelimit-policy"))), ["wide", "narrow"]);
    assert.deepEqual(Object.keys(listOf(second.headers.get("ratelimit"))), ["narrow"]);
    assert.equal(used({ limiter: wide }), 1);
    assert.equal(narrow.stats().denied, 1, "the limit that denied did not count it");
  });

  it("all policies that denied are named, and the longest wait counts", async (t) => {
    const store = memory();
    const limits = [{ limiter: store.limiter("hour", "1/1h") }, { limiter: store.limiter("minute", "1/1m") }];
    const url = await start(t, framework, { limits });
    await ask(url);
    const { body, headers } = await ask(url);
    assert.deepEqual(JSON.parse(body)["violated-policies"], ["hour", "minute"]);
    assert.equal(headers.get("retry-after"), "3600");
    assert.deepEqual(listOf(headers.get("ratelimit")), { hour: { r: 0, t: 3600 }, minute: { r: 0, t: 60 } });
  });

  it("a route's limits add to the app's, and a refusal by either takes units of none", async (t) => {
    const store = memory();
    const [app, route] = [rate(5, "app", store), rate(4, "route", store)];
    const url = await start(
      t,
      framework,
      { limits: [{ limiter: app }] },
      {
        "/": () => ({}),
        "/heavy": { limits: [{ limiter: route, weight: 3 }], handler: () => ({}) },
      },
    );
    const first = await ask(`${url}/heavy`);
    assert.deepEqual(listOf(first.headers.get("ratelimit")), { app: { r: 4, t: 60 }, route: { r: 1, t: 60 } });
    const refused = await ask(`${url}/heavy`);
    assert.equal(refused.status, 429);
    assert.deepEqual(Object.keys(listOf(refused.headers.get("ratelimit-policy"))), ["app", "route"]);
    assert.deepEqual(Object.keys(listOf(refused.headers.get("ratelimit"))), ["route"]);
    assert.deepEqual([used({ limiter: app }), used({ limiter: route })], [1, 3]);
    assert.deepEqual(await statuses(5, `${url}/`), [200, 200, 200, 200, 429]);
    assert.equal((await ask(`${url}/heavy`)).status, 429);
    assert.equal(used({ limiter: route }), 3);
  });

  it("each plan has its limiter; keys and weights may be functions, sync and async", async (t) => {
    const store = memory();
    const read = (request, name) => request.headers?.get?.(name) ?? request.headers?.[name] ?? request.req?.header?.(name);
    const limits = [
      {
        limiter: { free: rate(2, "free", store), pro: rate(6, "pro", store) },
        plan: async (request) => read(request, "x-plan"),
        key: async (request) => read(request, "x-user"),
        weight: (request) => Number(read(request, "x-weight") ?? 1),
      },
    ];
    const url = await start(t, framework, { limits });
    assert.deepEqual(await statuses(3, url, { "x-plan": "free", "x-user": "a" }), [200, 200, 429]);
    assert.deepEqual(await statuses(3, url, { "x-plan": "pro", "x-user": "a", "x-weight": "3" }), [200, 200, 429]);
    const { headers } = await ask(url, { "x-plan": "pro", "x-user": "b" });
    assert.deepEqual(listOf(headers.get("ratelimit-policy")), { pro: { q: 6, w: 60 } });
    assert.deepEqual(await statuses(1, url, { "x-plan": "constructor", "x-user": "a" }), [500], "there is no plan of that name");
    assert.deepEqual(await statuses(1, url, { "x-plan": "pro", "x-user": "b", "x-weight": "0.5" }), [500], "no weight");
    assert.equal(limits[0].limiter.pro.peek({ key: "b" }).remaining, 5, "a failed request counts nothing");
  });

  if (framework !== "Next") {
    it("the same middleware twice on a request counts once", async (t) => {
      const limiter = rate(4);
      const url = await start(t, framework, { limits: [{ limiter, skipFailed: true }], twice: true });
      const { status, headers } = await ask(url);
      assert.equal(status, 200);
      assert.deepEqual(listOf(headers.get("ratelimit-policy")), { api: { q: 4, w: 60 } });
      assert.equal(headers.get("ratelimit-policy").split(",").length, 1);
      assert.deepEqual(await statuses(4, url), [200, 200, 200, 429]);
    });
  }

  it("exempt paths are not limited, and similar paths are", async (t) => {
    const limiter = rate(1);
    const handler = () => ({});
    const routes = { "/health": handler, "/healthy": handler, "/static/a/b": handler, "/statics": handler };
    const url = await start(t, framework, { limits: [{ limiter }], exempt: ["/health", "/static/*"] }, routes);
    for (const path of ["/health", "/health?deep=1", "/static/a/b"]) {
      const { status, headers } = await ask(url + path);
      assert.deepEqual([status, headers.get("ratelimit")], [200, null]);
    }
    assert.deepEqual([...(await statuses(1, `${url}/healthy`)), ...(await statuses(1, `${url}/statics`))], [200, 429]);
    const all = await start(t, framework, { limits: [{ limiter }], exempt: async () => true });
    assert.deepEqual(await statuses(3, all), [200, 200, 200]);
  });

  it("permits are held until the response ends, also of a stream", async (t) => {
    const limiter = new ConcurrencyLimiter(1);
    const { body, end } = pieces();
    const url = await start(
      t,
      framework,
      { limits: [{ limiter, name: "running" }] },
      { "/": () => ({}), "/stream": () => ({ body: body() }) },
    );
    const response = await fetch(`${url}/stream`);
    assert.deepEqual(listOf(response.headers.get("ratelimit-policy")), { running: { q: 1, qu: "concurrent-requests" } });
    const reader = response.body.getReader();
    await reader.read();
    const refused = await ask(`${url}/`);
    assert.equal(refused.status, 429);
    assert.ok(Number(refused.headers.get("retry-after")) >= 1);
    end();
    while (!(await reader.read()).done);
    await until(() => limiter.peek().admitted);
    assert.equal((await ask(`${url}/`)).status, 200);
  });

  it("a client that disconnects frees its permit", async (t) => {
    const limiter = new ConcurrencyLimiter(1);
    const { body } = pieces();
    const url = await start(
      t,
      framework,
      { limits: [{ limiter, name: "running" }] },
      { "/": () => ({}), "/stream": () => ({ body: body() }) },
    );
    await leave(`${url}/stream`);
    await until(() => limiter.peek().admitted);
    assert.equal((await ask(`${url}/`)).status, 200);
  });

  it("an error of the handler frees the permit", async (t) => {
    const limiter = new ConcurrencyLimiter(1);
    const fail = () => Promise.reject(new Error("planned"));
    const url = await start(t, framework, { limits: [{ limiter, name: "running" }] }, { "/": fail });
    for (let i = 0; i < 3; i++) {
      assert.equal((await ask(url)).status, 500);
      await until(() => limiter.peek().admitted);
    }
  });

  it("failures or successes do not count if they are skipped", async (t) => {
    const store = memory();
    const [failed, successful] = [rate(3, "failed", store), rate(3, "successful", store)];
    const limits = [
      { limiter: failed, skipFailed: true },
      { limiter: successful, skipSuccessful: true },
    ];
    const routes = { "/": () => ({}), "/400": () => ({ status: 400 }), "/throws": () => Promise.reject(new Error("planned")) };
    const url = await start(t, framework, { limits }, routes);
    const counted = (a, b) => until(() => used({ limiter: failed }) === a && used({ limiter: successful }) === b);
    await ask(`${url}/`);
    await counted(1, 0);
    await ask(`${url}/400`);
    await counted(1, 1);
    await ask(`${url}/throws`);
    await counted(1, 2);
    await ask(`${url}/`);
    await counted(2, 2);
    assert.equal(failed.stats().cancelled, 2);
  });

  it("functions of the status choose the failures and successes that do not count", async (t) => {
    const [limiter, running] = [rate(9), new ConcurrencyLimiter(1)];
    const skip = { skipFailed: (status) => status === 404, skipSuccessful: (status) => status === 202 };
    const limits = [
      { limiter, ...skip },
      { limiter: running, name: "running" },
    ];
    const routes = Object.fromEntries([200, 202, 400, 404].map((status) => [`/${status}`, () => ({ status })]));
    const url = await start(t, framework, { limits }, { ...routes, "/throws": () => Promise.reject(new Error("planned")) });
    const counts = { "/404": 0, "/200": 1, "/202": 1, "/400": 2, "/throws": 3 };
    for (const [path, count] of Object.entries(counts)) {
      await ask(url + path);
      await until(() => running.peek().admitted && used({ limiter }) === count);
    }
  });

  it("a function of the status that throws, or returns a promise, is reported, and the request counts", async (t) => {
    const warned = [];
    const warn = (warning) => warned.push(warning.message);
    process.on("warning", warn);
    t.after(() => process.off("warning", warn));
    const planned = () => {
      throw new Error("planned");
    };
    const functions = [planned, async () => true, async () => planned(), () => 1, () => undefined];
    const limiter = rate(9);
    const limits = [{ limiter, skipSuccessful: (status) => functions.shift()(status) }];
    const url = await start(t, framework, { limits });
    const reports = [/Error: planned/, /is an object: expected/, /is an object: expected/, /is 1: expected/, /is undefined: expected/];
    for (const [i, report] of reports.entries()) {
      assert.equal((await ask(url)).status, 200);
      await until(() => warned.length === i + 1);
      assert.match(warned[i], /^skipSuccessful failed, so a request with the status 200 counts: /);
      assert.match(warned[i], report);
    }
    assert.deepEqual([used({ limiter }), limiter.stats().cancelled], [reports.length, 0]);
  });

  it("a client that disconnects early counts, so this does not evade a limit", async (t) => {
    const limiter = rate(2);
    const { body } = pieces();
    const running = new ConcurrencyLimiter(5);
    const limits = [{ limiter: running }, { limiter, skipSuccessful: true }];
    const url = await start(t, framework, { limits }, { "/stream": () => ({ body: body() }) });
    await leave(`${url}/stream`);
    await leave(`${url}/stream`);
    await until(() => running.peek().remaining === 5);
    assert.equal(used({ limiter }), 2);
    assert.deepEqual(await statuses(1, `${url}/stream`), [429]);
  });

  it("shadow mode counts, reports, and never refuses, even after an error", async (t) => {
    const limiter = rate(1);
    const refusals = [];
    const warned = [];
    const warn = (warning) => warned.push(warning.message);
    process.on("warning", warn);
    t.after(() => process.off("warning", warn));
    const broken = { limiter: rate(1, "broken"), key: () => Promise.reject(new Error("planned")), shadow: true };
    const onLimited = (request, { name, shadow, violated }) => void refusals.push({ name, shadow, violated });
    const url = await start(t, framework, { limits: [{ limiter, shadow: true }, broken], onLimited });
    const { headers } = await ask(url);
    assert.equal(headers.get("ratelimit"), null);
    assert.deepEqual(await statuses(2, url), [200, 200]);
    assert.deepEqual(refusals, Array(2).fill({ name: "api", shadow: true, violated: ["api"] }));
    assert.equal(used({ limiter }), 1);
    await until(() => warned.length === 3);
    assert.match(warned[0], /shadow mode failed: Error: planned/);
  });

  it("an app can send its own bodies", async (t) => {
    const replies = [{ error: "slow down" }, "slow down", new TextEncoder().encode("slow"), null, 7];
    const limited = [];
    const onLimited = async (request, one) => {
      limited.push(one);
      return replies.shift();
    };
    const url = await start(t, framework, { limits: [{ limiter: rate(1), weight: 1 }], onLimited });
    await ask(url);
    const said = [];
    for (let i = 0; i < 4; i++) {
      const { status, headers, body } = await ask(url);
      assert.ok(headers.get("retry-after"));
      said.push([status, headers.get("content-type"), body.slice(0, 24)]);
    }
    assert.deepEqual(said, [
      [429, "application/problem+json", '{"error":"slow down"}'],
      [429, "text/plain; charset=utf-8", "slow down"],
      [429, "application/octet-stream", "slow"],
      [429, "application/problem+json", '{"type":"https://iana.or'],
    ]);
    assert.equal((await ask(url)).status, 500, "a number is not a body");
    const [{ name, key, limit, remaining, retryAfter, shadow, status }] = limited;
    assert.deepEqual([name, key, limit, remaining, shadow, status], ["api", "", 1, 0, false, 429]);
    assert.ok(retryAfter > 0 && retryAfter <= 60_000);
  });

  it("headers can be switched off", async (t) => {
    const url = await start(t, framework, { limits: [{ limiter: rate(1) }], headers: false });
    for (const status of [200, 429]) {
      const response = await ask(url);
      assert.deepEqual(
        [response.status, response.headers.get("ratelimit"), response.headers.get("ratelimit-policy")],
        [status, null, null],
      );
      assert.equal(response.headers.has("retry-after"), status === 429);
    }
  });

  it("a limit without a window states none, no limit states nothing, and names are quoted", async (t) => {
    const store = memory();
    const limits = [
      { limiter: store.limiter("bucket", "10/10s burst 5") },
      { limiter: store.limiter("both", "100/1m + 5 concurrent") },
      { limiter: new CompositeLimiter([rate(7, "part")]), name: "composite" },
      { limiter: store.limiter("windows", "100/1m + 5/1s") },
      { limiter: store.limiter("day", "1000/1d fixed"), name: 'a "day"' },
      { limiter: new NullLimiter(), name: "none" },
    ];
    const url = await start(t, framework, { limits });
    const { headers } = await ask(url);
    assert.equal(
      headers.get("ratelimit-policy"),
      '"bucket";q=5, "both";q=5, "composite";q=7, "windows";q=5;w=1, "a \\"day\\"";q=1000;w=86400',
    );
  });

  it("a decision that the store fails is an error, and holds no permits of other limits", async (t) => {
    const other = rate(5, "other");
    const broken = rate(5, "broken", new Store("sqlite:/nonexistent/limits.db"));
    const url = await start(t, framework, { limits: [{ limiter: other }, { limiter: broken }] });
    assert.deepEqual(await statuses(2, url), [500, 500]);
    assert.equal(used({ limiter: other }), 0);
    const open = rate(5, "open", new Store("sqlite:/nonexistent/limits.db", { onError: "admit" }));
    assert.deepEqual(await statuses(2, await start(t, framework, { limits: [{ limiter: open }] })), [200, 200]);
  });

  it("a client that is new at a full store gets 503, and known ones are served", async (t) => {
    const limiter = full();
    let asked = 0;
    const url = await start(t, framework, { limits: [{ limiter, key: "header:x-key" }], onLimited: () => void asked++ });
    const { status, headers, body } = await ask(url, { "x-key": "new" });
    assert.deepEqual([status, headers.get("retry-after")], [503, "1"]);
    assert.match(headers.get("content-type"), /^application\/problem\+json/);
    assert.deepEqual(JSON.parse(body), { type: "about:blank", title: "Service Unavailable", status: 503 });
    assert.deepEqual(await statuses(2, url, { "x-key": "known" }), [200, 200]);
    assert.equal(asked, 0);
    for (const [onError, expected] of [
      ["admit", 200],
      ["deny", 429],
    ]) {
      const other = await start(t, framework, { limits: [{ limiter: full({ onError }), key: "header:x-key" }] });
      assert.deepEqual(await statuses(1, other, { "x-key": "new" }), [expected]);
    }
  });
}
