// Who has the units of a limit, who waits for them, and whose turn is next.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { test } from "node:test";
import { Store } from "workglow-limit";
import { directory, settle } from "./helpers.mjs";

/** Waits twice for one unit. */
const OTHER = `
  import { Store } from "workglow-limit";
  const limiter = new Store(process.argv[1]).limiter("api");
  await Promise.all([-4, 9].map((priority) => limiter.acquire({ priority })));
`;

const counts = ({ holders, heads, waiting }) => [holders.length, heads.length, waiting.reduce((sum, { callers }) => sum + callers, 0)];

/** Waits until there are so many holders, heads and callers. */
async function until(expected, store, options) {
  const end = Date.now() + 300_000;
  for (;;) {
    assert.ok(Date.now() < end, `not ${expected}`);
    const seen = await store.lineAsync("api", options);
    if (`${counts(seen)}` === `${expected}`) return seen;
    await settle();
  }
}

test("of two processes it is seen who has the units and who waits", async (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  const store = new Store(url);
  const limiter = store.limiter("api", "3 concurrent");
  const held = await limiter.acquire({ weight: 3 });
  const own = limiter.acquire({ weight: 2 });
  await until([1, 1, 1], store);
  const other = spawn(process.execPath, ["--input-type=module", "-e", OTHER, url], { cwd: import.meta.dirname, stdio: "inherit" });
  t.after(() => other.kill("SIGKILL"));
  const seen = await until([1, 2, 3], store);
  const pids = [other.pid, process.pid];
  const [holder] = seen.holders;
  assert.deepEqual([holder.process.pid, holder.starts, holder.units, holder.coolsDown], [process.pid, 1, 3, false]);
  assert.ok(holder.process.program.length > 0 && holder.process.since >= 0);
  assert.deepEqual(
    seen.heads.map(({ process: { pid }, units, priority, tenant, passed }) => [pid, units, priority, tenant, passed]),
    [
      [pids[0], 1, -4, null, false],
      [pids[1], 2, 0, null, false],
    ],
  );
  assert.ok(seen.heads.every(({ waits }) => waits >= 0));
  assert.deepEqual(
    seen.waiting.map(({ process: { pid }, callers }) => [pid, callers]),
    [
      [pids[0], 2],
      [pids[1], 1],
    ],
  );
  assert.deepEqual(counts(await store.lineAsync("api", { key: "unused" })), [0, 0, 3], "callers are counted for all keys together");
  other.kill("SIGKILL");
  await once(other, "exit");
  assert.deepEqual(counts(await store.lineAsync("api")), [1, 1, 1], "who is dead waits no more");
  held.complete();
  (await own).complete();
});

test("in memory no process waits for another", async () => {
  const store = new Store("memory:");
  const limiter = store.limiter("api", "2 concurrent");
  const held = await limiter.acquire({ key: "k", weight: 2 });
  const waits = limiter.acquire({ key: "k" });
  await until([1, 0, 1], store, { key: "k" });
  const seen = store.line("api", { key: "k" });
  assert.deepEqual(seen, {
    holders: [{ process: null, starts: 1, units: 2, coolsDown: false }],
    heads: [],
    waiting: [{ process: null, callers: 1 }],
  });
  held.complete();
  (await waits).complete();
});

test("the heads of a shared limit are those of its tenants", async (t) => {
  for (const url of ["memory:", `sqlite:${directory(t)}/limits.db`]) {
    const store = new Store(url);
    const limiter = store.limiter("api", "1 concurrent shared");
    const held = await limiter.acquire({ key: "holder" });
    const jobs = ["a", "a", "b"].map(async (key) => (await limiter.acquire({ key })).complete());
    const { heads } = await until([1, 2, 3], store);
    const { tenants } = (await store.snapshotAsync()).limits[0];
    assert.deepEqual(
      heads.map(({ tenant }) => tenant),
      tenants.map(({ key }) => key),
    );
    const [head] = (await store.lineAsync("api", { key: "b" })).heads;
    assert.ok(/^#[0-9a-f]{16}$/.test(head.tenant) && tenants.some(({ key }) => key === head.tenant), head.tenant);
    held.complete();
    await Promise.all(jobs);
  }
});

test("bad input, and limits on servers", async () => {
  const store = new Store("memory:");
  store.limiter("api", "5/1h");
  assert.deepEqual(store.line("api"), { holders: [], heads: [], waiting: [] });
  const wrong = [
    [["nothing"], { code: "unknown_limit" }],
    [[5], { code: "invalid_argument", message: /^name is 5/ }],
    [[""], { code: "invalid_argument", message: /^name is / }],
    [["api", { key: 5 }], { code: "invalid_argument", message: /^key is 5/ }],
    [["api", { key: "k".repeat(2000) }], { code: "invalid_argument", message: /^key is / }],
    [["api", { keys: 5 }], { code: "invalid_argument", message: /^options / }],
    [["api", null], { code: "invalid_argument", message: /^options is null/ }],
  ];
  for (const [args, error] of wrong) {
    assert.throws(() => store.line(...args), error);
    await assert.rejects(store.lineAsync(...args), error);
  }
  const unsupported = { code: "unsupported", message: /line is not supported by a limit on a server/ };
  for (const url of ["redis://localhost:1", "postgres://user@localhost:1/limits"]) {
    assert.throws(() => new Store(url).line("api"), unsupported);
    await assert.rejects(new Store(url).lineAsync("api"), unsupported);
  }
  await store.close();
  await assert.rejects(store.lineAsync("api"), { code: "store_closed" });
});
