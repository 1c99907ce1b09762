// What a server says of its limit: `heed` reads it from a response, and pauses ours for everyone.

import { invalid } from "./errors.js";
import { type Duration, milliseconds, options as checkOptions, unicode } from "./input.js";
import type { Limiter } from "./limiter.js";
import { type HttpResponse, pauseOf } from "./response.js";

export type { HttpResponse } from "./response.js";

/** How to heed a response. */
export interface HeedOptions {
  /** The key to pause: all keys if not given. */
  key?: string | undefined;
  /** How long the pause is after a 429 that does not say: 1 s if not given. */
  default?: Duration | undefined;
  /** How long a pause is at most, whatever a server says: an hour if not given. */
  longest?: Duration | undefined;
}

/**
 * Pauses a limit, or a key of it, for all who share it, if a response says so. Gives for how many ms; 0: not.
 *
 * The pause is what Retry-After says in a refusal (429, 503; 403 and 529 of some). Otherwise, whatever the status, it lasts
 * until the latest reset of what has nothing remaining: by RateLimit (with RateLimit-Policy), RateLimit-Remaining and
 * RateLimit-Reset, or vendors' such pairs. A 429 that says none of this pauses for the default. No pause is more than the
 * longest; what cannot be read is as if it were not there.
 */
export async function heed(limiter: Limiter, response: HttpResponse, options: HeedOptions = {}): Promise<number> {
  if (typeof limiter?.pause !== "function") throw invalid("limiter", limiter, "a limiter");
  checkOptions(options, ["key", "default", "longest"]);
  const key = options.key === undefined ? undefined : unicode("key", options.key);
  const usual = milliseconds("default", options.default ?? 1e3);
  const longest = milliseconds("longest", options.longest ?? 36e5);
  const pause = pauseOf(response, { default: usual, longest });
  if (pause > 0) await limiter.pause(pause, key);
  return pause;
}
