//! The commands on servers.

mod common;

use common::{run, used};
use serde_json::json;
use workglow_limit::Store;

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
}

#[test]
fn all_commands_work_on_postgres() {
    let server = common::postgres::PostgresServer::start("cli-postgres");
    all_commands_work(&server.new_database());
}
