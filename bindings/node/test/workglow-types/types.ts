// Workglow's types, in all of their generations, accept the objects of this package. Checked by `tsc`, never run.

import {
  CONCURRENT_JOB_LIMITER as theirConcurrent,
  EVENLY_SPACED_JOB_RATE_LIMITER as theirEvenlySpaced,
  type ILimiter,
  type IRateLimiterStorage,
  JOB_LIMITER as theirs,
  RateLimiter as TheirRateLimiter,
} from "@workglow/job-queue";
import { globalServiceRegistry } from "@workglow/util";
import type { ILimiter as ILimiter31, IRateLimiterStorage as IRateLimiterStorage31 } from "workglow-job-queue-0.2.31";
import { ConcurrencyLimiter, NullLimiter, Store, toWorkglow } from "workglow-limit";
import {
  CONCURRENT_JOB_LIMITER,
  EVENLY_SPACED_JOB_RATE_LIMITER,
  JOB_LIMITER,
  NULL_JOB_LIMITER,
  RATE_LIMITER_STORAGE,
  type WorkglowLimiter,
  WorkglowRateLimiterStorage,
  toWorkglow as again,
} from "workglow-limit/workglow";

/** The first generation as documented: its releases are older than those that are installed here. */
interface FirstILimiter {
  canProceed(): Promise<boolean>;
  recordJobStart(): Promise<void>;
  recordJobCompletion(): Promise<void>;
  getNextAvailableTime(): Promise<Date>;
  setNextAvailableTime(date: Date): Promise<void>;
  clear(): Promise<void>;
}
interface FirstIRateLimiterStorage {
  setupDatabase(): Promise<void>;
  recordExecution(queueName: string): Promise<void>;
  getExecutionCount(queueName: string, windowStartTime: string): Promise<number>;
  getOldestExecutionAtOffset(queueName: string, offset: number): Promise<string | undefined>;
  getNextAvailableTime(queueName: string): Promise<string | undefined>;
  setNextAvailableTime(queueName: string, nextAvailableAt: string): Promise<void>;
  clear(queueName: string): Promise<void>;
}

const store = new Store("memory:");
const limiter: WorkglowLimiter = toWorkglow(new ConcurrencyLimiter(5), { key: "k", wait: "5s" });
const now: ILimiter = limiter;
const between: ILimiter31 = again(new ConcurrencyLimiter(5));
const first: FirstILimiter = limiter;
// Every limiter has the first generation's interface.
const plain: FirstILimiter = new NullLimiter();

const storage = new WorkglowRateLimiterStorage(store, { key: "k" });
const storages: [IRateLimiterStorage, IRateLimiterStorage31, FirstIRateLimiterStorage] = [storage, storage, storage];
const rate: ILimiter = new TheirRateLimiter(storage, "openai", { maxExecutions: 100, windowSizeInSeconds: 60 });

for (const token of [JOB_LIMITER, CONCURRENT_JOB_LIMITER, EVENLY_SPACED_JOB_RATE_LIMITER, NULL_JOB_LIMITER]) {
  globalServiceRegistry.registerInstance(token, limiter);
}
globalServiceRegistry.registerInstance(RATE_LIMITER_STORAGE, storage);
for (const token of [theirs, theirConcurrent, theirEvenlySpaced]) globalServiceRegistry.registerInstance(token, limiter);
const registered: ILimiter = globalServiceRegistry.get(JOB_LIMITER);

// @ts-expect-error: a storage is not a limiter
globalServiceRegistry.registerInstance(JOB_LIMITER, storage);
// @ts-expect-error: an unknown option
new WorkglowRateLimiterStorage(store, { kye: "k" });
// @ts-expect-error: a duration is a number or a text
toWorkglow(new ConcurrencyLimiter(5), { wait: true });

export { between, first, now, plain, rate, registered, storages };
