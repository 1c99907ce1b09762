// A server in its own process that counts the requests of each path as a provider does: by their arrival, somewhere on their way.

import http from "node:http";

/** The moments of the requests of a path, in ns. */
const arrivals = new Map();
/** The longest way of a request, in ms. */
const JITTER = 30;

const server = http.createServer(async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://any");
  if (pathname === "/arrivals") return response.end(JSON.stringify((arrivals.get(searchParams.get("of")) ?? []).map(String)));
  const wait = () => new Promise((resolve) => setTimeout(resolve, Math.random() * JITTER));
  await wait();
  if (!arrivals.has(pathname)) arrivals.set(pathname, []);
  arrivals.get(pathname).push(process.hrtime.bigint());
  await wait();
  response.write("head");
  await wait();
  response.end("body");
});
server.listen(0, "127.0.0.1", () => process.send(server.address().port));
process.on("disconnect", () => process.exit(0));
