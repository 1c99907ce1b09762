//! Space is reclaimed: unused keys of every kind are forgotten, and a store that was full works again.

#[cfg(feature = "fault-points")]
use crate::common::Child;
#[cfg(feature = "fault-points")]
use crate::common::wait_until;
use crate::common::{self, Dir, PATIENCE, number};
use std::path::Path;
#[cfg(feature = "fault-points")]
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};
use workglow_limit::*;

const WINDOW: Duration = Duration::from_secs(60);

/// One limiter of each kind, none of which remembers a start for longer than [`WINDOW`], so that nothing waits for the
/// ledger.
const KINDS: [&str; 10] = [
    "2/1m",
    "2/1m + 1/1s",
    "100/1m",
    "10/1m burst 5",
    "10/1m queue 5",
    "10/1m fixed",
    "10/1m counter",
    "10/1m spaced",
    "10/1m spaced strictly",
    "3 concurrent",
];

fn store(url: &str, clock: &ManualClock) -> Store {
    store_of(url, clock, None)
}

fn store_of(url: &str, clock: &ManualClock, max_size: Option<u64>) -> Store {
    let mut options = StoreOptions::default();
    (options.clock, options.max_size) = (Some(clock.clone()), max_size);
    Store::with_options(url, options).unwrap()
}

/// A start that is never referred to again.
fn start(limiter: &dyn Limiter, key: &str) -> Result<()> {
    match limiter.attempt(key, 1)? {
        Attempt::Admitted(permit) => limiter.complete(&permit),
        Attempt::Denied(_) => panic!("a new key was denied"),
    }
}

/// The same in a full store whose keys are idle. A search for them takes a few steps of some milliseconds, in which a busy
/// machine does little: the next call goes on.
#[cfg(feature = "fault-points")]
fn start_soon(limiter: &dyn Limiter, key: &str) {
    wait_until(&format!("there is space for {key}"), || match start(limiter, key) {
        Err(Error::StoreFull { .. }) => false,
        answer => answer.map(|()| true).unwrap(),
    });
}

/// `KEYS` sets the number.
#[test]
fn keys_that_are_used_once_leave_nothing_behind() {
    let keys = number("KEYS", 20_000);
    // And one whose keys take 64 KiB each, so that it has to search for idle ones all the time.
    for kind in KINDS.into_iter().chain(["5000/1m"]) {
        let (dir, clock) = (Dir::in_memory("one-shot"), ManualClock::new());
        let store = store(&dir.url(), &clock);
        let limiter = store.limiter("api", kind).unwrap();
        let size = || std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
        let mut used = 0;
        let mut use_once = |count| {
            for i in used..used + count {
                start(&*limiter, &format!("key {i}")).unwrap();
                // So few at once that one segment can hold them, wherever they are.
                if i % 400 == 399 {
                    clock.advance(2 * WINDOW);
                }
            }
            used += count;
        };
        use_once(keys / 3);
        // A search for idle keys takes milliseconds, in which a busy machine may find too few: then the store grows, for these and later
        // keys. What is left behind makes it grow each time.
        let kept_growing = (0..10).all(|_| {
            let before = size();
            use_once(keys / 3 * 2);
            println!("{kind}: {} KiB, {} KiB after {} keys more", before >> 10, size() >> 10, keys / 3 * 2);
            size() != before
        });
        assert!(!kept_growing, "{kind}: the lane kept growing");
    }
}

/// A rewritten log goes to another block, and the earlier one to the next rewrite, with starts as old as the window.
#[test]
fn rewrites_of_long_windows_leave_nothing_behind() {
    for days in [30, 365] {
        let (dir, clock) = (Dir::in_memory("rewrites"), ManualClock::new());
        let store = store(&dir.url(), &clock);
        let limiter = store.limiter("api", &format!("1000/{days}d")).unwrap();
        let size = || std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
        let keys = ["a", "b", "c"];
        let take = |key| match limiter.attempt(key, 1).unwrap() {
            Attempt::Admitted(permit) => permit,
            Attempt::Denied(_) => panic!("{days} days: \"{key}\" is denied"),
        };
        let step = Duration::from_secs(days * 86_400) / 1_000;
        // Full logs, of one start after the other.
        for _ in 0..800 {
            clock.advance(step);
            for key in keys {
                take(key);
            }
        }
        let mut early = 0;
        for round in 0..number("ROUNDS", 300) {
            for key in keys {
                let permit = take(key);
                if round % 3 == 0 {
                    limiter.settle(&permit, 1).unwrap();
                } else {
                    limiter.cancel(&permit).unwrap();
                }
            }
            // Some of the starts become too old.
            clock.advance(step / 2);
            if round == 30 {
                early = size();
            }
        }
        println!("{days} days: {} KiB, {} KiB at the end", early >> 10, size() >> 10);
        assert_eq!(size(), early, "{days} days: the lane kept growing");
    }
}

/// After a boot a lane needs no more space for the same keys than before. (`KEYS=1300000` for many, with the time.)
#[cfg(feature = "fault-points")]
#[test]
fn recovery_writes_each_key_once() {
    let dir = Dir::in_memory("recovered");
    let size = || std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
    let boot = |number, f: &dyn Fn(&dyn Limiter)| {
        let run = || {
            common::present_boot(number);
            let store = Store::new(&dir.url()).unwrap();
            f(&*store.limiter("api", "100/1h").unwrap());
            store.flush().unwrap();
        };
        Child::run(run).join();
    };
    let keys = number("KEYS", 4_000);
    boot(1, &|limiter| (0..keys).for_each(|key| start(limiter, &key.to_string()).unwrap()));
    let before = size();
    boot(2, &|limiter| {
        let began = std::time::Instant::now();
        limiter.open().unwrap();
        println!("restored in {:?}", began.elapsed());
        // The start, and a budget of 5 that the ledger may have missed.
        let over = (0..keys).find(|key| limiter.peek(&key.to_string(), 1).unwrap().remaining != 94);
        assert_eq!(over, None);
    });
    println!("{} KiB, {} KiB after the boot", before >> 10, size() >> 10);
    assert!(size() <= before, "{} KiB became {} KiB", before >> 10, size() >> 10);
}

/// A process that dies with a lease leaves an unused key.
#[test]
fn keys_of_dead_processes_and_expired_leases_are_forgotten() {
    let (dir, clock) = (Dir::in_memory("dead-keys"), ManualClock::new());
    let url = dir.url();
    let open = |text| store(&url, &clock).limiter("api", text).unwrap();
    let size = || std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
    let limiter = open("3 concurrent lease 10m");
    let mut early = 0;
    for round in 0..30 {
        common::Child::run(|| {
            let theirs = open("3 concurrent lease 10m");
            for i in 0..200 {
                assert!(matches!(theirs.attempt(&format!("dead {round} {i}"), 1).unwrap(), Attempt::Admitted(_)));
            }
        })
        .join();
        for i in 0..200 {
            assert!(matches!(limiter.attempt(&format!("over {round} {i}"), 1).unwrap(), Attempt::Admitted(_)));
        }
        clock.advance(Duration::from_secs(700));
        if round == 15 {
            early = size();
        }
    }
    assert_eq!(size(), early, "the lane kept growing");
}

/// A store that can hold 2 MiB, filled by one limiter until a new key is refused.
#[cfg(feature = "fault-points")]
fn filled(test: &str, kind: &str, f: impl Fn(&Store, &ManualClock, &dyn Limiter, u64, Vec<RawPermit>)) {
    let dir = Dir::in_memory(&format!("full-{test}"));
    Child::run(|| {
        let clock = ManualClock::new();
        let store = store_of(&dir.url(), &clock, Some(2 << 20));
        let limiter = store.limiter("api", kind).unwrap();
        let mut permits = Vec::new();
        let refused = loop {
            match limiter.attempt(&format!("key {}", permits.len()), 1) {
                Ok(Attempt::Admitted(permit)) => permits.push(permit),
                Ok(Attempt::Denied(_)) => panic!("a new key was denied"),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.name(), "store_full", "{kind}: {refused}");
        let held = permits.len() as u64;
        assert!(held > 500, "{kind}: only {held} keys fit");
        f(&store, &clock, &*limiter, held, permits);
    })
    .join();
}

/// Even if the segment without space is that of the key "", which stays although it is unused.
#[cfg(feature = "fault-points")]
#[test]
fn a_full_store_reports_it_wherever_its_last_key_belongs() {
    Child::run(|| {
        for size in (1_024..2_560).step_by(16) {
            let limiter = store_of("memory:", &ManualClock::new(), Some(size << 10)).limiter("api", "2/1m").unwrap();
            let refused = (0..).find_map(|i| limiter.attempt(&format!("key {i}"), 1).err()).unwrap();
            assert_eq!(refused.name(), "store_full", "{size} KiB: {refused}");
        }
    })
    .join();
}

#[cfg(feature = "fault-points")]
#[test]
fn a_full_store_works_again_when_its_keys_are_idle() {
    for kind in KINDS {
        filled("idle", kind, |_, clock, limiter, held, permits| {
            // Existing keys are still served and denied.
            limiter.peek("key 0", 1).unwrap();
            permits.iter().for_each(|permit| limiter.complete(permit).unwrap());
            clock.advance(2 * WINDOW);
            // A futile search is not repeated at once.
            std::thread::sleep(Duration::from_millis(250));
            for round in 0..3 {
                for i in 0..held / 4 * 3 {
                    start_soon(limiter, &format!("key {round} {i}"));
                }
                clock.advance(2 * WINDOW);
            }
        });
    }
}

#[cfg(feature = "fault-points")]
#[test]
fn a_full_store_can_be_cleared_changed_and_written() {
    for kind in KINDS {
        filled("cleared", kind, |store, _, limiter, _, _| {
            limiter.clear("key 1").unwrap();
            limiter.clear("no such key").unwrap();
            store.flush().unwrap();
            limiter.clear("").unwrap();
            start(limiter, "key 1").unwrap();
            for i in 0..400 {
                start(limiter, &format!("new {i}")).unwrap_or_else(|e| panic!("{kind}: {i}: {e}"));
            }
        });
    }
}

#[cfg(feature = "fault-points")]
#[test]
fn a_full_store_of_idle_keys_takes_other_policies() {
    filled("changed", "100/1m", |store, clock, limiter, _, _| {
        // Keys in use keep the size of their rings.
        store.override_limit("api", "200/1m", None).unwrap();
        clock.advance(2 * WINDOW);
        for policy in ["200/1m", "3/1m", "100/1m", "40/1m"] {
            store.override_limit("api", policy, None).unwrap_or_else(|e| panic!("{policy}: {e}"));
            limiter.clear("").unwrap_or_else(|e| panic!("{policy}: {e}"));
        }
        assert_eq!(limiter.peek("key 1", 1).unwrap().limit, 40);
    });
}

/// However many keys strangers have made. What other limits may have is left to them. (`SIZE=16` for more keys.)
#[test]
fn a_limit_that_has_its_share_takes_other_policies() {
    for size in [1, number("SIZE", 4)] {
        for (before, policy, limit) in [("100/1h", "90/1h", 90), ("5/1h", "8/1h", 8)] {
            let (dir, clock) = (Dir::in_memory("share-changed"), ManualClock::new());
            let store = store_of(&dir.url(), &clock, Some(size << 20));
            let limiter = store.limiter("api", before).unwrap();
            let Attempt::Admitted(permit) = limiter.attempt("", 1).unwrap() else { panic!("denied") };
            let held = (0..).find(|i| start(&*limiter, &format!("key {i}")).is_err()).unwrap();
            for i in 0..2_000 {
                drop(limiter.attempt(&format!("more {i}"), 1));
            }
            let other = store.limiter("other", before).unwrap();
            start(&*other, "key").unwrap();
            store.override_limit("api", policy, None).unwrap_or_else(|e| panic!("{size} MiB: {policy}: {e}"));
            for i in 0..held {
                assert_eq!(limiter.peek(&format!("key {i}"), 1).unwrap().remaining, limit - 1, "{size} MiB: {policy}");
            }
            limiter.cancel(&permit).unwrap();
            assert_eq!(limiter.peek("", 1).unwrap().remaining, limit, "{size} MiB: {policy}");
            for i in 0..held / 16 {
                start(&*other, &format!("key {i}")).unwrap_or_else(|e| panic!("{size}: {i}: {e}"));
            }
        }
    }
}

/// Changes of policies and clears, of keys that are used in between, need no more space the fortieth time than the
/// fifteenth: at most the lane grows once more, by a half, because its keys are spread over its segments by chance.
#[test]
fn changes_of_policies_leave_nothing_behind() {
    for kind in ["override", "clear", "idle", "key"] {
        let (dir, clock) = (Dir::in_memory("changed"), ManualClock::new());
        let store = store(&dir.url(), &clock);
        let limiter = store.limiter("api", "100/1m").unwrap();
        let size = || std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
        let (keys, mut early) = (1_000, 0);
        for round in 0..number("ROUNDS", 40) {
            // So that each key counts one start, and no ring grows.
            clock.advance(WINDOW);
            for key in 0..keys {
                limiter.attempt(&format!("key {key}"), 1).unwrap();
            }
            let policy = ["50/1m", "100/1m", "40/1m", "120/1m", "99/1m"][round as usize % 5];
            match kind {
                "override" => store.override_limit("api", policy, None).unwrap(),
                "clear" => limiter.clear("").unwrap(),
                "idle" => {
                    clock.advance(2 * WINDOW);
                    store.override_limit("api", policy, None).unwrap();
                }
                _ => {
                    for key in 0..20 {
                        store.override_limit("api", policy, Some(&format!("key {key}"))).unwrap();
                        store.lift("api", Some(&format!("key {}", key / 2))).unwrap();
                    }
                }
            }
            clock.advance(WINDOW / 40);
            if round == 15 {
                early = size();
            }
        }
        println!("{kind}: {} KiB, {} KiB at the end", early >> 10, size() >> 10);
        assert!(size() <= early / 2 * 3, "{kind}: the lane kept growing");
    }
}

/// New keys that come while a change is at work, after a clear or in the middle of it, take what the cleared keys have left.
#[cfg(feature = "fault-points")]
#[test]
fn keys_that_are_made_during_changes_use_free_blocks() {
    for cleared_within in [false, true] {
        let dir = Dir::in_memory("within-changes");
        let run = || {
            let store = Store::new(&dir.url()).unwrap();
            let limiter = store.limiter("api", "100/1h").unwrap();
            let size = || std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
            let make = |limiter: &dyn Limiter| {
                (0..1_000).for_each(|key| _ = limiter.attempt(&format!("key {key}"), 1).unwrap());
            };
            fault::in_small_steps(true);
            let mut early = 0;
            for round in 0..number("ROUNDS", 40) {
                make(&*limiter);
                if !cleared_within {
                    limiter.clear("").unwrap();
                }
                let theirs = limiter.clone();
                fault::at("lock-left", move || make(&*theirs));
                match cleared_within {
                    true => limiter.clear("").unwrap(),
                    false => store.override_limit("api", ["90/1h", "100/1h"][round as usize % 2], None).unwrap(),
                }
                if round == 5 {
                    early = size();
                }
            }
            println!("{} KiB, {} KiB at the end", early >> 10, size() >> 10);
            assert!(size() <= early / 2 * 3, "cleared within the change: {cleared_within}: the lane kept growing");
        };
        Child::run(run).join();
    }
}

/// Policies of several sizes in turn, and clears, after which all keys are made again, by two processes that are killed at
/// random moments. What a dead one held is lost. Yet the lane takes at most twice what a new store takes for the same keys
/// with the same starts. `CHANGES=10000 KEYS=100000` for a long run.
#[cfg(feature = "fault-points")]
#[test]
fn killed_changes_of_policies_lose_little_space() {
    const POLICIES: [&str; 4] = ["100/1h", "50/1h", "120/1h", "80/1h"];
    let (keys, changes) = (number("KEYS", 400), number("CHANGES", 60));
    let [dir, new] = ["killed", "new"].map(Dir::in_memory);
    let size = |dir: &Dir| std::fs::metadata(dir.file("limits.db-lane")).unwrap().len();
    let open = |dir: &Dir| {
        let mut options = StoreOptions::default();
        options.timeout = PATIENCE;
        let store = Store::with_options(&dir.url(), options).unwrap();
        let limiter = store.limiter("api", POLICIES[0]).unwrap();
        (store, limiter)
    };
    let [made, cleared, filled] = common::shared(3) else { unreachable!() };
    let work = || {
        let ((store, limiter), mut random) = (open(&dir), common::Random::new());
        let start = |key: u64| _ = limiter.attempt(&key.to_string(), 1).unwrap();
        while made.load(Acquire) < changes {
            let clears = cleared.load(Acquire);
            if filled.load(Acquire) <= clears {
                (0..keys).for_each(start);
                filled.store(clears + 1, Release);
            }
            // Few of them often, so that their rings grow.
            (0..100 + keys / 1_000).for_each(|_| start(random.scaled(keys - 1)));
            let change = made.fetch_add(1, AcqRel);
            match change % 20 {
                19 => {
                    // Before and after it, since it may be completed without this process.
                    cleared.fetch_add(1, AcqRel);
                    limiter.clear("").unwrap();
                    cleared.fetch_add(1, AcqRel);
                }
                of => store.override_limit("api", POLICIES[of as usize % 4], None).unwrap(),
            }
        }
    };
    let (mut random, mut kills, mut workers) = (common::Random::new(), 0, [None, None]);
    while made.load(Acquire) < changes {
        workers.iter_mut().filter(|worker| worker.is_none()).for_each(|worker| *worker = Some(Child::run(work)));
        // At a random moment of one of the next changes.
        for _ in 0..=random.below(4) {
            let before = made.load(Acquire).min(changes - 1);
            wait_until("they change something", || made.load(Acquire) > before);
        }
        std::thread::sleep(Duration::from_micros(random.below(2_000 + 5 * keys)));
        // One of them, and the other continues its change, or both, and the next ones do.
        let (one, is_both) = (random.below(2) as usize, random.chance(50));
        let killed =
            workers.iter_mut().enumerate().filter(|(i, _)| is_both || *i == one).filter_map(|(_, it)| it.take());
        let killed = Vec::from_iter(killed.inspect(|child| child.signal(libc::SIGKILL)));
        kills += killed.into_iter().filter_map(|child| child.was_killed().then_some(1)).sum::<u64>();
    }
    workers.into_iter().flatten().for_each(Child::join);
    let compare = || {
        let (killed, new) = (open(&dir), open(&new));
        killed.0.override_limit("api", POLICIES[0], None).unwrap();
        for key in (0..keys).map(|key| key.to_string()) {
            _ = killed.1.attempt(&key, 1).unwrap();
            let has = killed.1.peek(&key, 1).unwrap();
            assert!(matches!(new.1.attempt(&key, has.limit - has.remaining).unwrap(), Attempt::Admitted(_)));
        }
    };
    Child::run(compare).join();
    let [killed, new] = [&dir, &new].map(size);
    println!("{} KiB after {changes} changes and {kills} kills, {} KiB in a new store", killed >> 10, new >> 10);
    assert!(kills > 0 && killed <= 2 * new, "{} KiB instead of {} KiB", killed >> 10, new >> 10);
}

/// The blocks of a limit's keys become available to all others that use such blocks.
#[cfg(feature = "fault-points")]
#[test]
fn blocks_of_one_limit_serve_another() {
    filled("shared", "2/1m", |store, clock, _, held, _| {
        let other = store.limiter("other", "2/1h").unwrap();
        // What the first limit has left for it.
        let full = (0..).find_map(|i| start(&*other, &format!("key {i}")).err()).unwrap();
        assert_eq!(full.name(), "store_full");
        clock.advance(2 * WINDOW);
        std::thread::sleep(Duration::from_millis(250));
        for i in 0..held / 2 {
            start_soon(&*other, &format!("key {i}"));
        }
    });
}

/// One segment of keys once took all free blocks of a full store. The others then searched for idle keys again and again,
/// and found those blocks.
#[cfg(feature = "fault-points")]
#[test]
fn the_segments_of_a_full_store_share_its_free_blocks() {
    static SEARCHES: AtomicU64 = AtomicU64::new(0);
    fn count() {
        SEARCHES.fetch_add(1, Relaxed);
        fault::at("sweeping", count);
    }
    filled("shared-out", "2/1m", |_, clock, limiter, held, _| {
        // A futile search is not repeated at once.
        std::thread::sleep(Duration::from_millis(250));
        fault::at("sweeping", count);
        let (rounds, keys) = (4, held / 4 * 3);
        for round in 0..rounds {
            clock.advance(2 * WINDOW);
            for i in 0..keys {
                start_soon(limiter, &format!("key {round} {i}"));
            }
        }
        // Its index has about eight segments, and a step of a search frees the keys of one or more.
        let searches = SEARCHES.load(Relaxed);
        assert!(searches <= rounds * 16, "{searches} searches for {rounds} times {keys} keys");
    });
}

/// A process that dies while rewriting a segment leaves the work to the next one.
#[cfg(feature = "fault-points")]
#[test]
fn a_death_while_an_index_grows_loses_no_key() {
    let dir = Dir::in_memory("growing");
    let url = dir.url();
    let open = || RateLimiter::new(&Store::new(&url).unwrap(), "api", 2, Duration::from_secs(3_600)).unwrap();
    let mine = open();
    let (mut deaths, mut keys) = (0, 0);
    while keys < 5_000 {
        let victim = Child::run(|| {
            let theirs = open();
            theirs.open().unwrap();
            fault::at("segment-written", || common::raise(libc::SIGKILL));
            for i in keys..keys + 100 {
                start(&theirs, &format!("key {i}")).unwrap();
            }
        });
        deaths += u64::from(victim.was_killed());
        for i in keys..keys + 100 {
            mine.attempt(&format!("key {i}"), 1).unwrap();
        }
        keys += 100;
    }
    for i in 0..keys {
        let left = mine.peek(&format!("key {i}"), 1).unwrap().remaining;
        assert!(left <= 1, "key {i} was forgotten");
    }
    assert!(deaths > 5, "only {deaths} died");
}

/// How much of this process's address space is mapped from this file, in bytes.
fn mapped(file: &Path) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let size = |line: &str| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        u64::from_str_radix(to, 16).unwrap() - u64::from_str_radix(from, 16).unwrap()
    };
    maps.lines().filter(|line| line.ends_with(file.to_str().unwrap())).map(size).sum()
}

/// It runs in a process of its own: a store reserves a part of the limit, which the mappings of other tests would raise.
#[test]
fn many_stores_fit_into_limited_address_space() {
    if std::env::var_os("IS_ALONE").is_none() {
        let mut alone = std::process::Command::new(std::env::current_exe().unwrap());
        alone.args(["space::many_stores_fit_into_limited_address_space", "--exact"]).env("IS_ALONE", "1");
        let output = alone.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let dir = Dir::in_memory("address-space");
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let used = statm.split(' ').next().unwrap().parse::<u64>().unwrap() * 4_096;
    let limit = libc::rlimit { rlim_cur: used + (512 << 20), rlim_max: used + (512 << 20) };
    // SAFETY: `limit` is a valid description.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let url = |i: u64| {
        if i.is_multiple_of(4) { "memory:".into() } else { format!("sqlite:{}", dir.file(&i.to_string()).display()) }
    };
    let all: Vec<_> = (0..80).map(|i| Store::new(&url(i)).unwrap().limiter("api", "2/1m").unwrap()).collect();
    for (i, limiter) in all.iter().enumerate() {
        for key in 0..20 {
            limiter.decide(&key.to_string(), 1).unwrap_or_else(|e| panic!("store {i}, key {key}: {e}"));
        }
    }
}

/// After `mlockall(MCL_FUTURE)`, each mapping counts as locked memory, of which most users may have a few MiB.
#[test]
fn many_stores_fit_into_limited_locked_memory() {
    common::Child::run(|| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: plain calls, and `limit` is a valid place and description. Root may lock any amount.
        unsafe {
            assert_eq!(libc::getrlimit(libc::RLIMIT_MEMLOCK, &mut limit), 0);
            limit.rlim_cur = limit.rlim_max.min(64 << 20);
            assert_eq!(libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit), 0);
            assert!(libc::geteuid() != 0 || libc::setuid(65_534) == 0);
            assert_eq!(libc::mlockall(libc::MCL_FUTURE), 0);
        }
        // Five of the usual 8 MiB: a store takes 1 MiB, and other things some.
        let stores = (limit.rlim_cur >> 20).saturating_sub(3).min(20);
        let limiters: Vec<_> = (0..stores)
            .map(|i| {
                let limiter = Store::new("memory:").unwrap().limiter("api", "2/1m").unwrap();
                limiter.decide("key", 1).unwrap_or_else(|e| panic!("store {i}: {e}"));
                limiter
            })
            .collect();
        for key in 0..500 {
            limiters.iter().for_each(|limiter| drop(limiter.decide(&key.to_string(), 1).unwrap()));
        }
    })
    .join();
}

/// Another process enlarges the lane while threads read it, and many of them notice at the same moment.
#[test]
fn readers_of_a_growing_lane_see_all_of_it() {
    const KEYS: u64 = 12_000;
    let dir = Dir::in_memory("views");
    let url = dir.url();
    let open = || RateLimiter::new(&Store::new(&url).unwrap(), "api", 100, Duration::from_secs(100)).unwrap();
    let mine = open();
    mine.attempt("key 0", 1).unwrap();
    let grower = common::Child::run(|| {
        let theirs = open();
        (1..KEYS).for_each(|i| start(&theirs, &format!("key {i}")).unwrap());
    });
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mine = &mine;
            scope.spawn(move || {
                for i in 0..KEYS {
                    let (key, since) = (format!("key {}", (i + thread) % KEYS), Instant::now());
                    loop {
                        let left = mine.peek(&key, 1).unwrap().remaining;
                        if left == 99 {
                            break;
                        }
                        assert_eq!(left, 100);
                        assert!(since.elapsed() < PATIENCE, "{i} of {KEYS} keys are there, and no more come");
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    grower.join();
    let lane = dir.file("limits.db-lane");
    let (size, mapped) = (std::fs::metadata(&lane).unwrap().len(), mapped(&lane));
    println!("a lane of {} KiB, {} KiB mapped", size >> 10, mapped >> 10);
    assert!(size > 4 << 20 && mapped < 4 * size);
}
