// The boundary to the native half: its functions, and the buffer through which limiters are called (`src/call.rs`).

import addon from "./addon.cjs";
import { invalid, refused, thrown } from "./errors.js";
import type { KeySnapshot, LimitSnapshot, Snapshot } from "./snapshot.js";

declare const kind: unique symbol;
/** A native value that JavaScript only passes on. */
interface Opaque<Kind extends string> {
  readonly [kind]: Kind;
}
export type NativeStore = Opaque<"store">;
export type NativeOnlooker = Opaque<"onlooker">;
export type NativeClock = Opaque<"clock">;
export type NativePolicy = Opaque<"policy">;
export type NativeLimiter = Opaque<"limiter">;
/** What the hooks of this thread have been told. */
export type NativeTold = Opaque<"told">;
/** A call that has to wait for the store. */
type Later = Opaque<"later">;
/** The closure of a limiter. It gives something only if it was asked to make a call later that would have to wait. */
export type Closure = () => Later | undefined;
type Windows = readonly (readonly [max: number, seconds: number])[];
type Backoff = readonly [initial: number, multiplier: number, max: number, jitter: string];

/** What a hook is told, by its number. */
export interface Telling {
  readonly hook: number;
  readonly limit: string;
  readonly key: string;
  readonly wanted: number;
  readonly wait: number;
  /** As it is thrown. */
  readonly error?: string | null;
}

/** What a server's settings endanger. */
export interface Advice {
  readonly severity: string;
  readonly what: string;
  readonly setting: string;
  readonly value: string;
  readonly instead: string;
}

/** A snapshot as it comes from `src/snapshot.rs`: its time in ms, its counts without names. */
export type NativeSnapshot = Omit<Snapshot, "at" | "limits"> & { readonly at: number; readonly limits: readonly NativeLimitSnapshot[] };
type NativeLimitSnapshot = Counted<Omit<LimitSnapshot, "hotKeys">> & { readonly hotKeys: readonly Counted<KeySnapshot>[] };
type Counted<T> = Omit<T, "stats"> & { readonly stats: readonly number[] };

interface Native {
  store(
    url: string,
    timeout?: number,
    mode?: number,
    onError?: string,
    durability?: string,
    clock?: NativeClock,
  ): NativeStore;
  openStore(store: NativeStore): Promise<void>;
  names(store: NativeStore): Promise<string[]>;
  overrideLimit(store: NativeStore, name: string, policy: string, key?: string): Promise<void>;
  lift(store: NativeStore, name: string, key?: string): Promise<void>;
  flush(store: NativeStore): Promise<void>;
  verify(store: NativeStore, repair: boolean): Promise<string[]>;
  onlooker(store: NativeStore): NativeOnlooker;
  snapshot(onlooker: NativeOnlooker, keys: number, showKeys: boolean): NativeSnapshot;
  snapshotLater(onlooker: NativeOnlooker, keys: number, showKeys: boolean): Promise<NativeSnapshot>;
  metrics(onlooker: NativeOnlooker, keys: number, showKeys: boolean, format: string): string;
  metricsLater(onlooker: NativeOnlooker, keys: number, showKeys: boolean, format: string): Promise<string>;
  metricsContentType(format: string): string;
  doctor(url: string): Promise<Advice[]>;
  postgresSchema(): string;
  runCommand(args: string[]): number;
  url(store: NativeStore): string;
  tellCounts(): void;
  failures(store: NativeStore): number;
  manualClock(): NativeClock;
  advance(clock: NativeClock, ms: number): void;
  now(clock: NativeClock): number;
  ratePolicy(windows: Windows, backoff: Backoff): NativePolicy;
  concurrencyPolicy(max: number, lease?: number): NativePolicy;
  delayPolicy(delay: number): NativePolicy;
  evenlySpacedPolicy(max: number, seconds: number, isAdaptive: boolean): NativePolicy;
  bucketPolicy(rate: number, period: number, size: number, isLeaky: boolean): NativePolicy;
  windowPolicy(max: number, seconds: number, isSmooth: boolean): NativePolicy;
  declare(store: NativeStore, name: string | undefined, policy: NativePolicy): NativeLimiter;
  attach(store: NativeStore, name: string, kind: string): NativeLimiter;
  limiterOfText(store: NativeStore, name: string, text: string): NativeLimiter;
  flowControl(
    store: NativeStore,
    name: string,
    rate?: readonly [rate: number, period: number],
    parallelism?: number,
  ): NativeLimiter;
  find(store: NativeStore, name: string): NativeLimiter;
  findLater(store: NativeStore, name: string): Promise<NativeLimiter>;
  load(store: NativeStore, path: string): Promise<string[]>;
  customLimiter(name: string, ask: Ask): NativeLimiter;
  nullLimiter(): NativeLimiter;
  compositeLimiter(): NativeLimiter;
  addLimiter(composite: NativeLimiter, child: NativeLimiter): void;
  openLimiter(limiter: NativeLimiter): Promise<void>;
  nameOf(limiter: NativeLimiter): string;
  hasPlaces(limiter: NativeLimiter): boolean;
  stats(limiter: NativeLimiter, key: string): number[];
  bufferSize(): number;
  bind(limiter: NativeLimiter, buffer: ArrayBuffer, told: NativeTold): Closure;
  told(): NativeTold;
  takeTold(told: NativeTold): Telling[];
  listen(limiter: NativeLimiter, event: string, told: NativeTold, hook: number): number;
  unlisten(limiter: NativeLimiter, listening: number): void;
  listenToStore(store: NativeStore, event: string, told: NativeTold, hook: number): number;
  unlistenToStore(store: NativeStore, listening: number): void;
  work(later: Later): Promise<Uint8Array>;
}

export const native = addon as Native;

/** What a limiter written in JavaScript is asked (`src/custom.rs`). */
export const enum Question {
  decide,
  peek,
  complete,
  cancel,
  settle,
  pause,
  clear,
  recordJobStart,
  recordJobCompletion,
}

/**
 * How it is asked. The number is a weight, a start's own, or a duration in ms; the text a key, or what a start was worth.
 * Decisions answer the number of the start, or if denied, a negative number: after how many µs perhaps, less one.
 * NaN: it threw.
 */
export type Ask = (question: Question, text: string, number: number) => number;

/** What a limiter can be asked. */
export const enum Op {
  attempt,
  complete,
  decide,
  peek,
  join,
  leave,
  canProceed,
  recordJobStart,
  recordJobCompletion,
  nextAvailableTime,
  setNextAvailableTime,
  pause,
  clear,
  readyAt,
  cancel,
  settle,
  reserve,
  present,
  joinWithPlace,
  toText,
  fromText,
  renew,
  fence,
  cancelPlace,
  window,
  advance,
  take,
  wake,
  wakeAll,
  start,
  leaveWithPlace,
}

/** What waits where such a call must not. */
const INSTEAD: Partial<Record<number, readonly [name: string, instead: string]>> = {
  [Op.attempt]: ["tryAcquire()", "tryAcquireAsync()"],
  [Op.decide]: ["decide()", "decideAsync()"],
  [Op.peek]: ["peek()", "peekAsync()"],
  [Op.reserve]: ["reserve()", "reserveAsync()"],
  [Op.present]: ["present()", "presentAsync()"],
  [Op.renew]: ["renew()", "renewAsync()"],
  [Op.window]: ["window", "open() before"],
  [Op.fromText]: ["to read a permit or place", "open() before"],
};

/** Added to what must not wait for the store here: `ask` has that done on the thread pool. */
export const LATER = 1 << 8;
/** Added to what waits here, even for a server: with limiters written in JavaScript. */
export const HERE = 1 << 9;

/** What it answers. */
export const enum Status {
  no,
  yes,
  sleep,
  expired,
}

/** Where things are in `ints`. */
export const enum Int {
  op,
  status,
  textLength,
  priority,
  permit = 26,
}

/** Where things are in `numbers`. */
export const enum Num {
  weight = 2,
  time,
  retryAfter,
  suggestedAfter,
  resetAfter,
  remaining,
  limit,
  grace,
  waiter,
  due,
}

/** What is one for all who loaded this code in this thread, because they may use each other's objects: see `brand.ts`. */
interface Shared {
  /** For the calls of all limiters: a call is written, made and read before anything else can run. */
  readonly buffer: ArrayBuffer;
  readonly told: NativeTold;
  /** The hooks, by their numbers. */
  readonly hooks: Map<number, (telling: Telling) => void>;
  lastHook: number;
  /** What the innermost call of a limiter that calls back was thrown first, by limiters of the caller's own. */
  failure: unknown;
}

const here = addon as { shared?: Shared };
export const shared: Shared = (here.shared ??= {
  buffer: new ArrayBuffer(native.bufferSize()),
  told: native.told(),
  hooks: new Map(),
  lastHook: 0,
  failure: undefined,
});
const { buffer } = shared;
export const ints = new Int32Array(buffer, 0, 42);
export const numbers = new Float64Array(buffer, 0, 12);
const large = new BigUint64Array(buffer, 96, 1);
const text = Buffer.from(buffer, 168);
const bytes = new Uint8Array(buffer);

/** The closure of a limiter. */
export const bind = (limiter: NativeLimiter): Closure => native.bind(limiter, buffer, shared.told);

/** Calls a limiter. Nothing of the caller's (a getter of its options, say) may run between this and reading the answer. */
export function call(closure: Closure, op: number, key: string, weight: number): Status {
  put(op, key, weight);
  try {
    closure();
  } catch (error) {
    tellHooks();
    throw refused(error, ...(INSTEAD[op] ?? ["this call", "open() before"]));
  }
  if (ints[Int.op] !== 0) tellHooks();
  return ints[Int.status]!;
}

/** Tells hooks what calls have told: in turns of their own, as the answer of this call has not been read yet. */
export function tellHooks(): void {
  if (shared.hooks.size === 0) return;
  for (const telling of native.takeTold(shared.told)) shared.hooks.get(telling.hook)?.(telling);
}

/** Begins a call of a limiter. It is done, and its answer in the buffer, unless this gives what would have to wait for the store. */
export function begin(closure: Closure, op: Op, key: string, weight: number): Later | undefined {
  let later: Later | undefined;
  try {
    put(op | LATER, key, weight);
    later = closure();
  } catch (error) {
    tellHooks();
    throw thrown(error);
  }
  if (ints[Int.op] !== 0) tellHooks();
  return later;
}

/** What the call that was just made answered. */
export const status = (): Status => ints[Int.status]!;

/** Does on the thread pool what had to wait. `read` reads the answer from the buffer at once. */
export function finish<T>(later: Later, read: (status: Status) => T): Promise<T> {
  return inPool(() => native.work(later)).then(
    (answer) => {
      tellHooks();
      bytes.set(answer);
      return read(status());
    },
    (error) => {
      tellHooks();
      throw thrown(error);
    },
  );
}

/** Reads the answer of a call from the buffer, or throws its error. */
export type Answer = () => Status;

/**
 * Calls a limiter, on the thread pool if it would have to wait for the store. `done` is called once, mostly before this
 * returns, and reads the answer at once; it does not throw.
 */
export function ask(closure: Closure, op: Op, key: string, weight: number, done: (answer: Answer) => void): void {
  const failed = (reason: unknown): void =>
    done(() => {
      throw reason;
    });
  let later: Later | undefined;
  try {
    later = begin(closure, op, key, weight);
  } catch (reason) {
    return failed(reason);
  }
  if (later === undefined) return done(status);
  finish(later, () => done(status)).catch(failed);
}

/**
 * The pool's threads are few, and for the whole process: files and names of hosts need them, too. So two of them are left to others, and
 * two are used at least. Whoever asks a server much makes the pool larger: each call has a thread for as long as the server takes.
 */
const MOST_IN_POOL = Math.max(2, Math.min(Number(process.env["UV_THREADPOOL_SIZE"]) || 4, 1024) - 2);
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
  ints[Int.op] = op;
  ints[Int.textLength] = key === "" ? 0 : write(key);
  numbers[Num.weight] = weight;
}

/** Writes a key. Most are short and ASCII: a loop beats everything that has to be called. */
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
  if (!key.isWellFormed()) throw invalid("key", key, "well-formed Unicode, and this has a lone surrogate");
  // What does not fit is beyond what the core accepts, and the core says so of what fits.
  const size = Buffer.byteLength(key);
  if (size > text.length) throw invalid("key", `${size} bytes long`, "at most 1024 bytes of UTF-8", true);
  return text.write(key, "utf8");
}

/** The text that the last call gave. */
export const takeText = (): string => text.toString("utf8", 0, ints[Int.textLength]);

/** The name of the limit that denied, if it is not the limiter's own. */
export const deniedBy = (own: string): string => (ints[Int.textLength]! < 0 ? own : takeText());

/** What the last `readyAt` (ns on the clock of `process.hrtime.bigint()`, 0 for none) or `fence` gave. */
export const takeLarge = (): bigint => large[0]!;

/** The permit that the last call gave, as plain words: two integers each, which no conversion can change. */
export function takeWords(): readonly number[] {
  const w = ints;
  // prettier-ignore
  return [
    w[26]!, w[27]!, w[28]!, w[29]!, w[30]!, w[31]!, w[32]!, w[33]!,
    w[34]!, w[35]!, w[36]!, w[37]!, w[38]!, w[39]!, w[40]!, w[41]!,
  ];
}

/** Puts a permit where the next call finds it. */
export function putWords(words: readonly number[]): void {
  for (let i = 0; i < 16; i++) ints[Int.permit + i] = words[i]!;
}

/** Is the permit that the last call gave this one? */
export const isTaken = (words: readonly number[]): boolean => words.every((word, i) => ints[Int.permit + i] === word);
