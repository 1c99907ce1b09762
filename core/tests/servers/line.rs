//! Who waits for slots on a server is in one line, from whatever process. Each store here represents one.
#![cfg(any(feature = "redis", feature = "postgres"))]

use crate::common::server::Server;
use crate::common::wait_until;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, MayWait, Outcome, Seat, Step, Waiter};
use workglow_limit::*;

const MOMENT: Duration = Duration::from_millis(1);

/// So long a waiter is known that does not ask.
const KNOWN: Duration = Duration::from_millis(300);

const PATIENCE: Option<Duration> = Some(Duration::from_secs(10));

/// Three processes that wait for one key of a limit.
struct Fleet {
    clock: ManualClock,
    limiters: [Arc<dyn Limiter>; 3],
    lines: [Line; 3],
    /// The starts that have not ended, and whose they are.
    held: Vec<(usize, RawPermit)>,
}

impl Fleet {
    fn new(server: &Server, policy: &str) -> Fleet {
        let clock = ManualClock::new();
        let limiters = std::array::from_fn(|_| {
            let mut options = StoreOptions::default();
            (options.clock, options.timeout) = (Some(clock.clone()), Duration::from_secs(60));
            let limiter = Store::with_options(&server.direct_url(), options).unwrap().limiter("jobs", policy).unwrap();
            // (Their clocks begin when they are opened.)
            limiter.open().unwrap();
            limiter
        });
        let lines = std::array::from_fn(|i| Line::new(Arc::<dyn Limiter>::clone(&limiters[i])));
        Fleet { clock, limiters, lines, held: Vec::new() }
    }

    fn take(&mut self, process: usize, weight: u64) -> bool {
        match self.limiters[process].attempt("key", weight).unwrap() {
            Attempt::Admitted(permit) => self.held.push((process, permit)),
            Attempt::Denied(after) => {
                assert!(!after.is_zero());
                return false;
            }
        }
        true
    }

    /// Adds a waiter, a moment after the last one.
    fn join(&mut self, process: usize, waiter: Waiter<'_>) -> u64 {
        self.clock.advance(MOMENT);
        match self.lines[process].join(waiter).unwrap() {
            Joined::Waiting(id) => id,
            Joined::Done(outcome) => panic!("{outcome:?}"),
        }
    }

    /// The processes ask in this order. Returns who has started.
    fn ask(&mut self, order: &[usize]) -> Vec<(usize, u64)> {
        let mut started = Vec::new();
        for &process in order {
            self.lines[process].wake(None);
            started.extend(self.advance(process));
        }
        started
    }

    /// A process does what is due. Returns who has started.
    fn advance(&mut self, process: usize) -> Vec<(usize, u64)> {
        let (mut over, mut started) = (Vec::new(), Vec::new());
        self.lines[process].advance(&mut over);
        for (id, outcome) in over {
            match outcome {
                Outcome::Admitted(permit) => self.held.push((process, permit)),
                Outcome::Expired(_) => continue,
                outcome => panic!("{outcome:?}"),
            }
            started.push((process, id));
        }
        started
    }

    fn end(&mut self) {
        let (process, permit) = self.held.remove(0);
        self.limiters[process].complete(&permit).unwrap();
    }
}

fn waiter() -> Waiter<'static> {
    Waiter::new("key", 1)
}

#[test]
fn waiters_of_all_processes_start_in_the_order_in_which_they_asked() {
    for server in Server::each("line-order") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(0, 1));
        let mut asked = Vec::new();
        for process in [1, 0, 0, 2, 1] {
            let id = fleet.join(process, waiter());
            asked.push((process, id));
            // Each shows its first waiter when it asks.
            assert_eq!(fleet.ask(&[0, 1, 2]), []);
        }
        let mut started = Vec::new();
        for order in [[0, 2, 1], [2, 1, 0], [1, 2, 0], [0, 1, 2], [2, 0, 1]] {
            fleet.end();
            // Whoever is not first is denied, though the unit is free; and so is a call that does not wait.
            if started.is_empty() {
                assert_eq!(fleet.ask(&[0, 2, 0]), []);
                assert!(!fleet.take(2, 1));
            }
            started.extend(fleet.ask(&order));
            started.extend(fleet.ask(&order));
        }
        assert_eq!(started, asked);
        fleet.end();
        assert!(fleet.take(2, 1), "nobody waits any more");
    }
}

#[test]
fn the_most_urgent_waiter_of_all_processes_starts_first_and_a_heavy_one_is_not_passed() {
    for server in Server::each("line-priority") {
        let mut fleet = Fleet::new(&server, "2 concurrent");
        assert!(fleet.take(0, 1) && fleet.take(0, 1));
        let usual = fleet.join(0, waiter());
        let heavy = fleet.join(1, Waiter::new("key", 2).priority(-1));
        let urgent = fleet.join(2, waiter().priority(-5));
        assert_eq!(fleet.ask(&[0, 1, 2]), []);
        fleet.end();
        assert_eq!(fleet.ask(&[0, 1, 2]), [(2, urgent)]);
        fleet.end();
        assert_eq!(fleet.ask(&[0, 1, 2]), [], "a unit is free, and the first one needs two");
        fleet.end();
        assert_eq!(fleet.ask(&[0, 1, 2]), [(1, heavy)]);
        fleet.end();
        assert_eq!(fleet.ask(&[0, 1, 2]), [(0, usual)]);
    }
}

/// Whoever stops waiting holds up nobody, and whoever does not ask any more does so for a moment.
#[test]
fn a_waiter_that_leaves_or_stands_still_is_not_waited_for() {
    for server in Server::each("line-leaves") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(0, 1));
        let leaves = fleet.join(0, waiter());
        let late = fleet.join(1, waiter().timeout(Some(10 * MOMENT)));
        let still = fleet.join(1, waiter());
        let last = fleet.join(2, waiter());
        assert_eq!(fleet.ask(&[0, 1, 2]), []);
        fleet.lines[0].leave(leaves);
        fleet.clock.advance(10 * MOMENT);
        assert_eq!(fleet.ask(&[0, 1, 2]), [], "{late} is sent away");
        fleet.end();
        assert_eq!(fleet.ask(&[2]), [], "the second process has asked before");
        fleet.clock.advance(KNOWN);
        assert_eq!(fleet.ask(&[2]), [(2, last)]);
        fleet.end();
        assert_eq!(fleet.ask(&[1]), [(1, still)]);
    }
}

/// What a composite takes when its waiter is next is in no line: nobody could tell it when it is first.
#[test]
fn a_composite_takes_what_is_free_and_other_keys_have_lines_of_their_own() {
    for server in Server::each("line-composite") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(0, 1));
        fleet.join(0, waiter());
        assert_eq!(fleet.ask(&[0]), []);
        assert!(matches!(fleet.limiters[1].attempt("other", 1).unwrap(), Attempt::Admitted(_)));
        let both: Arc<dyn Limiter> = Arc::new(CompositeLimiter::new([Arc::<dyn Limiter>::clone(&fleet.limiters[1])]));
        let mut line = Line::new(both);
        assert!(matches!(line.join(waiter()).unwrap(), Joined::Waiting(_)));
        fleet.end();
        let mut over = Vec::new();
        line.wake(None);
        line.advance(&mut over);
        assert!(matches!(over[..], [(_, Outcome::Admitted(_))]), "{over:?}");
        assert_eq!(fleet.ask(&[0]), []);
    }
}

/// The first request of a caller that would wait once took a unit that was free for somebody who waited.
#[test]
fn who_comes_overtakes_nobody_but_the_less_urgent_and_who_hardly_waits() {
    for server in Server::each("line-comes") {
        let mut fleet = Fleet::new(&server, "2 concurrent");
        assert!(fleet.take(0, 1) && fleet.take(0, 1));
        let heavy = fleet.join(1, Waiter::new("key", 2));
        assert_eq!(fleet.ask(&[1]), []);
        fleet.end();
        fleet.clock.advance(MOMENT);
        let seat = |waiter: Waiter| Seat::new(waiter.timeout(PATIENCE)).start_at_once(&*fleet.limiters[2]).unwrap();
        assert_eq!(seat(waiter()), None);
        let urgent = seat(waiter().priority(-1)).expect("it comes first");
        fleet.limiters[2].cancel(&urgent).unwrap();
        // A queue that has nothing else to do with a job takes what is free, in a line and without one.
        let now = waiter().timeout(Some(Duration::ZERO));
        let Joined::Done(Outcome::Admitted(permit)) = fleet.lines[2].join(now).unwrap() else {
            panic!("it was denied")
        };
        fleet.limiters[2].cancel(&permit).unwrap();
        let step = Seat::new(now).step(&*fleet.limiters[2]).unwrap();
        let Step::Admitted(permit) = step else { panic!("{step:?}") };
        fleet.limiters[2].cancel(&permit).unwrap();
        fleet.end();
        assert_eq!(fleet.ask(&[1]), [(1, heavy)]);
    }
}

/// An event loop never waits for a server itself. Its line once forgot a waiter that left, and the server did not.
#[test]
fn a_waiter_that_leaves_an_event_loop_is_not_waited_for() {
    for server in Server::each("line-loop") {
        let mut fleet = Fleet::new(&server, "2 concurrent");
        assert!(fleet.take(0, 1));
        let (send, woken) = mpsc::channel();
        let send = Mutex::new(send);
        let limiter = Arc::<dyn Limiter>::clone(&fleet.limiters[1]);
        let mut own = Line::with_wake(limiter, move || send.lock().unwrap().send(()).unwrap_or_default());
        let advance = |own: &mut Line| {
            let mut over = Vec::new();
            MayWait::Never.during(|| own.advance(&mut over));
            assert!(over.is_empty(), "{over:?}");
        };
        let Joined::Waiting(id) = MayWait::Never.during(|| own.join(Waiter::new("key", 2))).unwrap() else {
            panic!("it does not wait")
        };
        // Once the server knows it, one unit is free and kept for it.
        while fleet.take(2, 1) {
            let (process, permit) = fleet.held.pop().unwrap();
            fleet.limiters[process].cancel(&permit).unwrap();
            fleet.clock.advance(Duration::from_micros(1));
            own.wake(None);
            advance(&mut own);
            let _ = woken.recv_timeout(MOMENT);
        }
        // No time passes by the clock any more.
        MayWait::Never.during(|| own.leave(id));
        while !fleet.take(2, 1) {
            advance(&mut own);
            let _ = woken.recv_timeout(MOMENT);
        }
    }
}

/// With a cooldown the server knows when units are free. The line once did not know that the server knew its waiter, too.
#[test]
fn a_waiter_that_leaves_a_limit_with_a_cooldown_is_not_waited_for() {
    for server in Server::each("line-cooldown") {
        let mut fleet = Fleet::new(&server, "1 concurrent cooldown 50ms");
        assert!(fleet.take(0, 1));
        let leaves = fleet.join(1, waiter());
        assert_eq!(fleet.ask(&[1]), []);
        fleet.lines[1].leave(leaves);
        fleet.end();
        fleet.clock.advance(60 * MOMENT);
        assert!(fleet.take(2, 1));
    }
}

/// A line whose process has all units once asked every 2 ms whether one is free.
#[test]
fn who_has_all_units_asks_for_its_waiters_when_one_of_them_ends() {
    for server in Server::each("line-own") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(0, 1));
        let first = fleet.join(0, waiter());
        assert_eq!(fleet.ask(&[0]), []);
        // Another process frees the unit, of which nobody tells this one.
        fleet.limiters[1].clear("key").unwrap();
        fleet.held.clear();
        fleet.clock.advance(100 * MOMENT);
        assert_eq!(fleet.advance(0), [], "it has asked");
        fleet.clock.advance(100 * MOMENT);
        assert_eq!(fleet.advance(0), [(0, first)]);
        // A start that ends here is noticed when an event loop looks next.
        let second = fleet.join(0, waiter());
        fleet.end();
        fleet.clock.advance(16 * MOMENT);
        assert_eq!(fleet.advance(0), [(0, second)]);
        // Another process may have the unit by then.
        let third = fleet.join(0, waiter());
        fleet.end();
        assert!(fleet.take(1, 1));
        fleet.clock.advance(16 * MOMENT);
        assert_eq!(fleet.advance(0), []);
        fleet.end();
        fleet.clock.advance(16 * MOMENT);
        assert_eq!(fleet.advance(0), [(0, third)]);
        // A thread sleeps at the bell.
        let mut seat = Seat::new(waiter());
        for _ in 0..3 {
            assert!(matches!(seat.step(&*fleet.limiters[0]).unwrap(), Step::Sleep(_)));
            fleet.clock.advance(MOMENT);
        }
        fleet.end();
        let step = seat.step(&*fleet.limiters[0]).unwrap();
        let Step::Admitted(permit) = step else { panic!("{step:?}") };
        fleet.limiters[0].complete(&permit).unwrap();
    }
}

/// A line behind another one once asked every 2 to 16 ms, whatever jobs last.
#[test]
fn lines_ask_as_often_as_units_may_be_free() {
    for server in Server::each("line-asks") {
        let mut fleet = Fleet::new(&server, "1 concurrent lease 1m");
        assert!(fleet.take(0, 1));
        fleet.join(0, waiter());
        let last = fleet.join(1, waiter());
        for _ in 0..8 {
            assert_eq!(fleet.ask(&[0, 1]), []);
            fleet.clock.advance(10 * MOMENT);
        }
        let next = |fleet: &Fleet| fleet.lines[1].next().unwrap();
        assert_eq!(fleet.ask(&[1]), []);
        assert!(next(&fleet) >= 30 * MOMENT, "the job has lasted 80 ms: {:?}", next(&fleet));
        fleet.end();
        assert_eq!(fleet.ask(&[0, 1]).len(), 1);
        // It is first now, and the job of the other one has just begun.
        let pause = next(&fleet);
        assert!(pause >= 20 * MOMENT && pause <= 64 * MOMENT, "{pause:?}");
        for _ in 0..8 {
            fleet.clock.advance(10 * MOMENT);
            assert_eq!(fleet.ask(&[1]), []);
        }
        assert!(next(&fleet) <= 20 * MOMENT, "the job is about to end: {:?}", next(&fleet));
        fleet.end();
        assert_eq!(fleet.ask(&[1]), [(1, last)]);
    }
}

/// A line once took its first waiter back when a more urgent one came before it, and told of it again later.
#[test]
fn a_waiter_that_a_more_urgent_one_comes_before_keeps_its_turn() {
    for server in Server::each("line-displaced") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(2, 1));
        let first = fleet.join(0, waiter());
        assert_eq!(fleet.ask(&[0]), []);
        let second = fleet.join(1, waiter());
        assert_eq!(fleet.ask(&[1]), []);
        let urgent = fleet.join(0, waiter().priority(-1));
        assert_eq!(fleet.ask(&[0]), []);
        fleet.lines[0].leave(urgent);
        fleet.end();
        assert_eq!(fleet.ask(&[1]), [], "the first one waits in the other process");
        assert_eq!(fleet.ask(&[0]), [(0, first)]);
        fleet.end();
        assert_eq!(fleet.ask(&[1]), [(1, second)]);
    }
}

#[test]
fn peek_says_that_others_come_first() {
    for server in Server::each("line-peek") {
        let mut fleet = Fleet::new(&server, "2 concurrent");
        assert!(fleet.take(0, 1));
        let sees = |fleet: &Fleet| {
            let seen = fleet.limiters[2].peek("key", 1).unwrap();
            assert_eq!(seen.remaining, 1);
            assert_eq!(seen.retry_after.is_zero(), seen.admitted);
            assert_eq!(seen.denied_by.is_none(), seen.admitted);
            seen.admitted
        };
        assert!(sees(&fleet));
        let heavy = fleet.join(1, Waiter::new("key", 2));
        assert_eq!(fleet.ask(&[1]), []);
        fleet.clock.advance(MOMENT);
        assert!(!sees(&fleet), "a unit is free, and somebody waits for two");
        assert!(!fleet.take(2, 1));
        fleet.lines[1].leave(heavy);
        assert!(sees(&fleet));
        assert!(fleet.take(2, 1));
    }
}

/// The line asks for all of them. Each one that joined once made a request of its own.
#[test]
fn who_joins_a_line_asks_no_server() {
    for server in Server::each("line-joins") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(0, 1));
        let first = fleet.join(0, waiter());
        let joined = MayWait::Never.during(|| fleet.lines[0].join(waiter()));
        let Ok(Joined::Waiting(second)) = joined else { panic!("{joined:?}") };
        let too_much = fleet.lines[0].join(Waiter::new("key", 2)).unwrap_err();
        assert!(matches!(too_much, Error::WeightExceedsCapacity { .. }), "{too_much:?}");
        fleet.end();
        assert_eq!(fleet.ask(&[0]), [(0, first)]);
        fleet.end();
        assert_eq!(fleet.ask(&[0]), [(0, second)]);
    }
}

/// A start once read who waits, also where nobody did.
#[test]
fn a_start_where_nobody_waits_reads_no_waiters() {
    for mut server in Server::each("line-nobody") {
        let url = server.direct_url();
        let open = || Store::new(&url).unwrap().limiter("jobs", "1 concurrent").unwrap();
        let limiter = open();
        limiter.open().unwrap();
        if server.kind() == "postgres" {
            drop(server.postgres().command("ALTER DATABASE postgres SET track_functions = pl"));
        }
        // (On Postgres that applies to later connections.)
        drop(limiter);
        let limiter = open();
        for _ in 0..5 {
            let permit = limiter.try_acquire("key", 1).unwrap().unwrap();
            assert!(limiter.try_acquire("key", 1).unwrap().is_none());
            permit.complete().unwrap();
        }
        drop(limiter);
        assert_eq!(reads_of_waiters(&mut server, 10), 0);
    }
}

/// How often the server has read who waits, after so many decisions.
fn reads_of_waiters(server: &mut Server, decisions: u64) -> u64 {
    let (asked, read) = match server {
        #[cfg(feature = "redis")]
        Server::Redis(server) => {
            let info = server.info("commandstats");
            let calls = |command: &str| {
                let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
                line.map_or(0, |line| line.split(',').next().unwrap().parse::<u64>().unwrap())
            };
            (calls("evalsha"), calls("hget"))
        }
        #[cfg(feature = "postgres")]
        Server::Postgres(server) => {
            let who = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'workglow-limit'";
            wait_until("they have gone", || server.command(who) == "0");
            let calls = |name: &str| {
                let calls = "SELECT coalesce(sum(calls), 0) FROM pg_stat_user_functions WHERE funcname = ";
                server.command(&format!("{calls}'{name}'")).parse::<u64>().unwrap()
            };
            (calls("decide_concurrency"), calls("leases_line"))
        }
    };
    assert!(asked >= decisions, "{asked} requests are counted");
    read
}

/// A line once took a denial because others come first for one that only ends of its own process could change.
#[test]
fn who_holds_the_others_units_asks_while_one_is_free() {
    for server in Server::each("line-r1") {
        let mut fleet = Fleet::new(&server, "2 concurrent");
        assert!(fleet.take(0, 1) && fleet.take(0, 1));
        let first = fleet.join(1, waiter());
        assert_eq!(fleet.ask(&[1]), []);
        let second = fleet.join(0, waiter());
        assert_eq!(fleet.ask(&[0]), []);
        fleet.end();
        fleet.clock.advance(16 * MOMENT);
        assert_eq!(fleet.advance(0), [], "the other process comes first");
        assert_eq!(fleet.ask(&[1]), [(1, first)]);
        let (process, permit) = fleet.held.pop().unwrap();
        fleet.limiters[process].complete(&permit).unwrap();
        // Nobody holds this unit, and only one waits. 64 ms at most.
        let mut after = 0;
        while after < 400 {
            let started = fleet.advance(0);
            if started == [(0, second)] {
                break;
            }
            fleet.clock.advance(4 * MOMENT);
            after += 4;
        }
        assert!(after <= 68, "a unit was idle for {after} ms");
    }
}

#[test]
fn a_waiter_that_leaves_leaves_the_unit_to_the_next() {
    for server in Server::each("line-r1b") {
        let mut fleet = Fleet::new(&server, "2 concurrent");
        assert!(fleet.take(0, 1));
        assert!(fleet.take(0, 1));
        let first = fleet.join(1, waiter());
        assert_eq!(fleet.ask(&[1]), []);
        let second = fleet.join(0, waiter());
        assert_eq!(fleet.ask(&[0]), []);
        fleet.end();
        fleet.clock.advance(16 * MOMENT);
        assert_eq!(fleet.advance(0), []);
        fleet.lines[1].leave(first);
        let mut after = 0;
        while after < 400 {
            if fleet.advance(0) == [(0, second)] {
                break;
            }
            fleet.clock.advance(4 * MOMENT);
            after += 4;
        }
        assert!(after <= 68, "a unit was idle for {after} ms");
    }
}

/// A silent line is known for as long as it is silent.
#[test]
fn a_silent_line_stays_known() {
    for server in Server::each("line-r2") {
        let mut fleet = Fleet::new(&server, "2 concurrent");
        assert!(fleet.take(0, 1) && fleet.take(0, 1));
        fleet.join(0, Waiter::new("key", 2));
        assert_eq!(fleet.ask(&[0]), []);
        fleet.clock.advance(149 * MOMENT);
        fleet.end();
        assert_eq!(fleet.advance(0), []);
        let mut at = 149;
        let mut stolen = None;
        while at < 640 {
            if fleet.take(1, 1) {
                stolen = Some(at);
                break;
            }
            fleet.clock.advance(2 * MOMENT);
            at += 2;
            assert_eq!(fleet.advance(0), []);
        }
        assert_eq!(stolen, None);
    }
}

/// With hundreds of keys a line once paused for longer than the server knows its waiter.
#[test]
fn with_many_keys_a_waiter_stays_known() {
    for server in Server::each("line-r3") {
        let mut fleet = Fleet::new(&server, "1 concurrent lease 1h");
        assert!(fleet.take(2, 1));
        let mut keep = Vec::new();
        for n in 0..800 {
            let key = format!("k{n}");
            let Attempt::Admitted(permit) = fleet.limiters[2].attempt(&key, 1).unwrap() else { panic!() };
            keep.push(permit);
        }
        fleet.clock.advance(Duration::from_secs(10));
        for n in 0..800 {
            let key = format!("k{n}");
            assert!(matches!(fleet.lines[0].join(Waiter::new(&key, 1)).unwrap(), Joined::Waiting(_)));
        }
        let first = fleet.join(0, waiter());
        assert_eq!(fleet.ask(&[0]), []);
        fleet.clock.advance(MOMENT);
        fleet.end();
        // The unit is free. Nobody else comes before the first one, as long as the server knows it.
        let mut at = 0;
        let mut outcome = String::from("nothing");
        while at < 6000 {
            let started = fleet.advance(0);
            if started.contains(&(0, first)) {
                outcome = format!("it started after {at} ms");
                break;
            }
            if fleet.take(1, 1) {
                outcome = format!("it was passed after {at} ms");
                break;
            }
            fleet.clock.advance(50 * MOMENT);
            at += 50;
        }
        assert!(outcome.starts_with("it started"), "{outcome}");
    }
}

/// Lines of many keys look as often as few do.
#[test]
fn silent_lines_share_the_rate_of_looks() {
    for server in Server::each("line-r4") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        let mut keep = Vec::new();
        for n in 0..1280 {
            let key = format!("k{n}");
            let Attempt::Admitted(permit) = fleet.limiters[0].attempt(&key, 1).unwrap() else { panic!() };
            keep.push(permit);
        }
        for n in 0..1280 {
            let key = format!("k{n}");
            assert!(matches!(fleet.lines[0].join(Waiter::new(&key, 1)).unwrap(), Joined::Waiting(_)));
        }
        assert_eq!(fleet.ask(&[0]), []);
        let next = fleet.lines[0].next().unwrap();
        assert!(next >= 40 * MOMENT, "1,280 looks each {next:?}; at full rate 25,000 a second");
    }
}

/// The next first waiter of a silent line once was unknown as long as the line was silent.
#[test]
fn the_next_waiter_of_a_silent_line_is_told_of() {
    for server in Server::each("line-r5") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(0, 1));
        let limiter = Arc::<dyn Limiter>::clone(&fleet.limiters[0]);
        let mut leaves = Seat::new(waiter());
        let mut stays = Seat::new(waiter());
        for _ in 0..3 {
            assert!(matches!(leaves.step(&*limiter).unwrap(), Step::Sleep(_)));
            fleet.clock.advance(MOMENT);
        }
        assert!(matches!(stays.step(&*limiter).unwrap(), Step::Sleep(_)));
        fleet.clock.advance(MOMENT);
        fleet.join(1, waiter());
        leaves.leave(&*limiter);
        let mut told = None;
        for at in 0..200 {
            assert!(matches!(stays.step(&*limiter).unwrap(), Step::Sleep(_)));
            if at == 40 {
                fleet.end();
                let started = fleet.ask(&[1]);
                told = Some(started.is_empty());
                break;
            }
            fleet.clock.advance(MOMENT);
        }
        assert_eq!(told, Some(true), "who has asked later started first");
    }
}

/// The same of a more urgent one.
#[test]
fn an_urgent_waiter_of_a_silent_line_is_told_of() {
    for server in Server::each("line-r5b") {
        for is_seat in [true, false] {
            let mut fleet = Fleet::new(&server, "1 concurrent lease 1h");
            let holder = if is_seat { 0 } else { 2 };
            assert!(fleet.take(holder, 1));
            fleet.clock.advance(Duration::from_secs(10));
            let limiter = Arc::<dyn Limiter>::clone(&fleet.limiters[0]);
            fleet.join(1, waiter());
            assert_eq!(fleet.ask(&[1]), []);
            let mut usual = Seat::new(waiter());
            let mut urgent = Seat::new(waiter().priority(-1));
            if is_seat {
                for _ in 0..3 {
                    assert!(matches!(usual.step(&*limiter).unwrap(), Step::Sleep(_)));
                    fleet.clock.advance(MOMENT);
                }
                assert!(matches!(urgent.step(&*limiter).unwrap(), Step::Sleep(_)));
            } else {
                fleet.join(0, waiter());
                assert_eq!(fleet.ask(&[0]), []);
                fleet.join(0, waiter().priority(-1));
                assert_eq!(fleet.advance(0), []);
            }
            let mut at = 0;
            while at < 30 {
                fleet.clock.advance(2 * MOMENT);
                at += 2;
                if is_seat {
                    assert!(matches!(urgent.step(&*limiter).unwrap(), Step::Sleep(_)));
                } else {
                    assert_eq!(fleet.advance(0), []);
                }
            }
            fleet.end();
            let started = fleet.ask(&[1]);
            assert_eq!(started, [], "the urgent one waits since 30 ms");
            drop(fleet);
            server.forget_all();
        }
    }
}

/// A wake-up after `clear` in this process, or a change of the policy there, is heard.
#[test]
fn a_clear_in_the_own_process_wakes_its_line() {
    for server in Server::each("line-r6") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(0, 1));
        let first = fleet.join(0, waiter());
        assert_eq!(fleet.ask(&[0]), []);
        fleet.limiters[0].clear("key").unwrap();
        let started = fleet.ask(&[0]);
        assert_eq!(started, [(0, first)]);
    }
}

/// Two statements of one denial see different moments on Postgres. A line once went silent when the last unit was given back between them.
#[cfg(feature = "postgres")]
#[test]
fn a_unit_that_is_given_back_during_a_denial_is_not_the_own_processs() {
    for mut server in Server::each("line-r8").filter(|server| server.kind() == "postgres") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(1, 1));
        let (process, permit) = fleet.held.remove(0);
        let ending = Arc::<dyn Limiter>::clone(&fleet.limiters[process]);
        let server = server.postgres();
        let locks = |granted: &str| {
            let count = "SELECT count(*) FROM pg_locks WHERE relation = 'workglow_limit.waiters'::regclass AND ";
            server.command(&format!("{count} mode IN ('ShareLock', 'RowExclusiveLock') AND {granted}"))
        };
        let first = std::thread::scope(|scope| {
            // The denial waits where it notes its waiter, until the unit is given back.
            scope.spawn(|| {
                server.command(
                    "DO $$ BEGIN LOCK TABLE workglow_limit.waiters IN SHARE MODE; \
                     WHILE EXISTS (SELECT FROM workglow_limit.leases) LOOP PERFORM pg_sleep(0.001); END LOOP; END $$",
                )
            });
            wait_until("it has the lock", || locks("granted") == "1");
            scope.spawn(|| {
                wait_until("the denial waits", || locks("NOT granted") == "1");
                ending.complete(&permit).unwrap();
            });
            fleet.join(0, waiter())
        });
        let mut after = 0;
        while after < 400 && fleet.advance(0) != [(0, first)] {
            fleet.clock.advance(4 * MOMENT);
            after += 4;
        }
        assert!(after <= 68, "a unit was idle for {after} ms");
    }
}

/// A start deletes what expired waiters have left, and waits for whoever is just renewing one of these.
#[cfg(feature = "postgres")]
#[test]
fn a_start_waits_for_no_waiter_that_is_renewed() {
    for mut server in Server::each("line-r12").filter(|server| server.kind() == "postgres") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(1, 1));
        fleet.join(0, waiter());
        assert_eq!(fleet.ask(&[0]), []);
        fleet.end();
        fleet.clock.advance(KNOWN + 10 * MOMENT);
        let server = server.postgres();
        std::thread::scope(|scope| {
            let said = scope.spawn(|| {
                server.command(
                    "CREATE TEMP TABLE said (blocked boolean); \
                     DO $$ DECLARE b boolean := false; BEGIN UPDATE workglow_limit.waiters SET till = till + 300000; \
                     FOR i IN 1..2000 LOOP b := EXISTS (SELECT FROM pg_locks WHERE NOT granted); EXIT WHEN b \
                     OR EXISTS (SELECT FROM workglow_limit.leases); PERFORM pg_sleep(0.001); END LOOP; \
                     INSERT INTO said VALUES (b); END $$; SELECT blocked FROM said",
                )
            });
            wait_until("it has the row", || {
                let count = "SELECT count(*) FROM pg_locks WHERE relation = 'workglow_limit.waiters'::regclass AND mode = 'RowExclusiveLock'";
                server.command(count) == "1"
            });
            assert!(fleet.take(2, 1));
            let said = said.join().unwrap();
            assert_eq!(said, "f");
        });
    }
}

/// With some dozen keys a line once took the bell of another key's block for its own, and was never silent.
#[cfg(feature = "redis")]
#[test]
fn lines_of_some_dozen_keys_are_silent() {
    for server in Server::each("line-r9").filter(|server| server.kind() == "redis") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        let keys: Vec<String> = (0..40).map(|n| format!("k{n}")).collect();
        for key in &keys {
            assert!(matches!(fleet.limiters[0].attempt(key, 1).unwrap(), Attempt::Admitted(_)));
        }
        for key in &keys {
            assert!(matches!(fleet.lines[0].join(Waiter::new(key, 1)).unwrap(), Joined::Waiting(_)));
        }
        assert_eq!(fleet.ask(&[0]), []);
        let asked = || {
            let Server::Redis(server) = &server else { unreachable!() };
            let info = server.info("commandstats");
            let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")).unwrap();
            line.split(',').next().unwrap().parse::<u64>().unwrap()
        };
        let before = asked();
        for _ in 0..5 {
            fleet.clock.advance(16 * MOMENT);
            assert_eq!(fleet.advance(0), []);
        }
        assert_eq!(asked() - before, 0, "nothing has ended");
    }
}

/// What the function of an earlier version answers is what its callers read: the owners of others begin at the sixth number.
#[cfg(feature = "postgres")]
#[test]
fn an_earlier_programs_view_reads_the_others_where_it_did() {
    for mut server in Server::each("line-r13").filter(|server| server.kind() == "postgres") {
        let mut fleet = Fleet::new(&server, "1 concurrent");
        assert!(fleet.take(1, 1));
        let server = server.postgres();
        let said = server.command(
            "SELECT array_to_string(workglow_limit.decide_concurrency('view', l.name, s.hash, l.version, '{}', 1000000, 1000, '{1}', \
             ARRAY[1, 77, e.site, 5, 6, 0]), ' ') || ' owner ' || e.owner FROM workglow_limit.limits l, workglow_limit.holders s, \
             workglow_limit.leases e WHERE s.limit_id = l.id AND e.id = s.id",
        );
        let (answer, owner) = said.split_once(" owner ").unwrap();
        assert_eq!(answer.split(' ').nth(5), Some(owner), "{said}");
    }
}
