//! Several processes that hammer one key. They are this program again, started with `child`.

use crate::measure::{Figures, hammer};
use crate::most::{self, LIMIT, Start, WINDOW};
use crate::redis_server::RedisLog;
use crate::shared_log::SharedLog;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use workglow_limit::{Attempt, Store};

/// The implementation that shares the limit. A word names each; its files are in the directory of the bench.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shared {
    /// This library, on `sqlite:`.
    Ours,
    /// A sorted set in Redis, and a script.
    Redis,
    /// A table in SQLite, and one transaction per decision.
    Transaction,
}

/// The limit that is hammered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Demand {
    /// One that always has free units: 100 per microsecond.
    Admitted,
    /// 100 per second, used up at once: nearly all decisions are denials.
    Denied,
    /// The same, as [`most`] hammers it.
    Most,
}

impl Demand {
    fn limit(self) -> (u64, Duration) {
        (LIMIT, if self == Demand::Admitted { Duration::from_micros(1) } else { WINDOW })
    }
}

/// The combined results of the processes.
#[derive(Default)]
pub struct Outcome {
    /// The number of decisions.
    pub figures: Figures,
    /// Decisions per second, all processes together.
    pub per_second: f64,
    /// The starts, where the demand was [`Demand::Most`].
    pub starts: Vec<Start>,
}

/// The database of [`Shared::Transaction`].
fn log_of(directory: &Path, demand: Demand) -> PathBuf {
    directory.join(format!("fleet-{demand:?}.log.db"))
}

/// Starts that number of processes, lets them begin together, and gathers their results.
pub fn hammered(shared: Shared, demand: Demand, processes: usize, span: Duration, directory: &Path) -> Outcome {
    if shared == Shared::Transaction {
        // SQLite has no wait for the process that creates a database's log, so one creates it before the others start.
        drop(SharedLog::new(&log_of(directory, demand)));
    }
    let start = |index: usize| {
        let program = std::env::current_exe().expect("this program has a path");
        let words = [format!("{shared:?}"), format!("{demand:?}"), index.to_string(), span.as_millis().to_string()];
        let mut command = Command::new(program);
        command.arg("child").arg(directory).args(words).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process starts");
        let answers = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        (child, answers)
    };
    let mut children: Vec<_> = (0..processes).map(start).collect();
    for (_, answers) in &mut children {
        assert_eq!(answers.next().expect("it says it is ready").expect("it is text"), "ready");
    }
    if demand == Demand::Most {
        most::wait_for_second();
    }
    for (child, _) in &mut children {
        writeln!(child.stdin.take().expect("it is piped"), "go").expect("it listens");
    }
    let mut outcome = Outcome::default();
    for (child, mut answers) in children {
        let answer = answers.next().expect("it answers").expect("it is text");
        outcome.take(&serde_json::from_str(&answer).expect("it is JSON"), child);
    }
    outcome
}

impl Outcome {
    fn take(&mut self, answer: &Value, mut child: Child) {
        assert!(child.wait().expect("it ends").success());
        let number = |name: &str| answer[name].as_f64().expect("it is a number");
        let mut figures = Figures {
            decisions: number("decisions") as usize,
            elapsed_ns: number("elapsed_ns"),
            cpu_ns: number("cpu_ns"),
            ..Figures::default()
        };
        for (ns, count) in pairs(&answer["singles"]) {
            figures.singles.record_n(ns, count).expect("a histogram that grows takes all");
        }
        for (batch, _) in pairs(&answer["batches"]) {
            figures.batches.push(batch as f64 / 10.0);
        }
        self.starts.extend(pairs(&answer["starts"]));
        if figures.decisions > 0 {
            self.per_second += figures.decisions as f64 / figures.elapsed_ns * 1e9;
        }
        self.figures.add(figures);
    }
}

fn pairs(list: &Value) -> impl Iterator<Item = (u64, u64)> + '_ {
    let number = |pair: &Value, at: usize| pair[at].as_u64().expect("it is a number");
    list.as_array().into_iter().flatten().map(move |pair| (number(pair, 0), number(pair, 1)))
}

/// If [`hammered`] started this process, does its work and exits.
pub fn be_a_child() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [child, directory, shared, demand, index, span] = words.as_slice() else { return };
    if child != "child" {
        return;
    }
    let demand = match demand.as_str() {
        "Admitted" => Demand::Admitted,
        "Denied" => Demand::Denied,
        _ => Demand::Most,
    };
    let (directory, span) = (Path::new(directory), Duration::from_millis(span.parse().expect("it is a number")));
    let (limit, window) = demand.limit();
    // Each demand has a limit of its own, so none meets the starts of another.
    let name = format!("{demand:?}");
    match shared.as_str() {
        "Ours" => {
            let store = Store::new(&format!("sqlite:{}", directory.join("fleet.db").display())).expect("a store");
            let limiter = store.limiter(&name, &format!("{limit}/{}us", window.as_micros())).expect("a limiter");
            limiter.open().expect("the store opens");
            let decide = || matches!(limiter.attempt("tenant-7", 1).expect("a decision"), Attempt::Admitted(_));
            hammer_as_told(decide, demand, index == "0", span);
        }
        "Redis" => {
            let mut log = RedisLog::new(&directory.join("redis.sock"));
            hammer_as_told(|| log.attempt(&name, limit, window), demand, index == "0", span);
        }
        _ => {
            let log = SharedLog::new(&log_of(directory, demand));
            hammer_as_told(|| log.attempt(limit as i64, window), demand, index == "0", span);
        }
    }
    std::process::exit(0);
}

fn hammer_as_told(mut decide: impl FnMut() -> bool, demand: Demand, is_first: bool, span: Duration) {
    println!("ready");
    std::io::stdin().read_line(&mut String::new()).expect("the parent sends a line");
    if demand == Demand::Most {
        return println!(
            "{}",
            json!({ "decisions": 0, "elapsed_ns": 0, "cpu_ns": 0, "starts": most::hammer(decide, is_first) })
        );
    }
    let figures = hammer(span, |times| {
        for _ in 0..times {
            std::hint::black_box(decide());
        }
    });
    let singles = figures.singles.iter_recorded().map(|one| (one.value_iterated_to(), one.count_at_value()));
    println!(
        "{}",
        json!({
            "decisions": figures.decisions,
            "elapsed_ns": figures.elapsed_ns,
            "cpu_ns": figures.cpu_ns,
            "singles": singles.collect::<Vec<_>>(),
            // A hundredth of the batches is enough for their median. Tenths of nanoseconds.
            "batches": figures.batches.iter().step_by(100).map(|ns| ((ns * 10.0) as u64, 1)).collect::<Vec<_>>(),
        })
    );
}
