// When those come back who were sent away without a place.

/** Nobody comes back sooner, in ms: what a concurrency limit says is only a guess. */
const SOONEST = 10;

/** How much later the next comes back that waits for a place, in ms: so that they take their places in turn. */
const APART = 5;

/** No limit that has places has more units. */
const MOST_UNITS = 4_096;

/** Of more units than so many times the limit, what was granted counts for half. */
const REMEMBERED = 8;

/** What a denial says: see `Decision`. */
interface Denial {
  readonly retryAfter: number;
  readonly resetAfter: number;
  readonly limit: number;
  /** After how long the same room comes again, if that is known. */
  readonly period?: number | null;
}

/**
 * The jobs of one key that one process sent away without a place: they come back one after the other, as fast as starts are
 * granted there; or where places are taken for some windows, early enough to take one for their turn.
 * Would all come back when the first of them can start, then all but that one came in vain, again and again: a backlog of
 * n would be delayed n² / 2 times, and keep the worker from other keys. Times are in ms on any one clock.
 */
export class Line {
  #since = 0;
  #granted = 0;
  #latest = 0;
  #next = 0;
  /** When those come back who wait for a place, unit by unit, in order. */
  readonly #due: number[] = [];

  /** Is nobody in it who has not come back, and nothing to come that was granted? */
  isEmpty(now: number): boolean {
    return this.#next <= now && this.#latest <= now;
  }

  /** So many units were granted to a job of this process, for now or for later. */
  grant(units: number, at: number): void {
    this.#granted += units;
    this.#latest = Math.max(this.#latest, at);
  }

  /** When to come back, at the end of the line. */
  append(units: number, now: number, { retryAfter, resetAfter, limit, period = null }: Denial): number {
    const known = Number.isFinite(limit) ? limit : 1;
    if (period !== null) {
      while (this.#due.length > 0 && this.#due[0]! <= now) this.#due.shift();
      // No place is sooner than after all that were given; and of those who wait for one, no window has more than the limit.
      const before = this.#due.length;
      const turn = now + retryAfter + Math.floor(before / known) * period;
      // Half a window early: who comes late wastes a part of the limit.
      const at = Math.max(turn - period / 2, now + SOONEST) + (before % known) * Math.min(APART, period / 4 / known);
      for (let i = 0; i < units && i < MOST_UNITS; i++) this.#due.push(at);
      this.#next = Math.max(this.#next, at);
      return at;
    }
    if (this.#next <= now) {
      this.#since = this.#latest = now;
      this.#granted = 0;
    }
    if (this.#granted > REMEMBERED * known) {
      this.#granted /= 2;
      this.#since += (this.#latest - this.#since) / 2;
    }
    // The limit was granted before the first denial. Rather too early than too late: this is how it gets faster again.
    let pace = (0.75 * (Math.max(now, this.#latest) - this.#since)) / (known + this.#granted);
    if (resetAfter > 0) pace = Math.min(pace, resetAfter / known);
    const at = Math.max(this.#next, now + Math.max(retryAfter, SOONEST));
    this.#next = at + Math.max(pace, 1) * units;
    return at;
  }
}

/** The lines of all keys. */
export class Lines {
  readonly #lines = new Map<string, Line>();
  #sweepAt = 64;

  /** How many keys are remembered. */
  get size(): number {
    return this.#lines.size;
  }

  /** Somebody started at once. */
  grant(key: string, units: number, now: number): void {
    this.#lines.get(key)?.grant(units, now);
  }

  /** Somebody has a place. */
  place(key: string, units: number, now: number, at: number): void {
    this.#of(key, now).grant(units, at);
  }

  append(key: string, units: number, now: number, denial: Denial): number {
    return this.#of(key, now).append(units, now, denial);
  }

  #of(key: string, now: number): Line {
    let line = this.#lines.get(key);
    if (line === undefined) {
      this.#sweep(now);
      this.#lines.set(key, (line = new Line()));
    }
    return line;
  }

  /** Forgets keys that are idle, whenever there are twice as many as those that were not. */
  #sweep(now: number): void {
    if (this.#lines.size < this.#sweepAt) return;
    for (const [key, line] of this.#lines) if (line.isEmpty(now)) this.#lines.delete(key);
    this.#sweepAt = Math.max(64, 2 * this.#lines.size);
  }
}
