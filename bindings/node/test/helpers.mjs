// What several tests need.

import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** In memory, where there is such a place: a synchronous call waits for a commit of others for 40 ms, and a disk may be busy. */
const place = existsSync("/dev/shm") ? "/dev/shm" : tmpdir();

/** A directory of the test's own, gone when it is over. */
export function directory(t) {
  const dir = mkdtempSync(join(place, "workglow-limit-"));
  t.after(() => rmSync(dir, { recursive: true, force: true, maxRetries: 20 }));
  return dir;
}

/** A rate limit by a clock that stands still. */
export function manual({ RateLimiter, Store, ManualClock }, max, seconds, name = "limit", url = "memory:") {
  const clock = new ManualClock();
  const store = new Store(url, { clock });
  return { clock, store, limiter: new RateLimiter(store, name, { maxExecutions: max, windowSizeInSeconds: seconds }) };
}

/** Until everything has run that is ready to. */
export const settle = () => new Promise((resolve) => setTimeout(resolve, 5));

/** The most starts that surely lie in one window, wherever it begins: their whole [a, b] does. */
export function mostInAnyWindow(starts, window) {
  let most = 0;
  for (const [from] of starts) {
    const within = starts.filter(([a, b]) => a >= from && b < from + window);
    most = Math.max(most, within.length);
  }
  return most;
}
