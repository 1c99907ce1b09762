// A process of a fleet: sends requests through a limited client until it is stopped, and never waits for a permit.

import { Store, TimeoutError } from "workglow-limit";
import { clients } from "./clients.mjs";

const [store, policy, client, url] = process.argv.slice(2);
const limiter = new Store(store, { timeout: "30s" }).limiter("api", policy);
await limiter.open();
const send = clients[client](limiter, { timeout: 0 });
let ends = false;
process.on("message", () => (ends = true));
process.send("ready");
while (!ends) {
  const a = String(process.hrtime.bigint());
  try {
    await (await send(url, { headers: { "x-a": a, "x-process": String(process.pid) } })).text();
  } catch (error) {
    if (!(error instanceof TimeoutError)) throw error;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
process.disconnect();
process.exit(0);
