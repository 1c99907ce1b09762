//! Errors: messages, hints and exit codes.

mod common;

use common::{Dir, command, run, used};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

#[test]
fn invalid_arguments_are_refused() {
    let dir = Dir::new("arguments");
    let _store = used(&dir.url());
    let url = dir.url();
    let wrong: [(&[&str], i32, &[&str]); 20] = [
        (&[], 2, &["Usage", "status"]),
        (&["stauts"], 2, &["stauts", "status"]),
        (&["status", "--wrong"], 2, &["--wrong"]),
        (&["show"], 2, &["NAME"]),
        (&["peek", "mail", "--weight", "many"], 2, &["many", "--weight"]),
        (&["peek", "mail", "--weight", "0"], 2, &["--weight", "0"]),
        (&["peek", "mail", "--weight", "4"], 2, &["weight is 4", "at most 3"]),
        (&["peek", "mail", ""], 2, &["KEY"]),
        (&["clear", "mail", "--yes", "--key", ""], 2, &["--key"]),
        (&["override", "mail", "3/1x"], 2, &["policy is \"3/1x\"", "character 4"]),
        (&["override", "mail", "5 concurrent"], 2, &["mail", "rate", "concurrency"]),
        (&["pause", "mail", "soon"], 2, &["duration is", "soon"]),
        (&["pause", "mail", "367d"], 2, &["duration is 367d", "at most 366 days"]),
        (&["override", "mail", "3/400d"], 2, &["1 µs to 366 days, not 400d"]),
        (&["status", "sqlite:x"], 2, &["unexpected argument 'sqlite:x'", "--store sqlite:x"]),
        (&["sqlite:x", "status"], 2, &["unexpected argument 'sqlite:x'", "--store sqlite:x"]),
        (&["watch", "--interval", "1ms"], 2, &["interval is 1ms", "100ms"]),
        (&["completions", "csh"], 2, &["csh", "bash"]),
        (&["top"], 2, &["terminal", "status --json"]),
        (&["load", "."], 2, &["file is ."]),
    ];
    for (args, code, parts) in wrong {
        let ran = run(&url, args).with(code);
        ran.says(parts);
        assert_eq!(ran.out, "", "{args:?}");
        if !args.is_empty() {
            let (name, text) = run(&url, &[args, &["--json"]].concat()).json_error(code);
            assert!(!name.is_empty() && parts.iter().all(|part| text.contains(part)), "{args:?}: {name} {text}");
        }
    }
    let long = "k".repeat(1025);
    run(&url, &["peek", "mail", &long]).with(2).says(&["key", "1025"]);
    run(&url, &["override", "mail", "1/1s", "--key", &long]).with(2).says(&["key", "1025"]);
    let ran = command(&url, &["peek"]).arg(OsStr::from_bytes(b"\xff\xfe")).output().unwrap();
    assert_eq!(ran.status.code(), Some(2), "{ran:?}");
}

#[test]
fn undeclared_names_are_refused_with_a_suggestion() {
    let dir = Dir::new("unknown");
    let _store = used(&dir.url());
    let url = dir.url();
    run(&url, &["show", "opneai"]).with(3).says(&["no limit named \"opneai\"", "did you mean \"openai\"?"]);
    run(&url, &["peek", "zzz"]).with(3).says(&["the limits of this store: mail, openai, stripe"]);
    for args in [
        ["override", "maill", "1/1s"].as_slice(),
        &["lift", "maill"],
        &["pause", "maill", "1s"],
        &["clear", "maill", "--yes"],
        &["forget", "maill", "--yes"],
        &["watch", "maill"],
    ] {
        let (name, text) = run(&url, &[args, &["--json"]].concat()).json_error(3);
        assert!(name == "unknown_limit" && text.contains("did you mean \"mail\"?"), "{name} {text}");
    }
    let empty = Dir::new("none");
    drop(workglow_limit::Store::new(&empty.url()).map(|store| store.open()));
    run(&empty.url(), &["show", "mail"]).with(3).says(&["has no limits yet"]);
    run(&empty.url(), &["status"]).with(0).says(&["0 limits"]);
}

#[test]
fn missing_and_invalid_stores_are_refused() {
    run("", &["status"]).with(2).says(&["no store is named", "WORKGLOW_LIMIT_STORE"]);
    run("memory:", &["status"]).with(2).says(&["only to the process that created it", "sqlite:PATH"]);
    run("mysql://x", &["status"]).with(2).says(&["mysql", "sqlite:PATH"]);
    run("limits.db", &["status"]).with(2).says(&["there is no scheme", "a file is named sqlite:limits.db"]);
    run("sqlite:/nowhere/limits.db", &["status"]).with(1).says(&["/nowhere", "check the address"]);
    let dir = Dir::new("no-store");
    let url = dir.url();
    for args in [["status"].as_slice(), &["peek", "x"], &["verify"], &["watch"], &["forget", "x", "--yes"]] {
        run(&url, args).with(1).says(&["there is no store", "check the address"]);
        assert_eq!(run(&url, &[args, &["--json"]].concat()).json_error(1).0, "store_failure");
    }
    assert!(dir.names().is_empty(), "nothing was created");
    std::fs::create_dir(dir.file("limits.db")).unwrap();
    run(&url, &["status"]).with(1).says(&["directory"]);
    std::fs::remove_dir(dir.file("limits.db")).unwrap();
    std::fs::write(dir.file("limits.db"), "a shopping list").unwrap();
    run(&url, &["status"]).with(1).says(&["not a workglow-limit store", "nothing was changed"]);
    assert_eq!(run(&url, &["status", "--json"]).json_error(1).0, "not_a_store");
    assert_eq!(std::fs::read_to_string(dir.file("limits.db")).unwrap(), "a shopping list");
    run("redis+unix:///nowhere/s", &["status"]).with(1).says(&["check that the server runs"]);
    run("postgres:///x?host=/nowhere&user=me&password=hush", &["doctor"]).with(1).says(&["check that the server runs"]);
    let ran = run("postgres://me:hush@127.0.0.1:1/x", &["status", "--json"]).with(1);
    assert!(!ran.err.contains("hush"), "{ran:?}");
    let ran = run(&url, &["status", "postgres://me:hush@127.0.0.1:1/x"]).with(2);
    assert!(ran.err.contains("--store postgres://") && !ran.err.contains("hush"), "{ran:?}");
}

/// Runs the command as another user if the tests run as root, because root may access all files.
fn as_nobody(url: &str, args: &[&str]) -> common::Ran {
    let mut plain = command(url, args);
    // SAFETY: this call always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        use std::os::unix::process::CommandExt;
        plain.uid(65_534).gid(65_534);
    }
    let ran = plain.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    common::Ran { code: ran.status.code(), out: text(ran.stdout), err: text(ran.stderr) }
}

#[test]
fn stores_without_permission_are_refused() {
    let (dir, file) = (Dir::in_memory("others"), Dir::in_memory("others-file"));
    let _store = used(&dir.url());
    let mode = |file: &std::path::Path, mode| {
        std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&dir.0, 0o755);
    mode(&file.0, 0o755);
    // The owner lacks permission, or another user.
    mode(&dir.file("limits.db"), 0o400);
    as_nobody(&dir.url(), &["status"]).with(1).says(&["may not read and write", "limits.db", "mode 0400"]);
    mode(&dir.file("limits.db"), 0o600);
    mode(&dir.0, 0o555);
    let new = format!("sqlite:{}", dir.file("new.db").display());
    std::fs::write(file.0.join("limits.toml"), "mail = '3/1h'").unwrap();
    let ran = as_nobody(&new, &["load", "--create", file.0.join("limits.toml").to_str().unwrap()]).with(1);
    ran.says(&["may not create one in", "mode 0555", "check the address"]);
    as_nobody(&new, &["doctor"]).with(5).says(&["may not create one in"]);
    mode(&dir.0, 0o700);
    // SAFETY: this call always succeeds.
    if unsafe { libc::geteuid() } == 0 {
        as_nobody(&dir.url(), &["status"]).with(1).says(&["may not read the directory"]);
        as_nobody(&dir.url(), &["doctor"]).with(5).says(&["danger", "may not read the directory"]);
    }
}
