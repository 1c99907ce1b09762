// A limiter before a BullMQ processor: jobs without room are delayed with their places, and the worker takes others.

import type { Job } from "bullmq";
import { LimitError, invalid } from "./errors.js";
import { LATEST, type Limited, type WithLimiterOptions as Options, limitJobs, putPlace, takePlace, wakeIn } from "./job.js";
import type { Limiter } from "./limiter.js";
import type { Permit } from "./permit.js";

export type { Limited };

/** How `withLimiter` limits. */
export type WithLimiterOptions<T = any, R = any, N extends string = string> = Options<Job<T, R, N>>;

/** A processor of BullMQ's, which may use the permit of its start, too: `settle` it, or `renew` its lease. */
export type LimitedProcessor<T = any, R = any, N extends string = string> = (
  job: Job<T, R, N>,
  token: string | undefined,
  signal: AbortSignal | undefined,
  permit: Permit,
) => R | PromiseLike<R>;

/**
 * What a BullMQ `Worker` takes: `processor`, each start of which `limiter` admits. A job for which there is no room is
 * delayed, with its place if the limit has any, and its attempts are not touched: the worker takes other jobs meanwhile.
 * The permit completes when the processor ends, whatever happened.
 *
 * `keyOf` gives the key whose budget a job uses; nothing, or no `keyOf`, is the empty key.
 */
export function withLimiter<T = any, R = any, N extends string = string>(
  limiter: Limiter,
  keyOf: ((job: Job<T, R, N>) => string | null | undefined) | null | undefined,
  processor: LimitedProcessor<T, R, N>,
  options: WithLimiterOptions<T, R, N> = {},
): (job: Job<T, R, N>, token?: string, signal?: AbortSignal) => Promise<R> {
  const limit = limitJobs(limiter, keyOf, options);
  if (typeof processor !== "function") {
    throw invalid("processor", processor, "a function; in the file of a sandboxed processor, wrap what it exports");
  }
  let latest = 0;
  /** Lets a delayed job be fetched whose time has come, if the workers of this process sleep. */
  const wake = (job: Job, wait: number): void => {
    if (typeof job.promote !== "function") return; // In a sandbox.
    const due = Date.now() + wait;
    // It rejects if somebody else has fetched the job, which is as good.
    wakeIn(wait + OVERSLEPT, () => void (latest < due && job.promote().catch(() => {})));
  };
  return async (job, token, signal) => {
    latest = Date.now();
    if (typeof job.moveToDelayed !== "function" || typeof job.attemptsStarted !== "number") throw tooOld();
    const beside = await Beside.of(job);
    const { data, place } = takePlace(job.data);
    job.data = data;
    const result = await limit(
      job,
      place ?? (await beside?.find()) ?? null,
      (permit) => processor(job, token, signal, permit),
      async (wait, place) => {
        if (place !== null) await (beside ? beside.keep(place, wait) : job.updateData(putPlace(data, place) as T));
        await job.moveToDelayed(Date.now() + wait, token);
        wake(job, wait);
        return new DelayedError("bullmq:movedToDelayed");
      },
    );
    if (result instanceof DelayedError) throw result;
    return result;
  };
}

/**
 * How late a delayed job is when it is promoted, in ms. A worker that finds the queue at its global concurrency is not told of
 * delayed jobs, and sleeps for its `drainDelay`, 5 s, whatever becomes due meanwhile.
 */
const OVERSLEPT = 60;

/** Redis, as BullMQ gives it. */
interface Redis {
  get(key: string): Promise<string | null>;
  set(key: string, value: string, ...options: unknown[]): Promise<unknown>;
}

/**
 * Where a delayed job has its place: in Redis, beside it. Its data are its owner's, who may replace them while it waits. A job
 * that replaces a delayed one (`deduplication: { replace: true }`) gets the place of that, or whoever is replaced faster
 * than the limit grants would never start.
 */
class Beside {
  private constructor(
    readonly redis: Redis,
    readonly isAdapted: boolean,
    readonly key: string,
    readonly mayBeThere: boolean,
  ) {}

  /** `null` in sandboxed processors and on other backends: there its data carry the place. */
  static async of(job: Job): Promise<Beside | null> {
    const { queue, backend } = job as unknown as { queue?: any; backend?: any }; // BullMQ 6 has a backend, 5 has none.
    const redis = (await (backend === undefined ? queue?.client : backend.client)) as Redis | undefined;
    if (typeof redis?.get !== "function" || typeof redis.set !== "function") return null;
    const { id, replace } = job.opts.deduplication ?? {};
    const key = queue.toKey(`workglow-limit:${id !== undefined && replace ? `de:${id}` : job.id}`);
    return new Beside(redis, backend !== undefined, key, Boolean(replace) || job.attemptsStarted > 1);
  }

  find(): Promise<string | null> | null {
    return this.mayBeThere ? this.redis.get(this.key) : null;
  }

  async keep(place: string, wait: number): Promise<void> {
    const time = Math.ceil(wait) + LATEST;
    await (this.isAdapted ? this.redis.set(this.key, place, { PX: time }) : this.redis.set(this.key, place, "PX", time));
  }
}

/**
 * What BullMQ takes for "this job is delayed". It goes by the name, so that its own class need not be loaded: that may be
 * there twice, as an ES module and as CommonJS.
 */
class DelayedError extends Error {
  override readonly name = "DelayedError"; // A property of its own, which survives the way out of a sandbox.
}

function tooOld(): LimitError {
  let is = "this is an older one";
  try {
    is = `this is ${(require("bullmq/package.json") as { version: string }).version}`;
  } catch {
    // It is not where this package is.
  }
  return new LimitError(`withLimiter needs BullMQ 5.0.0 or newer, where jobs can be delayed without an attempt: ${is}`, "unsupported", -13);
}
