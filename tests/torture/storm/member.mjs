// A Node member of the storm: member.mjs STORE LIMIT WINDOW_SECONDS FOLDER

import fs from "node:fs";
import { RateLimiter, Store } from "workglow-limit";

const [store, limit, window, folder] = process.argv.slice(2);
const limiter = new RateLimiter(new Store(store), "storm", {
  maxExecutions: Number(limit),
  windowSizeInSeconds: Number(window),
});
const log = fs.openSync(`${folder}/node-${process.pid}.log`, "a"); // each write is one line as a whole
const never = new Int32Array(new SharedArrayBuffer(4));

for (;;) {
  const asked = process.hrtime.bigint();
  const permit = limiter.tryAcquire();
  const returned = process.hrtime.bigint();
  if (permit === null) {
    Atomics.wait(never, 0, 0, 0.2); // a timer could not be shorter than 1 ms
  } else {
    fs.writeSync(log, `${asked} ${returned}\n`);
    Atomics.wait(never, 0, 0, 2); // the job
    permit.complete();
  }
}
