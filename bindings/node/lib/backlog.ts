// The backlog of jobs that were sent away without a place, and when each comes back.

import { type Weight, unitsAt } from "./charges.js";

/** The soonest that a job comes back, in ms: the wait of a concurrency limit is only an estimate. */
const SOONEST = 10;

/** The time between two jobs that come back to take a place, in ms, so that they take their places in turn. */
const APART = 5;

/** No limit that has places has more units. */
const MOST_UNITS = 4_096;

/** Once more units than this multiple of the limit were granted, they count for half. */
const REMEMBERED = 8;

/** A job that is due within this time, in ms, may be on its way. */
const ALMOST = 1_000;

/** The denial of a start: see `Decision`. */
interface Denial {
  readonly retryAfter: number;
  readonly resetAfter: number;
  readonly limit: number;
  readonly deniedBy: string | null;
  /** After how long the same units are free again, if that is known. */
  readonly period?: number | null;
}

/**
 * The jobs of one key that one process sent away without a place. They come back one after the other, as fast as starts are
 * granted there; or where the places of the next windows are taken, early enough to take one for their turn.
 *
 * If all returned when the first could start, the rest would be denied again each time: a backlog of n jobs would be delayed
 * n² / 2 times, and keep the worker from other keys. Times are in ms on any one clock.
 */
export class Backlog {
  #since = 0;
  #granted = 0;
  #latest = 0;
  #next = 0;
  /** The limit that denied last. Of several, its units are counted. */
  #deniedBy: string | null = null;
  /** When the jobs that wait for a place come back, unit by unit, in order. */
  #due: number[] = [];
  /** The jobs that have not come back to this process, by the names that their queue knows; and these names, in order. */
  readonly #away = new Map<string, Away>();
  #names: string[] = [];
  #sweepAt = 64;
  /** Until the places of forgotten jobs are given back. */
  givingBack: Promise<unknown> = Promise.resolve();

  /** Returns whether all jobs have come back, and all granted starts have begun. */
  isEmpty(now: number): boolean {
    return this.#next <= now && this.#latest <= now;
  }

  /** Notes that units were granted to a job of this process, for now or for later. */
  grant(weight: Weight, at: number): void {
    this.#granted += unitsAt(weight, this.#deniedBy);
    this.#latest = Math.max(this.#latest, at);
  }

  /** Notes that a job was sent away, under the name that its queue knows. */
  sendAway(name: string, away: Away, now: number): void {
    if (this.#names.length >= this.#sweepAt) {
      for (const [other, { at }] of this.#away) if (at <= now) this.#away.delete(other); // Other processes got them.
      this.#names = [...this.#away.keys()];
      this.#sweepAt = Math.max(64, 2 * this.#names.length);
    }
    if (!this.#away.has(name)) this.#names.push(name);
    this.#away.set(name, away);
  }

  /** Notes that a job came back. */
  comeBack(name: string): void {
    this.#away.delete(name);
  }

  /** Returns the names of `most` jobs that are certainly away, evenly spread over all of them. */
  someAway(now: number, most: number): string[] {
    const step = Math.max(1, (this.#names.length - 1) / (most - 1));
    const found: string[] = [];
    for (let i = 0; i < most && Math.round(i * step) < this.#names.length; i++) {
      const name = this.#names[Math.round(i * step)]!;
      if (this.#isAway(name, now)) found.push(name);
    }
    return found;
  }

  /** Returns the names of all jobs that are certainly away. */
  allAway(now: number): string[] {
    return [...this.#away.keys()].filter((name) => this.#isAway(name, now));
  }

  /** Returns whether a job is not due yet: later, another process may have it, or have ended it. */
  #isAway(name: string, now: number): boolean {
    return (this.#away.get(name)?.at ?? 0) > now + ALMOST;
  }

  /** Forgets jobs that are gone, as if they had never asked. Returns their places. */
  forget(names: readonly string[], now: number): string[] {
    const gone = names.map((name) => this.#away.get(name)).filter((away) => away !== undefined);
    if (gone.length === 0) return [];
    for (const name of names) this.#away.delete(name);
    this.#names = [...this.#away.keys()];
    const left = [...this.#away.values()].sort((a, b) => a.at - b.at);
    this.#since = this.#latest = this.#next = now;
    this.#granted = 0;
    this.#due = [];
    for (const { weight, at, place } of left) {
      const units = unitsAt(weight, this.#deniedBy);
      if (place !== null) this.grant(weight, at);
      else for (let i = 0; i < units && i < MOST_UNITS; i++) this.#due.push((this.#next = at));
    }
    return gone.map(({ place }) => place).filter((place) => place !== null);
  }

  /** Adds a job at the end, and returns when it comes back. */
  append(weight: Weight, now: number, { retryAfter, resetAfter, limit, deniedBy, period = null }: Denial): number {
    this.#deniedBy = deniedBy;
    const units = unitsAt(weight, deniedBy);
    const known = Number.isFinite(limit) ? limit : 1;
    if (period !== null) {
      while (this.#due.length > 0 && this.#due[0]! <= now) this.#due.shift();
      // The next place is after all that were given, and one window takes at most `limit` of the jobs that wait for one.
      const before = this.#due.length;
      const turn = now + retryAfter + Math.floor(before / known) * period;
      // Half a window early: a job that comes late wastes a part of the limit.
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
    // The limit was granted before the first denial. Too early is better than too late: that makes the pace faster again.
    let pace = (0.75 * (Math.max(now, this.#latest) - this.#since)) / (known + this.#granted);
    if (resetAfter > 0) pace = Math.min(pace, resetAfter / known);
    const at = Math.max(this.#next, now + Math.max(retryAfter, SOONEST));
    this.#next = at + Math.max(pace, 1) * units;
    return at;
  }
}

/** A job that was sent away. */
export interface Away {
  readonly weight: Weight;
  /** When it may start, or asks again. */
  readonly at: number;
  /** The text of its place, if it has one. */
  readonly place: string | null;
}

/** The backlogs of all keys. */
export class Backlogs {
  readonly #backlogs = new Map<string, Backlog>();
  #sweepAt = 64;

  /** The number of keys that are remembered. */
  get size(): number {
    return this.#backlogs.size;
  }

  /** Notes a start. */
  grant(key: string, weight: Weight, now: number): void {
    this.#backlogs.get(key)?.grant(weight, now);
  }

  /** Notes a place. */
  place(key: string, weight: Weight, now: number, at: number): void {
    this.of(key, now).grant(weight, at);
  }

  append(key: string, weight: Weight, now: number, denial: Denial): number {
    return this.of(key, now).append(weight, now, denial);
  }

  /** Returns the backlog of a key, if it is remembered. */
  find(key: string): Backlog | undefined {
    return this.#backlogs.get(key);
  }

  /** Returns the backlog of a key. */
  of(key: string, now: number): Backlog {
    let backlog = this.#backlogs.get(key);
    if (backlog === undefined) {
      this.#sweep(now);
      this.#backlogs.set(key, (backlog = new Backlog()));
    }
    return backlog;
  }

  /** Forgets idle keys whenever there are twice as many keys as were left after the last time. */
  #sweep(now: number): void {
    if (this.#backlogs.size < this.#sweepAt) return;
    for (const [key, backlog] of this.#backlogs) if (backlog.isEmpty(now)) this.#backlogs.delete(key);
    this.#sweepAt = Math.max(64, 2 * this.#backlogs.size);
  }
}
