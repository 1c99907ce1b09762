// pg-boss's types accept ours.

import type { Job, JobWithMetadata, PgBoss } from "pg-boss";
import { RateLimiter, Store } from "workglow-limit";
import { type LimitedHandler, type WithLimiterOptions, withLimiter } from "workglow-limit/pg-boss";

interface Prompt {
  tenant: string;
  tokens: number;
}

export async function work(boss: PgBoss): Promise<void> {
  const limiter = new RateLimiter(new Store("memory:"), "x", { maxExecutions: 1, windowSizeInSeconds: 60 });
  const options: WithLimiterOptions<Prompt> = { schema: "other", weightOf: (job) => job.data.tokens, hold: "100ms" };
  const handler: LimitedHandler<Prompt, { answer: string }> = async (job, permit) => {
    permit.settle(job.data.tokens);
    return { answer: job.data.tenant };
  };
  await boss.work<Prompt>(
    "q",
    withLimiter(boss, limiter, (job) => job.data.tenant, handler, options),
  );
  await boss.work(
    "q",
    { batchSize: 5 },
    withLimiter(boss, limiter, null, (job: Job<Prompt>) => ({ is: job.data.tenant })),
  );
  const withMetadata = (job: JobWithMetadata<Prompt>) => ({ priority: job.priority });
  await boss.work("q", { includeMetadata: true }, withLimiter<Prompt, object, JobWithMetadata<Prompt>>(boss, limiter, null, withMetadata));
  withLimiter(boss, limiter, (job: Job<Prompt>) => ({ tenant: job.data.tenant }), handler, {
    weightOf: (job) => ({ tokens: job.data.tokens }),
  });
  // @ts-expect-error: a key is a string
  withLimiter(boss, limiter, (job: Job<Prompt>) => job.data.tokens, handler);
  // @ts-expect-error: an unknown option
  withLimiter(boss, limiter, null, handler, { wait: 1 });
}
