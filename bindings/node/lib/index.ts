export type {
  AcquireOptions,
  Admission,
  Decision,
  DecisionNumbers,
  Denial,
  Peek,
  KeyOptions,
  ReserveOptions,
  StartOptions,
  Stats,
} from "./calls.js";
export type { Key, PartKeys, PartUnits, Weight } from "./charges.js";
export { type Child, CompositeLimiter, FirstOfLimiter, NullLimiter } from "./composite.js";
export type { CustomLimiter, SixMethods } from "./custom.js";
export {
  InvalidArgument,
  LeaseLost,
  LimitError,
  Stopped,
  StoreClosed,
  StoreError,
  SyncUnsupported,
  TimeoutError,
  TooManyWaiters,
  UnknownLimit,
  WeightExceedsCapacity,
} from "./errors.js";
export {
  type Backoff,
  ConcurrencyLimiter,
  type ConcurrencyLimiterOptions,
  DelayLimiter,
  EvenlySpacedRateLimiter,
  type EvenlySpacedRateLimiterOptions,
  FixedWindowLimiter,
  type HomeOptions,
  LeakyBucketLimiter,
  type LeakyBucketLimiterOptions,
  RateLimiter,
  type RateLimiterOptions,
  type RateWindow,
  type SharedOptions,
  SlidingWindowCounterLimiter,
  TokenBucketLimiter,
  type TokenBucketLimiterOptions,
  type WindowLimiterOptions,
} from "./family.js";
export type { Hook, HookEvent, LimitEvent } from "./hooks.js";
export type { Duration } from "./input.js";
export { Limiter } from "./limiter.js";
export { FlowControl, type FlowControlOptions } from "./named.js";
export { Permit } from "./permit.js";
export {
  type GrantSnapshot,
  type HeadSnapshot,
  type HolderSnapshot,
  type KeySnapshot,
  type LimitKind,
  type LimitSnapshot,
  type LineSnapshot,
  metricsContentType,
  type MetricsFormat,
  type MetricsOptions,
  type ProcessSnapshot,
  type Snapshot,
  type SnapshotOptions,
  type TenantSnapshot,
  type Usage,
  type WaitingSnapshot,
  type Waits,
} from "./snapshot.js";
export { doctor, type Finding, ManualClock, postgresSchema, type Problem, Store, type StoreOptions } from "./store.js";
export { type ToWorkglowOptions, toWorkglow, type WorkglowLimiter } from "./workglow.js";
