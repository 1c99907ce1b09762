//! Limits on a server that machines share. Each store here represents one machine.
#![cfg(any(feature = "redis", feature = "postgres"))]

use crate::common::limits::patient;
#[cfg(feature = "redis")]
use crate::common::redis::RedisServer;
use crate::common::server::Server;
use crate::common::wait_until;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant, SystemTime};
use workglow_limit::embed::{Joined, Line, MayWait, Quota, Seat, Step, Waiter};
use workglow_limit::observe::Observer;
use workglow_limit::*;

fn rate(store: &Store, name: &str, max: u64, window: Duration) -> RateLimiter {
    RateLimiter::new(store, name, max, window).unwrap()
}

/// A store whose starts are all decided by the server.
fn direct(server: &Server) -> Store {
    patient(&server.direct_url())
}

fn admits(limiter: &dyn Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))
}

#[test]
fn machines_share_a_limit_without_exceeding_it() {
    for server in Server::each("servers-share") {
        let all = Barrier::new(8);
        let admitted: usize = std::thread::scope(|scope| {
            let machine = |_| {
                scope.spawn(|| {
                    let store = patient(&server.url());
                    let limiter = rate(&store, "api", 50, Duration::from_secs(600));
                    all.wait();
                    (0..40).filter(|_| admits(&limiter, "tenant")).count()
                })
            };
            let machines: Vec<_> = (0..8).map(machine).collect();
            machines.into_iter().map(|machine| machine.join().unwrap()).sum()
        });
        assert_eq!(admitted, 50);
    }
}

#[test]
fn a_denial_reports_its_wait_and_other_keys_are_free() {
    for server in Server::each("servers-denial") {
        let (here, there) = (direct(&server), direct(&server));
        // A busy machine may need more than a short window between the two calls.
        let (window, began, limiter, denial) = (0..)
            .find_map(|i| {
                let (name, window, began) = (format!("api-{i}"), Duration::from_millis(300 << i), Instant::now());
                assert!(admits(&rate(&here, &name, 1, window), "a"));
                let limiter = rate(&there, &name, 1, window);
                let denial = limiter.decide("a", 1).unwrap();
                (!denial.admitted).then_some((window, began, limiter, denial))
            })
            .unwrap();
        assert!(!denial.admitted && denial.retry_after <= window && denial.retry_after > Duration::ZERO, "{denial:?}");
        assert_eq!((denial.limit, denial.remaining, denial.denied_by.as_deref()), (1, 0, Some(limiter.name())));
        assert!(admits(&limiter, "b"));
        let started = limiter.acquire("a", 1, None).unwrap().is_some();
        assert!(started && began.elapsed() >= window);
    }
}

#[test]
fn a_declaration_or_override_applies_to_all_at_the_next_decision() {
    for server in Server::each("servers-policies") {
        let (here, there) = (patient(&server.url()), patient(&server.url()));
        let hour = Duration::from_secs(3600);
        let limiter = rate(&here, "api", 5, hour);
        assert!(admits(&limiter, "a"));
        let other = RateLimiter::attach(&there, "api").unwrap();
        assert!(admits(&other, "a"));
        assert_eq!(other.peek("a", 1).unwrap().remaining, 3);

        there.override_limit("api", "2/1h", None).unwrap();
        assert_eq!(limiter.peek("a", 1).unwrap().remaining, 0);
        assert!(!admits(&limiter, "a"), "two have started");
        here.override_limit("api", "3/1h", Some("a")).unwrap();
        assert!(admits(&other, "a") && !admits(&other, "a"));
        assert!(!admits(&limiter, "a"));
        there.lift("api", Some("a")).unwrap();
        there.lift("api", None).unwrap();
        assert_eq!(limiter.peek("a", 1).unwrap().limit, 5);
        assert!(admits(&limiter, "a") && admits(&other, "a") && !admits(&limiter, "a"));

        assert_eq!(there.names().unwrap(), ["api"]);
        let unknown = RateLimiter::attach(&there, "nothing").unwrap();
        assert_eq!(
            unknown.attempt("", 1),
            Err(Error::UnknownLimit { name: "nothing".into(), known: vec!["api".into()] })
        );
    }
}

/// Calls by name once answered that no limit had the name of a limiter that was not used yet.
#[test]
fn calls_by_name_know_limiters_that_were_made_and_not_used() {
    for server in Server::each("servers-made") {
        let (here, there) = (direct(&server), direct(&server));
        let made = [here.limiter("api", "5/1h").unwrap(), here.limiter("both", "5/1h + 2 concurrent").unwrap()];
        let unknown = Error::UnknownLimit { name: "api".into(), known: vec![] };
        assert_eq!(there.lift("api", None).unwrap_err(), unknown, "another program does not");
        here.override_limit("api", "9/1h", None).unwrap();
        assert_eq!(there.find("api").unwrap().peek("", 1).unwrap().limit, 9);
        assert_eq!(here.names().unwrap(), ["api", "both"]);
        assert_eq!(there.find("both/concurrency").unwrap().peek("", 1).unwrap().limit, 2);
        assert_eq!(made[0].peek("", 1).unwrap().limit, 9);
        here.forget("both").unwrap();
        assert_eq!(here.names().unwrap(), ["api"]);
        assert!(admits(&*made[1], ""));
        assert_eq!(there.names().unwrap(), ["api", "both"]);

        let _made = there.limiter("mail", "4/1h").unwrap();
        let seen = Observer::new(&there, 5).look().unwrap();
        let limits: Vec<_> = seen.limits.iter().map(|limit| (&*limit.name, limit.usage[0].limit)).collect();
        assert!(limits.contains(&("mail", 4)), "{limits:?}");
        let early = RateLimiter::attach(&there, "text").unwrap();
        let _made = there.limiter("text", "3/1h").unwrap();
        assert_eq!(early.peek("", 1).unwrap().limit, 3);
    }
}

#[test]
fn a_start_is_found_behind_many_that_weigh_more() {
    for server in Server::each("servers-heavy") {
        let limiter = rate(&direct(&server), "api", 4_000, Duration::from_secs(3600));
        let start = || match limiter.attempt("", 10).unwrap() {
            Attempt::Admitted(permit) => permit,
            Attempt::Denied(_) => panic!("denied"),
        };
        let permits: Vec<_> = (0..300).map(|_| start()).collect();
        for permit in [&permits[0], &permits[150], &permits[299], &permits[1]] {
            limiter.cancel(permit).unwrap();
        }
        assert_eq!(limiter.peek("", 1).unwrap().remaining, 4_000 - 2_960);
    }
}

#[test]
fn places_are_served_in_request_order_across_machines() {
    for server in Server::each("servers-places") {
        let stores: Vec<Store> = (0..3).map(|_| patient(&server.url())).collect();
        let limiters: Vec<RateLimiter> =
            stores.iter().map(|store| rate(store, "api", 1, Duration::from_secs(600))).collect();
        assert!(admits(&limiters[0], ""));
        let mut waits = Vec::new();
        for limiter in &limiters {
            let Reserved::Place { place, after } = limiter.reserve("", 1, None, None).unwrap() else {
                panic!("denied")
            };
            assert!(matches!(limiter.present(&place).unwrap(), Presented::Wait { .. }), "too early");
            waits.push(after);
        }
        assert!(waits.windows(2).all(|pair| pair[0] + Duration::from_secs(300) < pair[1]), "{waits:?}");
    }
}

#[test]
fn a_closed_connection_is_reopened() {
    for server in Server::each("servers-closed") {
        // The server decides each start: a grant could end before a busy machine uses it.
        let store = patient(&server.direct_url());
        let limiter = rate(&store, "api", 3, Duration::from_secs(3600));
        assert!(admits(&limiter, ""));
        for _ in 0..2 {
            server.close_connections();
            assert!(admits(&limiter, ""));
        }
        assert!(!admits(&limiter, ""));
    }
}

#[test]
fn a_missing_server_is_an_error_that_names_it_within_the_timeout() {
    for server in Server::each("servers-gone") {
        let mut options = StoreOptions::default();
        options.timeout = Duration::from_secs(30);
        let store = Store::with_options(&server.url(), options.clone()).unwrap();
        let limiter = rate(&store, "api", 3, Duration::from_secs(3600));
        assert!(admits(&limiter, ""));
        let url = server.url();
        drop(server);
        let error = limiter.attempt("", 1).unwrap_err();
        assert!(error.to_string().contains(&url), "{error}");
        options.on_error = OnError::Deny;
        let store = Store::with_options(&url, options).unwrap();
        assert_eq!(
            rate(&store, "api", 3, Duration::from_secs(1)).attempt("", 1),
            Ok(Attempt::Denied(Duration::from_secs(1)))
        );
    }
}

#[test]
fn a_nonblocking_call_returns_without_a_request() {
    for server in Server::each("servers-never") {
        let store = patient(&server.url());
        let limiter = rate(&store, "api", 3, Duration::from_secs(3600));
        assert!(admits(&limiter, ""));
        for may in [MayWait::Never, MayWait::BrieflyHere] {
            assert_eq!(may.during(|| limiter.attempt("", 1)), Err(Error::WouldWait));
        }
        assert_eq!(limiter.peek("", 1).unwrap().remaining, 2);
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_short_wait_is_not_prolonged_by_a_stopped_server() {
    let server = crate::common::nodes::Node::start("servers-stopped", &[]);
    let mut options = StoreOptions::default();
    options.timeout = Duration::from_secs(50);
    let store = Store::with_options(&format!("redis://127.0.0.1:{}", server.port), options.clone()).unwrap();
    let limiter = rate(&store, "api", 1, Duration::from_secs(3_600));
    assert!(admits(&limiter, ""));
    // The first caller sends its request at once. While a caller waits, others join the line.
    let limiter = Arc::new(limiter);
    let waits = || limiter.acquire("", 1, Some(Duration::from_millis(100))).map(|permit| permit.is_some());
    assert_eq!(waits(), Ok(false));
    server.signal(libc::SIGSTOP);
    let began = Instant::now();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3).map(|_| scope.spawn(waits)).collect();
        waiters.into_iter().map(|waiter| waiter.join().unwrap()).collect()
    });
    assert!(began.elapsed() < options.timeout, "{:?}", began.elapsed());
    assert_eq!(answers, [Ok(false), Ok(false), Ok(false)]);
    server.signal(libc::SIGCONT);
}

#[test]
fn a_nonblocking_leave_passes_the_place_to_a_caller_that_may_wait() {
    for server in Server::each("servers-leaves") {
        let store = patient(&server.url());
        let limiter = Arc::new(rate(&store, "api", 1, Duration::from_secs(3_600)));
        assert!(admits(&*limiter, ""));
        let after = || match limiter.reserve("", 1, None, None).unwrap() {
            Reserved::Place { place, after } => (place, after),
            Reserved::Denied(after) => panic!("denied for {after:?}"),
        };
        let (place, first) = after();
        let mut line = Line::new(limiter.clone() as Arc<dyn Limiter>);
        let Joined::Waiting(id) = line.join(Waiter { place: Some(place), ..Waiter::new("", 1) }).unwrap() else {
            panic!("too early")
        };
        MayWait::Never.during(|| line.leave(id));
        assert!(line.would_wait() && line.next().is_some());
        assert_eq!(line.advance(&mut Vec::new()), None);
        assert!(!line.would_wait());
        assert!(after().1 <= first, "the place was returned");
    }
}

#[test]
fn a_late_waiter_with_grace_keeps_its_place() {
    for server in Server::each("servers-grace") {
        // From grants, which last a twentieth of a second here; and where the server decides each start.
        for url in [server.url(), server.direct_url()] {
            let window = Duration::from_secs(1);
            let machines = [0, 1].map(|_| patient(&url));
            let [limiter, other] = machines.each_ref().map(|store| rate(store, &url, 1, window));
            wait_until("it starts", || admits(&limiter, ""));
            let mut waits = Seat::new(Waiter::new("", 1).grace(Duration::from_secs(60)));
            assert!(matches!(waits.step(&limiter).unwrap(), Step::Sleep(_)));
            assert!(matches!(other.reserve("", 1, None, None).unwrap(), Reserved::Place { .. }));
            std::thread::sleep(window + Duration::from_millis(400));
            let late = SystemTime::now();
            // A busy server may be asked more than once. Another place would lie behind the other machine's.
            let permit = loop {
                match waits.step(&limiter).unwrap() {
                    Step::Admitted(permit) => break permit,
                    Step::Sleep(time) => std::thread::sleep(time),
                    step => panic!("{step:?}: {url}: {waits:?}"),
                }
            };
            assert!(limiter.ready_at(&permit).is_some_and(|ready| ready < late), "it started with its place: {url}");
        }
    }
}

#[test]
fn a_composite_retries_an_end_that_had_to_wait() {
    for server in Server::each("servers-composite") {
        let store = patient(&server.url());
        let rates = rate(&store, "api", 3, Duration::from_secs(3600));
        let jobs = ConcurrencyLimiter::shared(&store, "jobs", 1, None).unwrap();
        let both = CompositeLimiter::new([Arc::new(rates) as Arc<dyn Limiter>, Arc::new(jobs)]);
        type End = fn(&CompositeLimiter, &RawPermit) -> Result<()>;
        let ends: [End; 3] = [|l, p| l.complete(p), |l, p| l.cancel(p), |l, p| l.settle(p, 1)];
        for (i, end) in ends.into_iter().enumerate() {
            let Attempt::Admitted(permit) = both.attempt("", 1).unwrap() else { panic!("denied, {i}") };
            assert_eq!(MayWait::Never.during(|| end(&both, &permit)), Err(Error::WouldWait), "{i}");
            assert_eq!(end(&both, &permit), Ok(()), "{i}");
            assert_eq!(end(&both, &permit), Ok(()), "{i}");
        }
    }
}

#[test]
fn the_end_of_a_recorded_job_can_be_retried() {
    for server in Server::each("servers-recorded") {
        let store = patient(&server.url());
        let jobs = ConcurrencyLimiter::shared(&store, "jobs", 1, None).unwrap();
        jobs.record_job_start("").unwrap();
        assert_eq!(MayWait::Never.during(|| jobs.record_job_completion("")), Err(Error::WouldWait));
        assert!(!jobs.can_proceed("").unwrap());
        jobs.record_job_completion("").unwrap();
        assert!(jobs.can_proceed("").unwrap());
    }
}

#[test]
fn an_invalid_address_is_an_error_at_once() {
    // With what is shown of it: what is no port may be a password.
    let redis = [("redis://", "redis://"), ("redis://:99999", "redis://:…"), ("redis://host:port", "redis://host:…")];
    let postgres = [
        ("postgres:me", "postgres:me"),
        ("postgres://:99999", "postgres://:…"),
        ("postgresql://host/?ssl=yes", "postgresql://host/?ssl=yes"),
    ];
    let bad = redis.iter().filter(|_| cfg!(feature = "redis"));
    for (bad, shown) in bad.chain(postgres.iter().filter(|_| cfg!(feature = "postgres"))) {
        let error = Store::new(bad).map(drop).unwrap_err();
        assert!(matches!(&error, Error::InvalidUrl { url, .. } if url == shown), "{error}");
    }
}

#[test]
fn passwords_are_never_shown() {
    let redis =
        ["redis://user:secret@127.0.0.1:1/0", "redis+unix:///none?db=1&pass=secret", "redis://user:secret@host:port"];
    let postgres = [
        "postgres://user:secret@127.0.0.1:1/limits",
        "postgres:///limits?host=/none&user=me&password=secret",
        "postgres://user:secret@host:port",
    ];
    let all = redis.iter().filter(|_| cfg!(feature = "redis"));
    for url in all.chain(postgres.iter().filter(|_| cfg!(feature = "postgres"))) {
        let error = Store::new(url).and_then(|store| store.open()).unwrap_err().to_string();
        let place = ["127.0.0.1:1", "none", "host:port"].into_iter().find(|place| url.contains(place)).unwrap();
        assert!(error.contains(place) && !error.contains("secret"), "{error}");
    }
}

#[cfg(feature = "redis")]
/// The number of starts in this many attempts, one after the other, on each limiter.
fn starts(limiters: &[&RateLimiter], attempts: usize) -> usize {
    (0..attempts).flat_map(|_| limiters).filter(|limiter| admits(**limiter, "")).count()
}

#[cfg(feature = "redis")]
#[test]
fn a_server_that_lost_everything_admits_nothing_until_its_starts_would_be_over() {
    let mut server = RedisServer::start("servers-lost");
    let url = format!("{}?grants=never", server.url());
    let direct = || patient(&url);
    let window = Duration::from_secs(1);
    let limiter = |store: &Store| rate(store, "api", 5, window);
    let (old, new) = (direct(), direct());
    let (old, new) = (limiter(&old), limiter(&new));
    for how in ["wiped, and used by an old process", "wiped, and used by a new process", "started again"] {
        let began = Instant::now();
        assert_eq!(starts(&[&old], 5), 5, "{how}");
        let last = Instant::now();
        let newer = limiter(&direct());
        let asked: &[&RateLimiter] = match how {
            "started again" => {
                server.start_again();
                // A process that has not known it cannot distinguish it from an unused server.
                assert!(!admits(&old, ""), "{how}");
                &[&newer, &new, &old]
            }
            "wiped, and used by an old process" => {
                server.command("FLUSHALL");
                &[&old, &newer]
            }
            _ => {
                server.command("FLUSHALL");
                &[&newer, &new, &old]
            }
        };
        let mut first = None;
        while first.is_none() {
            let before = Instant::now();
            if starts(asked, 1) > 0 {
                first = Some(before);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let after = Instant::now() - last;
        assert!(after >= window, "{how}: {after:?} after the last start, {:?} after the first", Instant::now() - began);
        std::thread::sleep(window);
    }
}

/// A limiter of each kind, by the server's own time: its keys expire.
fn family(store: &Store) -> Vec<std::sync::Arc<dyn Limiter>> {
    let texts = ["3/1s", "5000/1s", "3/1s burst 3", "3/1s fixed", "3 concurrent"];
    texts.iter().enumerate().map(|(i, text)| store.limiter(&format!("limit-{i}"), text).unwrap()).collect()
}

#[test]
fn expired_keys_are_reset() {
    const STARTS: u32 = 20;
    for server in Server::each("servers-ends") {
        let store = patient(&server.url());
        for limiter in family(&store) {
            let name = limiter.name().to_owned();
            // A busy machine may cancel some starts after their grants, so late that they count for their window.
            let late = std::cell::Cell::new(0);
            let start = || loop {
                match limiter.attempt("a", 2).unwrap_or_else(|e| panic!("{name}: {e}")) {
                    Attempt::Admitted(permit) => return permit,
                    Attempt::Denied(_) => {
                        late.set(late.get() + 1);
                        // If they counted, every start but the first would have to wait.
                        assert!(late.get() < STARTS, "{name}: cancelled starts count");
                        std::thread::sleep(Duration::from_millis(1100));
                    }
                }
            };
            for _ in 0..STARTS {
                limiter.cancel(&start()).unwrap_or_else(|e| panic!("{name}: {e}"));
            }
            let permit = start();
            match name.as_str() {
                "limit-4" => limiter.complete(&permit).unwrap(),
                _ => limiter.settle(&permit, 0).unwrap_or_else(|e| panic!("{name}: {e}")),
            }
            let decision = limiter.peek("a", 1).unwrap();
            assert_eq!(decision.remaining, decision.limit, "{name}");
            limiter.pause(Duration::from_secs(60), "a").unwrap();
            assert!(!limiter.peek("a", 1).unwrap().admitted, "{name}");
            limiter.clear("a").unwrap();
            start();
            limiter.pause(Duration::from_secs(60), "").unwrap();
            assert!(!limiter.peek("b", 1).unwrap().admitted, "{name}");
            limiter.clear("").unwrap();
            assert!(limiter.peek("a", 3).unwrap().admitted, "{name}: {:?}", limiter.peek("a", 3));
        }
    }
}

#[test]
fn a_name_that_changes_its_kind_starts_empty() {
    for server in Server::each("servers-kinds") {
        let texts = ["3/1h", "3/1h burst 3", "3/1h fixed", "3 concurrent"];
        for (before, after) in texts.iter().flat_map(|before| texts.map(|after| (*before, after))) {
            let name = format!("{before} {after}");
            let store = || patient(&server.url());
            let old = store().limiter(&name, before).unwrap();
            assert!(matches!(old.attempt("a", 2).unwrap(), Attempt::Admitted(_)));
            store().forget(&name).unwrap();
            let new = store().limiter(&name, after).unwrap();
            // Starts still count if the kind is the same after all.
            let admitted = matches!(new.attempt("a", 2).unwrap(), Attempt::Admitted(_));
            assert_eq!(admitted, before != after, "{name}");
        }
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_waiters_timeout_follows_its_stores_clock() {
    let server = RedisServer::start("servers-timeout");
    let mut options = StoreOptions::default();
    (options.clock, options.timeout) = (Some(ManualClock::new()), Duration::from_secs(60));
    let store = Store::with_options(&server.url(), options).unwrap();
    let limiter = rate(&store, "api", 2, Duration::from_secs(1));
    assert!(limiter.acquire("", 1, Some(Duration::ZERO)).unwrap().is_some());
    let pid = server.pid();
    // SAFETY: the server lives until it ends with this test.
    let stop = |signal| unsafe { libc::kill(pid, signal) };
    stop(libc::SIGSTOP);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| limiter.acquire("", 1, Some(Duration::ZERO)).map(|permit| permit.is_some()));
        std::thread::sleep(Duration::from_millis(300));
        stop(libc::SIGCONT);
        assert!(waiter.join().unwrap().unwrap(), "it had capacity all along");
    });
}

#[test]
fn what_others_spent_is_charged_by_one_machine_however_its_units_are_granted() {
    for server in Server::each("servers-others") {
        for policy in ["1000/10m", "5000/10m", "1000/10m burst 1000", "1000/10m fixed"] {
            let machines = [0; 2].map(|_| patient(&server.url()));
            let [here, there] = machines.each_ref().map(|store| store.limiter(policy, policy).unwrap());
            let direct = direct(&server).limiter(policy, policy).unwrap();
            let left = || direct.peek("", 0).unwrap().remaining;
            // Both have granted units, by which they answer without the server.
            for limiter in [&here, &there].into_iter().cycle().take(20) {
                limiter.attempt("", 1).unwrap();
            }
            let before = left();
            assert_eq!(here.charge_others("", 300, before - 300).unwrap(), 300, "{policy}");
            assert_eq!(there.charge_others("", 300, before - 300).unwrap(), 0, "{policy}");
            assert!(left() >= before - 300, "{policy}: {}", left());
        }
    }
}

#[test]
fn what_one_machine_learns_from_headers_another_sees_with_its_source() {
    for server in Server::each("servers-learned") {
        let (here, there) = (patient(&server.url()), patient(&server.url()));
        let limiter = here.limiter("api", "100/1m").unwrap();
        limiter.attempt("", 1).unwrap();
        let quota = Quota { units: 500, window: Duration::from_secs(60), is_estimated: true };
        (0..2).for_each(|_| limiter.learn(quota, "api.example.com"));
        let seen = || {
            let snapshot = Observer::new(&there, 1).look().unwrap();
            snapshot.limits.into_iter().find(|limit| limit.name == "api").unwrap()
        };
        wait_until("the override", || seen().overridden_by.as_deref() == Some("headers of api.example.com"));
        assert_eq!((seen().policy().to_string(), seen().declared.to_string()), ("500/1m".into(), "100/1m".into()));
        assert_eq!(there.find("api").unwrap().peek("", 0).unwrap().limit, 500);
        there.override_limit("api", "50/1m", None).unwrap();
        assert_eq!(seen().overridden_by.as_deref(), Some("operator"));
        there.lift("api", None).unwrap();
        assert_eq!((seen().overridden_by, seen().policy().to_string()), (None, "100/1m".into()));
    }
}

#[test]
#[cfg(feature = "fault-points")]
fn what_is_learned_neither_replaces_nor_removes_what_an_operator_sets_meanwhile() {
    let per_minute = |units| Quota { units, window: Duration::from_secs(60), is_estimated: false };
    let policy = |store: &Store, name: &str| {
        let limits = Observer::new(store, 1).look().unwrap().limits;
        let limit = limits.into_iter().find(|limit| limit.name == name).unwrap();
        (limit.policy().to_string(), limit.overridden_by)
    };
    let by = |who: &str| Some(who.to_owned());
    for server in Server::each("servers-learned-late") {
        let (here, there) = (patient(&server.url()), Arc::new(patient(&server.url())));
        let learned = ("500/1m".to_owned(), by("headers of a"));
        // It would set an override, replace a learned one, and remove a learned one.
        for said in [&[500][..], &[500, 400], &[500, 100]] {
            let (last, before) = said.split_last().unwrap();
            let limiter = here.limiter("api", "100/1m").unwrap();
            limiter.attempt("", 1).unwrap();
            for units in before {
                limiter.learn(per_minute(*units), "a");
                wait_until("the first override", || policy(&there, "api") == learned);
            }
            let (done, is_done) = std::sync::mpsc::channel();
            let there = there.clone();
            // After it has read the row. (Only another test's thread that passes first would do it too early.)
            fault::at("noting", move || {
                let operator = move || there.override_limit("api", "50/1m", None).unwrap();
                std::thread::spawn(operator).join().unwrap();
                done.send(()).unwrap();
            });
            limiter.learn(per_minute(*last), "a");
            is_done.recv().unwrap();
            // The same thread does this one afterwards.
            let other = here.limiter(&format!("other{}", said.len() + *last as usize), "100/1m").unwrap();
            other.open().unwrap();
            other.learn(per_minute(77), "a");
            wait_until("the last", || policy(&here, other.name()).0 == "77/1m");
            assert_eq!(policy(&here, "api"), ("50/1m".into(), by("operator")), "{said:?}");
            assert_eq!(limiter.peek("", 0).unwrap().limit, 50, "{said:?}");
            here.forget("api").unwrap();
        }
    }
}

#[test]
fn what_was_learned_is_learned_again_after_the_server_has_lost_it() {
    for server in Server::each("servers-learned-lost") {
        let store = direct(&server);
        let limiter = store.limiter("api", "100/1m").unwrap();
        for _ in 0..2 {
            limiter.attempt("", 1).unwrap();
            wait_until("the declaration", || limiter.peek("", 0).unwrap().limit == 100);
            limiter.learn(Quota { units: 500, window: Duration::from_secs(60), is_estimated: false }, "a");
            wait_until("the override", || limiter.peek("", 0).unwrap().limit == 500);
            server.forget_all();
        }
    }
}
