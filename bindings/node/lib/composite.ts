// Limiters of several limits, alternatives, and no limit.

import { brand } from "./brand.js";
import { isParts } from "./charges.js";
import { type CustomLimiter, type SixMethods, limiterOf, passing } from "./custom.js";
import { invalid, make } from "./errors.js";
import { unicode } from "./input.js";
import { Limiter } from "./limiter.js";
import { native } from "./native.js";
import type { Store } from "./store.js";
import type { Bell } from "./waiting.js";

/** A child of a `CompositeLimiter` or `FirstOfLimiter`: a limiter of this package, or an object that you write. */
export type Child = Limiter | CustomLimiter | SixMethods;

/** @internal A child as a limiter, and as the program gave it. */
export interface Found {
  readonly limiter: Limiter;
  readonly given: Child;
}

/** The limiters that a composite or alternatives consist of. */
class Children {
  readonly #all: Limiter[] = [];
  /** The same as the program gave them. */
  readonly #given: Child[] = [];

  add(to: Limiter, child: Limiter, given: Child, name?: string): void {
    make(() => native.addLimiter(to._native, child._native, name));
    this.#all.push(child);
    this.#given.push(given);
  }

  at(index: number): Limiter {
    return this.#all[index]!;
  }

  stores(): readonly Store[] {
    return [...new Set(this.#all.flatMap((child) => child._stores()))];
  }

  areShared(): boolean {
    return this.#all.length > 0 && this.#all.every((child) => child._isShared());
  }

  areNative(): boolean {
    return this.#all.every((child) => child._isNative());
  }

  bells(): readonly Bell[] {
    return this.#all.flatMap((child) => child._bells());
  }

  notDecided(error: unknown): unknown {
    for (const child of this.#all) child._notDecided(error);
    return error;
  }

  opening(): Promise<unknown> | null {
    const opening = this.#all.map((child) => child._opening()).filter((promise) => promise !== null);
    if (opening.length === 0) return null;
    const all = Promise.all(opening);
    all.catch(() => {}); // Callers that only look whether it is open do not await it.
    return all;
  }

  find(number: number): Found | null {
    for (const [i, limiter] of this.#all.entries()) {
      const found = limiter._number === number ? { limiter, given: this.#given[i]! } : limiter._find(number);
      if (found !== null) return found;
    }
    return null;
  }
}

const nameOf = (name: string | undefined): string | undefined => (name === undefined ? undefined : unicode("name", name));

/** Admits a start if every child admits it. If a child denies, no child is charged. */
export class CompositeLimiter extends Limiter {
  readonly #children = new Children();

  /**
   * Makes a limiter of these. Without any, it admits every start. An object names the parts, as in `{ requests, tokens }`, for starts
   * that charge each part for itself. In an array the parts are called as their limits.
   */
  constructor(limiters: readonly Child[] | Readonly<Record<string, Child>> = []) {
    if (!Array.isArray(limiters) && !isParts(limiters)) {
      throw invalid("limiters", limiters, "an array of limiters, or an object with a limiter for each name");
    }
    const named = Array.isArray(limiters) ? limiters.map((child) => [undefined, child] as const) : Object.entries(limiters);
    const children = named.map(([name, child]) => [limiterOf(child as Child), child as Child, name] as const);
    super(native.compositeLimiter(), { holds: true, wrap: passing });
    for (const [child, given, name] of children) this.#children.add(this, child, given, nameOf(name));
  }

  /** Adds a limiter, called as its limit if no name is given. Existing permits end with the limiters that admitted them. */
  add(limiter: Child, name?: string): void {
    this.#children.add(this, limiterOf(limiter), limiter, nameOf(name));
  }

  /** @internal */
  override _part(name: string): Limiter {
    return this.#children.at(native.partNames(this._native).indexOf(name));
  }

  /** @internal */
  override _stores(): readonly Store[] {
    return this.#children.stores();
  }

  /** @internal */
  override _isShared(): boolean {
    return this.#children.areShared();
  }

  /** @internal */
  override _isNative(): boolean {
    return this.#children.areNative();
  }

  /** @internal */
  override _bells(): readonly Bell[] {
    return this.#children.bells();
  }

  /** @internal */
  override _notDecided(error: unknown): unknown {
    return this.#children.notDecided(error);
  }

  /** @internal */
  override _opening(): Promise<unknown> | null {
    return this.#children.opening();
  }

  /** @internal */
  override _find(number: number): Found | null {
    return this.#children.find(number);
  }
}

/**
 * Admits a start if one of several limiters admits it: the first of them, in the given order, that can start now. Exactly one is
 * charged; `permit.chosen` says which. A waiter starts wherever it can start first: it moves if a job ends elsewhere, or if its
 * limiter is paused. If none can start, the decision is that of the one that can start first.
 *
 * All get the same key and weight; those that are too small for a weight are left out. An object has those of parts that all of them
 * have. A pause applies to all limiters: after a refusal, pause `permit.chosen`.
 */
export class FirstOfLimiter extends Limiter {
  readonly #children = new Children();

  /** Makes a limiter of these, the preferred one first. */
  constructor(limiters: readonly Child[]) {
    if (!Array.isArray(limiters) || limiters.length === 0) {
      throw invalid("limiters", limiters, "an array of limiters, the preferred one first");
    }
    const children = limiters.map((child) => [limiterOf(child), child] as const);
    super(native.firstOfLimiter(), { holds: true, wrap: passing });
    for (const [child, given] of children) this.#children.add(this, child, given);
  }

  /** None: a name stands for the parts of all alternatives. */
  override get parts(): Readonly<Record<string, Limiter>> {
    return {};
  }

  /** Adds a limiter, as the last one. */
  add(limiter: Child): void {
    this.#children.add(this, limiterOf(limiter), limiter);
  }

  /** @internal */
  override _stores(): readonly Store[] {
    return this.#children.stores();
  }

  /** @internal */
  override _isShared(): boolean {
    return this.#children.areShared();
  }

  /** @internal */
  override _isNative(): boolean {
    return this.#children.areNative();
  }

  /** @internal */
  override _bells(): readonly Bell[] {
    return this.#children.bells();
  }

  /** @internal */
  override _notDecided(error: unknown): unknown {
    return this.#children.notDecided(error);
  }

  /** @internal */
  override _opening(): Promise<unknown> | null {
    return this.#children.opening();
  }

  /** @internal */
  override _find(number: number): Found | null {
    return this.#children.find(number);
  }
}

/** Admits every start. Use it where a limiter is needed and there is no limit. */
export class NullLimiter extends Limiter {
  constructor() {
    super(native.nullLimiter(), { holds: false });
  }
}

brand({ CompositeLimiter, FirstOfLimiter, NullLimiter }, native);
