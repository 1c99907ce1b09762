// The storage of Workglow's own `RateLimiter` in a store of this package.

import type { Peek } from "./calls.js";
import { DeniedWorkers } from "./denied.js";
import { UnknownLimit, invalid } from "./errors.js";
import { RateLimiter } from "./family.js";
import { keyOf, options as checkOptions, real, unicode, whole } from "./input.js";
import type { Limiter } from "./limiter.js";
import { Permit } from "./permit.js";
import { Store } from "./store.js";

/** The options of a `WorkglowRateLimiterStorage`. */
export interface WorkglowRateLimiterStorageOptions {
  /** The key, such as a tenant. Each key has a separate budget under the same policy. Default: the empty key. */
  key?: string | undefined;
}

/** The limit of one queue. */
interface Queue {
  /** The requested limits: the most starts, by their window in ms. Empty if the limit was declared elsewhere. */
  readonly windows: ReadonlyMap<number, number>;
  readonly limiter: Limiter;
  readonly denied: DeniedWorkers;
}

/** The limit of a queue without a declared limit: it admits all that the queue records, as Workglow's limiter decides. */
const ALL = 1_000_000_000;
/** The window of such a queue in ms, until its limiter asks for one. */
const UNASKED = 60_000;
/** The longest window in ms. */
const LONGEST = 366 * 864e5;

/**
 * Workglow's `IRateLimiterStorage`, in all of its generations. Each queue is a rate limit of the store under the queue's name: the
 * limit of the first reservation, or one that was declared elsewhere, in any language.
 *
 * A reservation is one step, so Workglow's `RateLimiter` never exceeds the limit where it reserves. Its older pair of calls, which
 * counts first and records afterwards, may exceed it: other starts happen in between.
 */
export class WorkglowRateLimiterStorage {
  readonly #store: Store;
  readonly #key: string;
  readonly #queues = new Map<string, Queue>();
  /** The pauses of queues without a declared limit. */
  readonly #early = new Map<string, Date>();
  /** The windows that queues were asked for, in ms; and the queues without a declared limit, which count all. */
  readonly #asked = new Map<string, number>();
  readonly #countsAll = new Set<string>();
  readonly #given = new WeakSet<Permit>();

  constructor(store: Store, options: WorkglowRateLimiterStorageOptions = {}) {
    if (!(store instanceof Store)) throw invalid("store", store, "a Store");
    checkOptions(options, ["key"]);
    this.#store = store;
    this.#key = unicode("key", keyOf(options.key));
  }

  /** "cluster": all processes that use the store share the limits. "process": this object alone has them. */
  get scope(): "process" | "cluster" {
    return this.#store._isShared ? "cluster" : "process";
  }

  /** Opens the store, now instead of at the first reservation. */
  migrate(): Promise<void> {
    return this.#store.open();
  }

  /** Does the same as `migrate()`, under its older name. */
  setupDatabase(): Promise<void> {
    return this.#store.open();
  }

  /** Returns no migrations: the store maintains its own schema. */
  getMigrations(): readonly never[] {
    return [];
  }

  /**
   * Decides and records in one step: returns a token for `releaseExecution`, or `null` if denied. If a queue is asked for several
   * limits, all of them hold; of two for the same window, the smaller holds.
   */
  async tryReserveExecution(queueName: string, maxExecutions: number, windowMs: number): Promise<Permit | null> {
    const { limiter, denied } = this.#declared(queueName, maxExecutions, windowMs);
    await this.#pauseAtLast(queueName, limiter);
    const permit = await denied.tryAcquire(this.#key);
    if (permit !== null) this.#given.add(permit);
    return permit;
  }

  /** Undoes a reservation: the job of this token never ran, and its unit is free again. */
  async releaseExecution(queueName: string, token: unknown): Promise<void> {
    unicode("queueName", queueName);
    if (!(token instanceof Permit && this.#given.has(token))) {
      throw invalid("token", token, "a token of tryReserveExecution");
    }
    await token.cancelAsync();
    this.#queues.get(queueName)?.denied.end();
  }

  /**
   * Records a start even if the limit is full. A queue without a declared limit gets one without a maximum, which counts over the
   * requested window.
   */
  async recordExecution(queueName: string): Promise<void> {
    try {
      await this.#limiter(queueName).recordJobStart({ key: this.#key });
    } catch (error) {
      ifUnknown(error);
      const limiter = this.#countAll(queueName);
      await this.#pauseAtLast(queueName, limiter);
      await limiter.recordJobStart({ key: this.#key });
    }
  }

  /**
   * Returns the used units of the limit in its own window, whatever start is requested; all units during a pause. For a queue without
   * a declared limit, the start sets the window.
   */
  async getExecutionCount(queueName: string, windowStartTime: string): Promise<number> {
    this.#asks(queueName, Date.now() - instant("windowStartTime", windowStartTime).getTime());
    const now = await this.#peek(queueName);
    return now === undefined ? 0 : now.limit - now.remaining;
  }

  /**
   * Returns the time of the start that blocks the next one where `offset + 1` starts are allowed, counted from the newest. (Workglow's
   * own storages count from the oldest, so their limiter waits until the whole window has passed.)
   */
  async getOldestExecutionAtOffset(queueName: string, offset: number): Promise<string | undefined> {
    whole("offset", offset);
    const now = await this.#peek(queueName);
    const windows = this.#queues.get(queueName)?.windows;
    const window = windows?.size ? Math.max(...windows.keys()) : this.#asked.get(queueName);
    if (now === undefined || window === undefined || offset >= now.limit - now.remaining) return undefined;
    // This weight is admitted when that start and all before it have left the window.
    const gone = await this.#peek(queueName, now.limit - offset);
    return gone && inMs(gone.retryAfter - window);
  }

  /** Returns when the next start would be admitted, if not now: after the pause, or by the limit if that is later. */
  async getNextAvailableTime(queueName: string): Promise<string | undefined> {
    const now = await this.#peek(queueName);
    if (now === undefined) return this.#early.get(queueName)?.toISOString();
    return now.retryAfter > 0 ? inMs(now.retryAfter) : undefined;
  }

  /** Sets a gate: no start before this instant. Gates only move later, except by `clear`. */
  async setNextAvailableTime(queueName: string, nextAvailableAt: string): Promise<void> {
    const pause = instant("nextAvailableAt", nextAvailableAt);
    try {
      await this.#limiter(queueName).setNextAvailableTime(pause, { key: this.#key });
    } catch (error) {
      if (!(error instanceof UnknownLimit)) throw error;
      const early = this.#early.get(queueName);
      if (early === undefined || early < pause) this.#early.set(queueName, pause);
    }
  }

  /** Resets a queue to its initial state, gate included. */
  async clear(queueName: string): Promise<void> {
    this.#early.delete(queueName);
    await this.#limiter(queueName).clear({ key: this.#key }).catch(ifUnknown);
    this.#queues.get(queueName)?.denied.end();
  }

  /** Returns the queue's limit, wherever it is declared. */
  #limiter(queueName: string): Limiter {
    unicode("queueName", queueName);
    const known = this.#queues.get(queueName);
    if (known !== undefined) return known.limiter;
    return this.#keep(queueName, new Map(), this.#store.limiter(queueName)).limiter;
  }

  #keep(queueName: string, windows: ReadonlyMap<number, number>, limiter: Limiter): Queue {
    const queue = { windows, limiter, denied: new DeniedWorkers(limiter) };
    this.#queues.set(queueName, queue);
    return queue;
  }

  /** Notes the window that a queue is asked for. It grows a little with each call, so the shortest is the most exact. */
  #asks(queueName: string, time: number): void {
    const ms = Math.min(time, LONGEST);
    const before = this.#asked.get(queueName);
    if (!(ms > 0) || (before !== undefined && ms >= before && ms < 2 * before)) return;
    this.#asked.set(queueName, ms);
    if (this.#countsAll.has(queueName)) this.#countAll(queueName);
  }

  /** Makes the limit of a queue without a declared limit, over the requested window. */
  #countAll(queueName: string): RateLimiter {
    this.#countsAll.add(queueName);
    const windowSizeInSeconds = (this.#asked.get(queueName) ?? UNASKED) / 1e3;
    const limiter = new RateLimiter(this.#store, queueName, { maxExecutions: ALL, windowSizeInSeconds });
    return this.#keep(queueName, new Map(), limiter).limiter;
  }

  /** Returns the queue with a limit that includes this request and all earlier ones. */
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

  /** Returns the decision about a start; nothing while no limit is declared. */
  async #peek(queueName: string, weight = 1): Promise<Peek | undefined> {
    const limiter = this.#limiter(queueName);
    try {
      await this.#pauseAtLast(queueName, limiter);
      return await limiter.peekAsync({ key: this.#key, weight });
    } catch (error) {
      return ifUnknown(error);
    }
  }

  /** Applies a pause that was set before the limit was declared. */
  async #pauseAtLast(queueName: string, limiter: Limiter): Promise<void> {
    const pause = this.#early.get(queueName);
    if (pause === undefined) return;
    await limiter.setNextAvailableTime(pause, { key: this.#key });
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

/** Returns the instant in this many ms, rounded up. */
function inMs(after: number): string {
  return new Date(Math.ceil(Date.now() + after)).toISOString();
}
