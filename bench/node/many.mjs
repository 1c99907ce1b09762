// Several threads, and several processes, on one limit of a `sqlite:` store that always has free units.
//
// They run this file, too: it opens the limit, reports that, and makes decisions between the given times.

import { fork } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";
import { OPEN, ours } from "./peers.mjs";
import { loops, median, quantiles, round, show } from "./timing.mjs";

const SPAN = 35; // ms
const TURNS = 2;
const BATCH = 100;

/** A clock that all of them share. */
const now = () => Number(process.hrtime.bigint() / 1_000n) / 1e3;

function hammer({ batch, singles }, start, until) {
  for (const end = now() + 30; now() < end; ) batch(BATCH); // Until it is compiled.
  while (now() < start);
  const cpu = process.cpuUsage();
  const [batches, tail] = [[], []];
  let total = 0;
  while (now() < until) {
    batches.push((batch(BATCH) * 1e6) / BATCH);
    const some = singles(BATCH / 4);
    tail.push(...some);
    total += BATCH + some.length;
  }
  const { user, system } = process.cpuUsage(cpu);
  return { batches, tail, total, cpu: (user + system) * 1e3 };
}

function serve(url, port, send) {
  const each = loops(ours(url, OPEN, "shared"), false);
  port.on("message", ([start, until]) => send(hammer(each, start, until)));
  send("open");
}

async function start(kind, url) {
  const file = fileURLToPath(import.meta.url);
  const child = kind === "thread" ? new Worker(file, { workerData: { url } }) : fork(file, ["hammer", url], { serialization: "advanced" });
  const said = async () => {
    const [message] = await once(child, "message");
    return message;
  };
  await said();
  return {
    ask: (span) => {
      const answer = said();
      if (kind === "thread") child.postMessage(span);
      else child.send(span);
      return answer;
    },
    end: () => (kind === "thread" ? child.terminate() : child.disconnect()),
  };
}

/** Measures 1 and 2 threads, or 1, 2 and 4 processes. */
export async function measure(kind, counts, directory, isWanted) {
  const plural = kind === "thread" ? "threads" : "processes";
  const cases = counts.map((count) => ({ name: `sqlite admit, ${count} ${count === 1 ? kind : plural}`, count, results: [] }));
  const wanted = cases.filter(({ name }) => isWanted(name));
  if (wanted.length === 0) return;
  const all = [];
  for (let i = 0; i < Math.max(...counts); i++) all.push(await start(kind, `sqlite:${directory}/node-many.db`));
  for (let i = 0; i < TURNS; i++) {
    for (const { count, results } of wanted) {
      const begin = now() + 40;
      results.push(...(await Promise.all(all.slice(0, count).map((one) => one.ask([begin, begin + SPAN])))));
    }
  }
  for (const one of all) await one.end();
  for (const { name, count, results } of wanted) {
    const sum = (of) => results.reduce((total, each) => total + each[of], 0);
    const counted = kind === "thread" ? count : 1; // Each thread measures the processor time of all.
    show(name, "workglow-limit", {
      ns: round(median(results.flatMap(({ batches }) => batches))),
      ...quantiles(results.flatMap(({ tail }) => tail)),
      cpu_ns: round(sum("cpu") / counted / sum("total")),
      per_s: Math.round((sum("total") / SPAN / TURNS) * 1e3),
      [plural]: count,
    });
  }
}

if (!isMainThread) serve(workerData.url, parentPort, (result) => parentPort.postMessage(result));
else if (process.argv[2] === "hammer" && process.send) serve(process.argv[3], process, (result) => process.send(result));
