//! Starts that a change of names or policies could forget: it is interrupted by a death, the lane is lost, or an older
//! copy of the database is put in its place.

use crate::common::limits::patient;
use crate::common::{self, Child, Dir, shared, write_behind_up_to};
use std::sync::atomic::Ordering::*;
use std::time::Duration;
use workglow_limit::*;

/// A key that is never used.
const NEW: &str = "new";

fn take(limiter: &dyn Limiter, most: u64) {
    (0..most).for_each(|_| assert!(limiter.decide("key", 1).unwrap().admitted));
}

fn used_of(limiter: &dyn Limiter, key: &str) -> u64 {
    let found = limiter.peek(key, 1).unwrap();
    found.limit - found.remaining
}

fn used(limiter: &dyn Limiter) -> u64 {
    used_of(limiter, "key")
}

fn open(store: &Store, name: &str, text: &str) -> std::sync::Arc<dyn Limiter> {
    let limiter = store.limiter(name, text).unwrap();
    limiter.open().unwrap();
    limiter
}

fn in_a_child(dir: &Dir, work: impl FnOnce(&Store)) {
    Child::run(|| work(&patient(&dir.url()))).join();
}

/// Does some work in a child, which is killed at this point.
fn killed_at(point: &'static str, dir: &Dir, work: impl FnOnce(&Store)) {
    let child = Child::run(|| {
        let store = patient(&dir.url());
        store.open().unwrap();
        fault::at(point, || common::raise(libc::SIGKILL));
        work(&store);
    });
    assert!(child.was_killed(), "{point}");
}

/// The units in use of a limit after the loss of the lane, beyond the budget that may be missing.
fn known_after_a_loss(dir: &Dir, name: &str) -> u64 {
    let known = shared(1);
    std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
    in_a_child(dir, |store| {
        let limiter = store.find(name).unwrap();
        common::wait_until("the lost lane is noticed", || limiter.peek(NEW, 1).unwrap().remaining > 0);
        known[0].store(used(&*limiter) - used_of(&*limiter, NEW), Release);
    });
    known[0].load(Acquire)
}

/// Runs a statement on the database.
fn execute(dir: &Dir, statement: &str) {
    Child::run(|| common::with_database(dir, |database| database.execute_batch(statement).unwrap())).join();
}

/// A forgotten limit keeps its name until another limit has it in the database: a process may die before that.
#[test]
fn a_rename_takes_a_name_away_after_the_commit() {
    for point in ["deciding", "decided", "followed"] {
        let dir = Dir::in_memory("name-taken");
        in_a_child(&dir, |store| {
            take(&*open(store, "api", "60/1h"), 3);
            take(&*open(store, "api/rate", "60/1h"), 5);
            store.forget("api/rate").unwrap();
            store.flush().unwrap();
        });
        killed_at(point, &dir, |store| drop(open(store, "api", "60/1h + 5 concurrent")));
        // The forgotten limit may return where nothing has changed.
        let (name, expected) = if point == "deciding" { ("api/rate", 5) } else { ("api/rate", 3) };
        in_a_child(&dir, |store| {
            if point == "deciding" {
                open(store, name, "60/1h");
                assert_eq!(used(&*store.find("api").unwrap()), 3);
            }
            assert_eq!(used(&*store.find(name).unwrap()), expected, "{point}");
        });
        assert_eq!(known_after_a_loss(&dir, name), expected, "{point}");
    }
}

/// A limit may lose its name to another in one call. Each keeps its own starts, in whichever order they are declared.
#[test]
fn a_name_that_passes_on_in_one_call_takes_no_starts_along() {
    const LINES: [&str; 2] = ["api = \"60/1h\"\n", "\"api/rate\" = \"60/1h\"\n"];
    for (is_turned, point) in
        [(false, None), (true, None), (false, Some("decided")), (true, Some("decided")), (false, Some("followed"))]
    {
        let what = format!("turned {is_turned}, {point:?}");
        let dir = Dir::in_memory("passed-on");
        let file = dir.file("limits.toml");
        let text = if is_turned { LINES[1].to_owned() + LINES[0] } else { LINES.concat() };
        std::fs::write(&file, text).unwrap();
        in_a_child(&dir, |store| {
            open(store, "api", "60/1h + 5 concurrent");
            take(&*store.find("api/rate").unwrap(), 4);
            store.flush().unwrap();
        });
        let load = |store: &Store| drop(store.load(&file).unwrap());
        match point {
            Some(point) => killed_at(point, &dir, load),
            None => in_a_child(&dir, load),
        }
        in_a_child(&dir, |store| {
            let [api, part] = ["api", "api/rate"].map(|name| store.find(name).unwrap());
            assert_eq!((used(&*api), used(&*part)), (4, 0), "{what}");
            take(&*part, 2);
            store.flush().unwrap();
        });
        assert_eq!(known_after_a_loss(&dir, "api"), 4, "{what}");
        assert_eq!(known_after_a_loss(&dir, "api/rate"), 2, "{what}");
    }
}

/// The same in memory.
#[test]
fn a_name_that_passes_on_in_memory_takes_no_starts_along() {
    let dir = Dir::in_memory("passed-on-in-memory");
    for text in ["api = \"60/1h\"\n\"api/rate\" = \"60/1h\"\n", "\"api/rate\" = \"60/1h\"\napi = \"60/1h\"\n"] {
        let file = dir.file("limits.toml");
        std::fs::write(&file, text).unwrap();
        let store = patient("memory:");
        open(&store, "api", "60/1h + 5 concurrent");
        take(&*store.find("api/rate").unwrap(), 4);
        store.load(&file).unwrap();
        let [api, part] = ["api", "api/rate"].map(|name| store.find(name).unwrap());
        assert_eq!((used(&*api), used(&*part)), (4, 0), "{text}");
    }
}

/// An older copy gets everything in one transaction, in place of its own rows: nothing is there twice, even if the process
/// that writes it dies or fails.
#[test]
fn an_older_copy_has_no_start_twice() {
    for point in [None, Some("rows-written")] {
        let dir = Dir::in_memory("no-start-twice");
        let again = |store: &Store| ["api", "mail"].iter().for_each(|name| take(&*open(store, name, "60/1h"), 4));
        let both = |store: &Store| {
            again(store);
            store.flush().unwrap();
        };
        in_a_child(&dir, both);
        let copy = dir.file("copy.db");
        std::fs::copy(dir.file("limits.db"), &copy).unwrap();
        in_a_child(&dir, both);
        std::fs::rename(&copy, dir.file("limits.db")).unwrap();
        if let Some(point) = point {
            let child = Child::run(|| {
                fault::at(point, || common::raise(libc::SIGKILL));
                patient(&dir.url()).open().unwrap();
            });
            assert!(child.was_killed(), "{point}");
        }
        in_a_child(&dir, |store| store.flush().unwrap());
        for name in ["api", "mail"] {
            assert_eq!(known_after_a_loss(&dir, name), 8, "{name}, {point:?}");
        }
    }
}

/// A limit keeps its number where an older copy lacks it: rows that were written before are found when it is declared.
#[test]
fn an_older_copy_learns_the_numbers_of_limits_that_it_lacks() {
    let dir = Dir::in_memory("lacks");
    in_a_child(&dir, |store| take(&*open(store, "api", "60/1h"), 1));
    let copy = dir.file("copy.db");
    std::fs::copy(dir.file("limits.db"), &copy).unwrap();
    // In the database of this change only: no start is written after the copy.
    in_a_child(&dir, |store| drop(open(store, "mail", "60/1h")));
    std::fs::rename(&copy, dir.file("limits.db")).unwrap();
    in_a_child(&dir, |store| {
        take(&*open(store, "mail", "60/1h"), 4);
        store.flush().unwrap();
    });
    assert_eq!(known_after_a_loss(&dir, "mail"), 4);
}

/// The window of a limit whose rows expire soon. (Shorter ones are in no ledger.)
const SHORT: Duration = Duration::from_millis(2_500);
const BRIEF: &str = "20/2500ms";

/// How a limit's window grows.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Grows {
    Declared,
    Overridden,
    OfAKey,
    Forgotten,
    Renamed,
}

fn grow(store: &Store, how: Grows) {
    match how {
        Grows::Declared => drop(open(store, "api", "20/1d")),
        Grows::Overridden => store.override_limit("api", "20/1d", None).unwrap(),
        Grows::OfAKey => store.override_limit("api", "20/1d", Some("key")).unwrap(),
        Grows::Forgotten => {
            store.forget("api").unwrap();
            open(store, "api", "20/1d");
        }
        Grows::Renamed => drop(open(store, "api", "20/1d + 5 concurrent")),
    }
}

/// A longer window needs the rows that were written for a shorter one. They stay until they count for that long, whoever
/// dies meanwhile.
#[test]
fn rows_stay_where_a_window_grows() {
    let all = [Grows::Declared, Grows::Overridden, Grows::OfAKey, Grows::Forgotten, Grows::Renamed];
    let cases = all.iter().flat_map(|how| [None, Some("decided"), Some("followed")].map(|point| (*how, point)));
    // A forgotten limit passes the points twice.
    let cases = cases.filter(|(how, point)| *how != Grows::Forgotten || point.is_none());
    // They wait side by side.
    let children = cases.map(|(how, point)| {
        Child::run(move || {
            let what = format!("{how:?}, {point:?}");
            let dir = Dir::in_memory(&format!("grows-{how:?}-{point:?}"));
            write_behind_up_to(Duration::ZERO);
            in_a_child(&dir, |store| {
                take(&*open(store, "api", BRIEF), 4);
                open(store, "other", "20/1h");
                store.flush().unwrap();
            });
            match point {
                Some(point) => killed_at(point, &dir, |store| grow(store, how)),
                None => in_a_child(&dir, |store| grow(store, how)),
            }
            std::thread::sleep(SHORT);
            // The ledger is pruned by the next write.
            execute(&dir, "UPDATE store SET pruned_at = 0");
            in_a_child(&dir, |store| {
                let name = if how == Grows::Renamed { "api/rate" } else { "api" };
                assert_eq!(used(&*store.find(name).unwrap()), 4, "{what}: in the lane");
                take(&*store.find("other").unwrap(), 2);
            });
            let name = if how == Grows::Renamed { "api/rate" } else { "api" };
            assert!(known_after_a_loss(&dir, name) >= 4, "{what}");
        })
    });
    children.collect::<Vec<_>>().into_iter().for_each(Child::join);
}

/// So do they where nothing else happens between the change and the loss of the lane.
#[test]
fn a_window_that_grew_before_a_loss_has_its_rows() {
    let cases = [(Grows::Declared, "decided"), (Grows::OfAKey, "decided"), (Grows::Declared, "followed")];
    let children = cases.map(|(how, point)| {
        Child::run(move || {
            let dir = Dir::in_memory(&format!("grew-before-{how:?}-{point}"));
            write_behind_up_to(Duration::ZERO);
            in_a_child(&dir, |store| {
                take(&*open(store, "api", BRIEF), 4);
                store.flush().unwrap();
            });
            killed_at(point, &dir, |store| grow(store, how));
            std::thread::sleep(SHORT);
            assert!(known_after_a_loss(&dir, "api") >= 4, "{how:?}, {point}");
        })
    });
    children.into_iter().for_each(Child::join);
}

/// What the ledger lacked of a forgotten limit is not forgotten when it returns with a smaller budget.
#[test]
fn a_forgotten_limit_returns_with_what_the_ledger_lacks_of_it() {
    for point in [None, Some("decided"), Some("followed")] {
        let dir = Dir::in_memory("returns-smaller");
        in_a_child(&dir, |store| {
            // A budget of 50.
            take(&*open(store, "api", "1000/1h"), 20);
            store.forget("api").unwrap();
        });
        let back = |store: &Store| drop(open(store, "api", "100/1h"));
        match point {
            Some(point) => killed_at(point, &dir, back),
            None => in_a_child(&dir, back),
        }
        // Beyond the budget of an unused key.
        std::fs::remove_file(dir.file("limits.db-lane")).unwrap();
        in_a_child(&dir, |store| {
            let limiter = store.find("api").unwrap();
            common::wait_until("the lost lane is noticed", || limiter.peek(NEW, 1).unwrap().remaining > 0);
            assert!(used(&*limiter) >= 20, "{point:?}: {}", used(&*limiter));
        });
    }
}

/// A copy of the database that had a change of its own may be written in its place. Running processes have exactly its
/// policies then, whichever number that change has.
#[test]
fn a_copy_with_a_change_of_its_own_is_followed() {
    for step in [1, 1_u64 << 40] {
        let dir = Dir::in_memory("own-change");
        Child::run(|| {
            let store = patient(&dir.url());
            let limits = ["api", "mail"].map(|name| open(&store, name, "60/1h"));
            take(&*limits[0], 2);
            store.flush().unwrap();
            let copy = std::fs::read(dir.file("limits.db")).unwrap();
            store.override_limit("mail", "50/1h", None).unwrap();
            let elsewhere = Dir::in_memory("own-change-elsewhere");
            std::fs::write(elsewhere.file("limits.db"), copy).unwrap();
            execute(
                &elsewhere,
                &format!(
                    "UPDATE store SET generation = generation + {step};
                     UPDATE limits SET override = '30/1h', generation = (SELECT generation FROM store) WHERE name = 'api'"
                ),
            );
            std::fs::copy(elsewhere.file("limits.db"), dir.file("limits.db")).unwrap();
            // It is noticed with the next access, and followed with the next rare operation.
            store.flush().unwrap();
            open(&store, "third", "1/1h");
            let found = limits.each_ref().map(|limiter| limiter.peek("key", 1).unwrap());
            assert_eq!(found.each_ref().map(|found| found.limit), [30, 60], "step {step}");
            assert_eq!(found.map(|found| found.remaining), [28, 60], "step {step}");
        })
        .join();
    }
}

/// A caller writes what changes of policies have left only until its deadline. A thread of the store writes the rest, so
/// the rows are kept without another call.
#[test]
fn a_long_change_of_rows_outlasts_no_deadline() {
    const TIMEOUT: Duration = Duration::from_secs(3);
    let dir = Dir::in_memory("long-change");
    let flags = shared(2);
    Child::run(|| {
        let mut options = StoreOptions::default();
        options.timeout = TIMEOUT;
        let store = Store::with_options(&dir.url(), options).unwrap();
        open(&store, "api", "20/1h");
        // Of several steps.
        let rows = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
                    INSERT INTO executions SELECT id, 'key', printf('%032d', i), 0, 1, 1, 1, 0 FROM n, limits";
        common::with_database(&dir, |database| database.execute_batch(rows).unwrap());
        fault::at("keeping", move || {
            // In the store's thread.
            fault::at("keeping", move || {
                common::wait_until("the caller has returned", || flags[1].load(Acquire) == 1);
            });
            std::thread::sleep(TIMEOUT);
            flags[0].store(1, Release);
        });
        store.override_limit("api", "20/1d", None).unwrap();
        assert_eq!(flags[0].load(Acquire), 1, "it has begun to change the rows");
        flags[1].store(1, Release);
        common::wait_until("all rows are kept", || {
            let query = "SELECT missing IS NULL FROM limits WHERE name = 'api'";
            common::with_database(&dir, |database| database.query_row(query, [], |row| row.get(0)).unwrap_or(false))
        });
    })
    .join();
}

/// Returns whether the ledger has all starts from before the limits' policies changed. Then their old rows are removed.
fn has_all(dir: &Dir) -> bool {
    let query = "SELECT count(missing) = 0 FROM limits WHERE policy IS NOT NULL";
    common::with_database(dir, |database| database.query_row(query, [], |row| row.get(0)).unwrap_or(false))
}

/// What a process left that died meanwhile is done by another, without a change, a flush or an end.
#[test]
fn the_ledger_of_a_process_that_died_during_a_change_is_settled() {
    let dir = Dir::in_memory("left-unsettled");
    in_a_child(&dir, |store| take(&*open(store, "api", "20/1h"), 4));
    killed_at("keeping", &dir, |store| store.override_limit("api", "20/1d", None).unwrap());
    Child::run(|| {
        assert!(!has_all(&dir));
        let limiter = patient(&dir.url()).find("api").unwrap();
        common::wait_until("the ledger has all starts", || {
            limiter.decide("key", 1).unwrap();
            has_all(&dir)
        });
    })
    .join();
}

/// A limit that returns under its number may lack starts, which the next call writes.
#[test]
fn the_ledger_of_a_limit_that_returns_under_its_number_is_settled() {
    let dir = Dir::in_memory("number-unsettled");
    Child::run(|| {
        let store = patient(&dir.url());
        take(&*open(&store, "api", "100/1s"), 1);
        store.forget("api").unwrap();
        open(&store, "api", "2 concurrent + delay 1s");
        store.forget("api").unwrap();
        open(&store, "api", "100/1s");
        store.flush().unwrap();
        assert!(has_all(&dir));
    })
    .join();
}
