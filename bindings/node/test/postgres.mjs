// A Postgres server of a test's own.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const PROGRAM = fileURLToPath(new URL("../../../tests/fleet/postgres", import.meta.url));

/** Starts a server on a socket of its own. It keeps nothing, and ends with `stop()`. */
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
  /** A database that nobody has used, in place of the last one: what is still sent to that one does no harm. */
  const newDatabase = () => {
    const drop = `DROP DATABASE IF EXISTS limits_${databases} WITH (FORCE)`;
    const create = `CREATE DATABASE limits_${++databases}`;
    execFileSync("psql", ["-X", "-q", "-c", "SET client_min_messages = warning", "-c", drop, "-c", create, url]);
    return url.replace("/postgres?", `/limits_${databases}?`);
  };
  return { url, stop, newDatabase };
}
