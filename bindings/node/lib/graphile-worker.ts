// Limits Graphile Worker jobs: a job that cannot start is put back with its place, and the worker takes others.

import type { Job, JobHelpers } from "graphile-worker";
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
export interface WithLimiterOptions extends Options<Job> {
  /** The schema of Graphile Worker. Default: "graphile_worker", as there. */
  schema?: string | undefined;
}

/** A Graphile Worker task. It also gets the permit of its start, to `settle` it or `renew` its lease. */
export type LimitedTask<P = any, R = any> = (payload: P, helpers: JobHelpers, permit: Permit) => R | PromiseLike<R>;

/**
 * Returns a task for Graphile Worker's task list that runs `task` when `limiter` admits the job. A job that cannot start is put back,
 * with its place if the limit has places, without counting an attempt, and the worker takes other jobs. The permit completes when
 * the task ends or throws.
 *
 * `keyOf` returns the key whose budget a job uses, or a key for each part of a composite. Default: the empty key.
 */
export function withLimiter<P = any, R = any>(
  limiter: Limiter,
  keyOf: KeyOf<Job> | null | undefined,
  task: LimitedTask<P, R>,
  options: WithLimiterOptions = {},
): (payload: unknown, helpers: JobHelpers) => Promise<R | void> {
  checkOptions(options, ["schema", "weightOf", "hold", "grace", "onLimited"]);
  const { schema, ...others } = options;
  const limit = limitJobs(limiter, keyOf, others);
  if (typeof task !== "function") throw invalid("task", task, "a function");
  const putBack = statement(schemaOf(schema, "graphile_worker"));

  const sent = new SentAway();
  return async (payload, helpers) => {
    const { job } = helpers;
    if (typeof helpers.query !== "function" || typeof job?.attempts !== "number") throw tooOld();
    const known = job.key === null ? null : sent.take(job.key);
    const { data, place = known } = takePlace(payload);
    Object.assign(job, { payload: data });
    return limit<R | void, void>(
      job,
      place,
      (permit) => task(data as P, helpers, permit),
      async (wait, place) => {
        const stored = place === null ? null : JSON.stringify(putPlace(data, place));
        const { rows } = await helpers.query(putBack, [job.id, job.locked_by, job.key, wait, stored]);
        // The job was removed, or another job with its key has replaced it.
        if (rows.length === 0) return place === null ? undefined : limiter.place(place).cancelAsync();
        if (place !== null && job.key !== null) sent.put(job.key, place, wait);
        // Graphile Worker polls for jobs that become due, and notifies workers of new jobs like this. If it fails, they poll.
        wakeIn(wait, () => void helpers.query(`SELECT pg_notify('jobs:insert', '{"count":1}')`).catch(() => {}));
      },
    );
  };
}

/**
 * Moves a job to another row, where it waits. When a task ends, Graphile Worker deletes the job's row; after an error it counts an
 * attempt, logs a failure and chooses the delay. So this statement deletes the row and inserts the new one at once: no job is lost or
 * doubled if a process dies. `attempts` was counted when the job was fetched.
 */
const statement = (schema: string): string => `WITH gone AS (
  DELETE FROM ${schema}._private_jobs WHERE id = $1::bigint AND locked_by = $2 AND key IS NOT DISTINCT FROM $3 RETURNING *
), unlocked AS (
  UPDATE ${schema}._private_job_queues AS queues SET locked_at = NULL, locked_by = NULL
  FROM gone WHERE queues.id = gone.job_queue_id AND queues.locked_by = gone.locked_by
)
INSERT INTO ${schema}._private_jobs (job_queue_id, task_id, payload, priority, run_at, attempts, max_attempts, last_error,
  created_at, updated_at, key, revision, flags)
SELECT job_queue_id, task_id, coalesce($5::json, payload), priority, now() + $4 * interval '1 ms', greatest(attempts - 1, 0),
  max_attempts, last_error, created_at, now(), key, revision, flags
FROM gone RETURNING id`;

function tooOld(): LimitError {
  return new LimitError("withLimiter needs Graphile Worker 0.16.0 or newer: this is an older one", "unsupported", -13);
}
