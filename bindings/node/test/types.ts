// Code that must compile, and code that must not. Checked by `tsc --noEmit`, never run.

import { type IncomingMessage, Server } from "node:http";
import axios from "axios";
import { Agent, interceptors } from "undici";
import { Agent as Agent8 } from "undici-8";
import {
  type Child,
  CompositeLimiter,
  ConcurrencyLimiter,
  type CustomLimiter,
  type Decision,
  DelayLimiter,
  type Duration,
  EvenlySpacedRateLimiter,
  FirstOfLimiter,
  FixedWindowLimiter,
  FlowControl,
  type Peek,
  type LimitEvent,
  LeakyBucketLimiter,
  LeaseLost,
  LimitError,
  type HeadSnapshot,
  type LimitSnapshot,
  type LineSnapshot,
  Limiter,
  ManualClock,
  type MetricsOptions,
  NullLimiter,
  type PartKeys,
  type PartUnits,
  type Permit,
  RateLimiter,
  type RateWindow,
  type SixMethods,
  type Snapshot,
  SlidingWindowCounterLimiter,
  type Stats,
  Store,
  StoreClosed,
  SyncUnsupported,
  TimeoutError,
  TokenBucketLimiter,
  type WorkglowLimiter,
  metricsContentType,
  toWorkglow,
} from "workglow-limit";
import { limitAxios } from "workglow-limit/axios";
import { type Destination, type OutgoingRequest, type Route, type SendingOptions, limitFetch } from "workglow-limit/fetch";
import { type HeedOptions, type HttpResponse, heed } from "workglow-limit/http";
import { type InstrumentOptions, instrument } from "workglow-limit/opentelemetry";
import { limitUndici } from "workglow-limit/undici";
import fastifyRateLimit, { type FastifyRateLimitOptions } from "@fastify/rate-limit";
import { type Job, Worker } from "bullmq";
import express from "express";
import { rateLimit } from "express-rate-limit";
import fastify from "fastify";
import { Hono } from "hono";
import type { Job as GraphileJob, TaskList } from "graphile-worker";
import { type WithLimiterOptions as GraphileOptions, withLimiter as limitTask } from "workglow-limit/graphile-worker";
import { type LimitJobOptions, limitJob } from "workglow-limit/job";
import { type Limited, type LimitedProcessor, type WithLimiterOptions, withLimiter } from "workglow-limit/bullmq";
import { type Limited as Refused, limitRequests } from "workglow-limit/express";
import { LimitStore } from "workglow-limit/express-rate-limit";
import { limitRequests as ofFastify } from "workglow-limit/fastify";
import { limitStore } from "workglow-limit/fastify-rate-limit";
import { limitRequests as ofHono } from "workglow-limit/hono";
import { LimitStorage } from "workglow-limit/nestjs-throttler";
import { limitRequests as ofNext } from "workglow-limit/next";
import { limitUpgrades } from "workglow-limit/upgrade";

const clock = new ManualClock();
const store = new Store("memory:", { timeout: "5s", mode: 0o660, onError: "deny", durability: "commit", clock, maxSize: 2 ** 26 });
const rate = new RateLimiter(store, "x", { maxExecutions: 1, windowSizeInSeconds: 60 });
const limiters: Limiter[] = [rate, new ConcurrencyLimiter(5), new NullLimiter(), store.limiter("x")];
const windows: readonly RateWindow[] = [{ maxExecutions: 100, windowSizeInSeconds: 60 }];
limiters.push(new RateLimiter(store, "y", { windows }), new RateLimiter(store, "z", { windows: [...windows, ...windows] }));
const composite = new CompositeLimiter(limiters);
composite.add(store.limiter("x", "100/1m + 5 concurrent"));
new CompositeLimiter({ requests: rate, slots: new ConcurrencyLimiter(5) }).add(rate, "again");

export async function joint(weight: PartUnits, key: PartKeys): Promise<void> {
  const permit = await composite.acquire({ weight, key, timeout: "30s" });
  composite.peek({ weight: { tokens: 1200 }, key: "acme" });
  await permit.settleAsync({ tokens: 830 });
  // @ts-expect-error: units are numbers
  permit.settle({ tokens: "830" });
  // @ts-expect-error: a call about one key takes a text
  await composite.clear({ key });
}

export async function calls(signal: AbortSignal, within: Duration): Promise<Date> {
  const permit: Permit | null = composite.tryAcquire({ key: "k", weight: 2 });
  permit?.complete();
  const decision: Decision = rate.decide({ key: undefined });
  const { admitted, retryAfter, deniedBy, permit: held } = decision;
  if (decision.admitted) decision.permit.complete();
  else decision.deniedBy.toUpperCase();
  if (!admitted) console.log(retryAfter.toFixed(), deniedBy.length);
  else console.log(held.readyAt?.getTime(), held.readyAtHrtime);
  {
    using scoped = await rate.acquire({ timeout: within, signal });
    rate.complete(scoped);
  }
  const length: number = await rate.schedule((p) => p.complete(), { key: "k" }).then(() => 1);
  const text: string = await rate.schedule(async () => "x".repeat(length));
  await rate.pause("1m", { key: text });
  if (await rate.canProceed({ key: "k" })) await rate.recordJobStart();
  await rate.recordJobCompletion();
  await rate.setNextAvailableTime(new Date(), { key: "k" });
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
  (await rate.acquire({ key: "k", priority: -1, share: 3, grace: "500ms" })).complete();
  (await rate.acquire({ place, timeout: "1m", signal })).settle(5);
  rate.permit(await rate.schedule((p) => p.toText(), { place: presented })).cancel();
  rate.place(presented.toText()).cancel();
  const window: number | null = rate.window;
  console.log(window);
  return presented.toText();
}

export async function operators(): Promise<number> {
  await store.override("x", "100/1m + 5/1s");
  await store.share("x", "tenant", 3);
  await store.lift("x");
  await store.override("x", "100/1m", { key: "tenant" });
  await store.lift("x", { key: "tenant" });
  await store.flush();
  await store.close();
  return store.failures;
}

export function errors(error: unknown): number | string {
  if (error instanceof TimeoutError) return error.retryAfter;
  return error instanceof LimitError ? error.code : 0;
}

const backoff = { initialBackoffDelay: 1000, backoffMultiplier: 2, maxBackoffDelay: "10m", jitter: "full" } as const;
const shared = { store, name: "x" };
limiters.push(
  new RateLimiter(store, "x", { windows, ...backoff }),
  new ConcurrencyLimiter(5, { clock }),
  new ConcurrencyLimiter(5, { ...shared, lease: "1m" }),
  new DelayLimiter(),
  new DelayLimiter("50ms", shared),
  new EvenlySpacedRateLimiter({ maxExecutions: 60, windowSizeInSeconds: 60 }),
  new EvenlySpacedRateLimiter({ maxExecutions: 60, windowSizeInSeconds: 60, adaptive: false }, shared),
  new TokenBucketLimiter(store, "x", { rate: 10, period: "1s", burst: 20 }),
  new LeakyBucketLimiter(store, "x", { rate: 10, queue: 20 }),
  new FixedWindowLimiter(store, "x", { maxExecutions: 1, windowSizeInSeconds: 1 }),
  new SlidingWindowCounterLimiter(store, "x", { maxExecutions: 1, windowSizeInSeconds: 1 }),
  store.limiter(new FlowControl({ key: "x", rate: 100, period: "1m", parallelism: 5 })),
);

const either = new FirstOfLimiter([new DelayLimiter(), store.limiter("x")]);
either.add(new NullLimiter());
// @ts-expect-error: alternatives have no names.
new FirstOfLimiter({ x: new DelayLimiter() });
export const chosen: Child | null | undefined = either.tryAcquire()?.chosen;

const attached: Limiter = store.limiter("x");
const bucket: TokenBucketLimiter = new TokenBucketLimiter(store, "x", { rate: 10 });

export async function named(): Promise<readonly string[]> {
  const found: Limiter = store.limiter("x");
  const { admitted, waitTime }: Stats = found.stats({ key: "k" });
  const off: () => void = found.on("throttled", ({ limit, wait, error }: LimitEvent) => console.log(limit, wait, error?.code));
  off();
  store.on("store_error", async ({ error }) => console.log(error, admitted, waitTime));
  return store.load("limits.toml");
}

export async function looks(): Promise<string> {
  const options: MetricsOptions = { keys: 5, showKeys: true, format: "prometheus" };
  const seen: Snapshot = store.snapshot({ keys: 5 });
  const [limit]: readonly LimitSnapshot[] = (await store.snapshotAsync()).limits;
  const window: number | null | undefined = limit?.usage[0]?.window;
  console.log(seen.at.getTime(), limit?.override?.length, window, limit?.hotKeys[0]?.stats.admitted, limit?.grants?.held);
  console.log(limit?.tenants[0]?.share, limit?.tenants[0]?.waits);
  const line: LineSnapshot = store.line("api", { key: "acme" });
  const { heads, holders, waiting }: LineSnapshot = await store.lineAsync("api");
  const [head]: readonly HeadSnapshot[] = line.heads;
  const tenant: string | null | undefined = head?.tenant;
  console.log(tenant, head?.process?.pid, head?.waits, head?.units, head?.priority, head?.passed, heads.length);
  console.log(holders[0]?.process?.program, holders[0]?.starts, holders[0]?.units, holders[0]?.coolsDown, waiting[0]?.callers);
  // @ts-expect-error: the key is an option
  store.line("api", "acme");
  const metricsOptions: InstrumentOptions = { keys: 0 };
  instrument(store, metricsOptions)();
  // @ts-expect-error: an unknown format
  store.metrics({ format: "json" });
  // @ts-expect-error: a snapshot is read-only
  seen.failures = 1;
  return store.metrics() + (await store.metricsAsync(options)) + metricsContentType("prometheus");
}

export async function onServer(): Promise<number> {
  await attached.open();
  await using permit = await attached.acquire();
  permit.arrived();
  await permit.arrivedAsync();
  await permit.renewAsync();
  const place: Permit | null = await rate.reserveAsync();
  if (place !== null) await (await rate.presentAsync(place)).settleAsync(2);
  await (await rate.tryAcquireAsync())?.cancelAsync();
  await permit.completeAsync();
  const { remaining }: Peek = await rate.peekAsync({ key: "k", weight: 0 });
  const begun: (number | null)[] = [rate.forecast(5), await rate.forecastAsync(5, { key: { tenant: "k" } })];
  console.log(begun);
  // @ts-expect-error: each start is of one unit
  rate.forecast(5, { weight: 2 });
  return remaining;
}

export function leases(): bigint | null {
  using permit = attached.tryAcquire();
  try {
    permit?.renew();
  } catch (error) {
    if (error instanceof LeaseLost || error instanceof StoreClosed || error instanceof SyncUnsupported) console.log(error.code);
  }
  return permit?.fence ?? null;
}

export async function responses(incoming: IncomingMessage, axios: { status: number; headers: { [name: string]: string } }) {
  const options: HeedOptions = { key: "k", default: "2s", longest: 60_000 };
  const pauses: number[] = [await heed(rate, await fetch("http://localhost"), options)];
  const others: HttpResponse[] = [incoming, axios, { statusCode: 429, headers: new Map([["Retry-After", "20"]]) }];
  for (const other of others) pauses.push(await heed(composite, other));
  return pauses;
}

/** A custom limiter, whose tokens have a type of their own. */
class Mine implements CustomLimiter {
  readonly name = "mine";
  tryAcquire(key: string, weight: number): { key: string; weight: number } | null {
    return weight > 5 ? null : { key, weight };
  }
  retryAfter(_key: string, weight: number): Duration {
    return weight > 5 ? "1m" : 0;
  }
  cancel(token: { key: string }): void {
    console.log(token.key);
  }
  settle(token: { weight: number }, actual: number): void {
    console.log(token.weight - actual);
  }
}
declare const six: SixMethods;
composite.add(new Mine());
const literal = { tryAcquire: () => 1, retryAfter: () => 0, cancel() {} };
export const mixed = new CompositeLimiter([rate, bucket, new Mine(), six, literal]);

/** For Workglow's own types see workglow-types. */
export const workglow: WorkglowLimiter = toWorkglow(composite, { key: "k" });

// @ts-expect-error: a child must not return promises
new CompositeLimiter([workglow]);
// @ts-expect-error: a promise of a response
heed(rate, fetch("http://localhost"));
// @ts-expect-error: an unknown option
heed(rate, new Response(), { max: 5 });
// @ts-expect-error: there is no such event
store.on("denied", () => {});
// @ts-expect-error: a FlowControl has its name
store.limiter(new FlowControl({ key: "x", rate: 1 }), "100/1m");
// @ts-expect-error: a leaky bucket has a queue
new LeakyBucketLimiter(store, "x", { rate: 1, burst: 1 });
// @ts-expect-error: only concurrency limiters have leases
new DelayLimiter(50, { lease: "1m" });
// @ts-expect-error: an unknown word
new RateLimiter(store, "x", { maxExecutions: 1, windowSizeInSeconds: 60, jitter: "some" });
// @ts-expect-error: a weight is a number
rate.tryAcquire({ weight: "1" });
// @ts-expect-error: an unknown option
rate.tryAcquire({ wieght: 1 });
// @ts-expect-error: only `acquire` waits
rate.tryAcquire({ timeout: 1 });
// @ts-expect-error: both are needed
new RateLimiter(store, "x", { maxExecutions: 1 });
// @ts-expect-error: one way or the other
new RateLimiter(store, "x", { maxExecutions: 1, windowSizeInSeconds: 60, windows });
// @ts-expect-error: an unknown word
new Store("memory:", { onError: "panic" });
// @ts-expect-error: only places and waiters have a grace
rate.tryAcquire({ grace: 1 });
// @ts-expect-error: limiters are made by their own classes
new Limiter();

// BullMQ: `withLimiter` returns a processor with the types of its job.
interface Prompt {
  tenant: string;
  tokens: number;
}
const options: WithLimiterOptions<Prompt, number> = {
  weightOf: (job) => job.data.tokens,
  hold: "100ms",
  grace: 50,
  onLimited: (job, { key, wait, hasPlace }: Limited) => console.log(job.id, key, wait.toFixed(), hasPlace),
};
const connection = { host: "localhost" };
const processor: LimitedProcessor<Prompt, number> = (job, _token, signal, permit) => {
  permit.settle(signal?.aborted ? 0 : job.data.tokens);
  return job.data.tokens;
};
new Worker<Prompt, number>(
  "q",
  withLimiter(composite, (job) => job.data.tenant, processor, options),
  { connection },
);
new Worker(
  "q",
  withLimiter(rate, null, async (job: Job<Prompt>) => job.data.tenant),
  { connection },
);
// A processor of BullMQ's own type works.
export const plain: Promise<string> = withLimiter(rate, undefined, async (job: Job<Prompt, string>) => job.name)({} as Job<Prompt, string>);
withLimiter(composite, (job: Job<Prompt>) => ({ tenant: job.data.tenant }), processor, {
  weightOf: (job) => ({ tokens: job.data.tokens }),
  onLimited: (_job, { key }) => console.log(typeof key === "string" ? key : key.tenant),
});
// @ts-expect-error: a key is a string
withLimiter(rate, (job: Job<Prompt>) => job.data.tokens, processor);
// @ts-expect-error: keys of parts are strings
withLimiter(rate, (job: Job<Prompt>) => ({ tenant: job.data.tokens }), processor);
// @ts-expect-error: weights of parts are numbers
withLimiter(rate, null, processor, { weightOf: (job: Job<Prompt>) => ({ tokens: job.data.tenant }) });
// @ts-expect-error: an unknown option
withLimiter(rate, null, processor, { wait: 1 });
// @ts-expect-error: not the path of a sandboxed processor
withLimiter(rate, null, "file.js");

// HTTP clients.
const sending: SendingOptions = {
  key: ({ headers }) => headers.get("x-tenant"),
  weight: ({ url }) => url.pathname.length,
  timeout: "30s",
  heed: { default: "1s", longest: 5000 },
  retries: 2,
  tokens: { input: "input", output: "output" },
  estimate: ({ text }) => text?.length ?? 0,
  usage: (data: unknown, response) => ("status" in response ? response.status : null),
};
export const limited: typeof fetch = limitFetch({ "api.example.com": composite }, { ...sending, fetch });
const perPart: SendingOptions = {
  key: { tenant: ({ headers }) => headers.get("x-tenant"), user: "all" },
  weight: { requests: 2, tenant: ({ url }) => url.pathname.length },
  tokens: "tokens",
  estimate: () => ({ input: 5, output: 6 }),
  usage: () => ({ total: 5 }),
};
limitFetch(composite, perPart);
const destination: Destination = { baseUrl: new URL("https://a"), headers: { "x-api-key": "k" } };
const route: Route = (chosen) => (chosen === rate ? destination : undefined);
limitFetch(composite, { route });
// @ts-expect-error -- it is a function
limitFetch(composite, { route: destination });
limitFetch(composite, { key: () => ({ tenant: null }), weight: () => ({ tenant: 2 }) });
// @ts-expect-error: the part that counts tokens has a name
limitFetch(rate, { tokens: rate });
// @ts-expect-error: a kind of tokens that nobody counts
limitFetch(rate, { tokens: { inputs: "input" } });
limitFetch(({ method }: OutgoingRequest) => (method === "POST" ? rate : null));
new Agent().compose(limitUndici(rate, sending));
new Agent().compose([limitUndici(rate), interceptors.retry()]);
new Agent8().compose(limitUndici(rate, sending));
limitAxios(axios, rate, sending)();
limitAxios(axios.create(), composite);
// @ts-expect-error: a host's limiter
limitFetch({ "api.example.com": 5 });
// @ts-expect-error: an unknown option
limitFetch(rate, { tiemout: 1 });
// @ts-expect-error: a dispatcher has no fetch
limitUndici(rate, { fetch });

// Wrapped functions keep the types of their arguments and results.
const embed = rate.wrap(
  async (tenant: string, size: number) => tenant.length * size,
  (tenant) => ({ key: tenant, maxWaiting: 9 }),
);
export const size: Promise<number> = embed("acme", 3);
export const ended: Promise<void>[] = [rate.idle(), rate.stop()];
// @ts-expect-error: a tenant is a string
embed(5, 3);
new TimeoutError("late", 5) satisfies LimitError;
// Behind a server: the same options, with the requests of each framework.
const app = express();
const requests = limitRequests({
  limits: [
    { limiter: rate, key: "address", weight: (request) => Number(request.query.n), skipFailed: true },
    { limiter: rate, skipFailed: (status) => status === 404, skipSuccessful: (status) => status.toFixed() === "202" },
    { limiter: composite, key: { tenant: "header:X-Tenant", user: async ({ path }) => path }, weight: { tokens: () => 5, tenant: 2 } },
    { limiter: composite, key: () => ({ tenant: "acme" }), weight: async () => ({ tokens: 5 }) },
    { limiter: { free: rate, pro: composite }, plan: async (request) => request.get("X-Plan") ?? "free", key: async () => null },
  ],
  exempt: ["/health", "/static/*"],
  trustedProxies: ["10.0.0.0/8", "unix"],
  forwardedHeader: "Forwarded",
  ipv6Prefix: 56,
  onLimited: (request, { retryAfter, violated }: Refused, response) =>
    request.path === "/" ? { error: violated.join(), retryAfter } : response.send("slow down"),
});
app.use(requests);
app.get("/", requests.route({ limiter: composite, name: "all", shadow: true }), (request, response) => void response.send(request.path));
fastify().register(ofFastify, { limits: [{ limiter: rate, key: (request) => request.ip }], hook: "preHandler" });
fastify().get("/", { config: { limits: [{ limiter: rate, weight: (request) => request.url.length }] } }, () => "ok");
fastify().get("/", { config: { limits: false } }, () => "ok");
const ofContext = ofHono({
  limits: [{ limiter: rate, key: (context) => context.req.param("tenant") }],
  onLimited: (context) => context.json({}),
});
new Hono().use(ofContext).get("/", ofContext.route({ limiter: composite }), (context) => context.text("ok"));
const wrap = ofNext({ limits: [{ limiter: rate, key: (request) => request.headers.get("X-API-Key") }] });
export const GET: (request: Request, context: { params: Promise<{ id: string }> }) => Promise<Response> = wrap(
  async (_request, { params }: { params: Promise<{ id: string }> }) => Response.json(await params),
  { limiter: composite, weight: 5 },
);
app.use(rateLimit({ limit: 5, windowMs: 60_000, store: new LimitStore(store, { name: "api", max: 5 }) }));
fastify().register(fastifyRateLimit, { max: 5, store: limitStore(store, "api") } as FastifyRateLimitOptions);
// @ts-expect-error: a promise is not a boolean
limitRequests({ limits: [{ limiter: rate, skipFailed: async () => true }] });
const upgrades = limitUpgrades({ limits: [{ limiter: rate, key: ({ url }) => url }], onLimited: (request, { name }) => name });
new Server().on(
  "upgrade",
  upgrades((request, socket, head) => socket.end(head), { limiter: rate, name: "own" }),
);
// @ts-expect-error: keys of parts are texts
limitRequests({ limits: [{ limiter: composite, key: () => ({ tenant: 5 }) }] });
// @ts-expect-error: weights of parts are numbers
limitRequests({ limits: [{ limiter: composite, weight: { tokens: "5" } }] });
// @ts-expect-error: an unknown option
limitRequests({ limit: [] });
// @ts-expect-error: a policy is a limiter
limitRequests({ limits: [{ limiter: "100/1m" }] });
// @ts-expect-error: a route needs its limits in an array
fastify().get("/", { config: { limits: { limiter: rate } } }, () => "ok");
// @ts-expect-error: a store of this package
new LimitStore("memory:");
// The jobs of any queue: the result of the job, or of `delay`.
const away: LimitJobOptions<"away"> = {
  async delay(wait: number, place: string | null): Promise<"away"> {
    console.log(wait.toFixed(), place?.length);
    return "away";
  },
  place: null,
  weight: 2,
  hold: "100ms",
  grace: 50,
};
export const outcome: Promise<number | "away"> = limitJob(composite, "k", async (permit: Permit) => permit.wait, away);
limitJob(composite, { tenant: "acme" }, () => 1, { ...away, weight: { tokens: 3 } });
// @ts-expect-error: `delay` is missing
limitJob(composite, "k", () => 1, { place: "x" });

// Graphile Worker: `withLimiter` returns a task.
const taskOptions: GraphileOptions = {
  schema: "other",
  weightOf: (job: GraphileJob) => job.priority,
  onLimited: (job, { wait }) => console.log(job.id, wait),
};
export const tasks: TaskList = {
  ask: limitTask(
    rate,
    (job) => job.key,
    async (payload: Prompt, helpers, permit) => permit.settle(payload.tokens + helpers.job.attempts),
    taskOptions,
  ),
};
// @ts-expect-error: an unknown option
limitTask(rate, null, () => {}, { wait: 1 });

new LimitStorage(new Store("memory:"), { name: "api" }).increment("k", 1_000, 5, 1_000, "default") satisfies Promise<{
  isBlocked: boolean;
}>;
