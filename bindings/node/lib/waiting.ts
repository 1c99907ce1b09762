// Waiting: the core keeps the line of waiters; this file keeps the line's one timer. Freed units wake the line. Each waiter goes on
// before the next one is decided.

import { onAbort } from "./aborting.js";
import type { StartKey } from "./charges.js";
import { SyncUnsupported, TimeoutError, thrown } from "./errors.js";
import type { Limiter } from "./limiter.js";
import { Int, Num, Op, Status } from "./layout.js";
import { type Answer, call, ints, numbers, shared } from "./native.js";
import { oneByOne } from "./one-by-one.js";
import { Permit } from "./permit.js";
import type { Request } from "./request.js";
import { clearImmediate, clearTimeout, now, setImmediate, setTimeout } from "./timers.js";

/** The longest delay of a timer in Node. */
const LONGEST_TIMER = 2 ** 31 - 1;

/** The least time, in ms, that any caller gives a store to answer, and when to ask again after that: as in the core. */
const ANSWERS = 100;
const LOOK_AGAIN = 10;

/** How late a timer is expected to be, in ms. */
const SLACK = 2;

/** The places of a window shorter than this, in ms, expire sooner than timers are late. */
const SHORT_WINDOW = 100;

/** Wakes the lines in this thread that wait for the same event. */
export class Bell {
  readonly #lines = new Set<Line>();

  add(line: Line): void {
    this.#lines.add(line);
  }

  delete(line: Line): void {
    this.#lines.delete(line);
  }

  /** Wakes the waiters of a key; without one, all. Units may be free. */
  ring(key?: string): void {
    for (const line of this.#lines) line.wake(key);
  }
}

/** Who waits. */
export interface Caller {
  resolve(permit: Permit): void;
  reject(reason: unknown): void;
}

/** One `acquire`. */
class Waiter {
  /** The core's number for it, once it is in the line. */
  id = 0;
  isOver = false;
  /** Ends listening to its signal. */
  unlisten: (() => void) | undefined;
  readonly since = now();
  /** Ends its wait for a store that is being opened. */
  timer: NodeJS.Timeout | undefined;

  constructor(
    readonly request: Request,
    readonly caller: Caller,
  ) {}
}

/** The waiters of a limiter in this thread. */
export class Line {
  readonly #limiter: Limiter;
  /** By the core's numbers. */
  readonly #waiters = new Map<number, Waiter>();
  #timer: NodeJS.Timeout | undefined;
  #immediate: NodeJS.Immediate | undefined;
  /** When the timer fires, on the clock of `now()`. */
  #due = Infinity;
  #isPrecise = false;
  /** Whether the core works on the line, perhaps on the thread pool, or while it asks limiters written in JavaScript. */
  #isBusy = false;
  /** The actions that follow then, from the one at `#next` on. */
  #after: (() => void)[] = [];
  #next = 0;
  #isContinuing = false;
  /** The number of waiters that have not joined yet because the store is being opened. */
  #coming = 0;
  /** The number of waiters that have started. */
  #started = 0;

  constructor(limiter: Limiter) {
    this.#limiter = limiter;
  }

  /** Whether the line is empty. */
  get isIdle(): boolean {
    return this.#waiters.size === 0 && !this.#isBusy && this.#coming === 0 && this.#after.length === 0;
  }

  /** Lets a caller wait for a permit. */
  acquire(request: Request, caller: Caller): void {
    const { signal } = request;
    if (signal?.aborted) return caller.reject(signal.reason);
    const waiter = new Waiter(request, caller);
    if (signal !== undefined) waiter.unlisten = onAbort(signal, () => this.#abort(waiter));
    const opening = this.#limiter._opening();
    if (opening === null && this.#coming === 0) return this.#soon(() => this.#join(waiter));
    this.#coming++;
    const afterwards = (then: () => void) =>
      oneByOne(() => {
        this.#coming--;
        clearTimeout(waiter.timer);
        if (!waiter.isOver) then();
      });
    if (request.timeout >= 0 && !this.#limiter._isManual()) {
      // Opening takes as long as the store waits. Its result is for all callers, so it goes on.
      const ms = Math.min(Math.max(request.timeout, ANSWERS), LONGEST_TIMER);
      waiter.timer = setTimeout(() => this.#expire(waiter, LOOK_AGAIN), ms);
    }
    Promise.resolve(opening).then(
      () => afterwards(() => this.#soon(() => this.#join(waiter))),
      (error) => afterwards(() => this.#reject(waiter, this.#limiter._notDecided(error))),
    );
  }

  /** Rejects all waiters. */
  stop(reason: Error): void {
    for (const waiter of [...this.#waiters.values()]) {
      this.#reject(waiter, reason);
      this.#left(waiter);
    }
  }

  /** Wakes the waiters of a key; without one, all. Units may be free. */
  wake(key?: string): void {
    this.#soon(() => this.#advance(key === undefined ? Op.wakeAll : Op.wake, key));
  }

  #join(waiter: Waiter): void {
    if (waiter.isOver) return;
    const { key, weight, priority, share, timeout, grace, place } = waiter.request;
    try {
      if (place !== undefined) this.#limiter._put("place", place);
    } catch (error) {
      return this.#reject(waiter, error);
    }
    ints[Int.priority] = priority;
    numbers[Num.time] = timeout < 0 || this.#limiter._isManual() ? timeout : Math.max(0, timeout - (now() - waiter.since));
    numbers[Num.grace] = grace;
    numbers[Num.share] = share;
    this.#do(place === undefined ? Op.join : Op.joinWithPlace, key, weight, (answer) => {
      try {
        this.#joined(waiter, answer());
      } catch (error) {
        this.#reject(waiter, error);
      }
    });
  }

  #joined(waiter: Waiter, status: Status): void {
    // The thread pool made what its start needs. It is decided now, when the waiter can go on: the loop may have been busy meanwhile.
    if (status === Status.prepared) return this.#join(waiter);
    const { place } = waiter.request;
    const due = numbers[Num.due]!;
    if (place instanceof Permit) place._useUp(); // From now on it belongs to the waiter.
    if (status === Status.waiting) {
      waiter.id = numbers[Num.waiter]!;
      if (this.#waiters.size === 0) this.#begin();
      this.#waiters.set(waiter.id, waiter);
      if (waiter.isOver) this.#left(waiter);
    } else {
      this.#finish(waiter, status);
    }
    this.#sleep(due);
  }

  #abort(waiter: Waiter): void {
    this.#reject(waiter, waiter.request.signal!.reason);
    this.#left(waiter);
  }

  /** Takes a waiter that gave up out of the line. */
  #left(waiter: Waiter): void {
    if (!this.#waiters.delete(waiter.id)) return;
    this.#soon(() => {
      numbers[Num.waiter] = waiter.id;
      // The place that it brought has to be given back, which may need a call to the store.
      if (waiter.request.place !== undefined && this.#limiter._isShared()) return this.#advance(Op.leaveWithPlace);
      try {
        this.#limiter._do(Op.leave, "", 1);
      } catch (error) {
        if (!(error instanceof SyncUnsupported)) throw error;
        return this.#advance(Op.advance);
      }
      this.#continue(numbers[Num.due]!);
    });
  }

  #advanceSoon(): void {
    const started = this.#started;
    oneByOne(() => {
      // The waiter that has started in the meantime has not gone on yet.
      if (started !== this.#started) return this.#advanceSoon();
      this.#soon(() => this.#advance(Op.advance));
    });
  }

  /** Lets the core do the work that is due, for one waiter, and settles the waiters whose wait has ended. */
  #advance(how: Op, key = ""): void {
    this.#do(how, key, 1, (answer) => {
      answer();
      const due = numbers[Num.due]!;
      let hasEnded = false;
      while (this.#take()) hasEnded = true;
      if (hasEnded && due === 0) this.#advanceSoon();
      else this.#continue(due);
    });
  }

  /** Settles one waiter whose wait has ended; returns false if there is none. */
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
      if (status === Status.yes) new Permit(this.#limiter, null).cancel(); // It left while the core worked.
      return true;
    }
    this.#waiters.delete(id);
    if (failure === undefined) this.#finish(waiter, status);
    else this.#reject(waiter, failure);
    return true;
  }

  /** Settles a waiter with the result of the last call. */
  #finish(waiter: Waiter, status: Status): void {
    const { key, place } = waiter.request;
    if (status === Status.yes) {
      const permit = new Permit(this.#limiter, place === undefined ? key : null);
      if (waiter.isOver) return permit.cancel(); // It left while the core worked.
      this.#settle(waiter);
      this.#started++;
      return waiter.caller.resolve(permit);
    }
    this.#expire(waiter, numbers[Num.retryAfter]! / 1e3);
  }

  #expire(waiter: Waiter, after: number): void {
    const why = `limit "${this.#limiter.name}" has no free units within ${waiter.request.timeout} ms: retry after ${after} ms`;
    this.#reject(waiter, new TimeoutError(why, after));
  }

  #reject(waiter: Waiter, reason: unknown): void {
    this.#settle(waiter);
    waiter.caller.reject(reason);
  }

  #settle(waiter: Waiter): void {
    waiter.isOver = true;
    clearTimeout(waiter.timer);
    waiter.unlisten?.();
  }

  /** Runs an action as soon as the core does not work on the line. */
  #soon(action: () => void): void {
    if (this.#isBusy || this.#after.length > 0) this.#after.push(action);
    else action();
  }

  /** Runs the next action, and then the others, unless the core works on the line again. */
  #continueSoon(): void {
    if (this.#after.length === 0 || this.#isContinuing) return;
    this.#isContinuing = true;
    oneByOne(() => {
      this.#isContinuing = false;
      if (this.#isBusy) return;
      const action = this.#after[this.#next++]!;
      if (this.#next === this.#after.length) {
        this.#after = [];
        this.#next = 0;
      }
      action();
      this.#continueSoon();
    });
  }

  /** Lets the core work on the line. `done` reads the result. */
  #do(op: Op, key: StartKey, weight: number, done: (answer: Answer) => void): void {
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
        this.#continueSoon();
      }
    });
  }

  #continue(due: number): void {
    // A line that is still at a server has to come back, though nobody waits any more.
    if (this.#waiters.size === 0 && due < 0) this.#end();
    else this.#sleep(due);
  }

  /** The first waiter has joined. */
  #begin(): void {
    for (const bell of this.#limiter._bells()) bell.add(this);
    shared.lines.set(this.#limiter._lineNumber, () => this.#advanceSoon());
    this.#isPrecise = this.#limiter._countsWithin(SHORT_WINDOW);
  }

  /** The last waiter has left. */
  #end(): void {
    for (const bell of this.#limiter._bells()) bell.delete(this);
    shared.lines.delete(this.#limiter._lineNumber);
    this.#cancelSleep();
  }

  /** Advances the line in `ms` at the latest. */
  #sleep(ms: number): void {
    if (ms < 0) return;
    const due = now() + ms;
    if (due >= this.#due) return;
    this.#cancelSleep();
    this.#due = due;
    const advance = (): void => {
      this.#due = Infinity;
      this.#advanceSoon();
    };
    if (ms === 0 || (this.#isPrecise && ms <= SLACK)) this.#immediate = setImmediate(advance);
    else this.#timer = setTimeout(advance, Math.min(this.#isPrecise ? ms - SLACK : Math.ceil(ms), LONGEST_TIMER));
  }

  #cancelSleep(): void {
    clearTimeout(this.#timer);
    clearImmediate(this.#immediate);
    this.#due = Infinity;
  }
}
