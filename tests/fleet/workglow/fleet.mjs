// One run: processes with servers and jobs of their own on one limit, and the results.

import { execFileSync, fork } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

const EVIDENCE = join(import.meta.dirname, "../../../examples/fleet");
const MEASURE = `import sys; sys.path.insert(0, sys.argv[1]); import evidence
starts = evidence.read(sys.argv[3])
print(len(starts), evidence.most_in_any_window(starts, int(sys.argv[2])), starts[-1].b - starts[0].b)`;

/** Returns the number of recorded starts, the most of them that surely lie in one window, and the time from the first to the last in ms. */
function measure(folder, windowMs) {
  const output = execFileSync("python3", ["-c", MEASURE, EVIDENCE, String(windowMs * 1e6), folder], { encoding: "utf8" });
  const [starts, most, span] = output.trim().split(" ").map(Number);
  return { starts, most, spanMs: span / 1e6 };
}

/** Sends a process a message, if there is one, and waits for its reply; an error if the process ends first. */
async function answer(child, message) {
  if (message !== undefined) child.send(message);
  const [event, said] = await Promise.race([
    once(child, "message").then(([said]) => ["message", said]),
    once(child, "exit").then(([code, signal]) => ["exit", code ?? signal]),
  ]);
  if (event === "exit") throw new Error(`a process ended with ${said} before it was done`);
  return said;
}

async function killAfter(starts, child, folder) {
  child.send("go");
  const log = `${folder}/worker-${child.pid}.log`;
  while (fs.readFileSync(log, "utf8").split("\n").length <= starts) await sleep(1);
  child.kill("SIGKILL");
  await once(child, "exit");
}

/**
 * Runs `jobs` in each of `processes`, by a limiter of one of the modes of worker.mjs. With `plant` each process has a limit of its own,
 * which must be detected. A `quiet` queue does not report its changes to workers. With `kill` there is another process, which is killed
 * after this many starts.
 */
export async function runFleet(options) {
  const { mode, jobs, limit, windowMs, jobMs = 20, workers = 2, processes = 2, plant = false, quiet = false, kill = 0 } = options;
  const folder = fs.mkdtempSync(join(tmpdir(), "workglow-limit-fleet-"));
  fs.mkdirSync(`${folder}/starts`);
  const task = JSON.stringify({ mode, folder, jobs, limit, windowMs, jobMs, workers, plant, quiet });
  const children = [];
  try {
    // One after the other, as the first may have to make a database.
    for (let i = 0; i < processes + (kill > 0 ? 1 : 0); i++) {
      children.push(fork(join(import.meta.dirname, "worker.mjs"), [task]));
      await answer(children[i]);
    }
    const answers = Promise.all(children.slice(0, processes).map((child) => answer(child, "go")));
    if (kill > 0) await killAfter(kill, children.at(-1), `${folder}/starts`);
    const results = await answers;
    const sum = (of) => results.reduce((total, each) => total + each[of], 0);
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
