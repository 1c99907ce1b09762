// What both ends of the fleet make of the queues.

import { Logger } from "graphile-worker";
import { PgBoss } from "pg-boss";

/** A pg-boss that has started. */
export async function pgBoss(host, max) {
  const boss = new PgBoss({ host, user: "postgres", database: "postgres", max, supervise: false, schedule: false });
  boss.on("error", () => {});
  await boss.start();
  return boss;
}

/** Graphile Worker tells of each job; here nobody reads it. */
export const quiet = new Logger(() => () => {});
