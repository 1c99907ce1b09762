// Stores, and the clock for tests.

import { brand } from "./brand.js";
import type { KeyOptions } from "./calls.js";
import { invalid, make, thrown } from "./errors.js";
import { type Hook, type HookEvent, listen } from "./hooks.js";
import { type Duration, maybeMilliseconds, milliseconds, options as checkOptions, shareOf, unicode, whole, word } from "./input.js";
import type { Limiter } from "./limiter.js";
import { FlowControl, byName } from "./named.js";
import { type NativeClock, type NativeObserver, type NativeStore, native, shared, notifyHooks } from "./native.js";
import { shown } from "./shown.js";
import * as seen from "./snapshot.js";
import { Bell } from "./waiting.js";

/** Returns the key of an operator's call; `undefined` for the limit, and all keys without a policy of their own. */
function keyIn(options: KeyOptions): string | undefined {
  checkOptions(options, ["key"]);
  return options.key === undefined ? undefined : unicode("key", options.key);
}

/** A clock for tests. It stands still until it is advanced, which wakes the waiters that use it. */
export class ManualClock {
  /** @internal */
  readonly _native: NativeClock = native.manualClock();
  /** @internal */
  readonly _bell = new Bell();

  /** The time since the clock was made, in ms. */
  now(): number {
    return native.now(this._native);
  }

  /** Moves the clock forward. */
  advance(by: Duration): void {
    native.advance(this._native, milliseconds("by", by));
    this._bell.ring();
  }
}

/** @internal Checks the option `clock`, and returns its native half. */
export function nativeClock(clock: unknown): NativeClock | undefined {
  if (clock === undefined) return undefined;
  if (!(clock instanceof ManualClock)) throw invalid("clock", clock, "a ManualClock");
  return clock._native;
}

let isListening = false;

/** Publishes the latest counts when the process exits: `process.exit` runs no destructors. */
function publishAtExit(): void {
  if (!isListening) process.once("exit", () => native.publishCounts());
  isListening = true;
}

/** The options of a store. */
export interface StoreOptions {
  /** How long a rare operation (opening, a new limit, growing) may take before it fails. Default: 5 s. */
  timeout?: Duration | undefined;
  /** The mode of new files, whatever the umask. Default: 0o600. Use 0o660 for services of several users. */
  mode?: number | undefined;
  /**
   * The result of a decision when the store fails (gone, full, read-only, or busy or silent for longer than the timeout): "raise" (the
   * default) throws the error, "deny" denies the start, "admit" admits it without counting it. `Store.failures` counts these
   * decisions.
   */
  onError?: "raise" | "deny" | "admit" | undefined;
  /**
   * How many admitted units may be missing after a power cut, which then count as used: "budget" (the default) allows 5 % of a
   * limit, at least one unit; "commit" allows none, as each start is written before its call returns.
   */
  durability?: "budget" | "commit" | undefined;
  /** A clock for tests. */
  clock?: ManualClock | undefined;
  /**
   * The size in bytes up to which this process lets the store's memory, or its lane, grow: 1 MiB to 4 GiB. Default: a quarter of the
   * memory of the machine, or of the container if that has less.
   */
  maxSize?: number | undefined;
}

/** A problem that `Store.verify` found. */
export interface Problem {
  /** The problem. */
  readonly found: string;
  /** Whether it was repaired. */
  readonly repaired: boolean;
}

/** A setting of a server that endangers limits, as `doctor` found it. */
export interface Finding {
  /** The severity. "danger": limits may be exceeded, or cannot be used. */
  readonly severity: "note" | "warning" | "danger";
  /** The danger. */
  readonly what: string;
  /** The server's name for the setting. */
  readonly setting: string;
  /** The setting's value; empty if it could not be read. */
  readonly value: string;
  /** The recommended value, or what to do. */
  readonly instead: string;
}

/**
 * Returns the settings of a server that endanger limits, the worst first. Returns none for "memory:" and "sqlite:PATH", whose files
 * `Store.verify` checks. On Redis it writes and deletes a key of its own, to check that it may.
 */
export async function doctor(url: string): Promise<Finding[]> {
  return (await native.doctor(unicode("url", url)).catch(rethrow)) as Finding[];
}

/**
 * Returns the SQL that creates the schema `workglow_limit`, which limits on Postgres need, for your own migrations. It is not needed
 * where the program's role may create schemas: the first call creates it. Running it again has no effect.
 */
export const postgresSchema = (): string => native.postgresSchema();

/**
 * Holds limits: in "memory:" for this object, in "sqlite:PATH" for the processes of this machine, or in "redis://HOST",
 * "redis+unix://PATH" or "postgres://HOST/DATABASE" for the machines that share this server. The constructor opens nothing.
 */
export class Store {
  /** The store's address, without a password. */
  readonly url: string;
  /** @internal */
  readonly _native: NativeStore;
  /** @internal */
  readonly _clock: ManualClock | undefined;
  /** @internal Whether a decision returns even when the store fails. */
  readonly _alwaysAnswers: boolean;
  /** @internal Whether it is a file or a server, which other processes may use too. */
  readonly _isShared: boolean;
  /**
   * @internal Whether its next synchronous call may wait up to its timeout: the first of a process on a file, because processes that
   * start together wait for each other. Later calls wait briefly.
   */
  _isPatient: boolean;
  readonly #observer: NativeObserver;

  constructor(url: string, options: StoreOptions = {}) {
    checkOptions(options, ["timeout", "mode", "onError", "durability", "clock", "maxSize"]);
    const { timeout, mode, onError = "raise", durability = "budget", clock, maxSize } = options;
    unicode("url", url);
    const ms = maybeMilliseconds("timeout", timeout);
    const bits = mode === undefined ? undefined : whole("mode", mode);
    word("onError", onError, ["raise", "deny", "admit"]);
    word("durability", durability, ["budget", "commit"]);
    const time = nativeClock(clock);
    const most = maxSize === undefined ? undefined : whole("maxSize", maxSize);
    this._native = make(() => native.store(url, ms, bits, onError, durability, time, most));
    this.url = native.url(this._native);
    this.#observer = native.observer(this._native);
    this._clock = clock;
    this._alwaysAnswers = onError !== "raise";
    this._isShared = !url.startsWith("memory:");
    this._isPatient = url.startsWith("sqlite:");
    if (this._isShared) publishAtExit();
  }

  /** Opens the store, and creates its files if there are none, now instead of at the first decision. */
  async open(): Promise<void> {
    this._isPatient = false;
    await native.openStore(this._native).catch(rethrow);
  }

  /** Returns the names that are declared in this store, in order, including those of limiters made with this object and not used yet. */
  async names(): Promise<string[]> {
    return native.names(this._native).catch(rethrow);
  }

  /**
   * Overrides the policy that programs declare under a name with an operator's, such as "200/1m" or "100/1m + 5/1s": immediately,
   * for all processes that share the store, until `lift`. In a limit of several kinds, each policy overrides the part of its kind.
   * With a key, such as a tenant's, it overrides that key's policy only, even before the key is first used.
   */
  async override(name: string, policy: string, options: KeyOptions = {}): Promise<void> {
    const [limit, above, key] = [unicode("name", name), unicode("policy", policy), keyIn(options)];
    await native.overrideLimit(this._native, limit, above, key).catch(rethrow);
  }

  /**
   * Removes the operator's override: the policy that was declared last holds again. With a key, removes that key's override: the
   * limit's policy holds for it again. No effect if there is none.
   */
  async lift(name: string, options: KeyOptions = {}): Promise<void> {
    await native.lift(this._native, unicode("name", name), keyIn(options)).catch(rethrow);
  }

  /**
   * Sets the share of a tenant of a shared limit, such as "500/1m shared", for all processes: 1 to 1,000. While tenants wait, one with
   * share 3 gets three starts where one with 1 gets one. It survives restarts, and 1 is the default. `AcquireOptions.share` has
   * precedence.
   */
  async share(name: string, key: string, share: number): Promise<void> {
    const [limit, tenant] = [unicode("name", name), unicode("key", key)];
    await native.share(this._native, limit, tenant, shareOf(share)).catch(rethrow);
  }

  /**
   * Removes the declaration of a name, including operators' policies, so that another kind of limiter can be declared. Limiters in
   * use then fail with the code `kind_mismatch`. If the same kind is declared again, it keeps its state.
   */
  async forget(name: string): Promise<void> {
    await native.forget(this._native, unicode("name", name)).catch(rethrow);
  }

  /** Writes admitted starts to the database that it does not have yet. No effect on "memory:". */
  async flush(): Promise<void> {
    await native.flush(this._native).catch(rethrow);
  }

  /**
   * Ends the use of this object and its limiters. Every call that would start, wait, read or change something then rejects or throws
   * `StoreClosed`, whatever `onError` says, and so do the promises of starts that wait. Permits can still be completed, cancelled,
   * settled and renewed. Other `Store` objects are not affected, even at the same address.
   *
   * Writes the starts that the database does not have yet, and closes the connections to a server. If the starts cannot be written
   * within the timeout, it rejects, and the store is closed nevertheless. No effect on a store that is closed.
   */
  async close(): Promise<void> {
    await native.closeStore(this._native).catch(rethrow);
  }

  /** Closes the store: `await using store = new Store(…)`. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  /**
   * Returns the problems of the store's files. With `repair` it also repairs what it can: it deletes unreadable rows from the
   * database, and replaces an inconsistent lane. Reads the whole database, which delays starts that wait for a commit.
   */
  async verify(options: { repair?: boolean | undefined } = {}): Promise<Problem[]> {
    checkOptions(options, ["repair"]);
    const { repair = false } = options;
    if (typeof repair !== "boolean") throw invalid("repair", repair, "true or false");
    const lines = await native.verify(this._native, repair).catch(rethrow);
    return lines.map((line) => ({ found: line.replace(/^repaired: /, ""), repaired: line.startsWith("repaired: ") }));
  }

  /**
   * Returns a snapshot of the store and all of its limits. It takes no part in decisions, and makes none slower. For "memory:" and
   * "sqlite:PATH"; for a server it throws `SyncUnsupported`: use `snapshotAsync`.
   */
  snapshot(options: seen.SnapshotOptions = {}): seen.Snapshot {
    return seen.snapshot(this.#observer, options);
  }

  /** Returns a snapshot of any store, taken on the thread pool, so that many limits do not block the event loop. */
  async snapshotAsync(options: seen.SnapshotOptions = {}): Promise<seen.Snapshot> {
    return seen.snapshotAsync(this.#observer, options);
  }

  /**
   * Returns who has the units of a limit and key, and who waits for them: whose turn is next, and since when. It covers all processes of a
   * "sqlite:" store. For a limit that tenants share, no key means all of them. A part of several limits has a name of its own, such as
   * "openai/tokens". It takes no part in decisions, and makes none slower. Fails with the code `unsupported` for a limit on a server. When one more
   * start would begin says `Limiter.forecast`.
   */
  line(name: string, options: KeyOptions = {}): seen.LineSnapshot {
    return seen.line(this._native, unicode("name", name), keyIn(options));
  }

  /** Does the same as `line`, on the thread pool. */
  async lineAsync(name: string, options: KeyOptions = {}): Promise<seen.LineSnapshot> {
    return seen.lineAsync(this._native, unicode("name", name), keyIn(options));
  }

  /**
   * Returns a snapshot as text for Prometheus and other readers of its formats; `metricsContentType` returns its `Content-Type`. All
   * processes of a "sqlite:" store report the same numbers, so scrape one process of each machine, and do not add them up.
   */
  metrics(options: seen.MetricsOptions = {}): string {
    return seen.metrics(this.#observer, options);
  }

  /** Returns the metrics of any store, taken on the thread pool. */
  async metricsAsync(options: seen.MetricsOptions = {}): Promise<string> {
    return seen.metricsAsync(this.#observer, options);
  }

  /** How many decisions of this object's limiters the store failed, whatever `onError` returned instead. */
  get failures(): number {
    return native.failures(this._native);
  }

  /**
   * Returns a limiter by its name. A policy such as "100/1m + 5 concurrent" is declared under the name at the first use; several
   * policies make one limiter of several limits with names of their own: "name/rate", "name/concurrency", …
   *
   * Without a policy, returns the limiter that is declared under the name, of any kind. It must be declared by the first use.
   */
  limiter(name: string, policy?: string): Limiter;
  /** Returns a limiter that is declared under its key at the first use. */
  limiter(flow: FlowControl): Limiter;
  limiter(name: string | FlowControl, policy?: string): Limiter {
    if (!(name instanceof FlowControl)) return byName(this, name, policy);
    if (policy !== undefined) throw invalid("policy", policy, "no policy with a FlowControl, which is one");
    return name._in(this);
  }

  /** Declares the limits of a TOML file, all or none, and returns their names. */
  async load(path: string): Promise<string[]> {
    return native.load(this._native, unicode("path", path)).catch(rethrow);
  }

  /** Calls `hook` for each such event of this store's limiters, soon after the decision. Returns a function that removes the hook. */
  on(event: HookEvent, hook: Hook): () => void {
    const begin = (number: number) => native.listenToStore(this._native, event, shared.events, number);
    return listen(event, hook, begin, (listening) => native.unlistenToStore(this._native, listening));
  }
}

brand({ ManualClock, Store }, native);
shown(ManualClock, (clock) => ({ now: clock.now() }));
shown(Store, (store) => ({ url: store.url }));

function rethrow(error: unknown): never {
  notifyHooks();
  throw thrown(error);
}
