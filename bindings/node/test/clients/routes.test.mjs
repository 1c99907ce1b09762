// workglow-limit/fetch, /undici and /axios: the alternative that was chosen decides where a request goes.

import assert from "node:assert/strict";
import { test } from "node:test";
import axios from "axios";
import { Agent, interceptors, request } from "undici";
import { FirstOfLimiter, InvalidArgument, ManualClock, Store } from "workglow-limit";
import { limitAxios } from "workglow-limit/axios";
import { limitFetch } from "workglow-limit/fetch";
import { limitUndici } from "workglow-limit/undici";
import { settle } from "../helpers.mjs";
import { clients } from "./clients.mjs";
import { model, serve } from "./server.mjs";

/** The host that no request may reach. */
const NOWHERE = "http://provider.invalid";

function limits(one = "2/1m", two = "3/1m") {
  const store = new Store("memory:", { clock: new ManualClock() });
  return new FirstOfLimiter([store.limiter("one", one), store.limiter("two", two)]);
}

for (const [client, make] of Object.entries(clients)) {
  test(`${client}: requests go to the provider that was chosen`, async (t) => {
    const [one, two] = [await serve(t), await serve(t)];
    const to = { one: one.url, two: { baseUrl: `${two.url}/api/`, headers: { authorization: "Bearer two" } } };
    const send = make(limits(), { route: (chosen) => to[chosen.name], timeout: 0 }, t);
    for (let i = 0; i < 5; i++) {
      const headers = { authorization: "Bearer one", "x-own": String(i) };
      const response = await send(`${NOWHERE}/v1/x?a=1&b=%2F`, { method: "POST", headers, body: "abc" });
      assert.deepEqual([response.status, await response.text()], [200, "fine"]);
    }
    const seen = ({ arrivals }) => arrivals.map(({ path, body, headers }) => [path, body, headers["x-own"], headers.authorization]);
    const query = "?a=1&b=%2F";
    // What the program has for another host is not for this one.
    assert.deepEqual(
      seen(one),
      ["0", "1"].map((own) => [`/v1/x${query}`, "abc", own, undefined]),
    );
    assert.deepEqual(
      seen(two),
      ["2", "3", "4"].map((own) => [`/api/v1/x${query}`, "abc", own, "Bearer two"]),
    );
    for (const { arrivals, port } of [one, two]) assert.ok(arrivals.every(({ headers }) => headers.host === `127.0.0.1:${port}`));
  });

  test(`${client}: a refused request is repeated at the other provider`, async (t) => {
    const one = await serve(t, (_, response) => response.writeHead(429, { "retry-after": "20" }).end("not now"));
    const two = await serve(t);
    const to = { one: { baseUrl: one.url, headers: { "x-one": "1" } }, two: two.url };
    const send = make(limits(), { route: (chosen) => to[chosen.name], retries: 1, timeout: "30s" }, t);
    const response = await send(`${one.url}/x`, { method: "POST", headers: { authorization: "Bearer one" }, body: "abc" });
    assert.deepEqual([response.status, await response.text()], [200, "fine"]);
    const seen = ({ arrivals }) => arrivals.map(({ body, headers }) => [body, headers.authorization, headers["x-one"]]);
    // The first one is where the program itself would have sent it.
    assert.deepEqual([seen(one), seen(two)], [[["abc", "Bearer one", "1"]], [["abc", undefined, undefined]]]);
  });

  test(`${client}: without a route of its own a request goes where it would`, async (t) => {
    const [one, two] = [await serve(t), await serve(t)];
    const asked = [];
    let send = make(limits(), { route: (chosen) => (chosen.name === "two" ? two.url : undefined), timeout: 0 }, t);
    for (let i = 0; i < 5; i++) await (await send(`${one.url}/x`)).text();
    assert.deepEqual([one.arrivals.length, two.arrivals.length], [2, 3]);
    send = make(new Store("memory:").limiter("only", "9/1m"), { route: (chosen) => void asked.push(chosen), timeout: 0 }, t);
    await (await send(`${one.url}/x`)).text();
    assert.deepEqual([one.arrivals.length, asked], [3, []]);
  });

  test(`${client}: a route that fails sends nothing and charges nothing`, async (t) => {
    const { url, arrivals } = await serve(t);
    const limiter = limits("1 concurrent", "1/1m");
    const wrong = [5, "ftp://x", "http://u:p@x", "http://x?a", { url: "http://x" }, { baseUrl: "http://x", headers: { a: 5 } }, "x"];
    wrong.push({ baseUrl: "http://x", header: {} }); // A field that it does not know.
    for (const answer of wrong) {
      const of = (error) => error instanceof InvalidArgument || error.cause instanceof InvalidArgument;
      await assert.rejects(make(limiter, { route: () => answer }, t)(`${url}/x`), of);
    }
    const failing = () => {
      throw new RangeError("no");
    };
    await assert.rejects(make(limiter, { route: failing }, t)(`${url}/x`), (error) => `${error} ${error.cause}`.includes("no"));
    assert.deepEqual([limiter.peek().remaining, arrivals.length], [1, 0]);
    assert.throws(() => make(limiter, { route: "x" }, t), InvalidArgument);
  });
}

test("tokens of the provider that was chosen are settled, and a Request goes there, too", async (t) => {
  const [one, two] = [await serve(t, model()), await serve(t, model())];
  const store = new Store("memory:", { clock: new ManualClock() });
  const providers = new FirstOfLimiter(["one", "two"].map((name) => store.limiter(name, "requests: 2/1m + tokens: 5000/1m")));
  const to = { one: one.url, two: two.url };
  const send = limitFetch(providers, { tokens: "tokens", timeout: 0, route: (chosen) => to[chosen.name] });
  const asked = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ max_tokens: 500 }) };
  const used = [];
  for (let i = 0; i < 4; i++) {
    const url = `${NOWHERE}/v1/chat/completions`;
    const response = await (i % 2 === 0 ? send(url, asked) : send(new Request(url, asked)));
    used.push((await response.json()).usage.total_tokens);
  }
  assert.deepEqual([one.arrivals.length, two.arrivals.length], [2, 2]);
  assert.ok([...one.arrivals, ...two.arrivals].every(({ body }) => body === asked.body));
  const wanted = `${[5000 - used[0] - used[1], 5000 - used[2] - used[3]]}`;
  const left = () => `${["one", "two"].map((name) => store.limiter(`${name}/tokens`).peek({ weight: 0 }).remaining)}`;
  while (left() !== wanted) await settle(); // The end of a response does not wait for the end of its start.
});

for (const adapter of ["http", "fetch"]) {
  test(`axios by ${adapter}: the credentials of another origin stay here, and a header is removed`, async (t) => {
    const { url, arrivals } = await serve(t);
    const instance = axios.create({ adapter });
    const headers = { authorization: "Bearer one", "x-own": null };
    limitAxios(instance, limits(), { route: ({ name }) => (name === "one" ? { baseUrl: url, headers } : url), timeout: 0 });
    const asked = { auth: { username: "me", password: "secret" }, headers: { "x-own": "1", "x-auth-token": "secret" } };
    for (let i = 0; i < 2; i++) await instance.get(`${NOWHERE}/x`, asked);
    for (let i = 0; i < 2; i++) await instance.get(`http://me:secret@provider.invalid/x`);
    const seen = arrivals.map(({ headers }) => [headers.authorization, headers["x-own"], headers["x-auth-token"]]);
    const one = ["Bearer one", undefined, undefined];
    assert.deepEqual(seen.slice(0, 2), [one, one]);
    assert.deepEqual(seen.slice(2), [Array(3).fill(undefined), Array(3).fill(undefined)]);
  });

  test(`axios by ${adapter}: the config of an error is sent again as it was, and limited once`, async (t) => {
    const one = await serve(t, (_, response) => response.writeHead(500).end("no"));
    const two = await serve(t);
    const store = new Store("memory:", { clock: new ManualClock() });
    const providers = new FirstOfLimiter([store.limiter("one", "1/1m"), store.limiter("two", "1 concurrent")]);
    const to = { one: { baseUrl: `${one.url}/a`, headers: { "x-api-key": "A" } } };
    const instance = axios.create({ adapter });
    limitAxios(instance, providers, { route: (chosen) => to[chosen.name], timeout: 0 });
    const all = store.limiter("all", "1 concurrent");
    limitAxios(instance, all, { timeout: 0 });
    const error = await instance.get(`${two.url}/x`, { params: { b: 1 } }).catch((error) => error);
    assert.deepEqual([error.response?.status, error.config.url], [500, `${two.url}/x`]);
    assert.equal((await instance.request(error.config)).status, 200);
    const seen = [one, two].map(({ arrivals }) => arrivals.map(({ path, headers }) => [path, headers["x-api-key"]]));
    assert.deepEqual(seen, [[["/a/x?b=1", "A"]], [["/x?b=1", undefined]]]);
    assert.equal(all.stats().admitted, 2);
  });
}

test("one weight for alternatives with tokens is an error", async (t) => {
  const { url, arrivals } = await serve(t);
  const providers = new FirstOfLimiter([new Store("memory:").limiter("one", "requests: 9/1m + tokens: 9/1m")]);
  await assert.rejects(limitFetch(providers, { tokens: "tokens", weight: 7 })(url), /weight is 7: expected an object/);
  assert.equal(arrivals.length, 0);
});

for (const isAbsolute of [true, false]) {
  test(`undici: a redirect below the base URL is routed once (${isAbsolute ? "absolute" : "relative"})`, async (t) => {
    // The path of the base URL was put in front of it once more.
    const provider = await serve(t, ({ url }, response) => {
      const location = `${isAbsolute ? provider.url : ""}/api/x`;
      if (url === "/api/to") response.writeHead(302, { location }).end();
      else response.end("fine");
    });
    const limiter = new FirstOfLimiter([new Store("memory:").limiter("one", "9/1m")]);
    const agent = new Agent().compose(
      limitUndici(limiter, { route: () => `${provider.url}/api` }),
      interceptors.redirect({ maxRedirections: 3 }),
    );
    t.after(() => agent.close());
    const response = await request(`${NOWHERE}/to`, { dispatcher: agent });
    assert.deepEqual([response.statusCode, await response.body.text()], [200, "fine"]);
    assert.deepEqual(
      provider.arrivals.map(({ path }) => path),
      ["/api/to", "/api/x"],
    );
  });
}
