// start.mjs URL CALL STARTS AT_ONCE: makes starts in this many chains of promises.

import { Store } from "workglow-limit";

const [url, call, starts, atOnce] = process.argv.slice(2);
const limiter = new Store(url, { durability: "commit" }).limiter("api", "100000/1h");
await limiter.acquire();

async function task() {
  for (let i = 0; i < Number(starts) / Number(atOnce); i++) if ((await limiter[call]()) === null) throw new Error("it was denied");
}

await Promise.all(Array.from({ length: Number(atOnce) }, task));
