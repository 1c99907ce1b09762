const real = globalThis.setTimeout;
const fake = () => jest.useFakeTimers();
fake.end = () => jest.useRealTimers();
const advance = (ms) => jest.advanceTimersByTimeAsync(ms);
const specs = require("../fake-timers.cjs");

describe("loaded before", () => {
  specs({ test, fake, real, advance, package_: require("workglow-limit"), ...require("workglow-limit/fetch") });
});

describe("loaded after", () => {
  fake();
  jest.resetModules();
  const [package_, rest] = [require("workglow-limit"), require("workglow-limit/fetch")];
  fake.end();
  specs({ test, fake, real, advance, package_, ...rest });
});
