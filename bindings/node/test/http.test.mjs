// workglow-limit/http: pauses from responses of a real server, with each client.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import http from "node:http";
import { createRequire } from "node:module";
import { join } from "node:path";
import { before, after, test } from "node:test";
import * as package_ from "workglow-limit";
import { heed } from "workglow-limit/http";
import { manual } from "./helpers.mjs";

const cases = JSON.parse(readFileSync(join(import.meta.dirname, "../../../tests/http/heed.json"), "utf8"));

// GET /5 returns the response of case 5.
const server = http.createServer((request, response) => {
  const { status = 200, headers } = cases[Number(request.url.slice(1))];
  response.sendDate = false;
  const pairs = headers.map((line) => /^([^:]*): (.*)$/.exec(line).slice(1));
  response.writeHead(status, pairs.flat()).end();
});
before(() => new Promise((listening) => server.listen(0, "127.0.0.1", listening)));
after(() => server.close());

const clients = {
  fetch: (url) => fetch(url),
  "node:http": (url) => new Promise((resolve, reject) => http.get(url, (response) => resolve(response.resume())).on("error", reject)),
  // Other clients: their headers are pairs, or an object with the names as sent and lists of repeated headers.
  pairs: async (url) => {
    const { status, headers } = await fetch(url);
    return { status, headers: [...headers] };
  },
  object: async (url) => {
    const { status } = await fetch(url);
    const headers = {};
    for (const line of cases[Number(new URL(url).pathname.slice(1))].headers) {
      const [, name, value] = /^([^:]*): (.*)$/.exec(line);
      (headers[name] ??= []).push(value);
    }
    return { status, headers };
  },
};

for (const [client, get] of Object.entries(clients)) {
  test(`heed reads responses of ${client}`, async (t) => {
    const { limiter } = manual(package_, 9, 60);
    for (const [number, { name, now = 1.7e9, default: usual, longest, pause }] of cases.entries()) {
      const response = await get(`http://127.0.0.1:${server.address().port}/${number}`);
      assert.equal(limiter.peek({ key: "k" }).retryAfter, 0);
      const clock = t.mock.method(Date, "now", () => now * 1e3);
      const options = { key: "k", default: usual && usual * 1e3, longest: longest && `${longest}s` };
      assert.equal(await heed(limiter, response, options), pause * 1e3, name);
      clock.mock.restore();
      assert.equal(limiter.peek({ key: "k" }).retryAfter, pause * 1e3, name);
      assert.equal(limiter.peek({ key: "other" }).retryAfter, 0);
      await limiter.clear();
    }
  });
}

test("without a key all keys pause, and a later response does not shorten the pause", async () => {
  const { limiter } = manual(package_, 9, 60);
  assert.equal(await heed(limiter, { status: 429, headers: { "Retry-After": "20" } }), 20_000);
  assert.equal(await heed(limiter, { statusCode: 429, headers: { "retry-after": 5 } }), 5000);
  assert.equal(limiter.peek().retryAfter, 20_000);
  assert.equal(limiter.peek({ key: "k" }).retryAfter, 20_000);
});

test("heed works from CommonJS", async () => {
  const require = createRequire(import.meta.url);
  const { limiter } = manual(require("workglow-limit"), 9, 60);
  assert.equal(await require("workglow-limit/http").heed(limiter, new Response(null, { status: 429 })), 1000);
  assert.equal(limiter.peek().retryAfter, 1000);
});

test("invalid input is named", async () => {
  const { limiter } = manual(package_, 9, 60);
  const fine = { status: 429, headers: {} };
  const about = (name) => ({ name: "InvalidArgument", code: "invalid_argument", message: new RegExp(`^${name} is `) });
  for (const response of [undefined, null, 5, {}, { status: "429", headers: {} }, { status: 429 }, { status: 429, headers: "" }]) {
    await assert.rejects(heed(limiter, response), about("response"));
  }
  for (const bad of [undefined, null, {}, 5]) await assert.rejects(heed(bad, fine), about("limiter"));
  for (const name of ["default", "longest"]) {
    for (const bad of [-1, NaN, Infinity, "soon", {}, 367 * 864e5]) {
      await assert.rejects(heed(limiter, fine, { [name]: bad }), about(name));
    }
  }
  for (const bad of [null, 5, "\ud800"]) await assert.rejects(heed(limiter, fine, { key: bad }), about("key"));
  await assert.rejects(heed(limiter, fine, { kye: "k" }), about("options"));
  await assert.rejects(heed(limiter, fine, null), about("options"));
  assert.equal(limiter.peek().retryAfter, 0);
});
