//! Random sequences on a key whose ring grows when there is space, compared with the starts that count.

use super::full_of_rings::{HOUR, MIB, crowd, sized, start};
use std::time::Duration;
use workglow_limit::*;

fn drain_at_most(limiter: &dyn Limiter, key: &str, most: u64) -> u64 {
    (0..most).take_while(|_| start(limiter, key, 1).is_some()).count() as u64
}

/// All that may happen to a key in a store that is full now and then. No start exceeds the limit.
#[test]
fn no_start_exceeds_the_limit_of_a_key_that_grows_now_and_then() {
    for seed in 0..40 {
        let mut random = crate::common::Random::seeded(seed);
        let clock = ManualClock::new();
        let store = sized("memory:", MIB, Some(&clock));
        let api = store.limiter("api", "1000/1h").unwrap();
        (0..5).for_each(|_| assert!(start(&*api, "known", 1).is_some()));
        crowd(&store, &*api);
        let minute = 60_000_000u64;
        let (mut now, mut limit, mut window, mut log) = (0, 1_000, 60 * minute, Vec::new());
        let mut starts: Vec<(u64, u64)> = vec![(0, 5)];
        let mut permits: Vec<(usize, u64, RawPermit)> = Vec::new();
        let mut places: Vec<RawPermit> = Vec::new();
        for step in 0..600 {
            let used = |starts: &[(u64, u64)]| {
                starts.iter().filter(|start| start.0 + window > now).map(|start| start.1).sum::<u64>()
            };
            match random.below(100) {
                0..50 => {
                    let weight = 1 + random.scaled(20).min(limit - 1);
                    let before = used(&starts);
                    if let Some(permit) = start(&*api, "known", weight) {
                        log.push(format!("{step}: start of {weight}, {before} before"));
                        assert!(
                            before + weight <= limit,
                            "seed {seed}: {before} + {weight} of {limit}\n{}",
                            log.join("\n")
                        );
                        permits.push((starts.len(), weight, permit));
                        starts.push((now, weight));
                    }
                }
                50..62 => {
                    let count = 1 + random.scaled(40);
                    let count = (0..count).filter(|_| api.record_job_start("known").is_ok()).count() as u64;
                    starts.push((now, count));
                    log.push(format!("{step}: {count} recorded"));
                }
                62..70 if !permits.is_empty() => {
                    let (i, _, permit) = permits.swap_remove(random.below(permits.len() as u64) as usize);
                    api.cancel(&permit).unwrap();
                    starts[i].1 = 0;
                    log.push(format!("{step}: cancelled {i}"));
                }
                70..76 if !permits.is_empty() => {
                    let (i, weight, permit) = permits.swap_remove(random.below(permits.len() as u64) as usize);
                    let (debt, seen) = (random.scaled(100), api.peek("known", 1).unwrap().remaining);
                    api.settle(&permit, weight + debt).unwrap();
                    // (A start without identity is another test's.)
                    let is_owed = api.peek("known", 1).unwrap().remaining < seen;
                    starts.push((now, if is_owed { debt.min(limit) } else { 0 }));
                    log.push(format!("{step}: settled {i} with {debt} more"));
                }
                76..80 => {
                    if let Ok(Reserved::Place { place, .. }) = api.reserve("known", 1, Some(2 * HOUR), None) {
                        places.push(place);
                    }
                }
                80..84 if !places.is_empty() => {
                    let place = places.swap_remove(random.below(places.len() as u64) as usize);
                    let before = used(&starts);
                    if let Ok(Presented::Started(_)) = api.present(&place) {
                        log.push(format!("{step}: place, {before} before"));
                        starts.push((now, 1));
                    }
                }
                84..88 => {
                    let next = [60, 200, 1_000][random.below(3) as usize];
                    let minutes = [20, 60, 60, 60, 240][random.below(5) as usize];
                    if store.override_limit("api", &format!("{next}/{minutes}m"), None).is_ok() {
                        (limit, window) = (next, minutes * minute);
                        log.push(format!("{step}: limit {limit}/{minutes}m"));
                    }
                }
                88..90 => {
                    let strangers = store.limiter("strangers", "1000/12h").unwrap();
                    (0..2_000).take_while(|key| 0 < drain_at_most(&*strangers, &format!("small {key}"), 1_000)).count();
                    log.push(format!("{step}: strangers"));
                }
                90..92 => {
                    // (In a store of 1 MiB, the words of many changes can use up what is reserved.)
                    let _ = store.find("strangers").unwrap().clear("");
                    log.push(format!("{step}: no strangers"));
                }
                _ => {
                    let passed = random.scaled(1_500_000_000);
                    now += passed;
                    clock.advance(Duration::from_micros(passed));
                    log.push(format!("{step}: {} s", passed / 1_000_000));
                }
            }
            let now_used = starts.iter().filter(|start| start.0 + window > now).map(|start| start.1).sum::<u64>();
            let left = api.peek("known", 1).unwrap().remaining;
            assert!(
                left <= limit.saturating_sub(now_used),
                "seed {seed}: {left} left, {now_used} of {limit}\n{}",
                log.join("\n")
            );
            // An idle key may be forgotten.
            if starts.iter().all(|start| start.1 == 0 || start.0 + window <= now) {
                starts.iter_mut().for_each(|start| start.1 = 0);
            }
        }
    }
}
