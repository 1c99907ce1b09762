// What limits the jobs of all queues: each starts, waits a moment in its worker, or goes away and comes back with its place.

import { LimitError, TimeoutError, invalid } from "./errors.js";
import { warn } from "./hooks.js";
import { type Duration, maybeMilliseconds, options as checkOptions, whole } from "./input.js";
import { Limiter } from "./limiter.js";
import { Backlogs } from "./backlog.js";
import { Permit } from "./permit.js";
import { sleep } from "./timers.js";

/** What a job is delayed for. */
export interface Limited {
  /** The key, "" for none. */
  readonly key: string;
  /** How long it has to wait, in ms. */
  readonly wait: number;
  /** Does it start then, with a place of its own? If not, it asks again. */
  readonly hasPlace: boolean;
}

/** Sends a job away: see `limitJob`. */
export type Delay<D> = (wait: number, place: string | null) => D | PromiseLike<D>;

/** For how long a job has to go away, and its place, if it has one. */
interface Later {
  readonly wait: number;
  readonly place: Permit | null;
}

/** What this process knows of a limiter's jobs. */
interface Known {
  readonly backlogs: Backlogs;
  /** Some limits have none, or none that leave the process: a concurrency limit, or a limiter of the caller's own. */
  hasPlaces: boolean;
}

const known = new WeakMap<Limiter, Known>();

/** How the adapters of queues limit. */
export interface WithLimiterOptions<J> {
  /** How many units a job takes: 1 if not given. */
  weightOf?: ((job: J) => number) | undefined;
  /** How long a job may wait in the worker, in the room of a running job: 150 ms if not given. See `limitJob`. */
  hold?: Duration | undefined;
  /** How late a job may start with its place: 100 ms if not given. See `limitJob`. */
  grace?: Duration | undefined;
  /** Called after each job that was delayed. */
  onLimited?: ((job: J, limited: Limited) => void) | undefined;
}

/** What an adapter calls for each job: `run` starts it, with the permit, and `delay` sends it away. */
type LimitJobs<J> = <R, D>(
  job: J,
  place: string | null,
  run: (permit: Permit) => R | PromiseLike<R>,
  delay: Delay<D>,
) => Promise<R | D>;

/** What the adapters of queues stand on: checks what they are given, once. */
export function limitJobs<J>(
  limiter: Limiter,
  keyOf: ((job: J) => string | null | undefined) | null | undefined,
  options: WithLimiterOptions<J>,
): LimitJobs<J> {
  if (!(limiter instanceof Limiter)) throw invalid("limiter", limiter, "a limiter of this package");
  maybeFunction("keyOf", keyOf ?? undefined);
  checkOptions(options, ["weightOf", "hold", "grace", "onLimited"]);
  const { weightOf, onLimited } = options;
  maybeFunction("weightOf", weightOf);
  maybeFunction("onLimited", onLimited);
  const hold = maybeMilliseconds("hold", options.hold) ?? 150;
  const grace = maybeMilliseconds("grace", options.grace) ?? 100;

  return async (job, brought, run, delay) => {
    const key = keyOf?.(job) ?? "";
    if (typeof key !== "string") throw invalid("key", key, "a string, or nothing");
    const weight = weightOf === undefined ? 1 : whole("weight", weightOf(job));
    await limiter._opening();
    const answer = await start(limiter, { key, weight, hold, grace }, brought);
    if (!(answer instanceof Permit)) {
      const { wait, place } = answer;
      const gone = await sendAway(delay, answer, hold);
      tell(onLimited, job, { key, wait, hasPlace: place !== null });
      return gone;
    }
    try {
      return await run(answer);
    } finally {
      await answer.completeAsync();
    }
  };
}

function maybeFunction(parameter: string, value: unknown): void {
  if (value !== undefined && typeof value !== "function") throw invalid(parameter, value, "a function");
}

/** Sends a job away: to come back a little before its place, or at its turn. */
async function sendAway<D>(delay: Delay<D>, { wait, place }: Later, hold: number): Promise<D> {
  if (place === null) return delay(Math.ceil(wait), null);
  try {
    return await delay(Math.max(0, Math.ceil(wait - hold)), place.toText());
  } catch (error) {
    await place.cancelAsync();
    throw error;
  }
}

function tell<J>(onLimited: ((job: J, limited: Limited) => void) | undefined, job: J, limited: Limited): void {
  try {
    onLimited?.(job, limited);
  } catch (error) {
    warn("onLimited threw", error);
  }
}

interface Request {
  readonly key: string;
  readonly weight: number;
  readonly hold: number;
  readonly grace: number;
}

/** A start, after a short wait at most; or when to come back. */
async function start(limiter: Limiter, request: Request, brought: string | null): Promise<Permit | Later> {
  const answer = (brought !== null && (await use(limiter, request, brought))) || (await ask(limiter, request));
  if (answer instanceof Permit || answer.wait > request.hold) return answer;
  if (answer.place === null) await sleep(Math.ceil(answer.wait));
  return (answer.place !== null && (await use(limiter, request, answer.place.toText()))) || ask(limiter, request);
}

/** A start; or when to come back, and with what. */
async function ask(limiter: Limiter, request: Request): Promise<Permit | Later> {
  const { key, weight } = request;
  let of = known.get(limiter);
  if (of === undefined) known.set(limiter, (of = { backlogs: new Backlogs(), hasPlaces: true }));
  const permit = await limiter.tryAcquireAsync({ key, weight });
  const now = Date.now();
  if (permit !== null) {
    of.backlogs.grant(key, weight, now);
    return permit;
  }
  const place = of.hasPlaces ? await reserve(limiter, request, of) : null;
  if (place instanceof Permit) {
    const { wait } = place;
    of.backlogs.place(key, weight, now, now + wait);
    return { wait, place };
  }
  const denial = await limiter.peekAsync({ key, weight });
  // Where all places are taken, it says when one after the last would come.
  const turn = place === "full" ? { ...denial, period: limiter.window } : denial;
  return { wait: of.backlogs.append(key, weight, now, turn) - now, place: null };
}

/** A place to send away with its job; "full" if all are taken, `null` if there are none for what it waits for. */
async function reserve(limiter: Limiter, { key, weight, grace }: Request, of: Known): Promise<Permit | "full" | null> {
  const place = await unless(null, async () => (await limiter.reserveAsync({ key, weight, grace })) ?? "full");
  if (!(place instanceof Permit)) return place;
  const text = await unless(null, async () => place.toText());
  of.hasPlaces = text !== null;
  if (text !== null && place.wait > 0) return text.includes(NO_TURN) ? "full" : place;
  await place.cancelAsync(); // It cannot leave, or its time has come, and it waits for somebody to complete.
  return null;
}

/** The ticket of a place that says when there may be one: a limit has places for some windows, and they are all taken. */
const NO_TURN = ".ffffffffffffffff.";

/** What comes of a place: `null` if it came too late, was overtaken, or is of a limit that was here before. */
async function use(limiter: Limiter, { hold, grace }: Request, text: string): Promise<Permit | Later | null> {
  try {
    const place = limiter.place(text);
    const readyAt = place.readyAt?.getTime();
    if (readyAt === undefined) return null;
    const left = readyAt + grace - Date.now();
    // To present one late would exchange it, which costs more than asking anew, and gives no better place.
    if (left <= 0) return null;
    if (left > hold + grace) return { wait: left - grace, place }; // Somebody promoted the job.
    return await limiter.acquire({ place: text, timeout: left });
  } catch (error) {
    const isNone = error instanceof LimitError && ["foreign_permit", "invalid_argument", "unsupported"].includes(error.code);
    if (isNone || error instanceof TimeoutError) return null;
    throw error;
  }
}

/** What `ask` gives, or `instead` where the limit does not support it. */
async function unless<T>(instead: T, ask: () => Promise<T>): Promise<T> {
  try {
    return await ask();
  } catch (error) {
    if (error instanceof LimitError && error.code === "unsupported") return instead;
    throw error;
  }
}

/** Where a job of a queue that stores nothing else of it has its place: in its data. */
const PLACE = "workglow-limit";

const isRecord = (data: unknown): data is Record<string, unknown> =>
  typeof data === "object" && data !== null && !Array.isArray(data);

/** A job's data with a place in it. */
export function putPlace(data: unknown, place: string): Record<string, unknown> {
  return isRecord(data) ? { ...data, [PLACE]: place } : { [PLACE]: [place, data] };
}

/** The place of a job's data, if there is one, and what its queue was given. */
export function takePlace<T>(data: T): { data: T; place: string | undefined } {
  if (!isRecord(data) || !Object.hasOwn(data, PLACE)) return { data, place: undefined };
  const { [PLACE]: held, ...rest } = data;
  const [place, whole] = Array.isArray(held) && held.length === 2 ? held : [held, rest];
  return { data: whole as T, place: typeof place === "string" ? place : undefined };
}

/** For how much longer than its delay a place is kept, in ms: a job that comes back so late asks anew. */
export const LATEST = 60_000;

/**
 * The places of the jobs that this process has sent away, by their names: for those that come back without, because
 * somebody has replaced their data. Who is replaced faster than the limit grants would else never start.
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

/** Calls `wake` soon after `wait` ms, which keeps no process alive. */
export function wakeIn(wait: number, wake: () => void): void {
  setTimeout(wake, Math.min(wait + 1, 2 ** 31 - 1)).unref();
}

/** The name of a schema, as SQL has it; `instead` if none was given. */
export function schemaOf(given: unknown, instead: string): string {
  const schema = given === undefined ? instead : given;
  if (typeof schema === "string" && schema !== "") return `"${schema.replaceAll('"', '""')}"`;
  throw invalid("schema", schema, "the name of a schema");
}
