// Limits the jobs of all queues: a job starts, waits a moment in its worker, or is delayed and comes back with its place.

import { type Key, type Weight, isParts, nameOf, startKeyOf, startWeightOf } from "./charges.js";
import { LimitError, TimeoutError, invalid } from "./errors.js";
import { FIRST, Feed, TURN, graceOf, rankOf } from "./feed.js";
import { warn } from "./hooks.js";
import { type Duration, maybeMilliseconds, options as checkOptions, whole } from "./input.js";
import { Limiter } from "./limiter.js";
import { Backlogs } from "./backlog.js";
import { Permit } from "./permit.js";
import { sleep } from "./timers.js";

/** The delay of a job. */
export interface Limited {
  /** The key, or those of a composite's parts; "" for none. */
  readonly key: Key;
  /** How long the job has to wait, in ms. */
  readonly wait: number;
  /** Whether the job has a place, with which it starts then. Otherwise it asks again. */
  readonly hasPlace: boolean;
}

/** Delays a job: see `limitJob`. */
export type Delay<D> = (wait: number, place: string | null) => D | PromiseLike<D>;

/** How long a job is delayed, and its place, if it has one. */
export interface Later {
  readonly wait: number;
  readonly place: Permit | null;
}

/** The state of a limiter's jobs in this process. */
interface JobState {
  readonly backlogs: Backlogs;
  /** Whether it has places that can leave the process. Concurrency limits, and limiters that callers wrote, have none. */
  hasPlaces: boolean;
}

const states = new WeakMap<Limiter, JobState>();

/** Returns the key whose budget a job uses, or those of a composite's parts; nothing for the empty key. */
export type KeyOf<J> = (job: J) => Key | null | undefined;

/** The options of a queue's adapter. */
export interface WithLimiterOptions<J> {
  /** Returns the units that a job takes, or those of a composite's parts. Default: 1. */
  weightOf?: ((job: J) => Weight) | undefined;
  /** How long a job may wait in the worker, in the slot of a running job. Default: 150 ms. See `limitJob`. */
  hold?: Duration | undefined;
  /** How late a job may start with its place. Default: 100 ms. See `limitJob`. */
  grace?: Duration | undefined;
  /** Called after a job was delayed. */
  onLimited?: ((job: J, limited: Limited) => void) | undefined;
}

/** Decides about one job: see `HeldQueue`. */
export interface Decider {
  start(limiter: Limiter, request: Request): Promise<Permit | Later>;
}

/** Where a queue keeps a job while it is delayed. */
export interface Kept {
  /** The name of the job. */
  readonly name: string;
  /** Returns how many jobs of these names are still there. */
  count(names: readonly string[]): Promise<number>;
  /** How many jobs the worker runs at the same time. */
  readonly workers: number;
  /** The job's priority in its queue. Less is sooner. */
  readonly priority: number;
  /** Makes the queue hand out the job now, with this text instead of a place's. Rejects if it is not delayed. */
  call(text: string): Promise<unknown>;
}

/** Limits one job: `run` starts it with the permit, `delay` delays it. `kept`, if the queue knows which delayed jobs are gone. */
type LimitJobs<J> = <R, D>(
  job: J,
  place: string | Decider | null,
  run: (permit: Permit) => R | PromiseLike<R>,
  delay: Delay<D>,
  kept?: Kept | null,
) => Promise<R | D>;

/** Checks the options of an adapter once, and returns the function that it calls for each job. */
export function limitJobs<J>(limiter: Limiter, keyOf: KeyOf<J> | null | undefined, options: WithLimiterOptions<J>): LimitJobs<J> {
  if (!(limiter instanceof Limiter)) throw invalid("limiter", limiter, "a limiter of this package");
  maybeFunction("keyOf", keyOf ?? undefined);
  checkOptions(options, ["weightOf", "hold", "grace", "onLimited"]);
  const { weightOf, onLimited } = options;
  maybeFunction("weightOf", weightOf);
  maybeFunction("onLimited", onLimited);
  const hold = maybeMilliseconds("hold", options.hold) ?? 150;
  const grace = maybeMilliseconds("grace", options.grace) ?? 100;

  return async (job, brought, run, delay, kept = null) => {
    const key = keyOf?.(job) ?? "";
    const weight = weightOf === undefined ? 1 : weightOf(job);
    startKeyOf(key, weight);
    if (!isParts(weight)) whole("weight", weight);
    const name = nameOf(key);
    await limiter._opening();
    const request = { key, weight, name, hold, grace };
    const isDecider = typeof brought === "object" && brought !== null;
    const feed = kept === null || isDecider ? null : Feed.of(limiter);
    const isBack = feed?.arrive(kept!.name) ?? false;
    if (kept !== null && feed === null) await forgetGone(limiter, name, kept, brought === null);
    const answer = await (isDecider
      ? brought.start(limiter, request)
      : feed !== null
        ? startInTurn(feed, limiter, request, brought)
        : start(limiter, request, brought));
    if (!(answer instanceof Permit)) {
      const { wait, place } = answer;
      const asked = Date.now();
      const gone = await sendAway(delay, answer, isDecider ? 0 : hold);
      if (feed !== null && place === null) {
        const { name, workers, priority } = kept!;
        const job = {
          name,
          key: textOf(limiter, request),
          weight: startWeightOf(weight),
          priority: rankOf(priority, isBack || brought !== null),
        };
        feed.join({ ...job, call: (text) => kept!.call(text) }, workers);
      } else if (kept !== null) {
        const at = place?.readyAt?.getTime() ?? asked + wait;
        stateOf(limiter)
          .backlogs.of(name, asked)
          .sendAway(kept.name, { weight, at, place: place?.toText() ?? null }, asked);
      }
      notify(onLimited, job, { key, wait, hasPlace: place !== null });
      return gone;
    }
    const end = feed?.begin();
    try {
      return await run(answer);
    } finally {
      end?.();
      await answer.completeAsync();
    }
  };
}

/** Returns a request's key as the core knows it. */
function textOf(limiter: Limiter, { key, weight }: Request): string {
  const start = startKeyOf(key, weight);
  return typeof start === "string" ? start : start.textFor(limiter._native);
}

function maybeFunction(parameter: string, value: unknown): void {
  if (value !== undefined && typeof value !== "function") throw invalid(parameter, value, "a function");
}

/** Delays a job, to come back a little before its place is ready, or at its turn. */
async function sendAway<D>(delay: Delay<D>, { wait, place }: Later, early: number): Promise<D> {
  if (place === null) return delay(Math.ceil(wait), null);
  try {
    return await delay(Math.max(0, Math.ceil(wait - early)), place.toText());
  } catch (error) {
    await place.cancelAsync();
    throw error;
  }
}

function notify<J>(onLimited: ((job: J, limited: Limited) => void) | undefined, job: J, limited: Limited): void {
  try {
    onLimited?.(job, limited);
  } catch (error) {
    warn("onLimited threw", error);
  }
}

/** The start that a job asks for. Times are in ms. */
export interface Request {
  readonly key: Key;
  readonly weight: Weight;
  /** The name of the key's backlog. */
  readonly name: string;
  readonly hold: number;
  readonly grace: number;
}

function stateOf(limiter: Limiter): JobState {
  let state = states.get(limiter);
  if (state === undefined) states.set(limiter, (state = { backlogs: new Backlogs(), hasPlaces: true }));
  return state;
}

/** How many of the jobs ahead are looked for each time: if a part of them is gone, one of these is, too. */
const SAMPLE = 8;

/** How many jobs one command looks for. */
const AT_ONCE = 256;

/** Forgets the jobs of a key that were removed from their queue while they were delayed, so that a new job is not behind them. */
async function forgetGone(limiter: Limiter, name: string, kept: Kept, isNew: boolean): Promise<void> {
  const backlog = states.get(limiter)?.backlogs.find(name);
  if (backlog === undefined) return;
  backlog.comeBack(kept.name);
  if (!isNew) return;
  const sample = backlog.someAway(Date.now(), SAMPLE);
  if (sample.length > 0 && (await kept.count(sample)) < sample.length) {
    const gone: string[] = [];
    const names = backlog.allAway(Date.now());
    for (let i = 0; i < names.length; i += AT_ONCE) {
      const some = names.slice(i, i + AT_ONCE);
      if ((await kept.count(some)) === some.length) continue;
      const counts = await Promise.all(some.map((name) => kept.count([name])));
      gone.push(...some.filter((_, j) => counts[j] === 0));
    }
    const places = backlog.forget(gone, Date.now());
    backlog.givingBack = Promise.all([backlog.givingBack, ...places.map((text) => giveBack(limiter, text))]);
  }
  // Another new job may have found the same.
  await backlog.givingBack;
}

/** Gives the place of a job back that is gone. If that fails, the place expires. */
async function giveBack(limiter: Limiter, text: string): Promise<void> {
  try {
    await limiter.place(text).cancelAsync();
  } catch (error) {
    warn("the place of a job that was removed could not be given back", error);
  }
}

/**
 * Returns a start of a shared limit, after a short wait at most; or when to come back if nobody calls the job. Until then it is in the
 * line of the process that sent it away.
 */
async function startInTurn(feed: Feed, limiter: Limiter, request: Request, brought: string | null): Promise<Permit | Later> {
  const { key, weight, hold } = request;
  if (brought !== null && brought !== TURN) {
    const answer = await use(limiter, { ...request, grace: graceOf(limiter) }, brought);
    if (answer !== null) return answer;
  }
  // A called job is before all others of its tenant. A new one waits only where it is the first of its tenant here.
  const isCalled = brought !== null;
  const permit =
    isCalled || !feed.has(textOf(limiter, request))
      ? await inTime(() => limiter.acquire({ key, weight, timeout: hold, priority: isCalled ? FIRST : 0 }))
      : await limiter.tryAcquireAsync({ key, weight });
  if (permit !== null) return permit;
  const { limit } = await limiter.peekAsync({ key, weight });
  return { wait: feed.uncalledAfter(limit), place: null };
}

/** Returns a start; `null` if it would be too late. */
async function inTime(acquire: () => Promise<Permit>): Promise<Permit | null> {
  try {
    return await acquire();
  } catch (error) {
    if (error instanceof TimeoutError) return null;
    throw error;
  }
}

/** Returns a start, after a short wait at most; or when to come back. */
async function start(limiter: Limiter, request: Request, brought: string | null): Promise<Permit | Later> {
  const answer = (brought !== null && (await use(limiter, request, brought))) || (await ask(limiter, request));
  if (answer instanceof Permit || answer.wait > request.hold) return answer;
  if (answer.place === null) await sleep(Math.ceil(answer.wait));
  return (answer.place !== null && (await use(limiter, request, answer.place.toText()))) || ask(limiter, request);
}

/** Returns a start; or when to come back, with or without a place. */
export async function ask(limiter: Limiter, request: Request): Promise<Permit | Later> {
  const { key, weight, name } = request;
  const state = stateOf(limiter);
  // Without places it takes what is free, even if others wait: it would come after all of them, however long it has waited.
  const permit = await (state.hasPlaces
    ? limiter.tryAcquireAsync({ key, weight })
    : inTime(() => limiter.acquire({ key, weight, timeout: 0 })));
  const now = Date.now();
  if (permit !== null) {
    state.backlogs.grant(name, weight, now);
    return permit;
  }
  const place = state.hasPlaces ? await reserve(limiter, request, state) : null;
  if (place instanceof Permit) {
    const { wait } = place;
    state.backlogs.place(name, weight, now, now + wait);
    return { wait, place };
  }
  const denial = await limiter.peekAsync({ key, weight });
  // If all places are taken, the denial says when the place after the last would be ready.
  const turn = place === "full" ? { ...denial, period: limiter.window } : denial;
  return { wait: state.backlogs.append(name, weight, now, turn) - now, place: null };
}

/** Returns a place for a delayed job; "full" if all are taken, `null` if the limit has none. */
async function reserve(limiter: Limiter, { key, weight, grace }: Request, state: JobState): Promise<Permit | "full" | null> {
  const place = await unless(null, async () => (await limiter.reserveAsync({ key, weight, grace })) ?? "full");
  if (!(place instanceof Permit)) return place;
  const text = await unless(null, async () => place.toText());
  state.hasPlaces = text !== null;
  if (text !== null && place.wait > 0) return text.includes(NO_TURN) ? "full" : place;
  await place.cancelAsync(); // It cannot leave the process, or it is ready and waits for another start to end.
  return null;
}

/** The ticket of a place without a turn: the limit has places for some windows, and they are all taken. */
const NO_TURN = ".ffffffffffffffff.";

/** Uses a place. Returns `null` if it is late, was overtaken, or belongs to an earlier limit of that name. */
export async function use(limiter: Limiter, { hold, grace }: Request, text: string): Promise<Permit | Later | null> {
  try {
    const place = limiter.place(text);
    const readyAt = place.readyAt?.getTime();
    if (readyAt === undefined) return null;
    const left = readyAt + grace - Date.now();
    // Presenting a late place would exchange it, which costs more than asking again, and gives no better place.
    if (left <= 0) return null;
    if (left > hold + grace) return { wait: left - grace, place }; // The job was promoted.
    return await limiter.acquire({ place: text, timeout: left });
  } catch (error) {
    const isNone = error instanceof LimitError && ["foreign_permit", "invalid_argument", "unsupported"].includes(error.code);
    if (isNone || error instanceof TimeoutError) return null;
    throw error;
  }
}

/** Returns the result of `ask`, or `instead` if the limit does not support it. */
async function unless<T>(instead: T, ask: () => Promise<T>): Promise<T> {
  try {
    return await ask();
  } catch (error) {
    if (error instanceof LimitError && error.code === "unsupported") return instead;
    throw error;
  }
}

/** The field of a job's data with its place, for queues that store nothing else of a job. */
const PLACE = "workglow-limit";

const isRecord = (data: unknown): data is Record<string, unknown> => typeof data === "object" && data !== null && !Array.isArray(data);

/** Adds a place to a job's data. */
export function putPlace(data: unknown, place: string): Record<string, unknown> {
  return isRecord(data) ? { ...data, [PLACE]: place } : { [PLACE]: [place, data] };
}

/** Separates a job's data from the place in it, if there is one. */
export function takePlace<T>(data: T): { data: T; place: string | undefined } {
  if (!isRecord(data) || !Object.hasOwn(data, PLACE)) return { data, place: undefined };
  const { [PLACE]: stored, ...rest } = data;
  const [place, whole] = Array.isArray(stored) && stored.length === 2 ? stored : [stored, rest];
  return { data: whole as T, place: typeof place === "string" ? place : undefined };
}

/** How long after its delay a place is kept, in ms. A job that comes back later asks again. */
export const LATEST = 60_000;

/**
 * The places of the jobs that this process has delayed, by job, for jobs that come back without one because their data were
 * replaced. Otherwise a job that is replaced faster than the limit admits would never start.
 */
export class SentAway {
  readonly #places = new Map<string, string>();

  put(name: string, place: string, wait: number): void {
    this.#places.set(name, place);
    wakeIn(wait + LATEST, () => void (this.#places.get(name) === place && this.#places.delete(name)));
  }

  take(name: string): string | null {
    const place = this.#places.get(name) ?? null;
    this.#places.delete(name);
    return place;
  }
}

/** Calls `wake` soon after `wait` ms. The timer does not keep the process alive. */
export function wakeIn(wait: number, wake: () => void): void {
  setTimeout(wake, Math.min(wait + 1, 2 ** 31 - 1)).unref();
}

/** Returns the name of a schema, quoted for SQL. Default: `instead`. */
export function schemaOf(given: unknown, instead: string): string {
  const schema = given === undefined ? instead : given;
  if (typeof schema === "string" && schema !== "") return `"${schema.replaceAll('"', '""')}"`;
  throw invalid("schema", schema, "the name of a schema");
}
