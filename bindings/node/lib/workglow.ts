// What Workglow's queues take for a limiter, in all generations of their interface, and the names under which they know it.

import { Denied, LOOK_AGAIN } from "./denied.js";
import { StoreError, TimeoutError, invalid } from "./errors.js";
import { type Duration, keyOf, maybeMilliseconds, options as checkOptions, unicode } from "./input.js";
import { Limiter } from "./limiter.js";
import { Permit } from "./permit.js";
import type { WorkglowRateLimiterStorage } from "./workglow-storage.js";

export { WorkglowRateLimiterStorage, type WorkglowRateLimiterStorageOptions } from "./workglow-storage.js";

/** All generations of Workglow's `ILimiter` in one. */
export interface WorkglowLimiter {
  /** "cluster": the limit holds for all processes of this machine together. "process": each counts its own. */
  readonly scope: "process" | "cluster";
  /** Decides and records in one act: a token, which `release` or `complete` takes back, or `null`. */
  tryAcquire(): Promise<Permit | null>;
  /** The job of this token never ran. */
  release(token: unknown): Promise<void>;
  /** The job of this token has ended. */
  complete(token: unknown): Promise<void>;
  /** Would a job start now? */
  canProceed(): Promise<boolean>;
  /** A job has started. */
  recordJobStart(): Promise<void>;
  /** A job has ended. */
  recordJobCompletion(): Promise<void>;
  /** When to ask again. */
  getNextAvailableTime(): Promise<Date>;
  /** Nobody starts before `date`. */
  setNextAvailableTime(date: Date): Promise<void>;
  /** Back to the initial state. */
  clear(): Promise<void>;
}

/** How a queue uses a limiter. */
export interface ToWorkglowOptions {
  /** Of which key. */
  key?: string | undefined;
  /**
   * How long `tryAcquire` waits for its place before it denies: not at all, if not given. A worker that waits starts on
   * time and in the order of asking, where one that was denied polls. Less than 30 s, because it holds its job meanwhile,
   * and its claim ends then: what is left of that is for the job. When it is stopped, it ends so much later at most.
   */
  wait?: Duration | undefined;
}

/** How long a worker's claim of a job lasts, in ms, if nobody told it otherwise. */
const CLAIM = 30_000;

/** A limiter as Workglow's queues take it, or a key of one. */
export function toWorkglow(limiter: Limiter, options: ToWorkglowOptions = {}): WorkglowLimiter {
  if (!(limiter instanceof Limiter)) throw invalid("limiter", limiter, "a limiter of this package");
  checkOptions(options, ["key", "wait"]);
  const key = unicode("key", keyOf(options.key));
  const timeout = maybeMilliseconds("wait", options.wait) ?? 0;
  if (timeout >= CLAIM) throw invalid("wait", options.wait, "less than 30 s: a worker's claim of its job ends then");
  /** The tokens that are out, oldest first. */
  const running = new Set<Permit>();
  const denied = new Denied(limiter);

  const end = async (token: unknown, how: "cancelAsync" | "completeAsync"): Promise<void> => {
    if (!(token instanceof Permit && token._isOf(limiter))) throw invalid("token", token, "what tryAcquire gave");
    running.delete(token);
    try {
      await token[how]();
      if (how === "cancelAsync" || limiter._holds) denied.end();
    } catch (error) {
      // The queue would fail the job for it, or leave it to end the process. The store has counted it, and told its hooks.
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
      const token = timeout > 0 ? await waitForPlace() : await denied.orAsk(key);
      if (token !== null) running.add(token);
      return token;
    },
    release: (token) => end(token, "cancelAsync"),
    complete: (token) => end(token, "completeAsync"),
    canProceed: () => limiter.canProceed(key),
    recordJobStart: () => limiter.recordJobStart(key),
    async recordJobCompletion() {
      // In between the generations, jobs start with a token and end without.
      const [oldest] = running;
      if (oldest === undefined) await limiter.recordJobCompletion(key);
      else await end(oldest, "completeAsync");
    },
    async getNextAvailableTime() {
      const next = await limiter.getNextAvailableTime(key);
      if (!limiter._holds) return next;
      const gate = Math.ceil((await limiter.peekAsync({ key, weight: 0 })).retryAfter);
      return new Date(Math.min(next.getTime(), Date.now() + Math.max(gate, LOOK_AGAIN)));
    },
    setNextAvailableTime: (date) => limiter.setNextAvailableTime(date, key),
    async clear() {
      await limiter.clear(key);
      denied.end();
    },
  };
}

/** What Workglow's `ServiceRegistry` takes to register a service. Tokens of one id are the same to it, whoever made them. */
export interface WorkglowServiceToken<T> {
  /** What makes tokens the same. */
  readonly id: string;
  /** There for its type only. */
  readonly _type: T;
}

const token = <T>(id: string): WorkglowServiceToken<T> => ({ id, _type: null as T });

/** The limiter of a queue. */
export const JOB_LIMITER = token<WorkglowLimiter>("jobqueue.limiter");
/** A limiter of how many jobs run at the same time. */
export const CONCURRENT_JOB_LIMITER = token<WorkglowLimiter>("jobqueue.limiter.concurrent");
/** A limiter that spaces jobs evenly. */
export const EVENLY_SPACED_JOB_RATE_LIMITER = token<WorkglowLimiter>("jobqueue.limiter.rate.evenlyspaced");
/** No limit. */
export const NULL_JOB_LIMITER = token<WorkglowLimiter>("jobqueue.limiter.null");
/** Where Workglow's own `RateLimiter` counts. */
export const RATE_LIMITER_STORAGE = token<WorkglowRateLimiterStorage>("ratelimiter.storage");
