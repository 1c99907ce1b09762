// Node's own timers, as they are when this package is loaded. Stores decide by the machine's clock, which no test can fake, so waits
// go on in real time, too, when somebody fakes the timers. Tests that shall not wait have a `ManualClock`.

import perf from "node:perf_hooks";
import timers from "node:timers";
import promises from "node:timers/promises";

export const { clearImmediate, clearTimeout, setImmediate, setTimeout } = timers;
/** Waits so many ms. */
export const sleep = promises.setTimeout;
/** In ms, on a clock that never goes back. */
export const now = perf.performance.now.bind(perf.performance);
