// Limiters of several limits, and of none.

import { brand } from "./brand.js";
import { isParts } from "./charges.js";
import { type CustomLimiter, type SixMethods, limiterOf, passing } from "./custom.js";
import { invalid, make } from "./errors.js";
import { unicode } from "./input.js";
import { Limiter } from "./limiter.js";
import { native } from "./native.js";
import type { Store } from "./store.js";
import type { Bell } from "./waiting.js";

/** A child of a `CompositeLimiter`: a limiter of this package, or an object that you write. */
export type Child = Limiter | CustomLimiter | SixMethods;

/** Admits a start if every child admits it. If a child denies, no child is charged. */
export class CompositeLimiter extends Limiter {
  readonly #children: Limiter[] = [];

  /**
   * Makes a limiter of these. Without any, it admits every start. An object names the parts, as in `{ requests, tokens }`, for starts
   * that charge each part for itself. In an array the parts are called as their limits.
   */
  constructor(limiters: readonly Child[] | Readonly<Record<string, Child>> = []) {
    if (!Array.isArray(limiters) && !isParts(limiters)) {
      throw invalid("limiters", limiters, "an array of limiters, or an object with a limiter for each name");
    }
    const named = Array.isArray(limiters) ? limiters.map((child) => [undefined, child] as const) : Object.entries(limiters);
    const children = named.map(([name, child]) => [name, limiterOf(child as Child)] as const);
    super(native.compositeLimiter(), { holds: true, wrap: passing });
    for (const [name, child] of children) this.add(child, name);
  }

  /** Adds a limiter, called as its limit if no name is given. Existing permits end with the limiters that admitted them. */
  add(limiter: Child, name?: string): void {
    const child = limiterOf(limiter);
    const text = name === undefined ? undefined : unicode("name", name);
    make(() => native.addLimiter(this._native, child._native, text));
    this.#children.push(child);
  }

  /** @internal */
  override _part(name: string): Limiter {
    return this.#children[native.partNames(this._native).indexOf(name)]!;
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
  override _notDecided(error: unknown): unknown {
    for (const child of this.#children) child._notDecided(error);
    return error;
  }

  /** @internal */
  override _opening(): Promise<unknown> | null {
    const opening = this.#children.map((child) => child._opening()).filter((promise) => promise !== null);
    if (opening.length === 0) return null;
    const all = Promise.all(opening);
    all.catch(() => {}); // Callers that only look whether it is open do not await it.
    return all;
  }
}

/** Admits every start. Use it where a limiter is needed and there is no limit. */
export class NullLimiter extends Limiter {
  constructor() {
    super(native.nullLimiter(), { holds: false });
  }
}

brand({ CompositeLimiter, NullLimiter }, native);
