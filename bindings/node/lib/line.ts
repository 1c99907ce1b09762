// When those come back who were sent away without a place.

/** Nobody comes back sooner, in ms: what a concurrency limit says is only a guess. */
const SOONEST = 10;

/** How many starts are remembered at least; no limit that has places has more in its window. */
const MOST_STARTS = 4_096;

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
 * The jobs of one key that one process sent away: they come back one after the other, as fast as starts are granted there.
 * What was granted in one window is granted again in the next: where that is known, each comes back for a start of its own.
 * Would all come back when the first of them can start, then all but that one came in vain, again and again: a backlog of
 * n would be delayed n² / 2 times, and keep the worker from other keys. Times are in ms on any one clock.
 */
export class Line {
  #since = 0;
  #granted = 0;
  #latest = 0;
  #next = 0;
  /** When the units that were granted lately start, in order. */
  #starts: number[] = [];
  /** When the units that are in the line come back, in order, where each comes for a start of its own. */
  readonly #due: number[] = [];

  /** Is nobody in it who has not come back, and nothing to come that was granted? */
  isEmpty(now: number): boolean {
    return this.#next <= now && (this.#starts.at(-1) ?? 0) <= now;
  }

  /** So many units were granted to a job of this process, for now or for later. */
  grant(units: number, at: number): void {
    this.#granted += units;
    this.#latest = Math.max(this.#latest, at);
    let end = this.#starts.length;
    while (end > 0 && this.#starts[end - 1]! > at) end--;
    this.#starts.splice(end, 0, ...Array<number>(Math.min(units, MOST_STARTS)).fill(at));
    if (this.#starts.length > 2 * MOST_STARTS) this.#starts = this.#starts.slice(-MOST_STARTS);
  }

  /** When to come back, at the end of the line. */
  append(units: number, now: number, { retryAfter, resetAfter, limit, period = null }: Denial): number {
    while (this.#due.length > 0 && this.#due[0]! <= now) this.#due.shift();
    if (period !== null && this.#starts.length > 0) {
      // The last window is not full yet, so how many start in one is seen in an earlier one.
      const starts = this.#starts.filter((at) => at > this.#starts.at(-1)! - 3 * period);
      const inOne = starts.filter((at) => at < starts[0]! + period).length;
      const before = this.#due.length;
      const turn = Math.floor(before / inOne);
      const start = starts[starts.length - inOne + (before % inOne)]! + (1 + turn) * period;
      // Early enough to take a place for it: who comes late wastes a part of the limit.
      const at = Math.max(start - period / 2, now + Math.max(retryAfter / 2, SOONEST));
      for (let i = 0; i < units && i < MOST_STARTS; i++) this.#due.push(at);
      this.#next = Math.max(this.#next, at);
      return at;
    }
    if (this.#next <= now) {
      this.#since = this.#latest = now;
      this.#granted = 0;
    }
    const known = Number.isFinite(limit) ? limit : 1;
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
