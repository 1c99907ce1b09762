// Workglow's real server under a limit, in two processes: ours compared with its own, in one table. Exits with 1 if ours exceeds the
// limit or loses a job.
//
//     npm run fleet [-- [--quiet] [MODE …]]
//
// A quiet queue does not report its changes to workers. A mode is one of worker.mjs.

import { runFleet } from "./fleet.mjs";

const RUN = { jobs: 80, limit: 20, windowMs: 2_000 };
const LIMITERS = {
  ours: "toWorkglow(limiter)",
  "ours-wait": 'toWorkglow(limiter, { wait: "5s" })',
  "ours-storage": "Workglow's RateLimiter on our storage, backoff 1 ms",
  "ours-storage-backoff": "Workglow's RateLimiter on our storage, its backoff",
  memory: "Workglow's RateLimiter in memory",
  sqlite: "Workglow's RateLimiter on its SQLite storage",
};
const COLUMNS = {
  limiter: ({ mode }) => LIMITERS[mode],
  "most in any 2 s": ({ most }) => most,
  "over the limit": ({ most }) => Math.max(0, most - RUN.limit),
  "span, s": ({ spanMs }) => (spanMs / 1e3).toFixed(2),
  "of ideal": ({ spanMs, idealMs }) => (spanMs / idealMs).toFixed(2),
  "asked per job": ({ asked, total }) => (asked / total).toFixed(1),
  "CPU, s": ({ cpuMs }) => (cpuMs / 1e3).toFixed(2),
};
const line = (cells) => console.log(`| ${cells.join(" | ")} |`);

function isInstalled(name) {
  try {
    return Boolean(import.meta.resolve(name));
  } catch {
    return false;
  }
}

const modes = process.argv.slice(2).filter((word) => word !== "--quiet");
const quiet = process.argv.length > modes.length + 2;
const chosen = modes.length > 0 ? modes : Object.keys(LIMITERS);
for (const mode of chosen) {
  if (!Object.hasOwn(LIMITERS, mode)) throw new Error(`no mode named ${mode}: there are ${Object.keys(LIMITERS).join(", ")}`);
}
const queue = quiet ? "a quiet queue" : "a queue that reports its changes";
console.log(`Workglow's JobQueueServer, 2 processes of 2 workers and ${RUN.jobs} jobs, 20 starts per 2 s, ${queue}\n`);
line(Object.keys(COLUMNS));
line(Object.keys(COLUMNS).map(() => "---"));
const wrong = [];
for (const mode of chosen) {
  if (mode === "sqlite" && !isInstalled("@workglow/sqlite/job-queue")) {
    console.log("\nNot measured: Workglow's SQLite storage, as @workglow/sqlite is not installed.");
    continue;
  }
  const result = await runFleet({ mode, quiet, ...RUN });
  line(Object.values(COLUMNS).map((cell) => cell(result)));
  const { most, ran, ranOnce, starts, total } = result;
  if (!mode.startsWith("ours")) continue;
  if (most > RUN.limit) wrong.push(`${LIMITERS[mode]}: ${most - RUN.limit} over the limit`);
  if (ran !== total || ranOnce !== total || starts !== total) {
    wrong.push(`${LIMITERS[mode]}: ${ranOnce} of ${total} jobs ran, in ${ran} runs and ${starts} starts`);
  }
}
for (const text of wrong) console.log(text);
process.exitCode = wrong.length > 0 ? 1 : 0;
