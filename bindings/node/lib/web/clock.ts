// The clock of a store, and the clock for tests.

import type { Time } from "./engine.js";

/** What a store reads. */
export interface Clock {
  /** Returns the time since the clock was made, in µs, rounded both ways. */
  now(): Time;
  /** Calls a function after this time in ms, or earlier. Returns how to prevent that. */
  after(ms: number, call: () => void): () => void;
  /** Returns the Unix time of its time 0 in µs. */
  readonly unixUs: number;
}

/**
 * The resolution of clocks in browsers, in µs: they are rounded down to at most a millisecond, so that pages cannot measure what
 * other pages do. So the true time is up to this much later than a reading, and a start counts from there on.
 */
const RESOLUTION = 1_000;

/** The longest time for a timer, in ms. */
const LONGEST = 2 ** 31 - 1;

/** The clock of this machine, which does not change when somebody sets the time of day. */
export class SystemClock implements Clock {
  readonly #began = performance.now();
  readonly unixUs = Date.now() * 1e3;

  now(): Time {
    const from = (performance.now() - this.#began) * 1e3;
    return [from, from + RESOLUTION];
  }

  after(ms: number, call: () => void): () => void {
    return after(ms, call);
  }
}

/** Calls a function after this time in ms, by the clock of this machine. Returns how to prevent that. */
export function after(ms: number, call: () => void): () => void {
  let rest = Math.ceil(ms);
  let timer: ReturnType<typeof setTimeout>;
  const wind = () => {
    const part = Math.min(rest, LONGEST);
    rest -= part;
    timer = setTimeout(() => (rest > 0 ? wind() : call()), part);
  };
  wind();
  return () => clearTimeout(timer);
}

/** Who has led: a database, and the number of its leader. */
export interface Epoch {
  readonly database: string;
  readonly number: number;
}

/**
 * The store's time, as a program has heard it of the latest leader: it was heard late, so it is late, and how long ago is rounded down.
 * A leader's clock may be behind that of the one before it, and its starts count by its own. So an earlier leader's time is forgotten.
 */
export class HeardTime {
  readonly #clock: Clock;
  #last: { readonly us: number; readonly at: number; readonly of: Epoch } | null = null;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Keeps the latest time of the latest leader. */
  hear(us: number, of: Epoch): void {
    const last = this.#last?.of.database === of.database ? this.#last.of.number : -1;
    if (of.number < last || (of.number === last && us <= this.now(of.database)!.us)) return;
    this.#last = { us, at: this.#clock.now()[1], of };
  }

  /** Returns the time of a database, and the number of the leader that told it. */
  now(database: string): { readonly us: number; readonly number: number } | null {
    if (this.#last === null || this.#last.of.database !== database) return null;
    const { us, at, of } = this.#last;
    return { us: us + Math.max(0, this.#clock.now()[0] - at), number: of.number };
  }
}

/** The clock of a leader: shows the store's time, and calls what is due when somebody asks, too, as its own timers may be slow. */
export class LeaderClock implements Clock {
  readonly unixUs: number;
  readonly #clock: Clock;
  readonly #ahead: number;
  readonly #timers = new Set<{ readonly at: number; readonly call: () => void }>();
  /** Nothing is due before this. */
  #next = Number.POSITIVE_INFINITY;

  /** Shows at least `time` from now on: no later than it is, because the clock's later reading counts. */
  constructor(clock: Clock, time: number, unixUs: number) {
    this.#clock = clock;
    this.#ahead = time - clock.now()[1];
    this.unixUs = unixUs;
  }

  now(): Time {
    const [from, to] = this.#clock.now();
    return [Math.max(0, from + this.#ahead), Math.max(0, to + this.#ahead)];
  }

  after(ms: number, call: () => void): () => void {
    const timer = { at: this.now()[0] + ms * 1e3, call };
    const stop = this.#clock.after(ms, () => void (this.#timers.delete(timer) && call()));
    this.#timers.add(timer);
    this.#next = Math.min(this.#next, timer.at);
    return () => {
      this.#timers.delete(timer);
      stop();
    };
  }

  /** Calls what is due. Returns after how many ms there will be more. */
  run(): number {
    const now = this.now()[0];
    if (this.#next <= now) {
      for (const timer of [...this.#timers]) if (timer.at <= now && this.#timers.delete(timer)) timer.call();
      this.#next = Number.POSITIVE_INFINITY;
      for (const { at } of this.#timers) this.#next = Math.min(this.#next, at);
    }
    return (this.#next - now) / 1e3;
  }
}

/** A clock for tests. It stands still until it is advanced, which wakes the waiters that use it. */
export class ManualClock implements Clock {
  /** @internal It shows the time since 1970. */
  readonly unixUs = 0;
  #ms = 0;
  readonly #calls = new Set<() => void>();

  /** @internal */
  now(): Time {
    const us = Math.round(this.#ms * 1e3);
    return [us, us];
  }

  /** Moves the clock forward by so many ms. */
  advance(ms: number): void {
    this.#ms += ms;
    const calls = [...this.#calls];
    this.#calls.clear();
    for (const call of calls) call();
  }

  /** @internal */
  after(_ms: number, call: () => void): () => void {
    this.#calls.add(call);
    return () => void this.#calls.delete(call);
  }
}
