// workglow-limit/web: limits in browsers, Deno, Bun and edge runtimes. No part of it uses Node.

import { compiled } from "./module.js";
import { type OpenOptions, type Store, openWith } from "./store.js";

export { ManualClock } from "./clock.js";
export { InvalidArgument, LimitError, StoreClosed, StoreError, TimeoutError, UnknownLimit, WeightExceedsCapacity } from "./errors.js";
export type { Duration } from "./input.js";
export {
  type AcquireOptions,
  type Admission,
  type Decision,
  type DecisionNumbers,
  type Denial,
  type Peek,
  type KeyOptions,
  Limiter,
  Permit,
  type StartOptions,
} from "./limiter.js";
export { type OpenOptions, Store } from "./store.js";

/** Opens a store: "memory:", whose limits are this object's, or "indexeddb:NAME", whose limits all tabs and workers of an origin share. */
export const open = (url: string, options?: OpenOptions): Promise<Store> => openWith(compiled, url, options);
