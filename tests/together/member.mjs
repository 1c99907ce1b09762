// A Node member: member.mjs STORE NAME FOLDER TIMEOUT_SECONDS ON_ERROR DURABILITY. conftest.py describes its commands. It uses promises:
// a synchronous call on the event loop waits for the others for only 40 ms, which on a busy machine may be too short.

import fs from "node:fs";
import readline from "node:readline";
import { setTimeout } from "node:timers/promises";
import { LimitError, Store, TimeoutError } from "workglow-limit";
import { heed } from "workglow-limit/http";

const [url, name, folder, timeout, onError, durability] = process.argv.slice(2);
const store = new Store(url, { timeout: `${timeout}s`, onError, durability });
const limiter = store.limiter(name);
await limiter.canProceed();
const log = fs.openSync(`${folder}/node-${process.pid}.log`, "a"); // Each write is one whole line.

let waiting = new AbortController();
process.on("SIGINT", () => waiting.abort());

const say = (...words) => fs.writeSync(1, `${words.join(" ")}\n`);
const duration = (word) => (word === "-" ? undefined : `${word}s`);
const now = () => process.hrtime.bigint();
const record = (a) => fs.writeSync(log, `${a} ${now()}\n`);
const place = (permit) => ["place", permit.toText(), permit.wait / 1e3];

/** The start of a composite belongs to one process. */
function text(start) {
  try {
    return start.toText();
  } catch (error) {
    if (error.code === "unsupported") return "-";
    throw error;
  }
}

/** Sleeps. A timer may be early, so this waits until the time is over. */
async function sleep(ms) {
  const due = performance.now() + ms;
  for (let left = ms; left > 0; left = due - performance.now()) await setTimeout(left);
}

/** Presents a place until it is not early. Returns a start, or another place. */
async function present(given) {
  for (;;) {
    const asked = now();
    const permit = await limiter.presentAsync(given);
    if (permit.started) {
      record(asked);
      return ["started", text(permit)];
    }
    if (permit.toText() !== given) return place(permit);
    await sleep(permit.wait);
  }
}

/** Takes a place, reports it, and starts with it when it is ready. */
async function queue(grace) {
  let permit = await limiter.reserveAsync({ grace: duration(grace) });
  let ready = null;
  let decisions = 1;
  let sleeps = 0;
  say(...place(permit));
  while (!permit.started) {
    const { wait } = permit;
    if (wait > 0) {
      await sleep(wait);
      sleeps += 1;
    }
    ready = permit.readyAtHrtime;
    permit = await limiter.presentAsync(permit);
    decisions += 1;
  }
  record(ready);
  return ["started", text(permit), decisions, sleeps];
}

function start(permit, asked) {
  if (permit === null) return ["denied"];
  record(permit.readyAtHrtime ?? asked);
  return ["started", text(permit)];
}

async function answer(verb, word, grace) {
  const asked = now();
  switch (verb) {
    case "try":
      return start(await limiter.tryAcquireAsync(), asked);
    case "acquire":
      waiting = new AbortController();
      return start(await limiter.acquire({ timeout: duration(word), grace: duration(grace), signal: waiting.signal }), asked);
    case "acquire-place":
      return start(await limiter.acquire({ place: word }), asked);
    case "reserve":
      return place(await limiter.reserveAsync({ grace: duration(word) }));
    case "queue":
      return queue(word);
    case "present":
      return present(word);
    case "complete":
    case "cancel":
      await limiter.permit(word)[`${verb}Async`]();
      return ["done"];
    case "fetch":
      return ["heeded", (await heed(limiter, await fetch(word))) / 1e3];
    case "failures":
      return ["failures", store.failures];
  }
}

await limiter.peekAsync({ weight: 0 });
say("ready");
for await (const line of readline.createInterface({ input: process.stdin })) {
  try {
    say(...(await answer(...line.split(" "))));
  } catch (error) {
    if (error instanceof TimeoutError) say("denied");
    else if (error instanceof LimitError) say("error", error.code);
    else if (error.name === "AbortError") say("interrupted");
    else throw error;
  }
}
