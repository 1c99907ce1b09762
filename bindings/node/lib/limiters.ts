// The family of limiters.

import { invalid, thrown } from "./errors.js";
import { options as checkOptions, unicode, whole } from "./input.js";
import { Limiter } from "./limiter.js";
import { native } from "./native.js";
import { ManualClock, Store, nativeClock } from "./store.js";
import { Room } from "./waiting.js";

/** Makes something native, with errors of this package. */
function make<T>(how: () => T): T {
  try {
    return how();
  } catch (error) {
    throw thrown(error);
  }
}

/** What a `RateLimiter` allows. */
export interface RateLimiterOptions {
  /** The most units in any rolling window: 1 to 4,096. */
  maxExecutions: number;
  /** The window, in seconds: 1 µs to 366 days. */
  windowSizeInSeconds: number;
}

const attached = Symbol("attached");

/**
 * At most `maxExecutions` units in any rolling window, exactly: shared by all who open the same name in the same store,
 * in whatever process and language. What code declares last holds for everyone.
 */
export class RateLimiter extends Limiter {
  /** @internal */
  override readonly _givesPlaces: boolean;
  readonly #rooms: readonly Room[];
  #opening: Promise<void> | null = null;
  #isOpen = false;

  /** Declares a limit under a name, at its first use. Nothing is opened before. */
  constructor(store: Store, name: string, options: RateLimiterOptions);
  /** @internal */
  constructor(store: Store, name: string, options: RateLimiterOptions | typeof attached);
  constructor(store: Store, name: string, options: RateLimiterOptions | typeof attached) {
    if (!(store instanceof Store)) throw invalid("store", store, "a Store");
    unicode("name", name);
    if (options === attached) {
      super(make(() => native.rateLimiter(store._native, name)));
    } else {
      checkOptions(options, ["maxExecutions", "windowSizeInSeconds"]);
      const max = whole("maxExecutions", options.maxExecutions);
      const seconds = options.windowSizeInSeconds;
      if (typeof seconds !== "number") throw invalid("windowSizeInSeconds", seconds, "a number of seconds");
      super(make(() => native.rateLimiter(store._native, name, max, seconds)));
    }
    this.#rooms = store._clock === undefined ? [] : [store._clock._room];
    this._givesPlaces = store._clock === undefined;
  }

  /** Takes the limit that is declared under a name; at its first use it must be. */
  static attach(store: Store, name: string): RateLimiter {
    return new RateLimiter(store, name, attached);
  }

  /** @internal */
  override _rooms(): readonly Room[] {
    return this.#rooms;
  }

  /** @internal */
  override _opening(): Promise<void> | null {
    if (this.#isOpen) return null;
    this.#opening ??= native.openLimiter(this._native).then(
      () => void (this.#isOpen = true),
      (error) => {
        this.#opening = null; // The next use tries again.
        throw thrown(error);
      },
    );
    return this.#opening;
  }
}

/** What a `ConcurrencyLimiter` can be told. */
export interface ConcurrencyLimiterOptions {
  /** A clock for tests, by which its gates live. */
  clock?: ManualClock | undefined;
}

/** At most so many units at the same time, per key. It counts what runs through this object. */
export class ConcurrencyLimiter extends Limiter {
  /** @internal */
  override readonly _holds = true;
  readonly #rooms: readonly Room[];

  /** At most `maxConcurrentJobs` (1 to 65,535) units at the same time. */
  constructor(maxConcurrentJobs: number, options: ConcurrencyLimiterOptions = {}) {
    checkOptions(options, ["clock"]);
    const max = whole("maxConcurrentJobs", maxConcurrentJobs);
    const clock = nativeClock(options.clock);
    super(make(() => native.concurrencyLimiter(max, clock)));
    const room = new Room();
    this.#rooms = options.clock === undefined ? [room] : [room, options.clock._room];
  }

  /** @internal */
  override _rooms(): readonly Room[] {
    return this.#rooms;
  }
}

/** No limit: what to use where none is given. */
export class NullLimiter extends Limiter {
  constructor() {
    super(native.nullLimiter());
  }
}

/** Admits what every child admits. A child that denies keeps the others from being charged. */
export class CompositeLimiter extends Limiter {
  /** @internal */
  override readonly _holds = true;
  readonly #children: Limiter[] = [];

  /** Without any limiters it admits everything. */
  constructor(limiters: readonly Limiter[] = []) {
    if (!Array.isArray(limiters)) throw invalid("limiters", limiters, "an array of limiters");
    for (const limiter of limiters) checkLimiter(limiter);
    super(native.compositeLimiter());
    for (const limiter of limiters) this.addLimiter(limiter);
  }

  /** Adds a limiter. Permits that are out complete against the limiters they were taken from. */
  addLimiter(limiter: Limiter): void {
    checkLimiter(limiter);
    make(() => native.addLimiter(this._native, limiter._native));
    this.#children.push(limiter);
  }

  /** @internal */
  override _rooms(): readonly Room[] {
    return this.#children.flatMap((child) => child._rooms());
  }

  /** @internal */
  override _opening(): Promise<unknown> | null {
    const opening = this.#children.map((child) => child._opening()).filter((promise) => promise !== null);
    return opening.length === 0 ? null : Promise.all(opening);
  }
}

function checkLimiter(limiter: unknown): void {
  if (!(limiter instanceof Limiter)) throw invalid("limiter", limiter, "a limiter of this package");
}
