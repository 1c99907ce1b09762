// Limits BullMQ jobs: a job that cannot start is delayed with its place, and the worker takes others.

import type { Job } from "bullmq";
import { LimitError, invalid } from "./errors.js";
import { HeldQueue } from "./held.js";
import {
  type KeyOf,
  type Kept,
  LATEST,
  type Limited,
  type WithLimiterOptions as Options,
  limitJobs,
  putPlace,
  takePlace,
  wakeIn,
} from "./limited.js";
import type { Limiter } from "./limiter.js";
import type { Permit } from "./permit.js";

export type { KeyOf, Limited };

/** The options of `withLimiter`. */
export interface WithLimiterOptions<T = any, R = any, N extends string = string> extends Options<Job<T, R, N>> {}

/** A BullMQ processor. It also gets the permit of its start, to `settle` it or `renew` its lease. */
export type LimitedProcessor<T = any, R = any, N extends string = string> = (
  job: Job<T, R, N>,
  token: string | undefined,
  signal: AbortSignal | undefined,
  permit: Permit,
) => R | PromiseLike<R>;

/**
 * Returns a processor for a BullMQ `Worker` that runs `processor` when `limiter` admits the job. A job that cannot start is
 * delayed, with its place if the limit has places, without counting an attempt, and the worker takes other jobs. The permit
 * completes when the processor ends or throws.
 *
 * `keyOf` returns the key whose budget a job uses, or a key for each part of a composite. Default: the empty key.
 */
export function withLimiter<T = any, R = any, N extends string = string>(
  limiter: Limiter,
  keyOf: KeyOf<Job<T, R, N>> | null | undefined,
  processor: LimitedProcessor<T, R, N>,
  options: WithLimiterOptions<T, R, N> = {},
): (job: Job<T, R, N>, token?: string, signal?: AbortSignal) => Promise<R> {
  const limit = limitJobs(limiter, keyOf, options);
  if (typeof processor !== "function") {
    throw invalid("processor", processor, "a function; in the file of a sandboxed processor, wrap what it exports");
  }
  let latest = 0;
  /** Wakes a worker when a delayed job is due, if those of this process sleep. It keeps no job in memory until then. */
  const wake = ({ redis, marker }: PlaceStore, wait: number): void => {
    const due = Date.now() + wait;
    // As BullMQ does for a new job: the worker then takes the delayed jobs that are due.
    wakeIn(wait + OVERSLEPT, () => void (latest < due && redis.zadd(marker, 0, "0").catch(() => {})));
  };
  const limited = async (job: Job<T, R, N>, token?: string, signal?: AbortSignal): Promise<R> => {
    latest = Date.now();
    if (typeof job.moveToDelayed !== "function" || typeof job.attemptsStarted !== "number") throw tooOld();
    const redis = await redisOf(job);
    const queue = keyOf == null ? await HeldQueue.of(job, limited, limiter, redis) : null;
    if (queue !== null) return processHeld(queue, job, token, signal);
    const store = PlaceStore.of(job, redis);
    const { data, place } = takePlace(job.data);
    job.data = data;
    const result = await limit(
      job,
      // A place in Redis is newer than one in the job's data, which may also be copied from another job.
      (await store?.find()) ?? place ?? null,
      (permit) => processor(job, token, signal, permit),
      async (wait, place) => {
        if (place !== null) await (store ? store.keep(place, wait) : job.updateData(putPlace(data, place) as T));
        await job.moveToDelayed(Date.now() + wait, token);
        if (store !== null) wake(store, wait);
        return new DelayedError("DelayedError");
      },
      store?.kept,
    );
    if (result instanceof DelayedError) throw result;
    return result;
  };

  /** Processes a job of a queue that is held while the limit is full. */
  async function processHeld(queue: HeldQueue, job: Job<T, R, N>, token?: string, signal?: AbortSignal): Promise<R> {
    const number = queue.number();
    const result = await limit(
      job,
      queue,
      (permit) => processor(job, token, signal, permit),
      async () => {
        await queue.hold(number);
        return new HeldError("bullmq:rateLimitExceeded");
      },
    );
    if (result instanceof HeldError) throw result;
    return result;
  }
  return limited;
}

/**
 * How late a delayed job may be before a worker is woken for it, in ms. A worker that finds the queue at its global concurrency is not
 * notified of delayed jobs, and sleeps for its `drainDelay`, 5 s.
 */
const OVERSLEPT = 60;

/** How long the text of a called job is kept, in ms. A job that comes back later asks again. */
const CALLED = 5_000;

/** @internal The commands of BullMQ's Redis client. */
export interface Redis {
  get(key: string): Promise<string | null>;
  /** Writes a value for so many ms. */
  keep(key: string, value: string, time: number): Promise<unknown>;
  exists(...keys: string[]): Promise<number>;
  zadd(key: string, score: number, member: string): Promise<unknown>;
  hgetall(key: string): Promise<Record<string, string>>;
  hget(key: string, field: string): Promise<string | null | undefined>;
  /** Writes a field of a hash, which then lives for so many ms at least. */
  keepField(key: string, field: string, value: string, time: number): Promise<unknown>;
  /** Returns how many fields there were. */
  hdel(key: string, field: string): Promise<number>;
}

/** BullMQ's clients have no command that lets a hash expire, but run scripts. */
const KEEP_FIELD = "workglowLimitKeepField";
const KEEP_FIELD_SCRIPT = `
redis.call("HSET", KEYS[1], ARGV[1], ARGV[2])
if redis.call("PTTL", KEYS[1]) < tonumber(ARGV[3]) then redis.call("PEXPIRE", KEYS[1], ARGV[3]) end
`;

/** Returns the client of a job's queue; `null` in sandboxed processors, and on other backends. */
async function redisOf(job: Job): Promise<Redis | null> {
  const { queue, backend } = job as unknown as { queue?: any; backend?: any }; // BullMQ 6 has a backend, 5 has none.
  const client = await (backend === undefined ? queue?.client : backend.client);
  if (typeof client?.get !== "function" || typeof client.set !== "function") return null;
  return {
    get: (key) => client.get(key),
    keep: (key, value, time) => (backend === undefined ? client.set(key, value, "PX", time) : client.set(key, value, { PX: time })),
    exists: (...keys) => client.exists(...keys),
    zadd: (key, score, member) => client.zadd(key, score, member),
    hgetall: (key) => client.hgetall(key),
    hget: (key, field) => client.hget(key, field),
    keepField: (key, field, value, time) => {
      client.defineCommand(KEEP_FIELD, { numberOfKeys: 1, lua: KEEP_FIELD_SCRIPT });
      const values = [key, field, value, Math.ceil(time)];
      return backend === undefined ? client[KEEP_FIELD](values) : client.runCommand(KEEP_FIELD, values);
    },
    hdel: (key, field) => client.hdel(key, field),
  };
}

/**
 * Stores the place of a delayed job in Redis, next to the job, because its owner may replace the job's data while it waits. A job
 * that replaces a delayed one (`deduplication: { replace: true }`) gets that job's place. Otherwise a job that is replaced faster
 * than the limit admits would never start.
 */
class PlaceStore {
  private constructor(
    readonly redis: Redis,
    readonly key: string,
    readonly mayBeThere: boolean,
    /** The key on which idle workers wait. */
    readonly marker: string,
    /** Where the job is while it is delayed; `null` if another job may replace it and get its place. */
    readonly kept: Kept | null,
  ) {}

  /** Returns `null` without Redis, where the job's data carry the place. */
  static of(job: Job, redis: Redis | null): PlaceStore | null {
    if (redis === null) return null;
    const { id, replace } = job.opts.deduplication ?? {};
    const { queue } = job as unknown as { queue: { toKey(name: string): string; opts?: { concurrency?: number } } };
    const isReplaced = id !== undefined && Boolean(replace);
    const key = queue.toKey(`workglow-limit:${isReplaced ? `de:${id}` : job.id}`);
    return new PlaceStore(
      redis,
      key,
      isReplaced || job.attemptsStarted > 1,
      queue.toKey("marker"),
      isReplaced
        ? null
        : {
            name: queue.toKey(job.id!),
            count: (names) => redis.exists(...names),
            workers: queue.opts?.concurrency ?? 1,
            priority: job.opts.priority ?? 0,
            call: (text) => Promise.all([redis.keep(key, text, CALLED), job.promote()]),
          },
    );
  }

  find(): Promise<string | null> | null {
    return this.mayBeThere ? this.redis.get(this.key) : null;
  }

  async keep(place: string, wait: number): Promise<void> {
    await this.redis.keep(this.key, place, Math.ceil(wait) + LATEST);
  }
}

/**
 * Reports to BullMQ that the job is delayed. BullMQ checks the name, and BullMQ 5.0 the message, so its own class is not needed, which may
 * be loaded twice: as an ES module and as CommonJS.
 */
class DelayedError extends Error {
  override readonly name = "DelayedError"; // An own property, which a sandbox passes on.
}

/** Reports to BullMQ that the queue is held, and the job goes back to it. BullMQ checks the message. */
class HeldError extends Error {
  override readonly name = "RateLimitError";
}

function tooOld(): LimitError {
  let is = "this is an older one";
  try {
    is = `this is ${(require("bullmq/package.json") as { version: string }).version}`;
  } catch {
    // It is not installed next to this package.
  }
  return new LimitError(`withLimiter needs BullMQ 5.0.0 or newer, where jobs can be delayed without an attempt: ${is}`, "unsupported", -13);
}
