// Reads a server's limit from its responses: `heed` pauses our limit for all that share it.

import { invalid } from "./errors.js";
import { type Duration, milliseconds, options as checkOptions, unicode } from "./input.js";
import type { Limiter } from "./limiter.js";
import { type HttpResponse, pauseOf } from "./response.js";

export type { HttpResponse } from "./response.js";

/** The options of `heed`. */
export interface HeedOptions {
  /** The key to pause. Default: all keys. */
  key?: string | undefined;
  /** The pause after a 429 that states none. Default: 1 s. */
  default?: Duration | undefined;
  /** The longest pause, whatever the server says. Default: 1 hour. */
  longest?: Duration | undefined;
}

/**
 * Pauses a limit, or one key, for all processes that share it, if a response says so. Returns the pause in ms; 0 for none.
 *
 * In a refusal (429, 503; also 403 and 529, which some servers use) the pause is its Retry-After, or retry-after-ms. Otherwise, with any
 * status, the pause lasts until the latest reset of a limit with nothing remaining: in RateLimit (with RateLimit-Policy),
 * RateLimit-Remaining and RateLimit-Reset, or a vendor's similar pair; a 429 need not say what remains. A 429 without any of these pauses for the default. No pause exceeds `longest`. Values
 * that cannot be parsed are ignored.
 */
export async function heed(limiter: Limiter, response: HttpResponse, options: HeedOptions = {}): Promise<number> {
  if (typeof limiter?.pause !== "function") throw invalid("limiter", limiter, "a limiter");
  checkOptions(options, ["key", "default", "longest"]);
  const key = options.key === undefined ? undefined : unicode("key", options.key);
  const usual = milliseconds("default", options.default ?? 1e3);
  const longest = milliseconds("longest", options.longest ?? 36e5);
  const pause = pauseOf(response, { default: usual, longest }) ?? 0;
  if (pause > 0) await limiter.pause(pause, { key });
  return pause;
}
