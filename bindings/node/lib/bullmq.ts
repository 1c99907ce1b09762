// A limiter before a BullMQ processor: jobs without room are delayed with their places, and the worker takes others.

import type { Job } from "bullmq";
import { LimitError, TimeoutError, invalid } from "./errors.js";
import { warn } from "./hooks.js";
import { type Duration, maybeMilliseconds, options as checkOptions, whole } from "./input.js";
import { Limiter } from "./limiter.js";
import { Lines } from "./line.js";
import { Permit } from "./permit.js";
import { sleep } from "./timers.js";

/**
 * Where a delayed job has its place: in its data. They are the only part of a job that BullMQ can write in the same script
 * that delays it, on each of its backends and from sandboxed processors, without anybody being told (progress is an event).
 * To take it out again would cost a script for each job, so what is stored keeps it: a place that was used is worth nothing.
 */
const PLACE = "workglow-limit";

/** A place, as a job has it. */
interface Place {
  readonly text: string;
  /** The end of its grace, by the wall clock. */
  readonly until: number;
}

/** For how long a job has to go away, and its place, if it has one. */
interface Later {
  readonly wait: number;
  readonly place: Place | null;
}

/** What a job is delayed for. */
export interface Limited {
  /** The key, "" for none. */
  readonly key: string;
  /** For how long it is delayed, in ms. */
  readonly wait: number;
  /** Does it start then, with a place of its own? If not, it asks again. */
  readonly hasPlace: boolean;
}

/** How `withLimiter` limits. */
export interface WithLimiterOptions<T = any, R = any, N extends string = string> {
  /** How many units a job takes: 1 if not given. */
  weightOf?: ((job: Job<T, R, N>) => number) | undefined;
  /**
   * How long a job may wait in the worker, in the room of a running job: 150 ms if not given. A shorter wait is not worth
   * a delay, and delayed jobs come back so much earlier than their place, because a busy worker takes them late.
   */
  hold?: Duration | undefined;
  /**
   * How late a job may start with its place: 100 ms if not given. Places count from the end of their grace, so a limit that
   * is always waited for gives `window / (window + grace)` of itself; of an evenly spaced one, the window is the spacing.
   */
  grace?: Duration | undefined;
  /** Called after each job that was delayed. */
  onLimited?: ((job: Job<T, R, N>, limited: Limited) => void) | undefined;
}

/** A processor of BullMQ's, which may use the permit of its start, too: `settle` it, or `renew` its lease. */
export type LimitedProcessor<T = any, R = any, N extends string = string> = (
  job: Job<T, R, N>,
  token: string | undefined,
  signal: AbortSignal | undefined,
  permit: Permit,
) => R | PromiseLike<R>;

/**
 * What a BullMQ `Worker` takes: `processor`, each start of which `limiter` admits. A job for which there is no room is
 * delayed, with its place if the limit has any, and its attempts are not touched: the worker takes other jobs meanwhile.
 * The permit completes when the processor ends, whatever happened.
 *
 * `keyOf` gives the key whose budget a job uses; nothing, or no `keyOf`, is the empty key.
 */
export function withLimiter<T = any, R = any, N extends string = string>(
  limiter: Limiter,
  keyOf: ((job: Job<T, R, N>) => string | null | undefined) | null | undefined,
  processor: LimitedProcessor<T, R, N>,
  options: WithLimiterOptions<T, R, N> = {},
): (job: Job<T, R, N>, token?: string, signal?: AbortSignal) => Promise<R> {
  if (!(limiter instanceof Limiter)) throw invalid("limiter", limiter, "a limiter of this package");
  maybeFunction("keyOf", keyOf ?? undefined);
  if (typeof processor !== "function") {
    throw invalid("processor", processor, "a function; in the file of a sandboxed processor, wrap what it exports");
  }
  checkOptions(options, ["weightOf", "hold", "grace", "onLimited"]);
  const { weightOf, onLimited } = options;
  maybeFunction("weightOf", weightOf);
  maybeFunction("onLimited", onLimited);
  const hold = maybeMilliseconds("hold", options.hold) ?? 150;
  const grace = maybeMilliseconds("grace", options.grace) ?? 100;
  const lines = new Lines();
  /** Some limits have none, or none that leave the process: a concurrency limit, or a limiter of the caller's own. */
  let hasPlaces = true;

  /** A start; or when to come back, and with what. */
  async function ask(key: string, weight: number, canCarry: boolean): Promise<Permit | Later> {
    const permit = await limiter.tryAcquireAsync({ key, weight });
    const now = Date.now();
    if (permit !== null) {
      lines.grant(key, weight, now);
      return permit;
    }
    const place = canCarry && hasPlaces ? await reserve(key, weight) : null;
    if (place instanceof Permit) {
      const { wait } = place;
      lines.place(key, weight, now, now + wait);
      return { wait, place: { text: place.toText(), until: Math.floor(now + wait + grace) } };
    }
    const denial = await limiter.peekAsync({ key, weight });
    if (place !== "full") return { wait: lines.append(key, weight, now, denial) - now, place: null };
    // All places are taken, and it says when one after the last would come.
    return { wait: lines.append(key, weight, now, { ...denial, period: limiter.window }) - now, place: null };
  }

  /** A place to send away with its job; "full" if all are taken, `null` if there are none for what it waits for. */
  async function reserve(key: string, weight: number): Promise<Permit | "full" | null> {
    const place = await unless(null, async () => (await limiter.reserveAsync({ key, weight, grace })) ?? "full");
    hasPlaces = place === "full" || (place !== null && (await unless("", async () => place.toText())) !== "");
    if (!(place instanceof Permit) || (hasPlaces && place.wait > 0)) return place;
    await place.cancelAsync(); // It cannot leave, or its time has come, and it waits for somebody to complete.
    return null;
  }

  /** What comes of a place: `null` if it came too late, was overtaken, or is of a limit that was here before. */
  async function use(place: Place): Promise<Permit | Later | null> {
    const left = place.until - Date.now();
    // To present one late would exchange it, which costs more than asking anew, and gives no better place.
    if (left <= 0) return null;
    if (left > hold + grace) return { wait: left - grace, place }; // Somebody promoted the job.
    try {
      return await limiter.acquire({ place: place.text, timeout: left });
    } catch (error) {
      const isNone = error instanceof LimitError && ["foreign_permit", "invalid_argument", "unsupported"].includes(error.code);
      if (isNone || error instanceof TimeoutError) return null;
      throw error;
    }
  }

  return async (job, token, signal) => {
    await limiter._opening();
    const held = takePlace(job);
    const key = keyOf?.(job) ?? "";
    if (typeof key !== "string") throw invalid("key", key, "a string from keyOf, or nothing");
    const weight = weightOf === undefined ? 1 : whole("weight", weightOf(job));
    const canCarry = isRecord(job.data);
    let answer = (held && (await use(held))) ?? (await ask(key, weight, canCarry));
    if (!(answer instanceof Permit) && answer.wait <= hold) {
      const waited = answer.place === null ? await sleep(Math.ceil(answer.wait), null) : await use(answer.place);
      answer = waited ?? (await ask(key, weight, canCarry));
    }
    if (!(answer instanceof Permit)) {
      await delay(job, token, limiter, answer, hold);
      tell(onLimited, job, { key, wait: answer.wait, hasPlace: answer.place !== null });
      throw new DelayedError("bullmq:movedToDelayed");
    }
    try {
      return await processor(job, token, signal, answer);
    } finally {
      await answer.completeAsync();
    }
  };
}

/**
 * What BullMQ takes for "this job is delayed". It goes by the name, so that its own class need not be loaded: that may be
 * there twice, as an ES module and as CommonJS.
 */
class DelayedError extends Error {
  override readonly name = "DelayedError"; // A property of its own, which survives the way out of a sandbox.
}

function maybeFunction(parameter: string, value: unknown): void {
  if (value !== undefined && typeof value !== "function") throw invalid(parameter, value, "a function");
}

const isRecord = (data: unknown): data is Record<string, unknown> =>
  typeof data === "object" && data !== null && !Array.isArray(data);

/** Takes the place out of a job's data, before its processor sees them. */
function takePlace(job: Job): Place | null {
  if (!isRecord(job.data) || !Object.hasOwn(job.data, PLACE)) return null;
  const { [PLACE]: held, ...data } = job.data;
  job.data = data;
  const { text, until } = isRecord(held) ? held : {};
  return typeof text === "string" && typeof until === "number" ? { text, until } : null;
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

/** Sends a job away: to come back a little before its place, or at its turn. */
async function delay(job: Job, token: string | undefined, limiter: Limiter, { wait, place }: Later, hold: number): Promise<void> {
  const at = Date.now() + wait;
  if (place === null) return job.moveToDelayed(Math.ceil(at), token);
  try {
    await moveWithData(job, Math.ceil(at - hold), token, { ...job.data, [PLACE]: place });
  } catch (error) {
    await limiter.place(place.text).cancelAsync();
    throw error;
  }
}

/** What `Job.moveToDelayed` calls in its turn, which can write fields of the job, too. */
interface Mover {
  moveToDelayed(id: string, now: number, delay: number, token: string | undefined, options: object): Promise<unknown>;
}

/** Delays a job and writes its data: in one script where the job is in this process, in two from a sandbox. */
async function moveWithData(job: Job, at: number, token: string | undefined, data: object): Promise<void> {
  const { backend, scripts } = job as unknown as { backend?: Mover; scripts?: Mover }; // Of BullMQ 6, and of 5.
  const mover = backend ?? scripts;
  if (typeof mover?.moveToDelayed !== "function") {
    await job.updateData(data);
    return job.moveToDelayed(at, token);
  }
  const now = Date.now();
  const delay = Math.max(0, at - now);
  const fieldsToUpdate = { data: JSON.stringify(data) };
  await mover.moveToDelayed(job.id!, now, delay, token, { skipAttempt: true, fieldsToUpdate });
  job.delay = delay;
}

function tell<J>(onLimited: ((job: J, limited: Limited) => void) | undefined, job: J, limited: Limited): void {
  try {
    onLimited?.(job, limited);
  } catch (error) {
    warn("onLimited threw", error);
  }
}
