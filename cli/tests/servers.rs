//! The commands on servers.

mod common;

#[allow(dead_code, reason = "another test binary uses the rest")]
#[path = "common/server.rs"]
mod server;

use common::{run, used};
use serde_json::json;
use server::Server;
use std::time::Duration;
use workglow_limit::Store;

/// What is held, used and paused here is shown to operators elsewhere.
fn use_is_shown_everywhere(url: &str) {
    let store = Store::new(url).unwrap();
    let start = |name: &str, policy: &str, key: &str, times: usize| {
        let limiter = store.limiter(name, policy).unwrap();
        (0..times).map(|_| limiter.try_acquire(key, 1).unwrap().unwrap()).collect::<Vec<_>>()
    };
    let _held = [
        start("api", "20/1h", "acme", 12),
        start("jobs", "5 concurrent", "", 3),
        start("jobs", "5 concurrent", "acme", 2),
        start("both", "20/1h + 5 concurrent", "", 1),
        start("shut", "5 concurrent", "", 2),
    ];
    store.find("shut").unwrap().pause(Duration::from_secs(3_600), "").unwrap();
    // What a server has granted to this process and has not started counts elsewhere until it is returned.
    let seen = |name: &str, used: u64, of: u64| {
        let limits = run(url, &["status", "--json"]).json(0);
        let limits = limits["limits"].as_array().unwrap();
        let usage = &limits.iter().find(|limit| limit["name"] == name).unwrap()["usage"][0];
        let shown = usage["used"].as_u64().unwrap();
        let is_granted = usage["window"].is_number() && shown >= used;
        assert!((shown == used || is_granted) && usage["limit"] == of, "{name}: {usage}");
    };
    seen("api", 12, 20);
    seen("jobs", 3, 5);
    seen("both/concurrency", 1, 5);
    seen("both/rate", 1, 20);
    seen("shut", 2, 5);
    run(url, &["status"]).with(0).says(&["3/5", "2/5", "paused "]);
    run(url, &["show", "jobs"]).with(0).says(&["3 of 5 at once (60 %)", "open"]);
    run(url, &["show", "shut"]).with(0).says(&["2 of 5 at once (40 %)", "paused for"]);
    run(url, &["show", "jobs", "acme"]).with(0).says(&["2 of 5"]);
    run(url, &["peek", "both", "concurrency=4", "rate=other"]).with(0).says(&["4 of 5 left"]);
    run(url, &["peek", "both", "concurrency=5", "rate=other"]).with(4).says(&["by both/concurrency"]);
    run(url, &["show", "both", "rate=other"]).with(0).says(&["both/rate  (rate), key other", "1 of 5"]);
    let server = Server::start(url, &["--read-only"]);
    let metrics = server.get("/metrics", &[]).with(200).body;
    for line in [
        "workglow_limit_units_used{limit=\"jobs\"} 3",
        "workglow_limit_leases{limit=\"jobs\"} 3",
        "workglow_limit_paused{limit=\"jobs\"} 0",
        "workglow_limit_units_used{limit=\"shut\"} 2",
        "workglow_limit_paused{limit=\"shut\"} 1",
        "workglow_limit_near{limit=\"shut\"} 0",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line}: {metrics}");
    }
    let page = server.get("/api/snapshot", &[]).json(200);
    assert_eq!((&page["summary"]["paused"], &page["summary"]["full"]), (&json!(1), &json!(0)), "{page}");
}

#[test]
fn use_is_shown_everywhere_on_a_machine() {
    use_is_shown_everywhere(&common::Dir::new("shown").url());
}

fn all_commands_work(url: &str) {
    let store = used(url);
    let seen = run(url, &["status", "--json"]).json(0);
    let names: Vec<&str> = seen["limits"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mail", "openai/concurrency", "openai/rate", "stripe"]);
    run(url, &["status"]).with(0).says(&["4 limits", "3/1h", "5 concurrent"]);
    // Of a key that this command does not name, only the hash is known.
    let (mail, key) = (&seen["limits"][0], seen["limits"][0]["fullest"].as_str().unwrap());
    assert_eq!((&mail["usage"][0]["used"], key.len(), &key[..1]), (&json!(3), 17, "#"), "{mail}");
    run(url, &["show", "openai"]).with(0).says(&["openai/rate  (rate)", "0 of 100 in 1m"]);
    run(url, &["show", "mail"]).with(0).says(&["3 of 3", key]);
    run(url, &["show", "mail", "acme"]).with(0).says(&["3 of 3"]);
    run(url, &["pause", "mail", "1h", "--key", "acme"]).with(0);
    run(url, &["show", "mail", "acme"]).with(0).says(&["paused for"]);
    run(url, &["peek", "mail", "acme"]).with(4);
    run(url, &["peek", "mail", "carol"]).with(0);
    let limit = |key| store.find("mail").unwrap().peek(key, 1).unwrap().limit;
    run(url, &["override", "mail", "7/1h"]).with(0);
    run(url, &["override", "mail", "9/1h", "--key", "bob"]).with(0);
    assert_eq!((limit("acme"), limit("bob")), (7, 9));
    run(url, &["lift", "mail", "--key", "bob"]).with(0);
    run(url, &["lift", "mail"]).with(0);
    assert_eq!((limit("acme"), limit("bob")), (3, 3));
    run(url, &["pause", "mail", "1h"]).with(0);
    run(url, &["peek", "mail", "carol"]).with(4);
    run(url, &["show", "mail"]).with(0).says(&["paused for"]);
    run(url, &["clear", "mail", "--yes"]).with(0);
    run(url, &["peek", "mail", "acme"]).with(0);
    run(url, &["forget", "stripe", "--yes"]).with(0);
    run(url, &["show", "stripe"]).with(3).says(&["the limits of this store: mail, openai"]);
    run(url, &["verify"]).with(2).says(&["on a server", "doctor"]);
    let seen = run(url, &["doctor", "--json"]);
    let code = seen.code.unwrap();
    assert_eq!(seen.json(code)["is_fine"], json!(code == 0));
    assert!(code == 0 || code == 5);
    run(url, &["doctor"]).with(code).says(&["limits"]);
    let dir = common::Dir::new("servers");
    std::fs::write(dir.file("limits.toml"), "slack = \"1/1s\"").unwrap();
    run(url, &["load", dir.file("limits.toml").to_str().unwrap()]).with(0);
    assert!(Store::names(&store).unwrap().contains(&"slack".to_owned()));
}

#[test]
fn all_commands_work_on_redis() {
    let server = common::redis::RedisServer::start("cli-redis");
    all_commands_work(&server.new_database());
    use_is_shown_everywhere(&server.new_database());
}

#[test]
fn all_commands_work_on_postgres() {
    let server = common::postgres::PostgresServer::start("cli-postgres");
    all_commands_work(&server.new_database());
    use_is_shown_everywhere(&server.new_database());
}
