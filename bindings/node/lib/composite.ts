// Several limits at once, and none.

import { brand } from "./brand.js";
import { type CustomLimiter, type SixMethods, limiterOf, passing } from "./custom.js";
import { invalid, make } from "./errors.js";
import { Limiter } from "./limiter.js";
import { native } from "./native.js";
import type { Store } from "./store.js";
import type { Bell } from "./waiting.js";

/** What a `CompositeLimiter` takes: a limiter of this package, or an object of your own. */
export type Child = Limiter | CustomLimiter | SixMethods;

/** Admits what every child admits. A child that denies keeps the others from being charged. */
export class CompositeLimiter extends Limiter {
  readonly #children: Limiter[] = [];

  /** Without any limiters it admits everything. */
  constructor(limiters: readonly Child[] = []) {
    if (!Array.isArray(limiters)) throw invalid("limiters", limiters, "an array of limiters");
    const children = limiters.map(limiterOf);
    super(native.compositeLimiter(), { holds: true, wrap: passing });
    for (const child of children) this.addLimiter(child);
  }

  /** Adds a limiter. Permits that are out complete against the limiters they were taken from. */
  addLimiter(limiter: Child): void {
    const child = limiterOf(limiter);
    make(() => native.addLimiter(this._native, child._native));
    this.#children.push(child);
  }

  /** @internal */
  override _stores(): readonly Store[] {
    return [...new Set(this.#children.flatMap((child) => child._stores()))];
  }

  /** @internal */
  override _isShared(): boolean {
    return this.#children.length > 0 && this.#children.every((child) => child._isShared());
  }

  /** @internal */
  override _isNative(): boolean {
    return this.#children.every((child) => child._isNative());
  }

  /** @internal */
  override _bells(): readonly Bell[] {
    return this.#children.flatMap((child) => child._bells());
  }

  /** @internal */
  override _opening(): Promise<unknown> | null {
    const opening = this.#children.map((child) => child._opening()).filter((promise) => promise !== null);
    return opening.length === 0 ? null : Promise.all(opening);
  }
}

/** No limit: what to use where none is given. */
export class NullLimiter extends Limiter {
  constructor() {
    super(native.nullLimiter(), { holds: false });
  }
}

brand({ CompositeLimiter, NullLimiter }, native);
