//! Starts survive: a reboot at any moment, the loss of the lane, and processes that die while changing them.
#![cfg(feature = "fault-points")]

use crate::common::{
    Child, Dir, Random, Record, most_in_any_window, most_seen_by, now_ns, number, present_boot, raise, shared,
    wait_until, write_behind_up_to,
};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn rate(url: &str, name: &str, max: u64, window: Duration) -> RateLimiter {
    RateLimiter::new(&Store::new(url).unwrap(), name, max, window).unwrap()
}

fn admitted(limiter: &impl Limiter, key: &str, weight: u64) -> bool {
    matches!(limiter.attempt(key, weight).unwrap(), Attempt::Admitted(_))
}

/// Each boot may lose a budget of a key, which is counted; also those of earlier boots.
#[test]
fn many_boots_within_one_window_lose_nothing() {
    const BOOTS: u64 = 12;
    const LIMIT: u64 = 200;
    const BUDGET: u64 = LIMIT / 20;
    let dir = Dir::new("many-boots");
    let total = shared(2);
    for boot in 0..=BOOTS {
        Child::run(|| {
            present_boot(boot);
            let limiter = rate(&dir.url(), "api", LIMIT, HOUR);
            let take = |key: &str, most: u64| (0..most).take_while(|_| admitted(&limiter, key, 1)).count() as u64;
            // More than is written, less than there is.
            let most = if boot == BOOTS { LIMIT } else { BUDGET };
            total[0].fetch_add(take("", most), Relaxed);
            total[1].fetch_add(take("key", most), Relaxed);
        })
        .join();
    }
    for total in total {
        let total = total.load(Relaxed);
        println!("{total} of {LIMIT} over {BOOTS} boots");
        assert!(total <= LIMIT, "{total} of {LIMIT} in one window");
        assert!(total >= LIMIT - BOOTS * BUDGET, "only {total} of {LIMIT}");
    }
}

/// A key that was not used since the boot may have lost a budget of the policy before, which is larger.
#[test]
fn a_lowered_limit_counts_what_an_earlier_boot_may_have_lost() {
    for of_key in [false, true] {
        let (dir, counts) = (Dir::new("lowered"), shared(2));
        let boot = |boot, work: &dyn Fn(&Store, &RateLimiter)| {
            let child = Child::run(|| {
                present_boot(boot);
                let store = Store::new(&dir.url()).unwrap();
                work(&store, &RateLimiter::new(&store, "api", 1_000, HOUR).unwrap());
                raise(libc::SIGKILL);
            });
            assert!(child.was_killed());
        };
        boot(1, &|store, limiter| {
            if of_key {
                limiter.open().unwrap();
                store.override_limit("api", "10/1h", None).unwrap();
                store.override_limit("api", "1000/1h", Some("key")).unwrap();
            }
            // The ledger does not need these yet.
            assert!(admitted(limiter, "key", 24));
            counts[0].fetch_add(24, Relaxed);
        });
        boot(2, &|store, limiter| {
            limiter.open().unwrap();
            match of_key {
                true => store.override_limit("api", "100/1h", Some("key")).unwrap(),
                false => store.override_limit("api", "100/1h", None).unwrap(),
            }
        });
        boot(3, &|_, limiter| {
            let more = (0..100).take_while(|_| admitted(limiter, "key", 1)).count() as u64;
            counts[1].fetch_add(more, Relaxed);
        });
        let [before, after] = [0, 1].map(|i: usize| counts[i].load(Relaxed));
        assert!(before + after <= 100, "{before} and {after} of 100, of a key: {of_key}");
        assert!(after >= 40, "{after}: at most both budgets are withheld, of a key: {of_key}");
    }
}

/// The subjects of the storm: limits and keys, with the number that each may admit in a window. The last key
/// changes every third boot, so that the ledger has never seen it.
const STORMED: [(&str, &str, u64); 5] =
    [("one", "", 100), ("many", "", 100), ("many", "a", 100), ("ruled", "a", 60), ("many", "new", 100)];
/// The window of the storm's limits, where the disk is not slow.
const STORM_WINDOW: Duration = Duration::from_millis(2_100);
/// How many commits it takes to fill all of them in one window, with some to spare.
const COMMITS_TO_FILL: u32 = 200;

/// How a storm's limits are kept.
#[derive(Debug, Clone, Copy)]
struct Terms {
    window: Duration,
    /// How long starts may be missing from the ledger: not at all, or for the whole window.
    behind: Duration,
}

fn store(url: &str, durability: Durability) -> Store {
    let mut options = StoreOptions::default();
    (options.durability, options.timeout) = (durability, Duration::from_secs(60));
    Store::with_options(url, options).unwrap()
}

/// The work of one process of the storm, until it is killed: attempts and their results.
fn storm(url: &str, boot: u64, (terms, durability): (Terms, Durability), starts: &Record, denials: &Record) {
    present_boot(boot);
    write_behind_up_to(terms.behind);
    // All keys are restored at once, or at their first use, or also by the ledger's writer.
    fault::restore_at_once(if boot.is_multiple_of(3) { 10_000 } else { 0 }, boot % 3 == 1);
    let store = store(url, durability);
    let limit = |name| RateLimiter::new(&store, name, 100, terms.window).unwrap();
    let limits = [limit("one"), limit("many"), limit("many"), limit("ruled"), limit("many")];
    let new_key = format!("new {}", boot / 3);
    let mut reported = [0; STORMED.len()];
    loop {
        for (which, (limit, (_, key, _))) in limits.iter().zip(STORMED).enumerate() {
            let key = if key == "new" { &new_key } else { key };
            let of = if key == new_key { (boot / 3) << 4 } else { 0 } | which as u64;
            let a = now_ns();
            let attempt = limit.attempt(key, 1).unwrap();
            let b = now_ns();
            match attempt {
                Attempt::Admitted(_) => starts.add(a, b, of),
                Attempt::Denied(_) if b > reported[which] + 5_000_000 => {
                    reported[which] = b;
                    denials.add(a, b, of);
                }
                Attempt::Denied(_) => {}
            }
        }
    }
}

/// All processes of a machine are killed at a random moment, which loses the lane. Those that start after the boot have
/// the ledger. Set `BOOTS=200` for a long run.
#[test]
fn boots_at_random_moments_never_exceed_the_limit_and_cost_a_budget_each() {
    boots_at_random_moments("boots", number("BOOTS", 40), false, &[Durability::Budget]);
}

/// The same where all processes commit, so that nothing is withheld.
#[test]
fn boots_at_random_moments_never_exceed_the_limit_where_all_processes_commit() {
    boots_at_random_moments("boots-commit", number("BOOTS", 40) / 2, false, &[Durability::Commit]);
}

/// The same where some do, and in some boots all.
#[test]
fn boots_at_random_moments_never_exceed_the_limit_where_some_processes_commit() {
    let all = [Durability::Commit, Durability::Commit, Durability::Budget];
    boots_at_random_moments("boots-some", number("BOOTS", 40) / 2, false, &all);
    boots_at_random_moments("boots-some-behind", number("BOOTS", 40) / 4, true, &all);
}

/// The same with limits that are written behind: after a boot they count as full for a window.
#[test]
fn boots_at_random_moments_never_exceed_a_limit_written_behind() {
    boots_at_random_moments("boots-behind", number("BOOTS", 40) / 4, true, &[Durability::Budget]);
}

/// How long a start takes that waits for its commit.
fn time_of_a_commit(url: &str) -> Duration {
    const COMMITS: u32 = 8;
    let nanoseconds = &shared(1)[0];
    Child::run(|| {
        present_boot(u64::MAX);
        let limiter = RateLimiter::new(&store(url, Durability::Commit), "timed", 100, STORM_WINDOW).unwrap();
        limiter.open().unwrap();
        let began = now_ns();
        (0..COMMITS).for_each(|_| assert!(admitted(&limiter, "", 1)));
        nanoseconds.store(now_ns() - began, Relaxed);
    })
    .join();
    Duration::from_nanos(nanoseconds.load(Relaxed)) / COMMITS
}

/// Each process has one of these durabilities; in every third boot all have the first, unless one has to fill the limits.
fn boots_at_random_moments(name: &str, boots: u64, is_behind: bool, all: &[Durability]) {
    // Where all commit, a disk may be too slow to fill the limits.
    let all_commit = all == [Durability::Commit];
    // The unreported starts of processes that died, which may be written twice; or a budget and those starts.
    let lost_in_a_boot = |limit: u64| if all_commit { 8 } else { limit / 20 + 3 };
    let mut random = Random::new();
    let dir = if all_commit { Dir::in_memory(name) } else { Dir::new(name) };
    let window = STORM_WINDOW.max(COMMITS_TO_FILL * time_of_a_commit(&dir.url()));
    let terms = Terms { window, behind: if is_behind { window } else { Duration::ZERO } };
    Child::run(|| {
        present_boot(u64::MAX);
        write_behind_up_to(terms.behind);
        let store = store(&dir.url(), all[0]);
        RateLimiter::new(&store, "ruled", 100, window).unwrap().open().unwrap();
        store.override_limit("ruled", &Policy::rate(60, window).unwrap().to_string(), None).unwrap();
    })
    .join();
    let records: Vec<_> = (0..4).map(|_| (Record::new(200_000), Record::new(200_000))).collect();
    let mut rounds = Vec::new();
    for boot in 0..boots {
        // Every eighth boot, the starts of the others no longer count.
        if boot % 8 == 7 {
            std::thread::sleep(window);
        }
        let began = now_ns();
        let processes = 2 + random.below(3) as usize;
        let fills = boot % 8 == 7 && !all_commit;
        let processes: Vec<_> = records[..processes]
            .iter()
            .enumerate()
            .map(|(i, (starts, denials))| {
                let durability = match () {
                    // One that does not wait for the disk fills the limits.
                    () if fills && i == 0 => *all.last().unwrap(),
                    () if boot % 3 == 0 => all[0],
                    () => all[random.below(all.len() as u64) as usize],
                };
                Child::run(|| storm(&dir.url(), boot, (terms, durability), starts, denials))
            })
            .collect();
        if fills {
            wait_until("every limit is full", || {
                let since = records.iter().flat_map(|both| both.1.starts()).filter(|denial| denial.0 > began);
                since.map(|denial| denial.2 & 0xf).collect::<BTreeSet<_>>().len() == STORMED.len()
            });
        } else {
            std::thread::sleep(Duration::from_millis(20 + random.below(200)));
        }
        drop(processes);
        rounds.push((began, now_ns()));
    }
    let of = |record: fn(&(Record, Record)) -> &Record, id: u64| -> Vec<_> {
        let all = records.iter().flat_map(|both| record(both).starts());
        all.filter(|s| s.2 == id).map(|(a, b, _)| (a, b, 1)).collect()
    };
    let window = window.as_nanos() as u64;
    let ids = (0..4).chain((0..=boots / 3).map(|turn| turn << 4 | 4));
    let (mut worst, mut checked) = (0, 0);
    for id in ids {
        let (name, key, limit) = STORMED[(id & 0xf) as usize];
        let starts = of(|both| &both.0, id);
        let most = most_in_any_window(&starts, window);
        assert!(most <= limit, "{name} {key:?} {id}: {most} of {limit} in one window");
        let denials = if is_behind { Vec::new() } else { of(|both| &both.1, id) };
        for (a, b, _) in denials {
            let seen = most_seen_by(&starts, (a, b), window);
            let boots = rounds.iter().filter(|(began, ended)| ended + window > a && *began <= b).count() as u64;
            let lost = boots * lost_in_a_boot(limit);
            assert!(seen + lost >= limit, "{name} {key:?} {id}: denied after {seen} of {limit}, and {lost} lost");
            if boots == 1 {
                checked += 1;
                worst = worst.max(limit.saturating_sub(seen) * 100 / limit);
                assert!(worst <= 10, "{name} {key:?} {id}: denied after {seen} of {limit} in a window with one boot");
            }
        }
        println!("{name} {key:?} {id}: {} starts, most in a window {most} of {limit}", starts.len());
    }
    assert!(checked >= boots / 8 || is_behind || all_commit, "{checked} denials checked");
    println!(
        "{boots} boots, {checked} denials with one boot in their window, for which at most {worst} % were withheld"
    );
}

/// The units of each key in the database, whenever they started.
fn in_the_ledger(dir: &Dir, keys: usize) -> Vec<u64> {
    let found = shared(keys);
    // In a child, since SQLite and forks do not mix.
    Child::run(|| {
        let db = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
        let mut query = db.prepare("SELECT CAST(key AS INTEGER), sum(units) FROM executions GROUP BY key").unwrap();
        let mut rows = query.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            found[row.get::<_, i64>(0).unwrap() as usize].store(row.get::<_, i64>(1).unwrap() as u64, Relaxed);
        }
    })
    .join();
    found.iter().map(|units| units.load(Relaxed)).collect()
}

/// With `Durability::Commit`, a start is reported after it was written, whatever happens next.
#[test]
fn every_reported_start_is_in_the_database() {
    const KEYS: usize = 5;
    const WEIGHTS: u64 = 3;
    let mut random = Random::new();
    let (mut total, mut beyond) = (0, 0);
    for round in 0..number("COMMITS", 20) {
        let dir = Dir::new(&format!("commit-{round}"));
        let (max, window) = if round % 2 == 0 { (4_000, HOUR) } else { (100, Duration::from_secs(1)) };
        let reported = shared(KEYS);
        let _processes: Vec<_> = (0..3)
            .map(|process| {
                Child::run(|| {
                    let store = store(&dir.url(), Durability::Commit);
                    let limiter = RateLimiter::new(&store, "api", max, window).unwrap();
                    std::thread::scope(|scope| {
                        for thread in 0..3 {
                            let (limiter, mut random) = (&limiter, Random::new());
                            scope.spawn(move || {
                                for turn in process + thread.. {
                                    let weight = 1 + random.below(WEIGHTS);
                                    if admitted(limiter, &(turn % KEYS).to_string(), weight) {
                                        reported[turn % KEYS].fetch_add(weight, AcqRel);
                                    }
                                }
                            });
                        }
                    });
                })
            })
            .collect();
        wait_until("something has started", || reported.iter().any(|units| units.load(Acquire) > 0));
        std::thread::sleep(Duration::from_millis(random.below(300)));
        drop(_processes);
        std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
        for (key, (there, reported)) in in_the_ledger(&dir, KEYS).into_iter().zip(reported).enumerate() {
            let reported = reported.load(Acquire);
            assert!(
                there >= reported,
                "round {round}: {reported} units of key {key} were reported, {there} were written"
            );
            assert!(
                there <= reported + 9 * WEIGHTS,
                "round {round}: {there} units of key {key} are too many for {reported}"
            );
            total += reported;
            beyond += there - reported;
        }
    }
    println!(
        "commits: {total} units reported, all of them written, and {beyond} whose process died before it was reported"
    );
}
