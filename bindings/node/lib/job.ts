// Limits the jobs of any queue.

import type { Key, Weight } from "./charges.js";
import { invalid } from "./errors.js";
import { type Duration, options as checkOptions } from "./input.js";
import type { Limiter } from "./limiter.js";
import { type Delay, limitJobs } from "./limited.js";
import type { Permit } from "./permit.js";

export type { Delay };

/** The options of `limitJob`. */
export interface LimitJobOptions<D = void> {
  /**
   * Delays the job: the queue should hand it out again in `wait` ms, a whole number of at least 0, with the text `place`, which you
   * then pass to `limitJob`. `place` is `null` if the limit has no places that can leave the process; the job then asks again. A job
   * comes back `hold` before its place is ready. If `delay` rejects, the place is given back.
   */
  delay: Delay<D>;
  /** The place that `delay` got when the job was delayed; nothing the first time. An invalid place is ignored. */
  place?: string | null | undefined;
  /** The units that the job takes, or those of a composite's parts. Default: 1. */
  weight?: Weight | undefined;
  /**
   * How long a job may wait in the worker, in the slot of a running job. Default: 150 ms. Shorter waits are not worth a delay, and
   * delayed jobs come back this much before their place is ready, because a busy worker takes them late.
   */
  hold?: Duration | undefined;
  /**
   * How late a job may start with its place. Default: 100 ms. Places count from the end of their grace, so a limit with a constant
   * backlog admits `window / (window + grace)` of its units; the window of an evenly spaced limit is the spacing.
   */
  grace?: Duration | undefined;
}

/**
 * Runs `job` with the permit of its start, and completes the permit when the job ends or throws; or calls `delay` if the job cannot
 * start soon. Returns the result of either. A job that comes back with its place starts: it is not denied again, keeps its turn,
 * and is started once, however often the queue hands it out.
 */
export async function limitJob<R, D = void>(
  limiter: Limiter,
  key: Key | null | undefined,
  job: (permit: Permit) => R | PromiseLike<R>,
  options: LimitJobOptions<D>,
): Promise<R | D> {
  checkOptions(options, ["delay", "place", "weight", "hold", "grace"]);
  const { delay, place, weight, ...times } = options;
  if (typeof job !== "function") throw invalid("job", job, "a function");
  if (typeof delay !== "function") throw invalid("delay", delay, "a function that makes the queue hand out the job again later");
  if (typeof (place ?? "") !== "string") throw invalid("place", place, "the text that delay got, or nothing");
  const limit = limitJobs(limiter, () => key, { weightOf: () => weight ?? 1, ...times });
  return limit(undefined, place ?? null, job, delay);
}
