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
  const command = JSON.parse(line);
  if (command.peer) {
    const make = ON_SERVER.find(([name]) => name === command.peer)[2];
    go = hammer(make(command.url, command.name, { limit: command.limit, seconds: command.window }));
    console.log('"open"');
  } else {
    await setTimeout(command.start - Date.now());
    const start = performance.now();
    const [total, admitted] = await go(command.until);
    console.log(JSON.stringify([total, admitted, (performance.now() - start) / 1000]));
  }
}
process.exit(0);
