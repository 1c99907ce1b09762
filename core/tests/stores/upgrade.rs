//! A store of version 1 becomes one of this version when it is opened.

use crate::common::limits::patient;
use crate::common::{self, Child, Dir};
use std::os::unix::fs::FileExt;
use std::time::{Duration, SystemTime};
use workglow_limit::*;

/// A store as the version before left it, when a process died while `api` became a part of a composite and `kind` another
/// kind, with a key of `tenants` about to lose its policy, and with starts of a forgotten limit.
const VERSION_1: &str = include_str!("version_1.sql");

/// Moves its starts to the present: ?1 by the wall clock, ?2 by the uptime.
const NOW: [&str; 4] = [
    "UPDATE moves SET until = until + ?2 - (SELECT max(uptime) FROM executions) WHERE becomes IS NULL AND ?1",
    "UPDATE store SET pruned_at = pruned_at + ?2 - (SELECT max(uptime) FROM executions) WHERE ?1",
    "UPDATE usage SET minute = strftime('%Y-%m-%d %H:%M', ?1 / 1000000, 'unixepoch') WHERE ?2",
    "UPDATE executions SET started_at = started_at + ?1 - last, expires_at = expires_at + ?1 - last, uptime = uptime + ?2 - up
       FROM (SELECT max(started_at) AS last, max(uptime) AS up FROM executions)",
];

fn of_version_1(name: &str) -> Dir {
    let dir = Dir::in_memory(name);
    Child::run(|| {
        let mut up = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `up` is a valid place for the answer.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut up) }, 0);
        let wall = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as i64;
        let database = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
        database.execute_batch(VERSION_1).unwrap();
        for change in NOW {
            database.execute(change, [wall, up.tv_sec * 1_000_000]).unwrap();
        }
    })
    .join();
    dir
}

/// The number in a column of one row. In a child, since SQLite and forks do not mix.
fn number(dir: &Dir, query: &str) -> i64 {
    let found = &common::shared(1)[0];
    Child::run(|| {
        let database = rusqlite::Connection::open(dir.file("limits.db")).unwrap();
        let number: i64 = database.query_row(query, [], |row| row.get(0)).unwrap();
        found.store(number as u64, std::sync::atomic::Ordering::Release);
    })
    .join();
    found.load(std::sync::atomic::Ordering::Acquire) as i64
}

/// Asserts that everything of it is there. A twentieth of each limit may be missing from the ledger.
fn assert_all(store: &Store) {
    let rest = |name: &str, key: &str| store.find(name).unwrap().peek(key, 0).unwrap().remaining;
    common::wait_until("a lost lane is noticed", || rest("kind", "") > 0);
    assert_eq!(
        [rest("api/rate", "acme"), rest("api/rate", ""), rest("api/concurrency", "")],
        [60 - 3 - 3, 60 - 2 - 3, 5]
    );
    assert_eq!([rest("both/rate", ""), rest("both/concurrency", "")], [80 - 2 - 4, 2]);
    assert_eq!(rest("mail", ""), 100 - 4 - 5);
    assert_eq!(
        [rest("tenants", "gold"), rest("tenants", "tin"), rest("tenants", "new")],
        [50 - 5 - 2, 20 - 1 - 1, 20 - 1]
    );
    assert_eq!(rest("kind", ""), 5);
    assert_eq!(store.find("gone").map(drop).unwrap_err().name(), "unknown_limit");
    assert_eq!(store.verify(false).unwrap(), []);
}

fn assert_all_in(dir: &Dir) {
    Child::run(|| assert_all(&patient(&dir.url()))).join();
    let starts = |name: &str| number(dir, &format!("SELECT count(*) FROM starts WHERE name = '{name}'"));
    assert_eq!(["api/rate", "api", "mail", "kind"].map(starts), [5, 0, 4, 0]);
    // A thread of the store may have settled the limit by now: then what its keys may lack is there as used.
    assert!((6..=8).contains(&starts("tenants")), "{}", starts("tenants"));
    assert_eq!(number(dir, "SELECT user_version FROM pragma_user_version"), 2);
    assert_eq!(number(dir, "SELECT units FROM usage WHERE name = 'mail'"), 4);
}

#[test]
fn an_earlier_store_has_all_that_it_had() {
    let dir = of_version_1("earlier");
    // Before anything else opens it.
    Child::run(|| {
        let store = patient(&dir.url());
        assert_eq!(store.verify(false).unwrap(), []);
        assert_all(&store);
    })
    .join();
    assert_all_in(&dir);
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    Child::run(|| {
        let store = patient(&dir.url());
        common::wait_until("the lost lane is noticed", || {
            store.find("mail").unwrap().peek("", 0).unwrap().remaining > 0
        });
        let (gold, gone) = (store.find("tenants").unwrap(), store.limiter("gone", "60/1h").unwrap());
        // What a thread of the store has settled by then counts as used, and another twentieth may be missing.
        let is_left = |limiter: &dyn Limiter, key: &str, most: u64, twentieth: u64| {
            let left = limiter.peek(key, 0).unwrap().remaining;
            assert!((most - twentieth..=most).contains(&left), "{key}: {left} of {most}");
        };
        is_left(&*gold, "gold", 43, 2);
        assert_eq!(gone.peek("", 0).unwrap().remaining, 60);
        // And names change as before.
        let api = store.limiter("api", "60/1h").unwrap();
        is_left(&*api, "acme", 54, 3);
        store.override_limit("api", "70/1h", None).unwrap();
        is_left(&*api, "acme", 64, 3);
    })
    .join();
}

/// Kills this process at a pass of this point.
fn die_at(point: &'static str, passes: u32) {
    fault::at(point, move || if passes > 1 { die_at(point, passes - 1) } else { common::raise(libc::SIGKILL) });
}

#[test]
fn a_death_during_the_upgrade_loses_nothing() {
    for (point, passes) in
        [1, 2, 3].map(|pass| ("upgrading", pass)).into_iter().chain([("lane-claimed", 1), ("lane-filled", 1)])
    {
        let dir = of_version_1("dying-upgrade");
        let child = Child::run(|| {
            die_at(point, passes);
            patient(&dir.url()).open().unwrap();
        });
        assert!(child.was_killed(), "{point} {passes}");
        // The journal of the transaction is rolled back by the next reader.
        let version = number(&dir, "SELECT user_version FROM pragma_user_version");
        assert_eq!(version, if point == "upgrading" { 1 } else { 2 }, "{point} {passes}");
        assert_all_in(&dir);
    }
}

#[test]
fn processes_that_open_it_at_the_same_time_see_the_same() {
    let dir = of_version_1("together");
    let stopped = Child::run(|| {
        fault::at("upgrading", || common::raise(libc::SIGSTOP));
        assert_all(&patient(&dir.url()));
    });
    stopped.wait_until_stopped();
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_millis(50);
    let error = Store::with_options(&dir.url(), options).unwrap().open().unwrap_err();
    assert_eq!(error.name(), "store_timeout");
    let others = [(); 3].map(|()| Child::run(|| assert_all(&patient(&dir.url()))));
    stopped.signal(libc::SIGCONT);
    stopped.join();
    others.into_iter().for_each(Child::join);
    assert_all_in(&dir);
}

/// They could not read it any more, and would write nothing.
#[test]
fn a_store_that_processes_of_the_earlier_version_use_stays_as_it_is() {
    let dir = of_version_1("in-use");
    let earlier = dir.file("earlier.db");
    std::fs::rename(dir.file("limits.db"), &earlier).unwrap();
    let user = Child::run(|| {
        let store = patient(&dir.url());
        store.open().unwrap();
        common::raise(libc::SIGSTOP);
    });
    user.wait_until_stopped();
    std::fs::rename(&earlier, dir.file("limits.db")).unwrap();
    let lane = std::fs::OpenOptions::new().write(true).open(dir.file("limits.db-lane")).unwrap();
    lane.write_all_at(&10u64.to_le_bytes(), 8).unwrap();
    let before = std::fs::read(dir.file("limits.db")).unwrap();
    let error = patient(&dir.url()).open().unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion { found: 10, .. }), "{error}");
    assert!(error.to_string().contains("limits.db-lane"), "{error}");
    assert_eq!(std::fs::read(dir.file("limits.db")).unwrap(), before);
    user.signal(libc::SIGKILL);
    assert!(user.was_killed());
    // The lane is another store's, and no start counts in it.
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    assert_all_in(&dir);
}
