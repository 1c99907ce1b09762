// What a decision costs in Node. Prints `case<TAB>ns per decision` lines; bench/run.py runs all languages in turn.
import { createRequire } from "node:module";
import { join } from "node:path";

const [directory, packages] = process.argv.slice(2);
const { RateLimiter, Store } = createRequire(join(packages, "x.js"))("workglow-limit");

const BATCH = 1_000;
const BATCHES = 300;

for (const [kind, url] of [["memory", "memory:"], ["sqlite", `sqlite:${directory}/node.db`]]) {
  const store = new Store(url);
  // Always room: 100 in a window shorter than 100 decisions take; and never room, after the first.
  const open = new RateLimiter(store, "open", { maxExecutions: 100, windowSizeInSeconds: 1e-6 });
  const shut = new RateLimiter(store, "shut", { maxExecutions: 1, windowSizeInSeconds: 3600 });
  shut.tryAcquire();
  for (const [what, limiter] of [["admit", open], ["deny", shut]]) {
    const batches = [];
    for (let i = 0; i < BATCHES; i++) {
      const start = process.hrtime.bigint();
      for (let j = 0; j < BATCH; j++) limiter.tryAcquire();
      batches.push(Number(process.hrtime.bigint() - start) / BATCH);
    }
    batches.sort((a, b) => a - b);
    console.log(`node ${kind} ${what}\t${batches[BATCHES / 2].toFixed(1)}`);
  }
}
