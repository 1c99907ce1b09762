// What compiles, and what must not. Checked by `tsc --noEmit`, never run.

import {
  CompositeLimiter,
  ConcurrencyLimiter,
  type Decision,
  type Duration,
  LimitError,
  Limiter,
  ManualClock,
  NullLimiter,
  type Permit,
  RateLimiter,
  type RateWindow,
  Store,
  TimeoutError,
} from "workglow-limit";

const clock = new ManualClock();
const store = new Store("memory:", { timeout: "5s", mode: 0o660, onError: "deny", durability: "commit", clock });
const rate = new RateLimiter(store, "x", { maxExecutions: 1, windowSizeInSeconds: 60 });
const limiters: Limiter[] = [rate, new ConcurrencyLimiter(5), new NullLimiter(), RateLimiter.attach(store, "x")];
const windows: readonly RateWindow[] = [{ maxExecutions: 100, windowSizeInSeconds: 60 }];
limiters.push(new RateLimiter(store, "y", { windows }), new RateLimiter(store, "z", { windows: [...windows, ...windows] }));
const composite = new CompositeLimiter(limiters);
composite.addLimiter(store.limiter("100/1m + 5 concurrent", "x"));

export async function calls(signal: AbortSignal, within: Duration): Promise<Date> {
  const permit: Permit | null = composite.tryAcquire({ key: "k", weight: 2 });
  permit?.complete();
  const { admitted, retryAfter, deniedBy, permit: held }: Decision = rate.decide({ key: undefined });
  if (!admitted) console.log(retryAfter.toFixed(), deniedBy?.length, held?.readyAt?.getTime(), held?.readyAtHrtime);
  {
    using scoped = await rate.acquire({ timeout: within, signal });
    rate.complete(scoped);
  }
  const length: number = await rate.schedule((p) => p.complete(), { key: "k" }).then(() => 1);
  const text: string = await rate.schedule(async () => "x".repeat(length));
  await rate.pause("1m", text);
  if (await rate.canProceed("k")) await rate.recordJobStart();
  await rate.recordJobCompletion();
  await rate.setNextAvailableTime(new Date(), "k");
  await rate.clear();
  const names: string[] = await store.names();
  await store.open();
  clock.advance(names.length + clock.now());
  return rate.getNextAvailableTime();
}

export async function places(signal: AbortSignal): Promise<string> {
  const place: Permit | null = rate.reserve({ key: "k", weight: 2, maxWait: "1h", grace: 500 });
  if (place === null) return "";
  const presented: Permit = rate.present(place);
  if (!presented.started) setTimeout(() => rate.present(presented.toText()), presented.wait);
  (await rate.acquire({ place, timeout: "1m", signal })).settle(5);
  rate.permit(await rate.schedule((p) => p.toText(), { place: presented })).cancel();
  return presented.toText();
}

export async function operators(): Promise<number> {
  await store.override("x", "100/1m + 5/1s");
  await store.lift("x");
  await store.flush();
  return store.failures;
}

export function errors(error: unknown): number | string {
  if (error instanceof TimeoutError) return error.retryAfter;
  return error instanceof LimitError ? error.code : 0;
}

// @ts-expect-error: a weight is a number
rate.tryAcquire({ weight: "1" });
// @ts-expect-error: an option that is not known
rate.tryAcquire({ wieght: 1 });
// @ts-expect-error: only `acquire` waits
rate.tryAcquire({ timeout: 1 });
// @ts-expect-error: both are needed
new RateLimiter(store, "x", { maxExecutions: 1 });
// @ts-expect-error: one way or the other
new RateLimiter(store, "x", { maxExecutions: 1, windowSizeInSeconds: 60, windows });
// @ts-expect-error: a word that is not known
new Store("memory:", { onError: "panic" });
// @ts-expect-error: only `reserve` has a grace
rate.acquire({ grace: 1 });
// @ts-expect-error: limiters are made by their own classes
new Limiter();
