export { InvalidArgument, LimitError, StoreError, TimeoutError, UnknownLimit, WeightExceedsCapacity } from "./errors.js";
export type { Duration } from "./input.js";
export { type AcquireOptions, type Decision, Limiter, type ReserveOptions, type StartOptions } from "./limiter.js";
export {
  CompositeLimiter,
  ConcurrencyLimiter,
  type ConcurrencyLimiterOptions,
  NullLimiter,
  RateLimiter,
  type RateLimiterOptions,
  type RateWindow,
} from "./limiters.js";
export { Permit } from "./permit.js";
export { ManualClock, Store, type StoreOptions } from "./store.js";
