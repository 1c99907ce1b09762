// Limiters for Workglow's queues, in all generations of their interface, and the service tokens of these limiters.

import { DeniedWorkers, LOOK_AGAIN } from "./denied.js";
import { StoreError, TimeoutError, invalid } from "./errors.js";
import { type Duration, keyOf, maybeMilliseconds, options as checkOptions, unicode } from "./input.js";
import { Limiter } from "./limiter.js";
import { Permit } from "./permit.js";
import type { WorkglowRateLimiterStorage } from "./workglow-storage.js";

export { WorkglowRateLimiterStorage, type WorkglowRateLimiterStorageOptions } from "./workglow-storage.js";

/** All generations of Workglow's `ILimiter` in one interface. */
export interface WorkglowLimiter {
  /** "cluster": all processes that use the store share the limit. "process": each process counts its own starts. */
  readonly scope: "process" | "cluster";
  /** Decides and records in one step: returns a token for `release` or `complete`, or `null` if denied. */
  tryAcquire(): Promise<Permit | null>;
  /** Undoes a start: the job of this token never ran. */
  release(token: unknown): Promise<void>;
  /** Completes a start: the job of this token has ended. */
  complete(token: unknown): Promise<void>;
  /** Returns whether a job could start now. */
  canProceed(): Promise<boolean>;
  /** Records a start. */
  recordJobStart(): Promise<void>;
  /** Records the end of a job. */
  recordJobCompletion(): Promise<void>;
  /** Returns when to ask again. */
  getNextAvailableTime(): Promise<Date>;
  /** Sets a gate: no start before `date`. */
  setNextAvailableTime(date: Date): Promise<void>;
  /** Resets the limiter to its initial state. */
  clear(): Promise<void>;
}

/** The options of `toWorkglow`. */
export interface ToWorkglowOptions {
  /** The key. Default: the empty key. */
  key?: string | undefined;
  /**
   * How long `tryAcquire` waits for its place before it denies. Default: 0. A worker that waits starts on time and in order; a denied
   * one polls. Must be less than 30 s: the worker holds its job's claim while it waits, and the claim ends after 30 s, so the job has
   * the rest. Stopping a worker may take this much longer.
   */
  wait?: Duration | undefined;
}

/** The duration of a worker's claim of a job in ms, by default. */
const CLAIM = 30_000;

/** Returns a limiter, or one of its keys, as Workglow's queues take it. */
export function toWorkglow(limiter: Limiter, options: ToWorkglowOptions = {}): WorkglowLimiter {
  if (!(limiter instanceof Limiter)) throw invalid("limiter", limiter, "a limiter of this package");
  checkOptions(options, ["key", "wait"]);
  const key = unicode("key", keyOf(options.key));
  const timeout = maybeMilliseconds("wait", options.wait) ?? 0;
  if (timeout >= CLAIM) throw invalid("wait", options.wait, "less than 30 s: a worker's claim of its job ends then");
  /** The tokens of running jobs, oldest first. */
  const running = new Set<Permit>();
  const denied = new DeniedWorkers(limiter);

  const end = async (token: unknown, how: "cancelAsync" | "completeAsync"): Promise<void> => {
    if (!(token instanceof Permit && token._isOf(limiter))) throw invalid("token", token, "a token of tryAcquire");
    running.delete(token);
    try {
      await token[how]();
      if (how === "cancelAsync" || limiter._holds) denied.end();
    } catch (error) {
      // The queue would fail the job, or let the error end the process. The store has counted the error and notified its hooks.
      if (!(error instanceof StoreError)) throw error;
    }
  };

  const waitForPlace = async (): Promise<Permit | null> => {
    try {
      return await limiter.acquire({ key, timeout });
    } catch (error) {
      if (error instanceof TimeoutError) return null;
      throw error;
    }
  };

  return {
    get scope() {
      return limiter._isShared() ? "cluster" : "process";
    },
    async tryAcquire() {
      const token = timeout > 0 ? await waitForPlace() : await denied.tryAcquire(key);
      if (token !== null) running.add(token);
      return token;
    },
    release: (token) => end(token, "cancelAsync"),
    complete: (token) => end(token, "completeAsync"),
    canProceed: () => limiter.canProceed({ key }),
    recordJobStart: () => limiter.recordJobStart({ key }),
    async recordJobCompletion() {
      // In some versions jobs start with a token and end without one.
      const [oldest] = running;
      if (oldest === undefined) await limiter.recordJobCompletion({ key });
      else await end(oldest, "completeAsync");
    },
    async getNextAvailableTime() {
      const next = await limiter.getNextAvailableTime({ key });
      if (!limiter._holds) return next;
      const gate = Math.ceil((await limiter.peekAsync({ key, weight: 0 })).retryAfter);
      return new Date(Math.min(next.getTime(), Date.now() + Math.max(gate, LOOK_AGAIN)));
    },
    setNextAvailableTime: (date) => limiter.setNextAvailableTime(date, { key }),
    async clear() {
      await limiter.clear({ key });
      denied.end();
    },
  };
}

/** A service token of Workglow's `ServiceRegistry`, which compares tokens by their ids. */
export interface WorkglowServiceToken<T> {
  /** The id of the service. */
  readonly id: string;
  /** Carries the type of the service. */
  readonly _type: T;
}

const token = <T>(id: string): WorkglowServiceToken<T> => ({ id, _type: null as T });

/** The token of a queue's limiter. */
export const JOB_LIMITER = token<WorkglowLimiter>("jobqueue.limiter");
/** The token of a limiter of concurrent jobs. */
export const CONCURRENT_JOB_LIMITER = token<WorkglowLimiter>("jobqueue.limiter.concurrent");
/** The token of a limiter that spaces jobs evenly. */
export const EVENLY_SPACED_JOB_RATE_LIMITER = token<WorkglowLimiter>("jobqueue.limiter.rate.evenlyspaced");
/** The token of a limiter that admits every job. */
export const NULL_JOB_LIMITER = token<WorkglowLimiter>("jobqueue.limiter.null");
/** The token of the storage of Workglow's own `RateLimiter`. */
export const RATE_LIMITER_STORAGE = token<WorkglowRateLimiterStorage>("ratelimiter.storage");
