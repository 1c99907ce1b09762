// Where limits live, and the clock that tests can give them.

import { invalid, thrown } from "./errors.js";
import { type Duration, milliseconds, options as checkOptions, unicode, whole } from "./input.js";
import { RateLimiter } from "./limiters.js";
import type { Limiter } from "./limiter.js";
import { type NativeClock, type NativeStore, native } from "./native.js";
import { Room } from "./waiting.js";

/** A clock for tests: it stands still until it is advanced, and wakes those who wait by it. */
export class ManualClock {
  /** @internal */
  readonly _native: NativeClock = native.manualClock();
  /** @internal */
  readonly _room = new Room();

  /** The time since the clock was made, in ms. */
  now(): number {
    return native.now(this._native);
  }

  /** Moves the clock forward. */
  advance(by: Duration): void {
    native.advance(this._native, milliseconds("by", by));
    this._room.ring();
  }
}

/** @internal The native half of a clock that a caller gave, if any. */
export function nativeClock(clock: unknown): NativeClock | undefined {
  if (clock === undefined) return undefined;
  if (!(clock instanceof ManualClock)) throw invalid("clock", clock, "a ManualClock");
  return clock._native;
}

/** How a store behaves. */
export interface StoreOptions {
  /** How long something rare (opening, a new limit, growing) may take before it fails: 5 s if not given. */
  timeout?: Duration | undefined;
  /** The mode of the files that are made, whatever the umask: 0o600 if not given, 0o660 for services of several users. */
  mode?: number | undefined;
  /** A clock for tests. */
  clock?: ManualClock | undefined;
}

/** Where limits live: "memory:" (this object) or "sqlite:PATH" (this machine). Making one opens nothing. */
export class Store {
  /** The store's address. */
  readonly url: string;
  /** @internal */
  readonly _native: NativeStore;
  /** @internal */
  readonly _clock: ManualClock | undefined;

  constructor(url: string, options: StoreOptions = {}) {
    checkOptions(options, ["timeout", "mode", "clock"]);
    const { timeout, mode, clock } = options;
    this.url = unicode("url", url);
    const ms = timeout === undefined ? undefined : milliseconds("timeout", timeout);
    const bits = mode === undefined ? undefined : whole("mode", mode);
    const time = nativeClock(clock);
    try {
      this._native = native.store(url, ms, bits, time);
    } catch (error) {
      throw thrown(error);
    }
    this._clock = clock;
  }

  /** Opens the store now, its files made if there are none, instead of at the first decision. */
  async open(): Promise<void> {
    await native.openStore(this._native).catch(rethrow);
  }

  /** The names that are declared in this store, in order. */
  async names(): Promise<string[]> {
    return native.names(this._native).catch(rethrow);
  }

  /** Takes the limit that is declared under a name; at its first use it must be. */
  limiter(options: { name: string }): Limiter {
    checkOptions(options, ["name"]);
    return RateLimiter.attach(this, options.name);
  }
}

function rethrow(error: unknown): never {
  throw thrown(error);
}
