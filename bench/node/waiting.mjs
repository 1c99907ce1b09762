// 10,000 waiters of one limit in one process: how long they take, and the cost.

import Bottleneck from "bottleneck";
import { RateLimiter as IntervalLimiter } from "limiter";
import pLimit from "p-limit";
import { ConcurrencyLimiter, RateLimiter, Store } from "workglow-limit";
import { round, show } from "./timing.mjs";

// The waits themselves take three quarters of a second. bottleneck's shortest interval is 250 ms.
const WAITERS = 10_000;
const LIMIT = 2_500;
const WINDOW = 250; // ms
const AT_MOST = 2_000; // ms

const job = async () => true;

/** Each makes the function of one waiter. In those with 5 at the same time, each job ends at once. */
const CROWDS = [
  [
    "memory 10,000 waiters",
    "workglow-limit",
    () => {
      const limiter = new RateLimiter(new Store("memory:"), "crowd", { maxExecutions: LIMIT, windowSizeInSeconds: WINDOW / 1e3 });
      return () => limiter.acquire();
    },
  ],
  [
    "limiter: 10,000 waiters",
    "limiter",
    () => {
      const limiter = new IntervalLimiter({ tokensPerInterval: LIMIT, interval: WINDOW });
      return () => limiter.removeTokens(1);
    },
  ],
  [
    "bottleneck: 10,000 waiters",
    "bottleneck",
    () => {
      const limiter = new Bottleneck({ reservoir: LIMIT, reservoirRefreshAmount: LIMIT, reservoirRefreshInterval: WINDOW });
      return () => limiter.schedule(job);
    },
  ],
  [
    "memory 10,000 waiters, 5 concurrent",
    "workglow-limit",
    () => {
      const limiter = new ConcurrencyLimiter(5);
      return async () => (await limiter.acquire()).complete();
    },
  ],
  [
    "p-limit: 10,000 waiters, 5 concurrent",
    "p-limit",
    () => {
      const limit = pLimit(5);
      return () => limit(job);
    },
  ],
  [
    "bottleneck: 10,000 waiters, 5 concurrent",
    "bottleneck",
    () => {
      const limiter = new Bottleneck({ maxConcurrent: 5 });
      return () => limiter.schedule(job);
    },
  ],
];

async function crowd(wait) {
  let [count, last] = [0, 0];
  const begin = performance.now();
  const cpu = process.cpuUsage();
  const all = Array.from({ length: WAITERS }, () =>
    wait().then(() => {
      count++;
      last = performance.now();
    }),
  );
  let late;
  await Promise.race([Promise.all(all), new Promise((resolve) => (late = setTimeout(resolve, AT_MOST)))]);
  clearTimeout(late);
  const { user, system } = process.cpuUsage(cpu);
  const took = last - begin;
  return {
    ns: round((took * 1e6) / count),
    cpu_ns: round(((user + system) * 1e3) / count),
    per_s: Math.round((count * 1e3) / took),
    waiters: WAITERS,
    started: count,
  };
}

export async function measure(isWanted) {
  for (const [name, of, make] of CROWDS) {
    if (!isWanted(name)) continue;
    const result = await crowd(make());
    show(name, of, name.endsWith("concurrent") ? result : { ...result, limit: LIMIT, window_ms: WINDOW });
  }
}
