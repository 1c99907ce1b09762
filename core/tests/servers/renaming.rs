//! A limit on a server that gets another name: processes of both declarations run at the same time, and count together.
#![cfg(any(feature = "redis", feature = "postgres"))]

use crate::common::limits::patient;
use crate::common::server::Server;
use std::sync::Arc;
use std::time::Duration;
use workglow_limit::observe::Observer;
use workglow_limit::*;

/// A rate of 10, a second part that never denies, and the name of the first.
const WITHOUT_NAME: &str = "10/1h + 1000/1s burst 1000";
const NAMED: &str = "requests: 10/1h + 1000/1s burst 1000";
const OTHERWISE: &str = "calls: 10/1h + 1000/1s burst 1000";

/// Processes of one database, whose time is set by the test.
struct Fleet {
    url: String,
    clock: ManualClock,
}

impl Fleet {
    fn of(server: &Server) -> Fleet {
        Fleet { url: server.new_database(), clock: ManualClock::new() }
    }

    fn store(&self) -> Store {
        let mut options = StoreOptions::default();
        (options.clock, options.timeout) = (Some(self.clock.clone()), Duration::from_secs(60));
        Store::with_options(&self.url, options).unwrap()
    }

    /// A process that declares the limit like this.
    fn process(&self, policies: &str) -> Arc<dyn Limiter> {
        let limiter = self.store().limiter("api", policies).unwrap();
        limiter.open().unwrap();
        limiter
    }
}

fn take(limiter: &dyn Limiter, most: usize) -> usize {
    let admitted = || matches!(limiter.attempt("ann", 1).unwrap(), Attempt::Admitted(_));
    (0..most).take_while(|_| admitted()).count()
}

#[test]
fn processes_of_both_names_count_together() {
    for server in Server::each("renamed") {
        let fleet = Fleet::of(&server);
        let old = fleet.process(WITHOUT_NAME);
        assert_eq!(take(&*old, 2), 2);
        let named = fleet.process(NAMED);
        assert_eq!((take(&*named, 2), take(&*old, 1)), (2, 1), "{}", server.kind());
        // One that restarts takes the name away again, which the others do not notice.
        let restarted = fleet.process(WITHOUT_NAME);
        assert_eq!((take(&*restarted, 1), take(&*named, 1), take(&*old, 1)), (1, 1, 1), "{}", server.kind());
        let otherwise = fleet.process(OTHERWISE);
        assert_eq!((take(&*otherwise, 2), take(&*named, 9), take(&*restarted, 9), take(&*old, 9)), (2, 0, 0, 0));
        let all = [old, named, restarted, otherwise, fleet.process(NAMED), fleet.process(WITHOUT_NAME)];
        assert!(all.iter().all(|limiter| take(&**limiter, 9) == 0), "{}", server.kind());
        fleet.clock.advance(Duration::from_secs(3_600));
        assert_eq!(all.iter().map(|limiter| take(&**limiter, 3)).sum::<usize>(), 10, "{}", server.kind());
    }
}

#[test]
fn a_limit_keeps_its_starts_as_a_part_and_alone() {
    for server in Server::each("renamed-whole") {
        let fleet = Fleet::of(&server);
        let forms = ["10/1h", WITHOUT_NAME, NAMED, "requests: 10/1h", "10/1h", OTHERWISE, WITHOUT_NAME, "10/1h"];
        let mut all: Vec<Arc<dyn Limiter>> = Vec::new();
        for form in forms {
            let limiter = fleet.process(form);
            assert_eq!(take(&*limiter, 1), 1, "{}: {form}", server.kind());
            all.push(limiter);
        }
        let left: Vec<usize> = all.iter().map(|limiter| take(&**limiter, 9)).collect();
        assert_eq!(left, [2, 0, 0, 0, 0, 0, 0, 0], "{}", server.kind());
    }
}

/// The name of the place is that of another limit from then on.
#[test]
fn a_new_limit_has_a_place_of_its_own_where_another_one_has_its_name() {
    for server in Server::each("renamed-taken") {
        let fleet = Fleet::of(&server);
        let old = fleet.process(WITHOUT_NAME);
        assert_eq!((take(&*old, 3), take(&*fleet.process(NAMED), 1)), (3, 1), "{}", server.kind());
        let both = [fleet.process("requests: 10/1h + rate: 8/1h"), fleet.process("requests: 10/1h + rate: 8/1h")];
        assert_eq!((take(&*both[0], 3), take(&*both[1], 1)), (3, 1), "{}", server.kind());
        assert_eq!(take(&*old, 9), 2, "{}", server.kind());
        let store = fleet.store();
        let remaining = |name: &str| store.find(name).unwrap().peek("ann", 1).unwrap().remaining;
        assert_eq!((remaining("api/requests"), remaining("api/rate")), (0, 4), "{}", server.kind());
        // It keeps what has started when it is the only one.
        assert_eq!(take(&*fleet.process("rate: 8/1h"), 9), 4, "{}", server.kind());
    }
}

/// As one that was a part between two times alone: its place has no name behind it again.
#[test]
fn a_new_part_does_not_share_the_place_of_the_one_that_came_back() {
    for server in Server::each("renamed-back") {
        let fleet = Fleet::of(&server);
        assert_eq!(take(&*fleet.process("10/1h"), 1), 1);
        assert_eq!(take(&*fleet.process("requests: 10/1h"), 1), 1);
        let alone = fleet.process("10/1h");
        assert_eq!(take(&*alone, 1), 1);
        // One that was alone keeps its starts in the part that is declared first.
        let all = [fleet.process("calls: 10/1h + requests: 10/1h"), fleet.process("calls: 10/1h + requests: 10/1h")];
        assert_eq!((take(&*all[0], 3), take(&*all[1], 9)), (3, 4), "{}", server.kind());
        assert_eq!(take(&*alone, 9), 0, "{}", server.kind());
        let store = fleet.store();
        let remaining = |name: &str| store.find(name).unwrap().peek("ann", 1).unwrap().remaining;
        assert_eq!((remaining("api/calls"), remaining("api/requests")), (0, 3), "{}", server.kind());
    }
}

#[test]
fn overrides_and_observers_find_a_renamed_limit() {
    for server in Server::each("renamed-shown") {
        let fleet = Fleet::of(&server);
        let old = fleet.process(WITHOUT_NAME);
        assert_eq!(take(&*old, 4), 4);
        fleet.store().override_limit("api", "6/1h", Some("ann")).unwrap();
        let named = fleet.process(NAMED);
        assert_eq!((take(&*named, 1), take(&*old, 9)), (1, 1), "{}", server.kind());
        for store in [fleet.store(), fleet.store()] {
            assert_eq!(store.names().unwrap(), ["api"], "{}", server.kind());
            let seen = Observer::new(&store, 5).look().unwrap();
            let names: Vec<&str> = seen.limits.iter().map(|limit| limit.name.as_str()).collect();
            assert_eq!(names, ["api/requests", "api/token-bucket"], "{}", server.kind());
            let found = &seen.limits[0];
            assert_eq!((found.usage[0].limit, found.usage[0].used), (6, 6), "{}: {found:?}", server.kind());
            let one = Observer::new(&fleet.store(), 5).only("api/requests").look().unwrap();
            assert_eq!(one.limits[0].usage, found.usage, "{}", server.kind());
            let unknown = store.find("api/rate").err();
            assert!(matches!(unknown, Some(Error::UnknownLimit { .. })), "{unknown:?}");
        }
        fleet.store().lift("api", Some("ann")).unwrap();
        fleet.store().override_limit("api", "requests: 8/1h", None).unwrap();
        assert_eq!((take(&*old, 1), take(&*named, 9)), (1, 1), "{}", server.kind());
        assert_eq!(take(&*fleet.process(NAMED), 9), 0, "the override stays");
    }
}

#[test]
fn a_renamed_limit_that_is_forgotten_keeps_its_starts() {
    for server in Server::each("renamed-forgotten") {
        for form in [NAMED, "10/1h"] {
            let fleet = Fleet::of(&server);
            assert_eq!(take(&*fleet.process(WITHOUT_NAME), 4), 4);
            assert_eq!(take(&*fleet.process("calls: 10/1h"), 1), 1);
            assert_eq!(take(&*fleet.process(form), 1), 1);
            fleet.store().forget("api").unwrap();
            assert!(fleet.store().names().unwrap().is_empty(), "{}: {form}", server.kind());
            assert_eq!(Observer::new(&fleet.store(), 1).look().unwrap().limits.len(), 0, "{}: {form}", server.kind());
            assert_eq!(take(&*fleet.process(form), 9), 4, "{}: {form}", server.kind());
            assert_eq!(fleet.store().names().unwrap(), ["api"], "{}: {form}", server.kind());
        }
    }
}

/// With units that processes were granted.
#[test]
fn granted_units_count_under_both_names() {
    for server in Server::each("renamed-granted") {
        let url = server.new_database();
        let process = |policies: &str| patient(&url).limiter("api", policies).unwrap();
        let old = process(WITHOUT_NAME);
        let before = take(&*old, 6);
        let named = process(NAMED);
        let together = [&named, &old, &named, &old, &process(OTHERWISE)].map(|limiter| take(&**limiter, 2));
        let all = before + together.iter().sum::<usize>();
        assert_eq!((before, all), (6, 10), "{}: {together:?}", server.kind());
    }
}
