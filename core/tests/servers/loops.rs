//! Waiters of event loops, and calls that they begin: none waits for another's answer. Each store here represents one machine.
#![cfg(any(feature = "redis", feature = "postgres"))]

use crate::common::limits::patient;
#[cfg(feature = "redis")]
use crate::common::redis::RedisServer;
use crate::common::server::Server;
use crate::common::tasks::{Tasks, permit};
use crate::common::{Child, Dir, wait_until};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};
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

/// A way to a Redis server on which requests travel in rounds: those that are held go on together, when the test says so. So the number of
/// rounds is that of round trips.
#[cfg(feature = "redis")]
struct Way {
    url: String,
    holds: Arc<AtomicBool>,
    held: Arc<AtomicUsize>,
    rounds: Arc<AtomicUsize>,
    _directory: Dir,
}

#[cfg(feature = "redis")]
impl Way {
    fn new(name: &str, server: &Server) -> Way {
        let directory = Dir::in_memory(name);
        let (socket, url) = server.by_way_of(&directory.0, 0);
        let (listener, server) = (UnixListener::bind(socket).unwrap(), server.socket());
        let [held, rounds] = [0; 2].map(|n| Arc::new(AtomicUsize::new(n)));
        let way = Way { url, holds: Arc::default(), held, rounds, _directory: directory };
        let (holds, held, rounds) = (way.holds.clone(), way.held.clone(), way.rounds.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let (mut client, mut server) = (client.unwrap(), UnixStream::connect(&server).unwrap());
                let mut back = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let (holds, held, rounds) = (holds.clone(), held.clone(), rounds.clone());
                thread::spawn(move || {
                    client.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                    let (mut waiting, mut piece, mut round) = (Vec::new(), [0; 1 << 16], rounds.load(SeqCst));
                    loop {
                        match client.read(&mut piece) {
                            Ok(0) => return,
                            Ok(length) => waiting.extend_from_slice(&piece[..length]),
                            Err(_) => {}
                        }
                        let now = rounds.load(SeqCst);
                        if !holds.load(SeqCst) || now != round {
                            let _ = server.write_all(&waiting);
                            waiting.clear();
                            round = now;
                        }
                        held.store(waiting.windows(7).filter(|word| *word == b"EVALSHA").count(), SeqCst);
                    }
                });
                thread::spawn(move || std::io::copy(&mut back.0, &mut back.1));
            }
        });
        way
    }

    /// Counts the round trips until all of these waiters of different keys have started. Each of them has one request on the way.
    fn trips(&self, here: &mut Loop, waiters: usize) -> usize {
        let before = self.rounds.load(SeqCst);
        while here.over.len() < waiters {
            let held = |here: &Loop| self.held.load(SeqCst) + here.over.len();
            here.advance_until("all others have asked", |here| held(here) == waiters);
            if here.over.len() < waiters {
                self.rounds.fetch_add(1, SeqCst);
                wait_until("they have gone", || self.held.load(SeqCst) == 0);
            }
        }
        assert!(here.over.iter().all(|(_, outcome)| matches!(outcome, Outcome::Admitted(_))), "{:?}", here.over);
        here.over.clear();
        self.rounds.load(SeqCst) - before
    }
}

/// A hundred free keys were once asked for one after the other: the last one started after a hundred round trips. (On Postgres
/// all but the first are asked for after its answer, in one group: see `postgres/wire.rs`.)
#[cfg(feature = "redis")]
#[test]
fn two_hundred_waiters_for_as_many_keys_wait_for_one_round_trip_or_three() {
    const KEYS: usize = 200;
    let server = Server::Redis(RedisServer::start("loops-together"));
    let way = Way::new("loops-together-way", &server);
    let store = patient(&format!("{}?grants=never", way.url));
    let keys: Vec<String> = (0..KEYS).map(|key| key.to_string()).collect();
    for (window, most) in [(HOUR, 1), (Duration::from_millis(200), 3)] {
        let limiter = Arc::new(RateLimiter::new(&store, &format!("{most}"), 1, window).unwrap());
        // The connection is open before the first round.
        limiter.attempt("first", 1).unwrap();
        let mut here = Loop::new(&limiter);
        if most > 1 {
            // The keys have been used, so each waiter asks for a place, perhaps whether there is a better one, and presents it. No test is
            // too late for that.
            keys.iter().for_each(|key| assert!(limiter.attempt(key, 1).is_ok()));
        }
        way.holds.store(true, SeqCst);
        keys.iter().for_each(|key| _ = here.join(Waiter::new(key, 1).grace(HOUR)));
        let trips = way.trips(&mut here, KEYS);
        assert!(trips <= most, "{trips} round trips, of at most {most}");
        way.holds.store(false, SeqCst);
    }
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

/// A place that the server had promised was once kept until its time, whatever had become free by then.
#[test]
fn a_waiter_starts_with_units_that_its_process_returns() {
    const WINDOW: Duration = Duration::from_secs(40);
    for server in Server::each("loops-returned") {
        for (name, url) in [("granted", server.url()), ("direct", server.direct_url())] {
            // A busy machine may need longer than the window, in which case the waiter starts anyway.
            let is_so = |attempt: u32| {
                let store = patient(&url);
                let limiter = Arc::new(RateLimiter::new(&store, &format!("{name}-{attempt}"), 100, WINDOW).unwrap());
                let (began, mut here) = (Instant::now(), Loop::new(&limiter));
                let Attempt::Admitted(permit) = limiter.attempt("", 100).unwrap() else { panic!("it is unused") };
                let waiter = here.join(Waiter::new("", 60));
                here.advance_until("it has a place", |here| here.wakes.load(SeqCst) > 0);
                limiter.settle(&permit, 30).unwrap();
                here.line.wake(Some(""));
                assert!(here.is_admitted(waiter));
                (began.elapsed() < WINDOW).then_some(())
            };
            (0..3).find_map(is_so).unwrap();
        }
    }
}

/// Whoever started with returned units after another line had taken a far place counted from the time of that place: of a budget
/// of tokens that are settled, a tenth went unused.
#[test]
fn where_units_are_returned_no_line_takes_a_far_place() {
    for server in Server::each("loops-far") {
        for (name, url) in [("granted", server.url()), ("direct", server.direct_url())] {
            let limiter = Arc::new(RateLimiter::new(&patient(&url), name, 100, HOUR).unwrap());
            let start = |weight| match limiter.attempt("", weight).unwrap() {
                Attempt::Admitted(permit) => permit,
                Attempt::Denied(after) => panic!("{weight} units are free after {after:?}"),
            };
            limiter.settle(&start(2), 1).unwrap();
            let permit = start(99);
            let mut here = Loop::new(&limiter);
            let waiter = here.join(Waiter::new("", 60));
            here.advance_until("it has asked", |here| here.wakes.load(SeqCst) > 0);
            let seen = RateLimiter::attach(&patient(&server.direct_url()), name).unwrap();
            assert!(seen.peek("", 1).unwrap().reset_after <= HOUR + HOUR / 100, "a unit counts from later on");
            limiter.settle(&permit, 9).unwrap();
            assert!(here.is_admitted(waiter));
        }
    }
}

/// Where units may return at any time, others take them as they become free. A waiter for more than are free at once had no place
/// for ten minutes after one start was cancelled.
#[test]
fn where_units_are_returned_a_heavy_waiter_starts_beside_light_ones() {
    for server in Server::each("loops-heavy") {
        let open = || {
            let store = patient(&server.direct_url());
            let limiter = Arc::new(RateLimiter::new(&store, "api", 100, Duration::from_secs(1)).unwrap());
            let Attempt::Admitted(permit) = limiter.attempt("", 1).unwrap() else { panic!("it is unused") };
            limiter.cancel(&permit).unwrap();
            Loop::new(&limiter)
        };
        let (mut light, mut heavy) = (open(), open());
        // Units become free a few at a time.
        let limiter = RateLimiter::attach(&patient(&server.direct_url()), "api").unwrap();
        for _ in 0..14 {
            limiter.attempt("", 7).unwrap();
            thread::sleep(Duration::from_millis(65));
        }
        (0..40).for_each(|_| _ = light.join(Waiter::new("", 7)));
        heavy.join(Waiter::new("", 60));
        wait_until("it starts", || {
            MayWait::Never.during(|| {
                light.line.advance(&mut light.over);
                heavy.line.advance(&mut heavy.over);
            });
            for (_, outcome) in std::mem::take(&mut light.over) {
                assert!(matches!(outcome, Outcome::Admitted(_)), "{outcome:?}");
                light.join(Waiter::new("", 7));
            }
            !heavy.over.is_empty()
        });
        assert!(matches!(heavy.over[..], [(_, Outcome::Admitted(_))]), "{:?}", heavy.over);
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

/// No poll waits for the server, which does not answer.
#[test]
fn tasks_start_in_the_order_of_their_first_polls_and_a_dropped_one_holds_nothing() {
    for server in Server::each("loops-tasks") {
        let limiter: Arc<dyn Limiter> = per_hour(&server.url(), 4);
        let signals = server.signals();
        signals(libc::SIGSTOP);
        let mut tasks = Tasks::default();
        (0..7).for_each(|_| tasks.wait(limiter.acquire_async("key", 1, None)));
        tasks.wait(limiter.acquire_async("late", 1, MOMENT));
        // The first one is asked for already; nobody has asked for the other one.
        (tasks.futures[0], tasks.futures[2]) = (None, None);
        assert_eq!(tasks.wait_until_woken(1), [7]);
        assert!(matches!(tasks.poll(7), Poll::Ready(Ok(None))));
        signals(libc::SIGCONT);
        assert_eq!(tasks.wait_until_woken(5)[1..], [1, 3, 4, 5]);
        [1, 3, 4, 5].into_iter().for_each(|number| permit(tasks.poll(number)).complete().unwrap());
        assert!(tasks.poll(6).is_pending());
    }
}

/// Its lease is on the server.
#[test]
fn a_task_starts_when_a_start_of_another_machine_has_ended() {
    for server in Server::each("loops-machines") {
        let machine = || Store::new(&server.url()).unwrap().limiter("jobs", "1 concurrent").unwrap();
        let (here, there) = (machine(), machine());
        let held = there.acquire("", 1, None).unwrap().unwrap();
        let mut tasks = Tasks::default();
        (0..2).for_each(|_| tasks.wait(here.acquire_async("", 1, None)));
        held.complete().unwrap();
        assert_eq!(tasks.wait_until_woken(1), [0]);
        permit(tasks.poll(0)).complete().unwrap();
        assert_eq!(tasks.wait_until_woken(2), [0, 1]);
        drop(permit(tasks.poll(1)));
    }
}
