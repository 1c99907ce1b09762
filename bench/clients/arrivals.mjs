// Prints what a server counts behind each limiter: as arrivals.py, for Node.
//
//     npm install --prefix bench/clients --no-save target/dist/*.tgz
//     node bench/clients/arrivals.mjs [ROUNDS] [h2]

import { fork } from "node:child_process";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import http2 from "node:http2";
import { join } from "node:path";
import Bottleneck from "bottleneck";
import PQueue from "p-queue";
import pThrottle from "p-throttle";
import { Store } from "workglow-limit";
import { limitFetch } from "workglow-limit/fetch";

const [LIMIT, WINDOW, REQUESTS, JITTER, ROUNDS] = [20, 500, 120, 50, Number(process.argv[2] ?? 3)];
const IS_H2 = process.argv[3] === "h2";
const { dependencies } = JSON.parse(readFileSync(join(import.meta.dirname, "package.json"), "utf8"));

/** Each gets the function that sends, and returns the limited one. */
const ours = (policy) => (send) => limitFetch(new Store("memory:").limiter("api", policy), { fetch: send });
const contenders = {
  [`**ours**, \`${LIMIT} concurrent cooldown ${WINDOW}ms\``]: ours(`${LIMIT} concurrent cooldown ${WINDOW}ms`),
  [`**ours**, \`${LIMIT}/${WINDOW}ms\``]: ours(`${LIMIT}/${WINDOW}ms`),
  [`p-queue ${dependencies["p-queue"]}, strict`]: (send) => {
    const queue = new PQueue({ interval: WINDOW, intervalCap: LIMIT, strict: true });
    return (url) => queue.add(() => send(url));
  },
  [`p-throttle ${dependencies["p-throttle"]}, strict`]: (send) => pThrottle({ limit: LIMIT, interval: WINDOW, strict: true })(send),
  [`bottleneck ${dependencies.bottleneck}, spaced`]: (send) => {
    const bottleneck = new Bottleneck({ minTime: WINDOW / LIMIT });
    return (url) => bottleneck.schedule(() => send(url));
  },
};

const counting = fork(join(import.meta.dirname, "../../bindings/node/test/clients/counting.mjs"), [String(JITTER), IS_H2 ? "h2" : "h1"]);
const [port] = await once(counting, "message");
const origin = `http://127.0.0.1:${port}`;
const session = IS_H2 ? http2.connect(origin) : undefined;
let runs = 0;

/** A request: by Node's fetch, or as a stream of one connection of HTTP/2. */
function sent(url) {
  if (session === undefined) return fetch(url);
  const { pathname, search } = new URL(url);
  const stream = session.request({ ":path": pathname + search });
  return new Promise((resolve, reject) => {
    stream.on("response", () => {
      const body = new ReadableStream({
        start(controller) {
          stream.on("data", (part) => controller.enqueue(part));
          stream.on("end", () => controller.close());
        },
      });
      resolve(new Response(body));
    });
    stream.on("error", reject);
    stream.end();
  });
}

/** The most of these moments in any window that is half open. */
function mostWithin(moments, window) {
  const sorted = moments.toSorted((a, b) => a - b);
  let [most, first] = [0, 0];
  for (const [at, moment] of sorted.entries()) {
    while (sorted[first] <= moment - window) first++;
    most = Math.max(most, at - first + 1);
  }
  return most;
}

async function measure(contender, isBusy) {
  const path = `/${++runs}`;
  const begun = [];
  const send = contender((url) => {
    begun.push(Number(process.hrtime.bigint()));
    return sent(url);
  });
  let timer;
  const block = () => {
    for (const end = performance.now() + 10; performance.now() < end; );
    timer = setTimeout(block, 10);
  };
  if (isBusy) block();
  await Promise.all(Array.from({ length: REQUESTS }, async () => (await send(origin + path)).text()));
  clearTimeout(timer);
  const arrived = (await (await sent(`${origin}/arrivals?of=${path}`)).json()).map(Number);
  const span = (Math.max(...arrived) - Math.min(...arrived)) / 1e6;
  return { begun: mostWithin(begun, WINDOW * 1e6), arrived: mostWithin(arrived, WINDOW * 1e6), span };
}

const found = new Map(Object.keys(contenders).map((name) => [name, { false: [], true: [] }]));
for (let round = 0; round < ROUNDS; round++) {
  for (const isBusy of [false, true]) {
    for (const [name, contender] of Object.entries(contenders)) found.get(name)[isBusy].push(await measure(contender, isBusy));
  }
}
const most = (all, of) => Math.max(...all.map((one) => one[of]));
const median = (all) => all.map(({ span }) => span).sort((a, b) => a - b)[Math.floor(all.length / 2)];
console.log(
  "| limiter | began | arrived | began, busy loop | arrived, busy loop | seconds, idle and busy |\n| --- | --- | --- | --- | --- | --- |",
);
for (const [name, { false: idle, true: busy }] of found) {
  const spans = [idle, busy].map((all) => (median(all) / 1e3).toFixed(2)).join(" and ");
  console.log(
    `| ${name} | ${most(idle, "begun")} | ${most(idle, "arrived")} | ${most(busy, "begun")} | ${most(busy, "arrived")} | ${spans} |`,
  );
}
session?.close();
counting.disconnect();
