// Many waiters in one Node process: how many start, in which order, and the cost.
//
//     node bench/node/waiters.mjs [WAITERS] [SECONDS]

import { createRequire } from "node:module";
import { setTimeout as sleep } from "node:timers/promises";

const require = createRequire(new URL("./package.json", import.meta.url));
const { ConcurrencyLimiter, RateLimiter, Store } = require("workglow-limit");

const waiters = Number(process.argv[2] ?? 20_000);
const seconds = Number(process.argv[3] ?? 10);
const rate = () => new RateLimiter(new Store("memory:"), "calls", { maxExecutions: 100, windowSizeInSeconds: 1 });

/** Runs this many waiters for this long, and prints the results. */
async function run(what, limiter, job, until) {
  const started = [];
  const memory = process.memoryUsage().rss;
  const began = performance.now();
  for (let i = 0; i < waiters; i++) {
    limiter.acquire().then((permit) => (started.push(i), job(permit)));
  }
  const joined = performance.now();
  const grown = process.memoryUsage().rss - memory;
  const cpu = process.cpuUsage();
  await until(started);
  const took = performance.now() - joined;
  const { user, system } = process.cpuUsage(cpu);
  const inOrder = started.every((who, i) => i === 0 || started[i - 1] < who);
  console.log(
    `${what}: ${waiters} joined in ${(joined - began).toFixed(0)} ms (${(grown / waiters / 1024).toFixed(1)} KB each), ` +
      `${started.length} started in ${(took / 1e3).toFixed(1)} s, ${inOrder ? "in order" : "OUT OF ORDER"}, ` +
      `${((user + system) / 10 / took).toFixed(1)} % of a core`,
  );
}

const forSeconds = () => sleep(seconds * 1e3);
await run("100/1s", rate(), () => {}, forSeconds);
const all = async (started) => {
  const end = performance.now() + seconds * 1e3;
  while (started.length < waiters && performance.now() < end) await sleep(1);
};
await run("5 concurrent, jobs that end at once", new ConcurrencyLimiter(5), (permit) => permit.complete(), all);
await run("5 concurrent, jobs of 10 ms", new ConcurrencyLimiter(5), (permit) => setTimeout(() => permit.complete(), 10), forSeconds);

// An event loop that is busy half of the time, and a limit with a constant backlog.
const limiter = rate();
for (let i = 0; i < 100; i++) await limiter.acquire();
const busy = setInterval(() => {
  for (const end = performance.now() + 60; performance.now() < end; );
}, 120);
const began = performance.now();
await Promise.all(Array.from({ length: 1_000 }, () => limiter.acquire()));
const took = performance.now() - began;
console.log(`1,000 starts of 100/1s in a loop that is busy for 60 of every 120 ms: ${(1e6 / took).toFixed(1)} % of the limit`);
clearInterval(busy);
process.exit();
