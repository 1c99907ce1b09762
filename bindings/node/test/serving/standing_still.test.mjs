// A blocked store does not block the event loop: other routes respond, and clients that disconnect hold nothing.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { get } from "node:http";
import { test } from "node:test";
import { RateLimiter, Store } from "workglow-limit";
import { directory } from "../helpers.mjs";
import { startRedis } from "../redis.mjs";
import { closed, frameworks, start, until } from "./servers.mjs";

/** No call waits this long: a call that did would end the test. */
const FOREVER = "1h";

/** Stores, and how each is blocked until the returned function is called. */
const stores = {
  async "SQLite, locked by another process"(t) {
    const path = `${directory(t)}/limits.db`;
    const stop = async () => {
      const shell = spawn("sqlite3", [path], { stdio: ["pipe", "pipe", "inherit"] });
      t.after(() => shell.kill());
      shell.stdin.write("begin exclusive;\nselect 'ready';\n");
      for await (const words of shell.stdout) if (`${words}`.includes("ready")) break;
      return async () => {
        shell.kill();
        if (shell.exitCode === null && shell.signalCode === null) await once(shell, "exit");
      };
    };
    return { url: `sqlite:${path}`, stop };
  },
  async "Redis, stopped"(t) {
    const redis = await startRedis();
    t.after(() => redis.stop());
    const stop = async () => {
      process.kill(redis.pid, "SIGSTOP");
      return async () => process.kill(redis.pid, "SIGCONT");
    };
    return { url: redis.url, stop };
  },
};

for (const [name, storeOf] of Object.entries(stores)) {
  for (const framework of frameworks) {
    test(`${framework}: ${name}`, { timeout: 120_000 }, async (t) => {
      const { url, stop } = await storeOf(t);
      // Each start has to be written first.
      const store = new Store(url, { durability: "commit", timeout: FOREVER });
      const limiter = new RateLimiter(store, "api", { maxExecutions: 100, windowSizeInSeconds: 3600 });
      await limiter.canProceed();
      let handled = 0;
      const limits = [{ limiter }];
      const app = await start(
        t,
        framework,
        {},
        {
          "/limited": { limits, handler: () => void handled++ },
          "/other": async () => ({ body: `read ${(await readFile(import.meta.filename)).length > 0}` }),
        },
      );
      const goOn = await stop();
      const limited = Array.from({ length: 20 }, () => fetch(`${app}/limited`));
      const leaving = get(`${app}/limited`, { agent: false });
      leaving.on("error", () => {});
      await once(leaving, "socket");
      if (leaving.socket.connecting) await once(leaving.socket, "connect");
      const { localPort } = leaving.socket;
      for (let i = 0; i < 20; i++) {
        const response = await fetch(`${app}/other`);
        assert.deepEqual([response.status, await response.text()], [200, "read true"]);
      }
      assert.equal(handled, 0, "it did not wait for the store");
      leaving.destroy();
      await until(() => closed.has(localPort));
      await goOn();
      for (const response of await Promise.all(limited)) assert.equal(response.status, 200);
      await until(async () => (await limiter.peekAsync()).remaining === 80);
      assert.equal(handled, 20, "a client that disconnected was handled");
    });
  }
}
