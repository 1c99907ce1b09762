// A Redis server of a test's own.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

/** Starts a server on a port that is free. It keeps nothing, and ends with `stop()`. */
export async function startRedis() {
  const dir = mkdtempSync(join(tmpdir(), "workglow-limit-redis-"));
  for (;;) {
    const port = await freePort();
    const options = ["--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no"];
    const server = spawn("redis-server", options.map(String), { stdio: ["ignore", "pipe", "inherit"] });
    const ended = once(server, "exit").catch((error) => {
      throw new Error(`redis-server cannot be started (apt-get install redis-server): ${error.message}`);
    });
    if (!(await Promise.race([isReady(server), ended.then(() => false)]))) continue; // Somebody was faster.
    const stop = async () => {
      server.kill("SIGKILL");
      await ended;
      rmSync(dir, { recursive: true, force: true });
    };
    return { port, stop, scripts: () => scripts(port) };
  }
}

/** How many scripts it has run. */
async function scripts(port) {
  const socket = connect(port, "127.0.0.1").setEncoding("utf8");
  socket.end("INFO commandstats\r\nQUIT\r\n");
  const stats = (await socket.toArray()).join("");
  return [...stats.matchAll(/^cmdstat_eval\w*:calls=(\d+)/gm)].reduce((sum, [, calls]) => sum + Number(calls), 0);
}

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address();
  server.close();
  await once(server, "close");
  return port;
}

async function isReady(server) {
  const lines = createInterface({ input: server.stdout });
  for await (const line of lines) {
    if (/ready to accept connections/i.test(line)) {
      lines.close();
      server.stdout.resume(); // So that it never waits for a reader.
      return true;
    }
  }
  return false;
}
