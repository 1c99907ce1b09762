//! `simulate` agrees with the limiters: with the test vectors, with a limit in real time, and with its waiters.

#[path = "../common/mod.rs"]
mod common;
mod vectors;
mod waiting;

use common::{Dir, Ran, command, run};
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::process::Stdio;
use workglow_limit::Store;

/// A line of a trace: time in microseconds, key, weight and duration of the job, and what parts are charged.
#[derive(Debug, Clone)]
struct Entry {
    at: u64,
    key: String,
    weight: u64,
    lasts: Option<u64>,
    charges: Vec<PartCharge>,
}

/// A part's name, and its own key and weight.
type PartCharge = (String, Option<String>, Option<u64>);

impl Entry {
    fn at(at: u64) -> Entry {
        Entry { at, key: String::new(), weight: 1, lasts: None, charges: Vec::new() }
    }
}

/// Microseconds as exact seconds.
fn seconds(us: u64) -> String {
    format!("{}.{:06}", us / 1_000_000, us % 1_000_000)
}

fn csv(lines: &[Entry]) -> String {
    let charges = || lines.iter().flat_map(|line| &line.charges);
    let parts: BTreeSet<&String> = charges().map(|(part, ..)| part).collect();
    let columns: String = parts.iter().map(|part| format!(",key.{part},weight.{part}")).collect();
    let mut text = format!("time,key,weight,duration{columns}\n");
    for Entry { at, key, weight, lasts, charges } in lines {
        write!(text, "{},{key},{weight},{}", seconds(*at), lasts.map_or(String::new(), seconds)).unwrap();
        for part in &parts {
            let charge = charges.iter().find(|(name, ..)| name == *part);
            let key = charge.and_then(|(_, key, _)| key.as_deref()).unwrap_or("");
            let weight = charge.and_then(|(.., weight)| *weight).map_or(String::new(), |weight| weight.to_string());
            write!(text, ",{key},{weight}").unwrap();
        }
        text.push('\n');
    }
    text
}

/// Runs `simulate` with this standard input.
fn simulate(input: &str, args: &[&str]) -> Ran {
    let all: Vec<&str> = ["simulate"].into_iter().chain(args.iter().copied()).collect();
    let mut child = command("", &all)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    // A command that fails early closes the pipe.
    let writer = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// The verdict of each line, with its time in microseconds.
fn verdicts(policy: &str, lines: &[Entry], more: &[&str]) -> Vec<(String, Option<u64>)> {
    let args: Vec<&str> = [policy, "--trace", "-", "--verdicts"].into_iter().chain(more.iter().copied()).collect();
    let ran = simulate(&csv(lines), &args).with(0);
    let rows: Vec<_> = ran.out.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>()).collect();
    assert_eq!(rows.len(), lines.len(), "{ran:?}");
    let us = |text: &str| text.parse::<f64>().ok().map(|seconds| (seconds * 1e6).round() as u64);
    // The header is line 1.
    let row = |(i, row): (usize, &Vec<&str>)| {
        assert_eq!(row[0], (i + 2).to_string());
        (row[1].to_owned(), us(row[2]))
    };
    rows.iter().enumerate().map(row).collect()
}

/// Random lines: bursts, pauses, weights and keys.
fn random(seed: u64, count: usize, most_weight: u64) -> Vec<Entry> {
    let mut state = seed;
    let mut next = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut at = 0;
    let mut line = || {
        at += match next(10) {
            0 => next(1_500_000),
            1..=4 => 0,
            _ => next(60_000),
        };
        let key = ["", "a", "b"][next(3) as usize].to_owned();
        Entry { at, key, weight: 1 + next(most_weight), lasts: Some(next(300_000)), charges: Vec::new() }
    };
    (0..count).map(|_| line()).collect()
}

/// The most units of a key in any window, counted independently.
fn most(lines: &[Entry], got: &[(String, Option<u64>)], window: u64, is_aligned: bool) -> u64 {
    let mut of_key: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
    for (line, (verdict, after)) in lines.iter().zip(got) {
        if verdict == "admitted" {
            of_key.entry(&line.key).or_default().push((line.at + after.unwrap(), line.weight));
        }
    }
    let from = |starts: &[(u64, u64)], from: u64| {
        let inside =
            |at: u64| if is_aligned { at / window == from / window } else { (from..from + window).contains(&at) };
        starts.iter().filter(|(at, _)| inside(*at)).map(|(_, weight)| weight).sum::<u64>()
    };
    let of_all = |starts: &Vec<(u64, u64)>| starts.iter().map(|(at, _)| from(starts, *at)).max().unwrap_or(0);
    of_key.values().map(of_all).max().unwrap_or(0)
}

#[test]
fn no_window_ever_holds_more_than_the_limit() {
    for seed in 1..=4 {
        for (policy, window, limit) in [
            ("7/1s", 1_000_000, 7),
            ("9/400ms", 400_000, 9),
            ("5/1s fixed", 1_000_000, 5),
            ("4/1s spaced", 1_000_000, 4),
        ] {
            let heaviest = if policy.contains("spaced") { 1 } else { 3 };
            let lines = random(seed, 300, heaviest);
            for callers in [&[][..], &["--wait=2s"]] {
                let got = verdicts(policy, &lines, callers);
                let found = most(&lines, &got, window, policy.ends_with("fixed"));
                assert!(found <= limit, "{policy}: {found}");
                // The report agrees.
                let args: Vec<&str> =
                    [policy, "--trace", "-", "--json"].into_iter().chain(callers.iter().copied()).collect();
                let report = simulate(&csv(&lines), &args).json(0);
                let report = &report["policies"][0];
                assert_eq!(report["most"][0]["most"], found, "{policy}");
                let admitted = got.iter().filter(|(verdict, _)| verdict == "admitted").count();
                assert_eq!(report["admitted"], admitted);
                let units: u64 =
                    report["series"]["admitted"].as_array().unwrap().iter().filter_map(Value::as_u64).sum();
                assert_eq!(report["units"], units);
            }
        }
    }
}

#[test]
fn a_load_always_has_the_same_results() {
    let lines = csv(&random(5, 2_000, 3));
    for policy in ["4 concurrent", "30/1s + 4 concurrent", "4 concurrent lease 200ms", "9/1s backoff 1s x2 max 1m full"]
    {
        let run = || simulate(&lines, &[policy, "--trace", "-", "--wait=3s", "--json"]).with(0).out;
        assert_eq!(run(), run(), "{policy}");
    }
}

#[test]
fn a_trace_may_have_a_million_lines() {
    let mut text = "time,key\n".to_owned();
    for i in 0..1_000_000u64 {
        writeln!(text, "{},tenant-{}", seconds(i * 1_000), i % 7).unwrap();
    }
    let report = simulate(&text, &["100/1m", "--compare", "10/1s burst 50", "--trace", "-", "--json"]).json(0);
    assert_eq!(report["requests"], 1_000_000);
    // 1000 s are 17 started minutes, for 7 keys.
    assert_eq!(report["policies"][0]["admitted"], 17 * 7 * 100);
    assert!(report["policies"][1]["series"]["admitted"].as_array().unwrap().len() <= 500);
}

#[test]
fn json_lines_and_all_forms_of_time_are_read() {
    let csv = "time,key\n2026-11-24T03:04:05Z,a\n2026-11-24T03:04:05.5Z,a\n2026-11-24T04:04:06+01:00,a\n";
    let json = "{\"at\": 1795489445, \"key\": \"a\"}\n\n{\"at\": \"2026-11-24T03:04:05.5Z\", \"key\": \"a\"}\n{\"at\": 1795489446.0, \"key\": \"a\", \"weight\": 1, \"duration\": null}\n";
    for input in [csv, json] {
        let ran = simulate(input, &["1/1s", "--trace", "-", "--verdicts"]).with(0);
        let got: Vec<&str> = ran.out.lines().skip(1).map(|line| line.split_once(',').unwrap().1).collect();
        assert_eq!(got, ["admitted,0", "denied,0.5", "admitted,0"], "{input}");
    }
    // Aligned windows follow the times of the trace.
    let ran = simulate("time\n59.9\n60\n60.1\n", &["1/1m fixed", "--trace", "-", "--verdicts", "--json"]).with(0);
    let got: Vec<Value> =
        ran.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["verdict"].clone()).collect();
    assert_eq!(got, ["admitted", "admitted", "denied"]);
}

#[test]
fn errors_name_the_line_and_the_field() {
    for (input, expected) in [
        ("tme\n1\n", "line 1: unknown column \"tme\""),
        ("key\na\n", "the column time is missing"),
        ("time,at\n1,1\n", "duplicate column"),
        ("time,weight\n1,0\n", "line 2: weight is \"0\": expected a whole number from 1"),
        ("time\n1764000000123\n", "line 2: time is 1764000000123: expected seconds, not milliseconds"),
        ("time\nyesterday\n", "line 2: time is \"yesterday\": expected seconds"),
        ("time,key\n1\n", "line 2: 1 fields: expected 2"),
        ("time\n1\n0.5\n", "line 3: the time 0.5 is before that of the previous line, 1"),
        ("time,duration\n1,long\n", "line 2: duration is \"long\""),
        ("time\n1\n1e9\n", "more than ten years"),
        ("{\"at\": 1, \"wieght\": 2}\n", "line 1: unknown field \"wieght\""),
        ("{\"at\": 1}\n[]\n", "line 2: expected an object"),
        ("{\"key\": \"a\"}\n", "line 1: the time is missing"),
        ("{\"at\": 1\n", "line 1: invalid JSON"),
        ("", "is empty"),
        ("time\n", "no requests"),
    ] {
        let ran = simulate(input, &["5/1s", "--trace", "-"]).with(2);
        ran.says(&[expected]);
        assert_eq!(ran.out, "", "{ran:?}");
    }
    for (args, expected) in [
        (&["5/1x", "--load", "5/1s"][..], "policy is \"5/1x\""),
        (&["5/1s", "--load", "5"], "load is \"5\""),
        (&["5/1s", "--load", "1000000000/1s"], "at most 100000000 requests"),
        (&["5/1s"], "required"),
        (&["5/1s", "--load", "5/1s", "--trace", "-"], "cannot be used with"),
        (&["5/1s", "--load", "5/1s", "--wait=soon"], "wait is \"soon\""),
        (&["5/1s", "--load", "5/1s", "--weight", "0"], "weight is \"0\""),
        (&["5/1s", "--load", "5/1s", "--keys", "3", "--skew=-1"], "skew is -1"),
        (&["5/1s", "--load", "5/1s", "--duration", "2s..1s"], "duration is \"2s..1s\""),
        (&["5 concurrent", "--load", "5/1s"], "has no duration"),
        (&["5/1s", "--trace", "/no/such/file"], "trace /no/such/file"),
        (&["5/1s", "--history", "api"], "no store is named"),
    ] {
        simulate("", args).with(2).says(&[expected]);
    }
    simulate("", &["5/1s", "--load", "5/1s", "--svg", "/no/such/directory/a.svg"]).with(1).says(&["svg /no/such"]);
}

/// Checks that the picture is XML with balanced tags.
fn check_xml(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    for part in text.split('<').skip(1) {
        let (tag, rest) = part.split_once('>').unwrap();
        assert!(!rest.contains('>'), "{part}");
        for entity in part.split('&').skip(1) {
            assert!(["amp;", "lt;", "gt;", "quot;", "#39;"].iter().any(|known| entity.starts_with(known)), "{part}");
        }
        match tag.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name)),
            None if tag.ends_with('/') => {}
            None => open.push(tag.split(' ').next().unwrap()),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn the_report_has_a_table_and_pictures() {
    let dir = Dir::new("simulate-drawn");
    let svg = dir.file("a.svg");
    let load = "20/1s for 5s, 40 at once, nothing for 5s";
    let args = ["10/1s", "--compare", "20/1s burst 20", "--load", load, "--wait=1s", "--svg", svg.to_str().unwrap()];
    let ran = simulate("", &args).with(0);
    ran.says(&["140 requests", "10/1s", "20/1s burst 20", "utilisation", "█", "┄"]);
    let plain = simulate("", &[&args[..], &["--ascii"]].concat()).with(0);
    assert!(plain.out.is_ascii(), "{}", plain.out);
    assert!(plain.out.lines().all(|line| line.len() <= 100), "{}", plain.out);
    let svg = std::fs::read_to_string(svg).unwrap();
    check_xml(&svg);
    assert!(svg.contains("prefers-color-scheme") && svg.contains("<title") && svg.contains("<desc"));
}

#[test]
fn keys_of_a_trace_are_shown_only_with_show_keys() {
    let input = "time,key\n1,secret-a\n1,secret-a\n1,secret-b\n";
    let hidden = simulate(input, &["1/1s", "--trace", "-"]).with(0);
    assert!(!hidden.out.contains("secret"), "{}", hidden.out);
    hidden.says(&["of line 2", "of line 4"]);
    simulate(input, &["1/1s", "--trace", "-", "--show-keys"]).with(0).says(&["secret-a"]);
}

#[test]
fn a_history_can_be_simulated_and_plotted() {
    let dir = Dir::new("simulate-history");
    let url = dir.url();
    let store = Store::new(&url).unwrap();
    let name = "a<b>&\"c\"";
    let limiter = store.limiter(name, "30/1h").unwrap();
    for i in 0..40 {
        assert_eq!(limiter.decide("", 1).unwrap().admitted, i < 30);
    }
    store.flush().unwrap();
    Store::tell_counts();
    let args = ["simulate", "10/1s burst 5", "--compare", "10/1d", "--history", name, "--json"];
    let report = run(&url, &args).json(0);
    assert_eq!(report["requests"], 30);
    assert_eq!(report["policies"][1]["admitted"], 10);
    let report = run(&url, &[&args[..], &["--with-denied", "--since", "1h"]].concat()).json(0);
    assert_eq!(report["requests"], 40);

    let svg = dir.file("a.svg");
    let report = run(&url, &["plot", name, "--json", "--svg", svg.to_str().unwrap()]).json(0);
    let sum = |field: &str| -> u64 {
        report["limits"][0]["bins"].as_array().unwrap().iter().filter_map(|bin| bin[field].as_u64()).sum()
    };
    assert_eq!((sum("units"), sum("denied")), (30, 10));
    assert_eq!(report["limits"][0]["limit"], 30);
    check_xml(&std::fs::read_to_string(svg).unwrap());
    let report = run(&url, &["plot", name, "--json", "--since", "2h"]).json(0);
    assert!((120..=122).contains(&report["limits"][0]["bins"].as_array().unwrap().len()));
    run(&url, &["plot", name, "--for", "1s"]).with(0).says(&["units per second"]);

    run(&url, &["plot", "other"]).with(3);
    run(&url, &["simulate", "1/1s", "--history", "other"]).with(3);
    run(&url, &["plot", name, "--since", "32d"]).with(2).says(&["since is 32d: expected 1m to 31d"]);
    run(&url, &["plot", name, "--for", "0s"]).with(2).says(&["for is 0s"]);
    store.limiter("idle", "1/1s").unwrap().open().unwrap();
    run(&url, &["plot", "idle"]).with(2).says(&["no history", "--for"]);
    run(&url, &["simulate", "1/1s", "--history", "idle"]).with(2).says(&["no history"]);
}

/// Random charges of two parts, next to the line's own key and weight.
fn charged(seed: u64, count: usize) -> Vec<Entry> {
    let mut lines = random(seed, count, 60);
    for (i, line) in lines.iter_mut().enumerate() {
        let tokens = std::mem::replace(&mut line.weight, 1);
        line.charges.push(("tokens".to_owned(), Some(String::new()).filter(|_| i % 7 == 0), Some(tokens)));
        line.charges.push(("tenant".to_owned(), Some(format!("t{}", i % 3)), None));
        line.key.clear();
        line.at *= 3;
    }
    lines
}

/// The most units of a part's key in any window of a second, counted independently.
fn most_of_part(lines: &[Entry], got: &[(String, Option<u64>)], part: &str) -> u64 {
    let charge = |line: &Entry| {
        let charge = line.charges.iter().find(|(name, ..)| name == part).cloned();
        let (_, key, weight) = charge.unwrap_or((String::new(), None, None));
        Entry { key: key.unwrap_or(line.key.clone()), weight: weight.unwrap_or(line.weight), ..line.clone() }
    };
    most(&lines.iter().map(charge).collect::<Vec<_>>(), got, 1_000_000, false)
}

#[test]
fn each_part_is_charged_for_itself() {
    let policy = "requests: 9/1s + tokens: 200/1s + tenant: 2/1s + 3 concurrent";
    for callers in [&[][..], &["--wait=2s"], &["--wait"]] {
        let lines = charged(3, 150);
        // A waiter with units at all parts but no slot once looked ahead again and again at one moment, and this never ended.
        let got = verdicts(policy, &lines, callers);
        let args: Vec<&str> = [policy, "--trace", "-", "--json"].into_iter().chain(callers.iter().copied()).collect();
        let report = simulate(&csv(&lines), &args).json(0);
        let report = &report["policies"][0];
        let limits = [("requests", 9), ("tokens", 200), ("tenant", 2)];
        for (i, (part, limit)) in limits.into_iter().enumerate() {
            let found = most_of_part(&lines, &got, part);
            assert!(found <= limit, "{part}: {found}");
            assert_eq!((&report["most"][i]["part"], &report["most"][i]["most"]), (&part.into(), &found.into()));
        }
        assert_eq!(report["most"][3]["most"], 3, "{report}");
        let admitted = got.iter().filter(|(verdict, _)| verdict == "admitted").count();
        assert_eq!(report["admitted"], admitted, "{callers:?}");
        let tenants = &report["keys_of_parts"][0];
        assert_eq!((&tenants["part"], &tenants["keys"]), (&"tenant".into(), &3.into()));
        let of_tenants = tenants["top_keys"].as_array().unwrap().iter().map(|key| key["admitted"].as_u64().unwrap());
        assert_eq!(of_tenants.sum::<u64>(), admitted as u64);
        match callers {
            [] => {
                let by = report["denied_by"].as_object().unwrap();
                assert_eq!(by.values().map(|count| count.as_u64().unwrap()).sum::<u64>(), report["denied"]);
                assert!(by.contains_key("tokens") && by.contains_key("tenant"), "{by:?}");
            }
            _ => {
                let count = |name: &str| report[name].as_u64().unwrap();
                assert_eq!(count("admitted") + count("denied"), lines.len() as u64);
                assert_eq!(count("never_started"), 0);
                // Waiters with different charges once blocked each other: 24 of them started.
                assert!(callers == ["--wait=2s"] || count("denied") == 0, "{report}");
            }
        }
    }
}

#[test]
fn the_report_names_the_parts() {
    let policy = "requests: 9/1s + tokens: 100/1s + tenant: 2/1s";
    let input = "time,weight.tokens,key.tenant\n1,60,secret\n1,41,b\n1.1,1,secret\n1.2,1,secret\n";
    let ran = simulate(input, &[policy, "--trace", "-", "--verdicts"]).with(0);
    let lines: Vec<&str> = ran.out.lines().collect();
    let wanted =
        ["line,verdict,seconds,part", "2,admitted,0,", "3,denied,1,tokens", "4,admitted,0,", "5,denied,0.8,tenant"];
    assert_eq!(lines, wanted);
    let ran = simulate(input, &[policy, "--trace", "-"]).with(0);
    ran.says(&[
        "by tokens",
        "by tenant",
        "requests: 2 in any 1s (of 9)",
        "tokens: 61 in any 1s (of 100)",
        "keys of tenant with the most requests",
        "of line 2",
    ]);
    assert!(!ran.out.contains("secret"), "{}", ran.out);
    // JSON lines have the same members.
    let input = "{\"at\": 1, \"weight.tokens\": 60}\n{\"at\": 1, \"weight.tokens\": 41, \"key.tenant\": \"42\"}\n";
    let ran = simulate(input, &[policy, "--trace", "-", "--verdicts", "--json"]).with(0);
    let second: Value = serde_json::from_str(ran.out.lines().nth(1).unwrap()).unwrap();
    assert_eq!((&second["verdict"], &second["part"]), (&"denied".into(), &"tokens".into()));
    for (input, expected) in [
        ("time,weight.token\n1,5\n", "part is \"token\": expected a part of limiter"),
        ("time,weight.tokens\n1,0\n", "line 2: weight.tokens is \"0\": expected a whole number from 1"),
        ("time,weight.tokens\n1,acme\n", "line 2: weight.tokens is \"acme\""),
        ("time,tokens\n1,5\n", "unknown column \"tokens\": expected a header with time"),
        ("time,weight.tokens,weight.tokens\n1,5,5\n", "duplicate column"),
        ("{\"at\": 1, \"key.tenant\": 42}\n", "key.tenant is 42: expected a string"),
    ] {
        simulate(input, &[policy, "--trace", "-"]).with(2).says(&[expected]);
    }
    let ran = simulate("time,weight.tokens\n1,5\n", &["100/1s", "--trace", "-"]).with(2);
    ran.says(&["has no parts", "name the parts of the policy"]);
}
