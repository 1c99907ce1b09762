//! Connections that end, go silent or lead to another server. Each store here represents one machine.
#![cfg(any(feature = "redis", feature = "postgres"))]

#[cfg(feature = "postgres")]
use crate::common::postgres::PostgresServer;
use crate::common::proxy::Proxy;
#[cfg(feature = "redis")]
use crate::common::redis::RedisServer;
use crate::common::server::Server;
use crate::common::wait_until;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, MayWait, Outcome, Waiter, acquire};
use workglow_limit::*;

fn within(url: &str, timeout: Duration) -> Store {
    let mut options = StoreOptions::default();
    options.timeout = timeout;
    Store::with_options(url, options).unwrap()
}

fn rate(store: &Store, max: u64, window: Duration) -> RateLimiter {
    RateLimiter::new(store, "api", max, window).unwrap()
}

fn admits(limiter: &RateLimiter) -> bool {
    matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_))
}

static SIGNALS: AtomicU64 = AtomicU64::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, SeqCst);
}

/// The state of a thread of this process, by its letter.
fn state(thread: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[test]
fn a_signal_ends_no_request() {
    // SAFETY: a zeroed action is valid. Without SA_RESTART, as Python sets its handlers.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    for server in Server::each("connections-signal") {
        let limiter = rate(&within(&server.direct_url(), Duration::from_secs(50)), 5, Duration::from_secs(3_600));
        assert!(admits(&limiter));
        let signals = server.signals();
        signals(libc::SIGSTOP);
        let answer = std::thread::scope(|scope| {
            let (send, ids) = std::sync::mpsc::channel();
            let call = scope.spawn({
                let limiter = &limiter;
                move || {
                    // SAFETY: plain calls.
                    send.send(unsafe { (libc::gettid(), libc::pthread_self()) }).unwrap();
                    limiter.attempt("", 1)
                }
            });
            let (number, thread) = ids.recv().unwrap();
            for _ in 0..5 {
                wait_until("it waits", || call.is_finished() || state(number) == Some('S'));
                let before = SIGNALS.load(SeqCst);
                // SAFETY: the thread has not been joined.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
                wait_until("it is interrupted", || call.is_finished() || SIGNALS.load(SeqCst) > before);
            }
            signals(libc::SIGCONT);
            call.join().unwrap()
        });
        assert!(matches!(answer, Ok(Attempt::Admitted(_))), "{answer:?}");
    }
}

#[test]
fn a_silent_server_is_named() {
    for server in Server::each("connections-silent") {
        let store = within(&server.direct_url(), Duration::from_secs(30));
        rate(&store, 5, Duration::from_secs(3_600)).open().unwrap();
        let signals = server.signals();
        signals(libc::SIGSTOP);
        // On a kept connection, on a new one, and in a process that waits for another caller's answer.
        let limiter = rate(&within(&server.url(), Duration::from_millis(100)), 5, Duration::from_secs(3_600));
        let texts = [(); 2].map(|()| limiter.attempt("", 1).map(drop).unwrap_err());
        signals(libc::SIGCONT);
        for error in texts {
            let text = error.to_string();
            assert!(matches!(error, Error::StoreTimeout { .. }), "{text}");
            assert!(text.contains(&format!("{} did not answer for ", server.socket().display())), "{text}");
        }
    }
}

const WINDOW: Duration = Duration::from_millis(200);

/// Two servers at one address, and a limiter there that has started at the first one, with this timeout.
#[cfg(feature = "postgres")]
fn of_two(name: &str, timeout: Duration) -> ([PostgresServer; 2], RateLimiter) {
    let servers = [1, 2].map(|i| PostgresServer::start(&format!("{name}-{i}")));
    let [first, second] = servers.each_ref().map(|server| server.socket().parent().unwrap().display().to_string());
    // The second one has its schema.
    rate(&Store::new(&servers[1].url()).unwrap(), 5, WINDOW).open().unwrap();
    let url = format!("postgres:///postgres?host={first},{second}&user=postgres&target_session_attrs=read-write");
    let limiter = rate(&within(&format!("{url}&grants=never"), timeout), 5, WINDOW);
    wait_until("it starts at the first", || limiter.attempt("", 1).is_ok_and(|a| matches!(a, Attempt::Admitted(_))));
    (servers, limiter)
}

/// The second server was not asked before, so it counts as one that has lost something.
#[cfg(feature = "postgres")]
fn starts_at_the_second(servers: &[PostgresServer; 2], limiter: &RateLimiter) {
    wait_until("it starts without an error", || admits(limiter));
    assert_eq!(servers[1].command("SELECT count(*) > 0 FROM workglow_limit.starts"), "t");
}

#[cfg(feature = "postgres")]
#[test]
fn a_host_that_becomes_read_only_is_left_for_the_next() {
    let (servers, limiter) = of_two("connections-read-only", Duration::from_secs(30));
    servers[0].command("ALTER SYSTEM SET default_transaction_read_only = on; SELECT pg_reload_conf()");
    wait_until("it is read-only", || servers[0].command("SHOW default_transaction_read_only") == "on");
    starts_at_the_second(&servers, &limiter);
}

#[cfg(feature = "postgres")]
#[test]
fn a_host_that_goes_silent_is_left_for_the_next_within_the_call() {
    let (servers, limiter) = of_two("connections-left", Duration::from_secs(9));
    servers[0].signal(libc::SIGSTOP);
    let answer = limiter.attempt("", 1);
    servers[0].signal(libc::SIGCONT);
    assert!(answer.is_ok(), "{answer:?}");
}

/// Over TCP a request still finds what the server sent at the session's end, as after `idle_session_timeout`. (On a socket
/// it fails earlier.) A timeout of the role itself once ended the sessions of this test, too, where the machine was slow.
#[cfg(feature = "postgres")]
#[test]
fn a_session_that_ended_while_idle_is_replaced() {
    let certificates = crate::common::Dir::new("connections-idle-certificates");
    let (server, port) = PostgresServer::with_tls("connections-idle", &certificates);
    let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable");
    let limiter = rate(&within(&(url.clone() + "&grants=never"), Duration::from_secs(30)), 50, WINDOW);
    let sessions = |what: &str| {
        let from = "FROM pg_stat_activity WHERE application_name = 'workglow-limit'";
        server.command_in(&url, &format!("SELECT count({what}) {from}"))
    };
    for _ in 0..3 {
        assert!(admits(&limiter));
        // The first time, the schema was created on a second one.
        assert!(["1", "2"].contains(&sessions("pg_terminate_backend(pid)").as_str()));
        wait_until("the session has ended", || sessions("*") == "0");
    }
}

#[test]
fn all_threads_share_connections() {
    const THREADS: u64 = 16;
    for server in Server::each("connections-shared") {
        let (proxy, most) = (Proxy::start("connections-counted", &server, 1), server.connections());
        let url = proxy.url(0);
        let url = format!("{url}{}grants=never", if url.contains('?') { '&' } else { '?' });
        let store = within(&url, Duration::from_secs(60));
        let limiter = rate(&store, 1_000_000, WINDOW);
        let hammer = |calls: u64| {
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let limiter = &limiter;
                    scope.spawn(move || {
                        (0..calls).for_each(|i| assert!(limiter.attempt(&format!("{thread}-{i}"), 1).is_ok()))
                    });
                }
            });
        };
        hammer(200);
        assert_eq!(proxy.opened(0), most);
        // They are lost once for all, and nothing has to wait now.
        proxy.cut(0);
        hammer(20);
        store.override_limit("api", "2000000/1s", None).unwrap();
        hammer(20);
        assert_eq!(proxy.opened(0), most + 1);
    }
}

/// Each process has one connection on which nothing waits long.
#[cfg(feature = "postgres")]
#[test]
fn a_lock_that_others_hold_stops_no_other_limit() {
    const WANTED: u64 = 150;
    let server = PostgresServer::start("connections-locked");
    let store = within(&(server.url() + "&grants=never"), Duration::from_secs(600));
    let [locked, free] = ["locked", "free"].map(|name| RateLimiter::new(&store, name, 1_000_000, WINDOW).unwrap());
    assert!(admits(&locked) && admits(&free));
    let stranger = server.hold(
        "SELECT 1 FROM workglow_limit.logs g JOIN workglow_limit.limits l ON l.id = g.limit_id WHERE l.name = 'locked' FOR UPDATE OF g",
    );
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| locked.attempt("", 1).map(drop));
        let mut decided = 0;
        while !waits.is_finished() && decided < WANTED {
            assert!(admits(&free));
            decided += 1;
        }
        drop(stranger);
        let waited = waits.join().unwrap();
        assert_eq!(decided, WANTED, "{waited:?}");
        assert_eq!(waited, Ok(()));
    });
    assert!(admits(&locked));
}

#[test]
fn a_waiter_outlasts_a_time_without_a_server() {
    #[cfg(feature = "redis")]
    {
        let server = RedisServer::start("connections-outlasted");
        outlasts(&server.url(), server, RedisServer::end, RedisServer::start_again);
    }
    #[cfg(feature = "postgres")]
    {
        let server = PostgresServer::start("connections-outlasted-pg");
        outlasts(&server.url(), server, |server| server.end(), PostgresServer::start_again);
    }
}

fn outlasts<S>(url: &str, mut server: S, end: impl FnOnce(&mut S), start_again: impl FnOnce(&mut S)) {
    let limiter = Arc::new(rate(&within(url, Duration::from_secs(60)), 5, WINDOW));
    assert!(admits(&limiter));
    end(&mut server);
    assert!(limiter.attempt("other", 1).is_err(), "a call that waits for no start fails");
    let mut line = Line::with_wake(limiter.clone(), || ());
    let (waits, mut over) = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| acquire(&*limiter, Waiter::new("", 1)));
        let in_a_loop = MayWait::Never.during(|| line.join(Waiter::new("loop", 1)));
        assert!(matches!(in_a_loop, Ok(Joined::Waiting(_))), "{in_a_loop:?}");
        start_again(&mut server);
        let mut over = Vec::new();
        wait_until("the loop has an answer", || {
            MayWait::Never.during(|| line.advance(&mut over));
            !over.is_empty()
        });
        (waiter.join().unwrap(), over)
    });
    assert!(matches!(waits, Ok(Attempt::Admitted(_))), "{waits:?}");
    assert!(matches!(over.pop(), Some((_, Outcome::Admitted(_)))));
}
