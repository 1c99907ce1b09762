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
}

/** A call. */
export type Call =
  | { readonly op: "declare"; readonly name: string; readonly policy: string }
  | { readonly op: "decide" | "peek"; readonly name: string; readonly key: string; readonly weight: number }
  | Wait
  | { readonly op: "leave"; readonly waiter: string }
  | { readonly op: "end"; readonly start: Start; readonly how: How; readonly actual: number }
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
  /** When it asked: those of one priority start in this order. */
  readonly asked: number;
  /** By which it leaves. */
  readonly waiter: string;
}

/** What a call is answered. Calls other than about starts have no decision. */
export type Answer = Decided | null;

interface Waiter {
  readonly call: Wait;
  readonly answer: (answer: Decided) => void;
  readonly refuse: (error: unknown) => void;
}

export class Decider {
  readonly #engine: Engine;
  readonly #clock: Clock;
  readonly #limits = new Map<string, number>();
  readonly #lines = new Map<string, Line>();
  #closed: LimitError | undefined;

  constructor(engine: Engine, clock: Clock) {
    this.#engine = engine;
    this.#clock = clock;
  }

  /** Answers a call. */
  async call(call: Call): Promise<Answer> {
    if (this.#closed !== undefined) throw this.#closed;
    return call.op === "wait" ? this.#wait(call) : this.#do(call);
  }

  #do(call: Exclude<Call, Wait>): Answer {
    const time = this.#clock.now();
    switch (call.op) {
      case "declare":
        this.#limits.set(call.name, this.#engine.limit(call.name, call.policy, time));
        break;
      case "peek":
        return this.#look(call, time);
      case "decide": {
        this.#lines.get(lineOf(call))?.advance();
        const line = this.#lines.get(lineOf(call));
        if (line === undefined) return this.#engine.decide(this.#limit(call.name), call.key, call.weight, time);
        // (2)
        return behind(this.#look(call, time), line.next);
      }
      case "leave":
        for (const line of [...this.#lines.values()]) line.leave((waiter) => waiter.call.waiter === call.waiter);
        return null;
      case "end": {
        const { name, key, weight, held } = call.start;
        this.#engine.end(this.#limit(name), key, weight, held, call.how, call.actual, time);
        break;
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
    const name = call.op === "end" ? call.start.name : call.name;
    for (const line of [...this.#lines.values()]) if (line.name === name) line.advance();
    return null;
  }

  #look({ name, key, weight }: { name: string; key: string; weight: number }, time = this.#clock.now()): Decided {
    return this.#engine.decide(this.#limit(name), key, weight, time, true);
  }

  /** The number of a limit, which was declared by whoever calls: or before, in which case it is found by its name. */
  #limit(name: string): number {
    let limit = this.#limits.get(name);
    if (limit === undefined) this.#limits.set(name, (limit = this.#engine.limit(name, "", this.#clock.now())));
    return limit;
  }

  #wait(call: Wait): Promise<Decided> {
    const { name, patience } = call;
    const id = lineOf(call);
    let line = this.#lines.get(id);
    const seen = this.#look(call);
    // The time is known, unless somebody waits or holds units: then this waits in vain.
    if (line === undefined && patience !== null && seen.retryAfter > patience && !seen.holds) {
      return Promise.reject(new TimeoutError(`no permit of "${name}" within ${patience} ms`, seen.retryAfter));
    }
    if (line === undefined) {
      const isEmpty = () => void this.#lines.delete(id);
      line = new Line(name, this.#clock, { start: (waiter) => this.#start(waiter.call), isEmpty });
      this.#lines.set(id, line);
    }
    const joined = line;
    return new Promise((answer, refuse) => joined.join({ call, answer, refuse }));
  }

  /** Decides on a waiter. Looks first: a waiter is not denied, and raises no backoff. */
  #start(call: Wait): Decided {
    const seen = this.#look(call);
    return seen.admitted ? this.#engine.decide(this.#limit(call.name), call.key, call.weight, this.#clock.now()) : seen;
  }

  /** Ends it: those who wait get the error. */
  close(error: LimitError): void {
    this.#closed = error;
    for (const line of [...this.#lines.values()]) line.close(error);
  }
}

/** What a line needs. */
interface Calls {
  /** Decides on a waiter. */
  readonly start: (waiter: Waiter) => Decided;
  readonly isEmpty: () => void;
}

/** The waiters for one limit and key. */
class Line {
  readonly name: string;
  readonly #clock: Clock;
  readonly #calls: Calls;
  readonly #waiters: Waiter[] = [];
  #stop = () => {};
  /** What the first waiter was told last. */
  next!: Decided;

  constructor(name: string, clock: Clock, calls: Calls) {
    this.name = name;
    this.#clock = clock;
    this.#calls = calls;
  }

  join(waiter: Waiter): void {
    const { priority, asked } = waiter.call;
    const isBefore = ({ call }: Waiter) => call.priority < priority || (call.priority === priority && call.asked <= asked);
    const before = this.#waiters.findLastIndex(isBefore);
    this.#waiters.splice(before + 1, 0, waiter);
    this.advance();
  }

  leave(leaves: (waiter: Waiter) => boolean): void {
    const staying = this.#waiters.filter((waiter) => !leaves(waiter));
    if (staying.length === this.#waiters.length) return;
    this.#waiters.splice(0, Infinity, ...staying);
    this.advance();
  }

  /** Starts those whose time has come, and calls itself when the next one's has. */
  advance(): void {
    this.#stop();
    for (;;) {
      const [first] = this.#waiters;
      if (first === undefined) return this.#calls.isEmpty();
      let decided: Decided;
      try {
        decided = this.#calls.start(first);
      } catch (error) {
        this.#waiters.shift();
        first.refuse(error);
        continue;
      }
      if (!decided.admitted) {
        this.next = decided;
        this.#stop = this.#clock.after(decided.retryAfter, () => this.advance());
        return;
      }
      this.#waiters.shift();
      first.answer(decided);
    }
  }

  close(error: LimitError): void {
    this.#stop();
    for (const waiter of this.#waiters.splice(0)) waiter.refuse(error);
    this.#calls.isEmpty();
  }
}

const lineOf = ({ name, key }: { name: string; key: string }): string => `${name}\n${key}`;

/** A start that would overtake those who wait is denied, as the first of them is. */
function behind(seen: Decided, first: Decided): Decided {
  const [retryAfter, suggestedAfter] = [Math.max(seen.retryAfter, first.retryAfter), Math.max(seen.suggestedAfter, first.retryAfter)];
  return { ...seen, admitted: false, retryAfter, suggestedAfter, remaining: 0, deniedBy: first.deniedBy };
}
