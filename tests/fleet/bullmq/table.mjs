// The table: ours compared with BullMQ's own. Exits with 1 if ours exceeds the limit or loses a job.

import { runFleet } from "./fleet.mjs";

const rows = [
  ["workglow-limit: withLimiter, a key each", "ours"],
  ["BullMQ's limiter: one queue", "limiter"],
  ["BullMQ's limiter: a queue for each key", "queues"],
];
const work = { jobs: 160, idleJobs: 10, limit: 20, windowMs: 2000, jobMs: 50 };

const results = [];
for (const [name, mode] of rows) {
  console.error(`running ${name}`);
  results.push({ name, ...(await runFleet({ mode, ...work })) });
}

console.log(`
2 worker processes, ${work.limit} per ${work.windowMs / 1000} s and key: ${work.jobs} jobs of one key at once, and ${work.idleJobs} of each of four others at the same time

| | over the limit | first to last start (ideal ${results[0].ideal / 1000} s) | delays per job | Redis scripts per job | most attempts | other keys: wait, median | longest |
| --- | --- | --- | --- | --- | --- | --- | --- |`);
for (const { name, overLimit, span, delaysPerJob, scriptsPerJob, attempts, idleWaits } of results) {
  const [median, longest] = [idleWaits[idleWaits.length >> 1], idleWaits.at(-1)];
  const cells = [
    name,
    Math.max(0, overLimit),
    `${(span / 1000).toFixed(1)} s`,
    delaysPerJob.toFixed(2),
    scriptsPerJob.toFixed(1),
    attempts,
  ];
  console.log(`| ${[...cells, `${median} ms`, `${longest} ms`].join(" | ")} |`);
}

const [ours] = results;
const broken = Object.entries({
  "it went over the limit": ours.overLimit > 0,
  "not every job ran exactly once": ours.ran !== ours.total || ours.ranOnce !== ours.total || ours.completed !== ours.total,
  "attempts were used": ours.attempts !== 1,
  "the span is 10 % above the ideal": ours.span > 1.1 * ours.ideal,
}).filter(([, is]) => is);
for (const [what] of broken) console.log(`\nours failed: ${what}`);
process.exit(broken.length > 0 ? 1 : 0);
