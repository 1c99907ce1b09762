// The cost of a decision in Node, compared with other limiters.
//
//     node bench.mjs DIRECTORY [CASE-FILTER] [--most]
//
// Prints a JSON object per line: `ns` is the median over batches, `p99` and `p999` are of decisions timed one by one, `cpu_ns` is
// the processor time of a decision, in all threads of the process. Databases go into DIRECTORY. CASE-FILTER selects the cases whose
// names contain it. `--most` runs other cases: a real limit across the boundary of a window, from all processes that can share it.

import { readFileSync } from "node:fs";
import * as crossing from "./crossing.mjs";
import * as many from "./many.mjs";
import * as peers from "./peers.mjs";
import { Case, decider, measure } from "./timing.mjs";
import * as waiting from "./waiting.mjs";

const { OPEN, SHUT, IN_MEMORY } = peers;
const words = process.argv.slice(2).filter((word) => word !== "--most");
if (words.length < 1 || words.length > 2 || words[0].startsWith("-")) {
  console.error("usage: node bench.mjs DIRECTORY [CASE-FILTER] [--most]");
  process.exit(2);
}
const [directory, part = ""] = words;
const sqlite = `sqlite:${directory}/node.db`;
const isWanted = (name) => `node ${name}`.includes(part);
const label = (name, of, what) => (of === "workglow-limit" ? `${name} ${what}` : `${name}: ${what}`);

/** Checks that a case measures the decisions that its name says. */
async function checked(what, peer) {
  await peer.renew?.();
  const decide = decider(peer);
  if (what === "deny") await decide();
  for (let i = 0; i < 50; i++) {
    if ((await decide()) === (what === "deny")) throw new Error(`${what} is not what ${peer.call} answers`);
  }
  return peer;
}

async function oneKey() {
  const wanted = [];
  for (const [name, of, make] of [...IN_MEMORY, ["sqlite", "workglow-limit", (policy) => peers.ours(sqlite, policy)]]) {
    wanted.push([name, of, "admit", () => make(OPEN)], [name, of, "deny", () => make(SHUT)]);
  }
  for (const [name, url] of [
    ["memory", "memory:"],
    ["sqlite", sqlite],
  ]) {
    wanted.push([name, "workglow-limit", "admit, with key", () => peers.oursKeyed(url, OPEN)]);
    wanted.push([name, "workglow-limit", "admit, awaited", () => peers.oursAwaited(url, OPEN)]);
  }
  wanted.push(["memory", "workglow-limit", "5 concurrent", peers.concurrency]);
  wanted.push(["memory", "workglow-limit", "5 concurrent, awaited", peers.concurrencyAwaited]);
  wanted.push(["p-limit", "p-limit", "5 concurrent, awaited", peers.pLimitOf5]);
  const cases = [];
  for (const [name, of, what, make] of wanted) {
    const full = label(name, of, what);
    if (!isWanted(full)) continue;
    const peer = make();
    cases.push(new Case(full, of, what.includes("concurrent") ? peer : await checked(what, peer)));
  }
  return cases;
}

/** Each of 100,000 keys, in an order that no cache predicts: 100 per minute, so that every key has free units. */
async function manyKeys() {
  const policy = { limit: 100, seconds: 60 };
  const keys = Array.from({ length: 100_000 }, (_, i) => `tenant-${(i * 61_803) % 100_000}`);
  const wanted = [
    ["memory", "workglow-limit", () => peers.oursKeyed("memory:", policy)],
    ["sqlite", "workglow-limit", () => peers.oursKeyed(sqlite, policy)],
    ["limiter", "limiter", () => peers.limiterKeyed(policy)],
    ["rate-limiter-flexible, memory", "rate-limiter-flexible", () => peers.rateLimiterFlexible(policy)],
    ["express-rate-limit, memory store", "express-rate-limit", () => peers.expressRateLimit(policy)],
    ["Workglow RateLimiter, memory", "@workglow/job-queue", () => peers.workglowKeyed(policy)],
  ];
  const cases = [];
  for (const [name, of, make] of wanted) {
    const full = label(name, of, "admit, 100,000 keys");
    if (!isWanted(full)) continue;
    const peer = make();
    const decide = decider(peer);
    // Twice: the first write to a page of a file costs more than a decision.
    for (const key of [...keys, ...keys]) await decide(key);
    cases.push(new Case(full, of, peer, { keys, extra: { keys: keys.length } }));
  }
  return cases;
}

const versions = peers.PACKAGES.map((name) => [
  name,
  JSON.parse(readFileSync(new URL(`./node_modules/${name}/package.json`, import.meta.url))).version,
]);
console.log(JSON.stringify({ version: { node: process.versions.node, ...Object.fromEntries(versions) } }));
if (process.argv.includes("--most")) {
  await crossing.measure(directory, isWanted);
} else {
  await measure(await oneKey());
  await measure(await manyKeys());
  await many.measure("thread", [1, 2], directory, isWanted);
  await many.measure("process", [1, 2, 4], directory, isWanted);
  await waiting.measure(isWanted);
}
// bottleneck and others leave timers running.
process.exit();
