// One Node process of rivals.py: rivals.mjs SETTINGS-AS-JSON

import { AsyncLocalStorage } from "node:async_hooks";
import { createInterface } from "node:readline";
import axios, { getAdapter } from "axios";

const { who, what, redis, folder, name, host, limit, window, senders, pause } = JSON.parse(process.argv[2]);
const [kind, store] = what.split(" ");
const freeUrl = `http://${host.replace("127.0.0.1", "localhost")}/free`;
const now = () => Number(process.hrtime.bigint());
const get = async (url, init) => (await fetch(url, init)).text();
/** The earliest time at which a request can have started, for the server's record: for the others, when their limiter returned. */
const asked = (at = now()) => ({ "x-asked": String(at) });

/** An axios instance that stamps its requests. */
function stamping(at) {
  const send = getAdapter("http");
  return axios.create({ validateStatus: null, adapter: (config) => (at() && config.headers.set(asked(at())), send(config)) });
}

/** The functions that send limited requests, and those that send the others. */
const clients = {
  async ours() {
    const { Store } = await import("workglow-limit");
    const limiter = new Store(store === "Redis" ? redis : `sqlite:${folder}/limits.db`).limiter(name, `${limit}/${window}s`);
    // The stamp is the clock just before the call that admitted it, or the time when its place was ready.
    const admitted = new AsyncLocalStorage();
    const at = () => admitted.getStore().at;
    const { acquire } = limiter;
    limiter.acquire = async (options) => {
      const before = now();
      const permit = await acquire.call(limiter, options);
      admitted.getStore().at = Number(permit.readyAtHrtime ?? before);
      return permit;
    };
    let send;
    if (kind === "fetch") {
      const { limitFetch } = await import("workglow-limit/fetch");
      const limited = limitFetch({ [host]: limiter }, { fetch: (url) => fetch(url, at() && { headers: asked(at()) }) });
      send = async (url) => (await limited(url)).text();
    } else {
      const { limitAxios } = await import("workglow-limit/axios");
      const client = stamping(at);
      limitAxios(client, { [host]: limiter });
      send = client.get;
    }
    const stamped = (url) => admitted.run({}, send, url);
    return [stamped, stamped];
  },
  async "axios-rate-limit"() {
    const { default: rateLimit } = await import("axios-rate-limit");
    return [rateLimit(stamping(now), { limits: [{ maxRequests: limit, duration: `${window}s` }] }).get, axios.get];
  },
  async "p-throttle"() {
    const { default: pThrottle } = await import("p-throttle");
    return [pThrottle({ limit, interval: window * 1e3 })((url) => get(url, { headers: asked() })), get];
  },
  async bottleneck() {
    const { default: Bottleneck } = await import("bottleneck");
    const { default: Redis } = await import("ioredis");
    const { hostname, port } = new URL(redis);
    const shared = { id: name, datastore: "ioredis", clientOptions: { host: hostname, port: Number(port) }, Redis };
    const limiter = new Bottleneck({ minTime: (window * 1e3) / limit, ...(store === "Redis" ? shared : {}) });
    await limiter.ready();
    return [limiter.wrap((url) => get(url, { headers: asked() })), get];
  },
};

const [send, free] = await clients[who]();
await free(freeUrl);
console.log("ready");
let [end, refuse] = (await createInterface({ input: process.stdin })[Symbol.asyncIterator]().next()).value.split(" ").map(Number);
const [took, failed] = [[], []];
async function sender() {
  while (now() < end) {
    let path = "x";
    // The server refuses the first request to this path, of all processes.
    if (now() > refuse) [path, refuse] = [`y?status=429&times=1&retry-after=${pause}`, end];
    await send(`http://${host}/${path}`).catch((error) => failed.push(String(error)));
  }
}
for (let i = 0; i < senders; i++) sender();
while (now() < end) {
  const start = now();
  await free(freeUrl);
  took.push(now() - start);
  await new Promise((resolve) => setTimeout(resolve, 50));
}
process.stdout.write(`${JSON.stringify([took, failed])}\n`, () => process.exit(0));
