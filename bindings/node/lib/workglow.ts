// What Workglow's queues take for a limiter, in both generations of their interface.

import { invalid } from "./errors.js";
import { keyOf, options as checkOptions, unicode } from "./input.js";
import { Limiter } from "./limiter.js";
import { Permit } from "./permit.js";

/** Both generations of Workglow's `ILimiter` in one. */
export interface WorkglowLimiter {
  /** "cluster": the limit holds for all processes of this machine together. "process": each counts its own. */
  readonly scope: "process" | "cluster";
  /** Decides and records in one act: a token, which `release` or `complete` takes back, or `null`. */
  tryAcquire(): Promise<Permit | null>;
  /** The job of this token never ran. */
  release(token: unknown): Promise<void>;
  /** The job of this token has ended. */
  complete(token: unknown): Promise<void>;
  canProceed(): Promise<boolean>;
  recordJobStart(): Promise<void>;
  recordJobCompletion(): Promise<void>;
  getNextAvailableTime(): Promise<Date>;
  setNextAvailableTime(date: Date): Promise<void>;
  clear(): Promise<void>;
}

/** A limiter as Workglow's queues take it, or a key of one. */
export function toWorkglow(limiter: Limiter, options: { key?: string | undefined } = {}): WorkglowLimiter {
  if (!(limiter instanceof Limiter)) throw invalid("limiter", limiter, "a limiter of this package");
  checkOptions(options, ["key"]);
  const key = unicode("key", keyOf(options.key));
  const permitOf = (token: unknown): Permit => {
    if (token instanceof Permit && token._isOf(limiter)) return token;
    throw invalid("token", token, "what tryAcquire gave");
  };
  return {
    get scope() {
      return limiter._isShared() ? "cluster" : "process";
    },
    async tryAcquire() {
      await limiter._opening();
      return limiter.tryAcquire({ key });
    },
    release: async (token) => permitOf(token).cancel(),
    complete: async (token) => permitOf(token).complete(),
    canProceed: () => limiter.canProceed(key),
    recordJobStart: () => limiter.recordJobStart(key),
    recordJobCompletion: () => limiter.recordJobCompletion(key),
    getNextAvailableTime: () => limiter.getNextAvailableTime(key),
    setNextAvailableTime: (date) => limiter.setNextAvailableTime(date, key),
    clear: () => limiter.clear(key),
  };
}
