//! Every command on a sqlite: store, as text and as JSON.

mod common;

use common::{Dir, Ran, command, run, used, wait_until};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use workglow_limit::embed::{Joined, Line, Waiter};
use workglow_limit::{Charge, Store, StoreOptions};

fn names(limits: &Value) -> Vec<&str> {
    limits["limits"].as_array().unwrap().iter().map(|limit| limit["name"].as_str().unwrap()).collect()
}

fn limit<'v>(limits: &'v Value, name: &str) -> &'v Value {
    limits["limits"].as_array().unwrap().iter().find(|limit| limit["name"] == name).unwrap()
}

#[test]
fn status_shows_all_limits() {
    let dir = Dir::new("status");
    let store = used(&dir.url());
    store.override_limit("stripe", "10/1s burst 10", None).unwrap();
    let ran = run(&dir.url(), &["status"]).with(0);
    ran.says(&[
        "4 limits",
        "mail",
        "3/1h",
        "openai/concurrency",
        "5 concurrent",
        "10/1s burst 10 *",
        "override: an operator's policy",
    ]);
    assert!(!ran.out.contains('\x1b'), "no colours in a pipe: {ran:?}");
    let seen = run(&dir.url(), &["status", "--json"]).json(0);
    assert_eq!(names(&seen), ["mail", "openai/concurrency", "openai/rate", "stripe"]);
    assert_eq!(limit(&seen, "mail")["usage"][0], json!({ "limit": 3, "used": 3, "window": 3600.0 }));
    assert_eq!(limit(&seen, "mail")["stats"]["denied"], 1);
    assert_eq!(limit(&seen, "stripe")["override"], "10/1s burst 10");
    assert_eq!(limit(&seen, "stripe")["declared"], "20/1s burst 40");
    // The option takes precedence over the environment.
    let url = dir.url();
    let by_option = run("sqlite:/nowhere/limits.db", &["--store", &url, "status", "--json"]).json(0);
    assert_eq!(names(&by_option).len(), 4);
}

#[test]
fn keys_are_ids_unless_text_is_requested() {
    let dir = Dir::new("keys");
    let _store = used(&dir.url());
    for args in [["status"].as_slice(), &["status", "--json"], &["show", "mail"], &["show", "mail", "--json"]] {
        let hidden = run(&dir.url(), args).with(0);
        assert!(!hidden.out.contains("acme") && hidden.out.contains('#'), "{hidden:?}");
        let shown = run(&dir.url(), &[args, &["--show-keys"]].concat()).with(0);
        assert!(shown.out.contains("acme") || args == ["status"], "{shown:?}");
    }
}

#[test]
fn show_has_the_details_of_a_limit_a_composite_and_a_key() {
    let dir = Dir::new("show");
    let store = used(&dir.url());
    store.override_limit("mail", "9/1h", Some("bob")).unwrap();
    let ran = run(&dir.url(), &["show", "mail"]).with(0);
    ran.says(&["mail  (rate)", "3 of 3 in 1h (100 %)", "4 admitted, 1 denied", "OVERRIDE", "9/1h"]);
    let ran = run(&dir.url(), &["show", "openai"]).with(0);
    ran.says(&["openai/concurrency  (concurrency)", "openai/rate  (rate)"]);
    assert_eq!(names(&run(&dir.url(), &["show", "openai", "--json"]).json(0)), ["openai/concurrency", "openai/rate"]);
    assert_eq!(names(&run(&dir.url(), &["show", "openai/rate", "--json"]).json(0)), ["openai/rate"]);
    let ran = run(&dir.url(), &["show", "mail", "acme"]).with(0);
    ran.says(&["mail  (rate), key acme", "3 of 3 in 1h", "full: next start in", "3 admitted, 1 denied"]);
    let bob = run(&dir.url(), &["show", "mail", "bob", "--json"]).json(0);
    assert_eq!((&bob["key"], &bob["limits"][0]["policy"]), (&json!("bob"), &json!("9/1h")));
    assert_eq!(bob["limits"][0]["usage"][0], json!({ "limit": 9, "used": 1, "window": 3600.0 }));
    // An unused key with an override.
    store.override_limit("mail", "7/1h", Some("carol")).unwrap();
    let ran = run(&dir.url(), &["show", "mail", "carol"]).with(0);
    ran.says(&["override of this key; the limit has 3/1h", "0 of 7 in 1h"]);
    let unused = run(&dir.url(), &["show", "mail", "unused", "--json"]).json(0);
    assert_eq!(unused["limits"][0]["policy"], "3/1h");
    assert_eq!(unused["limits"][0]["usage"][0]["used"], 0);
}

#[test]
fn show_why_says_who_has_the_units_and_who_waits() {
    let dir = Dir::new("why");
    let store = used(&dir.url());
    let slots = store.limiter("slots", "slots: 1 concurrent + calls: 100/1m").unwrap();
    let held = slots.try_acquire("", 1).unwrap();
    let part = store.find("slots/slots").unwrap();
    let mut line = Line::new(part);
    assert!(matches!(line.join(Waiter::new("", 1)).unwrap(), Joined::Waiting(_)));
    let ran = run(&dir.url(), &["show", "slots", "--why"]).with(0);
    let pid = std::process::id();
    ran.says(&[
        "slots/slots",
        "in use",
        "1 unit: 1 start of",
        &format!("(pid {pid}, "),
        "next",
        "1 caller of",
        "one more   unknown; jobs have to end before",
        "slots/calls",
        "nobody",
        "one more   now",
    ]);
    let seen = run(&dir.url(), &["show", "slots/slots", "--why", "--json"]).json(0);
    let line_seen = &seen["lines"][0];
    assert_eq!(
        (&seen["name"], &line_seen["limit"], &line_seen["key"]),
        (&json!("slots/slots"), &json!("slots/slots"), &json!(""))
    );
    assert_eq!(
        (&line_seen["holders"][0]["units"], &line_seen["holders"][0]["process"]["pid"]),
        (&json!(1), &json!(pid))
    );
    assert_eq!((&line_seen["next"][0]["units"], &line_seen["next"][0]["passed"]), (&json!(1), &json!(false)));
    assert_eq!((&line_seen["waiting"][0]["callers"], line_seen["waiting"].as_array().unwrap().len()), (&json!(1), 1));
    assert_eq!(line_seen["after"], json!(null));
    drop((line, held));
    run(&dir.url(), &["show", "mail", "acme", "--why"]).with(0).says(&["mail, key acme", "nobody"]);
    run(&dir.url(), &["show", "nowhere", "--why"]).with(3).says(&["nowhere"]);
}

#[test]
fn forecast_says_when_more_starts_have_begun() {
    let dir = Dir::new("forecast");
    let store = used(&dir.url());
    store.limiter("slots", "2 concurrent").unwrap().open().unwrap();
    let forecast = |words: &[&str]| run(&dir.url(), &[["forecast"].as_slice(), words].concat());
    forecast(&["mail", "bob", "2"]).with(0).says(&["2 starts: now"]);
    forecast(&["mail", "bob", "3"]).with(0).says(&["3 starts: in "]);
    forecast(&["slots", "3"]).with(0).says(&["3 starts: unknown; jobs have to end before"]);
    let seen = forecast(&["mail", "unused", "10", "--json"]).json(0);
    assert_eq!(seen, json!({ "name": "mail", "key": "unused", "starts": 10, "after": 10_800.0 }));
    assert_eq!(forecast(&["slots", "3", "--json"]).json(0)["after"], json!(null));
    forecast(&["mail", "bob"]).with(2).says(&["STARTS is \"bob\"", "a number of starts"]);
    forecast(&["mail"]).with(2).says(&["STARTS"]);
    let counted = run(&dir.url(), &["status", "--json"]).json(0);
    assert_eq!(limit(&counted, "mail")["stats"]["denied"], 1);
}

#[test]
fn peek_sets_the_exit_code_and_counts_nothing() {
    let dir = Dir::new("peek");
    let _store = used(&dir.url());
    run(&dir.url(), &["peek", "mail", "acme"]).with(4).says(&["would be denied", "0 of 3 left"]);
    run(&dir.url(), &["peek", "mail", "bob"]).with(0).says(&["would be admitted", "2 of 3 left"]);
    run(&dir.url(), &["peek", "mail", "bob", "--weight", "3"]).with(4);
    let seen = run(&dir.url(), &["peek", "mail", "acme", "--json"]).json(4);
    assert_eq!((&seen["admitted"], &seen["denied_by"], &seen["remaining"]), (&json!(false), &json!("mail"), &json!(0)));
    assert!(seen["retry_after"].as_f64().unwrap() > 0.0);
    let counted = run(&dir.url(), &["status", "--json"]).json(0);
    assert_eq!(limit(&counted, "mail")["stats"]["denied"], 1);
}

#[test]
fn load_creates_a_store_only_with_create() {
    let dir = Dir::new("load");
    let file = dir.file("limits.toml");
    std::fs::write(&file, "mail = \"3/1h\"\n[stripe]\nallowed = 20\nperiod = \"1s\"\n").unwrap();
    let file = file.to_str().unwrap();
    run(&dir.url(), &["load", file]).with(1).says(&["there is no store", "load --create"]);
    assert_eq!(dir.names(), ["limits.toml"]);
    run(&dir.url(), &["load", "--create", file]).with(0).says(&["2 limits declared: mail, stripe"]);
    assert_eq!(
        run(&dir.url(), &["load", file, "--json"]).json(0),
        json!({ "done": "load", "names": ["mail", "stripe"] })
    );
    std::fs::write(file, "mail = \"3/1h\"\n[stripe]\nallowed = 20\n").unwrap();
    run(&dir.url(), &["load", file]).with(2).says(&["line 2", "period"]);
    run(&dir.url(), &["load", "/nowhere.toml"]).with(2).says(&["/nowhere.toml", "No such file"]);
}

#[test]
fn operators_change_limits() {
    let dir = Dir::new("change");
    let store = used(&dir.url());
    let mail = store.find("mail").unwrap();
    let limit = |key| mail.peek(key, 1).unwrap().limit;

    run(&dir.url(), &["override", "mail", "7/1h"]).with(0).says(&["mail: 7/1h applies until it is lifted"]);
    assert_eq!(limit("acme"), 7);
    let said = run(&dir.url(), &["override", "mail", "9 per hour", "--key", "bob", "--json"]).json(0);
    assert_eq!(said, json!({ "done": "override", "name": "mail", "key": "bob", "policy": "9/1h", "kept": [] }));
    assert_eq!((limit("bob"), limit("acme")), (9, 7));
    run(&dir.url(), &["lift", "mail"]).with(0).says(&["mail: the declared policy applies again"]);
    assert_eq!((limit("bob"), limit("acme")), (9, 3));
    run(&dir.url(), &["lift", "mail", "--key", "bob", "--json"]).json(0);
    assert_eq!(limit("bob"), 3);

    // The part of a composite to which no policy applies is named.
    run(&dir.url(), &["override", "openai", "5/1s"]).with(0).says(&["openai/concurrency: unchanged"]);
    let said = run(&dir.url(), &["override", "openai", "5/1s + 2 concurrent", "--json"]).json(0);
    assert_eq!(said["kept"], json!([]));
    let said = run(&dir.url(), &["override", "openai", "2 concurrent", "--key", "bob", "--json"]).json(0);
    assert_eq!(said["kept"], json!(["openai/rate"]));

    let is_open = |key| mail.peek(key, 1).unwrap().admitted;
    assert!(is_open("bob"));
    run(&dir.url(), &["pause", "mail", "2h", "--key", "bob"]).with(0).says(&["mail, key bob: paused for 2h"]);
    assert!(!is_open("bob") && is_open("carol"));
    let said = run(&dir.url(), &["pause", "mail", "2h", "--json"]).json(0);
    assert_eq!(said, json!({ "done": "pause", "name": "mail", "key": null, "duration": 7200.0, "shared": [] }));
    assert!(!is_open("carol"));
    run(&dir.url(), &["status"]).with(0).says(&["paused "]);
    run(&dir.url(), &["show", "mail"]).with(0).says(&["paused for"]);
    run(&dir.url(), &["clear", "mail", "--yes"]).with(0).says(&["mail: reset"]);
    assert!(is_open("bob") && is_open("carol") && is_open("acme"));

    run(&dir.url(), &["forget", "openai", "--yes", "--json"]).json(0);
    assert_eq!(store.names().unwrap(), ["mail", "stripe"]);
}

#[test]
fn tenants_have_shares() {
    let dir = Dir::new("shares");
    let store = used(&dir.url());
    run(&dir.url(), &["share", "mail", "bob", "3"]).with(2).says(&["mail", "shared"]);
    let shared = store.limiter("shared", "2 concurrent shared").unwrap();
    let held = shared.try_acquire("acme", 1).unwrap().unwrap();
    run(&dir.url(), &["share", "shared", "bob", "3"]).with(0).says(&["shared, key bob: share 3"]);
    let said = run(&dir.url(), &["share", "shared", "bob", "4", "--json"]).json(0);
    assert_eq!(said, json!({ "done": "share", "name": "shared", "key": "bob", "share": 4 }));
    run(&dir.url(), &["share", "shared", "bob", "1001"])
        .with(2)
        .says(&["share is 1001: expected a whole number from 1 to 1000"]);
    run(&dir.url(), &["share", "nothing", "bob", "3"]).with(3);
    run(&dir.url(), &["show", "shared", "--show-keys"]).with(0).says(&["shared concurrency", "TENANT", "bob", "4"]);
    run(&dir.url(), &["show", "shared", "bob"]).with(0).says(&["share      4", "1 of 2"]);
    let bob = run(&dir.url(), &["show", "shared", "bob", "--json"]).json(0);
    assert_eq!((&bob["limits"][0]["share"], &bob["limits"][0]["waits"]), (&json!(4), &Value::Null));
    held.complete().unwrap();

    // What is of all tenants says so.
    run(&dir.url(), &["lift", "shared", "--key", "bob"]).with(0).says(&["shared, key bob: keeps its share"]);
    run(&dir.url(), &["show", "shared", "bob"]).with(0).says(&["share      4"]);
    run(&dir.url(), &["pause", "shared", "2h", "--key", "bob"]).with(0).says(&["all tenants of shared: paused for 2h"]);
    assert!(!shared.peek("acme", 1).unwrap().admitted);
    let said = run(&dir.url(), &["clear", "shared", "--key", "bob", "--yes", "--json"]).json(0);
    assert_eq!(said, json!({ "done": "clear", "name": "shared", "key": "bob", "shared": ["shared"] }));
    assert!(shared.peek("acme", 1).unwrap().admitted);
    store.limiter("both", "all: 9/1h shared + own: 2/1h").unwrap().open().unwrap();
    let cleared = run(&dir.url(), &["clear", "both", "--key", "bob", "--yes"]).with(0);
    cleared.says(&["both, key bob, and all tenants of both/all: reset"]);
}

#[test]
fn clear_and_forget_need_confirmation() {
    let dir = Dir::new("ask");
    let store = used(&dir.url());
    for args in [["clear", "mail"], ["forget", "mail"]] {
        run(&dir.url(), &args).with(2).says(&["needs confirmation", "pass --yes"]);
    }
    assert!(!store.find("mail").unwrap().peek("acme", 1).unwrap().admitted);
}

#[test]
fn verify_finds_damage_and_repairs_it() {
    let dir = Dir::new("verify");
    drop(used(&dir.url()));
    run(&dir.url(), &["verify"]).with(0).says(&["in order"]);
    assert_eq!(run(&dir.url(), &["verify", "--json"]).json(0)["problems"], json!([]));
    let lane = dir.file("limits.db-lane");
    let mut bytes = std::fs::read(&lane).unwrap();
    bytes[4096..].fill(0xa5);
    std::fs::write(&lane, bytes).unwrap();
    run(&dir.url(), &["status"]).with(1).says(&["damaged", "verify"]);
    run(&dir.url(), &["verify"]).with(5).says(&["wrong", "the lane", "verify --repair"]);
    let repaired = run(&dir.url(), &["verify", "--repair", "--json"]).json(0);
    assert_eq!(repaired["problems"][0]["is_repaired"], true);
    run(&dir.url(), &["verify"]).with(0);
}

#[test]
fn doctor_checks_disk_and_files() {
    let dir = Dir::new("doctor");
    drop(used(&dir.url()));
    let seen = run(&dir.url(), &["doctor", "--json"]);
    assert!(matches!(seen.code, Some(0 | 5)), "{seen:?}");
    let code = seen.code.unwrap();
    let seen = seen.json(code);
    assert_eq!(seen["is_fine"], code == 0);
    for fact in ["database", "file", "lane", "file_system", "free_space", "limits", "memory", "largest"] {
        assert!(seen["facts"][fact].is_string(), "{fact}: {seen}");
    }
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.file("limits.db"), std::fs::Permissions::from_mode(0o666)).unwrap();
    run(&dir.url(), &["doctor"]).with(5).says(&["danger", "writable by all users", "chmod o-rwx"]);
    run("sqlite:/nowhere/limits.db", &["doctor"]).with(5).says(&["danger", "the directory /nowhere does not exist"]);
}

#[test]
fn completions_and_man_pages_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        run("", &["completions", shell]).with(0).says(&["override", "doctor"]);
    }
    assert!(run("", &["completions", "fish", "--json"]).json(0)["script"].as_str().unwrap().contains("override"));
    run("", &["man"]).with(0).says(&[".TH workglow", "Exit codes", "WORKGLOW_LIMIT_STORE"]);
    let dir = Dir::new("man");
    run("", &["man", "--out", dir.0.to_str().unwrap()]).with(0);
    let pages = dir.names();
    assert!(pages.contains(&"workglow-limit.1".to_owned()) && pages.contains(&"workglow-limit-peek.1".to_owned()));
    assert!(pages.contains(&"workglow-limit-man.1".to_owned()));
    run("", &["--help"]).with(0).says(&["Exit codes", "status", "peek", "  man  "]);
    run("", &["--version"]).with(0).says(&[env!("CARGO_PKG_VERSION")]);
}

/// A running `watch` and its lines.
struct Watch(Child, Receiver<String>);

impl Watch {
    fn start(url: &str, args: &[&str]) -> Watch {
        let args = [&["watch", "--interval", "100ms"], args].concat();
        let mut child = command(url, &args).stdout(Stdio::piped()).spawn().unwrap();
        let out = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        // It ends with the child, or when the receiver is dropped.
        std::thread::spawn(move || {
            BufReader::new(out).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut watch = Watch(child, lines);
        assert_eq!(watch.next()["event"], "watching");
        watch
    }

    fn next(&mut self) -> Value {
        let line = self.1.recv_timeout(Duration::from_secs(60));
        serde_json::from_str(&line.expect("there is an event")).unwrap()
    }

    /// The next event of this name, of this limit.
    fn until(&mut self, event: &str, limit: &str) -> Value {
        loop {
            let seen = self.next();
            if seen["event"] == event && seen["limit"] == limit {
                return seen;
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn watch_reports_each_event() {
    let dir = Dir::new("watch");
    let store = used(&dir.url());
    let mut watch = Watch::start(&dir.url(), &[]);
    let mail = store.find("mail").unwrap();
    assert!(!mail.decide("acme", 1).unwrap().admitted);
    store.flush().unwrap();
    assert_eq!(watch.until("denied", "mail")["count"], 1);
    store.override_limit("mail", "2/1h", None).unwrap();
    assert_eq!(watch.until("override_set", "mail")["policy"], "2/1h");
    store.lift("mail", None).unwrap();
    watch.until("override_lifted", "mail");
    // An operator may set what a program has learned.
    let hour = Duration::from_secs(3600);
    mail.learn(workglow_limit::embed::Quota { units: 2, window: hour, is_estimated: false }, "api.example.com");
    assert_eq!(watch.until("override_set", "mail")["by"], "headers of api.example.com");
    store.override_limit("mail", "2/1h", None).unwrap();
    let set = watch.until("override_set", "mail");
    assert_eq!((&set["policy"], &set["before"], &set["by"]), (&json!("2/1h"), &json!("2/1h"), &json!("operator")));
    store.lift("mail", None).unwrap();
    assert_eq!(watch.until("override_lifted", "mail")["before"], "2/1h");
    mail.pause(Duration::from_secs(3600), "").unwrap();
    assert!(watch.until("paused", "mail")["for"].as_f64().unwrap() > 3000.0);
    mail.clear("").unwrap();
    watch.until("opened", "mail");
    mail.decide("new", 3).unwrap();
    assert_eq!(watch.until("near", "mail")["used"], 3);
    store.limiter("slack", "1/1s").unwrap().open().unwrap();
    assert_eq!(watch.until("limit_declared", "slack")["policy"], "1/1s");
    store.forget("slack").unwrap();
    watch.until("limit_gone", "slack");

    let mut only = Watch::start(&dir.url(), &["openai"]);
    store.override_limit("mail", "2/1h", None).unwrap();
    watch.until("override_set", "mail");
    store.override_limit("openai", "2 concurrent", None).unwrap();
    let seen = only.next();
    assert_eq!((&seen["event"], &seen["limit"]), (&json!("override_set"), &json!("openai/concurrency")));
}

#[test]
fn a_closed_pipe_ends_commands_quietly() {
    let dir = Dir::new("pipe");
    let _store = used(&dir.url());
    // `watch` ends even without further events.
    let mut watch = command(&dir.url(), &["watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(watch.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("watching"));
    let mut code = None;
    wait_until("it ends", || {
        code = watch.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.unwrap().code(), Some(0));
    // A pipe that was closed before the first byte is no error.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ran = command(&dir.url(), &["status"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!((ran.status.code(), String::from_utf8(ran.stderr).unwrap()), (Some(0), String::new()));
    // A full disk is an error.
    if let Ok(full) = std::fs::File::options().write(true).open("/dev/full") {
        let ran = command(&dir.url(), &["status"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
        let ran = Ran { code: ran.status.code(), out: String::new(), err: String::from_utf8(ran.stderr).unwrap() };
        ran.with(1).says(&["writing the output"]);
    }
}

/// Names, keys and files come from others, so text, JSON and errors must not control the terminal.
#[test]
fn hostile_names_and_keys_are_escaped_everywhere() {
    let dir = Dir::new("hostile");
    let store = workglow_limit::Store::new(&dir.url()).unwrap();
    let (name, key) = ("ma\x1b[31mil\u{202e}", "\x1b[2Ja\nb\r\u{9b}31m");
    assert!(store.limiter(name, "3/1h").unwrap().decide(key, 1).unwrap().admitted);
    store.flush().unwrap();
    workglow_limit::Store::tell_counts();
    let file = dir.file("\x1b[31m.toml");
    std::fs::write(&file, "\"\\u001b[2J\" = \"x\"\n").unwrap();
    let file = file.to_str().unwrap();
    for args in [
        ["status", "--show-keys"].as_slice(),
        &["status", "--show-keys", "--json"],
        &["show", name, "--show-keys"],
        &["show", name, key],
        &["show", name, key, "--json"],
        &["peek", name, key, "--json"],
        &["override", name, "5/1h", "--key", key],
        &["pause", name, "1s", "--key", key, "--json"],
        &["lift", name, "--key", key],
        &["plot", name, "--ascii"],
        &["plot", name, "--json"],
        // Errors.
        &["show", "mail"],
        &["show", "mail", "--json"],
        &["show", "zzz"],
        &["load", file],
        &["load", "/nowhere\x1b[2J"],
        &["simulate", "1/1s", "--load", "\x1b[2J"],
        &["override", name, "5/1h\x1b[2J"],
    ] {
        let ran = run(&dir.url(), args);
        let is_unsafe = |c: char| c.is_control() && c != '\n' || matches!(c, '\u{202e}' | '\u{9b}');
        assert!(!ran.out.contains(is_unsafe) && !ran.err.contains(is_unsafe), "{args:?}: {ran:?}");
        assert!(!ran.out.is_empty() || !ran.err.is_empty(), "{args:?}");
    }
    let seen = run(&dir.url(), &["status", "--show-keys", "--json"]).json(0);
    assert_eq!((&seen["limits"][0]["name"], &seen["limits"][0]["hot_keys"][0]["key"]), (&json!(name), &json!(key)));
}

/// A limit with parts, of which a tenant has used some: `acme` two starts of 60 tokens.
fn with_parts(url: &str) -> Store {
    let store = Store::new(url).unwrap();
    let llm = store.limiter("openai", "requests: 9/1h + tokens: 200/1h + tenant: 2/1h").unwrap();
    let call = llm.joint("", &[Charge::of("tokens").weight(60), Charge::of("tenant").key("acme")]).unwrap();
    for _ in 0..2 {
        assert!(llm.decide(&call, 1).unwrap().admitted);
    }
    store.flush().unwrap();
    store
}

#[test]
fn peek_and_show_take_what_parts_are_charged() {
    let dir = Dir::new("parts");
    let _store = with_parts(&dir.url());
    let peek = |words: &[&str]| run(&dir.url(), &[["peek", "openai"].as_slice(), words].concat());
    peek(&["tokens=80", "tenant=other"]).with(0).says(&["would be admitted", "tokens", "80 of 200 left", "WEIGHT"]);
    peek(&["tokens=81", "tenant=other"]).with(4).says(&["would be denied by openai/tokens: retry in"]);
    peek(&["tenant=acme"]).with(4).says(&["would be denied by openai/tenant", "0 of 2 left"]);
    // A number is a weight. A key that is a number is marked.
    peek(&["key.tenant=3"]).with(0);
    let ran = peek(&["tenant=3"]).with(2);
    ran.says(&["openai/tenant", "can never be admitted"]);
    let seen = peek(&["a", "tokens=81", "tenant=acme", "--json"]).json(4);
    assert_eq!((&seen["key"], &seen["weight"]), (&json!("a"), &json!(1)));
    let parts = seen["parts"].as_array().unwrap();
    let short = |part: &Value| json!([part["part"], part["key"], part["weight"], part["admitted"], part["remaining"]]);
    let expected = [
        json!(["requests", "a", 1, true, 9]),
        json!(["tokens", "a", 81, true, 200]),
        json!(["tenant", "acme", 1, false, 0]),
    ];
    assert_eq!(parts.iter().map(short).collect::<Vec<_>>(), expected);
    // A word that says neither is refused.
    for (words, says) in [
        (["token=5"].as_slice(), "a part of limiter"),
        (&["tokens=1.5"], "expected a whole number from 1"),
        (&["a", "b"], "unexpected"),
    ] {
        let (_, error) = peek(&[words, &["--json"]].concat()).json_error(2);
        assert!(error.contains(says), "{words:?}: {error}");
    }
    let (_, error) = peek(&["YWNtZQ==", "--json"]).json_error(2);
    assert!(error.contains("key=YWNtZQ="), "{error}");
    peek(&["key=YWNtZQ=="]).with(0);
    // Each part with the key that it is charged.
    let show = run(&dir.url(), &["show", "openai", "b", "tenant=acme"]).with(0);
    show.says(&["openai/tenant  (rate), key acme", "2 of 2 in 1h", "openai/tokens  (rate), key b", "0 of 200 in 1h"]);
    let show = run(&dir.url(), &["show", "openai", "tenant=acme", "--json"]).json(0);
    let tenant = limit(&show, "openai/tenant");
    assert_eq!((&tenant["key"], &tenant["stats"]["admitted"], &show["key"]), (&json!("acme"), &json!(2), &Value::Null));
    assert_eq!(limit(&show, "openai/tokens")["usage"][0]["used"], 120);
    assert_eq!(limit(&show, "openai/tokens")["key"], Value::Null);
    run(&dir.url(), &["show", "openai", "weight.tenant=2"]).with(2).says(&["expected its key"]);
}

#[test]
fn an_override_names_parts() {
    let dir = Dir::new("override-parts");
    let _store = with_parts(&dir.url());
    let ran = run(&dir.url(), &["override", "openai", "tokens: 300/1h"]).with(0);
    ran.says(&["openai: tokens: 300/1h applies until it is lifted"]);
    let kept = |text: &str| run(&dir.url(), &["override", "openai", text, "--json"]).json(0)["kept"].clone();
    assert_eq!(kept("tokens: 400/1h"), json!(["openai/requests", "openai/tenant"]));
    // Without a name it is the first of the kind.
    assert_eq!(kept("7/1h"), json!(["openai/tenant", "openai/tokens"]));
    let seen = run(&dir.url(), &["status", "--json"]).json(0);
    assert_eq!(limit(&seen, "openai/requests")["override"], "7/1h");
    assert_eq!(limit(&seen, "openai/tokens")["override"], "400/1h");
}

#[test]
fn status_and_doctor_say_how_full_the_store_is() {
    let dir = Dir::new("full");
    let mut options = StoreOptions::default();
    options.max_size = Some(1 << 20);
    let store = Store::with_options(&dir.url(), options).unwrap();
    let login = store.limiter("login", "1000/1h").unwrap();
    store.limiter("api", "5/1s").unwrap().open().unwrap();
    let all = |more: &[&str]| run(&dir.url(), &[&["--max-size", "1MiB"], more].concat());
    let has_warning =
        |found: &Value| found.as_array().unwrap().iter().any(|one| one["setting"] == "the memory of \"login\"");
    // Strangers make keys, until one is refused.
    (0..).find(|i| login.decide(&format!("stranger-{i}"), 1).is_err()).unwrap();
    all(&["status"]).with(0).says(&[" used (", "MEMORY"]);
    let ran = all(&["doctor", "--json"]);
    let seen: Value = serde_json::from_str(&ran.out).unwrap();
    assert!(has_warning(&seen["findings"]) && ran.code == Some(5), "{ran:?}");
    assert!(seen["facts"]["largest"].as_str().unwrap().starts_with("login "), "{seen}");
    assert!(seen["facts"]["memory"].as_str().unwrap().ends_with("of 1.0 MiB used"), "{seen}");
    // A larger size has room.
    let seen: Value = serde_json::from_str(&run(&dir.url(), &["doctor", "--json", "--max-size=64MiB"]).out).unwrap();
    assert!(!has_warning(&seen["findings"]), "{seen}");
    run(&dir.url(), &["status", "--max-size", "much"]).with(2).says(&[
        "--max-size",
        "much",
        "expected a size such as 512MiB",
    ]);
    run(&dir.url(), &["status", "--max-size", "5"]).with(2).says(&["max_size is 5"]);
}
