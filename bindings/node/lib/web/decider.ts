// Decides for everybody who uses a store: the limits, and one line of waiters for each limit and key.
//
// 1. *One decides.* Of all who use the limits of a store, one has a `Decider`, and all calls on its engine are made here. So a
//    decision needs no lock.
// 2. *First come, first served.* A start is decided at once only if nobody waits for the same limit and key. The first of a line
//    is decided when its time has come, and its start counts from then: a timer that is late costs nobody anything.

import type { Clock } from "./clock.js";
import type { Decided, Engine, How } from "./engine.js";
import { type LimitError, TimeoutError } from "./errors.js";

/** A start, by which its permit ends it. */
export interface Start {
  readonly name: string;
  readonly key: string;
  readonly weight: number;
  readonly held: readonly number[];
  /** In which database it is known, if in one, and what no other start in it is called. */
  readonly database?: string | undefined;
  readonly id?: string | undefined;
}

/** A call. */
export type Call =
  | { readonly op: "declare"; readonly name: string; readonly policy: string }
  | { readonly op: "decide" | "peek"; readonly name: string; readonly key: string; readonly weight: number }
  | Wait
  | { readonly op: "leave"; readonly waiter: number }
  | { readonly op: "end"; readonly start: Start; readonly how: How; readonly actual: number; readonly hold?: number }
  | { readonly op: "pause"; readonly name: string; readonly key: string; readonly ms: number }
  | { readonly op: "clear"; readonly name: string; readonly key: string }
  | { readonly op: "override"; readonly name: string; readonly policy: string; readonly key: string | undefined };

/** A call that waits for its start. */
interface Wait {
  readonly op: "wait";
  readonly name: string;
  readonly key: string;
  readonly weight: number;
  /** Lower numbers start first. */
  readonly priority: number;
  /** The number of ms that it waits at most; `null`: no limit. */
  readonly patience: number | null;
  /** By which it leaves. Those of one priority start in this order. */
  readonly waiter: number;
}

/** What a call is answered. Only calls about starts have a decision; whoever leaves gets the one that it would get now, `null` if it has started. */
export type Answer = Decided | null;

interface Declared {
  readonly number: number;
  /** The policy that was declared last. */
  readonly policy: string;
}

interface Waiter {
  readonly call: Wait;
  readonly line: Line;
  hasLeft: boolean;
  readonly answer: (answer: Decided) => void;
  readonly refuse: (error: unknown) => void;
}

export class Decider {
  readonly #engine: Engine;
  readonly #clock: Clock;
  readonly #limits = new Map<string, Declared>();
  /** The lines by limit and key. */
  readonly #lines = new Map<string, Map<string, Line>>();
  readonly #waiters = new Map<number, Waiter>();
  #closed: LimitError | undefined;

  constructor(engine: Engine, clock: Clock) {
    this.#engine = engine;
    this.#clock = clock;
  }

  /** Answers a call. */
  call(call: Call): Promise<Answer> {
    return new Promise((answer, refuse) => this.ask(call, answer, refuse));
  }

  /** Answers a call: at once, unless it waits, and in the turn in which it is decided. */
  ask(call: Call, answer: (answer: Answer) => void, refuse: (error: unknown) => void): void {
    let decided: Answer;
    try {
      if (this.#closed !== undefined) throw this.#closed;
      if (call.op === "wait") return this.#wait(call, answer, refuse);
      decided = this.#do(call);
    } catch (error) {
      return refuse(error);
    }
    answer(decided);
  }

  #do(call: Exclude<Call, Wait>): Answer {
    const time = this.#clock.now();
    switch (call.op) {
      case "declare": {
        const { name, policy } = call;
        const known = this.#limits.get(name);
        // Programs declare a limit wherever they use it.
        if (known !== undefined && (policy === "" || policy === known.policy)) return null;
        this.#limits.set(name, { number: this.#engine.limit(name, policy, time), policy });
        break;
      }
      case "peek":
      case "decide": {
        this.#line(call)?.advance();
        const line = this.#line(call);
        if (line === undefined) return this.#engine.decide(this.#limit(call.name), call.key, call.weight, time, call.op === "peek");
        // (2)
        return behind(this.#look(call, time), line.next);
      }
      case "leave":
        return this.#leave(call.waiter);
      case "end": {
        const { name, key, weight, held } = call.start;
        this.#engine.end(this.#limit(name), key, weight, held, call.how, call.actual, time);
        this.#line(call.start)?.advance();
        return null;
      }
      case "pause":
        this.#engine.pause(this.#limit(call.name), call.key, call.ms, time);
        break;
      case "clear":
        this.#engine.clear(this.#limit(call.name), call.key);
        break;
      case "override":
        this.#engine.override(call.name, call.policy, call.key, time);
    }
    for (const line of [...(this.#lines.get(call.name)?.values() ?? [])]) line.advance();
    return null;
  }

  /** Whether somebody waits for a key. */
  isAwaited(name: string, key: string): boolean {
    return this.#line({ name, key }) !== undefined;
  }

  #line({ name, key }: { name: string; key: string }): Line | undefined {
    return this.#lines.get(name)?.get(key);
  }

  #look({ name, key, weight }: { name: string; key: string; weight: number }, time = this.#clock.now()): Decided {
    return this.#engine.decide(this.#limit(name), key, weight, time, true);
  }

  /** The number of a limit, which was declared by whoever calls: or before, in which case it is found by its name. */
  #limit(name: string): number {
    return this.#limits.get(name)?.number ?? this.#engine.limit(name, "", this.#clock.now());
  }

  #wait(call: Wait, answer: (answer: Decided) => void, refuse: (error: unknown) => void): void {
    const { patience } = call;
    let line = this.#line(call);
    const seen = this.#look(call);
    // The time is known, unless somebody waits or holds units: then this waits in vain.
    if (line === undefined && patience !== null && seen.retryAfter > patience && !seen.holds) {
      throw timeoutOf(call, seen.retryAfter);
    }
    line ??= this.#newLine(call);
    const waiter = { call, line, answer, refuse, hasLeft: false };
    this.#waiters.set(call.waiter, waiter);
    line.join(waiter);
  }

  #newLine({ name, key }: Wait): Line {
    const lines = this.#lines.get(name) ?? new Map<string, Line>();
    const line = new Line(this.#clock, {
      start: (waiter) => this.#start(waiter.call),
      isOver: (waiter) => void this.#waiters.delete(waiter.call.waiter),
      isEmpty: () => void (lines.get(key) === line && lines.delete(key) && lines.size === 0 && this.#lines.delete(name)),
    });
    this.#lines.set(name, lines.set(key, line));
    return line;
  }

  #leave(number: number): Answer {
    const waiter = this.#waiters.get(number);
    if (waiter === undefined) return null;
    this.#waiters.delete(number);
    waiter.line.leave(waiter);
    const [seen, line] = [this.#look(waiter.call), this.#line(waiter.call)];
    return line === undefined ? seen : behind(seen, line.next);
  }

  /** Decides on a waiter. Looks first: a waiter is not denied, and raises no backoff. */
  #start(call: Wait): Decided {
    const seen = this.#look(call);
    return seen.admitted ? this.#engine.decide(this.#limit(call.name), call.key, call.weight, this.#clock.now()) : seen;
  }

  /** Ends it: those who wait get the error. */
  close(error: LimitError): void {
    this.#closed = error;
    for (const lines of [...this.#lines.values()]) for (const line of [...lines.values()]) line.close(error);
  }
}

/** What a line needs. */
interface Calls {
  /** Decides on a waiter. */
  readonly start: (waiter: Waiter) => Decided;
  /** A waiter has got its start, or an error. */
  readonly isOver: (waiter: Waiter) => void;
  readonly isEmpty: () => void;
}

/** The waiters for one limit and key. */
class Line {
  readonly #clock: Clock;
  readonly #calls: Calls;
  /** In order. Those that have left stay until they are the first, or half of all: so that leaving costs the same in a long line. */
  #waiters: Waiter[] = [];
  #left = 0;
  #stop = () => {};
  /** The waiter that was looked at last, and what it was told. */
  #first: Waiter | undefined;
  next!: Decided;

  constructor(clock: Clock, calls: Calls) {
    this.#clock = clock;
    this.#calls = calls;
  }

  join(waiter: Waiter): void {
    const { priority, waiter: number } = waiter.call;
    const isBefore = ({ call }: Waiter) => call.priority < priority || (call.priority === priority && call.waiter < number);
    const before = this.#waiters.findLastIndex(isBefore);
    this.#waiters.splice(before + 1, 0, waiter);
    this.advance();
  }

  leave(waiter: Waiter): void {
    waiter.hasLeft = true;
    if (2 * ++this.#left > this.#waiters.length) {
      this.#waiters = this.#waiters.filter(({ hasLeft }) => !hasLeft);
      this.#left = 0;
    }
    if (waiter === this.#first) this.advance();
  }

  /** Starts those whose time has come, and calls itself when the next one's has. */
  advance(): void {
    this.#stop();
    for (;;) {
      const [first] = this.#waiters;
      this.#first = first;
      if (first === undefined) return this.#calls.isEmpty();
      if (first.hasLeft) {
        this.#waiters.shift();
        this.#left--;
        continue;
      }
      let decided: Decided;
      try {
        decided = this.#calls.start(first);
      } catch (error) {
        this.#waiters.shift();
        this.#calls.isOver(first);
        first.refuse(error);
        continue;
      }
      if (!decided.admitted) {
        this.next = decided;
        // (An end of a start calls this, too.)
        if (!decided.awaitsEnd) this.#stop = this.#clock.after(decided.retryAfter, () => this.advance());
        return;
      }
      this.#waiters.shift();
      this.#calls.isOver(first);
      first.answer(decided);
    }
  }

  close(error: LimitError): void {
    this.#stop();
    for (const waiter of this.#waiters.splice(0)) {
      this.#calls.isOver(waiter);
      if (!waiter.hasLeft) waiter.refuse(error);
    }
    this.#calls.isEmpty();
  }
}

/** The error of a waiter whose time is over. */
export const timeoutOf = ({ name, patience }: Pick<Wait, "name" | "patience">, retryAfter: number): TimeoutError =>
  new TimeoutError(`no permit of "${name}" within ${patience} ms`, retryAfter);

/** A start that would overtake those who wait is denied, as the first of them is. */
function behind(seen: Decided, first: Decided): Decided {
  const [retryAfter, suggestedAfter] = [Math.max(seen.retryAfter, first.retryAfter), Math.max(seen.suggestedAfter, first.retryAfter)];
  return { ...seen, admitted: false, retryAfter, suggestedAfter, remaining: 0, deniedBy: first.deniedBy };
}
