// A store for express-rate-limit whose limit holds in any rolling window and across processes.

import type { ClientRateLimitInfo, Options, Store as HitStore } from "express-rate-limit";
import { invalid } from "./errors.js";
import { Hits } from "./hits.js";
import { options as checkOptions, unicode, whole } from "./input.js";
import type { Permit } from "./permit.js";
import { Store } from "./store.js";

/** The options of a `LimitStore`. */
export interface LimitStoreOptions {
  /** The name of the limit in the store. Default: "express-rate-limit". Each limiter needs a name of its own. */
  name?: string | undefined;
  /** The most hits to count: the largest result of `limit`, if `limit` is a function. */
  max?: number | undefined;
}

/** A hit that `decrement` may undo. */
interface RevocableHit {
  /** `null` for a refused hit, which was never counted: its response is a failure, for which the package calls `decrement`, too. */
  readonly permit: Permit | null;
  /** By `performance.now()`: when it no longer counts. */
  readonly until: number;
}

/**
 * A store for `rateLimit({ store: new LimitStore(store), … })`. It takes `limit` and `windowMs` from the other options. A refused
 * hit is not counted: with the package's own store, a client that keeps retrying is refused until the window ends; with this one,
 * until a hit is free.
 */
export class LimitStore implements HitStore {
  /** False: other processes see the counts. */
  readonly localKeys = false;
  /** Not added to keys. It lets the package check that no request is counted twice by the same limit. */
  readonly prefix: string;
  readonly #store: Store;
  readonly #name: string;
  readonly #max: number | undefined;
  #hits: Hits | undefined;
  /** The error of `init`, which the package only logs. */
  #failure: unknown = invalid("store", "used before init()", "a store that was passed to rateLimit()", true);
  /** The hits of this window and of the last one, by key; `null` if no hit is ever undone. */
  #revocable: Map<string, RevocableHit[]> | null = new Map();
  #revocableBefore = new Map<string, RevocableHit[]>();
  #turned = -Infinity;
  /** Whether refused hits are undone, too. */
  #undoesRefused = false;

  constructor(store: Store, options: LimitStoreOptions = {}) {
    if (!(store instanceof Store)) throw invalid("store", store, "a Store of this package");
    checkOptions(options, ["name", "max"]);
    this.#store = store;
    this.#name = unicode("name", options.name ?? "express-rate-limit");
    if (this.#name === "") throw invalid("name", "", "a name");
    this.#max = options.max === undefined ? undefined : whole("max", options.max);
    this.prefix = `${this.#name}:`;
  }

  /** Takes the limit from the package's options. */
  init(options: Options): void {
    const { limit, windowMs, skipFailedRequests = true, skipSuccessfulRequests = true } = options;
    try {
      const max = typeof limit === "function" ? this.#max : limit;
      if (typeof max !== "number") throw invalid("max", max, "the largest result of limit, which is a function");
      this.#hits = new Hits(this.#store, this.#name, max, windowMs);
    } catch (error) {
      this.#failure = error;
      throw error;
    }
    if (!skipFailedRequests && !skipSuccessfulRequests) this.#revocable = null;
    this.#undoesRefused = skipFailedRequests;
  }

  #counted(): Hits {
    if (this.#hits === undefined) throw this.#failure;
    return this.#hits;
  }

  /** Counts a hit, unless the limit is full: then it returns one more than the limit. */
  async increment(key: string): Promise<ClientRateLimitInfo> {
    const hits = this.#counted();
    const [at, now] = [performance.now(), Date.now()];
    const { hits: totalHits, after, permit } = await hits.add(key);
    this.#remember(key, permit, at);
    if (permit === null) return { totalHits, resetTime: new Date(Math.ceil(Date.now() + after)) };
    // The package undoes no hit after that time, when the hit no longer counts. So it must not be too late.
    return { totalHits, resetTime: new Date(now + Math.floor(after)) };
  }

  #remember(key: string, permit: Permit | null, at: number): void {
    if (this.#revocable === null || (permit === null && !this.#undoesRefused)) return;
    const { window } = this.#counted();
    if (at - this.#turned >= window) {
      this.#revocableBefore = this.#revocable;
      this.#revocable = new Map();
      this.#turned = at;
    }
    const hits = this.#revocable.get(key);
    const hit = { permit, until: at + window };
    if (hits === undefined) this.#revocable.set(key, [hit]);
    else hits.push(hit);
  }

  /**
   * Undoes a hit. The package does not say which, so this undoes a refused hit if there is one, else the oldest hit that still counts.
   * The remaining hits then count at least as long as they should.
   */
  async decrement(key: string): Promise<void> {
    this.#counted();
    const now = performance.now();
    const all = [this.#revocableBefore.get(key), this.#revocable?.get(key)].filter((hits) => hits !== undefined);
    for (const isWanted of [({ permit }: RevocableHit) => permit === null, () => true]) {
      for (const hits of all) {
        const found = hits.findIndex((hit) => hit.until > now && isWanted(hit));
        if (found >= 0) return hits.splice(found, 1)[0]!.permit?.cancelAsync();
      }
    }
  }

  /** Returns the hits of a key; nothing without recent hits. */
  async get(key: string): Promise<ClientRateLimitInfo | undefined> {
    const { hits, after } = await this.#counted().peek(key);
    const isKnown = hits > 0 || this.#revocable?.has(key) || this.#revocableBefore.has(key);
    return isKnown ? { totalHits: hits, resetTime: new Date(Math.ceil(Date.now() + after)) } : undefined;
  }

  /** Forgets the hits of a key, in all processes. */
  async resetKey(key: string): Promise<void> {
    this.#revocable?.delete(key);
    this.#revocableBefore.delete(key);
    await this.#counted().clear(key);
  }

  /** Forgets all hits, in all processes. */
  async resetAll(): Promise<void> {
    this.#revocable?.clear();
    this.#revocableBefore.clear();
    await this.#counted().clear();
  }
}
