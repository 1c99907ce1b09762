//! Runs `tests/vectors/*.vec` on every store. The format is in `tests/vectors/README.md`.

use crate::common::server::Server;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use workglow_limit::custom::{Custom, CustomLimiter, End, Verdict};
use workglow_limit::embed::{Seat, Step, Waiter};
use workglow_limit::*;

struct Case {
    name: String,
    is_first_of: bool,
    limiters: Vec<Vec<String>>,
    steps: Vec<(usize, String)>,
}

impl Case {
    /// The kind of its limiter, as the vectors name it.
    fn kind(&self) -> String {
        match self.limiters.len() {
            _ if self.is_first_of => "first_of".into(),
            1 => self.limiters[0][0].clone(),
            _ => "composite".into(),
        }
    }
}

fn cases(file: &Path) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let text = std::fs::read_to_string(file).unwrap();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap().trim();
        match line.split_once(' ').unwrap_or((line, "")) {
            ("", _) => {}
            ("case", name) => {
                cases.push(Case { name: name.into(), is_first_of: false, limiters: vec![], steps: vec![] });
            }
            ("first_of", _) => cases.last_mut().unwrap().is_first_of = true,
            ("limiter", words) => {
                let words = words.split_whitespace().map(str::to_owned).collect();
                cases.last_mut().unwrap().limiters.push(words);
            }
            _ => cases.last_mut().unwrap().steps.push((number + 1, line.into())),
        }
    }
    cases
}

type Limiters = Vec<Arc<dyn Limiter>>;

/// The limiter of a case on one store, with a manual clock, and its children.
fn limiter(case: &Case, url: &str, clock: &ManualClock) -> (Store, Arc<dyn Limiter>, Limiters) {
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options(url, options).unwrap();
    let one = |(i, words): (usize, &Vec<String>)| child(&store, &format!("limit-{}", i + 1), words);
    let children: Limiters = case.limiters.iter().enumerate().map(one).collect();
    let limiter = match children.len() {
        _ if case.is_first_of => Arc::new(FirstOfLimiter::new(children.clone())),
        1 => children[0].clone(),
        _ => Arc::new(CompositeLimiter::new(children.clone())),
    };
    (store, limiter, children)
}

/// The limiter of one line, by the constructor of its kind.
fn child(store: &Store, name: &str, words: &[String]) -> Arc<dyn Limiter> {
    let word = |i: usize| words[i].as_str();
    let number = |i: usize| word(i).parse::<u64>().unwrap();
    let us = |i: usize| Duration::from_micros(number(i));
    match word(0) {
        "rate" => {
            let end = words.iter().position(|word| word == "backoff").unwrap_or(words.len());
            let windows: Vec<_> = (1..end).step_by(2).map(|at| (number(at), us(at + 1))).collect();
            let backoff = match &words[end..] {
                [] => Backoff::default(),
                _ => {
                    Backoff::new(us(end + 1), number(end + 2) as f64 / 1e3, us(end + 3), jitter(word(end + 4))).unwrap()
                }
            };
            Arc::new(RateLimiter::with_windows(store, name, &windows, backoff).unwrap())
        }
        "concurrency" => {
            let lease = (words.len() > 2).then(|| us(2));
            Arc::new(ConcurrencyLimiter::shared(store, name, number(1), lease).unwrap())
        }
        "delay" => Arc::new(DelayLimiter::shared(store, name, us(1)).unwrap()),
        "evenly_spaced" => {
            let is_adaptive = match word(3) {
                "adaptive" => true,
                "strict" => false,
                other => panic!("no spacing {other}"),
            };
            Arc::new(EvenlySpacedRateLimiter::shared(store, name, number(1), us(2), is_adaptive).unwrap())
        }
        "token_bucket" => Arc::new(TokenBucketLimiter::new(store, name, number(1), us(2), number(3)).unwrap()),
        "leaky_bucket" => Arc::new(LeakyBucketLimiter::new(store, name, number(1), us(2), number(3)).unwrap()),
        "fixed_window" => Arc::new(FixedWindowLimiter::new(store, name, number(1), us(2)).unwrap()),
        "sliding_window_counter" => Arc::new(SlidingWindowCounterLimiter::new(store, name, number(1), us(2)).unwrap()),
        "null" => Arc::new(NullLimiter::new()),
        "custom" => Arc::new(CustomLimiter::new(AtOnce { most: number(1), running: Mutex::default() }).unwrap()),
        "policy" => store.limiter(name, &words[1..].join(" ")).unwrap(),
        other => panic!("no limiter {other}"),
    }
}

fn jitter(word: &str) -> Jitter {
    match word {
        "scaled" => Jitter::Scaled,
        "full" => Jitter::Full,
        "equal" => Jitter::Equal,
        "none" => Jitter::None,
        other => panic!("no jitter {other}"),
    }
}

type Running = HashMap<u64, (String, u64)>;

/// A custom limiter: a number of units at once, per key.
struct AtOnce {
    most: u64,
    /// The running starts: the number of each, its key and weight; and the next number.
    running: Mutex<(Running, u64)>,
}

impl AtOnce {
    fn has_room(&self, running: &HashMap<u64, (String, u64)>, key: &str, weight: u64) -> bool {
        running.values().filter(|start| start.0 == key).map(|start| start.1).sum::<u64>() + weight <= self.most
    }
}

impl Custom for AtOnce {
    fn name(&self) -> &str {
        "custom"
    }

    fn decide(&self, key: &str, weight: u64) -> Result<Verdict> {
        let (running, next) = &mut *self.running.lock().unwrap();
        if !self.has_room(running, key, weight) {
            return Ok(Verdict::Denied(Duration::from_millis(10)));
        }
        *next += 1;
        running.insert(*next, (key.to_owned(), weight));
        Ok(Verdict::Admitted(*next))
    }

    fn peek(&self, key: &str, weight: u64) -> Result<Verdict> {
        Ok(match self.has_room(&self.running.lock().unwrap().0, key, weight) {
            true => Verdict::Admitted(0),
            false => Verdict::Denied(Duration::from_millis(10)),
        })
    }

    fn end(&self, start: u64, _: End) -> Result<()> {
        self.running.lock().unwrap().0.remove(&start);
        Ok(())
    }
}

/// The charges of a joint start: `PART:WEIGHT:KEY,…`, with `-` for those of the start.
fn charges(text: &str) -> Vec<Charge<'_>> {
    text.split(',').map(charge).collect()
}

fn charge(text: &str) -> Charge<'_> {
    let words: Vec<&str> = text.split(':').collect();
    let &[part, weight, key] = words.as_slice() else { panic!("no charge {text}") };
    let given = |word| if word == "-" { None } else { Some(word) };
    Charge { part, key: given(key), weight: given(weight).map(|weight| weight.parse().unwrap()) }
}

/// The answer of a call, as the fields that a vector can name.
type Answer = HashMap<&'static str, String>;

fn number(n: u64) -> String {
    if n == u64::MAX { "inf".into() } else { n.to_string() }
}

fn answer_of(decision: &Decision) -> Answer {
    let us = |d: Duration| number(d.as_micros() as u64);
    HashMap::from([
        ("", if decision.admitted { "admitted" } else { "denied" }.to_owned()),
        ("retry", us(decision.retry_after)),
        ("suggested", us(decision.suggested_after)),
        ("reset", us(decision.reset_after)),
        ("remaining", number(decision.remaining)),
        ("limit", number(decision.limit)),
        ("by", decision.denied_by.as_deref().unwrap_or("none").replace(' ', "_")),
    ])
}

fn run(case: &Case, url: &str) -> usize {
    let clock = ManualClock::new();
    let (store, limiter, children) = limiter(case, url, &clock);
    let mut permits: HashMap<String, RawPermit> = HashMap::new();
    for (line, step) in &case.steps {
        let (call, wanted) = step.split_once("=>").unwrap_or((step, ""));
        let mut words = call.split_whitespace();
        let at = Duration::from_micros(words.next().unwrap().parse().unwrap());
        clock.advance(at.checked_sub(clock.now()).expect("times only grow"));
        let name = words.next().unwrap();
        let arguments: HashMap<&str, &str> = words.map(|w| w.split_once('=').unwrap()).collect();
        let own = arguments.get("key").copied().unwrap_or("");
        let joint = arguments.get("charges").map(|text| limiter.joint(own, &charges(text)));
        let key = match &joint {
            Some(Ok(joint)) => joint,
            _ => own,
        };
        let of = arguments.get("of").copied().unwrap_or("limit-1");
        let weight = arguments.get("weight").map_or(1, |w| w.parse().unwrap());
        let span = || Duration::from_micros(arguments["for"].parse().unwrap());
        let mut taken = None;
        let word = |word: &str| Answer::from([("", word.to_owned())]);
        let answer: Result<Answer> = (|| {
            if let Some(Err(error)) = &joint {
                return Err(error.clone());
            }
            Ok(match name {
                "decide" => {
                    let decision = limiter.decide(key, weight)?;
                    taken = decision.permit;
                    answer_of(&decision)
                }
                "peek" => answer_of(&limiter.peek(key, weight)?),
                "try_acquire" => match limiter.attempt(key, weight)? {
                    Attempt::Admitted(permit) => {
                        taken = Some(permit);
                        word("admitted")
                    }
                    Attempt::Denied(_) => word("denied"),
                },
                "acquire" => {
                    let grace = arguments.get("grace").map_or(0, |us| us.parse().unwrap());
                    let waiter = Waiter::new(key, weight).timeout(Some(span())).grace(Duration::from_micros(grace));
                    match Seat::new(waiter).step(&*limiter)? {
                        Step::Admitted(permit) => {
                            taken = Some(permit);
                            word("admitted")
                        }
                        Step::Expired(_) => word("expired"),
                        Step::Sleep(nap) => word(&format!("sleep {nap:?}")),
                    }
                }
                "can_proceed" => word(if limiter.can_proceed(key)? { "yes" } else { "no" }),
                "next_available" => {
                    let at = limiter.next_available_time(key)?;
                    let after = at.duration_since(SystemTime::now()).unwrap_or_default();
                    Answer::from([("next", after.as_micros().to_string())])
                }
                "reserve" => {
                    let grace = arguments.get("grace").map(|us| Duration::from_micros(us.parse().unwrap()));
                    let max_wait = arguments.get("for").map(|_| span());
                    let (answer, after) = match limiter.reserve(key, weight, max_wait, grace)? {
                        Reserved::Place { place, after } => {
                            taken = Some(place);
                            ("place", after)
                        }
                        Reserved::Denied(after) => ("denied", after),
                    };
                    Answer::from([("", answer.to_owned()), ("after", after.as_micros().to_string())])
                }
                "present" => {
                    let label = arguments["permit"];
                    let (answer, place, after) = match limiter.present(&permits[label])? {
                        Presented::Started(permit) => ("started", permit, Duration::ZERO),
                        Presented::Wait { place, after } => ("wait", place, after),
                    };
                    permits.insert(label.to_owned(), place);
                    taken = Some(place);
                    Answer::from([("", answer.to_owned()), ("after", after.as_micros().to_string())])
                }
                "cancel" => limiter.cancel(&permits[arguments["permit"]]).map(|()| Answer::new())?,
                "settle" if arguments.contains_key("parts") => {
                    let parts = arguments["parts"].split(',').map(|part| part.split_once(':').unwrap());
                    let parts: Vec<_> = parts.map(|(part, units)| (part, units.parse().unwrap())).collect();
                    limiter.settle_parts(&permits[arguments["permit"]], &parts).map(|()| Answer::new())?
                }
                "settle" => {
                    let actual = arguments["actual"].parse().unwrap();
                    limiter.settle(&permits[arguments["permit"]], actual).map(|()| Answer::new())?
                }
                "renew" => limiter.renew(&permits[arguments["permit"]]).map(|()| Answer::new())?,
                "arrived" => limiter.arrived(&permits[arguments["permit"]]).map(|()| Answer::new())?,
                "stats" => {
                    let stats = limiter.stats(key)?;
                    Answer::from([
                        ("admitted", stats.admitted.to_string()),
                        ("denied", stats.denied.to_string()),
                        ("wanted", stats.units_wanted.to_string()),
                        ("granted", stats.units_granted.to_string()),
                        ("waited", stats.waited.to_string()),
                        ("cancelled", stats.cancelled.to_string()),
                    ])
                }
                "complete" => limiter.complete(&permits[arguments["permit"]]).map(|()| Answer::new())?,
                "record_job_start" => limiter.record_job_start(key).map(|()| Answer::new())?,
                "record_job_completion" => limiter.record_job_completion(key).map(|()| Answer::new())?,
                "clear" => limiter.clear(key).map(|()| Answer::new())?,
                "override" => {
                    let policy = arguments["policy"].replace('_', " ");
                    match arguments.get("key") {
                        None => store.override_limit(of, &policy, None)?,
                        Some(key) => store.override_limit(of, &policy, Some(key))?,
                    }
                    Answer::new()
                }
                "lift" => {
                    arguments.get("key").map_or_else(|| store.lift(of, None), |key| store.lift(of, Some(key)))?;
                    Answer::new()
                }
                "pause" => {
                    let paused = match arguments.get("of").and_then(|of| of.strip_prefix("limit-")) {
                        Some(number) => &children[number.parse::<usize>().unwrap() - 1],
                        None => &limiter,
                    };
                    paused.pause(span(), key).map(|()| Answer::new())?
                }
                other => panic!("line {line}: no call {other}"),
            })
        })();
        if let (Some(label), Some(permit)) = (arguments.get("as"), taken) {
            permits.insert((*label).to_owned(), permit);
        }
        let mut answer = answer.unwrap_or_else(|e| Answer::from([("error", e.name().to_owned())]));
        let chosen = taken.and_then(|permit| limiter.chosen(&permit));
        answer.extend(chosen.map(|(index, _)| ("chosen", index.to_string())));
        let mut wanted = wanted.split_whitespace().map(|w| w.split_once('=').unwrap_or(("", w))).peekable();
        let expects_error = wanted.peek().is_some_and(|(field, _)| *field == "error");
        assert!(expects_error || !answer.contains_key("error"), "{}, line {line}: {answer:?}", case.name);
        for (field, value) in wanted {
            if let Some(next) = answer.get("next") {
                // The wall clock advances between the call and the comparison.
                let (next, value) = (next.parse::<i64>().unwrap(), value.parse::<i64>().unwrap());
                assert!((next - value).abs() < 2_000_000, "{}, line {line}: {next} µs, not {value}", case.name);
                continue;
            }
            let got = answer.get(field).map(String::as_str);
            assert_eq!(got, Some(value), "{}, line {line}: {step}\n{answer:?}", case.name);
        }
    }
    case.steps.len()
}

/// Writes which limiters ran on which store, and how often, to the directory in `WGL_CELLS`, if it is set.
fn report(cells: &BTreeMap<(String, &str), usize>) {
    let Some(dir) = std::env::var_os("WGL_CELLS") else { return };
    let lines: String = cells.iter().map(|((kind, store), cases)| format!("{kind} {store} {cases}\n")).collect();
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(Path::new(&dir).join("rust"), lines).unwrap();
}

#[test]
fn every_vector_on_every_store() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("vectors-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
    let mut files: Vec<_> = std::fs::read_dir(vectors).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "vec"));
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    let mut cells = BTreeMap::new();
    let servers: Vec<Server> = Server::each("vectors").collect();
    for file in files {
        let (mut ran, mut steps) = (0, 0);
        for case in cases(&file) {
            let path = dir.join(format!("{ran}.db"));
            let stores = [("memory", "memory:".to_owned()), ("sqlite", format!("sqlite:{}", path.display()))];
            for (store, url) in stores {
                steps += run(&case, &url);
                *cells.entry((case.kind(), store)).or_default() += 1;
            }
            for server in &servers {
                server.forget_all();
                steps += run(&case, &server.url());
                *cells.entry((case.kind(), server.kind())).or_default() += 1;
            }
            ran += 1;
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_file(path.with_extension("db-lane"));
        }
        println!("{}: {ran} cases, {steps} steps", file.file_name().unwrap().to_string_lossy());
        assert!(ran > 0);
    }
    report(&cells);
    std::fs::remove_dir_all(dir).unwrap();
}
