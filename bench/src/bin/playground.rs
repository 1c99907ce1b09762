//! Records the data of the site's playground: two workers with loads of several sizes use each kind of limiter. A manual clock
//! and fixed arrivals make every run record the same.
//!
//! `cargo run -p workglow-limit-bench --bin playground FILE`

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt::Write as _;
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Outcome, Waiter, WaiterId};
use workglow_limit::{ManualClock, RawPermit, Result, Store, StoreOptions};

/// All times are in microseconds.
const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;
/// Requests arrive up to here; the record continues until the line is empty.
const ARRIVALS: u64 = 8 * SECOND;
const END: u64 = 10 * SECOND;
/// The duration of every job.
const JOB: u64 = 400 * MS;
/// The longest wait of a caller that waits.
const TIMEOUT: u64 = 1_500 * MS;
/// The distance of two samples of `peek`.
const SAMPLE: u64 = 50 * MS;

struct Kind {
    name: &'static str,
    title: &'static str,
    policy: &'static str,
    /// The units that may start in a second, or run at once.
    limit: u64,
    /// The most units that start in any second, where that is more than the limit.
    bound: u64,
}

const KINDS: [Kind; 7] = [
    Kind { name: "rate", title: "Rate", policy: "10/1s", limit: 10, bound: 10 },
    Kind { name: "evenly-spaced", title: "Evenly spaced", policy: "10/1s spaced strictly", limit: 10, bound: 10 },
    Kind { name: "token-bucket", title: "Token bucket", policy: "10/1s burst 10", limit: 10, bound: 20 },
    Kind { name: "leaky-bucket", title: "Leaky bucket", policy: "10/1s queue 10", limit: 10, bound: 10 },
    Kind { name: "fixed-window", title: "Fixed window", policy: "10/1s fixed", limit: 10, bound: 20 },
    Kind {
        name: "sliding-window-counter",
        title: "Sliding window counter",
        policy: "10/1s counter",
        limit: 10,
        bound: 20,
    },
    Kind { name: "concurrency", title: "Concurrency", policy: "5 concurrent", limit: 5, bound: 5 },
];

/// The requests of a worker.
enum Load {
    Idle,
    /// Requests at random distances, of this mean.
    Every(u64),
    /// Requests at once, and the time from one burst to the next.
    Bursts(usize, u64),
}

const LOADS: [(&str, Load); 5] = [
    ("idle", Load::Idle),
    ("light: 3/s", Load::Every(SECOND / 3)),
    ("steady: 8/s", Load::Every(SECOND / 8)),
    ("heavy: 20/s", Load::Every(SECOND / 20)),
    ("bursts of 12", Load::Bursts(12, 1_600 * MS)),
];

/// The arrivals of one worker, in whole milliseconds.
fn arrivals(load: &Load, worker: u64) -> Vec<u64> {
    match load {
        Load::Idle => Vec::new(),
        Load::Bursts(size, every) => {
            let first = 300 * MS + worker * 700 * MS;
            (first..ARRIVALS).step_by(*every as usize).flat_map(|at| std::iter::repeat_n(at, *size)).collect()
        }
        Load::Every(mean) => {
            // xorshift64: the same numbers on every machine.
            let mut state = 0x9e37_79b9_7f4a_7c15 ^ (mean + worker);
            let mut times = Vec::new();
            let mut at = 100 * MS;
            loop {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                at += state % (2 * mean / MS) * MS;
                if at >= ARRIVALS {
                    return times;
                }
                times.push(at);
            }
        }
    }
}

/// The outcome of a request, and its wait.
#[derive(Clone, Copy)]
enum Fate {
    Started(u64),
    Denied(u64),
}

/// The fates of the requests, in their order, and the units that `peek` reported as used, sample by sample.
struct Trace {
    fates: Vec<Fate>,
    used: Vec<u64>,
}

/// The next event. At the same moment jobs end first, then waiters start, then requests arrive; a sample comes last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    End,
    Line,
    Request,
    Sample,
}

fn record(kind: &Kind, requests: &[u64], waits: bool) -> Result<Trace> {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options)?;
    let limiter = store.limiter(kind.name, kind.policy)?;
    let mut line = Line::new(limiter.clone());
    let mut waiting: BTreeMap<WaiterId, usize> = BTreeMap::new();
    let mut fates: Vec<Option<Fate>> = vec![None; requests.len()];
    let mut used = Vec::new();
    let mut ends: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut permits: BTreeMap<usize, RawPermit> = BTreeMap::new();
    let (mut now, mut asked) = (0, 0);
    loop {
        let due = line.next().map(|nap| (now + nap.as_micros() as u64, Event::Line));
        let end = ends.peek().map(|Reverse((at, _))| (*at, Event::End));
        let request = requests.get(asked).map(|at| (*at, Event::Request));
        let sample = used.len() as u64 * SAMPLE;
        let sample = (sample <= END).then_some((sample, Event::Sample));
        let Some((at, event)) = [due, end, request, sample].into_iter().flatten().min() else { break };
        now = at;
        clock.advance(Duration::from_micros(now).saturating_sub(clock.now()));
        let mut over = Vec::new();
        match event {
            Event::End => {
                let job = ends.pop().map_or(0, |Reverse((_, job))| job);
                if let Some(permit) = permits.remove(&job) {
                    limiter.complete(&permit)?;
                    line.wake(Some(""));
                }
            }
            Event::Line => {
                let mut ended = Vec::new();
                line.advance(&mut ended);
                over.extend(ended.into_iter().filter_map(|(id, outcome)| Some((waiting.remove(&id)?, outcome))));
            }
            Event::Request => {
                if waits {
                    let waiter = Waiter::new("", 1).timeout(Some(Duration::from_micros(TIMEOUT)));
                    match line.join(waiter)? {
                        Joined::Waiting(id) => drop(waiting.insert(id, asked)),
                        Joined::Done(outcome) => over.push((asked, outcome)),
                    }
                } else {
                    let decision = limiter.decide("", 1)?;
                    over.push((
                        asked,
                        decision.permit.map_or(Outcome::Expired(decision.retry_after), Outcome::Admitted),
                    ));
                }
                asked += 1;
            }
            Event::Sample => {
                let seen = limiter.peek("", 1)?;
                used.push(seen.limit.saturating_sub(seen.remaining));
            }
        }
        for (request, outcome) in over {
            let waited = now - requests[request];
            fates[request] = Some(match outcome {
                Outcome::Admitted(permit) => {
                    permits.insert(request, permit);
                    ends.push(Reverse((now + JOB, request)));
                    Fate::Started(waited)
                }
                Outcome::Expired(_) => Fate::Denied(waited),
                Outcome::Failed(error) => return Err(error),
            });
        }
    }
    let fates = fates.into_iter().map(|fate| fate.expect("every request was answered")).collect();
    Ok(Trace { fates, used })
}

/// Joins numbers with commas.
fn list(numbers: impl IntoIterator<Item = i64>) -> String {
    numbers.into_iter().map(|number| number.to_string()).collect::<Vec<_>>().join(",")
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let file = std::env::args().nth(1).ok_or("usage: playground FILE")?;
    let workers = [0, 1].map(|worker| LOADS.each_ref().map(|(_, load)| arrivals(load, worker)));
    let ms = |us: u64| us / MS;
    let mut out = format!(
        "{{\n\"length\": {}, \"job\": {}, \"timeout\": {}, \"sample\": {},\n",
        ms(END),
        ms(JOB),
        ms(TIMEOUT),
        ms(SAMPLE)
    );
    let loads: Vec<_> = LOADS
        .iter()
        .enumerate()
        .map(|(i, (name, _))| {
            let [a, b] = [0, 1].map(|worker: usize| list(workers[worker][i].iter().map(|at| ms(*at) as i64)));
            format!("{{\"name\": \"{name}\", \"arrivals\": [[{a}],[{b}]]}}")
        })
        .collect();
    writeln!(out, "\"loads\": [\n{}\n],", loads.join(",\n"))?;
    let kinds: Vec<_> = KINDS
        .iter()
        .map(|Kind { name, title, policy, limit, bound }| {
            format!(
                "{{\"name\": \"{name}\", \"title\": \"{title}\", \"policy\": \"{policy}\", \"limit\": {limit}, \"bound\": {bound}}}"
            )
        })
        .collect();
    writeln!(out, "\"kinds\": [\n{}\n],", kinds.join(",\n"))?;

    // A trace has the samples, one digit of base 36 each, and the fates in the order of arrival, the first worker's first: the wait in
    // microseconds, or for a denial -1 less the wait.
    let mut traces = Vec::new();
    for kind in &KINDS {
        for (waits, callers) in [(false, "deny"), (true, "wait")] {
            for (a, b) in (0..LOADS.len()).flat_map(|a| (0..LOADS.len()).map(move |b| (a, b))) {
                let mut requests: Vec<u64> = workers[0][a].iter().chain(&workers[1][b]).copied().collect();
                requests.sort();
                let trace = record(kind, &requests, waits)?;
                let fates = list(trace.fates.iter().map(|fate| match *fate {
                    Fate::Started(waited) => waited as i64,
                    Fate::Denied(waited) => -1 - waited as i64,
                }));
                let used: String =
                    trace.used.iter().map(|used| char::from_digit(*used as u32, 36).expect("a small limit")).collect();
                traces.push(format!("\"{}/{callers}/{a}/{b}\": [\"{used}\",[{fates}]]", kind.name));
            }
        }
    }
    writeln!(out, "\"traces\": {{\n{}\n}}\n}}", traces.join(",\n"))?;
    std::fs::write(file, out)?;
    Ok(())
}
