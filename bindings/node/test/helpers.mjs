// Helpers of several tests.

import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** A directory in memory, if there is one: a synchronous call waits for other commits for 40 ms, and a disk may be busy. */
const place = existsSync("/dev/shm") ? "/dev/shm" : tmpdir();

/** Makes a directory for the test, and removes it after the test. */
export function directory(t) {
  const dir = mkdtempSync(join(place, "workglow-limit-"));
  t.after(() => rmSync(dir, { recursive: true, force: true, maxRetries: 20 }));
  return dir;
}

/** Makes a rate limit with a clock that stands still. */
export function manual({ RateLimiter, Store, ManualClock }, max, seconds, name = "limit", url = "memory:") {
  const clock = new ManualClock();
  const store = new Store(url, { clock });
  return { clock, store, limiter: new RateLimiter(store, name, { maxExecutions: max, windowSizeInSeconds: seconds }) };
}

/** Waits until all tasks that are ready have run. */
export const settle = () => new Promise((resolve) => setTimeout(resolve, 5));

/**
 * Waits until this many callers wait for each limit of a store. A call that a busy machine interrupts goes on in the thread pool, and those
 * behind it join the line later.
 */
export async function lined(store, ...counts) {
  const waiting = async () => (await store.snapshotAsync()).limits.map((limit) => limit.waiting);
  while (`${await waiting()}` !== `${counts}`) await settle();
}

/** Returns a function that waits until it was called `count` times: a slow machine may delay each of the calls. */
export function together(count) {
  let open;
  const reached = new Promise((resolve) => (open = resolve));
  return () => (--count === 0 && open(), reached);
}

/** How often `patiently` runs a function at most. */
const ATTEMPTS = 100;

/**
 * Runs a function from its beginning until no call of it gave up because the store was busy for 40 ms, which a busy machine may cause.
 * It is for calls that have no form that waits longer: those of a composite with a custom limiter, and `stats()`. A request to a server
 * may have taken effect nevertheless, so the function uses other limits each time.
 */
export async function patiently(run, isLate = (error) => error.code === "store_timeout") {
  for (let left = ATTEMPTS; ; await settle()) {
    try {
      return await run();
    } catch (error) {
      if (--left === 0 || !isLate(error)) throw error;
    }
  }
}

/** Returns the most starts whose whole intervals [a, b] lie in one window, wherever the window begins. */
export function mostInAnyWindow(starts, window) {
  let most = 0;
  for (const [from] of starts) {
    const within = starts.filter(([a, b]) => a >= from && b < from + window);
    most = Math.max(most, within.length);
  }
  return most;
}
