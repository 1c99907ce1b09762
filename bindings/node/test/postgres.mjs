// A Postgres server of a test's own.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const fleet = (name) => fileURLToPath(new URL(`../../../tests/fleet/${name}`, import.meta.url));

/** Starts a server on a socket of its own. It keeps nothing, and ends with `stop()`. */
export async function startPostgres() {
  const server = spawn(fleet("postgres"), { stdio: ["pipe", "pipe", "inherit"] });
  const ended = once(server, "exit");
  const [url] = await Promise.race([once(createInterface({ input: server.stdout }), "line"), ended]);
  if (typeof url !== "string") throw new Error("Postgres cannot be started (apt-get install postgresql)");
  const stop = async () => {
    server.stdin.end();
    await ended;
  };
  /** Nobody has used any limit. */
  const forgetAll = () => execFileSync("psql", ["-X", "-q", "-f", fleet("forget.sql"), url]);
  return { url, stop, forgetAll };
}
