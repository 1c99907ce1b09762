// Where limits live, and the clock that tests can give them.

import { brand } from "./brand.js";
import { invalid, make, thrown } from "./errors.js";
import { type Hook, type HookEvent, listen } from "./hooks.js";
import { type Duration, maybeMilliseconds, milliseconds, options as checkOptions, unicode, whole, word } from "./input.js";
import type { Limiter } from "./limiter.js";
import { FlowControl, byName } from "./named.js";
import { type NativeClock, type NativeOnlooker, type NativeStore, native, shared, tellHooks } from "./native.js";
import { shown } from "./shown.js";
import * as seen from "./snapshot.js";
import { Bell } from "./waiting.js";

/** Which key is meant. */
export interface KeyOptions {
  /** One key. Without, the limit and all keys that have no policy of their own. */
  key?: string | undefined;
}

function keyIn(options: KeyOptions): string | undefined {
  checkOptions(options, ["key"]);
  return options.key === undefined ? undefined : unicode("key", options.key);
}

/** A clock for tests: it stands still until it is advanced, and wakes those who wait by it. */
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

/** @internal The native half of a clock that a caller gave, if any. */
export function nativeClock(clock: unknown): NativeClock | undefined {
  if (clock === undefined) return undefined;
  if (!(clock instanceof ManualClock)) throw invalid("clock", clock, "a ManualClock");
  return clock._native;
}

let isListening = false;

/** `process.exit` destroys nothing, so what was counted last has to be told before. */
function tellAtExit(): void {
  if (!isListening) process.once("exit", () => native.tellCounts());
  isListening = true;
}

/** How a store behaves. */
export interface StoreOptions {
  /** How long something rare (opening, a new limit, growing) may take before it fails: 5 s if not given. */
  timeout?: Duration | undefined;
  /** The mode of the files that are made, whatever the umask: 0o600 if not given, 0o660 for services of several users. */
  mode?: number | undefined;
  /**
   * What a decision answers when the store fails (gone, full, read-only, or busy for longer than the timeout): "raise"
   * (the default) throws the error, "deny" denies, "admit" lets start what nothing counts. `Store.failures` counts them.
   */
  onError?: "raise" | "deny" | "admit" | undefined;
  /**
   * How much of what was admitted a power cut may make the machine forget, and count as spent: "budget" (the default)
   * 5 % of a limit, at least one unit; "commit" nothing, as each start is written before its call returns.
   */
  durability?: "budget" | "commit" | undefined;
  /** A clock for tests. */
  clock?: ManualClock | undefined;
}

/** Something that is wrong with a store, as `Store.verify` finds it. */
export interface Problem {
  /** What it is. */
  readonly found: string;
  /** Is it wrong no longer? */
  readonly isRepaired: boolean;
}

/** Something of a server that those who have limits there should know, as `doctor` finds it. */
export interface Finding {
  /** How much it matters: "danger" means that limits may be exceeded, or cannot be used. */
  readonly severity: "note" | "warning" | "danger";
  /** What it endangers. */
  readonly what: string;
  /** The setting, by the server's own name. */
  readonly setting: string;
  /** What it is; empty if it could not be looked at. */
  readonly value: string;
  /** What to set instead, or to do. */
  readonly instead: string;
}

/**
 * Says what of a server's settings endangers limits there: the worst first, nothing if all is well. Always nothing for "memory:" and
 * "sqlite:PATH", whose files `Store.verify` looks at. On Redis it writes a key of its own for a moment, to see whether it may.
 */
export async function doctor(url: string): Promise<Finding[]> {
  return (await native.doctor(unicode("url", url)).catch(rethrow)) as Finding[];
}

/**
 * The SQL that makes what limits on Postgres need there, for migrations of your own: the schema `workglow_limit`. Where a program's
 * role may create schemas this is not needed, because the first call makes it. To run it again changes nothing.
 */
export const postgresSchema = (): string => native.postgresSchema();

/**
 * Where limits live: "memory:" (this object), "sqlite:PATH" (this machine), or "redis://HOST", "redis+unix://PATH" and
 * "postgres://HOST/DATABASE" (a server that machines share). Making one opens nothing.
 */
export class Store {
  /** The store's address, without a password. */
  readonly url: string;
  /** @internal */
  readonly _native: NativeStore;
  /** @internal */
  readonly _clock: ManualClock | undefined;
  /** @internal Does a decision answer even when the store fails? */
  readonly _alwaysAnswers: boolean;
  /** @internal Is it a file or a server, which others may use too? */
  readonly _isShared: boolean;
  readonly #onlooker: NativeOnlooker;

  constructor(url: string, options: StoreOptions = {}) {
    checkOptions(options, ["timeout", "mode", "onError", "durability", "clock"]);
    const { timeout, mode, onError = "raise", durability = "budget", clock } = options;
    unicode("url", url);
    const ms = maybeMilliseconds("timeout", timeout);
    const bits = mode === undefined ? undefined : whole("mode", mode);
    word("onError", onError, ["raise", "deny", "admit"]);
    word("durability", durability, ["budget", "commit"]);
    const time = nativeClock(clock);
    this._native = make(() => native.store(url, ms, bits, onError, durability, time));
    this.url = native.url(this._native);
    this.#onlooker = native.onlooker(this._native);
    this._clock = clock;
    this._alwaysAnswers = onError !== "raise";
    this._isShared = !url.startsWith("memory:");
    if (this._isShared) tellAtExit();
  }

  /** Opens the store now, its files made if there are none, instead of at the first decision. */
  async open(): Promise<void> {
    await native.openStore(this._native).catch(rethrow);
  }

  /** The names that are declared in this store, in order. */
  async names(): Promise<string[]> {
    return native.names(this._native).catch(rethrow);
  }

  /**
   * Puts an operator's policy, such as "200/1m" or "100/1m + 5/1s", above what programs declare under a name: at once, for
   * all who share the store, until it is lifted. Of a limit of several kinds, each policy stands above the part of its kind.
   * With a key, only for that one, such as a tenant's plan, whether anybody has used it or not.
   */
  async override(name: string, policy: string, options: KeyOptions = {}): Promise<void> {
    const [limit, above, key] = [unicode("name", name), unicode("policy", policy), keyIn(options)];
    await native.overrideLimit(this._native, limit, above, key).catch(rethrow);
  }

  /**
   * Takes the operator's policy away: what was declared last holds again. With a key, that key's own: it lives by the limit's
   * again. A no-op where there is none.
   */
  async lift(name: string, options: KeyOptions = {}): Promise<void> {
    await native.lift(this._native, unicode("name", name), keyIn(options)).catch(rethrow);
  }

  /** Writes to the database now what it does not have yet of what was admitted. A no-op for "memory:". */
  async flush(): Promise<void> {
    await native.flush(this._native).catch(rethrow);
  }

  /**
   * What is wrong with the store's files; nothing if all is well. With `repair` it also repairs what it can: what nobody can
   * read goes out of the database, and a lane that makes no sense is made anew. Reads all of the database, which holds up
   * starts that wait for a commit.
   */
  async verify(options: { repair?: boolean | undefined } = {}): Promise<Problem[]> {
    checkOptions(options, ["repair"]);
    const { repair = false } = options;
    if (typeof repair !== "boolean") throw invalid("repair", repair, "true or false");
    const lines = await native.verify(this._native, repair).catch(rethrow);
    return lines.map((line) => ({ found: line.replace(/^repaired: /, ""), isRepaired: line.startsWith("repaired: ") }));
  }

  /**
   * What the store and all of its limits look like now. It takes part in nothing, and no decision costs more because somebody looks.
   * For "memory:" and "sqlite:PATH". A server would have to be asked: that is `SyncUnsupported`, and `snapshotAsync` does it.
   */
  snapshot(options: seen.SnapshotOptions = {}): seen.Snapshot {
    return seen.snapshot(this.#onlooker, options);
  }

  /** The same of any store, on the thread pool: where there are many limits, the event loop goes on meanwhile. */
  async snapshotAsync(options: seen.SnapshotOptions = {}): Promise<seen.Snapshot> {
    return seen.snapshotAsync(this.#onlooker, options);
  }

  /**
   * The same as text for Prometheus and all who read its formats; `metricsContentType` has its `Content-Type`. All processes of a
   * "sqlite:" store tell the same, so let one of each machine be asked, and do not add them up.
   */
  metrics(options: seen.MetricsOptions = {}): string {
    return seen.metrics(this.#onlooker, options);
  }

  /** That of any store, on the thread pool. */
  async metricsAsync(options: seen.MetricsOptions = {}): Promise<string> {
    return seen.metricsAsync(this.#onlooker, options);
  }

  /** How often the store failed a decision of this object's limiters, whatever was answered instead. */
  get failures(): number {
    return native.failures(this._native);
  }

  /**
   * A limiter by its name: of a policy such as "100/1m + 5 concurrent", declared under the name at its first use; if there
   * are several policies, one limiter of limits with names of their own, "name/rate", "name/concurrency", …
   *
   * Without a policy, the one that is declared, of whatever kind; at its first use it must be.
   */
  limiter(name: string, policy?: string): Limiter;
  /** A limiter of a few numbers, declared under its key at its first use. */
  limiter(flow: FlowControl): Limiter;
  limiter(name: string | FlowControl, policy?: string): Limiter {
    if (!(name instanceof FlowControl)) return byName(this, name, policy);
    if (policy !== undefined) throw invalid("policy", policy, "none beside a FlowControl, which is one");
    return name._in(this);
  }

  /** Declares the limits of a TOML file, all or none, and gives their names. */
  async load(file: string): Promise<string[]> {
    return native.load(this._native, unicode("file", file)).catch(rethrow);
  }

  /** Calls `hook` at each such event of this store's limiters, soon after the decision; what this gives takes it away. */
  on(event: HookEvent, hook: Hook): () => void {
    const begin = (number: number) => native.listenToStore(this._native, event, shared.told, number);
    return listen(event, hook, begin, (listening) => native.unlistenToStore(this._native, listening));
  }
}

brand({ ManualClock, Store }, native);
shown(ManualClock, (clock) => ({ now: clock.now() }));
shown(Store, (store) => ({ url: store.url }));

function rethrow(error: unknown): never {
  tellHooks();
  throw thrown(error);
}
