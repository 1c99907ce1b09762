// A server in its own process that counts the requests of each path as a provider does: by their arrival. Each part of a request's
// and a response's way takes up to this many ms, or 30:
//
//     node counting.mjs [JITTER] [h2]   (its parent gets the port as a message, or as a line; h2: HTTP/2, without TLS)

import http from "node:http";
import http2 from "node:http2";

/** The moments of the requests of a path, in ns. */
const arrivals = new Map();
const jitter = Number(process.argv[2] ?? 30);

const { createServer } = process.argv[3] === "h2" ? http2 : http;
const server = createServer(async (request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://any");
  if (pathname === "/arrivals") return response.end(JSON.stringify((arrivals.get(searchParams.get("of")) ?? []).map(String)));
  const wait = () => new Promise((resolve) => setTimeout(resolve, Math.random() * jitter));
  await wait();
  if (!arrivals.has(pathname)) arrivals.set(pathname, []);
  arrivals.get(pathname).push(process.hrtime.bigint());
  await wait();
  response.write("head");
  await wait();
  response.end("body");
});
server.keepAliveTimeout = 60_000; // A busy client reuses a connection late.
server.listen(0, "127.0.0.1", () => {
  const { port } = server.address();
  if (process.send) process.send(port);
  else console.log(port);
});
process.on("disconnect", () => process.exit(0));
