// What a leader has in memory of what is in the database, and what it has to write.
//
// 1. *A key is read when it is first used.* So the number of keys does not matter to a leader that begins, or to a change of policy. What
//    has happened to the policy since a key was written happens to it then, as of the time when it happened.
// 2. *Changes are written together*, as they are when that happens. Those of a write that fails are part of the next one.
// 3. *What cannot be read counts as used*, and concerns no other key: a longest window without starts. Units that are held stay so.
// 4. *What no longer matters is removed*, some keys at a time.
// 5. *Memory is bounded.* When many or large keys were used, those for which nobody waits leave it, as they are in the database.

import type { LeaderClock } from "./clock.js";
import type { Begun, Change, Database, KeyRecord } from "./database.js";
import type { Start } from "./decider.js";
import type { Engine } from "./engine.js";

/** How often what no longer matters is removed, in µs, and how many keys at once. */
const SWEEP = 10e6;
const SWEPT = 200;
/** So many changes of a policy are remembered; older state is taken to be from before all of them. */
const CHANGES = 16;
/** After so many keys, or bytes of their states, keys leave memory. */
const LOADED = 50_000;
const BYTES = 32e6;

interface LimitRecord {
  readonly policy: string;
  /** Above it; "": none. */
  readonly override: string;
  /** When these two changed, in µs. */
  readonly changed: readonly number[];
}

/** What this needs. */
interface Parts {
  readonly database: Database;
  readonly engine: Engine;
  readonly clock: LeaderClock;
  readonly epoch: number;
  /** Returns the starts that hold units. */
  readonly holds: () => readonly { readonly start: Start }[];
  /** Returns whether somebody waits for a key. */
  readonly isAwaited: (name: string, key: string) => boolean;
}

export class Kept {
  readonly #database: Database;
  readonly #engine: Engine;
  readonly #clock: LeaderClock;
  readonly #epoch: number;
  readonly #holds: Parts["holds"];
  readonly #isAwaited: Parts["isAwaited"];
  readonly #limits = new Map<string, LimitRecord>();
  /** The limits whose record cannot be read. */
  readonly #lost = new Set<string>();
  /** The keys that are in memory; how many may be; and how many bytes were read and written since some have left. */
  readonly #loaded = new Set<string>();
  #most = LOADED;
  #bytes = 0;
  /** What is to be written, and the limits whose keys are to be removed before. */
  #records = new Map<string, () => Change>();
  #clears = new Set<string>();
  #sweepAt = 0;

  constructor({ database, engine, clock, epoch, holds, isAwaited }: Parts) {
    this.#database = database;
    this.#engine = engine;
    this.#clock = clock;
    this.#epoch = epoch;
    this.#holds = holds;
    this.#isAwaited = isAwaited;
  }

  /** Declares the limits that were written. */
  restore(limits: Begun["limits"], declare: (name: string, policy: string) => void): void {
    for (const [name, value] of limits) {
      // Of another version. (3)
      const isLost = (restore: () => void) => {
        try {
          restore();
          return false;
        } catch {
          return true;
        }
      };
      const { policy, override, changed } = (value ?? {}) as LimitRecord;
      if (!Array.isArray(changed) || isLost(() => declare(name, policy))) {
        // Whoever declares it again finds it used.
        this.#lost.add(name);
        continue;
      }
      this.#limits.set(name, { policy, override, changed });
      if (override !== "" && isLost(() => this.#engine.override(name, override, undefined, this.#clock.now()))) {
        this.#lost.add(name);
        this.changeLimit(name, policy);
      }
    }
  }

  /** Reads keys. Returns how to put them into memory. (1) */
  async read(keys: readonly (readonly [name: string, key: string])[]): Promise<() => void> {
    const wanted = new Map<string, readonly [string, string]>();
    for (const [name, key] of keys) {
      const id = idOf(name, key);
      if (this.#limits.has(name) && !this.#loaded.has(id)) wanted.set(id, [name, key]);
    }
    if (wanted.size === 0) return () => {};
    const found = await this.#database.keys([...wanted.values()]);
    return () => {
      [...wanted.values()].forEach((of, i) => this.#load(...of, found[i]!.record as KeyRecord | undefined, found[i]!.plan));
    };
  }

  #load(name: string, key: string, record: KeyRecord | undefined, plan: unknown): void {
    const id = idOf(name, key);
    if (this.#loaded.has(id)) return;
    this.#loaded.add(id);
    const [now, number] = [this.#clock.now(), this.#number(name)];
    try {
      if (plan !== undefined) this.#engine.override(name, plan as string, key, now);
      if (record === undefined || this.#clears.has(name)) return;
      const { saved, words } = record;
      this.#bytes += words.length;
      const { changed } = this.#limits.get(name)!;
      const by = changed.length < CHANGES || saved >= changed[0]! ? changed.find((time) => time >= saved) : saved;
      if (this.#engine.load(number, key, words, by ?? now[1], now)) this.#lose(name, key);
    } catch {
      this.#lose(name, key);
    }
  }

  /** Takes a key to be used; with "", all keys of a limit. (3) */
  #lose(name: string, key: string): void {
    const number = this.#number(name);
    this.#engine.load(number, key, new Uint8Array(), 0, this.#clock.now());
    for (const { start } of this.#holds()) {
      if (start.name === name && start.key === key) this.#engine.hold(number, key, start.weight, start.held);
    }
    this.changeKey(name, key);
  }

  #number(name: string): number {
    return this.#engine.limit(name, "", this.#clock.now());
  }

  /** Notes the policy of a limit; "": as it was, but perhaps overridden. Returns whether anything has changed. */
  changeLimit(name: string, declared: string): boolean {
    const before = this.#limits.get(name);
    const policy = declared || before?.policy;
    if (policy === undefined) return false;
    const override = this.#engine.overriding(this.#number(name), undefined);
    const wasLost = this.#lost.delete(name);
    if (before?.policy === policy && before.override === override && !wasLost) return false;
    const now = this.#clock.now();
    this.#limits.set(name, { policy, override, changed: [...(before?.changed ?? []), now[1]].slice(-CHANGES) });
    this.change(["limits", name], () => ["limits", name, this.#limits.get(name)]);
    if (wasLost) {
      this.clear(name);
      const held = this.#holds().flatMap(({ start }) => (start.name === name ? [start.key] : []));
      for (const key of new Set(["", ...held])) this.#lose(name, key);
    }
    return true;
  }

  changePlan(name: string, key: string): void {
    this.change(["plans", name, key], () => ["plans", [name, key], this.#engine.overriding(this.#number(name), key) || null]);
  }

  changeKey(name: string, key: string): void {
    this.#loaded.add(idOf(name, key));
    this.change(["keys", name, key], () => {
      const now = this.#clock.now();
      const state = this.#engine.save(this.#number(name), key, now);
      this.#bytes += state?.words.length ?? 0;
      return ["keys", [name, key], state && ({ ...state, saved: now[1] } satisfies KeyRecord)];
    });
  }

  /** Notes that the time is to be written: every write does that. */
  changeTime(): void {
    this.change(["about"], () => ["about", 0, null]);
  }

  /** Removes all keys of a limit. */
  clear(name: string): void {
    this.#clears.add(name);
  }

  /** Notes a change, which is made out when it is written. */
  change(id: readonly (string | number)[], change: () => Change): void {
    this.#records.set(idOf(...id), change);
  }

  /** How many changes are to be written. */
  get changes(): number {
    return this.#records.size;
  }

  /** Writes all changes. (2) */
  async write(): Promise<void> {
    const [records, clears] = [this.#records, this.#clears];
    this.#records = new Map();
    this.#clears = new Set();
    const { unixUs } = this.#clock;
    const about = { number: this.#engine.number(), unixUs, time: this.#clock.now()[1], wall: Date.now(), epoch: this.#epoch };
    const removed = [...clears].map((name): Change => ["keys", IDBKeyRange.bound([name], [name, []]), null]);
    try {
      await this.#database.write(about, [...removed, ...[...records.values()].map((change) => change())]);
    } catch (error) {
      this.#records = new Map([...records, ...this.#records]);
      this.#clears = new Set([...clears, ...this.#clears]);
      throw error;
    }
    this.trim();
  }

  /** Lets keys leave memory, if there are too many: when what is in memory and in the database is the same. (5) */
  trim(): void {
    if (this.changes > 0 || (this.#loaded.size <= this.#most && this.#bytes <= BYTES)) return;
    for (const id of this.#loaded) {
      const [name, key] = JSON.parse(id) as [string, string];
      // (With "", there are the gates of all keys.)
      if (key === "" || this.#isAwaited(name, key)) continue;
      this.#engine.drop(this.#number(name), key);
      this.#loaded.delete(id);
    }
    this.#most = Math.max(LOADED, 2 * this.#loaded.size);
    this.#bytes = 0;
  }

  /** Finds state that no longer matters. The next write removes it. (4) */
  async sweep(): Promise<void> {
    const [time] = this.#clock.now();
    if (time < this.#sweepAt) return;
    this.#sweepAt = time + SWEEP;
    try {
      const due = await this.#database.due(time, SWEPT);
      if (due.length === SWEPT) this.#sweepAt = 0;
      // By a later policy it may matter still.
      const isOld = ([name, , saved]: (typeof due)[number]) => (this.#limits.get(name)?.changed.at(-1) ?? 0) > saved;
      const load = await this.read(due.filter(isOld).map(([name, key]) => [name, key]));
      load();
      for (const [name, key] of due) {
        if (this.#loaded.has(idOf(name, key))) this.changeKey(name, key);
        else this.change(["keys", name, key], () => ["keys", [name, key], null]);
      }
    } catch {
      // Another time.
    }
  }
}

const idOf = (...names: (string | number)[]): string => JSON.stringify(names);
