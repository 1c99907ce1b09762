//! Whatever happens to a key, in whatever order: what is free is never more than its limit less the units that count.
//!
//! Unlike the references, this knows no answer exactly. So it needs to avoid nothing: the policies change between all that their
//! stores keep differently, permits of all of them end at any time, and keys are cleared, with permits in flight.
//!
//! `CASES=…` sets the number of sequences, `SEED=…` the first of them.

use crate::common::server::Server;
use crate::common::{Random, number};
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Policies of one kind, with these windows, in minutes. The numbers of all but the first are their limits.
struct Kind {
    windows: &'static [u32],
    is_aligned: bool,
    policies: &'static [(&'static str, &'static [u64])],
}

const KINDS: [Kind; 3] = [
    Kind {
        windows: &[60],
        is_aligned: false,
        // Above 4,096 units are only counted.
        policies: &[
            ("5000/1h", &[5_000]),
            ("200/1h", &[200]),
            ("9000/1h", &[9_000]),
            ("20/1h", &[20]),
            ("4000/1h", &[4_000]),
            ("1000/1h", &[1_000]),
        ],
    },
    Kind {
        windows: &[60, 10],
        is_aligned: false,
        policies: &[
            ("500/1h + 50/10m", &[500, 50]),
            ("100/1h + 80/10m", &[100, 80]),
            ("20/1h + 5/10m", &[20, 5]),
            ("4000/1h + 3000/10m", &[4_000, 3_000]),
        ],
    },
    Kind {
        windows: &[60],
        is_aligned: true,
        policies: &[("5000/1h fixed", &[5_000]), ("200/1h fixed", &[200]), ("20/1h fixed", &[20])],
    },
];

/// A permit, with the limiter that it is of.
type Held = (RawPermit, Arc<dyn Limiter>);

/// A start, or the debt of one.
struct Start {
    /// Until it ends.
    permit: Option<Held>,
    minute: u32,
    units: u64,
    is_cleared: bool,
}

fn run(url: &str, kind: &Kind, seed: u64) {
    let mut random = Random::seeded(seed);
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options(url, options).unwrap();
    let key = random.pick(&["", "key"]);
    // Not at the beginning of the clock, and not of a window.
    let mut minute = random.below(90) as u32;
    clock.advance(MINUTE * minute);
    let (mut plan, mut policy) = (None, random.pick(kind.policies));
    let declare = |text: &str| {
        let limiter = store.limiter("api", text).unwrap();
        limiter.open().unwrap();
        limiter
    };
    let mut limiter = declare(policy.0);
    let mut said = vec![policy.0.to_owned()];
    let (mut starts, mut places): (Vec<Start>, Vec<(Held, u64)>) = (Vec::new(), Vec::new());
    for _ in 0..24 {
        let limits = plan.unwrap_or(policy).1;
        match random.below(14) {
            0..5 => {
                let most = limits.iter().copied().min().unwrap();
                let weight = 1 + random.below(most.min(700));
                let start = |permit| Start {
                    permit: Some((permit, limiter.clone())),
                    minute,
                    units: weight,
                    is_cleared: false,
                };
                if random.chance(80) {
                    if let Attempt::Admitted(permit) = limiter.attempt(key, weight).unwrap() {
                        said.push(format!("{}: start {weight}", starts.len()));
                        starts.push(start(permit));
                    }
                // (A window of the clock that held more than its present limit is forgotten when places are two windows ahead.)
                } else if !kind.is_aligned
                    && let Ok(Reserved::Place { place, .. }) = limiter.reserve(key, weight, None, Some(MINUTE))
                {
                    said.push(format!("reserve {weight}"));
                    places.push(((place, limiter.clone()), weight));
                }
            }
            5 | 6 => {
                let wait = random.below(40) as u32;
                clock.advance(MINUTE * wait);
                minute += wait;
                said.push(format!("wait {wait}"));
            }
            7 | 8 => {
                policy = random.pick(kind.policies);
                limiter = declare(policy.0);
                said.push(policy.0.to_owned());
            }
            9 => {
                plan = random.chance(60).then(|| random.pick(kind.policies));
                match plan {
                    Some((text, _)) if !key.is_empty() => store.override_limit("api", text, Some(key)).unwrap(),
                    _ if key.is_empty() => plan = None,
                    _ => store.lift("api", Some(key)).unwrap(),
                }
                said.push(format!("{key:?} has {plan:?}"));
            }
            10 if random.chance(30) => {
                limiter.clear(random.pick(&["", key])).unwrap();
                for start in &mut starts {
                    start.is_cleared = true;
                    // (A key that was cleared and then forgotten may get their numbers again. The empty key is not forgotten.)
                    start.permit = start.permit.take().filter(|_| key.is_empty());
                }
                said.push("clear".to_owned());
            }
            11 => {
                let Some(at) = random.index(places.len()) else { continue };
                let ((place, of), weight) = places.swap_remove(at);
                if random.chance(30) {
                    of.cancel_place(&place).unwrap();
                    said.push(format!("cancel a place of {weight}"));
                    continue;
                }
                match of.present(&place) {
                    Ok(Presented::Started(permit)) => {
                        said.push(format!("{}: present a place of {weight}", starts.len()));
                        starts.push(Start { permit: Some((permit, of)), minute, units: weight, is_cleared: false });
                    }
                    Ok(Presented::Wait { place, .. }) => places.push(((place, of), weight)),
                    // By the present policy it is too heavy.
                    Err(Error::WeightExceedsCapacity { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            _ => {
                let Some(at) = random.index(starts.len()) else { continue };
                let Start { units, is_cleared, .. } = starts[at];
                let Some((permit, of)) = starts[at].permit.take() else { continue };
                let actual = random.below(2) * random.below(2 * units.max(1));
                if actual == 0 { of.cancel(&permit) } else { of.settle(&permit, actual) }.unwrap();
                said.push(format!("of {at}: {actual}"));
                starts[at].units = actual.min(units);
                // A debt is at most a whole limit, and none where the start was cleared.
                let most = limits.iter().copied().min().unwrap();
                let debt = actual.saturating_sub(units).min(most);
                starts.push(Start { permit: None, minute, units: debt, is_cleared });
            }
        }
        let free = limiter.peek(key, 0).unwrap().remaining;
        for (limit, window) in plan.unwrap_or(policy).1.iter().zip(kind.windows) {
            let counts = |start: &&Start| match kind.is_aligned {
                true => start.minute / window == minute / window,
                false => minute < start.minute + window,
            };
            let counting: u64 =
                starts.iter().filter(|start| !start.is_cleared).filter(counts).map(|start| start.units).sum();
            let most = limit.saturating_sub(counting);
            assert!(free <= most, "seed {seed}, {url}, {key:?}: {free} free, not at most {most}: {said:?}");
        }
    }
}

#[test]
fn nothing_is_over_the_limit_in_any_order() {
    let (cases, seed) = (number("CASES", 900), number("SEED", 0));
    for case in seed..seed + cases {
        run("memory:", &KINDS[case as usize % KINDS.len()], case);
    }
    // (Windows of a server's clock do not begin with those of a clock that stands still.)
    let kinds: Vec<_> = KINDS.iter().filter(|kind| !kind.is_aligned).collect();
    for server in Server::each("never-over") {
        for case in seed..seed + cases / 20 {
            server.forget_all();
            run(&server.url(), kinds[case as usize % kinds.len()], case);
        }
    }
}
