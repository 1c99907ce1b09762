//! The findings of `doctor` about servers with bad settings, one setting at a time.
#![cfg(all(feature = "redis", feature = "postgres"))]

use crate::common::nodes::Node;
use crate::common::postgres::PostgresServer;
use crate::common::wait_until;
use std::collections::BTreeSet;
use std::time::Duration;
use workglow_limit::admin::{Severity, doctor, postgres_schema};
use workglow_limit::observe::Observer;
use workglow_limit::*;

fn found(url: &str) -> Vec<(Severity, String)> {
    let findings = doctor(url).unwrap();
    assert!(findings.iter().all(|finding| !finding.what.is_empty()), "{findings:?}");
    assert!(findings.is_sorted_by_key(|finding| std::cmp::Reverse(finding.severity)), "{findings:?}");
    findings.into_iter().map(|finding| (finding.severity, finding.setting)).collect()
}

fn url(node: &Node) -> String {
    format!("redis://127.0.0.1:{}", node.port)
}

#[test]
fn a_well_configured_server_has_no_findings_and_each_bad_setting_one() {
    use Severity::*;
    let server = Node::start("doctor-well", &[]);
    let set = |setting: &str, value: &str| assert_eq!(server.cli(&["CONFIG", "SET", setting, value]).trim(), "OK");
    set("appendonly", "yes");
    set("appendfsync", "always");
    wait_until("it is written", || server.cli(&["INFO", "persistence"]).contains("aof_rewrite_in_progress:0"));
    assert_eq!(found(&url(&server)), []);
    assert!(!server.cli(&["KEYS", "*"]).contains("wgl"), "nothing stays behind");
    let bad = [
        ("maxmemory-policy", "allkeys-lru", Warning),
        ("maxmemory-policy", "volatile-ttl", Warning),
        ("appendfsync", "everysec", Note),
        ("appendfsync", "no", Warning),
        ("timeout", "5", Note),
        ("busy-reply-threshold", "10", Warning),
    ];
    for (setting, value, severity) in bad {
        let before = server.cli(&["CONFIG", "GET", setting]).lines().nth(1).unwrap().trim().to_owned();
        set(setting, value);
        assert_eq!(found(&url(&server)), [(severity, setting.to_owned())]);
        assert_eq!(doctor(&url(&server)).unwrap()[0].value, value);
        set(setting, &before);
    }
    assert_eq!(found(&url(&server)), []);
    set("maxmemory-policy", "allkeys-lru");
    set("maxmemory", "1gb");
    assert_eq!(found(&url(&server)), [(Danger, "maxmemory-policy".into())]);
    set("maxmemory", "0");
    set("maxmemory-policy", "noeviction");
    set("appendonly", "no");
    assert_eq!(found(&url(&server)), [(Danger, "appendonly".into())]);
    set("save", "3600 1");
    assert_eq!(found(&url(&server)), [(Warning, "appendonly".into())]);
}

#[test]
fn the_time_in_an_address_is_compared_with_the_settings() {
    use Severity::*;
    let server = Node::start("doctor-loses", &[]);
    let set = |setting: &str, value: &str| assert_eq!(server.cli(&["CONFIG", "SET", setting, value]).trim(), "OK");
    let is_named = |loses: &str| {
        let found = found(&format!("{}?loses={loses}", url(&server)));
        found.into_iter().filter(|(_, setting)| setting == "loses").map(|(severity, _)| severity).collect::<Vec<_>>()
    };
    assert_eq!(is_named("1h"), [Danger], "nothing is kept");
    set("save", "3600 1 60 1000");
    assert_eq!((is_named("59m"), is_named("1h")), (vec![Danger], vec![]));
    set("appendonly", "yes");
    wait_until("it is written", || server.cli(&["INFO", "persistence"]).contains("aof_rewrite_in_progress:0"));
    for (fsync, least) in [("always", Some("0s")), ("everysec", Some("2s")), ("no", None)] {
        set("appendfsync", fsync);
        for loses in ["0s", "1999ms", "2s", "366d"] {
            let is_kept = least.is_some_and(|least| {
                ["0s", "1999ms", "2s", "366d"].iter().skip_while(|time| **time != least).any(|time| *time == loses)
            });
            assert_eq!(is_named(loses), if is_kept { vec![] } else { vec![Danger] }, "{fsync} {loses}");
        }
    }
    // The settings cannot be read.
    set("appendfsync", "always");
    assert_eq!(server.cli(&["ACL", "SETUSER", "managed", "on", ">x", "~*", "+@all", "-config"]).trim(), "OK");
    let findings = doctor(&format!("redis://managed:x@127.0.0.1:{}?loses=0s", server.port)).unwrap();
    assert!(findings.iter().any(|finding| finding.setting == "loses" && finding.severity == Note), "{findings:?}");
    let port = server.port.to_string();
    let _replica = Node::start("doctor-loses-replica", &["--replicaof", "127.0.0.1", &port]);
    wait_until("it has a replica", || server.cli(&["INFO", "replication"]).contains("connected_slaves:1"));
    assert_eq!((is_named("0s"), is_named("1s")), (vec![Warning], vec![]));
}

/// As while a machine's clock is slewed, or set in small steps.
#[cfg(feature = "fault-points")]
#[test]
fn a_clock_that_runs_otherwise_than_this_machines_is_named() {
    let server = crate::common::redis::RedisServer::with_clock("doctor-slewed");
    let is_named = || doctor(&server.url()).unwrap().iter().any(|finding| finding.setting == "TIME");
    assert!(!is_named());
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for step in 1.. {
                server.set_clock(step * 2_000);
                std::thread::sleep(Duration::from_millis(5));
                if is_over.load(std::sync::atomic::Ordering::Acquire) {
                    return;
                }
            }
        });
        wait_until("it is found", is_named);
        is_over.store(true, std::sync::atomic::Ordering::Release);
    });
}

#[test]
fn missing_permissions_are_reported_with_their_commands() {
    let server = Node::start("doctor-acl", &[]);
    let user = |rules: &str| {
        let arguments: Vec<&str> = ["ACL", "SETUSER", "some"].into_iter().chain(rules.split(' ')).collect();
        assert_eq!(server.cli(&arguments).trim(), "OK");
    };
    let url = format!("redis://some:secret@127.0.0.1:{}", server.port);
    let commands =
        || doctor(&url).unwrap().into_iter().filter(|finding| finding.setting == "commands").collect::<Vec<_>>();
    user("reset on >secret ~wgl:* +@all");
    assert_eq!(commands(), []);
    user("-zadd -rename");
    let findings = commands();
    assert!(findings.len() == 1 && findings[0].severity == Severity::Danger, "{findings:?}");
    assert!(["zadd", "rename"].iter().all(|name| findings[0].value.contains(name)), "{findings:?}");
    assert!(!findings[0].value.contains("hset"), "{findings:?}");
    // If settings cannot be read, that is reported, and the rest is checked.
    user("+zadd +rename -config");
    let findings = doctor(&url).unwrap();
    assert!(findings.iter().any(|f| f.setting == "CONFIG" && f.severity == Severity::Note), "{findings:?}");
    assert!(findings.iter().any(|f| f.setting == "appendonly"), "{findings:?}");
    user("-evalsha -script");
    assert!(found(&url).contains(&(Severity::Danger, "scripts".into())));
    user("-info +evalsha +script");
    assert_eq!(found(&url), [(Severity::Danger, "acl".into())]);
    user("+info resetkeys ~wgl:{*}");
    let findings = commands();
    assert!(findings.len() == 1 && findings[0].value.contains("key"), "{findings:?}");
    server.cli(&["ACL", "SETUSER", "some", "off"]);
    assert!(!doctor(&url).unwrap_err().to_string().contains("secret"));
}

/// The commands that a script of the library calls.
fn called(script: &str, by: &str) -> BTreeSet<String> {
    let calls = script.split(by).skip(1).filter_map(|rest| rest.split_once('"'));
    calls.map(|(command, _)| command.to_lowercase()).collect()
}

#[test]
fn the_documented_rights_suffice_and_doctor_checks_them() {
    let page = include_str!("../../../docs/servers.md");
    let line = page.lines().find(|line| line.starts_with("ACL SETUSER ")).unwrap();
    let scripts = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/server/redis");
    let texts = std::fs::read_dir(scripts).unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        path.extension().is_some_and(|ending| ending == "lua").then(|| std::fs::read_to_string(path).unwrap())
    });
    let needed: BTreeSet<String> = texts.flat_map(|text| called(&text, "call(\"")).collect();
    let checked = called(include_str!("../../src/server/redis/examine.lua"), "try(\"");
    assert_eq!(needed.difference(&checked).next(), None, "examine.lua tries all that the scripts call");
    let allowed = |command: &String| line.split(' ').any(|right| right.strip_prefix('+') == Some(command));
    assert_eq!(checked.iter().find(|command| !allowed(command)), None);

    let server = Node::start("doctor-rights", &[]);
    for (setting, value) in [("appendonly", "yes"), ("appendfsync", "always")] {
        assert_eq!(server.cli(&["CONFIG", "SET", setting, value]).trim(), "OK");
    }
    wait_until("it is written", || server.cli(&["INFO", "persistence"]).contains("aof_rewrite_in_progress:0"));
    assert_eq!(server.cli(&line.split(' ').collect::<Vec<_>>()).trim(), "OK");
    let url = format!("redis://limits:secret@127.0.0.1:{}/1", server.port);
    for url in [url.clone(), format!("{url}?grants=never")] {
        use_everything(&Store::new(&url).unwrap());
    }
    assert_eq!(found(&url), []);
    assert_eq!(server.cli(&["ACL", "LOG"]).trim(), "", "nothing was refused");
}

/// Calls what a store and its limits can do.
fn use_everything(store: &Store) {
    let texts = [
        "9/200ms",
        "5000/200ms",
        "9/200ms + 7/100ms",
        "9/200ms burst 3",
        "9/200ms queue 3",
        "9/200ms fixed",
        "9/200ms counter",
        "9/200ms spaced",
        "9 concurrent",
    ];
    for (i, text) in texts.into_iter().enumerate() {
        let name = format!("limit-{i}");
        let limiter = store.limiter(&name, text).unwrap_or_else(|error| panic!("{text}: {error}"));
        for key in ["", "a"] {
            for turn in 0..20 {
                limiter.peek(key, 1).unwrap();
                let Attempt::Admitted(permit) = limiter.attempt(key, 1).unwrap() else { continue };
                match turn % 3 {
                    0 => limiter.cancel(&permit).unwrap(),
                    1 if i < 8 => limiter.settle(&permit, 2).unwrap(),
                    _ => limiter.complete(&permit).unwrap(),
                }
            }
            limiter.pause(Duration::from_millis(1), key).unwrap();
            limiter.clear(key).unwrap();
        }
        store.override_limit(&name, &text.replace('9', "8"), None).unwrap();
        store.override_limit(&name, &text.replace('9', "7"), Some("a")).unwrap();
        limiter.attempt("a", 1).unwrap();
        store.lift(&name, Some("a")).unwrap();
        store.lift(&name, None).unwrap();
        limiter.attempt("a", 1).unwrap();
        assert!(store.names().unwrap().contains(&name));
        Observer::new(store, 5).look().unwrap();
        store.forget(&name).unwrap();
    }
}

#[test]
fn replicas_and_primaries_have_their_own_findings() {
    let primary = Node::start("doctor-primary", &["--appendonly", "yes"]);
    let port = primary.port.to_string();
    let replica = Node::start("doctor-replica", &["--replicaof", "127.0.0.1", &port]);
    wait_until("it follows", || primary.cli(&["INFO", "replication"]).contains("connected_slaves:1"));
    let of = |node: &Node, setting: &str| found(&url(node)).contains(&(Severity::Danger, setting.to_owned()));
    assert!(of(&primary, "min-replicas-to-write") && !of(&primary, "role"));
    primary.cli(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert!(!of(&primary, "min-replicas-to-write"));
    wait_until("it may be asked", || of(&replica, "role") && !of(&replica, "replica-read-only"));
    replica.cli(&["CONFIG", "SET", "replica-read-only", "no"]);
    assert!(of(&replica, "replica-read-only"));
}

/// The findings about a database for a role, without the test server's own: it does not wait for its disk.
fn found_as(server: &PostgresServer, role: &str, database: &str) -> Vec<(Severity, String)> {
    let mut found = found(&server.url_of(role, database));
    found.retain(|(_, setting)| setting != "fsync");
    found
}

/// The same for the administrator. `None` if a `statement_timeout` struck the question: on a busy machine, it failed the
/// test of that setting.
fn found_in_time(server: &PostgresServer) -> Option<Vec<(Severity, String)>> {
    match doctor(&server.url()) {
        Err(error) if error.to_string().contains("57014") => None,
        findings => {
            let others = findings.unwrap().into_iter().filter(|finding| finding.setting != "fsync");
            Some(others.map(|finding| (finding.severity, finding.setting)).collect())
        }
    }
}

#[test]
fn each_bad_setting_of_postgres_is_found() {
    use Severity::*;
    let server = PostgresServer::start("doctor-postgres");
    assert_eq!(found(&server.url()), [(Danger, "fsync".to_owned())]);
    assert_eq!(server.command("SELECT to_regnamespace('workglow_limit') IS NULL"), "t", "it creates nothing");
    Store::new(&server.url()).unwrap().open().unwrap();
    for (setting, value, severity) in [
        ("autovacuum", "off", Warning),
        ("full_page_writes", "off", Danger),
        ("statement_timeout", "100ms", Warning),
        ("default_transaction_isolation", "serializable", Note),
        ("default_transaction_read_only", "on", Danger),
    ] {
        server.command(&format!("ALTER SYSTEM SET {setting} = '{value}'"));
        server.command("SELECT pg_reload_conf()");
        let name = if setting.ends_with("read_only") { "transaction_read_only" } else { setting };
        wait_until("it is found", || found_in_time(&server) == Some(vec![(severity, name.to_owned())]));
        server.command("SET statement_timeout = 0; SET default_transaction_read_only = off; ALTER SYSTEM RESET ALL");
        server.command("SET statement_timeout = 0; SELECT pg_reload_conf()");
        wait_until("all is well", || found_in_time(&server) == Some(Vec::new()));
    }
    server.command("ALTER TABLE workglow_limit.counted SET UNLOGGED");
    assert_eq!(found_as(&server, "postgres", "postgres"), [(Danger, "UNLOGGED".to_owned())]);
}

#[test]
fn missing_privileges_on_postgres_are_reported() {
    use Severity::*;
    let server = PostgresServer::start("doctor-role");
    server.command("CREATE ROLE app LOGIN");
    let as_app = || found_as(&server, "app", "postgres");
    let usable = |url: &str| Store::new(url).unwrap().limiter("api", "1/1h").unwrap().attempt("", 1).is_ok();
    assert_eq!(as_app(), [(Danger, "schema".to_owned())]);
    assert!(!usable(&server.url_of("app", "postgres")));
    server.command(postgres_schema());
    assert_eq!(as_app(), [(Danger, "schema".to_owned())]);
    server.command("GRANT USAGE ON SCHEMA workglow_limit TO app");
    assert_eq!(as_app(), [(Danger, "privileges".to_owned())]);
    server.command(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA workglow_limit TO app; \
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA workglow_limit TO app",
    );
    assert_eq!(as_app(), []);
    assert!(usable(&server.url_of("app", "postgres")));
    server.command("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC");
    assert_eq!(as_app(), [(Note, "pg_control_system()".to_owned())]);
    server.command("REVOKE DELETE ON workglow_limit.starts FROM app");
    let findings = doctor(&server.url_of("app", "postgres")).unwrap();
    assert!(
        findings.iter().any(|finding| finding.setting == "privileges" && finding.value == "starts"),
        "{findings:?}"
    );
}

#[test]
fn stores_without_a_server_have_no_findings() {
    assert_eq!(doctor("memory:").unwrap(), []);
    assert!(matches!(doctor("nonsense:"), Err(Error::InvalidUrl { .. })));
    assert!(matches!(doctor("redis://127.0.0.1:1"), Err(Error::Store { .. })));
    assert!(matches!(doctor("postgres://me@127.0.0.1:1"), Err(Error::Store { .. })));
}
