// The table: ours compared with pg-boss's and Graphile Worker's own. Exits with 1 if ours exceeds the limit or loses a job.

import { runFleet } from "./fleet.mjs";

const rows = [
  ["pg-boss: withLimiter", "pg-boss", "ours"],
  ["pg-boss: rate-limiter-flexible in the handler, retries", "pg-boss", "flexible"],
  ["pg-boss: its throttling, singletonSeconds", "pg-boss", "throttled"],
  ["Graphile Worker: withLimiter", "graphile", "ours"],
  ["Graphile Worker: rate-limiter-flexible in the task, retries", "graphile", "flexible"],
  ["Graphile Worker: queue_name, one at a time", "graphile", "serial"],
  ["Graphile Worker: job_key", "graphile", "keyed"],
];
const work = { jobs: 160, idleJobs: 20, limit: 20, windowMs: 2000, jobMs: 50 };
const chosen = process.argv.length > 2 ? rows.filter(([, ...which]) => process.argv.slice(2).includes(which.join("-"))) : rows;

const results = [];
for (const [name, queue, mode] of chosen) {
  console.error(`running ${name}`);
  results.push({ name, mode, ...(await runFleet({ queue, mode, ...work })) });
}

console.log(`
2 worker processes of concurrency 10, ${work.limit} per ${work.windowMs / 1000} s and key: ${work.jobs} jobs of one key at once, and ${work.idleJobs} of each of two others at the same time

| | over the limit | first to last start (ideal ${results[0].ideal / 1000} s) | never ran | most retries | furthest out of turn | other keys: wait, median | longest |
| --- | --- | --- | --- | --- | --- | --- | --- |`);
for (const { name, overLimit, span, total, ranOnce, attempts, outOfTurn, idleWaits } of results) {
  const [median, longest] = [idleWaits[idleWaits.length >> 1], idleWaits.at(-1)];
  const cells = [name, Math.max(0, overLimit), `${(span / 1000).toFixed(1)} s`, total - ranOnce, attempts, outOfTurn];
  console.log(`| ${[...cells, `${median} ms`, `${longest} ms`].join(" | ")} |`);
}

let code = 0;
for (const ours of results.filter(({ mode }) => mode === "ours")) {
  const broken = Object.entries({
    "it went over the limit": ours.overLimit > 0,
    "not every job ran exactly once": ours.ran !== ours.total || ours.ranOnce !== ours.total || ours.left !== 0,
    "retries were used": ours.attempts !== 0,
    "the span is 10 % above the ideal": ours.span > 1.1 * ours.ideal,
  }).filter(([, is]) => is);
  for (const [what] of broken) console.log(`\n${ours.name} failed: ${what}`);
  code ||= broken.length;
}
process.exit(code > 0 ? 1 : 0);
