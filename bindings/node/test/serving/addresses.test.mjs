// The client of a request, with proxies that lie, as a real server reads raw requests.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer, request } from "node:http";
import { networkInterfaces } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import express from "express";
import { NullLimiter } from "workglow-limit";
import { limitRequests } from "workglow-limit/express";
import { directory } from "../helpers.mjs";

/** Returns the key of a request with these headers, in a server with these options. */
async function keyOf(t, options, headers = {}, { key = "address", host = "127.0.0.1", socket, user } = {}) {
  const keys = [];
  const limiter = new NullLimiter();
  limiter.decideAsync = (start) => {
    keys.push(start.key);
    return NullLimiter.prototype.decideAsync.call(limiter, start);
  };
  const app = express();
  if (user !== undefined) app.use((request, response, next) => next(void (request.user = user)));
  app.use(limitRequests({ ...options, limits: [{ limiter, key, name: "all" }] }));
  app.get("/", (request, response) => response.send("ok"));
  app.use((error, request, response, next) => response.status(500).send(error.message));
  const server = createServer(app).listen(...(socket === undefined ? [0, host] : [socket]));
  await once(server, "listening");
  const to = socket === undefined ? { host, port: server.address().port } : { socketPath: socket };
  const [response] = await once(request({ ...to, headers, agent: false }).end(), "response");
  const body = (await response.setEncoding("utf8").toArray()).join("");
  server.close();
  return response.statusCode === 200 ? keys[0] : body;
}

const table = (name, options, rows) =>
  test(name, async (t) => {
    for (const [headers, expected] of rows) {
      assert.equal(await keyOf(t, options, headers), expected, JSON.stringify(headers));
    }
  });

table("without trusted proxies headers are only words", {}, [
  [{}, "127.0.0.1"],
  [{ "X-Forwarded-For": "1.2.3.4" }, "127.0.0.1"],
  [{ Forwarded: "for=1.2.3.4" }, "127.0.0.1"],
]);

for (const header of ["CF-Connecting-IP", "Fly-Client-IP", "True-Client-IP", "X-Real-IP"]) {
  table(`${header} has one address, the client's`, { trustedProxies: ["127.0.0.1"], forwardedHeader: header }, [
    [{}, "127.0.0.1"],
    [{ [header]: "9.9.9.9" }, "9.9.9.9"],
    [{ [header]: "2001:db8:1:2:3::4" }, "2001:db8:1:2::/64"],
    [{ [header]: "1.1.1.1, 9.9.9.9" }, "127.0.0.1"],
    [{ [header]: ["1.1.1.1", "9.9.9.9"] }, "127.0.0.1"],
    [{ [header]: "unknown" }, "127.0.0.1"],
    [{ "X-Forwarded-For": "9.9.9.9" }, "127.0.0.1"],
  ]);
  table(`a peer that is no proxy writes no ${header}`, { trustedProxies: ["10.0.0.0/8"], forwardedHeader: header }, [
    [{ [header]: "9.9.9.9" }, "127.0.0.1"],
  ]);
}

table("a peer that is no proxy cannot lie", { trustedProxies: ["10.0.0.0/8"] }, [[{ "X-Forwarded-For": "1.2.3.4" }, "127.0.0.1"]]);

table(
  "X-Forwarded-For is read from the right, to the first that is no proxy",
  { trustedProxies: ["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"] },
  [
    [{}, "127.0.0.1"],
    [{ "X-Forwarded-For": "9.9.9.9" }, "9.9.9.9"],
    [{ "X-Forwarded-For": "1.1.1.1, 9.9.9.9" }, "9.9.9.9"],
    [{ "X-Forwarded-For": "1.1.1.1, 9.9.9.9, 10.1.2.3" }, "9.9.9.9"],
    [{ "X-Forwarded-For": ["1.1.1.1", "9.9.9.9", "10.1.2.3"] }, "9.9.9.9"],
    [{ "X-Forwarded-For": "10.9.9.9, 10.1.2.3" }, "10.9.9.9"],
    [{ "X-Forwarded-For": "9.9.9.9:4711,10.1.2.3:80" }, "9.9.9.9"],
    [{ "X-Forwarded-For": "::ffff:9.9.9.9, ::ffff:10.1.2.3" }, "9.9.9.9"],
    [{ "X-Forwarded-For": "[2a00:1:2:3:4::5]:443, 2001:DB8::1" }, "2a00:1:2:3::/64"],
    [{ "X-Forwarded-For": "fe80::1%eth0" }, "fe80::/64"],
    // An invalid entry ends the search.
    [{ "X-Forwarded-For": "9.9.9.9, unknown" }, "127.0.0.1"],
    [{ "X-Forwarded-For": "9.9.9.9, unknown, 10.1.2.3" }, "10.1.2.3"],
    [{ "X-Forwarded-For": "9.9.9.9,, 10.1.2.3" }, "10.1.2.3"],
    [{ "X-Forwarded-For": "9.9.9" }, "127.0.0.1"],
    [{ "X-Forwarded-For": "010.9.9.9" }, "127.0.0.1"],
    [{ "X-Forwarded-For": "1".repeat(8000) }, "127.0.0.1"],
    [{ Forwarded: "for=9.9.9.9" }, "127.0.0.1"],
  ],
);

table("Forwarded is read likewise", { trustedProxies: ["127.0.0.1", "10.0.0.0/8"], forwardedHeader: "Forwarded" }, [
  [{ Forwarded: "for=9.9.9.9" }, "9.9.9.9"],
  [{ Forwarded: 'for="9.9.9.9:80";proto=https, FOR=10.1.2.3;by=10.0.0.1' }, "9.9.9.9"],
  [{ Forwarded: 'for=1.1.1.1, proto=http; for="[2a00:1:2:3:4::5]:4711"' }, "2a00:1:2:3::/64"],
  [{ Forwarded: 'for=1.1.1.1, for=9.9.9.9;host="a,b"' }, "9.9.9.9"],
  [{ Forwarded: "for=1.1.1.1, for=_hidden" }, "127.0.0.1"],
  [{ Forwarded: "for=1.1.1.1, for=unknown, for=10.1.2.3" }, "10.1.2.3"],
  [{ Forwarded: "for=1.1.1.1, proto=http" }, "127.0.0.1"],
  [{ Forwarded: "for=1.1.1.1, for=9.9.9.9;for=8.8.8.8" }, "127.0.0.1"],
  // A quotation that the client has not closed includes what the proxy adds.
  [{ Forwarded: 'for="1.1.1.1, for=9.9.9.9' }, "127.0.0.1"],
  [{ Forwarded: `host="${'\\"'.repeat(3000)}, for=9.9.9.9` }, "127.0.0.1"],
  [{ "X-Forwarded-For": "9.9.9.9" }, "127.0.0.1"],
]);

test("IPv6 addresses of one prefix are one client", async (t) => {
  const from = (ipv6Prefix, address) => keyOf(t, { trustedProxies: ["127.0.0.1"], ipv6Prefix }, { "X-Forwarded-For": address });
  assert.equal(await from(undefined, "2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  assert.equal(await from(56, "2001:db8:1:2fff:3:4:5:6"), "2001:db8:1:2f00::/56");
  assert.equal(await from(1, "ffff::1"), "8000::/1");
  assert.equal(await from(128, "2001:0db8:0:0:1:0:0:1"), "2001:db8::1:0:0:1");
  assert.equal(await from(64, "::1"), "::/64");
});

test("a peer on a Unix socket is trusted if it is declared", async (t) => {
  const socket = join(directory(t), "s");
  const headers = { "X-Forwarded-For": "9.9.9.9" };
  assert.equal(await keyOf(t, {}, headers, { socket }), "unix");
  assert.equal(await keyOf(t, { trustedProxies: ["unix"] }, headers, { socket }), "9.9.9.9");
  assert.equal(await keyOf(t, { trustedProxies: ["unix"] }, {}, { socket }), "unix");
});

test("an IPv4 peer of a dual-stack socket has an IPv4 address, and an IPv6 peer may be a proxy", async (t) => {
  if (networkInterfaces().lo?.every(({ family }) => family !== "IPv6")) return t.skip("this machine has no IPv6");
  assert.equal(await keyOf(t, {}, {}, { host: "::ffff:127.0.0.1" }), "127.0.0.1");
  assert.equal(await keyOf(t, { trustedProxies: ["::1"] }, { "X-Forwarded-For": "9.9.9.9" }, { host: "::1" }), "9.9.9.9");
});

test("headers, users and functions can be keys, and a request without one counts by its address", async (t) => {
  const key = "header:X-API-Key";
  assert.equal(await keyOf(t, {}, { "x-api-key": "secret" }, { key }), "secret");
  assert.equal(await keyOf(t, {}, {}, { key }), "address:127.0.0.1");
  assert.match(await keyOf(t, {}, { "x-api-key": "k".repeat(1025) }, { key }), /^sha256:[0-9a-f]{64}$/);
  assert.equal(await keyOf(t, {}, { "x-api-key": "k".repeat(1024) }, { key }), "k".repeat(1024));
  for (const claim of ["address:127.0.0.1", `sha256:${"0".repeat(64)}`]) {
    const found = await keyOf(t, {}, { "x-api-key": claim }, { key });
    assert.ok(/^sha256:[0-9a-f]{64}$/.test(found) && found !== claim, "a client chose the key of another");
  }
  assert.equal(await keyOf(t, {}, {}, { key: "user" }), "address:127.0.0.1");
  for (const [user, expected] of [
    ["ann", "ann"],
    [7, "7"],
    [{ id: 8 }, "8"],
    [{ sub: "auth0|9" }, "auth0|9"],
    [null, "address:127.0.0.1"],
  ]) {
    assert.equal(await keyOf(t, {}, {}, { key: "user", user }), expected);
  }
  assert.match(await keyOf(t, {}, {}, { key: "user", user: { name: "ann" } }), /user is an object: expected .*id or sub/);
  assert.equal(await keyOf(t, {}, {}, { key: () => null }), "");
  assert.equal(await keyOf(t, {}, {}, { key: async () => "\ud800" }), "\ufffd");
  assert.match(await keyOf(t, {}, {}, { key: () => 7 }), /key is 7: expected a string/);
});
