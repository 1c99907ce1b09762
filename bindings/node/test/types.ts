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
  Store,
  TimeoutError,
} from "workglow-limit";

const clock = new ManualClock();
const store = new Store("memory:", { timeout: "5s", mode: 0o660, clock });
const rate = new RateLimiter(store, "x", { maxExecutions: 1, windowSizeInSeconds: 60 });
const limiters: Limiter[] = [rate, new ConcurrencyLimiter(5), new NullLimiter(), RateLimiter.attach(store, "x")];
const composite = new CompositeLimiter(limiters);
composite.addLimiter(store.limiter({ name: "x" }));

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
// @ts-expect-error: limiters are made by their own classes
new Limiter();
