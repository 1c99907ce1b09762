// A storage for @nestjs/throttler whose limits hold in any rolling window and across processes.

import { invalid } from "./errors.js";
import { Hits } from "./hits.js";
import { milliseconds, options as checkOptions, unicode } from "./input.js";
import { Store } from "./store.js";

/** The options of `LimitStorage`. */
export interface LimitStorageOptions {
  /** The name under which its limits are shared. Default: "nestjs-throttler". */
  name?: string | undefined;
}

/** The answer to a hit, as the package defines it. Times are in whole seconds. */
export interface HitRecord {
  /** The hits of the last `ttl`; one more than the limit for a refused hit, which is not counted. */
  totalHits: number;
  /** The time until no hit of the key counts; for a refused one, until a retry may succeed. */
  timeToExpire: number;
  /** Whether the hit is refused. */
  isBlocked: boolean;
  /** The time until a retry may succeed; 0 for a counted hit. */
  timeToBlockExpire: number;
}

/**
 * A storage for `ThrottlerModule.forRoot({ throttlers, storage: new LimitStorage(store) })`. Each `limit` and `ttl` of a throttler is a
 * limit of its own, "NAME/THROTTLER/LIMIT per TTL ms".
 *
 * A refused hit is not counted, and a client is refused for as long as its hits of the last `ttl` fill the limit. So a `blockDuration`
 * other than `ttl`, its default, is an error.
 */
export class LimitStorage {
  readonly #store: Store;
  readonly #name: string;
  readonly #limits = new Map<string, Hits>();

  constructor(store: Store, options: LimitStorageOptions = {}) {
    if (!(store instanceof Store)) throw invalid("store", store, "a Store of this package");
    checkOptions(options, ["name"]);
    const { name = "nestjs-throttler" } = options;
    if (unicode("name", name) === "") throw invalid("name", name, "a name");
    this.#store = store;
    this.#name = name;
  }

  /** Counts a hit, unless the limit is full. `ttl` and `blockDuration` are in ms. */
  async increment(key: string, ttl: number, limit: number, blockDuration: number, throttlerName: string): Promise<HitRecord> {
    if (blockDuration !== ttl) {
      throw invalid(
        "blockDuration",
        blockDuration,
        `none, or the ttl, ${ttl}: a client is refused while its hits of the last ttl fill the limit`,
      );
    }
    const count = await this.#limit(throttlerName, limit, ttl).add(key);
    const isBlocked = count.permit === null;
    const time = Math.ceil(count.after / 1e3);
    return { totalHits: count.hits, timeToExpire: time, isBlocked, timeToBlockExpire: isBlocked ? time : 0 };
  }

  #limit(throttler: string, limit: number, ttl: number): Hits {
    const name = `${this.#name}/${throttler}/${limit} per ${ttl} ms`;
    let hits = this.#limits.get(name);
    if (hits === undefined) {
      if (milliseconds("ttl", ttl) === 0) throw invalid("ttl", ttl, "more than 0 ms");
      hits = new Hits(this.#store, name, limit, ttl);
      this.#limits.set(name, hits);
    }
    return hits;
  }
}
