// Waiting: the core keeps the line of those who wait, and this its one timer, and whoever makes room wakes the line.

import { SyncUnsupported, TimeoutError, thrown } from "./errors.js";
import type { Limiter } from "./limiter.js";
import { type Answer, Int, Num, Op, Status, call, ints, numbers } from "./native.js";
import { Permit } from "./permit.js";
import type { Request } from "./request.js";
import { clearImmediate, clearTimeout, now, setImmediate, setTimeout } from "./timers.js";

/** The longest that a timer of Node's takes. */
const LONGEST_TIMER = 2 ** 31 - 1;

/** How late a timer may well be, in ms. */
const SLACK = 2;

/** A place in a shorter window, in ms, is good for less than timers are late. */
const SHORT_WINDOW = 100;

/** The lines in this thread that wait for the same thing to happen. */
export class Bell {
  readonly #lines = new Set<Line>();

  add(line: Line): void {
    this.#lines.add(line);
  }

  delete(line: Line): void {
    this.#lines.delete(line);
  }

  /** There may be room on a key; without one, on any. */
  ring(key?: string): void {
    for (const line of this.#lines) line.wake(key);
  }
}

/** One `acquire`. */
class Waiter {
  /** The core's number, once it is in the line. */
  id = 0;
  isOver = false;
  onAbort: (() => void) | undefined;

  constructor(
    readonly request: Request,
    readonly resolve: (permit: Permit) => void,
    readonly reject: (reason: unknown) => void,
  ) {}
}

/** Those in this thread who wait for a limiter. */
export class Line {
  readonly #limiter: Limiter;
  /** By the core's numbers. */
  readonly #waiters = new Map<number, Waiter>();
  #timer: NodeJS.Timeout | undefined;
  #immediate: NodeJS.Immediate | undefined;
  /** When the timer is due, on the clock of `now()`. */
  #due = Infinity;
  #isPrecise = false;
  /** Is the core at work on it? That may be on the thread pool, or it asks limiters of the caller's own. */
  #isBusy = false;
  /** What is done after that. */
  #after: (() => void)[] = [];
  /** So many have not joined yet, as the store is being opened. */
  #coming = 0;

  constructor(limiter: Limiter) {
    this.#limiter = limiter;
  }

  /** Does nobody wait? */
  get isIdle(): boolean {
    return this.#waiters.size === 0 && !this.#isBusy && this.#coming === 0;
  }

  /** Waits for a permit. */
  acquire(request: Request): Promise<Permit> {
    return new Promise((resolve, reject) => {
      const { signal } = request;
      if (signal?.aborted) return reject(signal.reason);
      const waiter = new Waiter(request, resolve, reject);
      if (signal !== undefined) signal.addEventListener("abort", (waiter.onAbort = () => this.#abort(waiter)));
      const opening = this.#limiter._opening();
      if (opening === null) return this.#join(waiter);
      this.#coming++;
      const come = opening.then(
        () => this.#join(waiter),
        (error) => this.#reject(waiter, error),
      );
      void come.finally(() => this.#coming--);
    });
  }

  /** Nobody waits any longer. */
  stop(reason: Error): void {
    for (const waiter of [...this.#waiters.values()]) {
      this.#reject(waiter, reason);
      this.#left(waiter);
    }
  }

  /** There may be room on a key; without one, on any. */
  wake(key?: string): void {
    this.#soon(() => this.#advance(key === undefined ? Op.wakeAll : Op.wake, key));
  }

  #join(waiter: Waiter): void {
    this.#soon(() => {
      if (waiter.isOver) return;
      const { key, weight, priority, timeout, grace, place } = waiter.request;
      try {
        if (place !== undefined) this.#limiter._put("place", place);
      } catch (error) {
        return this.#reject(waiter, error);
      }
      ints[Int.priority] = priority;
      numbers[Num.time] = timeout;
      numbers[Num.grace] = grace;
      this.#do(place === undefined ? Op.join : Op.joinWithPlace, key, weight, (answer) => {
        try {
          this.#joined(waiter, answer());
        } catch (error) {
          this.#reject(waiter, error);
        }
      });
    });
  }

  #joined(waiter: Waiter, status: Status): void {
    const { place } = waiter.request;
    const due = numbers[Num.due]!;
    if (place instanceof Permit) place._useUp(); // From now on it is the waiter's.
    if (status === Status.sleep) {
      waiter.id = numbers[Num.waiter]!;
      if (this.#waiters.size === 0) this.#begin();
      this.#waiters.set(waiter.id, waiter);
      if (waiter.isOver) this.#left(waiter);
    } else {
      this.#tell(waiter, status);
    }
    this.#sleep(due);
  }

  #abort(waiter: Waiter): void {
    this.#reject(waiter, waiter.request.signal!.reason);
    this.#left(waiter);
  }

  /** A waiter does not wait any longer. */
  #left(waiter: Waiter): void {
    if (!this.#waiters.delete(waiter.id)) return;
    this.#soon(() => {
      numbers[Num.waiter] = waiter.id;
      // What it brought has to be given back, for which a store may have to be asked.
      if (waiter.request.place !== undefined && this.#limiter._isShared()) return this.#advance(Op.leaveWithPlace);
      try {
        this.#limiter._do(Op.leave, "", 1);
      } catch (error) {
        if (!(error instanceof SyncUnsupported)) throw error;
        return this.#advance(Op.advance);
      }
      this.#goOn(numbers[Num.due]!);
    });
  }

  /** Lets the core do what is due, and settles those whose wait is over. */
  #advance(how: Op, key = ""): void {
    this.#do(how, key, 1, (answer) => {
      answer();
      const due = numbers[Num.due]!;
      while (this.#take());
      this.#goOn(due);
    });
  }

  /** Settles one of those whose wait is over, if there is one. */
  #take(): boolean {
    let status = Status.no;
    let failure: unknown;
    try {
      status = call(this.#limiter._call, Op.take, "", 1);
      if (status === Status.no) return false;
    } catch (error) {
      failure = thrown(error);
    }
    const id = numbers[Num.waiter]!;
    const waiter = this.#waiters.get(id);
    if (waiter === undefined) {
      if (status === Status.yes) new Permit(this.#limiter, "").cancel(); // It left while the core was at work.
      return true;
    }
    this.#waiters.delete(id);
    if (failure === undefined) this.#tell(waiter, status);
    else this.#reject(waiter, failure);
    return true;
  }

  /** Settles a waiter with what the call that was just made said. */
  #tell(waiter: Waiter, status: Status): void {
    const { key, timeout } = waiter.request;
    if (status === Status.yes) {
      const permit = new Permit(this.#limiter, key);
      if (waiter.isOver) return permit.cancel(); // It left while the core was at work.
      this.#settle(waiter);
      return waiter.resolve(permit);
    }
    const after = numbers[Num.retryAfter]! / 1e3;
    const why = `no room in limit "${this.#limiter.name}" within ${timeout} ms: retry after ${after} ms`;
    this.#reject(waiter, new TimeoutError(why, after));
  }

  #reject(waiter: Waiter, reason: unknown): void {
    this.#settle(waiter);
    waiter.reject(reason);
  }

  #settle(waiter: Waiter): void {
    waiter.isOver = true;
    if (waiter.onAbort !== undefined) waiter.request.signal!.removeEventListener("abort", waiter.onAbort);
  }

  /** Does something as soon as the core is not at work on the line. */
  #soon(action: () => void): void {
    if (this.#isBusy) this.#after.push(action);
    else action();
  }

  /** Lets the core work on the line. `done` reads what it answered. */
  #do(op: Op, key: string, weight: number, done: (answer: Answer) => void): void {
    this.#isBusy = true;
    this.#limiter._ask(op, key, weight, (answer) => {
      try {
        done(() => {
          try {
            return answer();
          } finally {
            this.#isBusy = false;
          }
        });
      } finally {
        const after = this.#after;
        this.#after = [];
        for (const action of after) this.#soon(action);
      }
    });
  }

  #goOn(due: number): void {
    if (this.#waiters.size === 0) this.#end();
    else this.#sleep(due);
  }

  /** There are waiters. */
  #begin(): void {
    for (const bell of this.#limiter._bells()) bell.add(this);
    this.#isPrecise = this.#limiter._countsWithin(SHORT_WINDOW);
  }

  /** There are none. */
  #end(): void {
    for (const bell of this.#limiter._bells()) bell.delete(this);
    this.#cancelSleep();
  }

  /** Looks again after so many ms at the latest. */
  #sleep(ms: number): void {
    if (this.#waiters.size === 0 || ms < 0) return;
    const due = now() + ms;
    if (due >= this.#due) return;
    this.#cancelSleep();
    this.#due = due;
    const look = (): void => {
      this.#due = Infinity;
      this.#soon(() => this.#advance(Op.advance));
    };
    if (ms === 0 || (this.#isPrecise && ms <= SLACK)) this.#immediate = setImmediate(look);
    else this.#timer = setTimeout(look, Math.min(this.#isPrecise ? ms - SLACK : Math.ceil(ms), LONGEST_TIMER));
  }

  #cancelSleep(): void {
    clearTimeout(this.#timer);
    clearImmediate(this.#immediate);
    this.#due = Infinity;
  }
}
