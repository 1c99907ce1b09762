//! What `doctor` says of servers that are set badly, each in its own way.
#![cfg(feature = "redis")]

mod common;

use common::nodes::Node;
use common::wait_until;
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
fn a_server_that_is_set_well_is_well_and_each_setting_is_found_alone() {
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
fn who_may_not_use_what_limits_need_is_told_which_commands() {
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
    // Where settings cannot be looked at, that is said, and the rest is looked at.
    user("+zadd +rename -config");
    let findings = doctor(&url).unwrap();
    assert!(findings.iter().any(|f| f.setting == "CONFIG" && f.severity == Severity::Note), "{findings:?}");
    assert!(findings.iter().any(|f| f.setting == "appendonly"), "{findings:?}");
    user("-evalsha -script");
    assert!(found(&url).contains(&(Severity::Danger, "scripts".into())));
    user("-info +evalsha +script");
    assert!(doctor(&url).map_or_else(|e| e.to_string().contains("permission"), |f| f[0].setting == "acl"));
    server.cli(&["ACL", "SETUSER", "some", "off"]);
    assert!(!doctor(&url).unwrap_err().to_string().contains("secret"));
}

#[test]
fn replicas_are_told_from_primaries_that_may_be_cut_off() {
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

#[test]
fn where_there_is_no_server_there_is_nothing_to_find() {
    assert_eq!(doctor("memory:").unwrap(), []);
    assert!(matches!(doctor("nonsense:"), Err(Error::InvalidUrl { .. })));
    assert!(matches!(doctor("redis://127.0.0.1:1"), Err(Error::Store { .. })));
}
