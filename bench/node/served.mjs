// A process that makes decisions on a server's limit without a pause, for bench/fleet/rivals.py, which sends it commands line by line.

import readline from "node:readline";
import { setTimeout } from "node:timers/promises";
import { ON_SERVER } from "./peers.mjs";

/** Counts decisions and admissions until a time of the wall clock. The call is inlined in the loop. */
function hammer({ call, names, admitted }) {
  const body = `return async (until) => {
    let total = 0, admitted = 0;
    do {
      const answer = ${call};
      total++;
      if (${admitted}) admitted++;
    } while (Date.now() < until);
    return [total, admitted];
  }`;
  return new Function(...Object.keys(names), body)(...Object.values(names));
}

let go;
for await (const line of readline.createInterface({ input: process.stdin })) {
  const told = JSON.parse(line);
  if (told.peer) {
    const make = ON_SERVER.find(([name]) => name === told.peer)[2];
    go = hammer(make(told.url, told.name, { limit: told.limit, seconds: told.window }));
    console.log('"open"');
  } else {
    await setTimeout(told.start - Date.now());
    const start = performance.now();
    const [total, admitted] = await go(told.until);
    console.log(JSON.stringify([total, admitted, (performance.now() - start) / 1000]));
  }
}
process.exit(0);
