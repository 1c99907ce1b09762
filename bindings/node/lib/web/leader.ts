// Decides for all tabs and workers of an origin.
//
// 1. *What is told is written.* A start is told when the words of its key are in the database: see `Decider` 3 and `Database`. What
//    is written and not told, because a leader died in between, counts.
// 2. *The time does not jump.* A leader goes on from the time that it has heard from the one before, by its own clock, which nobody
//    can set; it has heard late, so it is late, never early. Only one that has heard nobody uses the time of day.
// 3. *A client that dies ends its starts.* Each holds a lock with its name as long as it lives. The leader waits for that lock, and
//    the holds are in the database, so the next leader does the same.

import { SystemClock } from "./clock.js";
import { type Answer, type Call, Decider, type Start } from "./decider.js";
import type { Database, RecordKey } from "./database.js";
import { type Engine, How } from "./engine.js";
import type { LimitError } from "./errors.js";

/** A limit, as it was declared and overridden. */
interface LimitRecord {
  readonly policy: string;
  /** Of the limit (`null`) and of keys. */
  readonly overrides: readonly (readonly [key: string | null, policy: string])[];
}

/** The name of the lock that a client holds as long as it lives. */
export const lockOf = (store: string, client: string): string => `${store} client ${client}`;

/** So many answered calls are remembered, so that a call that arrives twice is answered once. */
const REMEMBERED = 10_000;

export class Leader {
  readonly #name: string;
  readonly #database: Database;
  readonly #engine: Engine;
  readonly #clock: SystemClock;
  readonly #decider: Decider;
  readonly #epoch: number;
  readonly #limits = new Map<string, { number: number; record: LimitRecord; keys: Set<string> }>();
  readonly #holds = new Map<string, Map<string, Start>>();
  readonly #calls = new Set<string>();
  readonly #watches = new AbortController();
  /** What is to be written, and who waits for it. */
  #changes = new Map<string, [RecordKey, () => unknown]>();
  #writing: Promise<void> | null = null;
  #next: Promise<void> | null = null;

  private constructor(name: string, database: Database, engine: Engine, clock: SystemClock, epoch: number) {
    this.#name = name;
    this.#database = database;
    this.#engine = engine;
    this.#clock = clock;
    this.#epoch = epoch;
    this.#decider = new Decider(engine, clock, (call, answer, client) => this.#keep(call, answer, client));
  }

  /** Begins to lead. `heard`: returns the store's time, as far as this program has heard it; in µs. */
  static async begin(name: string, database: Database, made: (unixUs: number) => Promise<Engine>, heard: () => number | null) {
    const { epoch, isForeign, about, records } = await database.lead();
    const engine = await made(about.unixUs);
    // (2)
    const time = Math.max(about.time, heard() ?? about.time + Math.max(0, Date.now() - about.wall) * 1e3);
    const leader = new Leader(name, database, engine, new SystemClock(time, about.unixUs), epoch);
    leader.#restore(records, isForeign);
    return leader;
  }

  #restore(records: readonly (readonly [RecordKey, unknown])[], isForeign: boolean): void {
    const now = this.#clock.now();
    const of = (kind: string) => records.filter(([[of]]) => of === kind);
    for (const [[, name], value] of of("limit")) {
      const record = value as LimitRecord;
      const number = this.#engine.limit(name!, record.policy, now);
      for (const [key, policy] of record.overrides) this.#engine.override(name!, policy, key ?? undefined, now);
      this.#limits.set(name!, { number, record, keys: new Set() });
    }
    for (const [[, name, key], state] of of("key")) {
      const limit = this.#limits.get(name!)!;
      // (Nothing is a state of no key.)
      this.#engine.load(limit.number, key!, isForeign ? new Uint8Array() : (state as Uint8Array), now);
      limit.keys.add(key!);
      // What was lost is a gate of all keys now.
      if (isForeign) for (const lost of ["", key!]) this.#changeKey(name!, lost);
    }
    for (const { number } of this.#limits.values()) this.#engine.follow(number, now);
    for (const [[, client, hold], start] of of("hold")) this.#hold(client!, hold!, start as Start);
  }

  /** The store's time in µs. */
  get time(): number {
    return this.#clock.now()[0];
  }

  /**
   * Answers a call of a client, once: `null` for a call that was made before. `told` is given the number of ms after which a caller
   * that waits has to ask again, in case the timers of this program are slow.
   */
  call(client: string, id: string, call: Call, told: (after: number) => void): Promise<Answer> | null {
    const name = `${client} ${id}`;
    if (this.#calls.has(name)) {
      told(this.#decider.advance(call));
      return null;
    }
    this.#calls.add(name);
    if (this.#calls.size > REMEMBERED) for (const first of this.#calls) if (this.#calls.delete(first)) break;
    const answer = this.#decider.call(call, client);
    told(this.#decider.advance(call));
    return answer;
  }

  /** Notes what a call has changed, and resolves when it is written. (1) */
  async #keep(call: Call, answer: Answer, client: string): Promise<void> {
    if (call.op === "peek" || call.op === "leave" || (answer !== null && !answer.admitted)) return;
    const { name, key = "" } = call.op === "end" ? call.start : { key: "", ...call };
    const now = this.#clock.now();
    const known = this.#limits.get(name);
    const limit = known ?? { number: this.#engine.limit(name, "", now), record: { policy: "", overrides: [] }, keys: new Set<string>() };
    this.#limits.set(name, limit);
    limit.keys.add(key);
    if (call.op === "declare" || call.op === "override") {
      const record = limit.record;
      if (call.op === "declare" && (call.policy === "" || call.policy === record.policy)) return;
      limit.record = call.op === "declare" ? { ...record, policy: call.policy } : overridden(record, call.key ?? null, call.policy);
      this.#change(["limit", name], () => limit.record);
      for (const key of limit.keys) this.#changeKey(name, key);
    } else if (call.op === "clear" && key === "") {
      for (const key of limit.keys) this.#changeKey(name, key);
    } else {
      this.#changeKey(name, key);
    }
    if (call.op === "end") this.#release(client, holdOf(call.start));
    if (answer?.holds && (call.op === "decide" || call.op === "wait")) {
      const start = { name, key, weight: call.weight, held: answer.held };
      this.#hold(client, holdOf(start), start);
      this.#change(["hold", client, holdOf(start)], () => this.#holds.get(client)?.get(holdOf(start)) ?? null);
    }
    await this.#written();
  }

  #changeKey(name: string, key: string): void {
    const limit = this.#limits.get(name)!;
    this.#change(["key", name, key], () => {
      const state = this.#engine.save(limit.number, key, this.#clock.now());
      if (state === null) limit.keys.delete(key);
      return state;
    });
  }

  #change(key: RecordKey, value: () => unknown): void {
    this.#changes.set(JSON.stringify(key), [key, value]);
  }

  /** Resolves when all changes up to now are written: by the next transaction, as one is shared by all who wait for the one before. */
  #written(): Promise<void> {
    return (this.#next ??= (this.#writing ?? Promise.resolve())
      .catch(() => {})
      .then(() => {
        this.#next = null;
        const changes = [...this.#changes.values()].map(([key, value]): [RecordKey, unknown] => [key, value()]);
        this.#changes = new Map();
        return (this.#writing = this.#database.write(this.#epoch, { time: this.time, unixUs: this.#clock.unixUs }, changes));
      }));
  }

  #hold(client: string, hold: string, start: Start): void {
    if (!this.#holds.has(client)) this.#watch(client);
    this.#holds.set(client, (this.#holds.get(client) ?? new Map()).set(hold, start));
  }

  #release(client: string, hold: string): void {
    this.#holds.get(client)?.delete(hold);
    this.#change(["hold", client, hold], () => null);
  }

  /** Ends the starts of a client when it dies, and removes its waiters. (3) */
  #watch(client: string): void {
    this.#holds.set(client, new Map());
    const died = async () => {
      this.#decider.leave(client);
      const starts = [...(this.#holds.get(client)?.values() ?? [])];
      this.#holds.delete(client);
      const ended = starts.map((start) => this.#decider.call({ op: "end", start, how: How.completed, actual: 0 }, client));
      // If this one does not lead any more, the next one does this.
      await Promise.allSettled(ended);
    };
    navigator.locks.request(lockOf(this.#name, client), { signal: this.#watches.signal }, died).catch(() => {});
  }

  /** Watches a client that waits. */
  meet(client: string): void {
    if (!this.#holds.has(client)) this.#watch(client);
  }

  close(error: LimitError): void {
    this.#watches.abort();
    this.#decider.close(error);
  }
}

/** The name of a start among those of its client. */
const holdOf = ({ name, key, held }: Start): string => JSON.stringify([name, key, held]);

function overridden({ policy, overrides }: LimitRecord, key: string | null, text: string): LimitRecord {
  const others = overrides.filter(([of]) => of !== key);
  // Overrides of a composite's parts add up, so the earlier ones stay.
  const before = text === "" ? [] : overrides.filter(([of]) => of === key);
  return { policy, overrides: text === "" ? others : [...others, ...before, [key, text]] };
}
