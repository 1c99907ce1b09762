// A store for @fastify/rate-limit whose limit holds in any rolling window and across processes.

import { invalid } from "./errors.js";
import { Hits } from "./hits.js";
import { milliseconds, unicode } from "./input.js";
import { Store } from "./store.js";

/** The callback of the package: takes the number of hits, and the time in ms until they no longer count. */
export type IncrCallback = (error: Error | null, result?: { current: number; ttl: number }) => void;

/** A store, as the package uses it. */
export interface HitStore {
  /** Counts a hit, unless the limit is full: then it reports one more than `max`. */
  incr(key: string | number, callback: IncrCallback, timeWindow: number, max: number): void;
  /** Reports the hits of a key. */
  read(key: string | number, callback: IncrCallback, timeWindow: number, max: number): void;
  /** Returns the store of a route with options of its own. */
  child(options: object): HitStore;
}

/** The package's options that matter here: of the plugin, and of a route. */
interface Params {
  readonly max?: unknown;
  readonly timeWindow?: unknown;
  readonly ban?: unknown;
  readonly continueExceeding?: unknown;
  readonly exponentialBackoff?: unknown;
  readonly routeInfo?: { readonly method?: string | readonly string[]; readonly url?: string };
}

/**
 * Returns a store for `app.register(rateLimit, { store: limitStore(store), … })`. It takes `max` and `timeWindow` from the other
 * options. A route's options make a limit of its own, "NAME/METHOD URL". If one of them is a function, each pair of numbers makes a
 * plan with budgets of its own.
 *
 * A refused hit is not counted. So `ban`, `continueExceeding` and `exponentialBackoff`, which count refused hits, are errors.
 */
export function limitStore(store: Store, name = "fastify-rate-limit"): new (options: object) => HitStore {
  if (!(store instanceof Store)) throw invalid("store", store, "a Store of this package");
  if (unicode("name", name) === "") throw invalid("name", name, "a name");

  class LimitStore implements HitStore {
    /** Whether its numbers are the same for all requests. */
    readonly #isFixed: boolean;
    readonly #name: string;
    readonly #limits = new Map<string, Hits>();
    /** The number of limiters that belong to no route. */
    #children = 0;

    constructor(params: Params, of = name) {
      const { max, timeWindow, ban, continueExceeding, exponentialBackoff } = params;
      this.#isFixed = typeof max === "number" && typeof timeWindow === "number";
      this.#name = of;
      for (const [option, value] of Object.entries({ continueExceeding, exponentialBackoff })) {
        if (value) throw invalid(option, value, "false: this store does not count refused hits");
      }
      if (ban !== undefined && ban !== -1) throw invalid("ban", ban, "none: this store does not count refused hits");
      if (this.#isFixed) this.#limit(max as number, timeWindow as number);
    }

    #limit(max: number, timeWindow: number): Hits {
      const limit = this.#isFixed ? this.#name : `${this.#name}/${max} per ${timeWindow} ms`;
      let hits = this.#limits.get(limit);
      if (hits === undefined) {
        if (milliseconds("timeWindow", timeWindow) === 0) throw invalid("timeWindow", timeWindow, "more than 0 ms");
        hits = new Hits(store, limit, max, timeWindow);
        this.#limits.set(limit, hits);
      }
      return hits;
    }

    #ask(how: "add" | "peek", key: string | number, callback: IncrCallback, timeWindow: number, max: number): void {
      const answer = async () => {
        const { hits, after } = await this.#limit(max, timeWindow)[how](String(key));
        return { current: hits, ttl: Math.ceil(after) };
      };
      answer().then((result) => callback(null, result), callback);
    }

    incr(key: string | number, callback: IncrCallback, timeWindow: number, max: number): void {
      this.#ask("add", key, callback, timeWindow, max);
    }

    read(key: string | number, callback: IncrCallback, timeWindow: number, max: number): void {
      this.#ask("peek", key, callback, timeWindow, max);
    }

    child(params: Params): HitStore {
      const { method, url } = params.routeInfo ?? {};
      // All processes of an app make their limiters without a route in the same order.
      const own = url === undefined ? `#${++this.#children}` : `${method} ${url}`;
      return new LimitStore(params, `${this.#name}/${own}`);
    }
  }
  return LimitStore;
}
