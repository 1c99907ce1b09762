//! Limits on groups of servers: a primary that Sentinels replace, a cluster; and a server that is reached through TLS.
#![cfg(feature = "redis")]

use crate::common::nodes::Node;
use crate::common::{self, most_in_any_window, now_ns, wait_until};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::*};
use std::time::Duration;
use workglow_limit::observe::Observer;
use workglow_limit::*;

fn store(url: &str, timeout: Duration) -> Store {
    let mut options = StoreOptions::default();
    options.timeout = timeout;
    Store::with_options(url, options).unwrap()
}

fn is_of_the_store(error: &Error) -> bool {
    matches!(error, Error::Store { .. } | Error::StoreTimeout { .. })
}

/// A primary, its replica, the Sentinels that watch them, and their address.
fn group(name: &str) -> (Node, Node, Vec<Node>, String) {
    let primary = Node::start(&format!("{name}-primary"), &[]);
    let port = primary.port.to_string();
    let replica = Node::start(&format!("{name}-replica"), &["--replicaof", "127.0.0.1", &port]);
    let sentinels: Vec<Node> =
        (0..3).map(|i| Node::start_sentinel(&format!("{name}-sentinel-{i}"), primary.port, 2)).collect();
    for sentinel in &sentinels {
        wait_until("the group is complete", || {
            let info = sentinel.cli(&["INFO", "sentinel"]);
            info.contains("slaves=1,sentinels=3")
        });
    }
    wait_until("the replica follows", || replica.cli(&["INFO", "replication"]).contains("master_link_status:up"));
    let hosts: Vec<String> = sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
    let url = format!("redis+sentinel://{}/main/0", hosts.join(","));
    (primary, replica, sentinels, url)
}

#[test]
fn a_silent_primary_is_left_within_the_call() {
    let (primary, _replica, _sentinels, url) = group("group-silent");
    let store = store(&format!("{url}?grants=never"), Duration::from_secs(20));
    let limiter = RateLimiter::new(&store, "api", 20, Duration::from_millis(100)).unwrap();
    assert!(matches!(limiter.attempt("", 1), Ok(Attempt::Admitted(_))));
    primary.signal(libc::SIGSTOP);
    let answer = limiter.attempt("", 1);
    assert!(answer.is_ok(), "{answer:?}");
}

#[test]
fn sentinels_replace_a_primary_without_excess_starts() {
    const MOST: u64 = 20;
    const WINDOW: Duration = Duration::from_secs(12);
    let (primary, replica, _sentinels, url) = group("group");
    let (starts, is_over, errors) = (Mutex::new(Vec::new()), AtomicBool::new(false), AtomicUsize::new(0));
    let admitted = || starts.lock().unwrap().len();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let store = store(&url, Duration::from_secs(2));
                let limiter = RateLimiter::new(&store, "api", MOST, WINDOW).unwrap();
                while !is_over.load(Acquire) {
                    let a = now_ns();
                    match limiter.attempt("", 1) {
                        Ok(Attempt::Admitted(_)) => starts.lock().unwrap().push((a, now_ns(), 1)),
                        Ok(Attempt::Denied(_)) => {}
                        Err(error) => {
                            assert!(is_of_the_store(&error), "{error}");
                            errors.fetch_add(1, Relaxed);
                        }
                    }
                    std::thread::sleep(Duration::from_millis(2));
                }
            });
        }
        wait_until("all is used up", || admitted() as u64 == MOST);
        // The replica does not receive the starts of the next window.
        std::thread::sleep(WINDOW - Duration::from_millis(500));
        replica.signal(libc::SIGSTOP);
        wait_until("all is used up again", || admitted() as u64 >= 2 * MOST);
        primary.signal(libc::SIGKILL);
        replica.signal(libc::SIGCONT);
        wait_until("the replica is the primary", || replica.cli(&["ROLE"]).contains("master"));
        wait_until("a caller starts again", || admitted() as u64 > 2 * MOST);
        is_over.store(true, Release);
    });
    let starts = starts.into_inner().unwrap();
    let most = most_in_any_window(&starts, WINDOW.as_nanos() as u64);
    eprintln!("{} starts, {} errors, {most} at most in a window", starts.len(), errors.load(Relaxed));
    assert!(most <= MOST, "{most}");
}

/// Three nodes that form a cluster.
fn cluster(name: &str) -> Vec<Node> {
    let node = |i| Node::start(&format!("{name}-{i}"), &["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"]);
    let nodes: Vec<Node> = (0..3).map(node).collect();
    let addresses: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
    let mut arguments = vec!["--cluster", "create"];
    arguments.extend(addresses.iter().map(String::as_str));
    arguments.push("--cluster-yes");
    let said = nodes[0].cli(&arguments);
    assert!(said.contains("All 16384 slots covered"), "{said}");
    for node in &nodes {
        wait_until("the cluster is there", || node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
    }
    nodes
}

#[test]
fn limits_of_a_cluster_are_found_from_one_address_and_while_they_move() {
    const NAMES: usize = 40;
    const MOST: usize = 3;
    let nodes = cluster("group-cluster");
    let url = format!("redis://127.0.0.1:{}", nodes[0].port);
    let texts = ["3/24h", "3/24h burst 3", "3/365d fixed", "3 concurrent"];
    let stores: Vec<Store> = (0..2).map(|_| store(&url, Duration::from_secs(60))).collect();
    let all: Vec<_> = (0..NAMES)
        .map(|i| {
            stores.iter().map(|store| store.limiter(&format!("limit-{i}"), texts[i % 4]).unwrap()).collect::<Vec<_>>()
        })
        .collect();
    let admitted = |key: &str, limiters: &[std::sync::Arc<dyn Limiter>]| {
        let attempts = (0..4).flat_map(|_| limiters);
        attempts.filter(|limiter| matches!(limiter.attempt(key, 1).unwrap(), Attempt::Admitted(_))).count()
    };
    for (i, limiters) in all.iter().enumerate() {
        assert_eq!(admitted("before", limiters), MOST, "limit-{i}");
    }
    for node in &nodes {
        assert_ne!(node.cli(&["DBSIZE"]).trim(), "0", "each has some of the limits");
    }
    let mut names = stores[0].names().unwrap();
    names.sort();
    assert_eq!(names.len(), NAMES);
    // A watcher asks each node about its limits.
    let mut observer = Observer::new(&store(&url, Duration::from_secs(60)), 3);
    let mut are_seen = |when: &str| {
        let seen = observer.look().unwrap();
        let used: Vec<_> = seen.limits.iter().map(|limit| (&limit.name, limit.usage[0].used)).collect();
        assert!(used.len() == NAMES && used.iter().all(|(_, used)| *used == MOST as u64), "{when}: {used:?}");
    };
    are_seen("before");
    // Everything on the second node moves to the first, while limits are used.
    let id = |node: &Node| node.cli(&["CLUSTER", "MYID"]).trim().to_owned();
    let (from, to, first) = (id(&nodes[1]), id(&nodes[0]), format!("127.0.0.1:{}", nodes[0].port));
    let count = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            let arguments = ["--cluster", "reshard", &first, "--cluster-from", &from, "--cluster-to", &to];
            let said = nodes[0].cli(&[&arguments[..], &["--cluster-slots", "5461", "--cluster-yes"]].concat());
            is_over.store(true, Release);
            said
        });
        while !is_over.load(Acquire) {
            let round = count.fetch_add(1, Relaxed);
            are_seen("while they move");
            for (i, limiters) in all.iter().enumerate() {
                assert_eq!(admitted(&format!("during {round}"), limiters), MOST, "limit-{i}");
                assert_eq!(admitted("before", limiters), 0, "limit-{i}");
            }
        }
        let said = mover.join().unwrap();
        assert!(!said.contains("ERR"), "{said}");
    });
    assert_eq!(nodes[1].cli(&["DBSIZE"]).trim(), "0");
    for (i, limiters) in all.iter().enumerate() {
        assert_eq!(admitted("before", limiters), 0, "limit-{i}");
        assert_eq!(admitted("after", limiters), MOST, "limit-{i}");
    }
    are_seen("after");
    eprintln!("{} rounds while slots moved", count.load(Relaxed));
}

#[cfg(feature = "tls")]
#[test]
fn a_server_is_reached_through_tls_if_it_is_trusted() {
    let dir = common::Dir::new("group-tls");
    let openssl = |arguments: &str| {
        let output =
            std::process::Command::new("openssl").args(arguments.split(' ')).current_dir(&dir.0).output().unwrap();
        assert!(output.status.success(), "{arguments}: {}", common::nodes::text_of(output));
    };
    openssl("req -x509 -newkey rsa:2048 -nodes -days 2 -keyout ca.key -out ca.pem -subj /CN=ours");
    std::fs::write(dir.file("names"), "subjectAltName=IP:127.0.0.1,DNS:localhost").unwrap();
    for who in ["server", "client"] {
        openssl(&format!("req -newkey rsa:2048 -nodes -keyout {who}.key -out {who}.csr -subj /CN={who}"));
        openssl(&format!(
            "x509 -req -in {who}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out {who}.pem"
        ));
    }
    let file = |name: &str| dir.file(name).display().to_string();
    let (cert, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    for clients in ["no", "yes"] {
        let arguments = ["--tls-cert-file", &cert, "--tls-key-file", &key, "--tls-ca-cert-file", &ca];
        let server = Node::start_by(
            "group-tls-server",
            "--tls-port",
            &[&arguments[..], &["--port", "0", "--tls-auth-clients", clients]].concat(),
        );
        let url = format!("rediss://127.0.0.1:{}", server.port);
        let one = format!("{url}?ca={ca}");
        let known = format!("{one}&cert={}&key={}", file("client.pem"), file("client.key"));
        let starts = |url: &str| {
            let store = store(url, Duration::from_secs(20));
            let limiter = RateLimiter::new(&store, "api", 3, Duration::from_secs(3_600)).unwrap();
            limiter.attempt(clients, 1)
        };
        assert!(matches!(starts(&known), Ok(Attempt::Admitted(_))), "{:?}", starts(&known));
        assert_eq!(starts(&one).is_ok(), clients == "no");
        // No trusted certificate was configured.
        assert!(is_of_the_store(&starts(&url).unwrap_err()));
    }
    for bad in ["rediss://localhost?ca=/nowhere.pem", "rediss://localhost?cert=/nowhere.pem"] {
        assert!(matches!(Store::new(bad).map(drop), Err(Error::InvalidUrl { .. })), "{bad}");
    }
}

#[test]
fn a_socket_has_two_schemes() {
    let server = common::redis::RedisServer::start("group-socket");
    let urls = [server.url(), server.url().replace("redis+unix://", "unix://")];
    let starts = urls.map(|url| {
        let store = store(&url, Duration::from_secs(20));
        let limiter = RateLimiter::new(&store, "api", 1, Duration::from_secs(3_600)).unwrap();
        matches!(limiter.attempt("", 1).unwrap(), Attempt::Admitted(_))
    });
    assert_eq!(starts, [true, false]);
}

#[test]
fn an_address_of_sentinels_names_a_primary() {
    for bad in ["redis+sentinel://", "redis+sentinel://host", "redis+sentinel://host/", "redis+sentinel://host/name/db"]
    {
        let error = Store::new(bad).map(drop).unwrap_err();
        assert!(matches!(&error, Error::InvalidUrl { .. }), "{bad}: {error}");
    }
    let store = store("redis+sentinel://user:secret@127.0.0.1:1,127.0.0.1:2/main/0", Duration::from_millis(200));
    let error = store.open().unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:1") && !error.contains("secret"), "{error}");
}
