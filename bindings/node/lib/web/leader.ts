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
// 4. *Units are given back once.* A client that was not answered, or with an error, may end a start again. So each start that was
//    cancelled or settled is remembered, and written with the words of its key, until its client says that it ends it no more. (A start
//    that holds units is one that is not held any more.)

import { lockOf } from "./channels.js";
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
  /** The starts that the client ends no more. (4) */
  readonly known: readonly string[];
  readonly answer: (answer: Answer) => void;
  readonly refuse: (error: unknown) => void;
  readonly placed?: (order: number) => void;
}

interface Untold {
  readonly asked: Asked;
  readonly answer: Answer;
}

interface Client {
  /** The calls that are not answered. */
  readonly open: Set<number>;
  /** The places of those who wait, and their calls. */
  readonly waiters: Map<number, { readonly place: number; readonly id: number }>;
  /** The starts that were cancelled or settled, and whether any were written. (4) */
  readonly ended: Set<string>;
  hasRecord: boolean;
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
  readonly #engine: Engine;
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
  #starts = 0;

  private constructor(database: Database, engine: Engine, clock: LeaderClock, id: Epoch) {
    this.#database = database;
    this.#clock = clock;
    this.id = id;
    this.#engine = engine;
    this.#decider = new Decider(engine, clock);
    this.#kept = new Kept({
      database,
      engine,
      clock,
      epoch: id.number,
      holds: () => [...this.#holds.values()].flatMap((holds) => [...holds.values()]),
      isAwaited: (name, key) => this.#decider.isAwaited(name, key),
    });
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

  #restore({ about, limits, holds }: Begun): void {
    for (const [[client, id], record] of holds as [[string, number], Partial<Hold & { ended: string[] }> | null][]) {
      if (record?.start && record.decided) this.#hold(client, id, record as Hold);
      if (id === 0) this.#restoreEnded(this.#client(client), record?.ended);
    }
    this.#kept.restore(limits, (name, policy) => this.#decider.ask({ op: "declare", name, policy }, () => {}, fail));
    // Somebody has set the time of day back. From now on it tells again how long no tab was open.
    if (about && Date.now() < about.wall) this.#kept.changeTime();
    if (this.#kept.changes > 0) void this.#run();
  }

  #restoreEnded(client: Client, ended: unknown): void {
    client.hasRecord = true;
    if (Array.isArray(ended)) for (const start of ended) client.ended.add(start);
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
    const { open } = this.#client(asked.client);
    open.add(asked.id);
    const over =
      <T>(tell: (told: T) => void) =>
      (told: T) => {
        open.delete(asked.id);
        tell(told);
      };
    this.#inbox.push({ ...asked, answer: over(asked.answer), refuse: over(asked.refuse) });
    void this.#run();
  }

  /** Returns which of these calls of a client are not open here: because they, or their answers, were lost. */
  lost(client: string, calls: readonly number[]): number[] {
    const open = this.#clients.get(client)?.open;
    return calls.filter((id) => !open?.has(id));
  }

  /** Ends a start that its client does not know. (3) */
  forget(client: string, id: number): void {
    const hold = this.#holds.get(client)?.get(id);
    if (hold !== undefined) this.#endStart(client, id, hold, How.cancelled);
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
      for (const asked of batch) {
        this.#learn(asked);
        this.#refuse(asked, error);
      }
      return;
    }
    for (const asked of batch) {
      this.#learn(asked);
      this.#do(asked);
    }
  }

  /** Hears which starts a client ends no more. (In the order of its calls: an end that was sent twice came before.) (4) */
  #learn({ client, known }: Asked): void {
    for (const start of known) this.#clients.get(client)?.ended.delete(start);
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
    // (4) It is only completed, which has no effect then.
    if (call.op === "end" && this.#hasEnded(asked.client, call.start, call.hold)) call = { ...call, how: How.completed };
    if (call.op === "decide" || call.op === "wait") {
      const hold = this.#holds.get(asked.client)?.get(asked.id);
      if (hold !== undefined) return asked.answer(hold.decided);
    }
    if (call.op === "wait") {
      // (The fraction: no two leaders give the same place.)
      const place = asked.order ?? Math.max(Math.floor(this.#place) + 1, Math.floor(this.time)) + (this.id.number % 64) / 64;
      this.#place = Math.max(this.#place, place);
      client!.waiters.set(call.waiter, { place, id: asked.id });
      call = { ...call, waiter: place };
      asked.placed?.(place);
    } else if (call.op === "leave") {
      call = { ...call, waiter: client!.waiters.get(call.waiter)?.place ?? 0 };
    }
    const waiter = asked.call.op === "wait" || asked.call.op === "leave" ? asked.call.waiter : undefined;
    const over = () => void (waiter !== undefined && client!.waiters.delete(waiter));
    this.#decider.ask(
      call,
      (decided) => {
        // Whoever has left is not answered.
        if (call.op === "leave" && decided !== null) client!.open.delete(client!.waiters.get(waiter!)?.id ?? 0);
        over();
        const answer = decided?.admitted ? { ...decided, database: this.id.database, id: `${this.id.number}.${++this.#starts}` } : decided;
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
    else if (call.op === "end" && call.how !== How.completed && id !== 0) {
      this.#client(client).hasRecord = true;
      this.#changeEnded(client, this.#client(client).ended.add(idOf(call.start)));
    }
    const start = startOf(call, answer);
    if (start !== null && answer?.holds) this.#changeHold(client, id, { start, decided: answer });
    return true;
  }

  /** Writes all changes, and tells what was decided. (1) */
  async #write(): Promise<void> {
    const [untold, asked] = [this.#untold, performance.now()];
    if (this.#kept.changes === 0) return this.#kept.trim();
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
      if (start !== null) this.#endStart(client, id, { start, decided: answer! }, How.cancelled);
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

  /** Whether a start was ended before. (4) */
  #hasEnded(client: string, start: Start, hold: number | undefined): boolean {
    if (hold !== undefined) return !this.#holds.get(client)?.has(hold);
    return this.#clients.get(client)?.ended.has(idOf(start)) ?? false;
  }

  #changeEnded(client: string, ended: ReadonlySet<string>): void {
    this.#kept.change(["holds", client, 0], () => ["holds", [client, 0], ended.size > 0 ? { ended: [...ended] } : null]);
  }

  /** Ends a start for its client. */
  #endStart(client: string, id: number, { start, decided }: Hold, how: How): void {
    const call: Call = { op: "end", start, how, actual: 0, ...(decided.holds && { hold: id }) };
    const nothing = () => {};
    // (It is no call of the client, so it has no number.)
    this.#inbox.push({ client, id: 0, call, known: [], answer: nothing, refuse: nothing });
    void this.#run();
  }

  /** Returns a client, and watches whether it dies. (3) */
  #client(client: string): Client {
    const known = this.#clients.get(client);
    if (known !== undefined) return known;
    const met: Client = { open: new Set(), waiters: new Map(), ended: new Set(), hasRecord: false };
    this.#clients.set(client, met);
    const died = () => {
      this.#clients.delete(client);
      const nothing = () => {};
      for (const { place } of met.waiters.values()) this.#decider.ask({ op: "leave", waiter: place }, nothing, nothing);
      if (met.hasRecord) this.#changeEnded(client, new Set());
      void this.#run();
      for (const [id, hold] of this.#holds.get(client) ?? []) this.#endStart(client, id, hold, How.completed);
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
    this.#engine.close();
    this.#end();
  }
}

/** The start that a call was given, if it was. */
export function startOf(call: Call, answer: Answer): Start | null {
  if (!answer?.admitted || (call.op !== "decide" && call.op !== "wait")) return null;
  const { held, database, id } = answer;
  return { name: call.name, key: call.key, weight: call.weight, held, database, id };
}

/** The store's time for the next leader. (2) The time of day is rounded down. */
function timeOf({ time, wall, epoch }: About, heard: ReturnType<HeardTime["now"]>): number {
  let now = time + Math.max(0, Date.now() - wall - 1) * 1e3;
  if (heard !== null) now = heard.number >= epoch ? heard.us : Math.min(heard.us, now);
  return Math.max(time, now);
}

/** What no two starts have in common. (What their limit knows them by is the same for starts that it counts together.) */
export const idOf = ({ database, id }: Start): string => `${database} ${id}`;

const fail = (error: unknown): never => {
  throw error;
};
