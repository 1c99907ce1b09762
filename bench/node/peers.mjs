// The limiters that are measured, and their limits.
//
// *Admit*: the limit is 100, and units are always free. A peer that can have a window shorter than 100 of its decisions has such a
// window; the others have a window of a minute and are emptied after every 100 decisions, outside the measured time. *Deny*: 1 per
// hour, after the first. Each peer is called as its README says. Most return a promise, which is awaited.

import { InMemoryRateLimiterStorage, RateLimiter as WorkglowRateLimiter } from "@workglow/job-queue";
import Bottleneck from "bottleneck";
import { MemoryStore } from "express-rate-limit";
import { Redis } from "ioredis";
import { RateLimiter as IntervalLimiter } from "limiter";
import pLimit from "p-limit";
import flexible from "rate-limiter-flexible";
import { ConcurrencyLimiter, RateLimiter, Store } from "workglow-limit";
import { peer } from "./timing.mjs";

// Workglow expects it, and Node has it from version 22.
Promise.withResolvers ??= () => {
  let resolve, reject;
  const promise = new Promise((...both) => ([resolve, reject] = both));
  return { promise, resolve, reject };
};

export const OPEN = { limit: 100, seconds: 1e-6 };
export const SHUT = { limit: 1, seconds: 3_600 };
const isOpen = ({ seconds }) => seconds < 1e-3;
/** The window of peers without one as short as that. */
const windowOf = (policy) => (isOpen(policy) ? 60 : policy.seconds);
const emptied = (policy, renew, more) => ({ ...more, ...(isOpen(policy) ? { renew, capacity: 100 } : {}) });

const stores = new Map();
let made = 0;

/** Our RateLimiter: an exact log. Its store is shared with other cases, as with other limits in a program. */
export function rateLimiter(url, { limit, seconds }, name = `limit-${made++}`) {
  if (!stores.has(url)) stores.set(url, new Store(url));
  return new RateLimiter(stores.get(url), name, { maxExecutions: limit, windowSizeInSeconds: seconds });
}

const IS_PERMIT = { admitted: "answer !== null" };

export function ours(url, policy, name) {
  return peer("limiter.tryAcquire()", { limiter: rateLimiter(url, policy, name) }, IS_PERMIT);
}

export function oursKeyed(url, policy) {
  return peer("limiter.tryAcquire({ key })", { limiter: rateLimiter(url, policy) }, IS_PERMIT);
}

/** Ours, awaited like a call that may have to wait. */
export function oursAwaited(url, policy) {
  return peer("await limiter.acquire()", { limiter: rateLimiter(url, policy) });
}

/** limiter: a token bucket and a count per interval, which may be a microsecond. */
export function limiter({ limit, seconds }) {
  return peer("limiter.tryRemoveTokens(1)", { limiter: intervalLimiter(limit, seconds) });
}

const intervalLimiter = (limit, seconds) => new IntervalLimiter({ tokensPerInterval: limit, interval: seconds * 1e3 });

/** limiter has no keys, so there is one per key. */
export function limiterKeyed({ limit, seconds }) {
  const limiters = new Map();
  function of(key) {
    let limiter = limiters.get(key);
    if (limiter === undefined) limiters.set(key, (limiter = intervalLimiter(limit, seconds)));
    return limiter;
  }
  return peer("of(key).tryRemoveTokens(1)", { of });
}

/** rate-limiter-flexible: a fixed window that begins with the first start. A denial is a rejection. It always has a key. */
export function rateLimiterFlexible(policy) {
  const limiter = new flexible.RateLimiterMemory({ points: policy.limit, duration: windowOf(policy) });
  const names = { limiter, denied: () => null };
  const renew = () => limiter.delete("tenant-7");
  return peer("await limiter.consume(key).catch(denied)", names, emptied(policy, renew, IS_PERMIT));
}

/** The same on Redis, with the client of its README. */
function rateLimiterFlexibleRedis(url, name, { limit, seconds }) {
  const storeClient = new Redis(url);
  const limiter = new flexible.RateLimiterRedis({ storeClient, points: limit, duration: seconds });
  return peer("await limiter.consume(name).catch(denied)", { limiter, name, denied: () => null }, IS_PERMIT);
}

/** Ours on a server that machines share: granted units start without a request. */
function served(url, name, policy) {
  return peer("await limiter.tryAcquireAsync()", { limiter: rateLimiter(url, policy, name) }, IS_PERMIT);
}

/** Name, package, and a function of a server's URL, a name and a policy that makes it. */
export const ON_SERVER = [
  ["granted", "workglow-limit", served],
  ["direct", "workglow-limit", (url, ...rest) => served(`${url}?grants=never`, ...rest)],
  ["rate-limiter-flexible, Redis", "rate-limiter-flexible", rateLimiterFlexibleRedis],
];

/** The store of express-rate-limit, which its middleware asks once per request: a fixed window. It always has a key. */
export function expressRateLimit(policy) {
  const store = new MemoryStore();
  store.init({ windowMs: Math.min(windowOf(policy) * 1e3, 2 ** 31 - 1) });
  const renew = () => store.resetKey("tenant-7");
  const admitted = `answer.totalHits <= ${policy.limit}`;
  return peer("await store.increment(key)", { store }, emptied(policy, renew, { admitted }));
}

/**
 * bottleneck: a reservoir that is refilled at intervals. To be denied instead of queued, it may have no queue. It starts each job
 * from a timer, which takes at least a millisecond: `cpu_ns` shows the processor time.
 */
export function bottleneck(policy) {
  const limiter = new Bottleneck({
    reservoir: policy.limit,
    reservoirRefreshAmount: policy.limit,
    reservoirRefreshInterval: windowOf(policy) * 1e3,
    highWater: 0,
    strategy: Bottleneck.strategy.OVERFLOW,
  });
  limiter.on("error", () => {});
  const names = { limiter, job: async () => true, denied: () => null };
  const renew = () => limiter.updateSettings({ reservoir: policy.limit });
  return peer("await limiter.schedule(job).catch(denied)", names, emptied(policy, renew, IS_PERMIT));
}

const workglowLimiter = (storage, name, policy) =>
  new WorkglowRateLimiter(storage, name, { maxExecutions: policy.limit, windowSizeInSeconds: windowOf(policy) });

/** Workglow's RateLimiter, in memory: a log that it scans from the beginning. */
export function workglow(policy) {
  const limiter = workglowLimiter(new InMemoryRateLimiterStorage(), "bench", policy);
  return peer(
    "await limiter.tryAcquire()",
    { limiter },
    emptied(policy, () => limiter.clear(), IS_PERMIT),
  );
}

/** Each of Workglow's queues has one limiter. */
export function workglowKeyed(policy) {
  const storage = new InMemoryRateLimiterStorage();
  const limiters = new Map();
  function of(key) {
    let limiter = limiters.get(key);
    if (limiter === undefined) limiters.set(key, (limiter = workglowLimiter(storage, key, policy)));
    return limiter;
  }
  return peer("await of(key).tryAcquire()", { of }, IS_PERMIT);
}

/** p-limit: at most 5 at the same time. */
export const pLimitOf5 = () => peer("await limit(job)", { limit: pLimit(5), job: async () => true });

/** Ours, acquired and completed. */
export const concurrency = () => peer("limiter.tryAcquire().complete()", { limiter: new ConcurrencyLimiter(5) });

/** The same, awaited. */
export const concurrencyAwaited = () => peer("(await limiter.acquire()).complete()", { limiter: new ConcurrencyLimiter(5) });

/** Name, package, and a function of a policy that makes it. */
export const IN_MEMORY = [
  ["memory", "workglow-limit", (policy) => ours("memory:", policy)],
  ["limiter", "limiter", limiter],
  ["rate-limiter-flexible, memory", "rate-limiter-flexible", rateLimiterFlexible],
  ["express-rate-limit, memory store", "express-rate-limit", expressRateLimit],
  ["bottleneck", "bottleneck", bottleneck],
  ["Workglow RateLimiter, memory", "@workglow/job-queue", workglow],
];
export const PACKAGES = [...IN_MEMORY.map(([, of]) => of), "p-limit"];
