//! Runs `tests/vectors/*.vec` on every store. The format is in `tests/vectors/README.md`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use workglow_limit::*;

struct Case {
    name: String,
    limiters: Vec<Vec<String>>,
    steps: Vec<(usize, String)>,
}

fn cases(file: &Path) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let text = std::fs::read_to_string(file).unwrap();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap().trim();
        match line.split_once(' ').unwrap_or((line, "")) {
            ("", _) => {}
            ("case", name) => cases.push(Case { name: name.into(), limiters: vec![], steps: vec![] }),
            ("limiter", words) => {
                let words = words.split_whitespace().map(str::to_owned).collect();
                cases.last_mut().unwrap().limiters.push(words);
            }
            _ => cases.last_mut().unwrap().steps.push((number + 1, line.into())),
        }
    }
    cases
}

fn limiter(case: &Case, url: &str, clock: &ManualClock) -> Arc<dyn Limiter> {
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options(url, options).unwrap();
    let one = |(i, words): (usize, &Vec<String>)| -> Arc<dyn Limiter> {
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        match words[0].as_str() {
            "null" => Arc::new(NullLimiter::new()),
            "concurrency" => Arc::new(ConcurrencyLimiter::with_clock(number(1), clock.clone()).unwrap()),
            "rate" => {
                let pair = |at: usize| (number(at), Duration::from_micros(number(at + 1)));
                let windows: Vec<_> = (1..words.len()).step_by(2).map(pair).collect();
                Arc::new(
                    RateLimiter::with_windows(&store, &format!("limit-{}", i + 1), &windows, Default::default())
                        .unwrap(),
                )
            }
            other => panic!("no limiter {other}"),
        }
    };
    let mut children: Vec<_> = case.limiters.iter().enumerate().map(one).collect();
    match children.len() {
        1 => children.remove(0),
        _ => Arc::new(CompositeLimiter::new(children)),
    }
}

/// What a call answered, as the fields that a vector can name.
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
    let limiter = limiter(case, url, &clock);
    let mut permits: HashMap<String, RawPermit> = HashMap::new();
    for (line, step) in &case.steps {
        let (call, wanted) = step.split_once("=>").unwrap_or((step, ""));
        let mut words = call.split_whitespace();
        let at = Duration::from_micros(words.next().unwrap().parse().unwrap());
        clock.advance(at.checked_sub(clock.now()).expect("times only grow"));
        let name = words.next().unwrap();
        let arguments: HashMap<&str, &str> = words.map(|w| w.split_once('=').unwrap()).collect();
        let key = arguments.get("key").copied().unwrap_or("");
        let weight = arguments.get("weight").map_or(1, |w| w.parse().unwrap());
        let span = || Duration::from_micros(arguments["for"].parse().unwrap());
        let mut taken = None;
        let word = |word: &str| Answer::from([("", word.to_owned())]);
        let answer: Result<Answer> = (|| {
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
                "acquire" => match limiter.step(&mut Wait::new(key, weight, Some(span())))? {
                    Step::Admitted(permit) => {
                        taken = Some(permit);
                        word("admitted")
                    }
                    Step::Expired(_) => word("expired"),
                    Step::Sleep(nap) => word(&format!("sleep {nap:?}")),
                },
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
                    Answer::from([("", answer.to_owned()), ("after", after.as_micros().to_string())])
                }
                "cancel" => limiter.cancel(&permits[arguments["permit"]]).map(|()| Answer::new())?,
                "settle" => {
                    let actual = arguments["actual"].parse().unwrap();
                    limiter.settle(&permits[arguments["permit"]], actual).map(|()| Answer::new())?
                }
                "complete" => limiter.complete(&permits[arguments["permit"]]).map(|()| Answer::new())?,
                "record_job_start" => limiter.record_job_start(key).map(|()| Answer::new())?,
                "record_job_completion" => limiter.record_job_completion(key).map(|()| Answer::new())?,
                "clear" => limiter.clear(key).map(|()| Answer::new())?,
                "pause" => limiter.pause(key, span()).map(|()| Answer::new())?,
                other => panic!("line {line}: no call {other}"),
            })
        })();
        if let (Some(label), Some(permit)) = (arguments.get("as"), taken) {
            permits.insert((*label).to_owned(), permit);
        }
        let answer = answer.unwrap_or_else(|e| Answer::from([("error", e.name().to_owned())]));
        let mut wanted = wanted.split_whitespace().map(|w| w.split_once('=').unwrap_or(("", w))).peekable();
        let expects_error = wanted.peek().is_some_and(|(field, _)| *field == "error");
        assert!(expects_error || !answer.contains_key("error"), "{}, line {line}: {answer:?}", case.name);
        for (field, value) in wanted {
            if let Some(next) = answer.get("next") {
                // The wall clock moves on between the call and the comparison.
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

#[test]
fn every_vector_on_every_store() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("vectors-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
    let mut files: Vec<_> = std::fs::read_dir(vectors).unwrap().map(|f| f.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "vec"));
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    for file in files {
        let (mut ran, mut steps) = (0, 0);
        for case in cases(&file) {
            steps += run(&case, "memory:");
            let path = dir.join(format!("{ran}.db"));
            steps += run(&case, &format!("sqlite:{}", path.display()));
            ran += 1;
            let _ = std::fs::remove_file(&path);
            let _ = std::fs::remove_file(path.with_extension("db-lane"));
        }
        println!("{}: {ran} cases, {steps} steps", file.file_name().unwrap().to_string_lossy());
        assert!(ran > 0);
    }
    std::fs::remove_dir_all(dir).unwrap();
}
