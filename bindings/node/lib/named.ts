// Limits by name: from a text, from a few numbers, or as declared.

import { brand } from "./brand.js";
import { invalid, make } from "./errors.js";
import { type Duration, milliseconds, options as checkOptions, unicode, whole } from "./input.js";
import { Limiter } from "./limiter.js";
import { type NativeLimiter, native } from "./native.js";
import type { Store } from "./store.js";

/** A limiter of any kind in a store: made here, or found under its name at the first use. */
export class NamedLimiter extends Limiter {
  /** `policy` is its text, if it was made from one. */
  constructor(
    made: NativeLimiter | string,
    store: Store,
    readonly policy?: string,
  ) {
    super(made, { store });
  }
}

/** The options of a `FlowControl`: a rate, a parallelism, or both. */
export interface FlowControlOptions {
  /** The name under which the limit is shared. */
  key: string;
  /** The most starts in any rolling period. */
  rate?: number | undefined;
  /** The period. Default: 1 s. */
  period?: Duration | undefined;
  /** The most jobs at the same time. */
  parallelism?: number | undefined;
}

/** A limit of a few numbers: `store.limiter(new FlowControl({ key: "openai", rate: 100, period: "1m", parallelism: 5 }))`. */
export class FlowControl {
  /** The name under which the limit is shared. */
  readonly key: string;
  /** The most starts in any rolling period. */
  readonly rate: number | undefined;
  /** The period, in ms. */
  readonly period: number;
  /** The most jobs at the same time. */
  readonly parallelism: number | undefined;

  constructor(options: FlowControlOptions) {
    checkOptions(options, ["key", "rate", "period", "parallelism"]);
    const { key, rate, period, parallelism } = options;
    this.key = unicode("key", key);
    this.rate = rate === undefined ? undefined : whole("rate", rate);
    this.period = milliseconds("period", period ?? 1_000);
    this.parallelism = parallelism === undefined ? undefined : whole("parallelism", parallelism);
    if (rate === undefined && parallelism === undefined) {
      throw invalid("options", "an object with neither", "a rate, a parallelism, or both", true);
    }
    if (rate === undefined && period !== undefined) throw invalid("period", period, "none without a rate");
  }

  /** @internal */
  _in(store: Store): Limiter {
    const { key, rate, period, parallelism } = this;
    const flow = rate === undefined ? undefined : ([rate, period] as const);
    return new NamedLimiter(
      make(() => native.flowControl(store._native, key, flow, parallelism)),
      store,
    );
  }
}

brand({ FlowControl }, native);

/** Returns the limiter of a policy's text; without one, the limiter that is declared. */
export function byName(store: Store, name: string, policy: string | undefined): Limiter {
  unicode("name", name);
  if (policy === undefined) {
    const size = Buffer.byteLength(name);
    if (size < 1 || size > 1_024) throw invalid("name", `${size} bytes long`, "1 to 1024 bytes", true);
    return new NamedLimiter(name, store);
  }
  unicode("policy", policy);
  return new NamedLimiter(
    make(() => native.limiterOfText(store._native, name, policy)),
    store,
    policy,
  );
}
