// Decisions, one at a time: what one of them has resolved goes on before the next one is made.

import { now, setImmediate } from "./timers.js";

/** How long, in ms, they may keep the event loop from its other work. */
const SLICE = 8;

const resolved = Promise.resolve();
let actions: (() => void)[] = [];
let next = 0;
let since = 0;

/**
 * Calls `action` in a microtask of its own, after those that were added before. A start counts from its decision. So a caller that
 * awaits it begins its work when it counts, even if hundreds of callers ask in the same turn of the loop.
 */
export function oneByOne(action: () => void): void {
  if (actions.push(action) === 1) void resolved.then(begin);
}

function begin(): void {
  since = now();
  step();
}

function step(): void {
  const action = actions[next]!;
  actions[next++] = nothing;
  try {
    action();
  } finally {
    if (next === actions.length) {
      actions = [];
      next = 0;
    } else if (now() - since < SLICE) {
      void resolved.then(step);
    } else {
      setImmediate(begin);
    }
  }
}

function nothing(): void {}
