// Reads what was recorded (core/examples/playground.rs): one run of two workers against one limiter.

const SECOND = 1000;

/** The requests of a run in the order of their arrival; times in ms. `at` is when a request started, or was denied. */
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

/** How many starts count at each moment where that changes, if each counts for so long: `[time, count]`. */
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

/** What counts as used: jobs that run, or starts in the last second. */
export const span = (data, kind) => (kind.name === "concurrency" ? data.job : SECOND);

/** Gives each request a row in which it overlaps no other: `[request, row]`, and the number of rows. */
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

/** What became of requests up to a moment. */
export function tally(requests, until = Infinity) {
  const known = requests.filter(({ arrival }) => arrival <= until);
  const over = known.filter(({ at }) => at <= until);
  const starts = over.filter(({ isStart }) => isStart);
  const waits = starts.map(({ arrival, at }) => at - arrival).filter((wait) => wait > 0);
  return { asked: known.length, started: starts.length, denied: over.length - starts.length, waiting: known.length - over.length, waited: waits.length, longest: Math.max(0, ...waits) };
}
