// The family of limiters.

import { StoreError, invalid, thrown } from "./errors.js";
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

/** So many units in a rolling window. */
export interface RateWindow {
  /** The most units in any rolling window: 1 to 1,000,000,000, or with several windows 4,096. */
  maxExecutions: number;
  /** The window, in seconds: 1 µs to 366 days. */
  windowSizeInSeconds: number;
}

/** What a `RateLimiter` allows: one window, or one to four of them, which all must have room. */
export type RateLimiterOptions =
  | (RateWindow & { windows?: undefined })
  | { windows: readonly RateWindow[]; maxExecutions?: undefined; windowSizeInSeconds?: undefined };

const WINDOW = ["maxExecutions", "windowSizeInSeconds"];
const attached = Symbol("attached");

/** The windows of the options, as the native half takes them. */
function windowsOf(options: RateLimiterOptions): [max: number, seconds: number][] {
  checkOptions(options, [...WINDOW, "windows"]);
  const { windows, ...single } = options;
  if ((windows === undefined) === Object.values(single).every((value) => value === undefined)) {
    const given = windows === undefined ? "neither" : "both";
    throw invalid("options", `an object with ${given}`, "either maxExecutions and windowSizeInSeconds, or windows", true);
  }
  if (windows !== undefined && !Array.isArray(windows)) throw invalid("windows", windows, "an array of windows");
  return (windows ?? [single as RateWindow]).map((window: RateWindow) => {
    checkOptions(window, WINDOW, "windows");
    const max = whole("maxExecutions", window.maxExecutions);
    const seconds = window.windowSizeInSeconds;
    if (typeof seconds !== "number") throw invalid("windowSizeInSeconds", seconds, "a number of seconds");
    return [max, seconds];
  });
}

/**
 * At most `maxExecutions` units in any rolling window, exactly: shared by all who open the same name in the same store,
 * in whatever process and language. What code declares last holds for everyone, below an operator's `Store.override`.
 */
export class RateLimiter extends Limiter {
  /** @internal */
  override readonly _givesPlaces: boolean;
  readonly #alwaysAnswers: boolean;
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
    const windows = options === attached ? undefined : windowsOf(options);
    super(make(() => native.rateLimiter(store._native, name, windows)));
    this.#alwaysAnswers = store._alwaysAnswers;
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
        const reason = thrown(error);
        // The decision that follows fails too, and answers as the store was told to.
        if (!(this.#alwaysAnswers && reason instanceof StoreError)) throw reason;
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
