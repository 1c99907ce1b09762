// The boundary to the native half: its functions, and the buffer through which limiters are called (`src/layout.rs`).

import addon from "./addon.cjs";
import { invalid, refused, thrown } from "./errors.js";
import { Flag, Int, Num, Offset, Op, type Question, Size, type Status, TextLength } from "./layout.js";
import type { KeySnapshot, LimitSnapshot, LineSnapshot, Snapshot } from "./snapshot.js";

declare const kind: unique symbol;
/** A native value that JavaScript only passes on. */
interface Opaque<Kind extends string> {
  readonly [kind]: Kind;
}
export type NativeStore = Opaque<"store">;
export type NativeObserver = Opaque<"observer">;
export type NativeClock = Opaque<"clock">;
export type NativePolicy = Opaque<"policy">;
export type NativeLimiter = Opaque<"limiter">;
/** The events of this thread for which its hooks have not been called yet. */
export type NativePool = Opaque<"pool">;
export type NativeEventQueue = Opaque<"event queue">;
export type NativeWakeQueue = Opaque<"wake queue">;
/** A call that has to wait for the store. */
type PendingCall = Opaque<"pending call">;
/** The closure of a limiter. It returns a value only for a call with `Flag.later` that would have to wait. */
export type Closure = () => PendingCall | undefined;
type Windows = readonly (readonly [max: number, seconds: number])[];
type Backoff = readonly [initial: number, multiplier: number, max: number, jitter: string];

/** An event for a hook. */
export interface QueuedEvent {
  /** The hook's number. */
  readonly hook: number;
  readonly limit: string;
  readonly key: string;
  readonly wanted: number;
  readonly wait: number;
  /** The message that is thrown. */
  readonly error?: string | null;
}

/** A setting of a server that endangers limits. */
export interface Advice {
  readonly severity: string;
  readonly what: string;
  readonly setting: string;
  readonly value: string;
  readonly instead: string;
}

/** A snapshot as `src/snapshot.rs` returns it: its time in ms, its counts without names. */
export type NativeSnapshot = Omit<Snapshot, "at" | "limits"> & { readonly at: number; readonly limits: readonly NativeLimitSnapshot[] };
type NativeLimitSnapshot = Counted<Omit<LimitSnapshot, "hotKeys">> & { readonly hotKeys: readonly Counted<KeySnapshot>[] };
type Counted<T> = Omit<T, "stats"> & { readonly stats: readonly number[] };

/** What a pool has done: see `src/pool.rs`. */
export interface PoolNews {
  /** The numbers of those that joined; -1 for one that was refused. */
  readonly joined: readonly number[];
  /** The waiters whose turn has come, and the texts of their places; "" for none. */
  readonly went: readonly number[];
  readonly places: readonly string[];
  /** Those that the limiter failed, or whose store was closed. */
  readonly failed: readonly number[];
  /** After how many ms it has to be advanced again; -1: not before a waiter joins. */
  readonly next: number;
}

interface Native {
  store(
    url: string,
    timeout?: number,
    mode?: number,
    onError?: string,
    durability?: string,
    clock?: NativeClock,
    maxSize?: number,
  ): NativeStore;
  openStore(store: NativeStore): Promise<void>;
  names(store: NativeStore): Promise<string[]>;
  learn(limiter: NativeLimiter, units: number, window: number, isEstimated: boolean, host: string): void;
  overrideLimit(store: NativeStore, name: string, policy: string, key?: string): Promise<void>;
  share(store: NativeStore, name: string, key: string, share: number): Promise<void>;
  lift(store: NativeStore, name: string, key?: string): Promise<void>;
  forget(store: NativeStore, name: string): Promise<void>;
  flush(store: NativeStore): Promise<void>;
  closeStore(store: NativeStore): Promise<void>;
  verify(store: NativeStore, repair: boolean): Promise<string[]>;
  observer(store: NativeStore): NativeObserver;
  snapshot(observer: NativeObserver, keys: number, showKeys: boolean): NativeSnapshot;
  snapshotLater(observer: NativeObserver, keys: number, showKeys: boolean): Promise<NativeSnapshot>;
  lineSnapshot(store: NativeStore, name: string, key?: string): LineSnapshot;
  lineSnapshotLater(store: NativeStore, name: string, key?: string): Promise<LineSnapshot>;
  metrics(observer: NativeObserver, keys: number, showKeys: boolean, format: string): string;
  metricsLater(observer: NativeObserver, keys: number, showKeys: boolean, format: string): Promise<string>;
  metricsContentType(format: string): string;
  doctor(url: string): Promise<Advice[]>;
  postgresSchema(): string;
  runCommand(args: string[]): number;
  url(store: NativeStore): string;
  publishCounts(): void;
  failures(store: NativeStore): number;
  countFailure(store: NativeStore): void;
  manualClock(): NativeClock;
  unitOfTime(unit: string): number | null;
  advance(clock: NativeClock, ms: number): void;
  now(clock: NativeClock): number;
  sharedPolicy(policy: NativePolicy): NativePolicy;
  ratePolicy(windows: Windows, backoff: Backoff): NativePolicy;
  concurrencyPolicy(max: number, lease?: number, cooldown?: number): NativePolicy;
  delayPolicy(delay: number): NativePolicy;
  evenlySpacedPolicy(max: number, seconds: number, isAdaptive: boolean): NativePolicy;
  bucketPolicy(rate: number, period: number, size: number, isLeaky: boolean): NativePolicy;
  windowPolicy(max: number, seconds: number, isSmooth: boolean): NativePolicy;
  declare(store: NativeStore, name: string | undefined, policy: NativePolicy): NativeLimiter;
  limiterOfText(store: NativeStore, name: string, text: string): NativeLimiter;
  flowControl(store: NativeStore, name: string, rate?: readonly [rate: number, period: number], parallelism?: number): NativeLimiter;
  find(store: NativeStore, name: string, patiently: boolean): NativeLimiter;
  findLater(store: NativeStore, name: string): Promise<NativeLimiter>;
  load(store: NativeStore, path: string): Promise<string[]>;
  customLimiter(name: string, ask: Ask): NativeLimiter;
  nullLimiter(): NativeLimiter;
  compositeLimiter(): NativeLimiter;
  firstOfLimiter(): NativeLimiter;
  numberOf(limiter: NativeLimiter): number;
  addLimiter(to: NativeLimiter, child: NativeLimiter, name?: string): void;
  jointKey(
    limiter: NativeLimiter,
    key: string,
    parts: readonly string[],
    keys: readonly (string | null)[],
    weights: readonly (number | null)[],
  ): string;
  patiently(call: Closure): PendingCall | undefined;
  openLimiter(limiter: NativeLimiter): Promise<void>;
  nameOf(limiter: NativeLimiter): string;
  holds(limiter: NativeLimiter): boolean;
  partNames(limiter: NativeLimiter): string[];
  partOf(limiter: NativeLimiter, name: string): NativeLimiter | null;
  stats(limiter: NativeLimiter, key: string): number[];
  bind(limiter: NativeLimiter, buffer: ArrayBuffer, events: NativeEventQueue, wakes: NativeWakeQueue, line: number): Closure;
  eventQueue(): NativeEventQueue;
  takeEvents(queue: NativeEventQueue): QueuedEvent[];
  wakeQueue(ring: () => void): NativeWakeQueue;
  takeWakes(queue: NativeWakeQueue): number[];
  listen(limiter: NativeLimiter, event: string, queue: NativeEventQueue, hook: number): number;
  unlisten(limiter: NativeLimiter, listening: number): void;
  listenToStore(store: NativeStore, event: string, queue: NativeEventQueue, hook: number): number;
  unlistenToStore(store: NativeStore, listening: number): void;
  jobPool(limiter: NativeLimiter, grace: number): NativePool | null;
  advancePool(
    pool: NativePool,
    ended: readonly number[],
    left: readonly number[],
    keys: readonly string[],
    weights: readonly number[],
    priorities: readonly number[],
    workers: number,
    free: number,
  ): Promise<PoolNews>;
  finish(call: PendingCall): Promise<Uint8Array>;
}

export const native = addon as Native;

/**
 * Asks a limiter written in JavaScript (`src/custom.rs`). The number is a weight, the number of a start, or a duration in ms;
 * the text is a key, or the actual weight of a start. A decision returns the number of the start; if denied, `-1 - us`,
 * where a retry may succeed after `us` µs. NaN: the limiter threw.
 */
export type Ask = (question: Question, text: string, number: number) => number;

/** The calls to use where one of these must not wait for a server. */
const INSTEAD: Partial<Record<number, readonly [name: string, instead: string]>> = {
  [Op.attempt]: ["tryAcquire()", "tryAcquireAsync()"],
  [Op.decide]: ["decide()", "decideAsync()"],
  [Op.peek]: ["peek()", "peekAsync()"],
  [Op.forecast]: ["forecast()", "forecastAsync()"],
  [Op.reserve]: ["reserve()", "reserveAsync()"],
  [Op.present]: ["present()", "presentAsync()"],
  [Op.renew]: ["renew()", "renewAsync()"],
  [Op.window]: ["window", "open() before"],
  [Op.fromText]: ["to read a permit or place", "open() before"],
};

/** The state that all copies of this code in a thread share, because they may use each other's objects: see `brand.ts`. */
interface ThreadState {
  /** The buffer of all calls: a call is written, made and read before other code can run. */
  readonly buffer: ArrayBuffer;
  readonly events: NativeEventQueue;
  /** The hooks, by their numbers. */
  readonly hooks: Map<number, (event: QueuedEvent) => void>;
  lastHook: number;
  readonly wakes: NativeWakeQueue;
  /** Advances a line that has waiters, by its number. */
  readonly lines: Map<number, () => void>;
  lastLine: number;
  /** The first error that a limiter written in JavaScript threw in the innermost call that may call such limiters. */
  failure: unknown;
}

const holder = addon as { shared?: ThreadState };
export const shared: ThreadState = (holder.shared ??= {
  buffer: new ArrayBuffer(Size.buffer),
  events: native.eventQueue(),
  hooks: new Map(),
  lastHook: 0,
  wakes: native.wakeQueue(wakeLines),
  lines: new Map(),
  lastLine: 0,
  failure: undefined,
});
const { buffer } = shared;
export const ints = new Int32Array(buffer, 0, Int.permit + Size.permit);
export const numbers = new Float64Array(buffer, 0, Num.due + 1);
const large = new BigUint64Array(buffer, Offset.large, 1);
const text = Buffer.from(buffer, Offset.text, Size.text);
const bytes = new Uint8Array(buffer);

/** Makes the closure of a limiter, whose waiters are in the line with this number. */
export const bind = (limiter: NativeLimiter, line: number): Closure => native.bind(limiter, buffer, shared.events, shared.wakes, line);

/** Advances the lines for which a server has answered. */
function wakeLines(): void {
  for (const line of native.takeWakes(shared.wakes)) shared.lines.get(line)?.();
}

/** Calls a limiter. No code of the caller's, such as a getter of its options, may run between this and reading the result. */
export function call(closure: Closure, op: number, key: string, weight: number): Status {
  put(op, key, weight);
  try {
    closure();
  } catch (error) {
    notifyHooks();
    throw refused(error, ...(INSTEAD[op] ?? ["this call", "open() before"]));
  }
  if (ints[Int.operation] !== 0) notifyHooks();
  return ints[Int.status]!;
}

/** Notifies hooks of queued events. They run in turns of their own, as the result of this call has not been read yet. */
export function notifyHooks(): void {
  if (shared.hooks.size === 0) return;
  for (const event of native.takeEvents(shared.events)) shared.hooks.get(event.hook)?.(event);
}

/** Begins a call of a limiter. Its result is in the buffer, unless this returns a call that has to wait for the store. */
export function begin(closure: Closure, op: Op, key: string, weight: number): PendingCall | undefined {
  let pending: PendingCall | undefined;
  try {
    put(op | Flag.later, key, weight);
    pending = closure();
  } catch (error) {
    notifyHooks();
    throw thrown(error);
  }
  if (ints[Int.operation] !== 0) notifyHooks();
  return pending;
}

/** Returns the status of the last call. */
export const status = (): Status => ints[Int.status]!;

/** Finishes a call on the thread pool. `read` reads the result from the buffer at once. */
export function finish<T>(pending: PendingCall, read: (status: Status) => T): Promise<T> {
  return inPool(() => native.finish(pending)).then(
    (result) => {
      notifyHooks();
      bytes.set(result);
      return read(status());
    },
    (error) => {
      notifyHooks();
      throw thrown(error);
    },
  );
}

/** Reads the result of a call from the buffer, or throws its error. */
export type Answer = () => Status;

/**
 * Calls a limiter, on the thread pool if it would have to wait for the store. `done` is called once, usually before this
 * returns, and reads the result at once; it does not throw.
 */
export function ask(closure: Closure, op: Op, key: string, weight: number, done: (answer: Answer) => void): void {
  const failed = (reason: unknown): void =>
    done(() => {
      throw reason;
    });
  let pending: PendingCall | undefined;
  try {
    pending = begin(closure, op, key, weight);
  } catch (reason) {
    return failed(reason);
  }
  if (pending === undefined) return done(status);
  finish(pending, () => done(status)).catch(failed);
}

/**
 * The number of pool threads that these calls use at once. The process has few, which files and host names need too, so two are
 * left to them; at least two are used. A call occupies a thread for as long as the server takes: a program that asks a server
 * often makes the pool larger.
 */
const MOST_IN_POOL = Math.max(2, Math.min(Number(process.env.UV_THREADPOOL_SIZE) || 4, 1024) - 2);
let inPoolNow = 0;
const waitingForPool: (() => void)[] = [];

async function inPool<T>(work: () => Promise<T>): Promise<T> {
  if (inPoolNow === MOST_IN_POOL) await new Promise<void>((resolve) => waitingForPool.push(resolve));
  else inPoolNow++;
  try {
    return await work();
  } finally {
    const next = waitingForPool.shift();
    if (next === undefined) inPoolNow--;
    else next();
  }
}

function put(op: number, key: string, weight: number): void {
  ints[Int.operation] = op;
  ints[Int.textLength] = key === "" ? 0 : write(key);
  numbers[Num.weight] = weight;
}

/** Writes a key. Most are short and ASCII, for which a loop is faster than any call. */
function write(key: string): number {
  const length = key.length;
  if (length <= 64) {
    let i = 0;
    for (; i < length; i++) {
      const unit = key.charCodeAt(i);
      if (unit > 127) break;
      text[i] = unit;
    }
    if (i === length) return length;
  }
  if (!key.isWellFormed()) throw invalid("key", key, "well-formed Unicode, without lone surrogates");
  // A key that does not fit is longer than the core accepts. The core checks the length of a key that fits.
  const size = Buffer.byteLength(key);
  if (size > text.length) throw invalid("key", `${size} bytes long`, "at most 1024 bytes of UTF-8", true);
  return text.write(key, "utf8");
}

/** Returns the text that the last call wrote. */
export const takeText = (): string => text.toString("utf8", 0, ints[Int.textLength]);

/** Returns the name of the limit that denied; `own` if it was the limiter itself. */
export const deniedBy = (own: string): string => (ints[Int.textLength] === TextLength.ownName ? own : takeText());

/** Returns what the last `readyAt` (ns on the clock of `process.hrtime.bigint()`, 0 for none), `fence` or `chosen` wrote. */
export const takeLarge = (): bigint => large[0]!;

/** Returns the permit that the last call wrote, as 32-bit integers, which no conversion can change. */
export function takeWords(): readonly number[] {
  const w = ints;
  const p = Int.permit;
  // biome-ignore format: a literal is faster to make than a copy by a loop
  return [
    w[p]!, w[p + 1]!, w[p + 2]!, w[p + 3]!, w[p + 4]!, w[p + 5]!, w[p + 6]!, w[p + 7]!,
    w[p + 8]!, w[p + 9]!, w[p + 10]!, w[p + 11]!, w[p + 12]!, w[p + 13]!, w[p + 14]!, w[p + 15]!,
  ];
}

/** Writes a permit for the next call. */
export function putWords(words: readonly number[]): void {
  for (let i = 0; i < Size.permit; i++) ints[Int.permit + i] = words[i]!;
}

/** Returns whether the last call wrote this permit. */
export const isTaken = (words: readonly number[]): boolean => words.every((word, i) => ints[Int.permit + i] === word);
