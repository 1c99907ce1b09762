// A process ends by itself, whatever it has open.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { text } from "node:stream/consumers";
import { after, before, test } from "node:test";
import { directory } from "./helpers.mjs";
import { startPostgres } from "./postgres.mjs";
import { startRedis } from "./redis.mjs";

let redis;
let postgres;
before(async () => ([redis, postgres] = await Promise.all([startRedis(), startPostgres()])));
after(() => Promise.all([redis.stop(), postgres.stop()]));

// It has an open store, a hook, starts that have not ended, a place, and a wait that has ended.
const PROGRAM = `
  import { Store } from "workglow-limit";
  const store = new Store(process.env.TEST_STORE);
  await store.open();
  const limiter = store.limiter("limit", "3/1h + 2 concurrent");
  limiter.on("throttled", () => {});
  const permits = [await limiter.tryAcquireAsync(), await limiter.acquire()];
  await limiter.acquire({ timeout: 10 }).catch((error) => console.log(error.name));
  await store.limiter("places", "1/1h").acquire();
  const place = await store.limiter("places").reserveAsync();
  await store.snapshotAsync();
  console.log(place.started, permits.length);
`;

const stores = {
  memory: () => "memory:",
  sqlite: (t) => `sqlite:${directory(t)}/limits.db`,
  redis: () => redis.url,
  postgres: () => postgres.url,
};

for (const [kind, urlOf] of Object.entries(stores)) {
  test(`${kind}: an open store keeps no process alive`, { timeout: 120_000 }, async (t) => {
    const env = { ...process.env, TEST_STORE: urlOf(t) };
    const options = { cwd: import.meta.dirname, env, stdio: ["ignore", "pipe", "inherit"] };
    const child = spawn(process.execPath, ["--input-type=module", "--eval", PROGRAM], options);
    t.after(() => child.kill("SIGKILL"));
    const [said, [code]] = await Promise.all([text(child.stdout), once(child, "exit")]);
    assert.deepEqual([said, code], ["TimeoutError\nfalse 2\n", 0]);
  });
}
