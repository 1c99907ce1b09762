// What a shared store keeps in IndexedDB, and who may write it.
//
// *A leader has an epoch.* `lead` begins a new one in the transaction in which it reads everything; `write` checks in its own
// transaction that its epoch is still the latest, and else writes nothing and throws `NotLeading`. Transactions that write exclude
// each other. So a leader has read all that earlier leaders have written, and whatever an earlier one does later, however late, is
// neither written nor told to anybody.

import { StoreError } from "./errors.js";

/** Of the words of keys, and of these records: state of another format counts as used. */
const FORMAT = 1;
const STORE = "state";
const ABOUT = "about";

/** What concerns all limits. */
interface About {
  readonly format: number;
  readonly epoch: number;
  /** The Unix time of the store's time 0, in µs. */
  readonly unixUs: number;
  /** The store's time in µs when this was written, and what the time of day was then, in ms. */
  readonly time: number;
  readonly wall: number;
}

/** A key of a record: what it is of, and names. */
export type RecordKey = readonly [kind: "limit" | "key" | "hold", ...names: string[]];

/** What a leader begins with. */
export interface Begun {
  readonly epoch: number;
  /** Whether another version of this library wrote the words of keys. */
  readonly isForeign: boolean;
  readonly about: About;
  readonly records: readonly (readonly [RecordKey, unknown])[];
}

/** Another one leads. */
export class NotLeading extends Error {}

const failed = (doing: string, cause: unknown): StoreError =>
  new StoreError(`${doing}: ${cause instanceof Error ? cause.message : cause}`, "store_failure", -9);

/** The result of a request. */
const done = <T>(request: IDBRequest<T>): Promise<T> =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });

/** Resolves when a transaction is on disk. */
const over = (transaction: IDBTransaction): Promise<void> =>
  new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onabort = () => reject(transaction.error ?? new Error("it was aborted"));
  });

export class Database {
  readonly #database: IDBDatabase;

  private constructor(database: IDBDatabase) {
    this.#database = database;
    // Whoever deletes the database has to be able to.
    database.onversionchange = () => database.close();
  }

  static async open(name: string): Promise<Database> {
    try {
      const request = indexedDB.open(name, 1);
      request.onupgradeneeded = () => request.result.createObjectStore(STORE);
      return new Database(await done(request));
    } catch (error) {
      throw failed(`opening the database "${name}"`, error);
    }
  }

  /** Begins an epoch. */
  async lead(): Promise<Begun> {
    try {
      const transaction = this.#transaction();
      const ended = over(transaction);
      const state = transaction.objectStore(STORE);
      const wall = Date.now();
      const [before, keys, values] = await Promise.all([
        done(state.get(ABOUT)) as Promise<About | undefined>,
        done(state.getAllKeys()),
        done(state.getAll()),
      ]);
      const about = before ?? { format: FORMAT, epoch: 0, unixUs: wall * 1e3, time: 0, wall };
      const epoch = about.epoch + 1;
      state.put({ ...about, epoch }, ABOUT);
      await ended;
      const records = keys.map((key, i) => [key as unknown as RecordKey, values[i]] as const);
      return { epoch, isForeign: about.format !== FORMAT, about, records: records.filter(([key]) => Array.isArray(key)) };
    } catch (error) {
      throw failed("reading the store", error);
    }
  }

  /** Writes records, or removes those that are `null`, if this epoch is still the latest. */
  async write(epoch: number, { time, unixUs }: { time: number; unixUs: number }, records: Iterable<[RecordKey, unknown]>): Promise<void> {
    let isLeading = true;
    try {
      const transaction = this.#transaction();
      const ended = over(transaction);
      const state = transaction.objectStore(STORE);
      const now = state.get(ABOUT) as IDBRequest<About | undefined>;
      now.onsuccess = () => {
        isLeading = now.result?.epoch === epoch;
        if (!isLeading) return transaction.abort();
        for (const [key, value] of records) {
          if (value === null) state.delete([...key]);
          else state.put(value, [...key]);
        }
        state.put({ format: FORMAT, epoch, unixUs, time, wall: Date.now() } satisfies About, ABOUT);
      };
      await ended;
    } catch (error) {
      throw isLeading ? failed("writing the store", error) : new NotLeading("another one leads");
    }
  }

  #transaction(): IDBTransaction {
    return this.#database.transaction(STORE, "readwrite", { durability: "strict" });
  }

  close(): void {
    this.#database.close();
  }
}
