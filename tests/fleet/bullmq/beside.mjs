// One queue without keys: ours, which holds it while the limit is full, beside BullMQ's own limiter, in turn.

import { runFleet } from "./fleet.mjs";

const rounds = Number(process.argv[2] ?? 5);
const work = { jobs: 160, idleJobs: 0, limit: 20, windowMs: 2000, jobMs: 50 };
const modes = { held: "workglow-limit: withLimiter, no keys", limiter: "BullMQ's limiter" };
const results = Object.fromEntries(Object.keys(modes).map((mode) => [mode, []]));
for (let round = 0; round < rounds; round++) {
  for (const mode of Object.keys(modes)) results[mode].push(await runFleet({ mode, ...work }));
}

const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
console.log(`
2 worker processes, ${work.limit} per ${work.windowMs / 1000} s, ${work.jobs} jobs at once, ${rounds} rounds in turn; medians

| | over the limit, at most | used | Redis scripts per job | processor time per job | overtaken by, at most |
| --- | --- | --- | --- | --- | --- |`);
for (const [mode, name] of Object.entries(modes)) {
  const of = (what) => middle(results[mode].map(what));
  const over = Math.max(0, ...results[mode].map(({ overLimit }) => overLimit));
  console.log(
    `| ${name} | ${over} | ${of(({ ideal, span }) => (100 * ideal) / span).toFixed(1)} % | ${of(({ scriptsPerJob }) => scriptsPerJob).toFixed(1)} | ${of(({ cpuPerJob }) => cpuPerJob).toFixed(1)} ms | ${of(({ overtaken }) => overtaken)} |`,
  );
}
