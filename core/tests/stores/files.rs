//! The files of a store: created, kept, refused and surviving.

use crate::common::{Child, Dir, shared, wait_until};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn rate(url: &str, name: &str, max: u64) -> RateLimiter {
    RateLimiter::new(&Store::new(url).unwrap(), name, max, HOUR).unwrap()
}

fn admitted(limiter: &impl Limiter) -> bool {
    matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_))
}

/// Makes the lane appear to be from another boot.
fn change_boot(lane: &Path) {
    let lane = std::fs::OpenOptions::new().write(true).open(lane).unwrap();
    lane.write_all_at(&[0xee; 16], 4 * 8).unwrap();
}

#[test]
fn a_store_has_two_files_with_the_requested_mode() {
    let dir = Dir::new("modes");
    assert!(admitted(&rate(&dir.url(), "api", 1)));
    assert_eq!(dir.names(), ["limits.db", "limits.db-lane"]);
    let mode = |name: &str| std::fs::metadata(dir.file(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("limits.db"), mode("limits.db-lane")), (0o600, 0o600));
    let mut options = StoreOptions::default();
    options.mode = 0o660;
    let url = format!("sqlite:{}", dir.file("shared.db").display());
    Store::with_options(&url, options).unwrap().open().unwrap();
    assert_eq!((mode("shared.db"), mode("shared.db-lane")), (0o660, 0o660));
}

#[test]
fn attaching_uses_the_declared_policy() {
    let dir = Dir::new("attach");
    let store = Store::new(&dir.url()).unwrap();
    let early = RateLimiter::attach(&store, "api").unwrap();
    let error = early.open().unwrap_err();
    assert_eq!(error.to_string(), "no limit named \"api\" is declared: this store knows none yet");
    let declared = RateLimiter::new(&store, "api", 2, HOUR).unwrap();
    assert!(admitted(&declared));
    assert!(admitted(&early), "it works once there is one");
    assert!(!admitted(&declared), "and it is the same");
    let error = RateLimiter::attach(&store, "apis").unwrap().open().unwrap_err();
    assert_eq!(error, Error::UnknownLimit { name: "apis".into(), known: vec!["api".into()] });
}

#[test]
fn a_memory_store_shares_names_within_the_process() {
    let store = Store::new("memory:").unwrap();
    let a = RateLimiter::new(&store, "api", 1, HOUR).unwrap();
    let b = RateLimiter::attach(&store, "api").unwrap();
    let other = RateLimiter::new(&Store::new("memory:").unwrap(), "api", 1, HOUR).unwrap();
    assert!(admitted(&a) && !admitted(&b) && admitted(&other));
}

#[test]
fn a_full_disk_is_an_error_and_leaves_no_files() {
    // A file size limit behaves like a full disk, in the middle of an allocation.
    let dir = Dir::new("full");
    Child::run(|| {
        // SAFETY: plain calls that affect this child only.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            let limit = libc::rlimit { rlim_cur: 100_000, rlim_max: 100_000 };
            assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
        }
        let error = Store::new(&dir.url()).unwrap().open().unwrap_err();
        assert_eq!(error.name(), "store_failure");
    })
    .join();
    assert!(dir.names().is_empty(), "{:?}", dir.names());
    assert!(admitted(&rate(&dir.url(), "api", 1)), "and works once there is space");
}

#[test]
fn a_process_with_little_address_space_gets_a_smaller_store() {
    Child::run(|| {
        // The reservations of the other tests in this process are inherited, and count.
        let pages: u64 =
            std::fs::read_to_string("/proc/self/statm").unwrap().split(' ').next().unwrap().parse().unwrap();
        let most = pages * 4_096 + (3 << 30);
        // SAFETY: plain call that affects this child only.
        unsafe {
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            assert_eq!(libc::setrlimit(libc::RLIMIT_AS, &limit), 0);
        }
        let limiter = rate("memory:", "api", 4_096);
        // 66 KB per key that uses all of its units: in the end the store is full, and reports it.
        let full = (0..70_000).find_map(|i| limiter.attempt(&format!("key {i}"), 4_096).err()).unwrap();
        assert_eq!(full.name(), "store_full", "{full}");
        assert!(admitted(&limiter), "existing keys keep working");
    })
    .join();
}

#[test]
fn parameters_out_of_range_are_named_and_nothing_is_created() {
    let dir = Dir::new("range");
    let store = Store::new(&dir.url()).unwrap();
    let new = |name: &str, max, window| RateLimiter::new(&store, name, max, window).map(drop).unwrap_err().to_string();
    assert_eq!(new("x", 0, HOUR), "max_executions is 0: expected a whole number from 1 to 1000000000");
    assert!(new("x", 1_000_000_001, HOUR).starts_with("max_executions is 1000000001: "));
    assert_eq!(new("x", 1, Duration::ZERO), "window is 0s: expected 1 µs to 366 days");
    assert!(new("x", 1, Duration::MAX).starts_with("window is "));
    assert_eq!(new("", 1, HOUR), "name is empty: expected 1 to 1024 bytes of UTF-8");
    assert_eq!(new(&"n".repeat(1_025), 1, HOUR), "name is 1025 bytes long: expected 1 to 1024 bytes of UTF-8");
    let limiter = RateLimiter::new(&store, "x", 1, HOUR).unwrap();
    let error = limiter.attempt(&"k".repeat(2_048), 1).unwrap_err().to_string();
    assert_eq!(error, "key is 2048 bytes long: expected at most 1024 bytes of UTF-8");
    assert!(limiter.attempt("", 0).is_err() && limiter.decide("", 0).is_err());
    assert!(limiter.acquire("", 0, None).is_err() && limiter.acquire(&"k".repeat(2_048), 1, None).is_err());
    assert!(dir.names().is_empty());
    assert!(limiter.pause(Duration::from_secs(367 * 86_400), "").is_err());
    let mut options = StoreOptions::default();
    options.mode = 0o444;
    assert!(Store::with_options("memory:", options).unwrap_err().to_string().starts_with("mode is 0o444: "));
}

#[test]
fn starts_outlive_every_process() {
    let dir = Dir::new("outlive");
    Child::run(|| assert!(admitted(&rate(&dir.url(), "api", 1)))).join();
    assert!(!admitted(&rate(&dir.url(), "api", 1)));
}

#[test]
fn after_a_reboot_a_limit_counts_the_ledger_and_a_budget() {
    let dir = Dir::new("boot");
    let lane = dir.file("limits.db-lane");
    Child::run(|| {
        let store = Store::new(&dir.url()).unwrap();
        let old = RateLimiter::new(&store, "old", 40, HOUR).unwrap();
        assert!(matches!(old.attempt("a", 10).unwrap(), Attempt::Admitted(_)));
        assert!(matches!(old.attempt("", 1).unwrap(), Attempt::Admitted(_)));
        store.flush().unwrap();
    })
    .join();
    change_boot(&lane);
    let old = rate(&dir.url(), "old", 40);
    let remaining = |key: &str| old.peek(key, 1).unwrap().remaining;
    // A twentieth of the limit may be missing from the ledger, even for a key that it has never seen.
    assert_eq!([remaining("a"), remaining(""), remaining("never seen")], [28, 37, 38]);
    assert_eq!(rate(&dir.url(), "new", 40).peek("", 1).unwrap().remaining, 40);
    // By clearing it, the operator states that nothing is missing.
    old.clear("").unwrap();
    assert_eq!([remaining("a"), remaining(""), remaining("never seen")], [40, 40, 40]);
    change_boot(&lane);
    let old = rate(&dir.url(), "old", 40);
    assert_eq!(old.peek("a", 1).unwrap().remaining, 40, "in use, so of this boot");
}

#[test]
fn cleared_starts_do_not_return_after_a_reboot() {
    let dir = Dir::new("cleared");
    Child::run(|| {
        let store = Store::new(&dir.url()).unwrap();
        let limiter = RateLimiter::new(&store, "api", 40, HOUR).unwrap();
        for key in ["a", "b"] {
            assert!(matches!(limiter.attempt(key, 10).unwrap(), Attempt::Admitted(_)));
        }
        store.flush().unwrap();
        limiter.clear("a").unwrap();
    })
    .join();
    change_boot(&dir.file("limits.db-lane"));
    let remaining = |key: &str| rate(&dir.url(), "api", 40).peek(key, 1).unwrap().remaining;
    assert_eq!([remaining("a"), remaining("b")], [38, 28]);
}

#[test]
fn deleting_a_lane_in_use_never_exceeds_the_limit() {
    let dir = Dir::new("deleted");
    let old = rate(&dir.url(), "api", 5);
    assert!(admitted(&old));
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    // A new process creates another lane, on which the limit counts as full.
    Child::run(|| assert!(!admitted(&rate(&dir.url(), "api", 5)))).join();
    // Users of the old lane switch to it: at once for rare work, otherwise within a second.
    wait_until("it is noticed", || old.peek("", 1).unwrap().remaining == 0);
    assert!(!admitted(&old) && !matches!(old.attempt("new", 1).unwrap(), Attempt::Admitted(_)));
    // A process that is the first to notice creates a lane itself.
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    wait_until("it is noticed again", || old.peek("", 1).is_ok() && dir.file("limits.db-lane").exists());
    assert!(!admitted(&old));
}

#[test]
fn dropping_an_inherited_store_unmaps_nothing_of_the_child() {
    let dir = Dir::new("dropped");
    let limiter = rate(&dir.url(), "api", 1);
    limiter.open().unwrap();
    let mut limiter = Some(limiter);
    Child::run(|| {
        // The child's mappings are placed where the parent's membership was: pages that are not inherited leave a hole.
        let pages: Vec<_> = (0..8).map(|_| shared(512)).collect();
        drop(limiter.take());
        pages.iter().for_each(|page| page[0].store(1, Release));
    })
    .join();
}

#[test]
fn a_lost_lane_counts_as_full() {
    let dir = Dir::new("lost");
    Child::run(|| assert!(admitted(&rate(&dir.url(), "api", 3)))).join();
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    assert!(!admitted(&rate(&dir.url(), "api", 3)));
}

#[test]
fn a_truncated_lane_is_rebuilt_from_the_ledger() {
    for len in [5_000, 100_000] {
        let dir = Dir::new("cut");
        Child::run(|| assert!(admitted(&rate(&dir.url(), "api", 2)))).join();
        std::fs::OpenOptions::new().write(true).open(dir.file("limits.db-lane")).unwrap().set_len(len).unwrap();
        // One start, and the budget of one.
        assert!(!admitted(&rate(&dir.url(), "api", 2)));
    }
}

#[test]
fn another_boot_id_has_no_effect_while_a_member_lives() {
    let dir = Dir::new("members");
    let lane = dir.file("limits.db-lane");
    let steps = shared(2);
    let member = Child::run(|| {
        let limiter = rate(&dir.url(), "api", 3);
        assert!(admitted(&limiter));
        // Like a daemon, close every descriptor.
        // SAFETY: closes what this child does not use.
        (3..1_000).for_each(|fd| assert!(unsafe { libc::close(fd) } <= 0));
        // A child of its own does not keep the membership alive.
        let grandchild = Child::run(|| wait_until("the member has died", || steps[1].load(Acquire) == 1));
        steps[0].store(1, Release);
        loop {
            std::thread::sleep(HOUR);
            assert_ne!(grandchild.0, 0);
        }
    });
    wait_until("the member is one", || steps[0].load(Acquire) == 1);
    change_boot(&lane);
    let remaining = || {
        let seen = shared(1);
        Child::run(|| seen[0].store(rate(&dir.url(), "api", 3).peek("", 1).unwrap().remaining, Release)).join();
        seen[0].load(Acquire)
    };
    assert_eq!(remaining(), 2, "the lane is in use, so it belongs to this boot");
    change_boot(&lane);
    drop(member); // killed; the grandchild lives on
    change_boot(&lane);
    assert_eq!(remaining(), 1, "no process uses it, so it belongs to another boot: the ledger counts, and a budget");
    steps[1].store(1, Release);
}

#[test]
fn the_wrong_clock_is_refused() {
    let dir = Dir::new("clock");
    assert!(admitted(&rate(&dir.url(), "api", 1)));
    let mut options = StoreOptions::default();
    options.clock = Some(ManualClock::new());
    let error = Store::with_options(&dir.url(), options).unwrap().open().unwrap_err();
    assert!(error.to_string().contains("manual clock"), "{error}");
}

#[test]
fn a_composite_cannot_contain_itself() {
    let composite = || std::sync::Arc::new(CompositeLimiter::new([]));
    let (a, b, c) = (composite(), composite(), composite());
    a.add(b.clone()).unwrap();
    b.add(c.clone()).unwrap();
    assert_eq!(a.add(a.clone()).unwrap_err().name(), "invalid_argument");
    assert_eq!(c.add(a.clone()).unwrap_err().name(), "invalid_argument");
    a.add(c.clone()).unwrap();
    assert!(admitted(&*a));
}

#[test]
fn a_permit_of_another_limiter_is_an_error() {
    let store = Store::new("memory:").unwrap();
    let a = RateLimiter::new(&store, "a", 1, HOUR).unwrap();
    let b = ConcurrencyLimiter::new(1).unwrap();
    let Attempt::Admitted(permit) = a.attempt("", 1).unwrap() else { panic!("the limit has capacity") };
    assert_eq!(b.complete(&permit).unwrap_err().name(), "foreign_permit");
    assert_eq!(b.complete(&RawPermit::from_words([7; 8])).unwrap_err().name(), "foreign_permit");
    let Attempt::Admitted(mine) = b.attempt("", 1).unwrap() else { panic!("the limit has capacity") };
    let mut words = mine.to_words();
    words[1] = 12_345; // of another process
    b.complete(&RawPermit::from_words(words)).unwrap();
    assert!(!b.can_proceed("").unwrap(), "it is still held");
    b.complete(&mine).unwrap();
    b.complete(&mine).unwrap();
}

/// A process that begins to use a store by recording a start is distinguished from all others from then on.
#[test]
fn a_start_recorded_at_first_use_belongs_to_its_process() {
    let dir = Dir::new("first");
    let limiter = || ConcurrencyLimiter::shared(&Store::new(&dir.url()).unwrap(), "gpu", 5, None).unwrap();
    let parent = limiter();
    let remaining = || parent.peek("", 5).unwrap().remaining;
    parent.record_job_start("").unwrap();
    assert_eq!(remaining(), 4);
    // The first operation of a child ends nothing of its parent.
    Child::run(|| parent.record_job_completion("").unwrap()).join();
    assert_eq!(remaining(), 4);
    // Its own starts end with it: through the inherited limiter, and through one of its own.
    Child::run(|| parent.record_job_start("").unwrap()).join();
    Child::run(|| limiter().record_job_start("").unwrap()).join();
    assert_eq!(remaining(), 4);
    parent.record_job_completion("").unwrap();
    assert_eq!(remaining(), 5);
}
