//! Callers that do not wait: agreement with the test vectors, and with a limit in real time.

use crate::common::Dir;
use crate::{Entry, PartCharge, verdicts};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::time::Duration;
use workglow_limit::Store;

/// The policy text of a limiter in the vectors, if there is one.
fn policy(words: &[&str]) -> Option<String> {
    Some(match words {
        ["rate", windows @ ..] => {
            let windows = windows.split(|word| *word == "backoff").next()?;
            windows.chunks(2).map(|window| format!("{}/{}us", window[0], window[1])).collect::<Vec<_>>().join(" + ")
        }
        ["concurrency", max] => format!("{max} concurrent"),
        ["concurrency", max, lease] => format!("{max} concurrent lease {lease}us"),
        ["delay", us] => format!("delay {us}us"),
        ["evenly_spaced", max, us, "adaptive"] => format!("{max}/{us}us spaced"),
        ["evenly_spaced", max, us, "strict"] => format!("{max}/{us}us spaced strictly"),
        ["token_bucket", rate, us, burst] => format!("{rate}/{us}us burst {burst}"),
        ["leaky_bucket", rate, us, queue] => format!("{rate}/{us}us queue {queue}"),
        ["fixed_window", max, us] => format!("{max}/{us}us fixed"),
        ["sliding_window_counter", max, us] => format!("{max}/{us}us counter"),
        ["policy", text @ ..] => text.join(" "),
        _ => return None,
    })
}

/// A case of the vectors, as far as a trace can express it.
#[derive(Default)]
struct Case {
    name: String,
    policies: Vec<Option<String>>,
    lines: Vec<Entry>,
    /// The expected verdict of each line, and the `retry` time if it is given.
    wanted: Vec<(String, Option<u64>)>,
    /// The lines of permits by their names.
    named: HashMap<String, usize>,
    is_over: bool,
}

impl Case {
    fn step(&mut self, line: &str) {
        let (call, wanted) = line.split_once("=>").unwrap_or((line, ""));
        let mut words = call.split_whitespace();
        let at: u64 = words.next().unwrap().parse().unwrap();
        let call = words.next().unwrap();
        let arguments: HashMap<&str, &str> = words.filter_map(|word| word.split_once('=')).collect();
        let answer = wanted.split_whitespace().next().unwrap_or("");
        let fields: HashMap<&str, &str> = wanted.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        match call {
            // These record nothing. A line with an invalid weight is left out, too.
            "peek" | "can_proceed" | "next_available" | "stats" => {}
            _ if answer == "error=invalid_argument" => {}
            "decide" | "try_acquire" | "acquire" => {
                if let Some(name) = arguments.get("as") {
                    self.named.insert((*name).to_owned(), self.lines.len());
                }
                let key = arguments.get("key").copied().unwrap_or("").to_owned();
                let weight = arguments.get("weight").map_or(1, |weight| weight.parse().unwrap());
                let charges = arguments.get("charges").map_or(Vec::new(), |text| charges(text));
                self.lines.push(Entry { at, key, weight, lasts: None, charges });
                let verdict = match answer {
                    "admitted" => "admitted",
                    "denied" | "expired" => "denied",
                    "error=weight_exceeds_capacity" => "too_heavy",
                    other => panic!("{}: {line}: {other}", self.name),
                };
                self.wanted.push((verdict.to_owned(), fields.get("retry").map(|us| us.parse().unwrap())));
            }
            "complete" => {
                let line = &mut self.lines[self.named[arguments["permit"]]];
                line.lasts.get_or_insert(at - line.at);
                // In a trace, jobs end before requests at the same time.
                if self.lines.last().unwrap().at == at {
                    let left = self.lines.iter().filter(|line| line.at < at).count();
                    self.lines.truncate(left);
                    self.wanted.truncate(left);
                    self.is_over = true;
                }
            }
            _ => self.is_over = true,
        }
    }
}

/// `PART:WEIGHT:KEY,…`, with `-` for what is the start's own.
fn charges(text: &str) -> Vec<PartCharge> {
    let own = |text: &str| Some(text.to_owned()).filter(|text| text != "-");
    let one = |charge: &str| {
        let [part, weight, key] = charge.split(':').collect::<Vec<_>>().try_into().unwrap();
        (part.to_owned(), own(key), own(weight).map(|weight| weight.parse().unwrap()))
    };
    text.split(',').map(one).collect()
}

fn cases(text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap().trim();
        match line.split_once(' ').unwrap_or((line, "")) {
            ("", _) => {}
            ("case", name) => cases.push(Case { name: name.to_owned(), ..Case::default() }),
            ("limiter", rest) => {
                let words: Vec<&str> = rest.split_whitespace().collect();
                cases.last_mut().unwrap().policies.push(policy(&words));
            }
            // No text says alternatives.
            ("first_of", _) => cases.last_mut().unwrap().policies.push(None),
            _ => {
                let case = cases.last_mut().unwrap();
                if !case.is_over {
                    case.step(line);
                }
            }
        }
    }
    cases
}

/// The text of a limit of all of these; several are called as in the vectors.
fn composite(mut policies: Vec<String>) -> String {
    if policies.len() > 1 {
        for (i, policy) in policies.iter_mut().enumerate() {
            let name = format!("limit-{}: ", i + 1);
            *policy = format!("{name}{}", policy.replace(" + ", &format!(" + {name}")));
        }
    }
    policies.join(" + ")
}

#[test]
fn verdicts_agree_with_the_vectors() {
    let vectors = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors");
    let mut compared = BTreeMap::new();
    for file in std::fs::read_dir(vectors).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_none_or(|extension| extension != "vec") {
            continue;
        }
        for mut case in cases(&std::fs::read_to_string(&file).unwrap()) {
            let policies: Option<Vec<String>> = case.policies.drain(..).collect();
            let Some(policies) = policies else { continue };
            if case.lines.is_empty() {
                continue;
            }
            // A start without an end runs until the end of the trace.
            case.lines.iter_mut().for_each(|line| _ = line.lasts.get_or_insert(1_000_000_000_000_000));
            let got = verdicts(&composite(policies), &case.lines, &[]);
            for (i, (got, wanted)) in got.iter().zip(&case.wanted).enumerate() {
                let shown = || format!("{}, line {i} of {:?}", case.name, case.lines);
                assert_eq!(got.0, wanted.0, "{}", shown());
                if let (Some(retry), "denied") = (wanted.1, got.0.as_str()) {
                    assert_eq!(got.1, Some(retry), "{}", shown());
                }
            }
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            *compared.entry(name).or_insert(0) += got.len();
        }
    }
    println!("{compared:?}");
    for kind in ["rate", "fixed_window", "sliding_window_counter", "token_bucket", "leaky_bucket", "delay", "joint"] {
        assert!(compared.get(kind).is_some_and(|lines| *lines >= 4), "{kind}: {compared:?}");
    }
    for kind in ["evenly_spaced", "concurrency", "composite", "policy", "keyed"] {
        assert!(compared.contains_key(kind), "{kind}: {compared:?}");
    }
}

/// Compares with a limit in real time, with exact times: a permit has the time of its start, and a denial's time follows from the start
/// that it has to wait for. So the comparison does not depend on the load of the machine.
#[test]
fn verdicts_agree_with_a_limit_in_real_time() {
    const MOST: usize = 5;
    const WINDOW: u64 = 200_000;
    let dir = Dir::new("simulate-real");
    let store = Store::new(&dir.url()).unwrap();
    let limiter = store.limiter("api", "5/200ms").unwrap();
    let mut starts: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    let mut answers: Vec<(u64, &str, bool, u64)> = Vec::new();
    let mut chance = 1u64;
    // Repeated until there are denials: on a busy machine there may be none.
    while answers.len() < 120 || answers.iter().all(|(.., is_admitted, _)| *is_admitted) {
        chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis(1 + (chance >> 60)));
        let key = if chance >> 59 & 3 == 0 { "b" } else { "a" };
        let of_key = starts.entry(key).or_default();
        let decision = limiter.decide(key, 1).unwrap();
        let after = decision.retry_after.as_micros() as u64;
        match decision.permit {
            // The time of a start, in microseconds of the store's clock.
            Some(permit) => {
                of_key.push(permit.to_words()[3]);
                answers.push((of_key[of_key.len() - 1], key, true, 0));
            }
            None => answers.push((of_key[of_key.len() - MOST] + WINDOW - after, key, false, after)),
        }
    }
    let first = answers[0].0;
    let lines: Vec<Entry> =
        answers.iter().map(|(at, key, ..)| Entry { key: (*key).to_owned(), ..Entry::at(at - first) }).collect();
    let got = verdicts("5/200ms", &lines, &[]);
    let wanted: Vec<_> = answers
        .iter()
        .map(|(.., admitted, after)| (if *admitted { "admitted" } else { "denied" }.to_owned(), Some(*after)))
        .collect();
    assert_eq!(got, wanted);
}
