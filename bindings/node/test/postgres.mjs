// A Postgres server for a test.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const PROGRAM = fileURLToPath(new URL("../../../tests/fleet/postgres", import.meta.url));

/** Starts a server on a socket of its own. It stores nothing permanently, and ends with `stop()`. */
export async function startPostgres() {
  const server = spawn(PROGRAM, { stdio: ["pipe", "pipe", "inherit"] });
  const ended = once(server, "exit");
  const [url] = await Promise.race([once(createInterface({ input: server.stdout }), "line"), ended]);
  if (typeof url !== "string") throw new Error("Postgres cannot be started (apt-get install postgresql)");
  const stop = async () => {
    server.stdin.end();
    await ended;
  };
  let databases = 0;
  /** Returns a new database instead of the last one, to which late requests may still go. */
  const newDatabase = () => {
    const drop = `DROP DATABASE IF EXISTS limits_${databases} WITH (FORCE)`;
    const create = `CREATE DATABASE limits_${++databases}`;
    execFileSync("psql", ["-X", "-q", "-c", "SET client_min_messages = warning", "-c", drop, "-c", create, url]);
    return url.replace("/postgres?", `/limits_${databases}?`);
  };
  return { url, stop, newDatabase };
}
