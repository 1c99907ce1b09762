// A store that all tabs and workers of an origin share: each is a client, and one of them leads and decides for all. (`messages.ts`: what
// they tell each other.)
//
// 1. *Who leads.* All ask for one lock (Web Locks), and whoever gets it leads until it dies: then the browser gives the lock to the next.
// 2. *Nobody is stopped by a leader that stands still* (a frozen tab, an endless loop). Clients with open calls beat, and who hears
//    nothing for `PATIENCE` steals the lock. Whoever has the lock answers beats, also while it waits for the database. The former leader
//    may go on later: the database refuses what it writes (`Database` 1).
// 3. *Each leader is asked once.* A client sends an open call to each leader that it hears of, in order, and takes the first answer.
//    A start of another answer is taken back: two leaders never answer with the same start, unless it holds units (`Leader` 3).
// 4. *Lost messages stop nobody.* Now and then a client tells the leader which calls it has open for long, and sends those again that the
//    leader does not know. One that is answered after all is not known any more, but its answer comes first.
// 5. *Nobody starts long after it was decided.* A waiter that hears late of its start, as its tab was frozen, gives it back and keeps its
//    place: it waits again before its units are free. But only once, so that a slow machine gets on.

import { Channels, inletOf, lockOf } from "./channels.js";
import { type Clock, type Epoch, HeardTime } from "./clock.js";
import { Database } from "./database.js";
import type { Answer, Call, Start } from "./decider.js";
import { Ended } from "./ended.js";
import { type Decided, type Engine, How } from "./engine.js";
import { type LimitError, StoreClosed, StoreError, TimeoutError, errorOf } from "./errors.js";
import { Leader, idOf, startOf } from "./leader.js";
import type { Desk } from "./limiter.js";
import type { Message } from "./messages.js";

/**
 * How often a client beats, in ms, also if the leader has something to do before, whose own timers may be slow; and after how many beats
 * without an answer it takes over.
 */
const BEAT = 250;
const SOON = 20;
const PATIENCE = 8;
/** After which time a client that has failed to lead tries again, in ms: at first, and at most. */
const REST = 100;
const LONGEST_REST = 5_000;
/** How long it may take to begin, in ms. */
const BEGINNING = 30_000;
/** After so many beats a client asks whether the leader knows its calls, about so many at a time. (4) */
const ASKING = 8;
const ASKED = 1_000;
/** From how many µs on an answer is late. (5) */
const LATE = 1e6;

interface Open {
  readonly call: Call;
  readonly resolve: (answer: Answer) => void;
  readonly reject: (error: unknown) => void;
  order?: number;
  /** The number of the message with which it was sent last. */
  sent?: number;
  /** The answer was late once. */
  isAgain?: boolean;
  /** It is not asked again: it has left, when it had perhaps started. */
  hasLeft?: boolean;
}

export class Shared implements Desk {
  readonly #name: string;
  readonly #clock: Clock;
  readonly #made: (unixUs: number) => Promise<Engine>;
  readonly #engine: Engine;
  readonly #me = crypto.randomUUID();
  readonly #channels: Channels;
  readonly #open = new Map<number, Open>();
  /** The calls whose starts hold units, by start. */
  readonly #holds = new Map<string, number>();
  /** The other starts that were ended. */
  readonly #ended = new Ended();
  #sent = 0;
  /** What this client has declared. */
  readonly #declared = new Map<string, string>();
  readonly #closing = new AbortController();
  #last = 0;
  /** The leader that was heard last, and this program, if it leads or has the lock. */
  #known: Epoch | null = null;
  #stint: Stint | null = null;
  /** What was told of leaders while this program has the lock, as far as it knows. */
  #later: (Message & { kind: "leads" })[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;
  /** For how many beats no leader was heard. (A program that stood still itself has not listened.) */
  #silent = 0;
  #after = BEAT;
  #beats = 0;
  /** The last call when the leader was asked for all calls, or changed. */
  #before = 0;
  /** The last call that the leader was asked for, if there are more. */
  #asked = 0;
  readonly #heard: HeardTime;
  #die = () => {};
  #wake = () => {};

  private constructor(name: string, clock: Clock, made: (unixUs: number) => Promise<Engine>, engine: Engine) {
    this.#name = name;
    this.#clock = clock;
    this.#heard = new HeardTime(clock);
    this.#made = made;
    this.#engine = engine;
    this.#channels = new Channels(name, this.#me, (message) => this.#received(message));
  }

  static async open(name: string, clock: Clock, made: (unixUs: number) => Promise<Engine>): Promise<Shared> {
    // Whoever cannot use the database is told now.
    (await Database.open(databaseOf(name))).close();
    const shared = new Shared(name, clock, made, await made(0));
    try {
      await shared.#live();
    } catch (error) {
      shared.close();
      throw new StoreError(`asking for a lock: ${error}`, "store_failure", -9);
    }
    // Whoever leads tells the time.
    shared.#post({ kind: "beat", from: shared.#me });
    void shared.#stand();
    return shared;
  }

  /** Holds the lock of this client. */
  #live(): Promise<void> {
    return new Promise((lives, failed) => {
      const life = new Promise<void>((die) => (this.#die = die));
      const living = () => {
        lives();
        return life;
      };
      navigator.locks.request(lockOf(this.#me), living).catch(failed);
    });
  }

  async call(call: Call): Promise<Answer> {
    if (call.op === "declare" && call.policy !== "") this.#declared.set(call.name, call.policy);
    const { name } = call.op === "end" ? call.start : { name: "", ...call };
    try {
      return await this.#ask(call);
    } catch (error) {
      // The database was deleted since it was declared.
      const policy = this.#declared.get(name);
      if ((error as LimitError).code !== "unknown_limit" || policy === undefined || call.op === "declare") throw error;
      await this.#ask({ op: "declare", name, policy });
      return this.#ask(call);
    }
  }

  #ask(call: Call): Promise<Answer> {
    return new Promise((resolve, reject) => {
      if (this.#closing.signal.aborted) return reject(this.#closed());
      const hold = call.op === "end" ? this.#holds.get(idOf(call.start)) : undefined;
      if (this.#open.size === 0) this.#silent = 0;
      this.#add({ call: hold !== undefined && call.op === "end" ? { ...call, hold } : call, resolve, reject });
      this.#wake();
      // (Those who ask all the time beat, too.)
      if (this.#open.size === 1) this.#wind();
    });
  }

  #add(open: Open): void {
    this.#open.set(++this.#last, open);
    if (this.#known === null) this.#post({ kind: "beat", from: this.#me });
    else this.#send(this.#known, this.#last, open);
  }

  unitOfTime(name: string): number {
    return this.#engine.unitOfTime(name);
  }

  /** Sends a message to the leader, which may be this program. */
  #post(message: Message): void {
    if (this.#stint !== null) return this.#lead(this.#stint, message);
    this.#channels.toLeader(message);
  }

  #send(to: Epoch, id: number, open: Open): void {
    const { call, order } = open;
    open.sent = ++this.#sent;
    this.#post({ kind: "call", to, from: this.#me, id, call, order, known: this.#ended.tell(open.sent) });
  }

  /** Beats while calls are open. (A leader has its own timers.) */
  #wind(): void {
    clearTimeout(this.#timer);
    if (this.#stint?.leader || this.#closing.signal.aborted || this.#open.size === 0) return;
    this.#timer = setTimeout(() => this.#beat(), this.#after);
  }

  #beat(): void {
    if (this.#open.size === 0) return;
    if (++this.#silent > PATIENCE) {
      this.#silent = 0;
      void this.#hold({ steal: true });
    }
    this.#after = BEAT;
    this.#post({ kind: "beat", from: this.#me, ...(++this.#beats % ASKING === 0 && { open: this.#old() }) });
    this.#wind();
  }

  /** Calls that were open for long, and were not asked for the last time, if there are many. (4) */
  #old(): number[] {
    const old: number[] = [];
    for (const id of this.#open.keys()) {
      if (id > this.#before || old.length === ASKED) break;
      if (id > this.#asked) old.push(id);
    }
    this.#asked = old.length === ASKED ? old.at(-1)! : 0;
    // (Later calls have to wait: if many come all the time, those before them are asked for again all the same.)
    if (this.#asked === 0) this.#before = this.#last;
    return old;
  }

  #received(message: Message): void {
    if (this.#closing.signal.aborted) return;
    if (message.kind === "begins") this.#silent = 0;
    if ("time" in message) this.#heard.hear(message.time, message.by);
    if (message.kind === "leads") return this.#led(message);
    if (!("to" in message) || message.to !== this.#me) return;
    const open = this.#open.get(message.id);
    if (message.kind === "placed" && open !== undefined) open.order = message.order;
    if (message.kind !== "answer") return;
    this.#open.delete(message.id);
    const { answer = null, start, error, by, time } = message;
    if (open === undefined) return start && answer ? this.#decline(message.id, start, answer) : undefined;
    const isLate = (this.#heard.now(by.database)?.us ?? 0) - time > LATE;
    const { call } = open;
    if (call.op === "wait" && start && answer && isLate && !open.isAgain && !open.hasLeft) {
      this.#waitAgain(open, call);
      return this.#decline(message.id, start, answer);
    }
    if (error !== undefined) {
      return open.reject(error.retryAfter === undefined ? errorOf(error) : new TimeoutError(error.message, error.retryAfter));
    }
    if (call.op === "end" && call.start.database === by.database && isRemembered(call)) this.#ended.written(open.sent ?? 0);
    this.#took(message.id, call, answer);
    open.resolve(answer);
  }

  /** Waits in the same place, before the units of the late start are free. (5) */
  #waitAgain(open: Open, call: Call & { op: "wait" }): void {
    // (They are not free yet, so the leader would refuse to wait for them in vain. Its caller knows how long it waits.)
    this.#add({ ...open, call: { ...call, patience: null }, isAgain: true });
    // Whoever leaves meanwhile leaves this place.
    for (const [id, leaving] of this.#open) {
      if (leaving.call.op !== "leave" || leaving.call.waiter !== call.waiter) continue;
      this.#open.delete(id);
      return this.#add(leaving);
    }
  }

  /** Hears of a leader, and asks it what is open. (3) */
  #led(message: Message & { kind: "leads" }): void {
    const { by, after, holds, lost = [] } = message;
    const known = this.#known;
    this.#silent = 0;
    // It has lost the lock, perhaps, and will be told so.
    if (this.#stint !== null && (this.#stint.leader === null || !isSame(this.#stint.leader.id, by))) return void this.#later.push(message);
    this.#after = Math.min(BEAT, Math.max(SOON, Math.ceil(after)));
    if (known?.database === by.database && known.number > by.number) return;
    if (known !== null && isSame(known, by)) {
      // (4)
      for (const id of lost) this.#askAgain(by, id);
      return this.#wind();
    }
    this.#known = by;
    this.#before = 0;
    this.#ended.tellAgain();
    for (const [id, { hasLeft }] of this.#open) if (hasLeft) this.#open.delete(id);
    const mine = new Set(this.#holds.values());
    for (const held of holds?.get(this.#me) ?? []) {
      if (!this.#open.has(held) && !mine.has(held)) this.#post({ kind: "forget", from: this.#me, id: held });
    }
    for (const [number, open] of this.#open) this.#send(by, number, open);
    this.#wind();
  }

  /** Sends a call that was lost, or whose answer was. (4) */
  #askAgain(to: Epoch, id: number): void {
    const open = this.#open.get(id);
    if (open === undefined) return;
    if (!open.hasLeft) return this.#send(to, id, open);
    this.#open.delete(id);
    this.#post({ kind: "forget", from: this.#me, id });
  }

  /** Notes what an answered call changes here. */
  #took(id: number, call: Call, answer: Answer): void {
    if (call.op === "end") {
      this.#holds.delete(idOf(call.start));
      if (isRemembered(call)) this.#ended.add(idOf(call.start));
    }
    const start = startOf(call, answer);
    if (start !== null && answer?.holds) this.#holds.set(idOf(start), id);
    if (call.op !== "leave") return;
    // Who has left is not asked for again. (Or it has started, and will be answered, unless the leader changes.)
    for (const [id, open] of this.#open) {
      if (open.call.op !== "wait" || open.call.waiter !== call.waiter) continue;
      if (answer === null) open.hasLeft = true;
      else this.#open.delete(id);
    }
  }

  /** Takes back a start that nobody waits for. (3) */
  #decline(id: number, start: Start, { holds }: Decided): void {
    if (this.#holds.has(idOf(start))) return;
    this.call({ op: "end", start, how: How.cancelled, actual: 0, ...(holds && { hold: id }) }).catch(() => {});
  }

  /** Does what a client asks the leader, which is this program, or will be. */
  #lead(stint: Stint, message: Message): void {
    if (!("from" in message)) return;
    const { leader, since } = stint;
    const to = message.from;
    const reply = (message: Message) => {
      if (stint !== this.#stint) return;
      if (to === this.#me) this.#received(message);
      else this.#channels.toClient(to, message);
    };
    if (leader === null) {
      if (message.kind === "beat" && performance.now() - since < BEGINNING) reply({ kind: "begins" });
      return;
    }
    const by = leader.id;
    if (message.kind === "beat") {
      const lost = leader.lost(to, message.open ?? []);
      return reply({ kind: "leads", by, time: leader.time, after: leader.beat(), ...(lost.length > 0 && { lost }) });
    }
    if (message.kind === "forget") return leader.forget(message.from, message.id);
    if (message.kind !== "call" || !isSame(message.to, by)) return;
    const { id, call, order, known } = message;
    leader.ask({
      client: to,
      id,
      call,
      order,
      known,
      placed: (order) => reply({ kind: "placed", to, id, order }),
      answer: (answer) => {
        stint.hasAnswered = true;
        const start = startOf(call, answer);
        reply({ kind: "answer", to, id, by, time: leader.time, answer, ...(start && { start }) });
      },
      refuse: (error) => {
        const { message, code = "store_failure", number = -9, retryAfter } = error as TimeoutError;
        const told = { message, code, number, ...(retryAfter !== undefined && { retryAfter }) };
        reply({ kind: "answer", to, id, by, time: leader.time, error: told });
      },
    });
  }

  /** Asks for the lock, and again whenever this program had it. (1) */
  async #stand(): Promise<void> {
    for (let rest = REST; !this.#closing.signal.aborted; ) {
      const { isStolen, hasAnswered } = await this.#hold({ signal: this.#closing.signal });
      if (isStolen) continue;
      await new Promise((rested) => setTimeout(rested, rest));
      if (hasAnswered) rest = REST;
      else rest = Math.min(2 * rest, LONGEST_REST);
      // If nobody asks, nobody has to lead.
      if (!hasAnswered && this.#open.size === 0) await new Promise<void>((wake) => (this.#wake = wake));
    }
  }

  /** Waits for the lock, or steals it, and leads until it is lost. (2) */
  async #hold(options: LockOptions): Promise<Stint> {
    const stint: Stint = { leader: null, inlet: null, since: 0, isOver: false, isStolen: false, isGone: false, hasAnswered: false };
    try {
      await navigator.locks.request(`workglow-limit lead ${this.#name}`, options, () => this.#begin(stint));
    } catch (error) {
      const { name, message } = error as Error;
      // (Or this was closed.)
      stint.isStolen = name === "AbortError";
      if (!stint.isStolen && !stint.isGone)
        this.#refuse(error instanceof StoreError ? error : new StoreError(`leading: ${message}`, "store_failure", -9));
    } finally {
      stint.isOver = true;
      stint.leader?.close();
      stint.inlet?.close();
      if (this.#stint === stint) this.#stint = null;
      for (const message of this.#later.splice(0)) this.#led(message);
      this.#wind();
    }
    return stint;
  }

  async #begin(stint: Stint): Promise<void> {
    if (this.#closing.signal.aborted || this.#stint !== null) return;
    this.#stint = stint;
    stint.since = performance.now();
    stint.inlet = inletOf(this.#name, (message) => this.#lead(stint, message));
    this.#channels.toAll({ kind: "begins" });
    const database = await Database.open(databaseOf(this.#name), () => {
      stint.isGone = true;
      stint.leader?.close();
    });
    try {
      // It may be stolen, or this closed, meanwhile.
      const isOver = () => stint.isOver || this.#closing.signal.aborted;
      const leader = await Leader.begin({ database, client: this.#me, clock: this.#clock, made: this.#made, heard: this.#heard, isOver });
      if (isOver() || stint.isGone) return leader.close();
      stint.leader = leader;
      const leads: Message = { kind: "leads", by: leader.id, time: leader.time, after: BEAT, holds: leader.holds };
      this.#channels.toAll(leads);
      this.#received(leads);
      await leader.ended;
    } finally {
      database.close();
    }
  }

  #refuse(error: LimitError): void {
    const open = [...this.#open.values()];
    this.#open.clear();
    for (const { reject } of open) reject(error);
  }

  #closed(): StoreClosed {
    return new StoreClosed(`store "indexeddb:${this.#name}" was closed`, "store_closed", -21);
  }

  close(): void {
    this.#refuse(this.#closed());
    this.#closing.abort();
    clearTimeout(this.#timer);
    this.#wake();
    this.#stint?.leader?.close();
    this.#stint?.inlet?.close();
    this.#stint = null;
    this.#channels.close();
    this.#engine.close();
    this.#die();
  }
}

/** A time for which a program has the lock. */
interface Stint {
  /** `null`: it begins. */
  leader: Leader | null;
  /** Where it hears of calls. */
  inlet: BroadcastChannel | null;
  /** When it has begun, in ms. */
  since: number;
  isOver: boolean;
  isStolen: boolean;
  /** Its database was deleted, or closed in another way. */
  isGone: boolean;
  hasAnswered: boolean;
}

const databaseOf = (name: string): string => `workglow-limit ${name}`;
/** Whether a leader writes that this start was ended. (`Leader` 4) */
const isRemembered = ({ how, hold }: Call & { op: "end" }): boolean => how !== How.completed && hold === undefined;
const isSame = (a: Epoch, b: Epoch): boolean => a.database === b.database && a.number === b.number;
