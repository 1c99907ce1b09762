// A store of @fastify/rate-limit's, whose limit holds in any rolling window and across processes.

import { invalid } from "./errors.js";
import { Hits } from "./hits.js";
import { milliseconds, unicode } from "./input.js";
import { Store } from "./store.js";

/** What the package is told: how many hits there are, and in ms, until when. */
export type Told = (error: Error | null, result?: { current: number; ttl: number }) => void;

/** A store, as the package uses it. */
export interface HitStore {
  /** Counts a hit, if there is room: otherwise it tells of one more than `max`. */
  incr(key: string | number, told: Told, timeWindow: number, max: number): void;
  /** How it stands with a key. */
  read(key: string | number, told: Told, timeWindow: number, max: number): void;
  /** The store of a route with options of its own. */
  child(options: object): HitStore;
}

/** The package's options that matter here: those of the plugin, and of a route. */
interface Params {
  readonly max?: unknown;
  readonly timeWindow?: unknown;
  readonly ban?: unknown;
  readonly continueExceeding?: unknown;
  readonly exponentialBackoff?: unknown;
  readonly routeInfo?: { readonly method?: string | readonly string[]; readonly url?: string };
}

/**
 * What `app.register(rateLimit, { store: limitStore(store), … })` counts in. It takes `max` and `timeWindow` from the options beside
 * it; those of a route are limits of their own, "NAME/METHOD URL". Where one of them is a function, each pair of numbers that
 * it gives is a plan, with budgets of its own.
 *
 * A hit that is refused is not counted. So `ban`, `continueExceeding` and `exponentialBackoff`, which count those, are errors.
 */
export function limitStore(store: Store, name = "fastify-rate-limit"): new (options: object) => HitStore {
  if (!(store instanceof Store)) throw invalid("store", store, "a Store of this package");
  if (unicode("name", name) === "") throw invalid("name", name, "a name");

  class LimitStore implements HitStore {
    /** Are its numbers the same for all requests? */
    readonly #isFixed: boolean;
    readonly #name: string;
    readonly #limits = new Map<string, Hits>();
    /** How many routes without an address of their own have asked. */
    #children = 0;

    constructor(params: Params, of = name) {
      const { max, timeWindow, ban, continueExceeding, exponentialBackoff } = params;
      this.#isFixed = typeof max === "number" && typeof timeWindow === "number";
      this.#name = of;
      for (const [option, value] of Object.entries({ continueExceeding, exponentialBackoff })) {
        if (value) throw invalid(option, value, "false: with this store a hit that is refused changes nothing");
      }
      if (ban !== undefined && ban !== -1) throw invalid("ban", ban, "none: this store does not count hits that are refused");
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

    #ask(how: "add" | "look", key: string | number, told: Told, timeWindow: number, max: number): void {
      const answer = async () => {
        const { hits, after } = await this.#limit(max, timeWindow)[how](String(key));
        return { current: hits, ttl: Math.ceil(after) };
      };
      answer().then((result) => told(null, result), told);
    }

    incr(key: string | number, told: Told, timeWindow: number, max: number): void {
      this.#ask("add", key, told, timeWindow, max);
    }

    read(key: string | number, told: Told, timeWindow: number, max: number): void {
      this.#ask("look", key, told, timeWindow, max);
    }

    child(params: Params): HitStore {
      const { method, url } = params.routeInfo ?? {};
      // The order in which an app asks for limiters that are no route's is the same in all its processes.
      const own = url === undefined ? `#${++this.#children}` : `${method} ${url}`;
      return new LimitStore(params, `${this.#name}/${own}`);
    }
  }
  return LimitStore;
}
