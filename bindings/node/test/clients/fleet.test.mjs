// Several processes with different clients share one limit: the requests that one server receives.

import assert from "node:assert/strict";
import { fork, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { RateLimiter, Store } from "workglow-limit";
import { directory, settle } from "../helpers.mjs";
import { startRedis } from "../redis.mjs";
import { clients } from "./clients.mjs";
import { mostInAnyWindow, serve } from "./server.mjs";

const three = ["fetch", "axios by node:http", "undici 7"];
let redis;
before(async () => (redis = await startRedis()));
after(() => redis.stop());
const stores = { sqlite: (t) => `sqlite:${directory(t)}/limits.db`, redis: () => redis.url };

async function until(holds) {
  while (!holds()) await settle();
}

/** Starts processes that send requests to a server until `over()`. */
async function fleet(t, store, policy, url) {
  const members = three.map((client) => fork(join(import.meta.dirname, "process.mjs"), [store, policy, client, url]));
  t.after(() => members.forEach((member) => member.kill("SIGKILL")));
  await Promise.all(members.map((member) => once(member, "message")));
  return async () => {
    const ends = members.map((member) => once(member, "exit"));
    for (const member of members) member.send("end");
    for (const [code] of await Promise.all(ends)) assert.equal(code, 0);
  };
}

const startsOf = (arrivals) => arrivals.map(({ at, headers }) => ({ a: BigInt(headers["x-a"]), b: at }));
const processesOf = (arrivals) => new Set(arrivals.map(({ headers }) => headers["x-process"]));

for (const [name, address] of Object.entries(stores)) {
  test(`${name}: three processes never send more than the limit`, async (t) => {
    const { url, arrivals } = await serve(t);
    const over = await fleet(t, address(t), "10/300ms", url);
    await until(() => arrivals.length >= 60 && processesOf(arrivals).size === 3);
    await over();
    const most = mostInAnyWindow(startsOf(arrivals), 300_000_000n);
    t.diagnostic(`${arrivals.length} requests, ${most} at most in any 300 ms`);
    assert.ok(most <= 10);
  });

  test(`${name}: a 429 to one process pauses all`, async (t) => {
    const { url, arrivals } = await serve(t, (request, response) => {
      // The 60th request is refused, and no other.
      if (arrivals.length !== 60) return response.end("fine");
      response.writeHead(429, { "retry-after": "2" }).end();
    });
    // Starts that were granted before may happen for a moment after the pause began.
    const store = address(t).replace(/$/, name === "redis" ? "?db=1&grants=never" : "");
    const over = await fleet(t, store, "100000/1m", url);
    await until(() => arrivals.length > 200 && processesOf(arrivals.slice(100)).size === 3);
    await over();
    // Requests before the pause asked before it began; those after it arrived when it had ended. Somewhere, these are 2 s apart.
    const starts = startsOf(arrivals).toSorted((x, y) => (x.a < y.a ? -1 : 1));
    let longest = 0n;
    let next = starts.at(-1).b;
    for (let at = starts.length - 1; at > 0; at--) {
      next = starts[at].b < next ? starts[at].b : next;
      const apart = next - starts[at - 1].a;
      if (apart > longest) longest = apart;
    }
    t.diagnostic(`${arrivals.length} requests, ${Number(longest) / 1e6} ms without one`);
    assert.ok(longest >= 2_000_000_000n);
  });
}

for (const client of Object.keys(clients)) {
  test(`${client}: a locked store does not delay requests to other hosts`, async (t) => {
    const { port, arrivals } = await serve(t);
    const path = `${directory(t)}/limits.db`;
    const locked = new Store(`sqlite:${path}`, { durability: "commit", timeout: "1h" });
    const slow = new RateLimiter(locked, "slow", { maxExecutions: 9, windowSizeInSeconds: 3600 });
    await slow.canProceed();
    const shell = spawn("sqlite3", [path], { stdio: ["pipe", "pipe", "inherit"] });
    t.after(() => shell.kill());
    shell.stdin.write("begin immediate;\nselect 'ready';\n");
    for await (const words of shell.stdout) if (`${words}`.includes("ready")) break;
    const free = new Store("memory:").limiter("free", "100/1m");
    const send = clients[client]({ localhost: slow, "127.0.0.1": free }, {}, t);
    let isOver = false;
    const waiting = send(`http://localhost:${port}/slow`)
      .then((response) => response.text())
      .finally(() => (isOver = true));
    for (let i = 0; i < 10; i++) await (await send(`http://127.0.0.1:${port}/`)).text();
    assert.equal(arrivals.length, 10);
    assert.ok(!isOver);
    shell.kill();
    assert.equal(await waiting, "fine");
  });
}
