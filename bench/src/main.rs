//! What a decision costs in Rust, beside governor and beside the same exact log in one SQLite transaction.
//!
//! Prints `case<TAB>ns per decision`, one line per case. `bench/run.py` runs all languages in turn and compares.

use governor::clock::{DefaultClock, MonotonicClock};
use governor::{Quota, RateLimiter as Governor};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::path::Path;
use std::time::{Duration, Instant};
use workglow_limit::{Attempt, Limiter, RateLimiter, Store};

/// Each case is timed for about this long.
const SPAN: Duration = Duration::from_millis(60);

fn main() {
    let dir = std::env::args().nth(1).expect("usage: workglow-limit-bench DIRECTORY");
    let sqlite = format!("sqlite:{dir}/rust.db");
    for (name, url) in [("memory", "memory:"), ("sqlite", sqlite.as_str())] {
        let store = Store::new(url).unwrap();
        // Always room: 100 in a window shorter than 100 decisions take.
        let open = RateLimiter::new(&store, "open", 100, Duration::from_micros(1)).unwrap();
        // Never room, after the first.
        let shut = RateLimiter::new(&store, "shut", 1, Duration::from_secs(3_600)).unwrap();
        let _ = shut.attempt("", 1).unwrap();
        time(&format!("rust {name} admit"), || is_admitted(&open, ""));
        time(&format!("rust {name} deny"), || is_admitted(&shut, ""));
        time(&format!("rust {name} admit, with key"), || is_admitted(&open, "tenant-7"));
        time(&format!("rust {name} decide"), || open.decide("", 1).unwrap().admitted);
    }

    let many = Quota::per_second(NonZeroU32::new(1_000_000_000).unwrap());
    let one = Quota::with_period(Duration::from_secs(3_600)).unwrap();
    let open = Governor::direct_with_clock(many, DefaultClock::default());
    time("governor admit", || open.check().is_ok());
    let open = Governor::direct_with_clock(many, MonotonicClock);
    time("governor admit, monotonic clock", || open.check().is_ok());
    let shut = Governor::direct_with_clock(one, DefaultClock::default());
    let _ = shut.check();
    time("governor deny", || shut.check().is_ok());

    let log = TransactionLog::new(Path::new(&dir).join("transaction.db").as_path());
    time("transaction admit", || log.attempt(100, 1));
    let log = TransactionLog::new(Path::new(&dir).join("transaction-shut.db").as_path());
    log.attempt(1, 3_600_000_000);
    time("transaction deny", || log.attempt(1, 3_600_000_000));
}

/// The usual way to share an exact log: a row per start, checked and written in one immediate transaction (WAL,
/// `synchronous = NORMAL`, prepared statements).
struct TransactionLog(rusqlite::Connection);

impl TransactionLog {
    fn new(path: &Path) -> Self {
        let db = rusqlite::Connection::open(path).unwrap();
        db.pragma_update(None, "journal_mode", "wal").unwrap();
        db.pragma_update(None, "synchronous", "normal").unwrap();
        db.execute_batch(
            "CREATE TABLE IF NOT EXISTS log (at INTEGER NOT NULL); CREATE INDEX IF NOT EXISTS by ON log (at);",
        )
        .unwrap();
        TransactionLog(db)
    }

    fn attempt(&self, limit: i64, window_us: i64) -> bool {
        let run = |sql: &str, now: i64| self.0.prepare_cached(sql).unwrap().execute([now]).unwrap();
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_micros() as i64;
        self.0.prepare_cached("BEGIN IMMEDIATE").unwrap().execute([]).unwrap();
        run("DELETE FROM log WHERE at <= ?1", now - window_us);
        let mut count = self.0.prepare_cached("SELECT count(*) FROM log").unwrap();
        let admitted = count.query_row([], |row| row.get::<_, i64>(0)).unwrap() < limit;
        if admitted {
            run("INSERT INTO log VALUES (?1)", now);
        }
        self.0.prepare_cached("COMMIT").unwrap().execute([]).unwrap();
        admitted
    }
}

fn is_admitted(limiter: &RateLimiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))
}

/// Prints the median over batches: others use this machine too.
fn time(case: &str, mut decide: impl FnMut() -> bool) {
    let (start, mut batches) = (Instant::now(), Vec::new());
    while start.elapsed() < SPAN {
        let batch = Instant::now();
        for _ in 0..200 {
            black_box(decide());
        }
        batches.push(batch.elapsed().as_nanos() as f64 / 200.0);
    }
    batches.sort_by(f64::total_cmp);
    println!("{case}\t{:.1}", batches[batches.len() / 2]);
}
