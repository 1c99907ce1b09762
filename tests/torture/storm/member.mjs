// A Node member of the storm: member.mjs STORE LIMIT WINDOW_SECONDS FOLDER [NAME WAIT]
//
// With NAME and WAIT it is a site of a fleet: see member.py.

import fs from "node:fs";
import { setTimeout } from "node:timers/promises";
import { RateLimiter, Store, TimeoutError } from "workglow-limit";

const [url, limit, window, folder, name = "storm", wait] = process.argv.slice(2);
const isSite = wait !== undefined;
const store = new Store(url, isSite ? { timeout: 300, onError: "deny" } : {});
const limiter = new RateLimiter(store, name, { maxExecutions: Number(limit), windowSizeInSeconds: Number(window) });
const log = fs.openSync(`${folder}/node-${process.pid}.log`, "a"); // each write is one line as a whole
const never = new Int32Array(new SharedArrayBuffer(4));

async function attempt() {
  if (Number(wait) === 0) return limiter.tryAcquireAsync();
  try {
    return await limiter.acquire({ timeout: Math.random() * Number(wait) * 1000 });
  } catch (error) {
    if (error instanceof TimeoutError) return null;
    throw error;
  }
}

/** Asks synchronously, which is soonest after a restart. If the others kept the store busy for 40 ms, nothing was started. */
function attemptAtOnce() {
  try {
    return limiter.tryAcquire();
  } catch (error) {
    if (error.code !== "store_timeout") throw error;
    return null;
  }
}

for (;;) {
  const asked = process.hrtime.bigint();
  const permit = isSite ? await attempt() : attemptAtOnce();
  const returned = process.hrtime.bigint();
  if (permit === null) {
    if (isSite) await setTimeout(1);
    else Atomics.wait(never, 0, 0, 0.2); // a timer could not be shorter than 1 ms
  } else {
    fs.writeSync(log, `${asked} ${returned}\n`);
    if (!isSite)
      Atomics.wait(never, 0, 0, 2); // the job
    else if (Math.random() < 0.025) await setTimeout((Math.random() * Number(window) * 1000) / 40);
    permit.complete();
  }
}
