// The limiters that live in stores, by their names.

import { brand } from "./brand.js";
import { invalid, make } from "./errors.js";
import { type Duration, maybeMilliseconds, milliseconds, options as checkOptions, real, unicode, whole, word } from "./input.js";
import { Limiter, type LimiterSetup } from "./limiter.js";
import { type NativeLimiter, type NativePolicy, native } from "./native.js";
import { ManualClock, Store } from "./store.js";

/** So many units in a window. */
export interface RateWindow {
  /** The most units in a window: 1 to 1,000,000,000, or 4,096 for one of several windows and for adaptive spacing. */
  maxExecutions: number;
  /** The window, in seconds: 1 µs to 366 days. */
  windowSizeInSeconds: number;
}

/** How `Decision.suggestedAfter` grows with each denial, until a start is admitted. */
export interface Backoff {
  /** How long it is at first: 1 s if not given. */
  initialBackoffDelay?: Duration | undefined;
  /** How many times as long it is each time after, more than 1 and at most 1,000: 2 if not given. */
  backoffMultiplier?: number | undefined;
  /** How long it is at most: 10 minutes if not given. */
  maxBackoffDelay?: Duration | undefined;
  /**
   * How retries spread: "scaled" (the default) waits for the backoff and up to as much again, "full" for anything up to
   * it, "equal" for half of it and up to as much again, "none" for exactly as long.
   */
  jitter?: "scaled" | "full" | "equal" | "none" | undefined;
}

/** What a `RateLimiter` allows: one window, or one to four of them, which all must have room. */
export type RateLimiterOptions = Backoff &
  (
    | (RateWindow & {
        /** Or several, in the stead of one. */
        windows?: undefined;
      })
    | {
        /** One to four; a start needs room in all of them. */
        windows: readonly RateWindow[];
        /** Each of the windows has its own. */
        maxExecutions?: undefined;
        /** Each of the windows has its own. */
        windowSizeInSeconds?: undefined;
      }
  );

/** What a `TokenBucketLimiter` allows. */
export interface TokenBucketLimiterOptions {
  /** How many tokens drip into the bucket per period: 1 to 1,000,000,000. */
  rate: number;
  /** 1 µs to 366 days: 1 s if not given. */
  period?: Duration | undefined;
  /** How many the bucket holds: as many as the rate if not given. */
  burst?: number | undefined;
}

/** What a `LeakyBucketLimiter` allows. */
export interface LeakyBucketLimiterOptions {
  /** How many units start per period: 1 to 1,000,000,000. */
  rate: number;
  /** 1 µs to 366 days: 1 s if not given. */
  period?: Duration | undefined;
  /** How many units may wait for their turn: as many as the rate if not given. */
  queue?: number | undefined;
}

/** Where a limiter lives that is this object's own unless it is told otherwise. */
export interface HomeOptions {
  /** The store in which it is shared under a name. */
  store?: Store | undefined;
  /** Its name there. */
  name?: string | undefined;
  /** A clock for tests, if there is no store. */
  clock?: ManualClock | undefined;
}

/** What a `ConcurrencyLimiter` can be told. */
export interface ConcurrencyLimiterOptions extends HomeOptions {
  /** How long a start holds its units at most, in a store, unless it is renewed; as long as its process lives if not given. */
  lease?: Duration | undefined;
}

/** What an `EvenlySpacedRateLimiter` allows. */
export interface EvenlySpacedRateLimiterOptions extends RateWindow {
  /** Are starts so much closer as jobs take on average? Yes if not given. */
  adaptive?: boolean | undefined;
}

const attached = Symbol("attached");
type Attached = typeof attached;

const WINDOW = ["maxExecutions", "windowSizeInSeconds"];
const BACKOFF = ["initialBackoffDelay", "backoffMultiplier", "maxBackoffDelay", "jitter"];

/** What the constructor of a `Limiter` takes, for one that is declared in a store or attached to what is. */
function inStore(store: Store, name: string, kind: string, policy: Attached | (() => NativePolicy)): [NativeLimiter, LimiterSetup] {
  if (!(store instanceof Store)) throw invalid("store", store, "a Store");
  unicode("name", name);
  const { _native } = store;
  const made = make(() => (policy === attached ? native.attach(_native, name, kind) : native.declare(_native, name, policy())));
  return [made, { store }];
}

/** The same for one that may live in this object alone. */
function anywhere(options: HomeOptions, kind: string, policy: Attached | (() => NativePolicy)): [NativeLimiter, LimiterSetup] {
  const { store, name, clock } = options;
  if (store !== undefined) {
    if (clock !== undefined) throw invalid("clock", clock, "none beside a store, which has its own");
    return inStore(store, name as string, kind, policy);
  }
  if (name !== undefined || policy === attached) throw invalid("name", name, "none without a store");
  const own = new Store("memory:", { clock });
  return [make(() => native.declare(own._native, undefined, policy())), { store: own }];
}

function windowOf(window: RateWindow): [max: number, seconds: number] {
  const max = whole("maxExecutions", window.maxExecutions);
  return [max, real("windowSizeInSeconds", window.windowSizeInSeconds, "a number of seconds")];
}

function ratePolicy(options: RateLimiterOptions): NativePolicy {
  checkOptions(options, [...WINDOW, "windows", ...BACKOFF]);
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
 * At most `maxExecutions` units in any rolling window, exactly: shared by all who open the same name in the same store,
 * in whatever process and language. What code declares last holds for everyone, below an operator's `Store.override`.
 */
export class RateLimiter extends Limiter {
  /** Declares a limit under a name, at its first use. Nothing is opened before. */
  constructor(store: Store, name: string, options: RateLimiterOptions);
  /** @internal */
  constructor(store: Store, name: string, options: RateLimiterOptions | Attached);
  constructor(store: Store, name: string, options: RateLimiterOptions | Attached) {
    super(...inStore(store, name, "rate", options === attached ? attached : () => ratePolicy(options)));
  }

  /** Takes the limit that is declared under a name; at its first use it must be. */
  static attach(store: Store, name: string): RateLimiter {
    return new RateLimiter(store, name, attached);
  }
}

/** At most so many units at the same time, per key. */
export class ConcurrencyLimiter extends Limiter {
  /**
   * At most `maxConcurrentJobs` (1 to 65,535) units at the same time through this object; or with `store` and `name`
   * together with all who open that, when permits are leases: a holder that dies gives its units back.
   */
  constructor(maxConcurrentJobs: number, options?: ConcurrencyLimiterOptions);
  /** @internal */
  constructor(maxConcurrentJobs: number | Attached, options?: ConcurrencyLimiterOptions);
  constructor(maxConcurrentJobs: number | Attached, options: ConcurrencyLimiterOptions = {}) {
    checkOptions(options, ["store", "name", "clock", "lease"]);
    const policy = () => {
      const max = whole("maxConcurrentJobs", maxConcurrentJobs);
      const lease = maybeMilliseconds("lease", options.lease);
      if (lease !== undefined && options.store === undefined) throw invalid("lease", options.lease, "none without a store");
      return native.concurrencyPolicy(max, lease);
    };
    const [made, setup] = anywhere(options, "concurrency", maxConcurrentJobs === attached ? attached : policy);
    super(made, { ...setup, holds: true });
  }

  /** Takes the limit that is declared under a name; at its first use it must be. */
  static attach(store: Store, name: string): ConcurrencyLimiter {
    return new ConcurrencyLimiter(attached, { store, name });
  }
}

/** At least so long between one start and the next. Every start weighs 1. */
export class DelayLimiter extends Limiter {
  /** 50 ms if not given; for the starts of this object, or with `store` and `name` of all who open that. */
  constructor(delay?: Duration, options?: HomeOptions);
  /** @internal */
  constructor(delay?: Duration | Attached, options?: HomeOptions);
  constructor(delay: Duration | Attached = 50, options: HomeOptions = {}) {
    checkOptions(options, ["store", "name", "clock"]);
    const policy = () => native.delayPolicy(milliseconds("delay", delay));
    super(...anywhere(options, "delay", delay === attached ? attached : policy));
  }

  /** Takes the limit that is declared under a name; at its first use it must be. */
  static attach(store: Store, name: string): DelayLimiter {
    return new DelayLimiter(attached, { store, name });
  }
}

/**
 * `maxExecutions` starts in a window, at even distances. Every start weighs 1.
 *
 * An adaptive one shortens the distance by what the last `maxExecutions` jobs took on average, from a start to its
 * `complete` or `settle`; never more than `maxExecutions` start in any rolling window.
 */
export class EvenlySpacedRateLimiter extends Limiter {
  /** For the starts of this object, or with `store` and `name` of all who open that. */
  constructor(spacing: EvenlySpacedRateLimiterOptions, options?: HomeOptions);
  /** @internal */
  constructor(spacing: EvenlySpacedRateLimiterOptions | Attached, options?: HomeOptions);
  constructor(spacing: EvenlySpacedRateLimiterOptions | Attached, options: HomeOptions = {}) {
    checkOptions(options, ["store", "name", "clock"]);
    const policy = () => {
      checkOptions(spacing, [...WINDOW, "adaptive"], "spacing");
      const { adaptive = true } = spacing as EvenlySpacedRateLimiterOptions;
      if (typeof adaptive !== "boolean") throw invalid("adaptive", adaptive, "true or false");
      return native.evenlySpacedPolicy(...windowOf(spacing as RateWindow), adaptive);
    };
    super(...anywhere(options, "evenly-spaced", spacing === attached ? attached : policy));
  }

  /** Takes the limit that is declared under a name; at its first use it must be. */
  static attach(store: Store, name: string): EvenlySpacedRateLimiter {
    return new EvenlySpacedRateLimiter(attached, { store, name });
  }
}

function bucketPolicy(options: TokenBucketLimiterOptions | LeakyBucketLimiterOptions, size: "burst" | "queue"): NativePolicy {
  checkOptions(options, ["rate", "period", size]);
  const { rate, period = 1_000, [size]: given = rate } = options as TokenBucketLimiterOptions & LeakyBucketLimiterOptions;
  return native.bucketPolicy(whole("rate", rate), milliseconds("period", period), whole(size, given), size === "queue");
}

/**
 * A bucket of `burst` tokens, into which `rate` tokens drip evenly per `period`; a start takes as many as it weighs. In any
 * window of length `w` at most `burst + rate · w / period` units start.
 */
export class TokenBucketLimiter extends Limiter {
  /** Declares a limit under a name, at its first use. Nothing is opened before. */
  constructor(store: Store, name: string, options: TokenBucketLimiterOptions);
  /** @internal */
  constructor(store: Store, name: string, options: TokenBucketLimiterOptions | Attached);
  constructor(store: Store, name: string, options: TokenBucketLimiterOptions | Attached) {
    super(...inStore(store, name, "token-bucket", options === attached ? attached : () => bucketPolicy(options, "burst")));
  }

  /** Takes the limit that is declared under a name; at its first use it must be. */
  static attach(store: Store, name: string): TokenBucketLimiter {
    return new TokenBucketLimiter(store, name, attached);
  }
}

/** One start per `period / rate`; one of weight `w` takes the time of `w`. Up to `queue` units wait for their turn. */
export class LeakyBucketLimiter extends Limiter {
  /** Declares a limit under a name, at its first use. Nothing is opened before. */
  constructor(store: Store, name: string, options: LeakyBucketLimiterOptions);
  /** @internal */
  constructor(store: Store, name: string, options: LeakyBucketLimiterOptions | Attached);
  constructor(store: Store, name: string, options: LeakyBucketLimiterOptions | Attached) {
    super(...inStore(store, name, "leaky-bucket", options === attached ? attached : () => bucketPolicy(options, "queue")));
  }

  /** Takes the limit that is declared under a name; at its first use it must be. */
  static attach(store: Store, name: string): LeakyBucketLimiter {
    return new LeakyBucketLimiter(store, name, attached);
  }
}

function windowPolicy(options: RateWindow, isSmooth: boolean): NativePolicy {
  checkOptions(options, WINDOW);
  return native.windowPolicy(...windowOf(options), isSmooth);
}

/**
 * At most `maxExecutions` units in each window, the windows aligned to the Unix epoch. Across a boundary up to twice as
 * many start in the length of one window.
 */
export class FixedWindowLimiter extends Limiter {
  /** Declares a limit under a name, at its first use. Nothing is opened before. */
  constructor(store: Store, name: string, options: RateWindow);
  /** @internal */
  constructor(store: Store, name: string, options: RateWindow | Attached);
  constructor(store: Store, name: string, options: RateWindow | Attached) {
    super(...inStore(store, name, "fixed-window", options === attached ? attached : () => windowPolicy(options, false)));
  }

  /** Takes the limit that is declared under a name; at its first use it must be. */
  static attach(store: Store, name: string): FixedWindowLimiter {
    return new FixedWindowLimiter(store, name, attached);
  }
}

/**
 * An estimate of `maxExecutions` units in any rolling window, from the counts of this window and the last one, for limits
 * that are huge. Fewer than twice as many start in the length of one window, and `maxExecutions` on average.
 */
export class SlidingWindowCounterLimiter extends Limiter {
  /** Declares a limit under a name, at its first use. Nothing is opened before. */
  constructor(store: Store, name: string, options: RateWindow);
  /** @internal */
  constructor(store: Store, name: string, options: RateWindow | Attached);
  constructor(store: Store, name: string, options: RateWindow | Attached) {
    const kind = "sliding-window-counter";
    super(...inStore(store, name, kind, options === attached ? attached : () => windowPolicy(options, true)));
  }

  /** Takes the limit that is declared under a name; at its first use it must be. */
  static attach(store: Store, name: string): SlidingWindowCounterLimiter {
    return new SlidingWindowCounterLimiter(store, name, attached);
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
