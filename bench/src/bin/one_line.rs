//! Measures what the order of all processes costs on a server: two processes wait for the same slots, with so many waiters each.
//!
//! `cargo run --release -p workglow-limit-bench --bin one_line URL [threads|loop [A [B [SECONDS [WORK_MS [SLOTS]]]]]]`
//!
//! Prints the starts of each, their waits, the slots' use, and the requests of both if the server is a Redis that nobody else uses:
//! a new one, since after a loss nothing starts for a while.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use workglow_limit::embed::{Joined, Line, MayWait, Outcome, Waiter};
use workglow_limit::{Limiter, RawPermit, Store};

#[derive(Clone)]
struct Setting {
    url: String,
    kind: String,
    waiters: usize,
    seconds: u64,
    work: Duration,
    slots: u64,
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, usual: u64| args.get(at).map_or(usual, |text| text.parse().expect("a number"));
    let url = args.first().expect("usage: one_line URL [threads|loop [A [B [SECONDS [WORK_MS [SLOTS]]]]]]").clone();
    let kind = args.get(1).map_or("threads", String::as_str).to_owned();
    let (seconds, work, slots) = (number(4, 8), Duration::from_millis(number(5, 20)), number(6, 1));
    if let Ok(waiters) = std::env::var("ONE_LINE_WAITERS") {
        let waiters = waiters.parse().expect("a number");
        return child(&Setting { url, kind, waiters, seconds, work, slots });
    }
    let own = std::env::current_exe().expect("its path");
    let waiters = [number(2, 20), number(3, 1)];
    let mut children = waiters.map(|waiters| {
        let mut command = Command::new(&own);
        command.args(&args).env("ONE_LINE_WAITERS", waiters.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process")
    });
    let mut outputs = children.each_mut().map(|child| BufReader::new(child.stdout.take().expect("it is piped")));
    let line = |output: &mut BufReader<_>| {
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        line
    };
    for output in &mut outputs {
        assert_eq!(line(output), "open\n");
    }
    let before = requests(&url);
    for child in &mut children {
        child.stdin.take().expect("it is piped").write_all(b"go\n").expect("it reads");
    }
    let said = outputs.each_mut().map(line);
    let after = requests(&url);
    let starts: u64 = said.iter().map(|said| said.split(' ').next().unwrap().parse::<u64>().expect("starts")).sum();
    for (said, waiters) in said.iter().zip(waiters) {
        let [starts, mean, longest, cpu] = *said.trim().split(' ').collect::<Vec<_>>() else { panic!("{said}") };
        println!(
            "{waiters:4} waiters: {starts:>5} starts, mean wait {mean} ms, longest {longest} ms, {cpu} ms of a processor"
        );
    }
    let used = starts as f64 * work.as_secs_f64() / (seconds as f64 * slots as f64);
    println!("slots used {used:.3}; {} requests", after.saturating_sub(before));
    children.iter_mut().for_each(|child| drop(child.wait()));
}

/// The scripts that a Redis has run.
fn requests(url: &str) -> u64 {
    let Some(address) = url.strip_prefix("redis") else { return 0 };
    let address = format!("redis{}", address.split('?').next().expect("the first part"));
    let output = Command::new("redis-cli").args(["-u", &address, "info", "commandstats"]).output().expect("redis-cli");
    let all = String::from_utf8_lossy(&output.stdout);
    let calls = all.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    calls.map_or(0, |calls| calls.split(',').next().unwrap().parse().expect("a number"))
}

#[derive(Default)]
struct Seen {
    starts: u64,
    waited: Duration,
    longest: Duration,
}

impl Seen {
    fn started(&mut self, asked: Instant) {
        let waited = asked.elapsed();
        self.starts += 1;
        self.waited += waited;
        self.longest = self.longest.max(waited);
    }
}

fn child(s: &Setting) {
    let store = Store::new(&s.url).expect("a store");
    let limiter = store.limiter("jobs", &format!("{} concurrent", s.slots)).expect("a limiter");
    limiter.open().expect("the server answers");
    println!("open");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    let until = Instant::now() + Duration::from_secs(s.seconds);
    let seen = if s.kind == "loop" { in_a_loop(s, &limiter, until) } else { in_threads(s, &limiter, until) };
    let (mean, longest) = (seen.waited.as_secs_f64() * 1e3 / seen.starts.max(1) as f64, seen.longest.as_millis());
    // SAFETY: a valid place for the answer.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let cpu = [usage.ru_utime, usage.ru_stime].map(|time| time.tv_sec * 1_000 + time.tv_usec / 1_000);
    println!("{} {mean:.1} {longest} {}", seen.starts, cpu[0] + cpu[1]);
    std::process::exit(0);
}

fn in_threads(s: &Setting, limiter: &Arc<dyn Limiter>, until: Instant) -> Seen {
    let seen = Mutex::new(Seen::default());
    thread::scope(|scope| {
        for _ in 0..s.waiters {
            scope.spawn(|| {
                loop {
                    let asked = Instant::now();
                    let left = until.saturating_duration_since(asked);
                    if left.is_zero() {
                        break;
                    }
                    let Some(permit) = limiter.acquire("key", 1, Some(left)).expect("a start") else { break };
                    seen.lock().unwrap().started(asked);
                    thread::sleep(s.work);
                    permit.complete().expect("an end");
                }
            });
        }
    });
    seen.into_inner().unwrap()
}

enum Message {
    Wake,
    Ended,
}

/// As an event loop does it: it never waits for the server, and threads end its starts.
fn in_a_loop(s: &Setting, limiter: &Arc<dyn Limiter>, until: Instant) -> Seen {
    let (send, messages) = mpsc::channel();
    let (end, ends) = mpsc::channel::<RawPermit>();
    let (ender, ended) = (limiter.clone(), send.clone());
    thread::spawn(move || {
        for permit in ends {
            ender.complete(&permit).expect("an end");
            let _ = ended.send(Message::Ended);
        }
    });
    let send = Mutex::new(send);
    let mut line = Line::with_wake(limiter.clone(), move || drop(send.lock().unwrap().send(Message::Wake)));
    let (mut seen, mut asked) = (Seen::default(), std::collections::HashMap::new());
    let mut running = BinaryHeap::<Reverse<(Instant, usize)>>::new();
    let mut permits = Vec::<Option<RawPermit>>::new();
    let (mut over, mut joining) = (Vec::new(), s.waiters);
    loop {
        let mut admitted = Vec::new();
        for _ in 0..std::mem::take(&mut joining) {
            let now = Instant::now();
            match MayWait::Never.during(|| line.join(Waiter::new("key", 1))).expect("a waiter") {
                Joined::Waiting(id) => drop(asked.insert(id, now)),
                Joined::Done(Outcome::Admitted(permit)) => admitted.push((now, permit)),
                Joined::Done(outcome) => panic!("{outcome:?}"),
            }
        }
        let next = MayWait::Never.during(|| line.advance(&mut over));
        for (id, outcome) in over.drain(..) {
            let Outcome::Admitted(permit) = outcome else { panic!("{outcome:?}") };
            admitted.push((asked.remove(&id).expect("it waits"), permit));
        }
        for (asked, permit) in admitted {
            seen.started(asked);
            permits.push(Some(permit));
            running.push(Reverse((Instant::now() + s.work, permits.len() - 1)));
        }
        let now = Instant::now();
        while let Some(Reverse((due, at))) = running.peek().copied()
            && due <= now
        {
            running.pop();
            end.send(permits[at].take().expect("it runs")).expect("a thread");
        }
        if now >= until {
            return seen;
        }
        let due = running.peek().map(|Reverse((due, _))| due.saturating_duration_since(now));
        let nap = [next, due, Some(until - now)].into_iter().flatten().min().expect("one of them");
        let mut message = messages.recv_timeout(nap).ok();
        while let Some(some) = message {
            if matches!(some, Message::Ended) {
                line.wake(Some("key"));
                joining += 1;
            }
            message = messages.try_recv().ok();
        }
    }
}
