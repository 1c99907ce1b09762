//! The particulars of limits on Postgres. (For what all servers have in common, see `sharing.rs`.)
#![cfg(feature = "postgres")]

use crate::common::limits::patient;
use crate::common::postgres::{Pooler, PostgresServer};
use crate::common::{Child, Dir, Record, most_in_any_window, now_ns, number, shared, wait_until};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use workglow_limit::admin::postgres_schema;
use workglow_limit::*;

const HOUR: Duration = Duration::from_secs(3600);

fn rate(url: &str, name: &str, max: u64, window: Duration) -> RateLimiter {
    RateLimiter::new(&patient(url), name, max, window).unwrap()
}

fn admits(limiter: &dyn Limiter, key: &str) -> bool {
    matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))
}

/// A store with this timeout.
fn impatient(url: &str, timeout: Duration) -> Store {
    let mut options = StoreOptions::default();
    options.timeout = timeout;
    let store = Store::with_options(url, options).unwrap();
    // A busy machine may need longer for the first answer.
    wait_until("it answers", || store.open().is_ok());
    store
}

const TEXTS: [&str; 8] =
    ["3/1h", "100/1h", "5000/1h", "3/1h + 2/1m", "3/1h burst 3", "3/1h fixed", "3/1h counter", "3 concurrent"];

/// A limiter of each kind, all of them full.
fn full(store: &Store) -> Vec<Arc<dyn Limiter>> {
    let declare = |(i, text): (usize, &&str)| {
        let limiter = store.limiter(&format!("limit-{i}"), text).unwrap();
        while admits(&*limiter, "a") {}
        limiter
    };
    TEXTS.iter().enumerate().map(declare).collect()
}

/// The address of a store whose starts are all decided by the server.
fn direct(server: &PostgresServer) -> String {
    server.url() + "&grants=never"
}

#[test]
fn a_denial_writes_nothing() {
    let server = PostgresServer::start("postgres-denial");
    let store = patient(&server.url());
    for limiter in full(&store) {
        // The server itself writes now and then, and the first reader of a written page may clean it up.
        let is_quiet = (0..20).any(|_| {
            let before = server.command("SELECT pg_current_wal_insert_lsn()");
            for _ in 0..10 {
                assert!(!limiter.decide("a", 1).unwrap().admitted);
                assert!(!admits(&*limiter, "a"));
                assert!(!limiter.peek("a", 1).unwrap().admitted);
            }
            server.command("SELECT pg_current_wal_insert_lsn()") == before
        });
        assert!(is_quiet, "{}", limiter.name());
    }
}

#[test]
fn concurrent_processes_and_threads_stay_within_the_limit() {
    let server = PostgresServer::start("postgres-storm");
    storm(&server.url(), "api");
}

#[test]
fn a_transaction_pooler_may_be_in_between() {
    let server = PostgresServer::start("postgres-pooler");
    // Each request may use another one of these sessions.
    let pooler = Pooler::start(&server, 2);
    storm(&(pooler.url() + "&grants=never"), "direct");
    storm(&pooler.url(), "granted");
    let limiters = full(&patient(&pooler.url()));
    // A client without the pooler finds them full, too.
    let direct = patient(&server.url());
    for (limiter, text) in limiters.iter().zip(TEXTS) {
        assert!(!admits(&**limiter, "a") && !admits(&*direct.limiter(limiter.name(), text).unwrap(), "a"), "{text}");
    }
}

/// Eight threads in four processes use one limit, and cancel or settle some of their starts.
fn storm(url: &str, name: &str) {
    let (window, limit) = (Duration::from_secs(1), 100);
    rate(url, name, limit, window).open().unwrap();
    let records: Vec<Record> = (0..8).map(|_| Record::new(100_000)).collect();
    let until = now_ns() + number("SECONDS", 3) * 1_000_000_000;
    let process = |records: &[Record]| {
        Child::run(|| {
            let limiter = rate(url, name, limit, window);
            std::thread::scope(|scope| {
                for (i, record) in records.iter().enumerate() {
                    let limiter = &limiter;
                    scope.spawn(move || {
                        while now_ns() < until {
                            let (weight, a) = (1 + i as u64, now_ns());
                            if let Attempt::Admitted(permit) = limiter.attempt("", weight).unwrap() {
                                match record.len() % 4 {
                                    0 => limiter.cancel(&permit).unwrap(),
                                    1 => limiter.settle(&permit, weight).unwrap(),
                                    _ => record.add(a, now_ns(), weight),
                                }
                                if record.len() % 4 < 2 {
                                    // A cancelled start does not count.
                                    record.add(a, now_ns(), 0);
                                }
                            }
                        }
                    });
                }
            });
        })
    };
    let children: Vec<Child> = records.chunks(2).map(process).collect();
    children.into_iter().for_each(Child::join);
    let starts: Vec<_> = records.iter().flat_map(Record::starts).collect();
    let most = most_in_any_window(&starts, window.as_nanos() as u64);
    assert!(most <= limit && starts.len() > 100, "{most} of {} starts", starts.len());
}

#[test]
fn concurrent_leases_and_buckets_stay_within_the_limit() {
    let server = PostgresServer::start("postgres-many");
    let url = server.url();
    let live = shared(1);
    let children: Vec<Child> = (0..4)
        .map(|_| {
            Child::run(|| {
                let store = patient(&url);
                let jobs = ConcurrencyLimiter::shared(&store, "jobs", 3, None).unwrap();
                for _ in 0..100 {
                    if let Attempt::Admitted(permit) = jobs.attempt("", 1).unwrap() {
                        assert!(live[0].fetch_add(1, SeqCst) < 3);
                        live[0].fetch_sub(1, SeqCst);
                        jobs.complete(&permit).unwrap();
                    }
                }
            })
        })
        .collect();
    children.into_iter().for_each(Child::join);
    for (name, text) in
        [("bucket", "20/1h burst 20"), ("window", "20/1h fixed"), ("log", "20/1h"), ("slices", "5000/1h")]
    {
        let admitted = shared(1);
        let children: Vec<Child> = (0..4)
            .map(|_| {
                Child::run(|| {
                    let limiter = patient(&url).limiter(name, text).unwrap();
                    let weight = if name == "slices" { 250 } else { 1 };
                    for _ in 0..20 {
                        if let Attempt::Admitted(_) = limiter.attempt("", weight).unwrap() {
                            admitted[0].fetch_add(1, SeqCst);
                        }
                    }
                })
            })
            .collect();
        children.into_iter().for_each(Child::join);
        assert_eq!(admitted[0].load(SeqCst), 20, "{name}");
    }
}

#[test]
fn a_stricter_isolation_has_no_effect() {
    let server = PostgresServer::start("postgres-serializable");
    server.command("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'");
    let limiter = rate(&server.url(), "api", 30, HOUR);
    let admitted: usize = std::thread::scope(|scope| {
        let thread = |_| scope.spawn(|| (0..30).filter(|_| admits(&limiter, "")).count());
        (0..4).map(thread).collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(admitted, 30);
}

#[test]
fn a_killed_server_remembers_everything_and_is_used_again() {
    let mut server = PostgresServer::durable("postgres-killed");
    // Even if its owner has configured it to forget.
    server.command("ALTER DATABASE postgres SET synchronous_commit = off");
    let limiter = rate(&server.url(), "api", 100, HOUR);
    for round in 1..=3 {
        for _ in 0..20 {
            assert!(admits(&limiter, ""));
        }
        server.crash();
        wait_until("it answers", || limiter.peek("", 1).is_ok());
        assert_eq!(limiter.peek("", 1).unwrap().remaining, 100 - 20 * round);
    }
}

#[test]
fn a_server_that_may_have_lost_starts_admits_none_for_a_window() {
    let window = Duration::from_secs(2);
    for how in ["does not wait for its disk", "is another one"] {
        let mut server = match how {
            "is another one" => PostgresServer::durable("postgres-forgot"),
            _ => PostgresServer::start("postgres-forgot"),
        };
        let limiter = rate(&direct(&server), "api", 5, window);
        assert!(admits(&limiter, ""));
        let last = now_ns();
        if how == "is another one" {
            // A standby that takes over begins another timeline.
            server.crash_and_take_over();
        } else {
            server.crash();
        }
        wait_until("it answers", || limiter.peek("", 1).is_ok());
        wait_until("it starts something", || admits(&limiter, ""));
        assert!(now_ns() - last >= window.as_nanos() as u64, "{how}");
        assert_eq!((0..5).filter(|_| admits(&limiter, "")).count(), 4, "{how}");
    }
}

/// What remains of a limit whose store may be too impatient for a busy machine.
fn remaining(limiter: &RateLimiter) -> u64 {
    let mut answer = None;
    wait_until("it answers", || {
        answer = limiter.peek("", 1).ok();
        answer.is_some()
    });
    answer.unwrap().remaining
}

#[test]
fn a_silent_server_is_a_timeout_and_is_used_again() {
    let server = PostgresServer::start("postgres-stopped");
    assert!(admits(&rate(&direct(&server), "api", 5, HOUR), ""));
    let store = impatient(&direct(&server), Duration::from_millis(300));
    let limiter = RateLimiter::attach(&store, "api").unwrap();
    wait_until("it answers", || limiter.peek("", 1).is_ok());
    server.signal(libc::SIGSTOP);
    for _ in 0..3 {
        let error = limiter.attempt("", 1).unwrap_err();
        assert!(matches!(error, Error::StoreTimeout { .. }), "{error}");
    }
    server.signal(libc::SIGCONT);
    // At worst the requests of that time are lost.
    assert!((1..=4).contains(&remaining(&limiter)));
}

#[test]
fn a_session_that_outwaits_its_caller_takes_nothing() {
    let server = PostgresServer::start("postgres-locked");
    assert!(admits(&rate(&direct(&server), "api", 5, HOUR), ""));
    let store = impatient(&direct(&server), Duration::from_secs(1));
    let limiter = RateLimiter::attach(&store, "api").unwrap();
    wait_until("it answers", || limiter.peek("", 1).is_ok());
    let locked = server.hold("SELECT 1 FROM workglow_limit.logs FOR UPDATE");
    // A denial or a peek does not wait.
    assert_eq!(remaining(&limiter), 4);
    let error = limiter.attempt("", 1).unwrap_err();
    assert!(matches!(error, Error::StoreTimeout { .. }), "{error}");
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
    wait_until("the session has given up", || server.command(waiting) == "0");
    drop(locked);
    assert_eq!(remaining(&limiter), 4);
}

#[test]
fn first_processes_that_arrive_together_create_one_schema() {
    let server = PostgresServer::start("postgres-first");
    for _ in 0..3 {
        let url = server.new_database() + "&grants=never";
        let gate = shared(1);
        let children: Vec<Child> = (0..8)
            .map(|_| {
                Child::run(|| {
                    gate[0].fetch_add(1, SeqCst);
                    while gate[0].load(SeqCst) < 8 {
                        std::hint::spin_loop();
                    }
                    let limiter = rate(&url, "api", 8, HOUR);
                    assert!(admits(&limiter, ""));
                    // The others may still be running the SQL, which must not lock what this one writes.
                    (0..30).for_each(|key| _ = admits(&limiter, &key.to_string()));
                })
            })
            .collect();
        children.into_iter().for_each(Child::join);
        assert!(!admits(&rate(&url, "api", 8, HOUR), ""));
    }
    assert!(!server.log().contains("deadlock detected"), "{}", server.log());
}

#[test]
fn a_role_without_the_right_to_create_is_pointed_to_the_sql() {
    let server = PostgresServer::start("postgres-role");
    server.command("CREATE ROLE app LOGIN");
    let url = server.url_of("app", "postgres");
    let error = Store::new(&url).unwrap().open().unwrap_err().to_string();
    assert!(error.contains("postgres_schema()"), "{error}");
    server.command(postgres_schema());
    // Running it again has no effect.
    server.command(postgres_schema());
    let error = Store::new(&url).unwrap().open().unwrap_err().to_string();
    assert!(error.contains("permission denied"), "{error}");
    let head = postgres_schema()
        .lines()
        .filter_map(|line| line.strip_prefix("--     "))
        .filter(|line| line.starts_with("GRANT "))
        .collect::<Vec<_>>()
        .join("\n");
    assert_eq!(head.lines().count(), 3);
    server.command(&head);
    let limiter = rate(&url, "api", 1, HOUR);
    // Nothing starts while this machine's clock and the server's are in doubt, as on a machine that stood still.
    wait_until("a start is admitted", || admits(&limiter, ""));
    assert!(!admits(&limiter, ""));
    // The schema of a later version is left alone.
    server.command("UPDATE workglow_limit.version SET version = 2; DROP FUNCTION workglow_limit.clock");
    let error = Store::new(&server.url()).unwrap().open().unwrap_err().to_string();
    assert!(error.contains("has version 2"), "{error}");
}

#[test]
fn passwords_are_requested_and_checked() {
    let server = PostgresServer::start("postgres-password");
    for method in ["scram-sha-256", "md5", "password"] {
        let encryption = if method == "md5" { "md5" } else { "scram-sha-256" };
        server.command(&format!(
            "SET password_encryption = '{encryption}'; CREATE ROLE \"{method}\" LOGIN SUPERUSER PASSWORD 'a@b c'"
        ));
        server.only_with(method, method);
        let of =
            |password: &str| Store::new(&format!("{}{password}", server.url_of(method, "postgres"))).unwrap().open();
        of("&password=a%40b%20c").unwrap_or_else(|e| panic!("{method}: {e}"));
        for (wrong, why) in [("&password=secret", "password authentication failed"), ("", "asks for a password")] {
            let error = of(wrong).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("secret"), "{method}: {error}");
        }
    }
}

#[test]
fn a_certificate_is_verified_as_the_address_requires() {
    let certificates = Dir::in_memory("postgres-certificates");
    let (_server, port) = PostgresServer::with_tls("postgres-tls", &certificates);
    let root = certificates.file("root.crt");
    let opened = |host: &str, query: &str| {
        let url = format!("postgres://postgres@{host}:{port}/postgres?sslmode={query}");
        Store::new(&url).unwrap().open().map_err(|e| e.to_string())
    };
    for (host, query) in [
        ("localhost", "disable".to_owned()),
        ("localhost", "prefer".into()),
        ("127.0.0.1", "require".into()),
        ("127.0.0.1", format!("verify-ca&sslrootcert={}", root.display())),
        ("localhost", format!("verify-full&sslrootcert={}", root.display())),
    ] {
        assert_eq!(opened(host, &query), Ok(()), "{query}");
    }
    for (host, query) in [
        ("127.0.0.1", format!("verify-full&sslrootcert={}", root.display())),
        ("localhost", "verify-full".into()),
        ("localhost", "verify-ca&sslrootcert=/none".into()),
    ] {
        assert!(opened(host, &query).is_err(), "{query}");
    }
    let limiter = rate(&format!("postgres://postgres@localhost:{port}/postgres?sslmode=require"), "api", 2, HOUR);
    assert!(admits(&limiter, "") && admits(&limiter, "") && !admits(&limiter, ""));
}

#[test]
fn a_forked_child_has_connections_of_its_own() {
    let server = PostgresServer::start("postgres-fork");
    let limiter = rate(&server.url(), "api", 40, HOUR);
    assert!(admits(&limiter, ""));
    let children: Vec<Child> = (0..3)
        .map(|_| {
            Child::run(|| {
                for _ in 0..10 {
                    assert!(admits(&limiter, ""));
                }
            })
        })
        .collect();
    for _ in 0..9 {
        assert!(admits(&limiter, ""));
    }
    children.into_iter().for_each(Child::join);
    assert!(!admits(&limiter, ""));
}

#[test]
fn unused_keys_are_removed() {
    let server = PostgresServer::start("postgres-idle");
    let store = patient(&direct(&server));
    for (table, text) in [("logs", "2/10ms"), ("counted", "2/10ms burst 2"), ("holders", "2 concurrent lease 10ms")] {
        let limiter = store.limiter(table, text).unwrap();
        let use_key = |i: u64| assert!(admits(&*limiter, &i.to_string()));
        (0..100).for_each(use_key);
        assert_eq!(server.command(&format!("SELECT count(*) FROM workglow_limit.{table}")), "100");
        // The rows of a key live for some seconds at most.
        server.command(&format!("UPDATE workglow_limit.{table} SET expires = expires - 10000000"));
        (100..150).for_each(use_key);
        let left: u64 = server.command(&format!("SELECT count(*) FROM workglow_limit.{table}")).parse().unwrap();
        assert!(left <= 50, "{table}: {left}");
    }
    for table in ["starts", "leases"] {
        let left: u64 = server.command(&format!("SELECT count(*) FROM workglow_limit.{table}")).parse().unwrap();
        assert!(left <= 50, "{table}: {left}");
    }
}

#[test]
fn starts_expired_under_the_previous_policy_count_under_the_present_one() {
    let server = PostgresServer::start("postgres-changed");
    let store = patient(&direct(&server));
    for (text, most) in [("", 3), (" burst 3", 3), (" queue 3", 1), (" fixed", 3), (" counter", 3)] {
        let name = format!("limit{text}");
        let limiter = store.limiter(&name, &format!("3/10m{text}")).unwrap();
        let started = |key: &str| (0..3).filter(|_| admits(&*limiter, key)).count();
        assert_eq!(started("a"), most, "{name}");
        server.command("CREATE TABLE kept AS SELECT * FROM workglow_limit.counted");
        store.limiter(&name, &format!("3/365d{text}")).unwrap().open().unwrap();
        // As if the state had not been rewritten, and so much time had passed that it has expired under the previous
        // policy.
        server.command(
            "DELETE FROM workglow_limit.counted; INSERT INTO workglow_limit.counted SELECT * FROM kept; DROP TABLE kept; \
             UPDATE workglow_limit.logs SET expires = 1; UPDATE workglow_limit.counted SET expires = 1",
        );
        // Creating a key removes some unneeded rows.
        assert_eq!(started("b"), most, "{name}");
        assert_eq!(started("a"), 0, "{name}");
    }
}

#[test]
fn garbage_in_the_tables_is_an_error_or_a_denial() {
    let server = PostgresServer::start("postgres-garbage");
    let columns = "SELECT table_name || ' ' || column_name FROM information_schema.columns c JOIN information_schema.tables t \
                   USING (table_schema, table_name) WHERE table_schema = 'workglow_limit' AND data_type = 'bigint' ORDER BY 1";
    drop(full(&patient(&server.url())));
    // The declarations may be garbage too, in which case the request is repeated until the timeout.
    let store = impatient(&server.url(), Duration::from_millis(100));
    let limiters: Vec<_> = (0..TEXTS.len())
        .map(|i| {
            let mut limiter = None;
            wait_until("it answers", || {
                limiter = store.limiter(&format!("limit-{i}"), TEXTS[i]).ok();
                limiter.as_ref().is_some_and(|limiter| limiter.peek("a", 1).is_ok())
            });
            limiter.unwrap()
        })
        .collect();
    let places: Vec<_> = limiters.iter().map(|limiter| limiter.reserve("a", 1, None, None)).collect();
    let all: Vec<(String, String)> = server
        .command(columns)
        .lines()
        .map(|line| line.split_once(' ').unwrap())
        .map(|(table, column)| (table.to_owned(), column.to_owned()))
        .collect();
    assert!(all.len() > 40, "{all:?}");
    let mut errors = 0;
    let mut ask = || {
        for (limiter, place) in limiters.iter().zip(&places) {
            let mut note = |is_error: bool| errors += u64::from(is_error);
            note(limiter.attempt("a", 1).is_err());
            note(limiter.peek("a", 1).is_err());
            if let Ok(Reserved::Place { place, .. }) = place {
                note(limiter.present(place).is_err());
                note(limiter.settle(place, 2).is_err());
                note(limiter.cancel(place).is_err());
            }
        }
    };
    server.command("ALTER DATABASE postgres SET statement_timeout = '10s'; CREATE SCHEMA kept");
    let tables: Vec<&str> = ["limits", "logs", "starts", "counted", "places", "holders", "leases"].to_vec();
    for table in &tables {
        server.command(&format!("CREATE TABLE kept.{table} AS SELECT * FROM workglow_limit.{table}"));
    }
    for (table, column) in all {
        for value in ["-1", "0", "9223372036854775807", "-9223372036854775808"] {
            if column == "id" && table == "limits" {
                continue;
            }
            server.command(&format!("UPDATE workglow_limit.{table} SET {column} = {value} WHERE ctid IN (SELECT ctid FROM workglow_limit.{table} LIMIT 1)"));
            ask();
        }
        let restore: String = tables
            .iter()
            .map(|table| {
                let overriding = if *table == "limits" { "OVERRIDING SYSTEM VALUE" } else { "" };
                format!("DELETE FROM workglow_limit.{table}; INSERT INTO workglow_limit.{table} {overriding} SELECT * FROM kept.{table};")
            })
            .collect();
        // A call that gave up may still be running on the server: the lock keeps it from adding rows between the two statements.
        let locked: String = tables.iter().map(|table| format!("LOCK workglow_limit.{table};")).collect();
        server.command(&format!("BEGIN; {locked} {restore} COMMIT"));
    }
    server.command("DELETE FROM workglow_limit.starts; DELETE FROM workglow_limit.leases");
    ask();
    assert!(errors > 0);
}
