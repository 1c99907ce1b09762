// Many threads and processes share one limit: exactly as many starts as it allows.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { Worker } from "node:worker_threads";
import { Store } from "workglow-limit";
import { directory } from "./helpers.mjs";

const LIMIT = 1000;

/** Tries until it was denied a hundred times, and counts its starts. */
const source = (url) => `
  import { RateLimiter, Store } from "workglow-limit";
  import { parentPort } from "node:worker_threads";
  const options = { maxExecutions: ${LIMIT}, windowSizeInSeconds: 3600 };
  const limiter = new RateLimiter(new Store(${JSON.stringify(url)}), "shared", options);
  await limiter.canProceed();
  let admitted = 0;
  for (let denied = 0; denied < 100; ) {
    // Each of them has to wait for the commits of the others.
    if (await limiter.tryAcquireAsync({ key: "k" })) admitted++;
    else denied++;
  }
  if (parentPort) parentPort.postMessage(admitted);
  else console.log(admitted);
`;

const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

test("worker threads share a limit", async (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  // A module in this folder, so that the package's name resolves.
  const base = new URL("./worker.mjs", import.meta.url).href;
  const code = source(url).replaceAll('"workglow-limit"', JSON.stringify(import.meta.resolve("workglow-limit", base)));
  const count = () =>
    new Promise((resolve, reject) => {
      const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(code)}`));
      worker.once("message", resolve).once("error", reject);
    });
  const counts = await Promise.all([count(), count(), count()]);
  assert.equal(sum(counts), LIMIT);
  const here = new Store(url).limiter("shared");
  assert.equal(await here.tryAcquireAsync({ key: "k" }), null);
  assert.equal(here.peek({ key: "k" }).limit, LIMIT);
});

test("processes share a limit", async (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  const options = { cwd: import.meta.dirname, encoding: "utf8" };
  const args = ["--input-type=module", "--eval", source(url)];
  const count = async () => Number((await promisify(execFile)(process.execPath, args, options)).stdout);
  assert.equal(sum(await Promise.all([count(), count(), count()])), LIMIT);
});

test("a thread may end while it holds permits and waits", async () => {
  const code = `
    import { ConcurrencyLimiter } from ${JSON.stringify(import.meta.resolve("workglow-limit"))};
    import { parentPort } from "node:worker_threads";
    const limiter = new ConcurrencyLimiter(1);
    globalThis.kept = limiter.tryAcquire();
    limiter.acquire();
    parentPort.postMessage("ready");
  `;
  for (let i = 0; i < 5; i++) {
    const worker = new Worker(new URL(`data:text/javascript,${encodeURIComponent(code)}`));
    await new Promise((resolve, reject) => worker.once("message", resolve).once("error", reject));
    assert.equal(await worker.terminate(), 1);
  }
});

test("the latest counts are published at exit, however the program ends", async (t) => {
  const url = `sqlite:${join(directory(t), "limits.db")}`;
  const program = (end) => `
    import { RateLimiter, Store } from ${JSON.stringify(import.meta.resolve("workglow-limit"))};
    const limiter = new RateLimiter(new Store(${JSON.stringify(url)}), "x", { maxExecutions: 9, windowSizeInSeconds: 60 });
    await limiter.open();
    limiter.tryAcquire();
    ${end}`;
  for (const end of ["process.exit(0)", "throw new Error('on purpose')", ""]) {
    await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program(end)]).catch(() => {});
  }
  const limiter = new Store(url).limiter("x");
  await limiter.open();
  assert.equal(limiter.stats().admitted, 3);
});

test("the first synchronous calls of processes that start together wait for each other", async (t) => {
  const url = `sqlite:${directory(t)}/limits.db`;
  const code = `
    import { Store } from "workglow-limit";
    process.send("ready");
    process.once("message", () => {
      const limiter = new Store(${JSON.stringify(url)}, { timeout: "1m" }).limiter("shared", "100/1m");
      console.log(limiter.window); // Opens it, and needs nothing else of the store.
      process.disconnect();
    });`;
  const options = { cwd: import.meta.dirname, stdio: ["ignore", "pipe", "inherit", "ipc"] };
  const processes = Array.from({ length: 8 }, () => spawn(process.execPath, ["--input-type=module", "--eval", code], options));
  await Promise.all(processes.map((one) => once(one, "message")));
  for (const one of processes) one.send("go");
  const said = await Promise.all(processes.map((one) => one.stdout.setEncoding("utf8").toArray()));
  assert.deepEqual(
    said.map((lines) => lines.join("")),
    Array(8).fill("60000\n"),
  );
});
