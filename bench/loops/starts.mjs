// Counts function starts in rolling windows, in many runs: as starts.py, for Node.
//
//     node bench/loops/starts.mjs [RUNS] [LIMIT] [WINDOW_MS]      (after npm run build in bindings/node)

import { RateLimiter, Store } from "../../bindings/node/dist/esm/index.js";

const [RUNS, LIMIT, WINDOW] = [100, 100, 100].map((usual, i) => Number(process.argv[2 + i] ?? usual));
const CALLS = 4 * LIMIT;
const clock = () => Number(process.hrtime.bigint());

const ways = {
  schedule: (limiter, work) => limiter.schedule(work),
  wrap: (limiter, work) => limiter.wrap(work)(),
  "await acquire()": async (limiter, work) => {
    const permit = await limiter.acquire();
    work();
    permit.complete();
  },
};

/** The starts of a run: for each, the last clock that was read before its decision, and the clock at the beginning of its function. */
async function run(way) {
  const limiter = new RateLimiter(new Store("memory:"), "api", { maxExecutions: LIMIT, windowSizeInSeconds: WINDOW / 1000 });
  const starts = [];
  let last = clock();
  const ticking = setInterval(() => (last = clock()), 1);
  const work = () => {
    const began = clock();
    starts.push([last, began]);
    last = clock();
  };
  await Promise.all(Array.from({ length: CALLS }, () => way(limiter, work)));
  clearInterval(ticking);
  return starts;
}

/** The most starts in a half-open window, each at its function's clock; the same of those that surely lie in one; and the least distance. */
function judge(starts) {
  const window = WINDOW * 1e6;
  const began = starts.map(([, at]) => at).sort((a, b) => a - b);
  let [most, surely, first] = [0, 0, 0];
  for (const [i, at] of began.entries()) {
    while (began[first] <= at - window) first++;
    most = Math.max(most, i - first + 1);
  }
  for (const [from] of starts) {
    surely = Math.max(surely, starts.filter(([before, at]) => before >= from && at < from + window).length);
  }
  const short = Math.max(...began.slice(LIMIT).map((at, i) => window - (at - began[i])));
  return { most, surely, short };
}

for (const [name, way] of Object.entries(ways)) {
  const found = [];
  for (let i = 0; i < RUNS; i++) found.push(judge(await run(way)));
  const max = (of) => Math.max(...found.map((one) => one[of]));
  const over = found.filter(({ most }) => most > LIMIT).length;
  const short = Math.max(0, max("short") / 1e3).toFixed(0);
  console.log(
    `Node, ${name}: ${RUNS} runs, at most ${max("most")} of ${LIMIT} by the functions' clocks (${over} runs above it; ${short} µs too close), ${max("surely")} surely`,
  );
}
