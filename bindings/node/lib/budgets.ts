// The budgets that AI providers state in their responses: what others spent with the same account is charged here, too.

import { type Start, keyAt } from "./demand.js";
import { warn } from "./hooks.js";
import type { Limiter } from "./limiter.js";
import { type Budget, budgetsOf, type HttpResponse } from "./response.js";
import { now } from "./timers.js";
import type { TokenKind } from "./tokens.js";

/** The part that counts requests, if a limiter has several. */
const REQUESTS = "requests";

/** What the options call the budgets of tokens. */
const TOKENS: Readonly<Record<string, TokenKind>> = { tokens: "total", "input-tokens": "input", "output-tokens": "output" };

/** The fewest units that were left at any moment since a request started. */
interface Trace {
  fewest: number;
  readonly began: number;
}

/** @internal One request to a provider that states its budgets. */
export interface Watched {
  /** Compares what the response states with what is left here. */
  answered(response: HttpResponse): Promise<unknown>;
  /** There is no response, or it was compared already. */
  failed(): void;
}

/** @internal The budgets that the providers of a client state. */
export class Budgets {
  /** The limiters whose providers state budgets. Others are not watched, which costs a look at each part. */
  readonly #stated = new WeakSet<Limiter>();
  readonly #levels = new WeakMap<Limiter, Map<string, Level>>();

  /** Watches a request that has just started. */
  watch(start: Start): Watched {
    const { limiter } = start;
    if (!this.#stated.has(limiter)) {
      const answered = async (response: HttpResponse) => budgetsOf(response).size > 0 && this.#stated.add(limiter);
      return { answered, failed() {} };
    }
    const traces = new Map<string, [Level, Trace]>();
    for (const budget of [REQUESTS, ...Object.keys(TOKENS)]) {
      const level = this.#levelOf(start, budget);
      if (level !== null) traces.set(budget, [level, level.begin()]);
    }
    const end = (stated: ReadonlyMap<string, Budget>): Promise<unknown> => {
      const ends = [...traces].map(([budget, [level, trace]]) => level.end(trace, stated.get(budget)));
      traces.clear();
      return Promise.all(ends);
    };
    return { answered: (response) => end(budgetsOf(response)), failed: () => void end(new Map()) };
  }

  #levelOf({ limiter, key, tokens }: Start, budget: string): Level | null {
    const kind = TOKENS[budget];
    const name = kind === undefined ? REQUESTS : tokens[kind];
    const isWhole = limiter._partNames()?.length === 0;
    const part = name === undefined || (isWhole && kind !== undefined) ? undefined : isWhole ? limiter : limiter.parts[name];
    if (part === undefined || part._holds) return null;
    const own = (isWhole && typeof key === "string" ? key : keyAt(key, name!)) ?? "";
    let levels = this.#levels.get(part);
    if (levels === undefined) this.#levels.set(part, (levels = new Map()));
    const all = levels;
    let level = all.get(own);
    if (level === undefined) all.set(own, (level = new Level(part, own, () => all.delete(own))));
    return level;
  }
}

/**
 * How many units of one key are left here, while requests are on their way. Others have spent the difference if the provider states
 * fewer than were left here at any moment since the request started: our own requests, in whatever order they arrived, and what they
 * gave back since, explain no less than that. The difference is charged once, because it is a new fewest for all requests on their way.
 */
class Level {
  readonly #limiter: Limiter;
  readonly #key: string;
  readonly #forget: () => void;
  readonly #traces = new Set<Trace>();
  #last: Promise<void> = Promise.resolve();

  constructor(limiter: Limiter, key: string, forget: () => void) {
    this.#limiter = limiter;
    this.#key = key;
    this.#forget = forget;
  }

  begin(): Trace {
    const trace = { fewest: Infinity, began: now() };
    this.#traces.add(trace);
    this.#look().catch(() => {}); // The response says so again.
    return trace;
  }

  /** Ends a trace. One after the other, so that each sees what the one before has charged. */
  end(trace: Trace, stated: Budget | undefined): Promise<void> {
    const compare = () => this.#compare(trace, stated);
    this.#last = this.#last.then(compare).catch((error: unknown) => warn("what a provider said could not be charged", error));
    return this.#last;
  }

  async #compare(trace: Trace, stated: Budget | undefined): Promise<void> {
    try {
      if (stated === undefined) return;
      const { left, reset } = stated;
      // Since its reset the server may have all of it again. With nothing left, the limit is paused until then.
      if (reset !== null && (left === 0 || now() - trace.began > reset)) return;
      await this.#look();
      const spent = trace.fewest - left;
      if (!(spent > 0 && spent < Infinity)) return;
      // If other starts were faster, there is less left, and the next response says so.
      const permit = await this.#limiter.tryAcquireAsync({ key: this.#key, weight: spent });
      await permit?.completeAsync();
      await this.#look();
    } finally {
      this.#traces.delete(trace);
      if (this.#traces.size === 0) this.#forget();
    }
  }

  async #look(): Promise<void> {
    const { remaining } = await this.#limiter.peekAsync({ key: this.#key, weight: 0 });
    for (const trace of this.#traces) trace.fewest = Math.min(trace.fewest, remaining);
  }
}
