// The Node member: two loops in one process, each waiting in line.

import fs from "node:fs";
import { setTimeout } from "node:timers/promises";
import { RateLimiter, Store } from "workglow-limit";

const { FLEET_STORE, FLEET_LIMIT, FLEET_WINDOW, FLEET_JOB_MS, FLEET_STARTS, FLEET_GO } = process.env;

const limiter = new RateLimiter(new Store(FLEET_STORE), "fleet", {
  maxExecutions: Number(FLEET_LIMIT),
  windowSizeInSeconds: Number(FLEET_WINDOW),
});
// In append mode each write is one whole line.
const log = fs.openSync(`${FLEET_STARTS}/node-${process.pid}.log`, "a");

async function work() {
  fs.writeSync(1, "node\n"); // ready
  const go = await fs.promises.open(FLEET_GO); // as soon as the conductor has opened its end
  await go.close();
  for (;;) {
    const asked = process.hrtime.bigint();
    const permit = await limiter.acquire({ timeout: 30_000 });
    const returned = process.hrtime.bigint();
    fs.writeSync(log, `${permit.readyAtHrtime ?? asked} ${returned}\n`);
    await setTimeout(Number(FLEET_JOB_MS));
    permit.complete();
  }
}

await Promise.all([work(), work()]);
