import { test, vi } from "vitest";
import * as package_ from "workglow-limit";
import { limitFetch } from "workglow-limit/fetch";
import specs from "../fake-timers.cjs";

const toFake = [
  "setTimeout",
  "clearTimeout",
  "setInterval",
  "clearInterval",
  "setImmediate",
  "clearImmediate",
  "Date",
  "performance",
  "queueMicrotask",
];
const real = globalThis.setTimeout;
const fake = () => vi.useFakeTimers({ toFake });
fake.end = () => vi.useRealTimers();
specs({ test, fake, real, advance: (ms) => vi.advanceTimersByTimeAsync(ms), package_, limitFetch });
