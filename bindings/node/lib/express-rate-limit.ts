// A store of express-rate-limit's, whose limit holds in any rolling window and across processes.

import type { ClientRateLimitInfo, Options, Store as HitStore } from "express-rate-limit";
import { invalid } from "./errors.js";
import { Hits } from "./hits.js";
import { options as checkOptions, unicode, whole } from "./input.js";
import type { Permit } from "./permit.js";
import { Store } from "./store.js";

/** How a `LimitStore` counts. */
export interface LimitStoreOptions {
  /** The name of the limit in the store: "express-rate-limit" if not given. Each limiter needs one of its own. */
  name?: string | undefined;
  /** The largest number that `limit` gives, where that is a function: so many hits are counted. */
  max?: number | undefined;
}

/** A hit that may still be taken back. */
interface Held {
  /** `null` for one that was refused, and so never counted: its answer is a failure, which the package takes back, too. */
  readonly permit: Permit | null;
  /** By `performance.now()`: when it no longer counts. */
  readonly until: number;
}

/**
 * What `rateLimit({ store: new LimitStore(store), … })` counts in. It takes `limit` and `windowMs` from the options beside it. A hit
 * that is refused is not counted: with the package's own store a client that goes on asking is shut out until the window
 * ends, here until there is room.
 */
export class LimitStore implements HitStore {
  /** Others see what is counted here. */
  readonly localKeys = false;
  /** Not written before keys, but what tells this limit's apart for the package's check that nothing is counted twice. */
  readonly prefix: string;
  readonly #store: Store;
  readonly #name: string;
  readonly #max: number | undefined;
  #hits: Hits | undefined;
  /** Why there are none: the package only logs what `init` throws. */
  #failure: unknown = invalid("store", "used before init()", "that rateLimit() is given it", true);
  /** By their keys, those of this window and of the one before; `null` where nothing is ever taken back. */
  #held: Map<string, Held[]> | null = new Map();
  #heldBefore = new Map<string, Held[]>();
  #turned = -Infinity;
  /** Are hits taken back that were refused? */
  #takesRefused = false;

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
      if (typeof max !== "number") throw invalid("max", max, "the largest number that limit gives, as that is a function");
      this.#hits = new Hits(this.#store, this.#name, max, windowMs);
    } catch (error) {
      this.#failure = error;
      throw error;
    }
    if (!skipFailedRequests && !skipSuccessfulRequests) this.#held = null;
    this.#takesRefused = skipFailedRequests;
  }

  #counted(): Hits {
    if (this.#hits === undefined) throw this.#failure;
    return this.#hits;
  }

  /** Counts a hit, if there is room: otherwise it tells of one more than the limit. */
  async increment(key: string): Promise<ClientRateLimitInfo> {
    const hits = this.#counted();
    const [at, now] = [performance.now(), Date.now()];
    const { hits: totalHits, after, permit } = await hits.add(key);
    this.#hold(key, permit, at);
    if (permit === null) return { totalHits, resetTime: new Date(Math.ceil(Date.now() + after)) };
    // The package takes no hit back after that time, when it no longer counts: so it must not be late.
    return { totalHits, resetTime: new Date(now + Math.floor(after)) };
  }

  #hold(key: string, permit: Permit | null, at: number): void {
    if (this.#held === null || (permit === null && !this.#takesRefused)) return;
    const { window } = this.#counted();
    if (at - this.#turned >= window) {
      this.#heldBefore = this.#held;
      this.#held = new Map();
      this.#turned = at;
    }
    const held = this.#held.get(key);
    const hit = { permit, until: at + window };
    if (held === undefined) this.#held.set(key, [hit]);
    else held.push(hit);
  }

  /**
   * Takes a hit back. The package does not say which. So it is one that was refused, if there are any; else the oldest that still
   * counts: what is left counts at least as long as what should be.
   */
  async decrement(key: string): Promise<void> {
    this.#counted();
    const now = performance.now();
    const all = [this.#heldBefore.get(key), this.#held?.get(key)].filter((held) => held !== undefined);
    for (const isWanted of [({ permit }: Held) => permit === null, () => true]) {
      for (const held of all) {
        const found = held.findIndex((hit) => hit.until > now && isWanted(hit));
        if (found >= 0) return held.splice(found, 1)[0]!.permit?.cancelAsync();
      }
    }
  }

  /** How it stands with a key; nothing if nobody has hit it of late. */
  async get(key: string): Promise<ClientRateLimitInfo | undefined> {
    const { hits, after } = await this.#counted().look(key);
    const isKnown = hits > 0 || this.#held?.has(key) || this.#heldBefore.has(key);
    return isKnown ? { totalHits: hits, resetTime: new Date(Math.ceil(Date.now() + after)) } : undefined;
  }

  /** Forgets the hits of a key, in all processes. */
  async resetKey(key: string): Promise<void> {
    this.#held?.delete(key);
    this.#heldBefore.delete(key);
    await this.#counted().clear(key);
  }

  /** Forgets all hits, in all processes. */
  async resetAll(): Promise<void> {
    this.#held?.clear();
    this.#heldBefore.clear();
    await this.#counted().clear();
  }
}
