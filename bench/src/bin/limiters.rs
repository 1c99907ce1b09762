//! The cost of each limiter: an admission, a denial, and the memory of a key. Prints the table of `docs/limiters.md`.
//!
//! `cargo run --release -p workglow-limit-bench --bin limiters`

use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::{Attempt, Limiter, NullLimiter, Result, Store};

/// Rounds over all cases. Several even out the other load of the machine.
const ROUNDS: usize = 15;
/// The approximate duration of a case in a round.
const SPAN: Duration = Duration::from_millis(40);

/// The number of limiters called in turn where one frees its units only after a microsecond: a full turn takes longer.
/// The limiters that they are compared with are called the same way.
const IN_TURN: usize = 64;
/// The number of decisions timed together.
const BATCH: usize = 256;
/// The most keys of an index of 128 before it grows: the measured memory includes no spare capacity.
const KEYS: usize = 95;

/// A limiter that is never full, one that is always full, and one whose keys are counted: each key has a start that is
/// not over.
struct Case {
    name: &'static str,
    open: &'static str,
    shut: Option<&'static str>,
    counted: Option<&'static str>,
}

const fn case(name: &'static str, open: &'static str, shut: &'static str, counted: &'static str) -> Case {
    Case { name, open, shut: Some(shut), counted: Some(counted) }
}

/// Windows are 2 s at most where keys are counted: longer ones are written to the ledger, which takes longer.
const CASES: [Case; 15] = [
    case("rate of 100", "100/1us", "1/1h", "100/2s"),
    case("rate, two windows", "100/1us + 200/2us", "1/1h + 2/2h", "100/2s + 10/100ms"),
    case("rate of 4,096", "4096/1us", "1/1h", "4096/2s"),
    case("rate above 4,096", "1000000000/1h", "5000/1h", "5000/2s"),
    case("concurrency of 5, with its `complete`", "5 concurrent", "1 concurrent", "5 concurrent"),
    case("delay", "delay 1us", "delay 1h", "delay 2s"),
    case("evenly spaced, strictly", "1/1us spaced strictly", "1/1h spaced strictly", "100/2s spaced strictly"),
    case("evenly spaced, 100", "1/1us spaced", "1/1h spaced", "100/2s spaced"),
    case("token bucket", "1000000000/1s burst 1000000", "1/1h burst 1", "100/1s burst 100"),
    case("leaky bucket", "1000000/1s queue 1", "1/1h queue 1", "100/2s queue 1"),
    case("fixed window", "1000000000/1h fixed", "1/1h fixed", "100/2s fixed"),
    case("sliding window counter", "1000000000/1h counter", "1/1h counter", "100/1s counter"),
    case(
        "composite of a rate and a token bucket, with its `complete`",
        "100/1us + 1000000000/1s burst 1000000",
        "1/1h + 1/1h burst 1",
        "100/2s + 100/1s burst 100",
    ),
    Case { name: "your own, in Rust, doing nothing", open: OPEN, shut: Some(SHUT), counted: None },
    Case { name: "null", open: OPEN, shut: None, counted: None },
];

const OPEN: &str = "open";
const SHUT: &str = "shut";
/// The baseline of the others.
const BASE: &str = "100/1us";
/// Marks an admission that is timed together with its end.
const ENDED: &str = "with its `complete`";

/// A custom limiter with a constant answer.
struct Own(Verdict);

impl Custom for Own {
    fn name(&self) -> &str {
        "own"
    }

    fn decide(&self, _key: &str, _weight: u64) -> Result<Verdict> {
        Ok(self.0)
    }

    fn peek(&self, _key: &str, _weight: u64) -> Result<Verdict> {
        Ok(self.0)
    }

    fn end(&self, _start: u64, _end: End) -> Result<()> {
        Ok(())
    }
}

/// Limiters of one policy, each under a name of its own.
fn limiters(name: &str, policy: &str, count: usize, store: &Store) -> Vec<Arc<dyn Limiter>> {
    let one = |i: usize| -> Arc<dyn Limiter> {
        match name {
            "null" => Arc::new(NullLimiter::new()),
            "your own, in Rust, doing nothing" if policy == OPEN => {
                Arc::new(CustomLimiter::new(Own(Verdict::Admitted(0))).unwrap())
            }
            "your own, in Rust, doing nothing" => Arc::new(CustomLimiter::new(Own(Verdict::Denied(SPAN))).unwrap()),
            _ => store.limiter(&format!("{name} {i} {policy}"), policy).unwrap(),
        }
    };
    (0..count).map(one).collect()
}

/// The nanoseconds of one decision, the median over batches. Each must have the expected result.
fn time(limiters: &[Arc<dyn Limiter>], has_room: bool, gives_back: bool) -> f64 {
    let (start, mut batches) = (Instant::now(), Vec::new());
    while start.elapsed() < SPAN {
        let batch = Instant::now();
        for limiter in limiters.iter().cycle().take(BATCH) {
            match black_box(limiter.attempt("", 1).unwrap()) {
                Attempt::Admitted(permit) if has_room => {
                    if gives_back {
                        limiter.complete(&permit).unwrap();
                    }
                }
                Attempt::Denied(_) if !has_room => {}
                other => panic!("{}: {other:?}, though there was room: {has_room}", limiter.name()),
            }
        }
        batches.push(batch.elapsed().as_nanos() as f64 / BATCH as f64);
    }
    median(batches)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Returns whether the case admits one start per microsecond and no more.
fn is_spaced(case: &Case) -> bool {
    case.open.contains("spaced") || case.open.contains("delay") || case.open.contains("queue")
}

/// Returns the bytes of a key in a store on disk, with its share of the index.
fn key_bytes(policy: &str, dir: &Path) -> u64 {
    let path = dir.join(format!("{}.db", policy.replace('/', "-")));
    let store = Store::new(&format!("sqlite:{}", path.display())).unwrap();
    let limiter = store.limiter("keys", policy).unwrap();
    limiter.open().unwrap();
    // Word 11 of the lane's header: the offset of its next block, in words.
    let used = || {
        let mut word = [0; 8];
        let lane = std::fs::File::open(path.with_extension("db-lane")).unwrap();
        lane.read_exact_at(&mut word, 11 * 8).unwrap();
        u64::from_le_bytes(word) * 8
    };
    let before = used();
    for key in 0..KEYS {
        assert!(matches!(limiter.attempt(&format!("tenant-{key}"), 1).unwrap(), Attempt::Admitted(_)));
    }
    (used() - before) / KEYS as u64
}

fn main() {
    let dir = std::env::temp_dir().join(format!("workglow-limit-bench-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let store = Store::new("memory:").unwrap();
    let made: Vec<_> = CASES
        .iter()
        .map(|case| {
            let open = limiters(case.name, case.open, if is_spaced(case) { IN_TURN } else { 1 }, &store);
            let shut = case.shut.map(|policy| limiters(case.name, policy, 1, &store));
            for limiter in shut.iter().flatten() {
                while let Attempt::Admitted(_) = limiter.attempt("", 1).unwrap() {}
            }
            (open, shut)
        })
        .collect();
    let bases = [1, IN_TURN].map(|count| limiters("base", BASE, count, &store));

    let mut figures = vec![(Vec::new(), Vec::new()); CASES.len()];
    let mut base_figures = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        for (base, admits) in bases.iter().zip(&mut base_figures) {
            admits.push(time(base, true, false));
        }
        for ((case, (open, shut)), (admits, denies)) in CASES.iter().zip(&made).zip(&mut figures) {
            admits.push(time(open, true, case.name.ends_with(ENDED)));
            denies.extend(shut.as_ref().map(|shut| time(shut, false, false)));
        }
    }
    let [base, base_in_turn] = base_figures.map(median);

    println!("× an admission by a rate limit of 100, {base:.0} ns: in memory, one process, no key.\n");
    println!("| | an admission | a denial | a key takes |\n| --- | --- | --- | --- |");
    for (case, (admits, denies)) in CASES.iter().zip(figures) {
        let admit = median(admits) / if is_spaced(case) { base_in_turn } else { base };
        let deny = case.shut.map_or("–".into(), |_| format!("{:.1} ×", median(denies) / base));
        let bytes = case.counted.map_or("–".into(), |policy| format!("{} B", key_bytes(policy, &dir)));
        println!("| {} | {admit:.1} × | {deny} | {bytes} |", case.name);
    }
    std::fs::remove_dir_all(dir).unwrap();
}
