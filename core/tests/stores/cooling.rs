//! Units that cool down after the end of their start: whatever dies, none is free too early.

use crate::common::{Child, Dir, Random, now_ns, number, shared};
#[cfg(feature = "fault-points")]
use crate::common::{present_boot, raise};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};
use workglow_limit::*;

#[cfg(feature = "fault-points")]
const LONG: Duration = Duration::from_secs(300 * 86_400);

fn cooling(url: &str, max: u64, cooldown: Duration) -> Arc<dyn Limiter> {
    let policy = Policy::concurrency(max).unwrap().with_cooldown(cooldown).unwrap();
    Store::new(url).unwrap().limiter("api", &policy.to_string()).unwrap()
}

fn take(limiter: &dyn Limiter) -> Option<RawPermit> {
    match limiter.attempt("", 1).unwrap() {
        Attempt::Admitted(permit) => Some(permit),
        Attempt::Denied(_) => None,
    }
}

#[cfg(feature = "fault-points")]
fn free(limiter: &dyn Limiter) -> usize {
    (0..9).filter(|_| take(limiter).is_some()).count()
}

/// A process that dies with a start, or in the middle of its end, has used its unit: for a cooldown from then on.
#[cfg(feature = "fault-points")]
#[test]
fn a_holder_killed_at_any_point_counts_for_its_cooldown() {
    for &point in fault::LEASING {
        let dir = Dir::in_memory(&format!("cooling-{point}"));
        let mine = cooling(&dir.url(), 3, LONG);
        mine.open().unwrap();
        let victim = Child::run(|| {
            let limiter = cooling(&dir.url(), 3, LONG);
            limiter.open().unwrap();
            fault::at(point, || raise(libc::SIGKILL));
            let permit = take(&*limiter).unwrap();
            limiter.complete(&permit).unwrap();
        });
        assert!(victim.was_killed(), "no process passes {point}");
        let free = free(&*mine);
        match point {
            "lease-claimed" | "lease-offered" => assert_eq!(free, 3, "it never started: {point}"),
            // It counts as held and as cooling; its owner's death begins another cooldown.
            "lease-cooling" => assert_eq!(free, 1),
            _ => assert_eq!(free, 2, "{point}"),
        }
    }
}

/// No ledger has the ends of starts. So what ended before a boot, or in a lane that is lost, counts as if it ended then.
#[cfg(feature = "fault-points")]
#[test]
fn units_that_cooled_down_before_a_boot_are_not_free_after_it() {
    for (is_lost, cooldown, expected) in [(false, LONG, 0), (true, LONG, 0), (false, Duration::from_micros(1), 2)] {
        let (dir, seen) = (Dir::new("cooling-boot"), shared(1));
        let work = |boot, f: &dyn Fn(&dyn Limiter)| {
            let child = Child::run(|| {
                present_boot(boot);
                f(&*cooling(&dir.url(), 2, cooldown));
            });
            child.join();
        };
        work(1, &|limiter| {
            let permit = take(limiter).unwrap();
            limiter.complete(&permit).unwrap();
        });
        if is_lost {
            let lane = dir.names().into_iter().find(|name| name.contains("lane")).expect("a lane");
            std::fs::remove_file(dir.file(&lane)).unwrap();
        }
        work(if is_lost { 1 } else { 2 }, &|limiter| seen[0].store(free(limiter) as u64, Relaxed));
        assert_eq!(seen[0].load(Relaxed), expected, "lost: {is_lost}, {cooldown:?}");
    }
}

/// A record of a start: before the call that admitted it, after it, and before its end (0: it has not ended).
const WORDS: usize = 3;

/// Processes start and end while they are killed. Somebody else counts each start at any one moment between its beginning
/// and its end. Whichever moments these are, no rolling window has more than the limit.
#[test]
fn no_window_has_more_wherever_its_starts_are_counted() {
    const MAX: u64 = 5;
    const PROCESSES: usize = 4;
    const MOST: usize = 1 << 20;
    let cooldown = Duration::from_millis(20);
    let end = Instant::now() + Duration::from_secs(number("SECONDS", 3));
    let dir = Dir::in_memory("cooling-storm");
    cooling(&dir.url(), MAX, cooldown).open().unwrap();
    // The number of starts, that of each process's present one, and the starts.
    let words = shared(1 + PROCESSES + MOST * WORDS);
    let of = |number: u64| &words[1 + PROCESSES + number as usize * WORDS..][..WORDS];
    let worker = |slot: usize| {
        words[1 + slot].store(0, Release);
        Child::run(|| {
            let limiter = cooling(&dir.url(), MAX, cooldown);
            let mut random = Random::new();
            loop {
                let before = now_ns();
                let Some(permit) = take(&*limiter) else {
                    std::thread::sleep(Duration::from_micros(random.below(500)));
                    continue;
                };
                let after = now_ns();
                let number = words[0].fetch_add(1, AcqRel);
                let start = of(number);
                // In this order: whoever kills it finds each start that is recorded.
                words[1 + slot].store(1 + number, Release);
                start[1].store(after, Release);
                start[0].store(before, Release);
                std::thread::sleep(Duration::from_micros(random.below(8_000)));
                match random.below(8) {
                    0 => {
                        // It never ran, so nobody has counted it.
                        start[0].store(0, Release);
                        limiter.cancel(&permit).unwrap();
                    }
                    1 => {
                        start[2].store(now_ns(), Release);
                        limiter.arrived(&permit).unwrap();
                        std::thread::sleep(Duration::from_micros(random.below(8_000)));
                        limiter.complete(&permit).unwrap();
                    }
                    2 => {
                        start[2].store(now_ns(), Release);
                        limiter.settle(&permit, 1 + random.below(3)).unwrap();
                    }
                    _ => {
                        start[2].store(now_ns(), Release);
                        limiter.complete(&permit).unwrap();
                    }
                }
                words[1 + slot].store(0, Release);
            }
        })
    };
    let mut children: Vec<Child> = (0..PROCESSES).map(worker).collect();
    let (mut random, mut kills) = (Random::new(), 0);
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(random.below(30)));
        let slot = random.below(PROCESSES as u64) as usize;
        let killed = now_ns();
        let child = children.swap_remove(slot);
        child.signal(libc::SIGKILL);
        assert!(child.was_killed());
        kills += 1;
        if let Some(number) = words[1 + slot].load(Acquire).checked_sub(1) {
            // Its request may be under way until then.
            let _ = of(number)[2].compare_exchange(0, killed, AcqRel, Acquire);
        }
        // (The last one took its place.)
        children.push(worker(slot));
        let last = children.len() - 1;
        children.swap(slot, last);
    }
    // They are killed one after the other. On a busy machine, those that still run take what the first ones held.
    let over = now_ns();
    drop(children);
    let all = words[0].load(Acquire);
    assert!(all < MOST as u64);
    let read = |number| -> [u64; WORDS] { std::array::from_fn(|i| of(number)[i].load(Acquire)) };
    let mut starts: Vec<_> = (0..all).map(read).filter(|[before, ..]| (1..over).contains(before)).collect();
    starts.sort_unstable();
    let (mut recent, mut most, mut worst) = (VecDeque::new(), 0, Vec::new());
    for [before, after, ended] in &starts {
        let still = |[_, _, ended]: &[u64; WORDS]| *ended == 0 || ended + cooldown.as_nanos() as u64 > *after;
        // (Those that are left out here are over for later ones, too: `after` may be a little earlier there.)
        recent.retain(|other: &[u64; WORDS]| other[2] == 0 || other[2] + 2 * cooldown.as_nanos() as u64 > *before);
        let others: Vec<_> = recent.iter().filter(|other| other[1] < *before && still(other)).copied().collect();
        if 1 + others.len() > most {
            (most, worst) = (1 + others.len(), [others, vec![[*before, *after, *ended]]].concat());
        }
        recent.push_back([*before, *after, *ended]);
    }
    println!("{} starts, {kills} kills, at most {most} of {MAX} in a window", starts.len());
    assert!(most as u64 <= MAX, "{most} of {MAX}: {worst:?}");
    assert!(most as u64 == MAX && kills > 10, "it never was full: {most}, {kills} kills");
}
