// The queues, as both the fleet and its workers make them.

import { Logger } from "graphile-worker";
import { PgBoss } from "pg-boss";

/** Makes a pg-boss, and starts it. */
export async function pgBoss(host, max) {
  const boss = new PgBoss({ host, user: "postgres", database: "postgres", max, supervise: false, schedule: false });
  boss.on("error", () => {});
  await boss.start();
  return boss;
}

/** Discards Graphile Worker's log of each job. */
export const quiet = new Logger(() => () => {});
