// The budgets that AI providers state in their responses: what others spent with the same account is charged here, too.

import { type Start, keyAt } from "./demand.js";
import { warn } from "./hooks.js";
import type { Limiter } from "./limiter.js";
import { native } from "./native.js";
import { type Budget, budgetsOf, type HttpResponse, quotasOf } from "./response.js";
import type { Store } from "./store.js";
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

/** What the response to a request says. */
interface Statement extends Budget {
  readonly trace: Trace;
}

/** @internal One request to a provider that states its budgets. */
export interface Watched {
  /** Compares what the response states with what is left here, later: nobody waits for that. */
  answered(response: HttpResponse): void;
  /** There is nothing to compare, or no longer. */
  forget(): void;
}

/** The limiters whose providers state budgets. Others are not watched, which costs a look at each part. */
const stating = new WeakSet<Limiter>();

/**
 * Of requests on their way: by the limit's name and the key, in its store, or in the limiter if it has none. All clients of this process
 * share them, so that each difference is charged once.
 */
const levels = new WeakMap<Store | Limiter, Map<string, Level>>();

/** @internal Watches a request that has just started. */
export function watch(start: Start): Watched {
  const { limiter } = start;
  if (!stating.has(limiter)) {
    const answered = (response: HttpResponse) => void (budgetsOf(response).size > 0 && stating.add(limiter));
    return { answered, forget() {} };
  }
  const traces = new Map<string, [Level, Trace]>();
  for (const budget of [REQUESTS, ...Object.keys(TOKENS)]) {
    const level = levelOf(start, budget);
    if (level !== null) traces.set(budget, [level, level.begin()]);
  }
  const end = (stated: ReadonlyMap<string, Budget>): void => {
    for (const [budget, [level, trace]] of traces) level.end(trace, stated.get(budget));
    traces.clear();
  };
  return { answered: (response) => end(budgetsOf(response)), forget: () => end(new Map()) };
}

/**
 * @internal Puts the sizes that the server states above the declared policies, later. A key's requests teach nothing: the server does
 * not say whose size it is.
 */
export function learn(start: Start, response: HttpResponse, host: string): void {
  for (const { name: budget, units, window, isEstimated } of quotasOf(response)) {
    const charged = chargedAt(start, budget);
    if (charged?.own === "") native.learn(charged.part._native, units, window, isEstimated, host);
  }
}

/** Returns which limit a budget of the server is here, and with which key the start is charged there. */
function chargedAt({ limiter, key, tokens }: Start, budget: string): { part: Limiter; own: string } | null {
  const kind = TOKENS[budget];
  const name = kind === undefined ? REQUESTS : tokens[kind];
  const isWhole = limiter._partNames()?.length === 0;
  if (name === undefined || (isWhole && kind !== undefined)) return null;
  const part = isWhole ? limiter : limiter.parts[name];
  return part === undefined ? null : { part, own: (isWhole && typeof key === "string" ? key : keyAt(key, name)) ?? "" };
}

function levelOf(start: Start, budget: string): Level | null {
  const charged = chargedAt(start, budget);
  if (charged === null || charged.part._holds) return null;
  const { part, own } = charged;
  const [owner = part] = part._stores();
  const all = levels.get(owner) ?? new Map<string, Level>();
  levels.set(owner, all);
  const id = JSON.stringify([part.name, own]);
  let level = all.get(id);
  if (level === undefined) all.set(id, (level = new Level(part, own, () => all.delete(id))));
  return level;
}

/**
 * Returns how many units others have spent. Since its reset the server may have all of it again. With nothing left, the limit is paused
 * until then.
 */
function spentIn({ trace, left, reset }: Statement): number {
  if (reset !== null && (left === 0 || now() - trace.began > reset)) return 0;
  return trace.fewest - left;
}

/**
 * How many units of one key are left here, while requests are on their way. Others have spent the difference if the provider states
 * fewer than were left here at any moment since the request started: our own requests, in whatever order they arrived, and what they
 * gave back since, explain no less than that. The difference is charged once, because it lowers the fewest of all requests on their way.
 * Of several processes that find it at the same moment one charges it: each leaves what remained when it looked, less the difference.
 *
 * One statement is compared at a time, and at most one waits, however many responses arrive and however long the store takes: the one
 * that differs most. A later response says what is left out.
 */
class Level {
  readonly #limiter: Limiter;
  readonly #key: string;
  readonly #forget: () => void;
  readonly #traces = new Set<Trace>();
  #waiting: Statement | null = null;
  #isComparing = false;

  constructor(limiter: Limiter, key: string, forget: () => void) {
    this.#limiter = limiter;
    this.#key = key;
    this.#forget = forget;
  }

  begin(): Trace {
    const trace = { fewest: Infinity, began: now() };
    this.#traces.add(trace);
    this.#look().catch(() => {}); // A comparison says so again.
    return trace;
  }

  /** Ends a trace, after the comparison if the response states a budget that differs. */
  end(trace: Trace, stated: Budget | undefined): void {
    const statement = stated && { ...stated, trace };
    if (statement === undefined || !(spentIn(statement) > 0)) return this.#close(trace);
    const waiting = this.#waiting;
    if (waiting !== null && spentIn(waiting) > spentIn(statement)) return this.#close(trace);
    this.#waiting = statement;
    if (waiting !== null) this.#close(waiting.trace);
    if (!this.#isComparing) void this.#compareAll();
  }

  async #compareAll(): Promise<void> {
    this.#isComparing = true;
    for (let statement = this.#waiting; statement !== null; statement = this.#waiting) {
      this.#waiting = null;
      try {
        await this.#compare(statement);
      } catch (error) {
        warn("what a provider said could not be charged", error);
      }
      this.#close(statement.trace);
    }
    this.#isComparing = false;
  }

  async #compare(statement: Statement): Promise<void> {
    const left = await this.#look();
    const spent = spentIn(statement);
    if (!(spent > 0 && spent < Infinity)) return;
    // If other starts were faster, it charges less; a paused limit takes no charges. The next response says so.
    const charged = await this.#limiter._chargeOthers(this.#key, spent, left - spent);
    for (const trace of this.#traces) trace.fewest -= charged;
  }

  /** Returns how many units are left. */
  async #look(): Promise<number> {
    const { remaining } = await this.#limiter.peekAsync({ key: this.#key, weight: 0 });
    for (const trace of this.#traces) trace.fewest = Math.min(trace.fewest, remaining);
    return remaining;
  }

  #close(trace: Trace): void {
    this.#traces.delete(trace);
    if (this.#traces.size === 0) this.#forget();
  }
}
