// The most starts within any window, for a limit of 100 per second, from all processes that can share the limit.
//
// After one start this waits for most of a window, so that the next boundary is near, and then tries for 2.5 windows without a
// pause: the behaviour of a program after a quiet time. A start lies between the clock just before its call and the clock just
// after it. Only starts whose whole interval is in the window count.

import { fork } from "node:child_process";
import { once } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { IN_MEMORY, ours } from "./peers.mjs";
import { decider, show } from "./timing.mjs";

const POLICY = { limit: 100, seconds: 1 };
const WINDOW = 1_000_000_000n;
const QUIET = 800_000_000n;
const HAMMERED = 2_500_000_000n;
const PROCESSES = 4;
const clock = process.hrtime.bigint;

const until = (moment) => sleep(Number(moment - clock()) / 1e6);

async function starts(decide, begin, end) {
  const seen = [];
  if (begin > clock()) await until(begin);
  for (;;) {
    // A turn of the event loop from time to time, in which timers run.
    await new Promise(setImmediate);
    for (let i = 0; i < 100; i++) {
      const before = clock();
      if (before >= end) return seen;
      if (await decide()) seen.push([before, clock()]);
    }
  }
}

/** A tenth after a full second of the wall clock, where fixed windows may begin, too. */
async function begin() {
  await sleep(1_100 - (Date.now() % 1_000));
  return clock();
}

/** Returns the most intervals [a, b] that lie wholly in some [t, t + window): the window may be moved until it begins at some a. */
function mostInAnyWindow(seen) {
  const ordered = seen.toSorted(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
  let most = 0;
  ordered.forEach(([t], i) => {
    let count = 0;
    for (let j = i; j < ordered.length && ordered[j][0] < t + WINDOW; j++) if (ordered[j][1] < t + WINDOW) count++;
    most = Math.max(most, count);
  });
  return most;
}

async function inOne(make) {
  const decide = decider(make(POLICY));
  const start = await begin();
  await decide();
  return starts(decide, start + QUIET, start + QUIET + HAMMERED);
}

async function inProcesses(url) {
  const children = [];
  const said = async (child) => (await once(child, "message"))[0];
  for (let i = 0; i < PROCESSES; i++) {
    children.push(fork(fileURLToPath(import.meta.url), ["hammer", url], { serialization: "advanced" }));
    await said(children[i]);
  }
  const start = await begin();
  const replies = children.map(said);
  children.forEach((child, i) => child.send([i === 0, start + QUIET, start + QUIET + HAMMERED]));
  const seen = (await Promise.all(replies)).flat();
  for (const child of children) child.disconnect();
  return seen;
}

export async function measure(directory, isWanted) {
  const report = (name, of, seen, extra) =>
    show(name, of, { limit: POLICY.limit, most: mostInAnyWindow(seen), starts: seen.length, ...extra });
  for (const [name, of, make] of IN_MEMORY) {
    if (isWanted(`${name}: most`)) report(`${name}: most`, of, await inOne(make), { threads: 1 });
  }
  if (isWanted("sqlite: most")) {
    report("sqlite: most", "workglow-limit", await inProcesses(`sqlite:${directory}/node-most.db`), { processes: PROCESSES });
  }
}

if (process.argv[2] === "hammer" && process.send) {
  const decide = decider(ours(process.argv[3], POLICY, "shared"));
  process.on("message", async ([isFirst, from, to]) => {
    if (isFirst) await decide();
    process.send(await starts(decide, from, to));
  });
  process.send("open");
}
