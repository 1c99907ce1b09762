//! Observers of a store, which do not disturb its users.

#[cfg(any(feature = "redis", feature = "postgres"))]
use crate::common::server::Server;
use crate::common::{Child, Dir, shared, wait_until};
use std::sync::atomic::Ordering::*;
use std::time::{Duration, SystemTime};
use workglow_limit::embed::{MayWait, Waiter, acquire};
use workglow_limit::observe::{LimitSnapshot, Minute, Observer, Snapshot, Usage, WAIT_BOUNDS};
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);

/// A store that does not time out while the machine is busy with other tests.
fn open(url: &str) -> Store {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_secs(60);
    Store::with_options(url, options).unwrap()
}

fn admitted(limiter: &dyn Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))
}

fn limit<'s>(seen: &'s Snapshot, name: &str) -> &'s LimitSnapshot {
    let names = || seen.limits.iter().map(|limit| limit.name.as_str()).collect::<Vec<_>>();
    seen.limits.iter().find(|limit| limit.name == name).unwrap_or_else(|| panic!("no {name} in {:?}", names()))
}

/// Used units, allowed units and seconds of each window, in the displayed order.
fn usage(all: &[Usage]) -> Vec<(u64, u64, u64)> {
    all.iter().map(|usage| (usage.used, usage.limit, usage.window.map_or(0, |window| window.as_secs()))).collect()
}

#[test]
fn every_kind_of_limit_shows_its_usage() {
    let dir = Dir::new("observe-kinds");
    for url in ["memory:".to_owned(), dir.url()] {
        let store = open(&url);
        let policies = [
            ("rate", "10/1h", vec![(3, 10, 3_600)]),
            ("two", "10/1h + 4/1m", vec![(3, 4, 60), (3, 10, 3_600)]),
            ("fixed", "10/1h fixed", vec![(3, 10, 3_600)]),
            ("counter", "10/1h counter", vec![(3, 10, 3_600)]),
            ("sliced", "10000/1h", vec![(3, 10_000, 3_600)]),
            ("running", "10 concurrent", vec![(3, 10, 0)]),
        ];
        let mut held = Vec::new();
        for (name, policy, _) in &policies {
            let limiter = store.limiter(name, policy).unwrap();
            for _ in 0..3 {
                let Attempt::Admitted(permit) = limiter.attempt("", 1).unwrap() else { panic!("{name} is full") };
                held.push((limiter.clone(), permit));
            }
        }
        store.limiter("bucket", "6/1h burst 10").unwrap().attempt("", 4).unwrap();
        let seen = Observer::new(&store, 5).look().unwrap();
        let names: Vec<_> = seen.limits.iter().map(|limit| &*limit.name).collect();
        assert_eq!(names, ["bucket", "counter", "fixed", "rate", "running", "sliced", "two"]);
        for (name, policy, expected) in policies {
            let found = limit(&seen, name);
            // A window of the clock may have ended in between.
            let is_empty = || found.kind == "fixed-window" && usage(&found.usage) == [(0, 10, 3_600)];
            assert!(usage(&found.usage) == expected || is_empty(), "{name}: {:?}", found.usage);
            assert_eq!((found.declared.to_string(), found.stats.admitted), (policy.to_owned(), 3), "{name}");
            assert!(found.peak >= 3, "{name}: {}", found.peak);
        }
        assert_eq!(usage(&limit(&seen, "bucket").usage)[0].0, 4);
        assert!(!limit(&seen, "rate").is_near());
        assert!(seen.counts_all_processes);
        for (limiter, permit) in held {
            limiter.complete(&permit).unwrap();
        }
        assert_eq!(usage(&limit(&Observer::new(&store, 5).look().unwrap(), "running").usage), [(0, 10, 0)]);
    }
}

#[test]
fn a_limit_is_as_full_as_its_fullest_key_and_the_busiest_keys_have_names() {
    let dir = Dir::new("observe-keys");
    let store = open(&dir.url());
    let limiter = store.limiter("api", "10/1h").unwrap();
    for i in 0..3_000 {
        assert!(admitted(&*limiter, &format!("tenant-{i}")));
    }
    let mut observer = Observer::new(&store, 3);
    let keys = limit(&observer.look().unwrap(), "api").keys;
    assert!((3_000..3_100).contains(&keys), "{keys}");
    for _ in 0..9 {
        assert!(admitted(&*limiter, "tenant-1234"));
    }
    assert!(!admitted(&*limiter, "tenant-1234"));
    for _ in 0..2 {
        assert!(admitted(&*limiter, "tenant-7"));
    }
    store.override_limit("api", "5/1h", Some("tenant-7")).unwrap();
    limiter.pause(HOUR, "tenant-7").unwrap();
    let seen = observer.look().unwrap();
    let api = limit(&seen, "api");
    assert_eq!(usage(&api.usage), [(10, 10, 3_600)]);
    assert_eq!(api.fullest.as_ref().map(|(key, _)| &**key), Some("tenant-1234"));
    assert!(api.is_near() && api.retry_after > Duration::ZERO);
    assert_eq!(api.hot_keys.len(), 3);
    let [first, second, _] = &api.hot_keys[..] else { unreachable!() };
    assert_eq!((&*first.key, first.stats.admitted, first.stats.denied), ("tenant-1234", 10, 1));
    assert_eq!((&*second.key, usage(&second.usage)), ("tenant-7", vec![(3, 5, 3_600)]));
    assert_eq!(second.overriding.map(|policy| policy.to_string()).as_deref(), Some("5/1h"));
    assert!(second.paused_for > HOUR - Duration::from_secs(600), "{:?}", second.paused_for);
    assert!(api.paused_for.is_zero(), "the others continue");
    // The identifiers do not reveal the texts, and stay the same.
    assert_eq!(first.id.len(), 16);
    let again = Observer::new(&open(&dir.url()), 3_000).look().unwrap();
    let same = limit(&again, "api").hot_keys.iter().find(|key| key.key == "tenant-1234").unwrap();
    assert_eq!(same.id, first.id);
    assert_eq!(api.fullest.as_ref().map(|(_, id)| id), Some(&first.id));
}

#[test]
fn waiters_are_visible_to_other_processes_until_they_start_or_die() {
    let dir = Dir::new("observe-waiting");
    let store = open(&dir.url());
    store.limiter("slow", "1/1h").unwrap().attempt("", 1).unwrap();
    store.limiter("both", "1/1h + 1 concurrent").unwrap().attempt("", 1).unwrap();
    let mut observer = Observer::new(&store, 0);
    let mut waiting = |name: &str| limit(&observer.look().unwrap(), name).waiting;
    let wait = |name: &'static str, count: u64, timeout: Option<Duration>| {
        Child::run(|| {
            let limiter = open(&dir.url()).find(name).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..count {
                    scope.spawn(|| acquire(&*limiter, Waiter::new("", 1).timeout(timeout)).unwrap());
                }
            });
        })
    };
    let forever = [wait("slow", 3, None), wait("slow", 4, None)];
    wait_until("seven wait", || waiting("slow") == 7);
    let [first, second] = forever;
    first.signal(libc::SIGKILL);
    assert!(first.was_killed());
    wait_until("the dead do not wait", || waiting("slow") == 4);
    drop(second);
    wait_until("no caller waits", || waiting("slow") == 0);
    // A waiter for a composite waits for all of its parts.
    let composite = wait("both", 2, None);
    wait_until("two wait for both", || waiting("both/rate") == 2 && waiting("both/concurrency") == 2);
    drop(composite);
    // More processes than there are entries are shown in turn, because the entries of dead processes are reused.
    for _ in 0..3 {
        let brief = wait("slow", 2, None);
        wait_until("two wait", || waiting("slow") == 2);
        drop(brief);
    }
}

#[test]
fn waits_are_counted_by_their_length() {
    // If the machine stands still for a window, a start does not wait.
    let all_wait = |policy: &str| {
        let store = open("memory:");
        let limiter = store.limiter("api", policy).unwrap();
        for _ in 0..3 {
            assert!(matches!(acquire(&*limiter, Waiter::new("", 1)).unwrap(), Attempt::Admitted(_)));
        }
        let place = limiter.reserve("", 1, None, None).unwrap();
        assert!(matches!(place, Reserved::Place { .. }));
        let far = limiter.reserve_later("", 1, HOUR, None, None).unwrap();
        assert!(matches!(far, Reserved::Place { .. }));
        let seen = Observer::new(&store, 0).look().unwrap();
        let api = limit(&seen, "api");
        assert_eq!(api.waits.iter().sum::<u64>(), api.stats.waited, "{:?}", api.waits);
        assert_eq!(api.waits[WAIT_BOUNDS.len()], 1, "the place in an hour");
        api.stats.waited >= 4
    };
    assert!(["1/100ms", "1/1s", "1/4s"].into_iter().any(all_wait));
}

#[test]
fn a_late_place_is_counted_as_lost() {
    let clock = ManualClock::new();
    let mut options = StoreOptions::default();
    options.clock = Some(clock.clone());
    let store = Store::with_options("memory:", options).unwrap();
    let limiter = store.limiter("api", "1/1s").unwrap();
    assert!(admitted(&*limiter, ""));
    let Reserved::Place { place, .. } = limiter.reserve("", 1, None, None).unwrap() else { panic!("denied") };
    let lost = || limit(&Observer::new(&store, 0).look().unwrap(), "api").places_lost;
    assert_eq!(lost(), 0);
    clock.advance(Duration::from_secs(30));
    limiter.present(&place).unwrap();
    assert_eq!(lost(), 1);
}

#[test]
fn the_processes_that_use_a_store_are_listed_while_they_live() {
    let dir = Dir::new("observe-processes");
    let store = open(&dir.url());
    store.limiter("api", "10/1h").unwrap().open().unwrap();
    let pids = |seen: &Snapshot| seen.processes.iter().map(|process| process.pid as i32).collect::<Vec<_>>();
    let mut observer = Observer::new(&store, 0);
    let is_open = shared(1);
    let other = Child::run(|| {
        open(&dir.url()).open().unwrap();
        // The store ends with this; a remaining clone would keep it.
        let stays = open(&dir.url());
        stays.open().unwrap();
        is_open[0].store(1, Release);
        loop {
            std::thread::sleep(HOUR);
        }
    });
    wait_until("the other is there", || is_open[0].load(Acquire) == 1);
    let seen = observer.look().unwrap();
    assert!(pids(&seen).contains(&other.0) && pids(&seen).contains(&(std::process::id() as i32)), "{seen:?}");
    assert!(seen.processes.iter().all(|process| process.program.starts_with("limits")), "{:?}", seen.processes);
    let pid = other.0;
    drop(other);
    assert!(!pids(&observer.look().unwrap()).contains(&pid));
}

#[test]
fn minutes_contain_denials_waits_and_the_peak() {
    let dir = Dir::new("observe-minutes");
    let store = open(&dir.url());
    let (hourly, quick) = (store.limiter("hourly", "5/1h").unwrap(), store.limiter("quick", "5/1s").unwrap());
    for _ in 0..7 {
        admitted(&*hourly, "a");
        admitted(&*quick, "");
    }
    acquire(&*quick, Waiter::new("", 1)).unwrap();
    let sum = |minutes: Vec<Minute>| {
        let add = |sum: [u64; 4], minute: Minute| {
            [sum[0] + minute.units, sum[1] + minute.denied, sum[2] + minute.waited, sum[3].max(minute.peak)]
        };
        minutes.into_iter().fold([0; 4], add)
    };
    let since = SystemTime::now() - HOUR;
    let history = |store: &Store, name: &str| sum(Observer::new(store, 0).history(name, since).unwrap());
    store.flush().unwrap();
    let quick_now = history(&store, "quick");
    assert_eq!(history(&store, "hourly"), [5, 2, 0, 5]);
    // The peak is read when counts are flushed. On a busy machine most of this second's starts may have expired by
    // then.
    assert!(quick_now[0] + quick_now[1] == 8 && quick_now[2] == 1 && quick_now[3] <= 5, "{quick_now:?}");
    // A minute that is written more than once counts once, and later counts of the same minute are added.
    assert!(!admitted(&*hourly, "a"));
    store.flush().unwrap();
    store.flush().unwrap();
    let database = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    let row = |name: &str| {
        let query = "SELECT sum(units), sum(denied), sum(waited), max(peak) FROM usage WHERE name = ?1";
        database.query_row(query, [name], |row| Ok([0, 1, 2, 3].map(|i| row.get::<_, i64>(i).unwrap() as u64))).unwrap()
    };
    assert_eq!(row("hourly"), [5, 3, 0, 5]);
    assert_eq!(row("quick"), quick_now);
    assert_eq!(history(&store, "hourly"), [5, 3, 0, 5]);
    assert_eq!(history(&store, "unused"), [0; 4]);
    // The flushed counts of another process are included after its death.
    let other = Child::run(|| {
        let store = open(&dir.url());
        assert!(!admitted(&*store.find("hourly").unwrap(), "a"));
        Store::tell_counts();
        // SAFETY: ends this process at once, as a crash does.
        unsafe { libc::raise(libc::SIGKILL) };
    });
    assert!(other.was_killed());
    assert_eq!(history(&store, "hourly"), [5, 4, 0, 5]);
}

#[test]
fn minutes_that_cannot_be_written_are_written_later() {
    let dir = Dir::new("observe-failing");
    let store = open(&dir.url());
    let limiter = store.limiter("api", "1/1h").unwrap();
    admitted(&*limiter, "");
    admitted(&*limiter, "");
    let stranger = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    stranger.execute_batch("BEGIN EXCLUSIVE").unwrap();
    let mut impatient = StoreOptions::default();
    impatient.timeout = Duration::from_millis(50);
    let impatient = Store::with_options(&dir.url(), impatient).unwrap();
    Store::tell_counts();
    assert!(impatient.flush().is_err());
    stranger.execute_batch("COMMIT").unwrap();
    store.flush().unwrap();
    let denied: i64 = stranger.query_row("SELECT sum(denied) FROM usage", [], |row| row.get(0)).unwrap();
    assert_eq!(denied, 1);
}

#[test]
fn an_observer_writes_what_dead_processes_have_not_written() {
    let dir = Dir::new("observe-left");
    let other = Child::run(|| {
        let limiter = open(&dir.url()).limiter("api", "100/1h").unwrap();
        limiter.open().unwrap();
        assert!(MayWait::Never.during(|| admitted(&*limiter, "")));
        // SAFETY: ends this process at once, as a crash does.
        unsafe { libc::raise(libc::SIGKILL) };
    });
    assert!(other.was_killed());
    let mut observer = Observer::new(&open(&dir.url()), 0);
    let mut lag = || observer.look().unwrap().ledger_lag;
    assert!(lag() > Duration::ZERO);
    wait_until("it is written", || lag().is_zero());
    let database = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    let starts: i64 = database.query_row("SELECT count(*) FROM starts", [], |row| row.get(0)).unwrap();
    assert_eq!(starts, 1);
}

#[test]
fn an_observer_does_not_create_a_missing_store() {
    let dir = Dir::new("observe-missing");
    let mut options = StoreOptions::default();
    options.create = false;
    let store = Store::with_options(&dir.url(), options.clone()).unwrap();
    let error = Observer::new(&store, 0).look().unwrap_err();
    assert!(error.to_string().contains("there is no store"), "{error}");
    assert_eq!(dir.names(), [""; 0]);
    open(&dir.url()).limiter("api", "5/1h").unwrap().open().unwrap();
    assert_eq!(Observer::new(&store, 0).look().unwrap().limits.len(), 1);
}

#[test]
fn a_snapshot_of_one_limit_reads_no_other() {
    let dir = Dir::new("observe-only");
    for url in ["memory:".to_owned(), dir.url()] {
        let store = open(&url);
        for name in ["a", "api-2", "apis", "b"] {
            store.limiter(name, "10/1h").unwrap().open().unwrap();
        }
        store.limiter("api", "10/1h + 5 concurrent").unwrap().open().unwrap();
        let look = |name: &str| Observer::new(&store, 5).only(name).look();
        let names = |name: &str| look(name).unwrap().limits.iter().map(|limit| limit.name.clone()).collect::<Vec<_>>();
        assert_eq!(names("api"), ["api/concurrency", "api/rate"], "{url}");
        assert_eq!(
            (names("api/rate"), names("apis"), names("ap")),
            (vec!["api/rate".into()], vec!["apis".into()], vec![])
        );
    }
    // What it does not read, it does not find damaged.
    let database = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
    assert_eq!(database.execute("UPDATE limits SET policy = 'nothing' WHERE name LIKE 'api-%'", []), Ok(1));
    let store = open(&dir.url());
    assert!(Observer::new(&store, 5).look().unwrap_err().to_string().contains("api-2"));
    assert_eq!(Observer::new(&store, 5).only("api").look().unwrap().limits.len(), 2);
}

#[test]
fn a_full_limit_of_jobs_is_free_when_a_decision_says_so() {
    let dir = Dir::new("observe-jobs");
    for url in ["memory:".to_owned(), dir.url()] {
        let (mut options, clock) = (StoreOptions::default(), ManualClock::new());
        (options.timeout, options.clock) = (Duration::from_secs(60), Some(clock.clone()));
        let store = Store::with_options(&url, options).unwrap();
        store.open().unwrap();
        clock.advance(HOUR);
        let policy = Policy::concurrency(3).unwrap();
        let policies = [
            ("plain", policy),
            ("leased", policy.with_lease(HOUR).unwrap()),
            ("cooling", policy.with_lease(HOUR).unwrap().with_cooldown(HOUR / 2).unwrap()),
        ];
        for (name, policy) in policies {
            let limiter = store.declare(name, policy).unwrap();
            let mut seen = Vec::new();
            let mut compare = |what: &str| {
                let shown = Observer::new(&store, 5).only(name).look().unwrap().limits.remove(0).retry_after;
                assert_eq!(shown, limiter.peek("", 1).unwrap().retry_after, "{name}, {what}, {url}");
                seen.push(shown);
            };
            compare("unused");
            for _ in 0..3 {
                assert!(admitted(&*limiter, ""));
                clock.advance(HOUR / 6);
            }
            compare("full");
            limiter.pause(HOUR / 12, "").unwrap();
            compare("full and paused");
            clock.advance(HOUR / 12);
            let Attempt::Denied(_) = limiter.attempt("", 1).unwrap() else { panic!("{name} is not full") };
            store.override_limit(name, "1 concurrent", None).unwrap();
            compare("lowered");
            clock.advance(4 * HOUR);
            compare("over");
            assert!(seen[1] > Duration::ZERO && seen[2] == HOUR / 12, "{name}: {seen:?}");
        }
    }
}

#[test]
fn changes_show_in_the_next_snapshot() {
    let dir = Dir::new("observe-changes");
    let (store, other) = (open(&dir.url()), open(&dir.url()));
    store.limiter("api", "10/1h").unwrap().open().unwrap();
    let mut observer = Observer::new(&other, 0);
    let mut look = || limit(&observer.look().unwrap(), "api").clone();
    assert_eq!(look().overriding, None);
    store.override_limit("api", "20/1h", None).unwrap();
    let now = look();
    assert_eq!((now.policy().to_string(), now.declared.to_string()), ("20/1h".into(), "10/1h".into()));
    store.find("api").unwrap().pause(HOUR, "").unwrap();
    assert!(look().paused_for > HOUR - Duration::from_secs(600));
    store.lift("api", None).unwrap();
    store.limiter("new", "1/1s").unwrap().open().unwrap();
    assert_eq!(look().overriding, None);
    assert_eq!(observer.look().unwrap().limits.len(), 2);
    store.forget("new").unwrap();
    assert_eq!(observer.look().unwrap().limits.len(), 1);
}

#[cfg(any(feature = "redis", feature = "postgres"))]
#[test]
fn limits_on_a_server_are_visible_without_using_them() {
    for server in Server::each("observe") {
        let store = open(&server.url());
        let limiter = store.limiter("api", "10/1h").unwrap();
        for _ in 0..4 {
            assert!(admitted(&*limiter, ""));
        }
        store.limiter("both", "10/1m + 2 concurrent").unwrap().attempt("", 1).unwrap();
        let mut observer = Observer::new(&open(&server.url()), 3);
        let mut seen = observer.look().unwrap();
        let names: Vec<_> = seen.limits.iter().map(|limit| &*limit.name).collect();
        assert_eq!(names, ["api", "both/concurrency", "both/rate"], "{}", server.kind());
        assert!(!seen.counts_all_processes);
        // The units of a grant that another process holds count as used until they are returned.
        let used = |seen: &Snapshot, name| usage(&limit(seen, name).usage)[0];
        assert!((4..=10).contains(&used(&seen, "api").0), "{:?}", used(&seen, "api"));
        assert_eq!(used(&seen, "both/concurrency"), (1, 2, 0));
        store.override_limit("api", "20/1h", None).unwrap();
        seen = observer.look().unwrap();
        assert_eq!(limit(&seen, "api").policy().to_string(), "20/1h", "{}", server.kind());
        // The process that uses it sees its own counts.
        let own = Observer::new(&store, 3).look().unwrap();
        assert_eq!(limit(&own, "api").stats.admitted, 4);
        assert!(limit(&own, "api").grants.is_some_and(|grants| grants.requests > 0), "{own:?}");
    }
}
