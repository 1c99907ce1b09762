// The handshakes of WebSockets under a limit: real WebSockets of ws, on the server of an Express app.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { connect } from "node:net";
import { text } from "node:stream/consumers";
import { test } from "node:test";
import express from "express";
import { WebSocket, WebSocketServer } from "ws";
import { ConcurrencyLimiter, InvalidArgument, ManualClock, RateLimiter, Store } from "workglow-limit";
import { limitRequests } from "workglow-limit/express";
import { limitUpgrades } from "workglow-limit/upgrade";
import { until } from "./servers.mjs";

const rate = (max, name = "api") =>
  new RateLimiter(new Store("memory:", { clock: new ManualClock() }), name, { maxExecutions: max, windowSizeInSeconds: 60 });

/** Starts an Express app whose server upgrades to WebSockets, which repeat what they are sent. `listenerOf` wraps the listener. */
async function start(t, listenerOf, app = express()) {
  const server = createServer(app.get("/", (request, response) => response.send("ok")));
  const sockets = new WebSocketServer({ noServer: true });
  const upgrade = (request, socket, head) =>
    sockets.handleUpgrade(request, socket, head, (one) => one.on("message", (data) => one.send(String(data))));
  const listener = listenerOf(upgrade);
  server.on("upgrade", (...upgraded) => void listener(...upgraded)?.catch((error) => server.emit("refused", error)));
  await once(server.listen(0, "127.0.0.1"), "listening");
  t.after(() => {
    for (const one of sockets.clients) one.terminate();
    server.closeAllConnections();
    server.close();
  });
  return { server, port: server.address().port, url: `ws://127.0.0.1:${server.address().port}/` };
}

/** Opens a WebSocket; rejects with the response of a handshake that is refused. */
async function open(url, headers = {}) {
  const socket = new WebSocket(url, { headers });
  await new Promise((resolve, reject) => {
    socket.once("open", resolve);
    socket.once("error", reject);
    socket.once("unexpected-response", (request, response) => reject(response));
  });
  return socket;
}

/** Returns the status, the headers and the body of a refused handshake. */
async function refused(url, headers) {
  const response = await open(url, headers).then(
    () => assert.fail("it was admitted"),
    (response) => response,
  );
  return { status: response.statusCode, headers: response.headers, body: await text(response) };
}

const closed = async (socket) => {
  socket.close();
  await once(socket, "close");
};

test("a handshake above the limit gets a 429 with its fields, and its socket is closed", async (t) => {
  const limit = limitUpgrades({ limits: [{ limiter: rate(1), key: "header:x-api-key" }] });
  const { url, port } = await start(t, limit);
  const socket = await open(url, { "X-Api-Key": "a" });
  socket.send("hello");
  assert.equal(String((await once(socket, "message"))[0]), "hello");
  const { status, headers, body } = await refused(url, { "X-Api-Key": "a" });
  assert.deepEqual([status, headers["content-type"], headers.connection], [429, "application/problem+json", "close"]);
  assert.deepEqual(JSON.parse(body)["violated-policies"], ["api"]);
  assert.equal(headers["retry-after"], "60");
  assert.equal(headers["ratelimit-policy"], '"api";q=1;w=60');
  assert.equal(headers.ratelimit, '"api";r=0;t=60');
  await open(url, { "X-Api-Key": "b" });
  // A client that keeps its half open.
  const raw = connect({ port, host: "127.0.0.1", allowHalfOpen: true });
  raw.write("GET / HTTP/1.1\r\nHost: a\r\nX-Api-Key: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
  assert.match(await text(raw), /^HTTP\/1\.1 429 Too Many Requests\r\n.*\r\n\r\n\{"type".*\}$/s);
  raw.destroy();
});

test("an open WebSocket holds its permit until it closes", async (t) => {
  const limiter = new ConcurrencyLimiter(2);
  const { url } = await start(t, limitUpgrades({ limits: [{ limiter, name: "open" }] }));
  const [first, second] = [await open(url), await open(url)];
  assert.equal((await refused(url)).status, 429);
  await closed(first);
  await until(() => limiter.peek().remaining === 1);
  second.terminate(); // Without a closing handshake.
  await until(() => limiter.peek().remaining === 2);
  await open(url);
});

test("requests and upgrades share a limit", async (t) => {
  const limits = [{ limiter: rate(2), key: "address" }];
  const { url, port } = await start(t, limitUpgrades({ limits }), express().use(limitRequests({ limits })));
  assert.equal((await fetch(`http://127.0.0.1:${port}/`)).status, 200);
  await open(url);
  assert.equal((await refused(url)).status, 429);
  assert.equal((await fetch(`http://127.0.0.1:${port}/`)).status, 429);
});

test("a listener that is wrapped twice counts an upgrade once, and one with limits of its own needs those, too", async (t) => {
  const [limiter, own] = [rate(3), rate(2, "own")];
  const limit = limitUpgrades({ limits: [{ limiter }] });
  const { url } = await start(t, (listener) => limit(limit(listener, { limiter: own })));
  await open(url);
  assert.deepEqual([limiter.peek().remaining, own.peek().remaining], [2, 1]);
  await open(url);
  assert.deepEqual(JSON.parse((await refused(url)).body)["violated-policies"], ["own"]);
  assert.deepEqual([limiter.peek().remaining, own.peek().remaining], [1, 0]);
});

test("an upgrade whose listener throws or rejects releases its slot, and its socket is closed", async (t) => {
  const limiter = new ConcurrencyLimiter(1);
  const limit = limitUpgrades({ limits: [{ limiter, name: "open" }] });
  const throwing = () => {
    throw new Error("planned");
  };
  for (const listener of [throwing, async () => throwing()]) {
    const { url, server } = await start(t, () => limit(listener));
    for (let i = 0; i < 2; i++) {
      const error = once(server, "refused");
      await assert.rejects(open(url), { code: "ECONNRESET" });
      assert.equal((await error)[0].message, "planned");
      assert.equal(limiter.peek().remaining, 1);
    }
  }
});

for (const moment of ["decided", "found exempt or not"]) {
  test(`a client that leaves while its upgrade is ${moment} holds nothing, and the listener is not called`, async (t) => {
    const limiter = new ConcurrencyLimiter(1);
    let decide;
    let asked;
    const isAsked = new Promise((resolve) => (asked = resolve));
    const later = () => new Promise((resolve) => (asked(), (decide = resolve)));
    const [key, exempt] = moment === "decided" ? [later, []] : [() => "a", later];
    const limit = limitUpgrades({ limits: [{ limiter, name: "open", key }], exempt });
    let upgraded;
    const { port, server } = await start(t, () => {
      const listener = limit(() => assert.fail("it was called"));
      return (...all) => (upgraded = listener(...all));
    });
    const connected = once(server, "connection");
    const raw = connect(port, "127.0.0.1");
    raw.write("GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
    const [[socket]] = await Promise.all([connected, isAsked]);
    const gone = new Promise((resolve) => socket.once("close", resolve));
    raw.resetAndDestroy();
    await gone;
    decide(moment === "decided" && "a");
    await upgraded;
    assert.equal(limiter.peek({ key: "a" }).remaining, 1);
  });
}

test("exempt paths are not limited, and an error refuses the upgrade", async (t) => {
  const limiter = rate(1);
  const key = () => {
    throw new Error("planned");
  };
  const { url } = await start(t, limitUpgrades({ limits: [{ limiter, key }], exempt: ["/free"] }));
  for (let i = 0; i < 2; i++) await open(`${url}free?a`);
  const warned = once(process, "warning");
  assert.equal((await refused(url)).status, 500);
  assert.match((await warned)[0].message, /^an upgrade could not be limited: Error: planned/);
  assert.equal(limiter.peek().remaining, 1);
});

test("an app can send its own body", async (t) => {
  const { url } = await start(
    t,
    limitUpgrades({ limits: [{ limiter: rate(1) }], onLimited: ({ url }, { name }) => `${name}: größer ${url}` }),
  );
  await open(url);
  const { body, headers } = await refused(`${url}a`);
  assert.deepEqual([body, headers["content-type"]], ["api: größer /a", "text/plain; charset=utf-8"]);
});

test("invalid input is an error", () => {
  assert.throws(() => limitUpgrades({ limit: [] }), /^InvalidArgument: options is an object with limit: expected only limits/);
  assert.throws(
    () => limitUpgrades()(7),
    (error) => error instanceof InvalidArgument && /^listener is 7: expected a listener/.test(error.message),
  );
  assert.throws(() => limitUpgrades()(() => {}, { limiter: 7 }), /limiter is 7/);
});
