//! Processes of one machine that share the grants of a server in a file that they map. Each store here represents a
//! process, unless real processes are used.
#![cfg(all(feature = "redis", feature = "fault-points"))]

use crate::common::limits::patient;
#[cfg(feature = "postgres")]
use crate::common::postgres::PostgresServer;
use crate::common::redis::RedisServer;
use crate::common::server::Server;
use crate::common::{Child, Dir, Random, Record, most_in_any_window, now_ns, number, present_boot, shared, wait_until};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use workglow_limit::embed::MayWait;
use workglow_limit::*;

const MINUTE: Duration = Duration::from_secs(60);
const MANY: u64 = 1_000_000;

fn url(server: &str, lane: &Path) -> String {
    format!("{server}{}lane={}", if server.contains('?') { '&' } else { '?' }, lane.display())
}

fn store(server: &RedisServer, lane: &Path) -> Store {
    patient(&url(&server.url(), lane))
}

fn many(store: &Store) -> RateLimiter {
    RateLimiter::new(store, "api", MANY, MINUTE).unwrap()
}

fn starts(limiter: &RateLimiter) -> bool {
    matches!(limiter.attempt("", 1), Ok(Attempt::Admitted(_)))
}

/// Returns whether a start succeeds from existing grants, without a request to the server.
fn starts_from_a_grant(limiter: &RateLimiter) -> bool {
    MayWait::Never.during(|| starts(limiter))
}

/// Starts so often that more is granted than is used at once.
fn warm(limiter: &RateLimiter) {
    (0..200).for_each(|_| assert!(starts(limiter)));
}

#[test]
fn one_process_starts_from_anothers_grants() {
    Server::each("lane-shared").for_each(|server| one_process_starts_from_anothers_grants_on(&server));
}

fn one_process_starts_from_anothers_grants_on(server: &Server) {
    let dir = Dir::in_memory("files-of-lane-shared");
    let [one, other] = [(); 2].map(|()| many(&patient(&url(&server.url(), &dir.file("lane")))));
    let alone = many(&patient(&server.url()));
    for limiter in [&other, &alone] {
        assert!(starts(limiter));
    }
    wait_until("it starts by the other's grants", || {
        warm(&one);
        starts_from_a_grant(&other)
    });
    warm(&one);
    assert!(!starts_from_a_grant(&alone), "one without the file has grants of its own");
    // And in the other direction, in a forked child.
    let children = [(); 2].map(|()| {
        Child::run(|| {
            wait_until("a child does", || {
                warm(&one);
                starts_from_a_grant(&one)
            });
        })
    });
    children.into_iter().for_each(Child::join);
}

#[test]
fn keys_limits_and_policies_are_kept_apart() {
    let (server, dir) = (RedisServer::start("lane-keys"), Dir::in_memory("files-of-lane-keys"));
    let stores = [(); 3].map(|()| store(&server, &dir.file("lane")));
    let of = |store: &Store, name: &str, max| RateLimiter::new(store, name, max, MINUTE).unwrap();
    for name in ["a", "b"] {
        let limiters = stores.each_ref().map(|store| of(store, name, 5));
        for key in ["", "x", "y"] {
            let admitted = (0..18).filter(|i| {
                let attempt = limiters[i % 3].attempt(key, 1).unwrap();
                matches!(attempt, Attempt::Admitted(_))
            });
            assert_eq!(admitted.count(), 5, "{name} {key}");
        }
    }
    stores[0].override_limit("a", "8/60s", None).unwrap();
    let limiters = stores.each_ref().map(|store| of(store, "a", 5));
    let admitted = (0..18).filter(|i| matches!(limiters[i % 3].attempt("x", 1).unwrap(), Attempt::Admitted(_)));
    assert_eq!(admitted.count(), 3, "three more by the override");
}

/// The database of an address that names none is that of its login.
#[cfg(feature = "postgres")]
#[test]
fn databases_are_kept_apart_and_logins_of_one_database_are_not() {
    let (server, dir) = (PostgresServer::start("lane-logins"), Dir::in_memory("files-of-lane-logins"));
    for login in ["alice", "bob"] {
        server.command(&format!("CREATE ROLE {login} LOGIN; CREATE DATABASE {login} OWNER {login}"));
    }
    server.command("ALTER ROLE bob SUPERUSER");
    let of = |server: &str| many(&patient(&url(server, &dir.file("lane"))));
    let [alice, bob] = ["alice", "bob"].map(|login| of(&server.url_of_login(login)));
    let bob_at_alice = of(&(server.url_of_login("bob") + "/alice"));
    [&alice, &bob, &bob_at_alice].into_iter().for_each(|limiter| assert!(starts(limiter)));
    wait_until("another login of the database starts by the grants", || {
        warm(&alice);
        starts_from_a_grant(&bob_at_alice)
    });
    warm(&alice);
    assert!(!starts_from_a_grant(&bob), "another database does not");
}

/// In another container, the same address may lead to another server.
#[test]
fn servers_with_the_same_address_are_kept_apart() {
    let servers = ["lane-address-1", "lane-address-2"].map(RedisServer::start);
    let dir = Dir::in_memory("files-of-lane-address");
    let socket = dir.file("socket");
    let of = |server: &RedisServer| {
        let _ = std::fs::remove_file(&socket);
        std::os::unix::fs::symlink(server.socket(), &socket).unwrap();
        let address = format!("redis+unix://{}", socket.display());
        let limiter = many(&patient(&url(&address, &dir.file("lane"))));
        assert!(starts(&limiter));
        limiter
    };
    let [one, again] = [(); 2].map(|()| of(&servers[0]));
    let other = of(&servers[1]);
    wait_until("units are shared", || {
        warm(&one);
        starts_from_a_grant(&again)
    });
    warm(&one);
    assert!(!starts_from_a_grant(&other));
}

/// A child that sends a request while the server is stopped, so that it is killed or stopped while other processes of
/// its machine wait for its answer.
fn child_that_asks(limiter: &RateLimiter, server: i32) -> Child {
    let asks = &shared(1)[0];
    let child = Child::run(|| {
        starts(limiter);
        asks.store(1, SeqCst);
        wait_until("the server is stopped", || asks.load(SeqCst) == 2);
        while starts_from_a_grant(limiter) {}
        asks.store(3, SeqCst);
        loop {
            // It may be too late for the first attempt.
            let _ = limiter.attempt("", 1);
        }
    });
    wait_until("it has begun", || asks.load(SeqCst) == 1);
    stop(server, libc::SIGSTOP);
    asks.store(2, SeqCst);
    wait_until("it has used up the granted units", || asks.load(SeqCst) == 3);
    std::thread::sleep(Duration::from_millis(50));
    child
}

fn stop(server: i32, signal: i32) {
    // SAFETY: the server lives until it ends with this test.
    unsafe { libc::kill(server, signal) };
}

#[test]
fn a_process_that_dies_during_a_request_blocks_no_other() {
    for is_deleted in [false, true] {
        let (server, dir) = (RedisServer::start("lane-killed"), Dir::in_memory("files-of-lane-killed"));
        let (pid, lane) = (server.pid(), dir.file("lane"));
        let limiter = many(&store(&server, &lane));
        assert!(starts(&limiter));
        let child = child_that_asks(&limiter, pid);
        child.signal(libc::SIGKILL);
        drop(child);
        if is_deleted {
            std::fs::remove_file(&lane).unwrap();
        }
        stop(pid, libc::SIGCONT);
        // A call that does not wait for another's answer fails after the store's timeout.
        warm(&limiter);
        wait_until("units are available again", || {
            warm(&limiter);
            starts_from_a_grant(&limiter)
        });
    }
}

#[test]
fn a_process_stopped_during_a_request_blocks_no_other() {
    let (server, dir) = (RedisServer::start("lane-stopped"), Dir::in_memory("files-of-lane-stopped"));
    let limiter = many(&store(&server, &dir.file("lane")));
    let pid = server.pid();
    let child = child_that_asks(&limiter, pid);
    child.signal(libc::SIGSTOP);
    stop(pid, libc::SIGCONT);
    warm(&limiter);
    child.signal(libc::SIGCONT);
    wait_until("units are available again", || {
        warm(&limiter);
        starts_from_a_grant(&limiter)
    });
    drop(child);
}

#[test]
fn a_file_of_another_boot_is_rebuilt_and_a_foreign_file_is_left_alone() {
    let (server, dir) = (RedisServer::start("lane-boot"), Dir::in_memory("files-of-lane-boot"));
    let lane = dir.file("lane");
    let uses = |boot| {
        Child::run(|| {
            present_boot(boot);
            warm(&many(&store(&server, &lane)));
        })
        .join();
    };
    uses(1);
    let before = std::fs::read(&lane).unwrap();
    uses(1);
    uses(2);
    let after = std::fs::read(&lane).unwrap();
    assert!(before.len() == after.len() && before[..64] != after[..64]);
    let opens = |path: &Path| many(&store(&server, path)).attempt("", 1).map(drop);
    let text = dir.file("text");
    std::fs::write(&text, "a letter").unwrap();
    assert!(matches!(opens(&text), Err(Error::NotAStore { .. })));
    assert_eq!(std::fs::read(&text).unwrap(), b"a letter");
    std::os::unix::fs::symlink(&text, dir.file("link")).unwrap();
    assert!(opens(&dir.file("link")).is_err());
    assert!(matches!(opens(&dir.file("none/lane")), Err(Error::Store { .. })));
    for wrong in ["", "/"] {
        let error =
            Store::new(&format!("{}{}lane={wrong}", server.url(), if server.url().contains('?') { '&' } else { '?' }));
        assert!(matches!(error, Err(Error::InvalidArgument { .. })), "{error:?}");
    }
}

#[test]
fn a_replaced_file_separates_processes_and_nothing_is_granted_twice() {
    let (server, dir) = (RedisServer::start("lane-replaced"), Dir::in_memory("files-of-lane-replaced"));
    let lane = dir.file("lane");
    let few = |store: &Store| RateLimiter::new(store, "few", 20, MINUTE).unwrap();
    let old = store(&server, &lane);
    let (before, others) = (few(&old), many(&old));
    assert!(starts(&before) && starts(&others));
    std::fs::remove_file(&lane).unwrap();
    let after = few(&store(&server, &lane));
    let all = (0..60).filter(|i| starts([&before, &after][i % 2])).count();
    assert_eq!(all, 19);
    // A child of the first process finds another file in its place, and uses its grants alone.
    Child::run(|| {
        assert!(!starts(&before));
        wait_until("units are available", || {
            warm(&others);
            starts_from_a_grant(&others)
        });
    })
    .join();
}

#[test]
fn keys_beyond_the_files_slots_are_still_limited() {
    let (server, dir) = (RedisServer::start("lane-many"), Dir::in_memory("files-of-lane-many"));
    let limiters = [(); 2].map(|()| RateLimiter::new(&store(&server, &dir.file("lane")), "keys", 3, MINUTE).unwrap());
    for key in 0..6_000 {
        let key = key.to_string();
        let admits = |i: usize| matches!(limiters[i % 2].attempt(&key, 1).unwrap(), Attempt::Admitted(_));
        let admitted = (0..2).filter(|i| admits(*i)).count();
        assert_eq!(admitted, 2, "{key}");
    }
    for key in 0..6_000 {
        let key = key.to_string();
        let admits = |i: usize| matches!(limiters[i % 2].attempt(&key, 1).unwrap(), Attempt::Admitted(_));
        assert!((0..3).filter(|i| admits(*i)).count() <= 1, "{key}");
    }
}

/// Processes of two machines, and one that does not share, start as often as they may, while some are killed and some
/// are stopped.
#[test]
fn killed_and_stopped_sharing_processes_stay_within_the_limit() {
    const LIMIT: u64 = 300;
    let window = Duration::from_millis(500);
    let (server, dir) = (RedisServer::start("lane-storm"), Dir::in_memory("files-of-lane-storm"));
    let (server_url, records) = (server.url(), [(); 7].map(|()| Record::new(100_000)));
    let run = |site: usize| {
        Child::run(|| {
            let url =
                if site == 6 { server_url.clone() } else { url(&server_url, &dir.file(&format!("lane-{}", site % 2))) };
            let mut options = StoreOptions::default();
            (options.timeout, options.on_error) = (Duration::from_millis(300), OnError::Deny);
            let limiter = RateLimiter::new(&Store::with_options(&url, options).unwrap(), "api", LIMIT, window).unwrap();
            loop {
                let before = now_ns();
                match limiter.attempt("", 1) {
                    Ok(Attempt::Admitted(_)) => records[site].add(before, now_ns(), 1),
                    _ => std::thread::sleep(Duration::from_micros(500)),
                }
            }
        })
    };
    let mut sites: Vec<Child> = (0..7).map(run).collect();
    let (mut random, began, mut kills) = (Random::new(), Instant::now(), 0);
    while began.elapsed() < Duration::from_secs(number("SECONDS", 4)) {
        let site = random.below(7) as usize;
        if random.chance(3) {
            sites[site].signal(libc::SIGSTOP);
            std::thread::sleep(Duration::from_millis(random.below(300)));
            sites[site].signal(libc::SIGCONT);
        } else {
            sites[site] = run(site);
            kills += 1;
        }
        std::thread::sleep(Duration::from_millis(random.below(60)));
    }
    // On a busy machine hardly one may have lived long enough. The last ones go on.
    wait_until("more than a window's starts are there", || records.iter().map(Record::len).sum::<u64>() > LIMIT);
    drop(sites);
    let starts: Vec<_> = records.iter().flat_map(Record::starts).collect();
    let most = most_in_any_window(&starts, window.as_nanos() as u64);
    println!("{} starts, at most {most} of {LIMIT} in a window, {kills} kills", starts.len());
    assert!(most <= LIMIT, "{most}");
}

#[test]
fn waiting_for_the_file_blocks_no_other_store() {
    let (server, dir) = (RedisServer::start("lane-making"), Dir::in_memory("files-of-lane-making"));
    let path = dir.file("lane");
    let file = std::fs::File::create(&path).unwrap();
    // SAFETY: a zeroed lock description is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_start, lock.l_len) = (libc::F_WRLCK as i16, 1 << 40, 1);
    // SAFETY: plain call on an open descriptor. It looks as if another process had stopped while creating the file.
    assert_eq!(unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&file), libc::F_OFD_SETLK, &lock) }, 0);
    let within = |url: &str, seconds| {
        let mut options = StoreOptions::default();
        options.timeout = Duration::from_secs(seconds);
        Store::with_options(url, options).unwrap()
    };
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| starts(&many(&within(&url(&server.url(), &path), 120))));
        std::thread::sleep(Duration::from_millis(50));
        for _ in 0..20 {
            within("memory:", 20).open().unwrap();
        }
        assert!(!waiting.is_finished());
        drop(file);
        assert!(waiting.join().unwrap());
    });
}
