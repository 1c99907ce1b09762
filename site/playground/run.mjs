// Reads the record that bench/src/bin/playground.rs writes. One run has two workers and one limiter.

const SECOND = 1000;

/** Returns the requests of a run in the order of arrival, in ms. `at` is the time of the start or the denial. */
export function requestsOf(data, kind, callers, a, b) {
  const arrivals = [a, b].flatMap((load, worker) => data.loads[load].arrivals[worker].map((arrival) => ({ worker, arrival })));
  arrivals.sort((one, other) => one.arrival - other.arrival); // stable: the first worker's come first
  const [used, fates] = data.traces[`${kind}/${callers}/${a}/${b}`];
  const requests = arrivals.map((request, i) => {
    const isStart = fates[i] >= 0;
    return { ...request, isStart, at: request.arrival + (isStart ? fates[i] : -1 - fates[i]) / 1000 };
  });
  return { requests, used: [...used].map((digit) => parseInt(digit, 36)) };
}

/** Returns `[time, count]` for each change of the number of starts that count, if each counts for `length`. */
export function counts(starts, length) {
  const changes = new Map();
  const add = (at, change) => changes.set(at, (changes.get(at) ?? 0) + change);
  for (const at of starts) {
    add(at, 1);
    add(Math.round((at + length) * 1000) / 1000, -1);
  }
  let count = 0;
  return [...changes].sort(([a], [b]) => a - b).map(([at, change]) => [at, (count += change)]);
}

/** Returns how long a start counts: while its job runs, or a second. */
export const span = (data, kind) => (kind.name === "concurrency" ? data.job : SECOND);

/** Gives each request a row in which it overlaps no other. */
export function rows(requests, width, ending) {
  const ends = [];
  const placed = requests.map((request) => {
    let row = ends.findIndex((end) => end <= request.arrival);
    if (row < 0) row = ends.length;
    ends[row] = Math.max(request.arrival, request.at) + (request.isStart ? Math.max(width, ending) : width);
    return { ...request, row };
  });
  return { placed, count: ends.length };
}

/** Counts the outcomes of requests up to a moment. */
export function tally(requests, until = Infinity) {
  const known = requests.filter(({ arrival }) => arrival <= until);
  const over = known.filter(({ at }) => at <= until);
  const starts = over.filter(({ isStart }) => isStart);
  const waits = starts.map(({ arrival, at }) => at - arrival).filter((wait) => wait > 0);
  return {
    asked: known.length,
    started: starts.length,
    denied: over.length - starts.length,
    waiting: known.length - over.length,
    waited: waits.length,
    longest: Math.max(0, ...waits),
  };
}
