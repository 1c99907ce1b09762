// The jobs of a shared limit that a process sent away: it stands in line for them, and calls each one when its turn has come.

import { warn } from "./hooks.js";
import type { Limiter } from "./limiter.js";
import { type NativePool, native } from "./native.js";

/** The text for a job whose turn has come where the limit has no places. */
export const TURN = "turn";

/** The priority before all other waiters of a tenant. */
export const FIRST = -2047;

/** The largest priority of a job that counts. */
const LAST = 1023;

/**
 * How long a called job is on its way, in ms, if it does not arrive here: another process has it then, or it is late, and a slot here counts as
 * free again.
 */
const ON_THE_WAY = 250;

/**
 * How late a called job may start with its place, in ms. A start gives back what it did not use if those before it have started, so on a
 * busy machine more would cost more than the places that are lost.
 */
const LATE = 200;

/** The shortest time after which a job comes back that nobody called, in ms: the process that stands in line for it may be dead. */
const UNCALLED = 10_000;

/** In how many processes as many jobs may wait as here. With more of them, jobs come back too early, and wait again. */
const PROCESSES = 8;

/** A job that was sent away. */
export interface FedJob {
  /** Its name, as its queue knows it. */
  readonly name: string;
  readonly key: string;
  readonly weight: number;
  /** Less is sooner. */
  readonly priority: number;
  /** Makes the queue hand out the job now, with this text. Rejects if it is no longer there. */
  call(text: string): Promise<unknown>;
}

const feeds = new WeakMap<Limiter, Feed | null>();

/**
 * The line of a limiter's jobs that wait in their queue. Places far ahead would keep other tenants out, so none has one. A called job has
 * a place at most 0.1 s ahead.
 */
export class Feed {
  readonly #pool: NativePool;
  readonly #limiter: Limiter;
  /** The jobs that wait, by their numbers in the pool, and those numbers. Before it has one, a job is in `#arrived`. */
  readonly #waiting = new Map<number, FedJob>();
  readonly #numbers = new Map<string, number>();
  /** How many jobs wait of each key. */
  readonly #keys = new Map<string, number>();
  #arrived: FedJob[] = [];
  #left: number[] = [];
  #ended: number[] = [];
  /** The jobs that were called and have not arrived, and their timers. */
  readonly #called = new Map<string, NodeJS.Timeout>();
  /** How many jobs this process runs at the same time, and how many it runs. */
  #workers = 1;
  #running = 0;
  #isAdvancing = false;
  #again = false;
  #timer: NodeJS.Timeout | undefined;

  private constructor(limiter: Limiter, pool: NativePool) {
    this.#limiter = limiter;
    this.#pool = pool;
  }

  /** Returns the feed of an open limiter; `null` if tenants do not share it, so that its jobs have places. */
  static of(limiter: Limiter): Feed | null {
    let feed = feeds.get(limiter);
    if (feed === undefined) {
      const pool = native.jobPool(limiter._native, graceOf(limiter));
      feeds.set(limiter, (feed = pool && new Feed(limiter, pool)));
    }
    return feed;
  }

  /** Returns whether jobs of a key wait. */
  has(key: string): boolean {
    return this.#keys.has(key);
  }

  /** Returns after how many ms a job should come back if nobody calls it: not before all jobs should have started. */
  uncalledAfter(limit: number): number {
    const waiting = this.#waiting.size + this.#arrived.length + 1;
    return Math.max(UNCALLED, (PROCESSES * waiting * (this.#limiter.window ?? UNCALLED)) / Math.max(1, limit));
  }

  /** Adds a job that was sent away. */
  join(job: FedJob, workers: number): void {
    this.#workers = workers;
    this.#arrived.push(job);
    this.#keys.set(job.key, (this.#keys.get(job.key) ?? 0) + 1);
    this.#advance();
  }

  /** Notes that the queue handed out a job. Returns whether it has waited here. */
  arrive(name: string): boolean {
    const called = this.#called.get(name);
    if (called !== undefined) {
      clearTimeout(called);
      this.#called.delete(name);
      this.#advance();
      return true;
    }
    const number = this.#numbers.get(name);
    if (number !== undefined) {
      this.#take(number);
      this.#left.push(number);
      this.#advance();
      return true;
    }
    const at = this.#arrived.findIndex((job) => job.name === name);
    if (at >= 0) this.#count(this.#arrived.splice(at, 1)[0]!.key);
    return at >= 0;
  }

  /** Notes that a job runs. Returns what notes its end. */
  begin(): () => void {
    this.#running++;
    return () => {
      this.#running--;
      this.#advance();
    };
  }

  #take(number: number): FedJob | undefined {
    const job = this.#waiting.get(number);
    if (job !== undefined) {
      this.#waiting.delete(number);
      this.#numbers.delete(job.name);
      this.#count(job.key);
    }
    return job;
  }

  #count(key: string): void {
    const left = this.#keys.get(key)! - 1;
    if (left > 0) this.#keys.set(key, left);
    else this.#keys.delete(key);
  }

  /** Does the work that is due, one call at a time. */
  #advance(): void {
    this.#again = true;
    if (this.#isAdvancing) return;
    this.#isAdvancing = true;
    clearTimeout(this.#timer);
    void this.#advanceAll().then((next) => {
      this.#isAdvancing = false;
      // (It does not keep the process alive: its queue does.)
      if (this.#again) this.#advance();
      else if (next >= 0) this.#timer = setTimeout(() => this.#advance(), Math.max(1, Math.min(next, UNCALLED))).unref();
    });
  }

  async #advanceAll(): Promise<number> {
    let next = -1;
    while (this.#again) {
      this.#again = false;
      const [arrived, left, ended] = [this.#arrived, this.#left, this.#ended];
      [this.#arrived, this.#left, this.#ended] = [[], [], []];
      const [keys, weights] = [arrived.map(({ key }) => key), arrived.map(({ weight }) => weight)];
      const priorities = arrived.map(({ priority }) => priority);
      const free = Math.max(0, this.#workers - this.#running - this.#called.size);
      try {
        const news = await native.advancePool(this.#pool, ended, left, keys, weights, priorities, this.#workers, free);
        news.joined.forEach((number, i) => this.#seat(number, arrived[i]!));
        news.went.forEach((number, i) => this.#call(number, news.places[i]!));
        for (const number of news.failed) this.#take(number); // They come back by themselves, and meet the error.
        next = news.next;
      } catch (error) {
        warn("the jobs of a shared limit could not be called", error); // They come back by themselves.
        for (const { key } of arrived) this.#count(key);
        next = UNCALLED;
      }
    }
    return next;
  }

  #seat(number: number, job: FedJob): void {
    // One that the limiter refused comes back by itself, and meets the error.
    if (number < 0) return this.#count(job.key);
    this.#waiting.set(number, job);
    this.#numbers.set(job.name, number);
  }

  #call(number: number, place: string): void {
    const job = this.#take(number);
    this.#ended.push(number);
    this.#again = true;
    if (job === undefined) return this.#giveBack(place); // It came back by itself meanwhile.
    const timer = setTimeout(() => this.#isGone(job.name), ON_THE_WAY).unref();
    this.#called.set(job.name, timer);
    job.call(place === "" ? TURN : place).catch(() => {
      // It was removed, or another process has it.
      this.#isGone(job.name);
      this.#giveBack(place);
    });
  }

  #isGone(name: string): void {
    clearTimeout(this.#called.get(name));
    if (this.#called.delete(name)) this.#advance();
  }

  #giveBack(place: string): void {
    if (place === "") return;
    const cancel = async () => this.#limiter.place(place).cancelAsync();
    cancel().catch((error) => warn("the place of a job that was removed could not be given back", error));
  }
}

/** Returns how late a called job may start with its place, in ms. */
export const graceOf = (limiter: Limiter): number => Math.min(LATE, limiter.window ?? LATE);

/** Returns the priority of a job in its tenant's line. One that comes back goes ahead of its equals. */
export function rankOf(priority: number, isBack: boolean): number {
  return 2 * Math.min(Math.max(priority, 0), LAST) - Number(isBack);
}
