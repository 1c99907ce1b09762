// What programs call: limiters and permits.

import { after } from "./clock.js";
import { type Answer, type Call, type Start, timeoutOf } from "./decider.js";
import { type Decided, How } from "./engine.js";
import { invalid } from "./errors.js";
import { type Duration, keyOf, milliseconds, options as checked, priorityOf, signalOf, text, whole } from "./input.js";

/** The option of a call about one key. */
export interface KeyOptions {
  /** The key, at most 1,024 bytes of UTF-8. Default: none. Each call says what it means then: all keys, or the empty one. */
  key?: string | undefined;
}

/** The options of a start. */
export interface StartOptions {
  /** The key, at most 1,024 bytes of UTF-8. Each key has a separate budget under the same policy. Default: the empty key. */
  key?: string | undefined;
  /** The units that the start takes. Default: 1. */
  weight?: number | undefined;
}

/** The options of a start that waits. */
export interface AcquireOptions extends StartOptions {
  /** Waiters with a lower number start first; waiters with the same number start in the order of their calls. Default: 0. */
  priority?: number | undefined;
  /** The longest wait. Default: no timeout. */
  timeout?: Duration | undefined;
  /** When it aborts, the waiter rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** The numbers of a decision about a start. */
export interface DecisionNumbers {
  /** The time in ms after which a retry succeeds if no other start took the units; 0 if admitted. */
  readonly retryAfter: number;
  /** The time in ms after which a caller that requeues should retry, with the limit's backoff; at least `retryAfter`. */
  readonly suggestedAfter: number;
  /** The time in ms after which the limiter is in its initial state if no further start is admitted. */
  readonly resetAfter: number;
  /** The weight of the heaviest start that would be admitted after this decision. */
  readonly remaining: number;
  /** The units that the limit allows. */
  readonly limit: number;
}

/** The decision that a start is admitted. */
export interface Admission extends DecisionNumbers {
  readonly admitted: true;
  readonly deniedBy: null;
  /** The permit of the start. */
  readonly permit: Permit;
}

/** The decision that a start is denied. */
export interface Denial extends DecisionNumbers {
  readonly admitted: false;
  /** The name of the limit that denied. */
  readonly deniedBy: string;
  readonly permit: null;
}

/** The whole decision about a start: `admitted` says which. */
export type Decision = Admission | Denial;

/** What a decision would be. Nothing was recorded, so there is no permit. */
export type Peek = (Omit<Admission, "permit"> & Pick<Denial, "permit">) | Denial;

/** @internal Where calls are answered. */
export interface Desk {
  call(call: Call): Promise<Answer>;
  /** The length of a unit of time in ms. */
  unitOfTime(name: string): number;
}

/** Permits that were collected before they ended. */
const lost = new FinalizationRegistry<{ desk: Desk; start: Start }>(({ desk, start }) => {
  desk.call({ op: "end", start, how: How.completed, actual: 0 }).catch(() => {});
});

/** An admitted start. It ends by `complete()`, `cancel()` or `settle()`; ending it again has no effect. */
export class Permit {
  readonly #desk: Desk;
  readonly #start: Start;
  readonly #isCounted: boolean;
  #ending: Promise<void> | undefined;

  private constructor(desk: Desk, start: Start, isCounted: boolean) {
    this.#desk = desk;
    this.#start = start;
    this.#isCounted = isCounted;
    this.#register();
  }

  #register(): void {
    if (this.#isCounted) lost.register(this, { desk: this.#desk, start: this.#start }, this);
  }

  /** @internal */
  static _of(desk: Desk, start: Start, isCounted: boolean): Permit {
    return new Permit(desk, start, isCounted);
  }

  /** Completes the start: the job has ended. */
  async complete(): Promise<void> {
    await this.#end(How.completed, 0);
  }

  /** Cancels the start: the job never ran, and its units are free again at once. */
  async cancel(): Promise<void> {
    await this.#end(How.cancelled, 0);
  }

  /** Settles the start: it ran and cost this many units. What it cost less is free again; what it cost more is owed. */
  async settle(actual: number): Promise<void> {
    await this.#end(How.settled, whole("actual", actual));
  }

  #end(how: How, actual: number): Promise<void> {
    if (this.#ending !== undefined) return this.#ending;
    lost.unregister(this);
    const matters = this.#isCounted || how !== How.completed;
    const ended = matters ? this.#desk.call({ op: "end", start: this.#start, how, actual }) : Promise.resolve();
    const failed = (error: unknown) => {
      // It can be ended in another way, or is collected.
      this.#ending = undefined;
      this.#register();
      throw error;
    };
    return (this.#ending = ended.then(() => {}, failed));
  }

  /** Completes it at the end of an `await using`. */
  async [Symbol.asyncDispose ?? Symbol.for("Symbol.asyncDispose")](): Promise<void> {
    await this.complete();
  }
}

/** How long after its timeout a waiter is told what it would be told now, at most; in ms. */
const ANSWER = 3_000;
/** No two waiters of this program have the same number. */
let lastWaiter = 0;

/** Decides whether a job may start now, and if not, when. */
export class Limiter {
  /** The limit's name. */
  readonly name: string;
  readonly #desk: Desk;
  readonly #policy: string;
  #declared: Promise<Answer> | undefined;

  private constructor(desk: Desk, name: string, policy: string) {
    this.#desk = desk;
    this.name = name;
    this.#policy = policy;
  }

  /** @internal */
  static _of(desk: Desk, name: string, policy: string): Limiter {
    return new Limiter(desk, name, policy);
  }

  /** @internal Declares the limit, once. */
  async _open(): Promise<void> {
    this.#declared ??= this.#desk.call({ op: "declare", name: this.name, policy: this.#policy });
    try {
      await this.#declared;
    } catch (error) {
      this.#declared = undefined;
      throw error;
    }
  }

  async #call(call: Call): Promise<Decided> {
    await this._open();
    return (await this.#desk.call(call)) as Decided;
  }

  #permit({ key, weight }: Weighed, { held, isCounted, database, id }: Decided): Permit {
    return Permit._of(this.#desk, { name: this.name, key, weight, held, database, id }, isCounted);
  }

  #decision(start: Weighed, decided: Decided, looks: boolean): Decision | Peek {
    const { admitted, deniedBy, retryAfter, suggestedAfter, resetAfter, remaining, limit } = decided;
    const permit = admitted && !looks ? this.#permit(start, decided) : null;
    return { admitted, deniedBy, retryAfter, suggestedAfter, resetAfter, remaining, limit, permit } as Decision | Peek;
  }

  /** Decides and records in one step. Resolves to the whole decision. */
  async decide(options?: StartOptions): Promise<Decision> {
    const start = startOf(options, START);
    return this.#decision(start, await this.#call({ op: "decide", name: this.name, ...start }), false) as Decision;
  }

  /** Decides and records in one step. Resolves to a permit, or to `null` if the start is denied. */
  async tryAcquire(options?: StartOptions): Promise<Permit | null> {
    return (await this.decide(options)).permit;
  }

  /** Resolves to the decision that a start would get. Records nothing. */
  async peek(options?: StartOptions): Promise<Peek> {
    const start = startOf(options, START);
    return this.#decision(start, await this.#call({ op: "peek", name: this.name, ...start }), true) as Peek;
  }

  /** Resolves to whether a start of weight 1 would be admitted now. */
  async canProceed(options?: KeyOptions): Promise<boolean> {
    return (await this.peek({ key: checked(options, ["key"]).key })).admitted;
  }

  /** Waits for a permit: first come, first served. Rejects with `TimeoutError` after `timeout`. */
  async acquire(options?: AcquireOptions): Promise<Permit> {
    const start = startOf(options, ACQUIRE);
    const [priority, signal] = [priorityOf(options?.priority), signalOf(options?.signal)];
    const timeout = options?.timeout;
    const patience = timeout === undefined ? null : this.#milliseconds("timeout", timeout);
    signal?.throwIfAborted();
    const waiter = ++lastWaiter;
    const wait = { op: "wait", name: this.name, ...start, priority, patience, waiter } as const;
    return new Promise((resolve, reject) => {
      let [hasAsked, hasExpired, hasLeft] = [false, false, false];
      const aborted = () => leave(signal?.reason);
      let stop = () => {};
      const over = () => {
        stop();
        signal?.removeEventListener("abort", aborted);
      };
      const leave = (reason: unknown) => {
        hasLeft = true;
        over();
        reject(reason);
        if (hasAsked) this.#desk.call({ op: "leave", waiter }).catch(() => {});
      };
      // Whoever has started has not left.
      const left = (seen: Answer) => {
        if (seen === null) return;
        hasLeft = true;
        over();
        reject(timeoutOf(wait, seen.retryAfter));
      };
      const depart = () => void this.#desk.call({ op: "leave", waiter }).then(left, leave);
      const expired = () => {
        hasExpired = true;
        // Perhaps nobody answers.
        stop = after(ANSWER, () => leave(timeoutOf(wait, 0)));
        if (hasAsked) depart();
      };
      if (patience !== null) stop = after(patience, expired);
      signal?.addEventListener("abort", aborted, { once: true });
      const asked = async () => {
        await this._open();
        if (hasLeft) return;
        hasAsked = true;
        const decided = this.#desk.call(wait);
        // It took its time to declare the limit: it starts now or not at all.
        if (hasExpired) depart();
        const permit = this.#permit(start, (await decided) as Decided);
        over();
        // It had been decided when the waiter left.
        if (hasLeft) permit.cancel().catch(() => {});
        else resolve(permit);
      };
      asked().catch((error) => {
        over();
        reject(error);
      });
    });
  }

  /**
   * Waits for a permit, runs `fn`, and completes the permit when `fn` returns or throws. What `fn` has returned or thrown stands, even if
   * the store cannot be told: the permit is then completed when it is collected.
   */
  async schedule<T>(fn: (permit: Permit) => T | PromiseLike<T>, options?: AcquireOptions): Promise<T> {
    if (typeof fn !== "function") throw invalid("fn", fn, "a function");
    const permit = await this.acquire(options);
    try {
      return await fn(permit);
    } finally {
      await permit.complete().catch(() => {});
    }
  }

  /**
   * Returns a function that waits for a permit before each call of `fn`. `options` may be a function of the arguments, such as
   * `(tenant) => ({ key: tenant })`.
   */
  wrap<This, A extends unknown[], T>(
    fn: (this: This, ...args: A) => T | PromiseLike<T>,
    options?: AcquireOptions | ((...args: A) => AcquireOptions | undefined),
  ): (this: This, ...args: A) => Promise<T> {
    if (typeof fn !== "function") throw invalid("fn", fn, "a function");
    if (typeof options !== "function") checked(options, ACQUIRE);
    const limiter = this;
    const wrapped = async function (this: This, ...args: A): Promise<T> {
      const asked = typeof options === "function" ? options(...args) : options;
      return limiter.schedule(() => fn.apply(this, args), asked);
    };
    return Object.defineProperty(wrapped, "name", { value: fn.name, configurable: true });
  }

  /** Lets nobody start for this long: of a key, or of all keys. Gates only move later. */
  async pause(duration: Duration, options?: KeyOptions): Promise<void> {
    const key = keyOf(checked(options, ["key"]).key);
    await this.#call({ op: "pause", name: this.name, key, ms: this.#milliseconds("duration", duration) });
  }

  /** Forgets all starts and opens the gate: of a key, or of all keys. */
  async clear(options?: KeyOptions): Promise<void> {
    await this.#call({ op: "clear", name: this.name, key: keyOf(checked(options, ["key"]).key) });
  }

  #milliseconds(parameter: string, value: unknown): number {
    return milliseconds(parameter, value, (unit) => this.#desk.unitOfTime(unit));
  }
}

/** A start that was asked for. */
interface Weighed {
  readonly key: string;
  readonly weight: number;
}

const START = ["key", "weight"];
const ACQUIRE = [...START, "priority", "timeout", "signal"];

function startOf(options: StartOptions | undefined, known: readonly string[]): Weighed {
  const { key, weight } = checked(options, known);
  return { key: keyOf(key), weight: weight === undefined ? 1 : whole("weight", weight) };
}

/** @internal Checks a name. */
export const nameOf = (value: unknown): string => text("name", value);
