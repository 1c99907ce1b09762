//! Waiters of event loops, and calls that they begin: none waits for another's answer. Each store here represents one machine.
#![cfg(any(feature = "redis", feature = "postgres"))]

#[cfg(feature = "redis")]
use crate::common::redis::RedisServer;
use crate::common::server::Server;
use crate::common::{Child, Dir, wait_until};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use workglow_limit::embed::{Begun, Joined, Line, MayWait, Outcome, Seat, Step, Waiter, WaiterId, acquire};
use workglow_limit::hooks::{Event, Happening};
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3_600);
const MOMENT: Option<Duration> = Some(Duration::from_millis(1));

/// More than any server is asked at a time.
const MANY: usize = 300;

/// A limit of one start per hour and key.
fn one_per_hour(url: &str) -> Arc<RateLimiter> {
    per_hour(url, 1)
}

/// A limit that is decided by the server, which has answered before. No call of the test waits for the server shorter than
/// the test may last.
fn per_hour(url: &str, most: u64) -> Arc<RateLimiter> {
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_secs(600);
    let store =
        Store::with_options(&format!("{url}{}grants=never", if url.contains('?') { '&' } else { '?' }), options)
            .unwrap();
    let limiter = Arc::new(RateLimiter::new(&store, "api", most, HOUR).unwrap());
    assert!(admits(&*limiter, "first"));
    limiter
}

fn admits(limiter: &dyn Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))
}

/// The line of an event loop, whose calls never wait.
struct Loop {
    line: Line,
    wakes: Arc<AtomicU64>,
    over: Vec<(WaiterId, Outcome)>,
}

impl Loop {
    fn new(limiter: &Arc<RateLimiter>) -> Loop {
        let wakes = Arc::new(AtomicU64::new(0));
        let bell = wakes.clone();
        let wake = move || _ = bell.fetch_add(1, SeqCst);
        Loop { line: Line::with_wake(limiter.clone(), wake), wakes, over: Vec::new() }
    }

    fn join(&mut self, waiter: Waiter) -> WaiterId {
        match MayWait::Never.during(|| self.line.join(waiter)).unwrap() {
            Joined::Waiting(id) => id,
            Joined::Done(outcome) => panic!("it knew without the server: {outcome:?}"),
        }
    }

    fn advance_until(&mut self, what: &str, is_so: impl Fn(&Loop) -> bool) {
        wait_until(what, || {
            MayWait::Never.during(|| self.line.advance(&mut self.over));
            assert!(!self.line.would_wait());
            is_so(self)
        });
    }

    /// Advances the line until a wait is over, and returns how.
    fn outcome_of(&mut self, id: WaiterId) -> Outcome {
        self.advance_until("its wait is over", |here| here.over.iter().any(|(other, _)| *other == id));
        let at = self.over.iter().position(|(other, _)| *other == id).unwrap();
        self.over.swap_remove(at).1
    }

    fn is_admitted(&mut self, id: WaiterId) -> bool {
        matches!(self.outcome_of(id), Outcome::Admitted(_))
    }
}

/// Sixteen waiters once got their errors after 61 s, one after the other, though each had a second.
#[test]
fn a_silent_server_delays_no_waiter_beyond_its_own_timeout() {
    for server in Server::each("loops-silent") {
        // On a slow machine a short wait may end with the connection, and the starts that others have asked for are lost.
        let limiter = per_hour(&server.url(), 1_000);
        let mut here = Loop::new(&limiter);
        let signals = server.signals();
        signals(libc::SIGSTOP);
        let patient: Vec<_> = (0..MANY).map(|i| here.join(Waiter::new(&format!("{i}"), 1))).collect();
        // On a key of its own, and on one for which the server has been asked.
        let short = ["short", "0"].map(|key| here.join(Waiter::new(key, 1).timeout(MOMENT)));
        short.into_iter().for_each(|id| assert!(matches!(here.outcome_of(id), Outcome::Expired(_))));
        assert_eq!((here.line.len(), here.over.len()), (MANY, 0));
        signals(libc::SIGCONT);
        patient.into_iter().for_each(|id| assert!(here.is_admitted(id)));
        // The line of the one that gave up comes back, too.
        here.advance_until("nothing is due", |here| here.line.next().is_none());
        assert!(here.line.is_empty() && here.over.is_empty());
        assert!(here.wakes.load(SeqCst) > 0, "a loop that sleeps learns of the answers");
    }
}

/// A thread that joined others at a silent server once waited for the store's timeout, or for theirs.
#[test]
fn a_silent_server_delays_no_thread_beyond_its_own_timeout() {
    for server in Server::each("loops-threads") {
        let limiter = one_per_hour(&server.url());
        let mut first = Seat::new(Waiter::new("first", 1));
        assert!(matches!(first.step(&*limiter), Ok(Step::Sleep(_))));
        let short = || acquire(&*limiter, Waiter::new("first", 1).timeout(MOMENT));
        let signals = server.signals();
        signals(libc::SIGSTOP);
        thread::scope(|scope| {
            assert!(matches!(short(), Ok(Attempt::Denied(_))));
            // Also while another thread has the line, and asks.
            let patient = scope.spawn(|| acquire(&*limiter, Waiter::new("first", 1).timeout(Some(HOUR * 3))));
            for _ in 0..20 {
                assert!(matches!(short(), Ok(Attempt::Denied(_))));
            }
            assert!(!patient.is_finished());
            signals(libc::SIGCONT);
            first.leave(&*limiter);
            // After a second of silence there is no connection, and a short pause after each failed attempt to open one.
            wait_until("it is cleared", || limiter.clear("first").is_ok());
            assert!(matches!(patient.join().unwrap(), Ok(Attempt::Admitted(_))));
        });
    }
}

/// A way to a server that holds answers back, once it is told to, until this many decisions have been asked for.
#[cfg(feature = "redis")]
fn hold_back(server: &Server, directory: &Dir, decisions: usize) -> (String, Arc<AtomicBool>) {
    let (socket, url) = server.by_way_of(&directory.0, 0);
    let (listener, server) = (UnixListener::bind(socket).unwrap(), server.socket());
    let (holds, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let is_holding = holds.clone();
    thread::spawn(move || {
        for client in listener.incoming() {
            let (client, server) = (client.unwrap(), UnixStream::connect(&server).unwrap());
            let back = (server.try_clone().unwrap(), client.try_clone().unwrap());
            // The answers by which a connection is opened are not held back.
            let (is_deciding, asked) = (Arc::new(AtomicBool::new(false)), asked.clone());
            let (holds, decides, asked_here) = (is_holding.clone(), is_deciding.clone(), asked.clone());
            thread::spawn(move || {
                forward(client, server, |piece| {
                    let decisions = piece.windows(6).filter(|word| *word == b"decide").count();
                    if decisions > 0 && holds.load(SeqCst) {
                        decides.store(true, SeqCst);
                        asked_here.fetch_add(decisions, SeqCst);
                    }
                });
            });
            let holds = move || is_deciding.load(SeqCst) && asked.load(SeqCst) < decisions;
            thread::spawn(move || forward(back.0, back.1, |_| wait_until("all have asked", || !holds())));
        }
    });
    (url, holds)
}

#[cfg(feature = "redis")]
fn forward(mut from: UnixStream, mut to: UnixStream, see: impl Fn(&[u8])) {
    let mut piece = [0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        see(&piece[..length]);
        let _ = to.write_all(&piece[..length]);
    }
}

/// A hundred free keys were once asked for one after the other: the last one started after a hundred round trips. (On Postgres
/// all but the first are asked for after its answer, in one group: see `postgres/wire.rs`.)
#[cfg(feature = "redis")]
#[test]
fn keys_are_asked_for_together() {
    let server = Server::Redis(RedisServer::start("loops-together"));
    let (directory, keys) = (Dir::in_memory("loops-together-way"), ["a", "b", "c", "d"]);
    let (url, holds) = hold_back(&server, &directory, keys.len());
    let limiter = one_per_hour(&url);
    let mut here = Loop::new(&limiter);
    holds.store(true, SeqCst);
    let ids = keys.map(|key| here.join(Waiter::new(key, 1)));
    ids.into_iter().for_each(|id| assert!(here.is_admitted(id)));
}

#[test]
fn a_waiter_that_leaves_while_the_server_is_asked_holds_nothing() {
    for server in Server::each("loops-leave") {
        let limiter = one_per_hour(&server.url());
        let signals = server.signals();
        let (mut here, mut there) = (Loop::new(&limiter), Loop::new(&limiter));
        signals(libc::SIGSTOP);
        let [gone, next] = ["left", "left"].map(|key| here.join(Waiter::new(key, 1)));
        let dropped = there.join(Waiter::new("dropped", 1));
        MayWait::Never.during(|| here.line.leave(gone));
        drop(there);
        signals(libc::SIGCONT);
        // The start that the first one asked for is the second one's, and what a dropped line asked for is free again.
        assert!(here.is_admitted(next));
        wait_until("the start is returned", || admits(&*limiter, "dropped"));
        assert!(here.over.is_empty(), "{gone} and {dropped} have no outcome: {:?}", here.over);
    }
}

/// While a thread had their line, waiters joined in the order of their calls, whatever their priority.
#[test]
fn waiters_of_a_key_start_in_the_order_in_which_they_asked() {
    for server in Server::each("loops-order") {
        let limiter = per_hour(&server.url(), 4);
        let mut here = Loop::new(&limiter);
        let signals = server.signals();
        signals(libc::SIGSTOP);
        let mut joined: Vec<_> = (0..7).map(|_| here.join(Waiter::new("key", 1))).collect();
        // The first one has asked already; the last one is urgent.
        joined.insert(1, here.join(Waiter::new("key", 1).priority(-1)));
        signals(libc::SIGCONT);
        here.advance_until("all units are used", |here| here.over.len() == 4);
        assert_eq!(here.over.iter().map(|(id, _)| *id).collect::<Vec<_>>(), joined[..4]);
        joined[4..].iter().for_each(|id| MayWait::Never.during(|| here.line.leave(*id)));
    }
}

#[test]
fn hooks_are_called_in_the_thread_of_the_loop() {
    for server in Server::each("loops-hooks") {
        let limiter = one_per_hour(&server.url());
        let heard = Arc::new(Mutex::new(Vec::new()));
        let there = heard.clone();
        let hear = move |event: &Event| there.lock().unwrap().push((event.key.clone(), thread::current().id()));
        limiter.on(Happening::Throttled, Arc::new(hear));
        let mut here = Loop::new(&limiter);
        let id = here.join(Waiter::new("first", 1));
        assert!(heard.lock().unwrap().is_empty());
        here.advance_until("it is throttled", |_| !heard.lock().unwrap().is_empty());
        MayWait::Never.during(|| here.line.leave(id));
        assert_eq!(*heard.lock().unwrap(), [("first".to_owned(), thread::current().id())]);
    }
}

#[test]
fn a_forked_child_has_no_waiters_and_asks_for_itself() {
    for server in Server::each("loops-fork") {
        let limiter = one_per_hour(&server.url());
        let mut here = Loop::new(&limiter);
        let signals = server.signals();
        signals(libc::SIGSTOP);
        let parents = here.join(Waiter::new("parent", 1));
        let child = Child::run(|| {
            assert!(here.line.is_empty() && here.line.next().is_none());
            let own = here.join(Waiter::new("child", 1));
            assert!(here.is_admitted(own));
        });
        signals(libc::SIGCONT);
        assert!(here.is_admitted(parents));
        child.join();
    }
}

/// One thread that finishes calls once let each of them wait for the one before it.
#[test]
fn calls_that_are_begun_are_made_together_and_a_dropped_one_holds_nothing() {
    for server in Server::each("loops-begun") {
        let limiter = one_per_hour(&server.url());
        let begin = |key: &'static str| {
            let undo = |limiter: &dyn Limiter, attempt| {
                if let Attempt::Admitted(permit) = attempt {
                    limiter.cancel(&permit).unwrap();
                }
            };
            Begun::new(limiter.clone(), move |limiter| limiter.attempt(key, 1), undo)
        };
        let signals = server.signals();
        signals(libc::SIGSTOP);
        let [a, b, dropped] = ["a", "b", "dropped"].map(begin);
        let opened = Begun::later(limiter.clone(), |limiter| limiter.decide("c", 1));
        assert!(![&a, &b, &dropped].into_iter().any(Begun::is_over));
        drop(dropped);
        signals(libc::SIGCONT);
        // Nobody finishes them yet.
        wait_until("all are made", || a.is_over() && b.is_over() && opened.is_over());
        assert!([a, b].map(Begun::finish).into_iter().all(|answer| matches!(answer, Ok(Attempt::Admitted(_)))));
        assert!(opened.finish().unwrap().admitted);
        wait_until("the start is returned", || admits(&*limiter, "dropped"));
    }
}
