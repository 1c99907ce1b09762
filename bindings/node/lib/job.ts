// A limiter before a job of any queue.

import { invalid } from "./errors.js";
import { type Duration, options as checkOptions, weightOf } from "./input.js";
import type { Limiter } from "./limiter.js";
import { type Delay, limitJobs } from "./limited.js";
import type { Permit } from "./permit.js";

export type { Delay };

/** How `limitJob` limits, and what sends a job away. */
export interface LimitJobOptions<D = void> {
  /**
   * Lets the queue hand out the job again in `wait` ms, whole and at least 0, with `place`: then give that text to `limitJob`.
   * `null` if the limit has no places that can leave the process: the job asks again then. Jobs come back before their
   * place by `hold`. If it rejects, the place is given back.
   */
  delay: Delay<D>;
  /** What `delay` was told when the job was sent away; nothing the first time. One that is worth nothing does no harm. */
  place?: string | null | undefined;
  /** How many units the job takes: 1 if not given. */
  weight?: number | undefined;
  /**
   * How long a job may wait in the worker, in the room of a running job: 150 ms if not given. A shorter wait is not worth
   * a delay, and delayed jobs come back so much earlier than their place, because a busy worker takes them late.
   */
  hold?: Duration | undefined;
  /**
   * How late a job may start with its place: 100 ms if not given. Places count from the end of their grace, so a limit that
   * is always waited for gives `window / (window + grace)` of itself; of an evenly spaced one, the window is the spacing.
   */
  grace?: Duration | undefined;
}

/**
 * Runs `job` with the permit of its start, and completes that when it ends, whatever happened; or calls `delay`, where there is
 * no room for it soon. Gives what the one or the other gave. A job that comes back with its place starts: it is not denied
 * again, keeps its turn, and is started once, however often the queue hands it out.
 */
export async function limitJob<R, D = void>(
  limiter: Limiter,
  key: string | null | undefined,
  job: (permit: Permit) => R | PromiseLike<R>,
  options: LimitJobOptions<D>,
): Promise<R | D> {
  checkOptions(options, ["delay", "place", "weight", "hold", "grace"]);
  const { delay, place, weight, ...times } = options;
  if (typeof job !== "function") throw invalid("job", job, "a function");
  if (typeof delay !== "function") throw invalid("delay", delay, "a function, which lets the queue hand the job out again later");
  if (typeof (place ?? "") !== "string") throw invalid("place", place, "the text that delay was given, or nothing");
  const limit = limitJobs(limiter, () => key, { weightOf: () => weightOf(weight), ...times });
  return limit(undefined, place ?? null, job, delay);
}
