// Limits pg-boss jobs: a job that cannot start goes back into its queue with its place, and the worker takes others.

import type { Job, PgBoss } from "pg-boss";
import { LimitError, invalid } from "./errors.js";
import { options as checkOptions } from "./input.js";
import {
  type KeyOf,
  type Limited,
  SentAway,
  type WithLimiterOptions as Options,
  limitJobs,
  putPlace,
  schemaOf,
  takePlace,
  wakeIn,
} from "./limited.js";
import type { Limiter } from "./limiter.js";
import type { Permit } from "./permit.js";

export type { KeyOf, Limited };

/** The options of `withLimiter`. */
export interface WithLimiterOptions<T = any, J extends Job<T> = Job<T>> extends Options<J> {
  /** The schema of pg-boss. Default: "pgboss", as there. */
  schema?: string | undefined;
}

/** The handler of one pg-boss job. It also gets the permit of its start, to `settle` it or `renew` its lease. */
export type LimitedHandler<T = any, R = any, J extends Job<T> = Job<T>> = (job: J, permit: Permit) => R | PromiseLike<R>;

/**
 * Returns a handler for `boss.work` that runs `handler` for each job of a batch when `limiter` admits the job. A job that cannot
 * start goes back into its queue, with its place if the limit has places, without changing `retryCount`, and the worker takes other
 * jobs. The permit completes when the handler ends or throws. The jobs of a batch complete or fail separately, as soon as each ends.
 *
 * `keyOf` returns the key whose budget a job uses, or a key for each part of a composite. Default: the empty key.
 */
export function withLimiter<T = any, R = any, J extends Job<T> = Job<T>>(
  boss: PgBoss,
  limiter: Limiter,
  keyOf: KeyOf<J> | null | undefined,
  handler: LimitedHandler<T, R, J>,
  options: WithLimiterOptions<T, J> = {},
): (jobs: J[]) => Promise<R | void> {
  if (typeof boss?.getDb !== "function") throw invalid("boss", boss, "the PgBoss whose jobs it handles");
  if (typeof boss.isTimekeeping !== "function") {
    const why = "withLimiter needs pg-boss 12.35.0 or newer, where a worker cannot end a job that it gave back: this is an older one";
    throw new LimitError(why, "unsupported", -13);
  }
  checkOptions(options, ["schema", "weightOf", "hold", "grace", "onLimited"]);
  const { schema, ...others } = options;
  const limit = limitJobs(limiter, keyOf, others);
  if (typeof handler !== "function") throw invalid("handler", handler, "a function");
  // In the state "retry" the job stays ahead of later jobs with its singleton key, if the queue keeps their order. pg-boss also
  // uses this state for jobs that have started before.
  const giveBack = `UPDATE ${schemaOf(schema, "pgboss")}.job SET state = 'retry', started_on = NULL, heartbeat_on = NULL,
    start_after = now() + $4 * interval '1 ms', data = coalesce($5::jsonb, data)
    WHERE name = $1 AND id = $2 AND state = 'active' AND retry_count = $3 RETURNING id`;

  const sent = new SentAway();
  let turn = 0;
  /** Makes a worker of this queue, an idle one if there is one, fetch now instead of at its next poll. */
  const wake = (queue: string): void => {
    const workers = boss.getWipData().filter(({ name, state }) => name === queue && state === "active");
    const idle = workers.filter(({ count }) => count === 0);
    const [first, ...rest] = idle.length > 0 ? idle : workers;
    if (first !== undefined) boss.notifyWorker([first, ...rest][turn++ % (rest.length + 1)]!.id);
  };

  /** Handles one job; returns `SENT` if it was delayed. */
  const handle = (job: J): Promise<R | Sent> => {
    const known = sent.take(job.id);
    const { data, place = known } = takePlace(job.data);
    job.data = data;
    // If one delayed job is due, others may be, even some that another process delayed.
    if (place !== null) wake(job.name);
    return limit<R, Sent>(
      job,
      place,
      (permit) => handler(job, permit),
      async (wait, place): Promise<Sent> => {
        const stored = place === null ? null : JSON.stringify(putPlace(data, place));
        const { rows } = await boss.getDb().executeSql(giveBack, [job.name, job.id, job.retryCount, wait, stored]);
        if (rows.length === 0 && place !== null) await limiter.place(place).cancelAsync(); // The job has ended.
        // The next worker gets the job with the same attempt. This worker is about to complete the job, which must have no effect.
        job.retryCount = NO_ATTEMPT;
        if (place !== null) sent.put(job.id, place, wait);
        wake(job.name);
        wakeIn(wait, () => wake(job.name));
        return SENT;
      },
    );
  };

  return async (jobs) => {
    const [job] = jobs;
    if (job !== undefined && jobs.length === 1) {
      const result = await handle(job);
      return result === SENT ? undefined : result;
    }
    await Promise.all(
      jobs.map(async (job) => {
        const end = await handle(job).then(
          (result) => () => result !== SENT && boss.complete(job.name, job, result as object),
          (error) => () => boss.fail(job.name, job, error),
        );
        await end();
      }),
    );
  };
}

const SENT = Symbol("sent away");
type Sent = typeof SENT;

/** The number of an attempt that no job has. */
const NO_ATTEMPT = 2 ** 31 - 1;
