// The limiters of each kind of policy.

import { brand } from "./brand.js";
import { invalid, make } from "./errors.js";
import { type Duration, maybeMilliseconds, milliseconds, options as checkOptions, real, unicode, whole, word } from "./input.js";
import { Limiter, type LimiterSetup } from "./limiter.js";
import { type NativeLimiter, type NativePolicy, native } from "./native.js";
import { type ManualClock, Store } from "./store.js";

/** A number of units per window. */
export interface RateWindow {
  /** The most units in a window: 1 to 1,000,000,000; at most 4,096 in one of several windows and for adaptive spacing. */
  maxExecutions: number;
  /** The window in seconds: 1 µs to 366 days. */
  windowSizeInSeconds: number;
}

/** The backoff: how `Decision.suggestedAfter` grows with each denial, until a start is admitted. */
export interface Backoff {
  /** The first delay. Default: 1 s. */
  initialBackoffDelay?: Duration | undefined;
  /** The factor between one delay and the next, more than 1 and at most 1,000. Default: 2. */
  backoffMultiplier?: number | undefined;
  /** The longest delay. Default: 10 minutes. */
  maxBackoffDelay?: Duration | undefined;
  /**
   * The spread of retries. With the delay d, "scaled" (the default) suggests d to 2 d, "full" 0 to d, "equal" d / 2 to d, and "none"
   * exactly d.
   */
  jitter?: "scaled" | "full" | "equal" | "none" | undefined;
}

/** Who has the budget of a limit. */
export interface SharedOptions {
  /**
   * Whether all keys have one budget, in which each names a tenant. While tenants wait, they start by their shares: see `Store.share`.
   * Default: false, each key has a budget of its own. Only with a store.
   */
  shared?: boolean | undefined;
}

/** The options of a `RateLimiter`: one window, or `windows` with one to four. A start needs free units in all of them. */
export type RateLimiterOptions = Backoff &
  SharedOptions &
  (
    | (RateWindow & {
        /** Used instead of `maxExecutions` and `windowSizeInSeconds`. */
        windows?: undefined;
      })
    | {
        /** One to four windows. A start needs free units in all of them. */
        windows: readonly RateWindow[];
        /** Set in each window. */
        maxExecutions?: undefined;
        /** Set in each window. */
        windowSizeInSeconds?: undefined;
      }
  );

/** The options of a `TokenBucketLimiter`. */
export interface TokenBucketLimiterOptions extends SharedOptions {
  /** The tokens that are added to the bucket per period: 1 to 1,000,000,000. */
  rate: number;
  /** The period: 1 µs to 366 days. Default: 1 s. */
  period?: Duration | undefined;
  /** The most tokens in the bucket. Default: the rate. */
  burst?: number | undefined;
}

/** The options of a `LeakyBucketLimiter`. */
export interface LeakyBucketLimiterOptions {
  /** The units that start per period: 1 to 1,000,000,000. */
  rate: number;
  /** The period: 1 µs to 366 days. Default: 1 s. */
  period?: Duration | undefined;
  /** The most units that may wait for their turn. Default: the rate. */
  queue?: number | undefined;
}

/** The options of a `FixedWindowLimiter` or a `SlidingWindowCounterLimiter`. */
export interface WindowLimiterOptions extends RateWindow, SharedOptions {}

/** The store of a limiter. Without one, the limit belongs to the limiter object alone. */
export interface HomeOptions extends SharedOptions {
  /** The store that shares the limit under a name. */
  store?: Store | undefined;
  /** The limit's name in the store. */
  name?: string | undefined;
  /** A clock for tests, only without a store. */
  clock?: ManualClock | undefined;
}

/** The options of a `ConcurrencyLimiter`. */
export interface ConcurrencyLimiterOptions extends HomeOptions {
  /** The longest time that a start in a store holds its units without `renew`. Default: until its process ends. */
  lease?: Duration | undefined;
  /**
   * How long units stay taken after their start has ended. So at most `maxConcurrentJobs` units are counted in any rolling window
   * of that length, also as the server counts that the jobs call: see `Permit.arrived`. Default: they are free at once.
   */
  cooldown?: Duration | undefined;
}

/** The options of an `EvenlySpacedRateLimiter`. */
export interface EvenlySpacedRateLimiterOptions extends RateWindow {
  /** Whether the spacing is shortened by the average duration of jobs. Default: true. */
  adaptive?: boolean | undefined;
}

const WINDOW = ["maxExecutions", "windowSizeInSeconds"];
const HOME = ["store", "name", "clock", "shared"];
const BACKOFF = ["initialBackoffDelay", "backoffMultiplier", "maxBackoffDelay", "jitter"];

/** Returns the constructor arguments of a `Limiter` that is declared in a store. */
function inStore(store: Store, name: string, policy: () => NativePolicy, options: SharedOptions = {}): [NativeLimiter, LimiterSetup] {
  if (!(store instanceof Store)) throw invalid("store", store, "a Store");
  unicode("name", name);
  const declared = () => {
    const alone = policy(); // It checks the options.
    const { shared = false } = options;
    if (typeof shared !== "boolean") throw invalid("shared", shared, "true or false");
    return shared ? native.sharedPolicy(alone) : alone;
  };
  return [make(() => native.declare(store._native, name, declared())), { store }];
}

/** Returns the same for a limiter that may do without a store. */
function anywhere(options: HomeOptions, policy: () => NativePolicy): [NativeLimiter, LimiterSetup] {
  const { store, name, clock, shared } = options;
  if (store !== undefined) {
    if (clock !== undefined) throw invalid("clock", clock, "none with a store, which has its own");
    return inStore(store, name as string, policy, options);
  }
  if (name !== undefined) throw invalid("name", name, "none without a store");
  if (shared !== undefined && shared !== false) throw invalid("shared", shared, "false without a store");
  const own = new Store("memory:", { clock });
  return [make(() => native.declare(own._native, undefined, policy())), { store: own }];
}

function windowOf(window: RateWindow): [max: number, seconds: number] {
  const max = whole("maxExecutions", window.maxExecutions);
  return [max, real("windowSizeInSeconds", window.windowSizeInSeconds, "a number of seconds")];
}

function ratePolicy(options: RateLimiterOptions): NativePolicy {
  checkOptions(options, [...WINDOW, "windows", ...BACKOFF, "shared"]);
  const { windows, maxExecutions, windowSizeInSeconds } = options;
  if ((windows === undefined) === (maxExecutions === undefined && windowSizeInSeconds === undefined)) {
    const given = windows === undefined ? "neither" : "both";
    throw invalid("options", `an object with ${given}`, "either maxExecutions and windowSizeInSeconds, or windows", true);
  }
  if (windows !== undefined && !Array.isArray(windows)) throw invalid("windows", windows, "an array of windows");
  for (const window of windows ?? []) checkOptions(window, WINDOW, "windows");
  const { initialBackoffDelay = 1_000, backoffMultiplier = 2, maxBackoffDelay = 600_000, jitter = "scaled" } = options;
  return native.ratePolicy((windows ?? [options as RateWindow]).map(windowOf), [
    milliseconds("initialBackoffDelay", initialBackoffDelay),
    real("backoffMultiplier", backoffMultiplier),
    milliseconds("maxBackoffDelay", maxBackoffDelay),
    word("jitter", jitter, ["scaled", "full", "equal", "none"]),
  ]);
}

/**
 * Admits at most `maxExecutions` units in any rolling window; the limit is exact. All limiters with the same name in the same store
 * share it, in any process and language. The policy that was declared last holds for all of them, below an operator's
 * `Store.override`.
 */
export class RateLimiter extends Limiter {
  /** Declares a limit under a name at the first use, which opens the store. */
  constructor(store: Store, name: string, options: RateLimiterOptions) {
    super(...inStore(store, name, () => ratePolicy(options), options));
  }
}

/** Limits the units of each key that are in use at the same time. */
export class ConcurrencyLimiter extends Limiter {
  /**
   * Admits at most `maxConcurrentJobs` (1 to 65,535) units at the same time: for this object, or with `store` and `name` for all
   * limiters of that name. In a store, permits are leases: the units of a process that dies are freed.
   */
  constructor(maxConcurrentJobs: number, options: ConcurrencyLimiterOptions = {}) {
    checkOptions(options, [...HOME, "lease", "cooldown"]);
    const policy = () => {
      const max = whole("maxConcurrentJobs", maxConcurrentJobs);
      const lease = maybeMilliseconds("lease", options.lease);
      if (lease !== undefined && options.store === undefined) throw invalid("lease", options.lease, "none without a store");
      return native.concurrencyPolicy(max, lease, maybeMilliseconds("cooldown", options.cooldown));
    };
    const [made, setup] = anywhere(options, policy);
    super(made, { ...setup, holds: true });
  }
}

/** Keeps a minimum delay between one start and the next. Every start weighs 1. */
export class DelayLimiter extends Limiter {
  /** Limits the starts of this object, or with `store` and `name` of all limiters of that name. Default delay: 50 ms. */
  constructor(delay: Duration = 50, options: HomeOptions = {}) {
    checkOptions(options, HOME);
    const policy = () => native.delayPolicy(milliseconds("delay", delay));
    super(...anywhere(options, policy));
  }
}

/**
 * Admits `maxExecutions` starts per window, evenly spaced. Every start weighs 1.
 *
 * Adaptive spacing is shorter by the average duration of the last `maxExecutions` jobs, from a start to its `complete` or `settle`.
 * No rolling window has more than `maxExecutions` starts.
 */
export class EvenlySpacedRateLimiter extends Limiter {
  /** Limits the starts of this object, or with `store` and `name` of all limiters of that name. */
  constructor(spacing: EvenlySpacedRateLimiterOptions, options: HomeOptions = {}) {
    checkOptions(options, HOME);
    const policy = () => {
      checkOptions(spacing, [...WINDOW, "adaptive"], "spacing");
      const { adaptive = true } = spacing as EvenlySpacedRateLimiterOptions;
      if (typeof adaptive !== "boolean") throw invalid("adaptive", adaptive, "true or false");
      return native.evenlySpacedPolicy(...windowOf(spacing as RateWindow), adaptive);
    };
    super(...anywhere(options, policy));
  }
}

function bucketPolicy(options: TokenBucketLimiterOptions | LeakyBucketLimiterOptions, size: "burst" | "queue"): NativePolicy {
  checkOptions(options, ["rate", "period", size, ...(size === "burst" ? ["shared"] : [])]);
  const { rate, period = 1_000, [size]: given = rate } = options as TokenBucketLimiterOptions & LeakyBucketLimiterOptions;
  return native.bucketPolicy(whole("rate", rate), milliseconds("period", period), whole(size, given), size === "queue");
}

/**
 * Keeps a bucket of `burst` tokens, to which `rate` tokens are added evenly per `period`. A start takes as many tokens as it weighs.
 * In any window of length `w`, at most `burst + rate · w / period` units start.
 */
export class TokenBucketLimiter extends Limiter {
  /** Declares a limit under a name at the first use, which opens the store. */
  constructor(store: Store, name: string, options: TokenBucketLimiterOptions) {
    super(...inStore(store, name, () => bucketPolicy(options, "burst"), options));
  }
}

/** Admits one start per `period / rate`; a start of weight `w` takes the time of `w`. Up to `queue` units wait for their turn. */
export class LeakyBucketLimiter extends Limiter {
  /** Declares a limit under a name at the first use, which opens the store. */
  constructor(store: Store, name: string, options: LeakyBucketLimiterOptions) {
    super(...inStore(store, name, () => bucketPolicy(options, "queue")));
  }
}

function windowPolicy(options: WindowLimiterOptions, isSmooth: boolean): NativePolicy {
  checkOptions(options, [...WINDOW, "shared"]);
  return native.windowPolicy(...windowOf(options), isSmooth);
}

/**
 * Admits at most `maxExecutions` units in each window. Windows are aligned to the Unix epoch. Across a boundary, up to twice as many
 * units can start within the length of one window.
 */
export class FixedWindowLimiter extends Limiter {
  /** Declares a limit under a name at the first use, which opens the store. */
  constructor(store: Store, name: string, options: WindowLimiterOptions) {
    super(...inStore(store, name, () => windowPolicy(options, false), options));
  }
}

/**
 * Admits about `maxExecutions` units in any rolling window, estimated from the counts of this window and the last, for very large
 * limits. Within the length of one window fewer than twice as many units start, and `maxExecutions` on average.
 */
export class SlidingWindowCounterLimiter extends Limiter {
  /** Declares a limit under a name at the first use, which opens the store. */
  constructor(store: Store, name: string, options: WindowLimiterOptions) {
    super(...inStore(store, name, () => windowPolicy(options, true), options));
  }
}

brand(
  {
    RateLimiter,
    ConcurrencyLimiter,
    DelayLimiter,
    EvenlySpacedRateLimiter,
    TokenBucketLimiter,
    LeakyBucketLimiter,
    FixedWindowLimiter,
    SlidingWindowCounterLimiter,
  },
  native,
);
