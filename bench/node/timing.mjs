// How a case is timed: in batches, in slices that the cases take in turn, and decision by decision for the tail.

const SLICE = 5; // ms
const SLICES = 14; // Each case is timed for 70 ms.
const SINGLES = 500; // The decisions of each slice that are timed one by one, for at most a fifth of its time.

/**
 * A limiter and its call. `call` is an expression of `names` (and of `key`), as a user would write it; it may await. `admitted` is an
 * expression of `answer`, the result of `call`. `renew` empties it, after `capacity` decisions. With `oneKey`, all decisions have that
 * key.
 */
export function peer(call, names, { admitted = "answer", renew, capacity = 1_000, oneKey = "tenant-7" } = {}) {
  return { call, names, admitted, renew, capacity, oneKey };
}

/** One decision as a function: returns whether it was admitted. */
export function decider({ call, names, admitted, oneKey }) {
  const body = `return async (key = ${JSON.stringify(oneKey)}) => { const answer = ${call}; return Boolean(${admitted}); }`;
  return new Function(...Object.keys(names), body)(...Object.values(names));
}

/** Makes the loops of a case. The call is inlined in code of its own, which no other case's calls slow down. */
export function loops({ call, names, oneKey }, hasKeys) {
  const begin = call.includes("await ") ? "async " : "";
  const key = hasKeys ? "keys[i]" : JSON.stringify(oneKey);
  const body = `
    let kept;
    return {
      batch: ${begin}function (count, keys) {
        const start = performance.now();
        for (let i = 0; i < count; i++) {
          const key = ${key};
          kept = ${call};
        }
        return performance.now() - start;
      },
      singles: ${begin}function (count, keys) {
        const times = [];
        const end = performance.now() + ${SLICE / 5};
        for (let i = 0; i < count; i++) {
          const key = ${key};
          const start = performance.now();
          kept = ${call};
          const now = performance.now();
          times.push((now - start) * 1e6);
          if (now > end) break;
        }
        return times;
      },
    };`;
  return new Function(...Object.keys(names), body)(...Object.values(names));
}

export class Case {
  #loops;
  #batches = [];
  #cpu = [];
  #tail = [];
  #pace = 0; // The time of one decision of late, in ms.
  #next = 0;
  #left = 0; // The decisions that are left before it has to be emptied.
  #emptying = 0; // The processor time of emptying in the slice, in ns.

  constructor(name, of, peer, { keys = null, extra = {} } = {}) {
    Object.assign(this, { name, of, peer, keys, extra });
    this.#loops = loops(peer, keys !== null);
  }

  /** The decisions of a batch: fewer of a slow limiter, so that several batches fit into a slice. */
  #fitting() {
    return Math.max(1, Math.min(this.peer.capacity, Math.floor(SLICE / 10 / this.#pace)));
  }

  async #run(loop, count) {
    if (this.peer.renew && this.#left < count) {
      const before = process.cpuUsage();
      await this.peer.renew();
      this.#emptying += used(before);
      this.#left = this.peer.capacity;
    }
    this.#left -= count;
    if (this.keys === null) return loop(count);
    if (this.#next + count > this.keys.length) this.#next = 0;
    this.#next += count;
    return loop(count, this.keys.slice(this.#next - count, this.#next));
  }

  async slice() {
    const { batch, singles } = this.#loops;
    if (this.#batches.length === 0) {
      // Measures the pace. The first decisions are slower, until they are compiled, and do not count.
      this.#pace = await this.#run(batch, 1);
      for (const end = performance.now() + 4 * SLICE; performance.now() < end; ) {
        const count = this.#fitting();
        this.#pace = (await this.#run(batch, count)) / count;
      }
    }
    const count = this.#fitting();
    const end = performance.now() + SLICE;
    let [took, decisions] = [0, 0];
    this.#emptying = 0;
    const before = process.cpuUsage();
    do {
      took = await this.#run(batch, count);
      this.#pace = took / count;
      this.#batches.push(this.#pace * 1e6);
      decisions += count;
    } while (performance.now() < end);
    this.#cpu.push((used(before) - this.#emptying) / decisions);
    this.#tail.push(...(await this.#run(singles, Math.min(SINGLES, this.peer.capacity))));
  }

  result() {
    const result = { ns: round(median(this.#batches)), ...quantiles(this.#tail), cpu_ns: round(median(this.#cpu)) };
    return { ...result, ...this.extra };
  }
}

/** The processor time of all threads of this process since then, in ns. */
function used(before) {
  const { user, system } = process.cpuUsage(before);
  return (user + system) * 1e3;
}

export const round = (value) => Math.round(value * 10) / 10;

export function median(values) {
  const ordered = values.toSorted((a, b) => a - b);
  return ordered[Math.floor(ordered.length / 2)];
}

/** Percentiles of single decisions, including a read of the clock. Omitted if there are too few. */
export function quantiles(tail) {
  const ordered = tail.toSorted((a, b) => a - b);
  const found = {};
  if (ordered.length >= 100) found.p99 = Math.round(ordered[Math.floor(ordered.length * 0.99)]);
  if (ordered.length >= 1_000) found.p999 = Math.round(ordered[Math.floor(ordered.length * 0.999)]);
  return found;
}

/** Times all cases, in turn, and prints the results. */
export async function measure(cases) {
  for (let i = 0; i < SLICES; i++) {
    for (const each of cases) await each.slice();
  }
  for (const each of cases) show(each.name, each.of, each.result());
}

export function show(name, of, figures) {
  console.log(JSON.stringify({ case: `node ${name}`, group: "node", peer: of, ...figures }));
}
