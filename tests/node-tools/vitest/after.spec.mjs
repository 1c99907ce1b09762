import { test, vi } from "vitest";
import specs from "../fake-timers.cjs";

const real = globalThis.setTimeout;
const fake = () => vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "setImmediate", "clearImmediate", "Date", "performance"] });
fake.end = () => vi.useRealTimers();
fake();
const package_ = await import("workglow-limit");
const { limitFetch } = await import("workglow-limit/fetch");
fake.end();
specs({ test, fake, real, advance: (ms) => vi.advanceTimersByTimeAsync(ms), package_, limitFetch });
