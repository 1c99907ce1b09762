// One run: processes with a server and jobs of their own on one limit, and what came of it.

import { execFileSync, fork } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const EVIDENCE = join(import.meta.dirname, "../../../examples/fleet");
const MEASURE = `import sys; sys.path.insert(0, sys.argv[1]); import evidence
starts = evidence.read(sys.argv[3])
print(len(starts), evidence.most_in_any_window(starts, int(sys.argv[2])), starts[-1].b - starts[0].b)`;

/** How many starts were written down, the most of them that surely lie in one window, and from the first to the last in ms. */
function measure(folder, windowMs) {
  const told = execFileSync("python3", ["-c", MEASURE, EVIDENCE, String(windowMs * 1e6), folder], { encoding: "utf8" });
  const [starts, most, span] = told.trim().split(" ").map(Number);
  return { starts, most, spanMs: span / 1e6 };
}

/** Says something to a process, if there is something to say, and waits for the answer; an error if it ends before. */
async function answer(child, message) {
  if (message !== undefined) child.send(message);
  const [event, said] = await Promise.race([
    once(child, "message").then(([said]) => ["message", said]),
    once(child, "exit").then(([code, signal]) => ["exit", code ?? signal]),
  ]);
  if (event === "exit") throw new Error(`a process ended with ${said} before it was done`);
  return said;
}

/**
 * Runs `jobs` in each of `processes`, by a limiter that is one of the modes of worker.mjs. With `plant` the processes count
 * each for itself, which has to show. A `quiet` queue tells its workers of no changes.
 */
export async function runFleet({ mode, jobs, limit, windowMs, jobMs = 20, workers = 2, processes = 2, plant = false, quiet = false }) {
  const folder = fs.mkdtempSync(join(tmpdir(), "workglow-limit-fleet-"));
  fs.mkdirSync(`${folder}/starts`);
  const task = JSON.stringify({ mode, folder, jobs, limit, windowMs, jobMs, workers, plant, quiet });
  const children = [];
  try {
    // One after the other, as the first may have to make a database.
    for (let i = 0; i < processes; i++) {
      children.push(fork(join(import.meta.dirname, "worker.mjs"), [task]));
      await answer(children[i]);
    }
    const told = await Promise.all(children.map((child) => answer(child, "go")));
    const sum = (of) => told.reduce((total, each) => total + each[of], 0);
    const total = jobs * processes;
    return {
      mode,
      total,
      ...measure(`${folder}/starts`, windowMs),
      idealMs: (Math.ceil(total / limit) - 1) * windowMs,
      ran: sum("ran"),
      ranOnce: sum("ranOnce"),
      asked: sum("asked"),
      cpuMs: sum("cpuMs"),
    };
  } finally {
    for (const child of children) child.kill("SIGKILL");
    fs.rmSync(folder, { recursive: true });
  }
}
