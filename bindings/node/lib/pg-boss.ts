// A limiter before a pg-boss handler: jobs without room go back into their queue with their places, and the worker takes others.

import type { Job, PgBoss } from "pg-boss";
import { LimitError, invalid } from "./errors.js";
import { options as checkOptions } from "./input.js";
import { type Limited, SentAway, type WithLimiterOptions as Options, limitJobs, putPlace, schemaOf, takePlace, wakeIn } from "./job.js";
import type { Limiter } from "./limiter.js";
import type { Permit } from "./permit.js";

export type { Limited };

/** How `withLimiter` limits. */
export interface WithLimiterOptions<T = any, J extends Job<T> = Job<T>> extends Options<J> {
  /** The schema that pg-boss was given: "pgboss" if not given, as there. */
  schema?: string | undefined;
}

/** What handles one job of pg-boss's. It may use the permit of its start, too: `settle` it, or `renew` its lease. */
export type LimitedHandler<T = any, R = any, J extends Job<T> = Job<T>> = (job: J, permit: Permit) => R | PromiseLike<R>;

/**
 * What `boss.work` takes: `handler` for each job of a batch, each start of which `limiter` admits. A job for which there is no
 * room goes back into its queue, with its place if the limit has any, and `retryCount` is not touched: the worker takes other
 * jobs meanwhile. The permit completes when the handler ends, whatever happened. Of a batch, each job is completed or fails for
 * itself, as soon as it ends.
 *
 * `keyOf` gives the key whose budget a job uses; nothing, or no `keyOf`, is the empty key.
 */
export function withLimiter<T = any, R = any, J extends Job<T> = Job<T>>(
  boss: PgBoss,
  limiter: Limiter,
  keyOf: ((job: J) => string | null | undefined) | null | undefined,
  handler: LimitedHandler<T, R, J>,
  options: WithLimiterOptions<T, J> = {},
): (jobs: J[]) => Promise<R | void> {
  if (typeof boss?.getDb !== "function") throw invalid("boss", boss, "the PgBoss whose jobs it handles");
  if (typeof boss.isTimekeeping !== "function") {
    const why = "withLimiter needs pg-boss 12.35.0 or newer, where who has given a job back cannot end it any more: this is an older one";
    throw new LimitError(why, "unsupported", -13);
  }
  checkOptions(options, ["schema", "weightOf", "hold", "grace", "onLimited"]);
  const { schema, ...others } = options;
  const limit = limitJobs(limiter, keyOf, others);
  if (typeof handler !== "function") throw invalid("handler", handler, "a function");
  // By the state "retry" it leaves those of its singleton key behind it that come after it, where its queue keeps their order;
  // and pg-boss counts as a retry what has started before.
  const giveBack = `UPDATE ${schemaOf(schema, "pgboss")}.job SET state = 'retry', started_on = NULL, heartbeat_on = NULL,
    start_after = now() + $4 * interval '1 ms', data = coalesce($5::jsonb, data)
    WHERE name = $1 AND id = $2 AND state = 'active' AND retry_count = $3 RETURNING id`;

  const sent = new SentAway();
  let turn = 0;
  /** Lets a worker of this queue fetch now, one that has nothing to do if there is one, instead of when it polls. */
  const wake = (queue: string): void => {
    const workers = boss.getWipData().filter(({ name, state }) => name === queue && state === "active");
    const idle = workers.filter(({ count }) => count === 0);
    const [first, ...rest] = idle.length > 0 ? idle : workers;
    if (first !== undefined) boss.notifyWorker([first, ...rest][turn++ % (rest.length + 1)]!.id);
  };

  /** Handles one job; `SENT` if it was sent away. */
  const handle = (job: J): Promise<R | Sent> => {
    const known = sent.take(job.id);
    const { data, place = known } = takePlace(job.data);
    job.data = data;
    // Where one is due, others are, and they may be more than this process has sent away.
    if (place !== null) wake(job.name);
    return limit<R, Sent>(
      job,
      place,
      (permit) => handler(job, permit),
      async (wait, place): Promise<Sent> => {
        const stored = place === null ? null : JSON.stringify(putPlace(data, place));
        const { rows } = await boss.getDb().executeSql(giveBack, [job.name, job.id, job.retryCount, wait, stored]);
        if (rows.length === 0 && place !== null) await limiter.place(place).cancelAsync(); // Somebody has ended it meanwhile.
        // Whoever is handed it now holds the same attempt. So this worker, which is about to complete what it was given, must not.
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
