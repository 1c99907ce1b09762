// Decides for all tabs and workers of an origin, with limits in memory that it writes to the database.
//
// 1. *What is told is written.* A start is told when the words of its key are in the database, and the write has shown that nobody
//    else leads. A denial is told at once, if that was shown less than `DOZE` ago: a caller takes over from a leader that was silent for longer.
//    If a write fails, its starts are errors and are taken back, and what they changed is written with the next one.
// 2. *The time does not jump.* A leader goes on from the time that it has heard from the one before, by its own clock, which nobody
//    can set; it has heard late, so it is late, never early. Only one that has heard nobody uses the time of day; one that has heard
//    an earlier leader than the last that wrote, uses the earlier of both.
// 3. *A start that holds units has the name of its client and call*, and is written with the words of its key. So the next leader
//    answers that call with that start; ends it, if the client does not know it; and if the client dies, whose lock is free then.

import { type Clock, type Epoch, type HeardTime, LeaderClock } from "./clock.js";
import { type About, type Begun, type Database, NotLeading } from "./database.js";
import { type Answer, type Call, Decider, type Start } from "./decider.js";
import { type Decided, type Engine, How } from "./engine.js";
import { LimitError, StoreError } from "./errors.js";
import { Kept } from "./kept.js";

/** How long after it was shown that this one leads a denial may be told without showing it again; in ms. */
const DOZE = 1_000;
/** After how many ms a write that failed is tried again. */
const AGAIN = 1_000;
/** So many calls are answered with one write. */
const BATCH = 1_000;
/** So many changes wait for a write to succeed. */
const MOST = 2_000;
/** The name of the lock that a client holds as long as it lives. */
export const lockOf = (client: string): string => `workglow-limit client ${client}`;

interface Hold {
  readonly start: Start;
  readonly decided: Decided;
}

/** A call of a client. */
interface Asked {
  readonly client: string;
  readonly id: number;
  readonly call: Call;
  /** Its place among those who wait, if it had one. */
  readonly order?: number | undefined;
  readonly answer: (answer: Answer) => void;
  readonly refuse: (error: unknown) => void;
  readonly placed?: (order: number) => void;
}

interface Untold {
  readonly asked: Asked;
  readonly answer: Answer;
}

interface Client {
  /** The places of those who wait. */
  readonly waiters: Map<number, number>;
}

/** Where a leader comes from. */
export interface Origin {
  readonly database: Database;
  readonly client: string;
  readonly clock: Clock;
  readonly made: (unixUs: number) => Promise<Engine>;
  readonly heard: HeardTime;
  /** Whether another one leads already. */
  readonly isOver: () => boolean;
}

export class Leader {
  readonly #database: Database;
  readonly #clock: LeaderClock;
  readonly #decider: Decider;
  readonly #kept: Kept;
  /** What all leaders of this database have in common, and what only this one has. */
  readonly id: Epoch;
  readonly #clients = new Map<string, Client>();
  readonly #holds = new Map<string, Map<number, Hold>>();
  readonly #watches = new AbortController();
  #end = () => {};
  /** Resolves when this one leads no longer. */
  readonly ended = new Promise<void>((end) => (this.#end = end));
  #isOver = false;
  #inbox: Asked[] = [];
  /** What is told when all changes are written. */
  #untold: Untold[] = [];
  #isRunning = false;
  #again: ReturnType<typeof setTimeout> | undefined;
  #shownAt = Number.NEGATIVE_INFINITY;
  #place = 0;

  private constructor(database: Database, engine: Engine, clock: LeaderClock, id: Epoch) {
    this.#database = database;
    this.#clock = clock;
    this.id = id;
    this.#decider = new Decider(engine, clock);
    this.#kept = new Kept(database, engine, clock, id.number, () => [...this.#holds.values()].flatMap((holds) => [...holds.values()]));
  }

  static async begin({ database, client, clock, made, heard, isOver }: Origin): Promise<Leader> {
    const { held = [] } = await navigator.locks.query();
    const alive = new Set(held.map(({ name }) => name));
    const begun = await database.lead(client, (client) => alive.has(lockOf(client)), isOver);
    const about = begun.about ?? { number: 0, unixUs: clock.unixUs, time: clock.now()[1], wall: Date.now(), epoch: 0 };
    const engine = await made(about.unixUs);
    engine.number(about.number);
    const time = timeOf(about, begun.about ? heard.now(begun.epoch.database) : null);
    const leader = new Leader(database, engine, new LeaderClock(clock, time, about.unixUs), begun.epoch);
    leader.#restore(begun);
    return leader;
  }

  #restore({ limits, holds }: Begun): void {
    for (const [[client, id], hold] of holds as [[string, number], Partial<Hold> | null][]) {
      if (hold?.start && hold.decided) this.#hold(client, id, hold as Hold);
    }
    this.#kept.restore(limits, (name, policy) => this.#decider.ask({ op: "declare", name, policy }, () => {}, fail));
  }

  /** The store's time in µs, not before it. */
  get time(): number {
    return this.#clock.now()[1];
  }

  /** The calls of each client whose starts hold units. */
  get holds(): Map<string, number[]> {
    return new Map([...this.#holds].map(([client, holds]) => [client, [...holds.keys()]]));
  }

  /** Answers a call of a client, unless this one stops leading: then the next one is asked. */
  ask(asked: Asked): void {
    this.#client(asked.client);
    this.#inbox.push(asked);
    void this.#run();
  }

  /** Ends a start that its client does not know. (3) */
  forget(client: string, id: number): void {
    const hold = this.#holds.get(client)?.get(id);
    if (hold !== undefined) this.#endHold(client, id, hold, How.cancelled);
  }

  /** Starts those who wait, in case the timers of this program are slow. Returns after how many ms that is to be done again. */
  beat(): number {
    return this.#clock.run();
  }

  async #run(): Promise<void> {
    if (this.#isRunning || this.#isOver) return;
    this.#isRunning = true;
    try {
      // (Also if a write has failed: it is tried again here, once.)
      do {
        await this.#answer(this.#inbox.splice(0, BATCH));
        if (this.#isOver) return;
        await this.#write();
      } while (this.#inbox.length > 0 || this.#untold.length > 0);
    } catch {
      // It does not lead, or is broken: the next one is asked.
      this.close();
    } finally {
      this.#isRunning = false;
    }
  }

  async #answer(batch: readonly Asked[]): Promise<void> {
    try {
      const load = await this.#read(batch);
      if (this.#isOver) return;
      load();
    } catch (error) {
      if (error instanceof NotLeading) throw error;
      for (const asked of batch) this.#refuse(asked, error);
      return;
    }
    for (const asked of batch) this.#do(asked);
  }

  #refuse({ refuse }: Asked, error: unknown): void {
    if (this.#isOver) return;
    if (error instanceof LimitError) return refuse(error);
    // Nobody knows what state this one is in: the next one reads what was written.
    refuse(new StoreError(`the leader has failed: ${error}`, "store_failure", -9));
    this.close();
  }

  /** Reads the keys that these calls need. Returns how to put them into memory. */
  async #read(batch: readonly Asked[]): Promise<() => void> {
    const keys: (readonly [string, string])[] = [];
    for (const { call } of batch) {
      if (call.op === "declare" || call.op === "leave") continue;
      const { name, key = "" } = call.op === "end" ? call.start : call;
      keys.push([name, ""], [name, key]);
    }
    const load = await this.#kept.read(keys);
    const asked = performance.now();
    if (asked - this.#shownAt > DOZE) {
      if (!(await this.#database.isLatest(this.id.number))) throw new NotLeading("another one leads");
      this.#shownAt = asked;
    }
    return load;
  }

  #do(asked: Asked): void {
    const client = this.#clients.get(asked.client);
    let { call } = asked;
    // It has died.
    if (client === undefined && asked.id !== 0) return;
    // The start went with its database.
    if (call.op === "end" && call.start.database !== this.id.database) return asked.answer(null);
    if (call.op === "decide" || call.op === "wait") {
      const hold = this.#holds.get(asked.client)?.get(asked.id);
      if (hold !== undefined) return asked.answer(hold.decided);
    }
    if (call.op === "wait") {
      // (The fraction: no two leaders give the same place.)
      const place = asked.order ?? Math.max(Math.floor(this.#place) + 1, Math.floor(this.time)) + (this.id.number % 64) / 64;
      this.#place = Math.max(this.#place, place);
      client!.waiters.set(call.waiter, place);
      call = { ...call, waiter: place };
      asked.placed?.(place);
    } else if (call.op === "leave") {
      const place = client!.waiters.get(call.waiter) ?? 0;
      client!.waiters.delete(call.waiter);
      call = { ...call, waiter: place };
    }
    const over = () => void (asked.call.op === "wait" && client!.waiters.delete(asked.call.waiter));
    this.#decider.ask(
      call,
      (decided) => {
        over();
        const answer = decided?.admitted ? { ...decided, database: this.id.database } : decided;
        try {
          if (!this.#note(asked, answer)) return asked.answer(answer);
        } catch (error) {
          return this.#refuse(asked, error);
        }
        this.#untold.push({ asked, answer });
        void this.#run();
      },
      (error) => {
        over();
        this.#refuse(asked, error);
      },
    );
  }

  /** Notes what is to be written. Returns whether that is anything. */
  #note({ client, id, call }: Asked, answer: Answer): boolean {
    if (call.op === "peek" || call.op === "leave" || (answer !== null && !answer.admitted)) return false;
    const { name, key = "" } = call.op === "end" ? call.start : { key: "", ...call };
    const kept = this.#kept;
    if (call.op === "declare") return kept.changeLimit(name, call.policy);
    if (call.op === "override" && call.key === undefined) return kept.changeLimit(name, "");
    if (call.op === "override") kept.changePlan(name, key);
    if (call.op === "clear" && key === "") kept.clear(name);
    kept.changeKey(name, key);
    if (call.op === "end" && call.hold !== undefined) this.#changeHold(client, call.hold, null);
    const start = startOf(call, answer);
    if (start !== null && answer?.holds) this.#changeHold(client, id, { start, decided: answer });
    return true;
  }

  /** Writes all changes, and tells what was decided. (1) */
  async #write(): Promise<void> {
    const [untold, asked] = [this.#untold, performance.now()];
    if (this.#kept.changes === 0) return;
    this.#untold = [];
    try {
      await this.#kept.write();
    } catch (error) {
      if (error instanceof NotLeading) throw error;
      return this.#failed(untold, error);
    }
    this.#shownAt = asked;
    if (this.#isOver) return;
    for (const { asked, answer } of untold) asked.answer(answer);
    await this.#kept.sweep();
  }

  #failed(untold: readonly Untold[], error: unknown): void {
    if (this.#isOver) return;
    for (const { asked, answer } of untold) {
      this.#refuse(asked, error);
      const { client, id, call } = asked;
      const start = startOf(call, answer);
      if (start !== null) this.#endHold(client, id, { start, decided: answer! }, How.cancelled);
    }
    // What was not told may be forgotten: the next one begins with what is written.
    if (this.#kept.changes > MOST) return this.close();
    clearTimeout(this.#again);
    this.#again = setTimeout(() => void this.#run(), AGAIN);
  }

  #hold(client: string, id: number, hold: Hold): void {
    this.#client(client);
    this.#holds.set(client, (this.#holds.get(client) ?? new Map<number, Hold>()).set(id, hold));
  }

  #changeHold(client: string, id: number, hold: Hold | null): void {
    if (hold !== null) this.#hold(client, id, hold);
    else if (this.#holds.get(client)?.delete(id) && this.#holds.get(client)!.size === 0) this.#holds.delete(client);
    this.#kept.change(["holds", client, id], () => ["holds", [client, id], this.#holds.get(client)?.get(id) ?? null]);
  }

  /** Ends a start for its client. */
  #endHold(client: string, id: number, { start }: Hold, how: How): void {
    const call: Call = { op: "end", start, how, actual: 0, hold: id };
    const nothing = () => {};
    // (It is no call of the client, so it has no number.)
    this.#inbox.push({ client, id: 0, call, answer: nothing, refuse: nothing });
    void this.#run();
  }

  /** Returns a client, and watches whether it dies. (3) */
  #client(client: string): Client {
    const known = this.#clients.get(client);
    if (known !== undefined) return known;
    const met = { waiters: new Map<number, number>() };
    this.#clients.set(client, met);
    const died = () => {
      this.#clients.delete(client);
      for (const waiter of met.waiters.values())
        this.#decider.ask(
          { op: "leave", waiter },
          () => {},
          () => {},
        );
      for (const [id, hold] of this.#holds.get(client) ?? []) this.#endHold(client, id, hold, How.completed);
    };
    // (Shared: others watch, too, and one of them may stand still.)
    navigator.locks.request(lockOf(client), { mode: "shared", signal: this.#watches.signal }, died).catch(() => {});
    return met;
  }

  close(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearTimeout(this.#again);
    this.#watches.abort();
    this.#decider.close(new LimitError("another one leads", "store_failure", -9));
    this.#end();
  }
}

/** The start that a call was given, if it was. */
export function startOf(call: Call, answer: Answer): Start | null {
  if (!answer?.admitted || (call.op !== "decide" && call.op !== "wait")) return null;
  return { name: call.name, key: call.key, weight: call.weight, held: answer.held, database: answer.database };
}

/** The store's time for the next leader. (2) The time of day is rounded down. */
function timeOf({ time, wall, epoch }: About, heard: ReturnType<HeardTime["now"]>): number {
  let now = time + Math.max(0, Date.now() - wall - 1) * 1e3;
  if (heard !== null) now = heard.number >= epoch ? heard.us : Math.min(heard.us, now);
  return Math.max(time, now);
}

const fail = (error: unknown): never => {
  throw error;
};
