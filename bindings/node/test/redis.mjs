// A Redis server for a test.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

/** Starts a server on a free port and on a socket of its own. It stores nothing permanently, and ends with `stop()`. */
export async function startRedis() {
  const dir = mkdtempSync(join(tmpdir(), "workglow-limit-redis-"));
  const socket = join(dir, "s");
  for (;;) {
    const port = await freePort();
    const options = [
      "--port",
      port,
      "--bind",
      "127.0.0.1",
      "--dir",
      dir,
      "--save",
      "",
      "--appendonly",
      "no",
      "--unixsocket",
      socket,
      "--databases",
      1000,
    ];
    const server = spawn("redis-server", options.map(String), { stdio: ["ignore", "pipe", "inherit"] });
    const ended = once(server, "exit").catch((error) => {
      throw new Error(`redis-server cannot be started (apt-get install redis-server): ${error.message}`);
    });
    if (!(await Promise.race([isReady(server), ended.then(() => false)]))) continue; // Another process took the port.
    const stop = async () => {
      server.kill("SIGKILL");
      await ended;
      rmSync(dir, { recursive: true, force: true });
    };
    const { pid } = server;
    return { port, pid, url: `redis+unix://${socket}`, stop, scripts: () => scripts(port), command: (line) => command(port, line) };
  }
}

/** Returns how many scripts it has run. */
async function scripts(port) {
  const stats = await command(port, "INFO commandstats");
  return [...stats.matchAll(/^cmdstat_eval\w*:calls=(\d+)/gm)].reduce((sum, [, calls]) => sum + Number(calls), 0);
}

/** Returns the reply to a command. */
async function command(port, line) {
  const socket = connect(port, "127.0.0.1").setEncoding("utf8");
  socket.end(`${line}\r\nQUIT\r\n`);
  return (await socket.toArray()).join("");
}

export async function freePort() {
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
      server.stdout.resume(); // Drains the output, so that the server never blocks on it.
      return true;
    }
  }
  return false;
}
