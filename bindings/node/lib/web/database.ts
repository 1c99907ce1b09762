// What a shared store keeps in IndexedDB, and who may write it.
//
// 1. *A leader has an epoch*, a number that it has added to `epochs`. Whoever begins the next one adds the next number. Each write adds
//    the next number, too, and deletes it: so it fails as a whole if there is a later leader, however late it comes. No request waits
//    for the answer of another one.
// 2. *No transaction waits for a program.* All requests of a transaction, and its `commit()`, are made in one turn. So a program that
//    stands still between two turns has no transaction open, which would keep all others from the database.
// 3. *Nobody waits for ever.* What does not end within `DEADLINE` is an error for its caller. It may still be carried out: before
//    whatever is asked for later, because the database keeps the order.
// 4. *A database has an id*, which each epoch copies from the one before. One that was deleted begins at epoch 1 again, with another id.

import type { Epoch } from "./clock.js";
import { StoreError } from "./errors.js";

/** Of the records. (`bindings/web` has a number for the words in them.) A database of a later one cannot be opened. */
const FORMAT = 1;
const STORES = ["about", "epochs", "limits", "plans", "keys", "holds"] as const;
type Name = (typeof STORES)[number];
const DUE = "until";

const DEADLINE = 10_000;
/** So many numbers of leaders stay, besides those whose leader may still be alive. */
const EPOCHS = 64;

/** What concerns all limits. */
export interface About {
  /** The number of the last start. */
  readonly number: number;
  /** The Unix time of the store's time 0, in µs. */
  readonly unixUs: number;
  /** The store's time in µs when this was written, and what the time of day was then, in ms. */
  readonly time: number;
  readonly wall: number;
  /** By whom it was written. */
  readonly epoch: number;
}

/** The state of a key. */
export interface KeyRecord {
  readonly words: Uint8Array;
  /** The store's time when this was written, and from which on it is that of an unused key (if ever), in µs. */
  readonly saved: number;
  readonly until: number;
}

/** A change. `null` removes a record; a range removes many. */
export type Change = readonly [store: Name, key: IDBValidKey | IDBKeyRange, value: unknown];

/** What a leader begins with. */
export interface Begun {
  readonly epoch: Epoch;
  readonly about: About | undefined;
  readonly limits: readonly (readonly [name: string, record: unknown])[];
  readonly holds: readonly (readonly [key: readonly [client: string, id: number], record: unknown])[];
}

/** Another one leads. */
export class NotLeading extends Error {}

export class Database {
  readonly #database: IDBDatabase;

  private constructor(database: IDBDatabase) {
    this.#database = database;
  }

  /** Opens a database, or makes it. `closed` is called when this handle has become useless. */
  static async open(name: string, closed = () => {}): Promise<Database> {
    let hasFailed = false;
    const opening = attempt<IDBDatabase>(`opening the database "${name}"`, (resolve, reject) => {
      if (globalThis.indexedDB == null) throw new Error("this page has no IndexedDB");
      const request = indexedDB.open(name, FORMAT);
      request.onupgradeneeded = () => {
        for (const store of STORES) request.result.createObjectStore(store);
        request.transaction?.objectStore("keys").createIndex(DUE, "until");
      };
      request.onsuccess = () => {
        // Nobody waits for it any more.
        if (hasFailed) return request.result.close();
        // Whoever deletes the database has to be able to.
        request.result.onversionchange = () => {
          request.result.close();
          closed();
        };
        request.result.onclose = closed;
        resolve(request.result);
      };
      request.onerror = () => reject(request.error);
    });
    return new Database(
      await opening.catch((error) => {
        hasFailed = true;
        throw error;
      }),
    );
  }

  /** Begins an epoch, unless `isOver`. `isAlive`: tells whether a client may still live. */
  async lead(client: string, isAlive: (client: string) => boolean, isOver: () => boolean): Promise<Begun> {
    const doing = "reading the store";
    for (;;) {
      const [epochs, clients] = (await this.#do(doing, "readonly", ["epochs"], (of) => [
        of("epochs").getAllKeys(),
        of("epochs").getAll(),
      ])) as [number[], { client: string; after: string; database: string }[]];
      // Whoever leads now is not to be deposed.
      if (isOver()) throw new NotLeading("another one leads");
      const epoch = { database: clients.at(-1)?.database ?? crypto.randomUUID(), number: (epochs.at(-1) ?? 0) + 1 };
      // Each of these numbers keeps the leader before it from writing.
      const old = epochs.filter((_, i) => i < epochs.length - EPOCHS && !isAlive(clients[i]!.after));
      try {
        await this.#do("beginning to lead", "readwrite", ["epochs"], (of) => {
          of("epochs").add({ client, after: clients.at(-1)?.client ?? "", database: epoch.database }, epoch.number);
          return old.map((number) => of("epochs").delete(number));
        });
      } catch (error) {
        if (error instanceof NotLeading) continue;
        throw error;
      }
      const read = await this.#do(doing, "readonly", STORES, (of) => [
        of("about").get(0),
        of("limits").getAllKeys(),
        of("limits").getAll(),
        of("holds").getAllKeys(),
        of("holds").getAll(),
      ]);
      const [about, names, limits, holders, holds] = read as [About | undefined, string[], unknown[], [string, number][], unknown[]];
      return { epoch, about, limits: names.map((name, i) => [name, limits[i]]), holds: holders.map((key, i) => [key, holds[i]]) };
    }
  }

  /** Returns whether no later epoch has begun. */
  async isLatest(epoch: number): Promise<boolean> {
    const [later] = await this.#do("reading the store", "readonly", ["epochs"], (of) => [of("epochs").count(epoch + 1)]);
    return later === 0;
  }

  /** Reads the states of keys of limits, and the policies that override theirs. */
  async keys(keys: readonly (readonly [name: string, key: string])[]): Promise<{ record: unknown; plan: unknown }[]> {
    const found = await this.#do("reading the store", "readonly", ["keys", "plans"], (of) =>
      keys.flatMap((key) => [of("keys").get([...key]), of("plans").get([...key])]),
    );
    return keys.map((_, i) => ({ record: found[2 * i], plan: found[2 * i + 1] }));
  }

  /** Returns some keys whose state does not matter from this time on, and when it was written. */
  async due(time: number, most: number): Promise<(readonly [name: string, key: string, saved: number])[]> {
    const [keys, records] = (await this.#do("reading the store", "readonly", ["keys"], (of) => {
      const [index, range] = [of("keys").index(DUE), IDBKeyRange.upperBound(time)];
      return [index.getAllKeys(range, most), index.getAll(range, most)];
    })) as [[string, string][], KeyRecord[]];
    return keys.map(([name, key], i) => [name, key, records[i]!.saved]);
  }

  /** Writes changes, all or none. Throws `NotLeading` if a later epoch has begun. */
  async write(about: About, changes: readonly Change[]): Promise<void> {
    await this.#do("writing the store", "readwrite", STORES, (of) => {
      // (1)
      of("epochs").add(null, about.epoch + 1);
      of("epochs").delete(about.epoch + 1);
      for (const [store, key, value] of changes) {
        if (value === null) of(store).delete(key);
        else of(store).put(value, key as IDBValidKey);
      }
      of("about").put(about, 0);
      return [];
    });
  }

  /** Makes a transaction in this turn, and returns the results of these requests when it is over. (2) */
  #do(
    doing: string,
    mode: IDBTransactionMode,
    stores: readonly Name[],
    issue: (of: (store: Name) => IDBObjectStore) => IDBRequest[],
  ): Promise<unknown[]> {
    return attempt(doing, (resolve, reject) => {
      const transaction = this.#database.transaction(stores, mode, { durability: "strict" });
      try {
        const requests = issue((store) => transaction.objectStore(store));
        transaction.oncomplete = () => resolve(requests.map(({ result }) => result));
        transaction.onabort = () => reject(transaction.error);
        transaction.commit();
      } catch (error) {
        transaction.abort();
        throw error;
      }
    });
  }

  close(): void {
    this.#database.close();
  }
}

/** Waits for the database, but not for ever. (3) */
async function attempt<T>(doing: string, begin: (resolve: (result: T) => void, reject: (error: unknown) => void) => void): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  try {
    return await new Promise<T>((resolve, reject) => {
      timer = setTimeout(() => reject(new Error(`not done within ${DEADLINE / 1e3} s`)), DEADLINE);
      begin(resolve, reject);
    });
  } catch (error) {
    const { name, message } = (error ?? new Error("it was aborted")) as Error;
    if (name === "ConstraintError") throw new NotLeading("another one leads");
    throw new StoreError(`${doing}: ${name === "Error" ? "" : `${name}: `}${message}`, "store_failure", -9);
  } finally {
    clearTimeout(timer);
  }
}
