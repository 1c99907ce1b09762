// Node's own timers, as they are when this package is loaded. Stores decide by the machine's clock, which no test can fake, so waits
// use real time even if a test fakes the timers. Tests that must not wait use a `ManualClock`.

import perf from "node:perf_hooks";
import timers from "node:timers";
import promises from "node:timers/promises";

export const { clearImmediate, clearTimeout, setImmediate, setTimeout } = timers;
/** Waits this many ms. */
export const sleep = promises.setTimeout;
/** Returns the time in ms on a monotonic clock. */
export const now = perf.performance.now.bind(perf.performance);
