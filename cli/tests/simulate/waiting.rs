//! Callers that wait: agreement with `acquire`.

use crate::{Entry, random, verdicts};
use std::time::Duration;
use workglow_limit::embed::{Seat, Step, Waiter};
use workglow_limit::*;

/// The starts of waiters that are stepped at the times that they ask for.
fn waiters(policy: &str, lines: &[Entry], timeout: Option<Duration>) -> Vec<(String, u64)> {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = store.limiter("policy", policy).unwrap();
    let mut outcomes: Vec<Option<(String, u64)>> = vec![None; lines.len()];
    // The waiters, each with the time of its next step.
    let mut seats: Vec<(usize, Seat, u64)> = Vec::new();
    let mut next = 0;
    while next < lines.len() || !seats.is_empty() {
        let arrival = lines.get(next).map(|line| line.at);
        let wake = seats.iter().map(|(.., wake)| *wake).min();
        let now = arrival.into_iter().chain(wake).min().unwrap();
        clock.advance(Duration::from_micros(now).saturating_sub(clock.now()));
        if wake.is_none_or(|wake| wake > now) {
            let Entry { key, weight, .. } = &lines[next];
            seats.push((next, Seat::new(Waiter::new(key, *weight).timeout(timeout)), now));
            next += 1;
        }
        // A step can release what another waiter needs, so all are stepped.
        let mut i = 0;
        while i < seats.len() {
            let (line, seat, wake) = &mut seats[i];
            let at = lines[*line].at;
            let outcome = match seat.step(&*limiter).unwrap() {
                Step::Sleep(nap) => {
                    *wake = now + nap.as_micros() as u64;
                    i += 1;
                    continue;
                }
                Step::Admitted(permit) => {
                    limiter.complete(&permit).unwrap();
                    ("admitted".to_owned(), now - at)
                }
                Step::Expired(_) => ("denied".to_owned(), now - at),
            };
            outcomes[*line] = Some(outcome);
            seats.remove(i);
            i = 0;
        }
    }
    outcomes.into_iter().map(Option::unwrap).collect()
}

#[test]
fn waiters_start_at_the_times_of_acquire() {
    for policy in ["5/1s", "10/1s burst 3", "3/1s queue 4", "4/1s fixed", "2/100ms + 5/1s", "delay 70ms"] {
        for (seed, timeout) in [(1, None), (2, Some(Duration::from_millis(700)))] {
            let lines: Vec<Entry> = random(seed, 80, 1).into_iter().map(|line| Entry { lasts: None, ..line }).collect();
            let wait = timeout.map_or("--wait".to_owned(), |timeout| format!("--wait={}ms", timeout.as_millis()));
            let got = verdicts(policy, &lines, &[&wait]);
            let wanted = waiters(policy, &lines, timeout);
            for (i, ((verdict, after), (wanted, wait))) in got.iter().zip(&wanted).enumerate() {
                assert_eq!(verdict, wanted, "{policy}, {timeout:?}, line {i}: {:?}", lines[i]);
                if verdict == "admitted" {
                    assert_eq!(*after, Some(*wait), "{policy}, {timeout:?}, line {i}: {:?}", lines[i]);
                }
            }
            assert!(got.iter().any(|(_, after)| *after > Some(0)));
        }
    }
}

#[test]
fn waiters_for_a_running_job_start_at_its_end() {
    let job = |at| Entry { lasts: Some(1_000_000), ..Entry::at(at) };
    let lines = [job(0), job(0), job(100_000), job(200_000), job(300_000), job(5_000_000)];
    let started: Vec<_> = verdicts("2 concurrent", &lines, &["--wait"]).into_iter().map(|(_, after)| after).collect();
    assert_eq!(started, [0, 0, 900_000, 800_000, 1_700_000, 0].map(Some));
    // Also after jobs of zero duration.
    let lines = [
        job(0),
        job(0),
        Entry { lasts: Some(0), ..Entry::at(100_000) },
        Entry { lasts: Some(0), ..Entry::at(100_000) },
    ];
    let lines = lines.into_iter().chain([job(200_000), job(300_000)]).collect::<Vec<_>>();
    let started: Vec<_> = verdicts("2 concurrent", &lines, &["--wait"]).into_iter().map(|(_, after)| after).collect();
    assert_eq!(started, [0, 0, 900_000, 900_000, 800_000, 700_000].map(Some));
    let lines = [job(0), job(0), job(100_000), job(200_000), job(300_000), job(5_000_000)];
    let impatient = verdicts("2 concurrent", &lines, &["--wait=850ms"]);
    let names: Vec<&str> = impatient.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["admitted", "admitted", "denied", "admitted", "admitted", "admitted"]);
}

#[test]
fn a_waiter_does_not_hold_up_those_of_other_keys_of_a_part() {
    // Each runs for a second. The slots are shared, and a tenant has one start per 5 s.
    let job = |at: u64, tenant: &str| Entry {
        lasts: Some(1_000_000),
        charges: vec![("tenant".to_owned(), Some(tenant.to_owned()), None)],
        ..Entry::at(at)
    };
    let lines = [job(0, "a"), job(0, "a"), job(0, "b"), job(100_000, "c"), job(200_000, "d"), job(7_000_000, "e")];
    let started = verdicts("tenant: 1/5s + 2 concurrent", &lines, &["--wait"]);
    let started: Vec<_> = started.into_iter().map(|(_, after)| after).collect();
    // The second of `a` waits for its tenant's window. The others need the slots only.
    assert_eq!(started, [0, 5_000_000, 0, 900_000, 800_000, 0].map(Some));
}

#[test]
fn a_waiter_may_need_a_whole_bucket() {
    let heavy = |at| Entry { weight: 1_000, ..Entry::at(at) };
    let started = verdicts("1/1s burst 1000", &[heavy(0), heavy(0)], &["--wait"]);
    assert_eq!(started.into_iter().map(|(_, after)| after).collect::<Vec<_>>(), [0, 1_000_000_000].map(Some));
}
