// The cost of a limiter in an Express server: node bench/serving/node.mjs [rounds] [requests]
//
// 200 client addresses, 20 requests per 60 s each, 32 connections that send the next request after each response: Express alone, with
// express-rate-limit in memory, and with ours on sqlite:. The servers take turns, each time as a new process that has warmed up with
// other addresses. Prints medians over the rounds, and the ratios within each round. The packages are those of bindings/node (`npm ci`
// and `npm run build` there).

import { fork } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { connect } from "node:net";
import { availableParallelism, tmpdir } from "node:os";
import { join } from "node:path";

const ADDRESSES = 200;
const LIMIT = 20;
const CONNECTIONS = 32;
const require = createRequire(join(import.meta.dirname, "../../bindings/node/package.json"));

/** The middlewares. */
const SERVERS = {
  "no limiter": () => (request, response, next) => next(),
  "express-rate-limit, memory": () => {
    const { rateLimit } = require("express-rate-limit");
    return rateLimit({ windowMs: 60_000, limit: LIMIT, standardHeaders: "draft-8", legacyHeaders: false });
  },
  "workglow-limit, sqlite": (dir) => {
    const { RateLimiter, Store } = require("workglow-limit");
    const { limitRequests } = require("workglow-limit/express");
    const store = new Store(`sqlite:${dir}/limits.db`);
    const limiter = new RateLimiter(store, "api", { maxExecutions: LIMIT, windowSizeInSeconds: 60 });
    return limitRequests({ limits: [{ limiter, key: "address" }], trustedProxies: ["127.0.0.1"] });
  },
};

function serve(name, dir) {
  const app = require("express")();
  app.set("trust proxy", "loopback");
  app.use(SERVERS[name](dir));
  app.get("/", (request, response) => response.send("hello"));
  const server = app.listen(0, "127.0.0.1", () => process.send(server.address().port));
  process.once("disconnect", () => process.exit(0));
}

/** Sends one request after the other while there is an address left, and records their durations in ms. */
async function ask(port, addresses, took, statuses) {
  const socket = connect(port, "127.0.0.1").setNoDelay(true).setEncoding("latin1");
  await once(socket, "connect");
  let received = "";
  let answered;
  socket.on("data", (data) => {
    received += data;
    const end = received.indexOf("\r\n\r\n");
    if (end < 0) return;
    const length = Number(/content-length: (\d+)/i.exec(received)[1]);
    if (received.length < end + 4 + length) return;
    const status = received.slice(9, 12);
    received = received.slice(end + 4 + length);
    answered(status);
  });
  for (const address of addresses) {
    const start = performance.now();
    const status = await new Promise((resolve) => {
      answered = resolve;
      socket.write(`GET / HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: ${address}\r\n\r\n`);
    });
    took.push(performance.now() - start);
    statuses[status] = (statuses[status] ?? 0) + 1;
  }
  socket.end();
}

async function load(port, network, requests) {
  const [took, statuses] = [[], {}];
  // One iterator for all connections.
  const addresses = (function* () {
    for (let i = 0; i < requests; i++) yield `10.${network}.0.${1 + (i % ADDRESSES)}`;
  })();
  const start = performance.now();
  await Promise.all(Array.from({ length: CONNECTIONS }, () => ask(port, addresses, took, statuses)));
  const perSecond = (took.length / (performance.now() - start)) * 1e3;
  return { perSecond, p99: took.sort((a, b) => a - b)[Math.floor(took.length * 0.99)], statuses };
}

async function measure(name, requests) {
  const dir = mkdtempSync(join(tmpdir(), "bench-serving-"));
  const server = fork(import.meta.filename, ["--serve", name, dir]);
  try {
    const [port] = await once(server, "message");
    await load(port, 1, requests / 2);
    const figures = await load(port, 2, requests);
    const { 200: admitted = 0 } = figures.statuses;
    if (name !== "no limiter" && admitted !== Math.min(ADDRESSES * LIMIT, requests)) throw new Error(`${name} let ${admitted} through`);
    return figures;
  } finally {
    server.disconnect();
    await once(server, "exit");
    rmSync(dir, { recursive: true });
  }
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)];

if (process.argv[2] === "--serve") serve(process.argv[3], process.argv[4]);
else {
  const [rounds, requests] = [Number(process.argv[2] ?? 9), Number(process.argv[3] ?? 16_000)];
  const results = Object.fromEntries(Object.keys(SERVERS).map((name) => [name, []]));
  for (let i = 0; i < rounds; i++) for (const name in results) results[name].push(await measure(name, requests));
  console.log(`Node ${process.version}, ${availableParallelism()} cores, ${rounds} rounds of ${requests} requests`);
  const [, theirs] = Object.values(results);
  for (const [name, found] of Object.entries(results)) {
    const of = (figure) => [median(found.map((one) => one[figure])), median(found.map((one, i) => one[figure] / theirs[i][figure]))];
    const [[perSecond, share], [p99, times]] = [of("perSecond"), of("p99")];
    console.log(
      `${name.padEnd(28)} ${perSecond.toFixed(0).padStart(6)}/s (${share.toFixed(2)} x)  p99 ${p99.toFixed(2)} ms (${times.toFixed(2)} x)`,
    );
  }
}
