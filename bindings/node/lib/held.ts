// Holds a BullMQ queue while its limit is full, by the means of BullMQ's own limiter: jobs stay in the queue, in the queue's order.

import type { Redis } from "./bullmq.js";
import { type Key, type Weight, weightText } from "./charges.js";
import { WeightExceedsCapacity } from "./errors.js";
import { Feed } from "./feed.js";
import { type Decider, LATEST, type Later, type Request, ask, use } from "./limited.js";
import type { Limiter } from "./limiter.js";
import { Permit } from "./permit.js";
import { setImmediate, sleep } from "./timers.js";

/** The longest hold, in ms. Then one job asks again, because a limit can be cleared or raised. BullMQ's workers look as often. */
const LONGEST = 30_000;

/** How long a queue is held, in ms, while it is found out how long it has to be. */
const BRIEF = 5;

/** The time, in ms, in which no more jobs are handed out than the limit has units. */
const BURST = 20;

/** How long it is remembered, in ms, whether the queue has a global rate limit of BullMQ. */
const REMEMBERED = 1_000;

/** The worker of a job. BullMQ heeds a hold only if the worker has a limiter. */
interface HeldWorker {
  readonly processFn?: unknown;
  readonly opts: { limiter?: { max: number; duration: number } | undefined };
  rateLimit?(ms: number): Promise<void>;
  toKey(name: string): string;
}

/** A job that goes back to the queue, and its number in the order in which jobs were handed out. */
interface Returning {
  readonly number: number;
  go(): void;
}

const held = new WeakMap<HeldWorker, HeldQueue>();

/** The limiters that were found to have a concurrency limit, by a policy that was changed. */
const concurrent = new WeakSet<Limiter>();

/**
 * A queue whose jobs all need the same limit, so that none can start before the first one. It has a few places in the
 * limit, one for each worker process at most, for the jobs that come first when they are ready.
 */
export class HeldQueue implements Decider {
  readonly #worker: HeldWorker;
  readonly #redis: Redis;
  readonly #key: string;
  /** When the hold ends, as far as this process knows. */
  #until = 0;
  /** The limiter that was given to the worker. */
  #limiter: { max: number; duration: number } | undefined;
  /** The limit at the last admission. */
  #limit = 0;
  /** Whether the queue has a global rate limit, and when that was asked. */
  #global: Promise<boolean> = Promise.resolve(false);
  #asked = -Infinity;
  #count = 0;
  #last: Promise<unknown> = Promise.resolve();
  #returning: Returning[] = [];

  private constructor(worker: HeldWorker, redis: Redis) {
    this.#worker = worker;
    this.#redis = redis;
    this.#key = worker.toKey("workglow-limit:next");
  }

  /**
   * Returns the queue of a job, if `processor` processes all jobs of its worker: otherwise some may need another limit. A concurrency
   * limit does not know when it is free, so no queue is held for it. Nor is one that BullMQ limits for the program: a hold overwrites
   * the counter of that limit. BullMQ before `Job.moveToWait` loses jobs that go back when a hold has just ended.
   */
  static async of(job: object, processor: unknown, limiter: Limiter, redis: Redis | null): Promise<HeldQueue | null> {
    const { queue: worker, moveToWait } = job as { queue?: HeldWorker; moveToWait?: unknown };
    if (redis === null || worker === undefined || worker.processFn !== processor) return null;
    if (typeof worker.rateLimit !== "function" || typeof moveToWait !== "function") return null;
    await limiter._opening();
    if (limiter._holds || concurrent.has(limiter) || Feed.of(limiter) !== null) return null;
    let queue = held.get(worker);
    if (queue === undefined) held.set(worker, (queue = new HeldQueue(worker, redis)));
    return worker.opts.limiter !== queue.#limiter || (await queue.#hasGlobal()) ? null : queue;
  }

  /** Returns whether the queue has a global rate limit. Jobs that ask together get the same promise, so they stay in order. */
  #hasGlobal(): Promise<boolean> {
    const now = performance.now();
    if (now - this.#asked >= REMEMBERED) {
      this.#asked = now;
      this.#global = this.#redis.hget(this.#worker.toKey("meta"), "max").then((max) => typeof max === "string");
      this.#global.catch(() => (this.#asked = -Infinity));
    }
    return this.#global;
  }

  /** The next job's number. */
  number(): number {
    return ++this.#count;
  }

  /** Returns a start, or how long the queue has to be held. Jobs are decided one by one, in the order in which they were handed out. */
  start(limiter: Limiter, request: Request): Promise<Permit | Later> {
    const decide = this.#last.then(() => this.#start(limiter, request));
    this.#last = decide.catch(() => {});
    return decide;
  }

  async #start(limiter: Limiter, asked: Request): Promise<Permit | Later> {
    const { key, weight, hold } = asked;
    const { permit, limit, deniedBy, retryAfter } = await limiter.decideAsync({ key, weight });
    if (permit !== null) {
      // It was raised. The limit of a denial may be a smaller one of several.
      if (limit > this.#limit && this.#limiter !== undefined) this.#setLimiter(limit, this.#limiter.duration);
      this.#limit = limit;
      return permit;
    }
    // The limit of an attached limiter, or one that was changed since.
    if (deniedBy?.endsWith("/concurrency")) concurrent.add(limiter);
    if (concurrent.has(limiter)) {
      // The job goes back, and is delayed when it comes again.
      const { opts } = this.#worker;
      if (opts.limiter === this.#limiter) opts.limiter = this.#limiter = undefined;
      return { wait: retryAfter, place: null };
    }
    const left = this.#until - Date.now();
    if (left > 0) return { wait: left, place: null };
    const window = (await limiter._windowAsync()) ?? Infinity;
    this.#setLimiter(limit, window);
    // Jobs that are handed out now would have to go back.
    const [kept] = await Promise.all([this.#redis.hgetall(this.#key), this.#suspend(BRIEF)]);
    // A place costs the limit a part of its grace.
    const request = { ...asked, grace: Math.min(asked.grace, window / 40) };
    let answer = (await this.#take(limiter, request, kept)) ?? (await ask(limiter, request));
    if (answer instanceof Permit) return answer;
    const { wait, place } = answer;
    if (wait <= hold) {
      // The job waits in the worker, which needs no other one until then.
      if (wait > BRIEF) await this.#suspend(wait);
      if (place === null) await sleep(Math.ceil(wait));
      const started = place && (await use(limiter, request, place.toText()));
      if (started instanceof Permit) return started;
      answer = await ask(limiter, request);
      if (answer instanceof Permit) return answer;
    }
    await this.#keep(answer.place, weight);
    this.#until = Date.now() + Math.min(answer.wait, LONGEST);
    return { wait: answer.wait, place: null };
  }

  /** Returns the queue's first place, if this job can use it; or how long it takes until it is ready; `null` if there is none. */
  async #take(limiter: Limiter, { key, weight, hold, grace }: Request, kept: Record<string, string>): Promise<Later | null> {
    const own = weightText(weight);
    const places = Object.entries(kept).map(([text, taken]) => ({ taken, ...parse(limiter, text) }));
    for (const { text, taken, place, readyAt } of places.sort((a, b) => a.readyAt - b.readyAt)) {
      const wait = readyAt - Date.now();
      if (wait > hold && !(await isVoid(limiter, key, taken, wait))) return { wait, place: null };
      if ((await this.#redis.hdel(this.#key, text)) === 0) continue; // Another worker took it.
      if (taken === own && wait <= hold && wait + grace > 0) return { wait, place };
      await place?.cancelAsync();
    }
    return null;
  }

  async #keep(place: Permit | null, weight: Weight): Promise<void> {
    if (place === null) return;
    try {
      await this.#redis.keepField(this.#key, place.toText(), weightText(weight), place.wait + LATEST);
    } catch (error) {
      await place.cancelAsync();
      throw error;
    }
  }

  /** Holds the queue, and returns when the job with this number may go back to it. */
  async hold(number: number): Promise<void> {
    const back = new Promise<void>((go) => this.#returning.push({ number, go }));
    if (this.#returning.length === 1) {
      try {
        await this.#suspend(this.#until - Date.now());
        // Those that were handed out before the hold are here by now, because the connection answers in order.
        await new Promise(setImmediate);
        await this.#last;
      } finally {
        // BullMQ puts a job in front of the others, so the last one goes back first.
        for (const { go } of this.#returning.splice(0).sort((a, b) => b.number - a.number)) go();
      }
    }
    await back;
  }

  /**
   * Gives the worker a limiter, without which BullMQ heeds no hold. A worker fetches jobs for all of its slots before it starts the
   * first one; the limiter bounds that by what can start.
   */
  #setLimiter(limit: number, window: number): void {
    const { opts } = this.#worker;
    if (opts.limiter !== this.#limiter) return; // The program's own.
    const max = Math.max(1, Math.min(limit, Number.MAX_SAFE_INTEGER));
    opts.limiter = this.#limiter = { max, duration: Math.max(1, Math.min(window, BURST)) };
  }

  /** Lets BullMQ hand out no jobs for so many ms. */
  async #suspend(wait: number): Promise<void> {
    await this.#worker.rateLimit!(Math.max(Math.ceil(wait), 1));
  }
}

/** Parses a kept place; one of an earlier limit of that name is ready at no time. */
function parse(limiter: Limiter, text: string): { text: string; place: Permit | null; readyAt: number } {
  try {
    const place = limiter.place(text);
    return { text, place, readyAt: place.readyAt?.getTime() ?? -Infinity };
  } catch {
    return { text, place: null, readyAt: -Infinity };
  }
}

/** Returns whether a place that is ready in so many ms is void, because of another policy or a `clear`: the units are free far sooner. */
async function isVoid(limiter: Limiter, key: Key, taken: string, wait: number): Promise<boolean> {
  try {
    const { retryAfter } = await limiter.peekAsync({ key, weight: JSON.parse(taken) as Weight });
    return 2 * retryAfter < wait;
  } catch (error) {
    if (error instanceof WeightExceedsCapacity) return true;
    throw error;
  }
}
