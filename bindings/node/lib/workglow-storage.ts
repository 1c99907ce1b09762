// Where Workglow's own `RateLimiter` counts, in a store of this package.

import type { Decision } from "./calls.js";
import { Denied } from "./denied.js";
import { UnknownLimit, invalid } from "./errors.js";
import { RateLimiter } from "./family.js";
import { keyOf, options as checkOptions, real, unicode, whole } from "./input.js";
import { Permit } from "./permit.js";
import { Store } from "./store.js";

/** How the queues of a storage count. */
export interface WorkglowRateLimiterStorageOptions {
  /** One policy, a separate budget per key, such as a tenant: none if not given. */
  key?: string | undefined;
}

/** What is known of one queue. */
interface Queue {
  /** What was asked for: the most starts, by the length of their window in ms. Nothing, if others declare the limit. */
  readonly windows: ReadonlyMap<number, number>;
  readonly limiter: RateLimiter;
  readonly denied: Denied;
}

/** What a limit allows that nobody has declared: all that its queue records. Its limiter decides. */
const ALL = 1_000_000_000;
/** Over which time such a queue counts until its limiter has asked, in ms. */
const UNASKED = 60_000;
/** No window is longer, in ms. */
const LONGEST = 366 * 864e5;

/**
 * Workglow's `IRateLimiterStorage`, in all of its generations. Each queue is a rate limit of the store under the queue's
 * name: the one that the first reservation asks for, or that anybody else has declared, in whatever language.
 *
 * A reservation is one act, so Workglow's `RateLimiter` never exceeds the limit where it reserves. Its older pair, which
 * counts first and records afterwards, may: others get in between.
 */
export class WorkglowRateLimiterStorage {
  readonly #store: Store;
  readonly #key: string;
  readonly #queues = new Map<string, Queue>();
  /** Pauses of queues whose limit nobody has declared yet. */
  readonly #early = new Map<string, Date>();
  /** Over which time queues are counted, in ms, and those whose limit nobody declares, which therefore count all. */
  readonly #asked = new Map<string, number>();
  readonly #countsAll = new Set<string>();
  readonly #given = new WeakSet<Permit>();

  constructor(store: Store, options: WorkglowRateLimiterStorageOptions = {}) {
    if (!(store instanceof Store)) throw invalid("store", store, "a Store");
    checkOptions(options, ["key"]);
    this.#store = store;
    this.#key = unicode("key", keyOf(options.key));
  }

  /** "cluster": the limits hold for all processes of this machine together. "process": for this object. */
  get scope(): "process" | "cluster" {
    return this.#store._isShared ? "cluster" : "process";
  }

  /** Opens the store now instead of at the first reservation. */
  migrate(): Promise<void> {
    return this.#store.open();
  }

  /** The same, by its older name. */
  setupDatabase(): Promise<void> {
    return this.#store.open();
  }

  /** None: the store keeps its own schema. */
  getMigrations(): readonly never[] {
    return [];
  }

  /**
   * Decides and records in one act: a token, which `releaseExecution` takes back, or `null`. If one queue is asked for
   * several limits, all of them hold: of two for the same window, the smaller.
   */
  async tryReserveExecution(queueName: string, maxExecutions: number, windowMs: number): Promise<Permit | null> {
    const { limiter, denied } = this.#declared(queueName, maxExecutions, windowMs);
    await this.#pauseAtLast(queueName, limiter);
    const permit = await denied.orAsk(this.#key);
    if (permit !== null) this.#given.add(permit);
    return permit;
  }

  /** The job of this token never ran: its place is free again. */
  async releaseExecution(queueName: string, token: unknown): Promise<void> {
    unicode("queueName", queueName);
    if (!(token instanceof Permit && this.#given.has(token))) {
      throw invalid("token", token, "what tryReserveExecution gave");
    }
    await token.cancelAsync();
    this.#queues.get(queueName)?.denied.end();
  }

  /**
   * A job has started: recorded even when the limit is full. A limit that nobody has declared is one without an end: it counts
   * over the time that was asked for.
   */
  async recordExecution(queueName: string): Promise<void> {
    try {
      await this.#limiter(queueName).recordJobStart(this.#key);
    } catch (error) {
      ifUnknown(error);
      const limiter = this.#countAll(queueName);
      await this.#pauseAtLast(queueName, limiter);
      await limiter.recordJobStart(this.#key);
    }
  }

  /**
   * How much of the limit is used in its own window, whatever the start that is asked for; all of it during a pause. Where
   * nobody has declared a limit, this declares over which time it counts.
   */
  async getExecutionCount(queueName: string, windowStartTime: string): Promise<number> {
    this.#asks(queueName, Date.now() - instant("windowStartTime", windowStartTime).getTime());
    const now = await this.#look(queueName);
    return now === undefined ? 0 : now.limit - now.remaining;
  }

  /**
   * When the start was that stands in the way of the next one where `offset + 1` are allowed: counted from the newest.
   * (Workglow's own storages count from the oldest, and so their limiter returns when all of the window is over.)
   */
  async getOldestExecutionAtOffset(queueName: string, offset: number): Promise<string | undefined> {
    whole("offset", offset);
    const now = await this.#look(queueName);
    const windows = this.#queues.get(queueName)?.windows;
    const window = windows?.size ? Math.max(...windows.keys()) : this.#asked.get(queueName);
    if (now === undefined || window === undefined || offset >= now.limit - now.remaining) return undefined;
    // So much has room when that one and all before it have left the window.
    const gone = await this.#look(queueName, now.limit - offset);
    return gone && inMs(gone.retryAfter - window);
  }

  /** When the next start would be admitted, if not now: the pause, or the limit's own time if that is later. */
  async getNextAvailableTime(queueName: string): Promise<string | undefined> {
    const now = await this.#look(queueName);
    if (now === undefined) return this.#early.get(queueName)?.toISOString();
    return now.retryAfter > 0 ? inMs(now.retryAfter) : undefined;
  }

  /** Nobody starts before that instant. Pauses only move later, except by `clear`. */
  async setNextAvailableTime(queueName: string, nextAvailableAt: string): Promise<void> {
    const pause = instant("nextAvailableAt", nextAvailableAt);
    try {
      await this.#limiter(queueName).setNextAvailableTime(pause, this.#key);
    } catch (error) {
      if (!(error instanceof UnknownLimit)) throw error;
      const early = this.#early.get(queueName);
      if (early === undefined || early < pause) this.#early.set(queueName, pause);
    }
  }

  /** Back to the initial state, pause included. */
  async clear(queueName: string): Promise<void> {
    this.#early.delete(queueName);
    await this.#limiter(queueName).clear(this.#key).catch(ifUnknown);
    this.#queues.get(queueName)?.denied.end();
  }

  /** The queue's limit, whoever declares it. */
  #limiter(queueName: string): RateLimiter {
    unicode("queueName", queueName);
    const known = this.#queues.get(queueName);
    if (known !== undefined) return known.limiter;
    return this.#keep(queueName, new Map(), RateLimiter.attach(this.#store, queueName)).limiter;
  }

  #keep(queueName: string, windows: ReadonlyMap<number, number>, limiter: RateLimiter): Queue {
    const queue = { windows, limiter, denied: new Denied(limiter) };
    this.#queues.set(queueName, queue);
    return queue;
  }

  /** Notes over which time a queue is counted; it is a little longer with each call, and least is closest. */
  #asks(queueName: string, time: number): void {
    const ms = Math.min(time, LONGEST);
    const before = this.#asked.get(queueName);
    if (!(ms > 0) || (before !== undefined && ms >= before && ms < 2 * before)) return;
    this.#asked.set(queueName, ms);
    if (this.#countsAll.has(queueName)) this.#countAll(queueName);
  }

  /** The limit of a queue that nobody has declared, over the time that was asked for. */
  #countAll(queueName: string): RateLimiter {
    this.#countsAll.add(queueName);
    const windowSizeInSeconds = (this.#asked.get(queueName) ?? UNASKED) / 1e3;
    const limiter = new RateLimiter(this.#store, queueName, { maxExecutions: ALL, windowSizeInSeconds });
    return this.#keep(queueName, new Map(), limiter).limiter;
  }

  /** The same, declared so that it keeps what was asked for up to now, and this. */
  #declared(queueName: string, maxExecutions: number, windowMs: number): Queue {
    unicode("queueName", queueName);
    whole("maxExecutions", maxExecutions);
    real("windowMs", windowMs);
    const known = this.#queues.get(queueName);
    const most = known?.windows.get(windowMs) ?? Infinity;
    if (known !== undefined && most <= maxExecutions) return known;
    const windows = new Map(known?.windows).set(windowMs, maxExecutions);
    const limiter = new RateLimiter(this.#store, queueName, {
      windows: [...windows].map(([ms, max]) => ({ maxExecutions: max, windowSizeInSeconds: ms / 1e3 })),
    });
    this.#countsAll.delete(queueName);
    return this.#keep(queueName, windows, limiter);
  }

  /** What such a start would be answered; nothing while nobody has declared the limit. */
  async #look(queueName: string, weight = 1): Promise<Decision | undefined> {
    const limiter = this.#limiter(queueName);
    try {
      await this.#pauseAtLast(queueName, limiter);
      return await limiter.peekAsync({ key: this.#key, weight });
    } catch (error) {
      return ifUnknown(error);
    }
  }

  /** Hands a limit that is declared by now the pause that came before. */
  async #pauseAtLast(queueName: string, limiter: RateLimiter): Promise<void> {
    const pause = this.#early.get(queueName);
    if (pause === undefined) return;
    await limiter.setNextAvailableTime(pause, this.#key);
    this.#early.delete(queueName);
  }
}

function ifUnknown(error: unknown): undefined {
  if (!(error instanceof UnknownLimit)) throw error;
}

function instant(parameter: string, value: unknown): Date {
  const date = new Date(typeof value === "string" ? value : NaN);
  if (Number.isNaN(date.getTime())) throw invalid(parameter, value, 'an instant such as "2030-01-31T12:00:00.000Z"');
  return date;
}

/** The instant in so many ms, rounded up. */
function inMs(after: number): string {
  return new Date(Math.ceil(Date.now() + after)).toISOString();
}
