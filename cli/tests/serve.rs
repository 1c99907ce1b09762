//! `serve`: access control, responses and changes. The server is a separate process.

mod common;
#[path = "common/server.rs"]
mod server;

use common::{Dir, command, run, used, wait_until};
use serde_json::{Value, json};
use server::{Answer, Events, READ_TOKEN, Server, TOKEN, request};
use std::io::{BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use workglow_limit::{Charge, Store};

const JSON: &str = "Content-Type: application/json";

/// The state that a request could change.
fn state(store: &Store) -> Vec<(String, u64, Duration)> {
    let of = |name: String| {
        let seen = store.find(&name).unwrap().peek("another", 1).unwrap();
        (name, seen.limit, seen.retry_after)
    };
    store.names().unwrap().into_iter().map(of).collect()
}

#[test]
fn forbidden_requests_change_nothing() {
    let dir = Dir::new("serve-guard");
    let store = used(&dir.url());
    let before = state(&store);
    let server = Server::start(&dir.url(), &["--allow-host", "limits.example.com"]);
    let host = server.host();
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let body = json!({ "limit": "mail", "policy": "1/1h" }).to_string();
    let post = |host: &str, headers: &[&str]| server.send(request("POST", "/api/override", host, headers, &body));
    // No token, wrong tokens, and a token in the wrong form.
    let wrong = format!("Authorization: Bearer {}", TOKEN.replace('9', "8"));
    let short = format!("Authorization: Bearer {}", &TOKEN[..TOKEN.len() - 1]);
    let long = format!("Authorization: Bearer {TOKEN}9");
    let basic = format!("Authorization: Basic {TOKEN}");
    for headers in
        [&[JSON][..], &[JSON, &wrong], &[JSON, &short], &[JSON, &long], &[JSON, &basic], &[JSON, &bearer, &bearer]]
    {
        let answer = post(&host, headers).with(401);
        assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        assert_eq!(answer.refusal(401).0, "unauthorized");
    }
    for (path, more) in [("/api/lift", ""), ("/api/pause", r#","duration":"1h""#)] {
        let body = format!(r#"{{"limit":"mail"{more}}}"#);
        server.send(request("POST", path, &host, &[JSON], &body)).refusal(401);
    }
    // A token in the URL, which would be logged, is not accepted.
    server.send(request("POST", &format!("/api/override?token={TOKEN}"), &host, &[JSON], &body)).refusal(401);
    // Foreign names that resolve to this server.
    for host in [
        "evil.example",
        "evil.example:9464",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.1.2.3",
        "[::2]",
        "limits.example.com.evil",
    ] {
        assert_eq!(post(host, &[JSON, &bearer]).refusal(421).0, "unknown_host", "{host}");
        for path in ["/", "/metrics", "/api/snapshot", "/api/events", "/nothing"] {
            server.send(request("GET", path, host, &[], "")).refusal(421);
        }
    }
    for host in ["", "user@127.0.0.1", "127.0.0.1 x", "http://127.0.0.1"] {
        server.send(request("GET", "/", host, &[], "")).refusal(400);
    }
    server.send("GET / HTTP/1.1\r\nConnection: close\r\n\r\n").refusal(400);
    server.get("/", &[&format!("Host: {host}")]).refusal(400);
    let absolute = format!("GET http://evil.example/ HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    server.send(absolute).refusal(421);
    // Other pages in the browser of a user who has the token.
    for origin in [
        "http://evil.example",
        "null",
        "http://127.0.0.1:1",
        "http://127.0.0.1",
        "ftp://x",
        "chrome-extension://abc",
        "x",
        "",
    ] {
        assert_eq!(post(&host, &[JSON, &bearer, &format!("Origin: {origin}")]).refusal(403).0, "forbidden", "{origin}");
        server.get("/api/snapshot", &[&format!("Origin: {origin}")]).refusal(403);
    }
    let own = format!("Origin: http://{host}");
    post(&host, &[JSON, &bearer, &own, "Origin: http://evil.example"]).refusal(403);
    for site in ["cross-site", "same-site", "x"] {
        let site = format!("Sec-Fetch-Site: {site}");
        post(&host, &[JSON, &bearer, &own, &site]).refusal(403);
        server.get("/api/snapshot", &[&site]).refusal(403);
        server.get("/page.js", &[&site]).refusal(403);
        // A link may lead here.
        server.get("/", &[&site]).with(200);
    }
    // Forms need no preflight request.
    for kind in [
        "Content-Type: text/plain",
        "Content-Type: application/x-www-form-urlencoded",
        "Content-Type: application/jsonp",
        "X: y",
    ] {
        assert_eq!(post(&host, &[&bearer, kind]).refusal(415).0, "unsupported_media_type", "{kind}");
    }
    assert_eq!(state(&store), before);
    // Allowed requests: under each name of the server, from its own page.
    for host in [
        host.as_str(),
        "localhost",
        "LOCALHOST.:1",
        "127.8.9.1:80",
        "[::1]:9464",
        "limits.example.com",
        "Limits.Example.com:443",
    ] {
        let origins = [format!("Origin: http://{host}"), format!("Origin: https://{host}")];
        for origin in origins {
            post(
                host,
                &["content-type: Application/JSON; charset=utf-8", &bearer, &origin, "Sec-Fetch-Site: same-origin"],
            )
            .json(200);
        }
    }
    post(&host, &[JSON, &format!("authorization: bearer {TOKEN}"), "Sec-Fetch-Site: none"]).json(200);
    assert_ne!(state(&store), before);
}

#[test]
fn routes_have_one_method_and_security_headers() {
    let dir = Dir::new("serve-routes");
    let _store = used(&dir.url());
    let server = Server::start(&dir.url(), &[]);
    let looks = [
        "/",
        "/page.css",
        "/page.js",
        "/panel.js",
        "/draw.js",
        "/stream.js",
        "/metrics",
        "/api/snapshot",
        "/api/series?limit=mail",
        "/api/history?limit=mail",
    ];
    for path in looks {
        let answer = server.get(path, &[]).with(200);
        let is = |name: &str| answer.header(name).unwrap_or_default();
        assert_eq!(
            is("content-security-policy"),
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'"
        );
        assert_eq!(
            (is("x-content-type-options"), is("referrer-policy"), is("cache-control")),
            ("nosniff", "no-referrer", "no-store")
        );
        assert_eq!(is("cross-origin-resource-policy"), "same-origin");
        assert!(answer.headers.iter().all(|(name, _)| !name.starts_with("access-control")), "{answer:?}");
        let head = server.send(request("HEAD", path, &server.host(), &[], "")).with(200);
        assert_eq!((head.header("content-type"), head.body.as_str()), (answer.header("content-type"), ""), "{path}");
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] {
            let refused = server.send(request(method, path, &server.host(), &[], "")).with(405);
            assert_eq!(refused.header("allow"), Some("GET, HEAD"), "{method} {path}");
        }
    }
    for path in ["/api/override", "/api/lift", "/api/pause"] {
        for method in ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"] {
            let refused = server.send(request(method, path, &server.host(), &[], "")).with(405);
            assert_eq!(refused.header("allow"), Some("POST"), "{method} {path}");
            assert!(refused.headers.iter().all(|(name, _)| !name.starts_with("access-control")), "{refused:?}");
        }
    }
    for path in [
        "/index.html",
        "/api",
        "/api/",
        "/api/clear",
        "/api/forget",
        "/favicon.ico",
        "/../etc/passwd",
        "//",
        "/page.js/",
        "/%2e%2e/x",
        "/metrics/",
    ] {
        assert_eq!(server.get(path, &[]).refusal(404).0, "not_found", "{path}");
    }
    // The page has nothing that its own policy forbids, and no external assets.
    let page = server.get("/", &[]).body;
    assert!(
        !page.contains("<script>")
            && !page.contains("style=")
            && !page.contains("<style")
            && !page.contains(" onclick"),
        "{page}"
    );
    for path in ["/", "/page.css", "/page.js", "/panel.js", "/draw.js", "/stream.js"] {
        let text = server.get(path, &[]).body.replace("http://www.w3.org/2000/svg", "").replace("http://", "//");
        assert!(!text.contains("https:") && !text.contains("innerHTML") && !text.contains("url(//"), "{path}");
    }
}

#[test]
fn invalid_parameters_and_bodies_are_refused() {
    let dir = Dir::new("serve-questions");
    let store = used(&dir.url());
    let before = state(&store);
    let server = Server::start(&dir.url(), &[]);
    for (path, part) in [
        ("/api/snapshot?sort=size", "sort is \"size\": expected fullest, denied, waiting, name"),
        ("/api/snapshot?limit=1001", "limit is \"1001\": expected 0 to 1000"),
        ("/api/snapshot?limit=-1", "limit is \"-1\""),
        ("/api/snapshot?offset=x", "offset is \"x\""),
        ("/api/snapshot?offset=0&offset=1", "offset: expected once"),
        ("/api/snapshot?x=1", "\"x\": expected search, sort, offset, limit"),
        ("/api/series", "limit: missing"),
        ("/api/history?limit=mail&step=90", "step is 90: expected whole minutes"),
        ("/api/history?limit=mail&step=59", "step is \"59\""),
        ("/api/history?limit=mail&since=then", "since is \"then\""),
        ("/api/events?limit=201", "limit is \"201\": expected 0 to 200"),
    ] {
        let (code, text) = server.get(path, &[]).refusal(400);
        assert!(code == "bad_request" && text.contains(part), "{path}: {text}");
    }
    for path in ["/api/series?limit=maill", "/api/history?limit=maill", "/api/series?limit="] {
        let (code, text) = server.get(path, &[]).refusal(404);
        assert!(code == "unknown_limit" && (text.contains("mail")), "{path}: {text}");
    }
    for (path, body, status, part) in [
        ("/api/override", json!({}), 400, "limit: missing"),
        ("/api/override", json!({ "limit": "mail" }), 400, "policy: missing"),
        ("/api/override", json!({ "limit": "mail", "policy": 5 }), 400, "policy is 5: expected a string"),
        ("/api/override", json!({ "limit": "mail", "policy": "3/1x" }), 400, "policy is \"3/1x\""),
        ("/api/override", json!({ "limit": "mail", "policy": "5 concurrent" }), 400, "concurrency"),
        (
            "/api/override",
            json!({ "limit": "mail", "policy": "1/1h", "kee": "x" }),
            400,
            "\"kee\": expected limit, key, policy",
        ),
        ("/api/override", json!({ "limit": "mail", "policy": "1/1h", "key": "" }), 400, "key is \"\""),
        ("/api/override", json!({ "limit": "maill", "policy": "1/1h" }), 404, "did you mean \"mail\"?"),
        ("/api/override", json!({ "limit": "<b>", "policy": "1/1h" }), 404, "no limit named \"<b>\""),
        ("/api/override", json!({ "limit": "", "policy": "1/1h" }), 400, "name"),
        ("/api/lift", json!({ "limit": "maill" }), 404, "maill"),
        ("/api/lift", json!({ "limit": "mail", "policy": "1/1h" }), 400, "\"policy\""),
        ("/api/pause", json!({ "limit": "maill", "duration": "1m" }), 404, "maill"),
        ("/api/pause", json!({ "limit": "mail", "duration": "soon" }), 400, "duration is \"soon\""),
        ("/api/pause", json!({ "limit": "mail", "duration": "367d" }), 400, "366"),
        ("/api/pause", json!([]), 400, "expected a JSON object"),
    ] {
        let (_, text) = server.post(path, &body).refusal(status);
        assert!(text.contains(part), "{path} {body}: {text}");
    }
    let bearer = format!("Authorization: Bearer {TOKEN}");
    let send = |body: &str| server.send(request("POST", "/api/lift", &server.host(), &[&bearer, JSON], body));
    assert!(send("{").refusal(400).1.contains("not JSON"));
    assert!(send(&"[".repeat(10_000)).refusal(400).1.contains("not JSON"));
    assert_eq!(send(&format!("{{\"limit\":\"{}\"}}", "x".repeat(17_000))).refusal(413).0, "too_large");
    // A chunked body without a declared length.
    let chunks = format!("4000\r\n{}\r\n", " ".repeat(0x4000)).repeat(3) + "0\r\n\r\n";
    let head = format!(
        "POST /api/lift HTTP/1.1\r\nHost: {}\r\n{bearer}\r\n{JSON}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n",
        server.host()
    );
    assert_eq!(server.send(head + &chunks).refusal(413).0, "too_large");
    // A head that is too large, or has too many headers.
    assert_eq!(server.get("/", &[&format!("X: {}", "x".repeat(40_000))]).status, 431);
    let many: Vec<String> = (0..100).map(|i| format!("X-{i}: y")).collect();
    assert_eq!(server.get("/", &many.iter().map(String::as_str).collect::<Vec<_>>()).status, 431);
    assert_eq!(server.send("nonsense\r\n\r\n").status, 400);
    assert_eq!(state(&store), before);
    // The server still responds.
    server.get("/api/snapshot", &[]).json(200);
}

#[test]
fn a_token_for_reading_protects_all_data() {
    let dir = Dir::new("serve-read-token");
    let store = used(&dir.url());
    let before = state(&store);
    let file = dir.file("read-token");
    std::fs::write(&file, format!("{READ_TOKEN}\n")).unwrap();
    let server = Server::start(&dir.url(), &["--read-token-file", file.to_str().unwrap()]);
    let (look, change) = (format!("Authorization: Bearer {READ_TOKEN}"), format!("Authorization: Bearer {TOKEN}"));
    for path in ["/metrics", "/api/snapshot", "/api/series?limit=mail", "/api/history?limit=mail", "/api/events"] {
        server.get(path, &[]).refusal(401);
        server.get(path, &["Authorization: Bearer another-token-0123456789"]).refusal(401);
        server
            .get(&format!("{path}{}token={READ_TOKEN}", if path.contains('?') { '&' } else { '?' }), &[])
            .refusal(401);
    }
    for token in [&look, &change] {
        server.get("/api/snapshot", &[token]).json(200);
        Events::open(&server, "", &[token]).until("look", |_| true);
    }
    // The page itself has no data, and asks for the token.
    server.get("/", &[]).with(200);
    // The token for reading does not allow changes.
    let body = json!({ "limit": "mail", "policy": "1/1h" }).to_string();
    server.send(request("POST", "/api/override", &server.host(), &[&look, JSON], &body)).refusal(401);
    assert_eq!(state(&store), before);
}

#[test]
fn a_read_only_server_refuses_changes() {
    let dir = Dir::new("serve-read-only");
    let store = used(&dir.url());
    let before = state(&store);
    let server = Server::start(&dir.url(), &["--read-only"]);
    assert_eq!((&server.said["read_only"], &server.said["token"]), (&json!(true), &Value::Null));
    for (path, body) in [
        ("/api/override", json!({ "limit": "mail", "policy": "1/1h" })),
        ("/api/lift", json!({ "limit": "mail" })),
        ("/api/pause", json!({ "limit": "mail", "duration": "1m" })),
    ] {
        assert!(server.post(path, &body).refusal(403).1.contains("read-only"));
    }
    let hello = Events::open(&server, "", &[]).until("hello", |_| true);
    assert_eq!(hello["takes_changes"], json!(false));
    assert_eq!(state(&store), before);
}

#[test]
fn changes_apply_to_the_next_decision_of_other_processes() {
    let dir = Dir::new("serve-changes");
    let store = used(&dir.url());
    let server = Server::start_with(&dir.url(), &[], &[]);
    // The server created a token.
    let token = server.said["token"].as_str().unwrap().to_owned();
    assert!(token.len() == 64 && server.said["read_only"] == json!(false), "{}", server.said);
    let post = |path: &str, body: Value| {
        let bearer = format!("Authorization: Bearer {token}");
        server.send(request("POST", path, &server.host(), &[&bearer, JSON], &body.to_string()))
    };
    server.post("/api/lift", &json!({ "limit": "mail" })).refusal(401);
    let mail = store.find("mail").unwrap();
    let done = post("/api/override", json!({ "limit": "mail", "policy": "5 per hour" })).json(200);
    assert_eq!(done, json!({ "done": "override", "name": "mail", "key": null, "policy": "5/1h" }));
    wait_until("the override applies", || mail.peek("acme", 1).unwrap().limit == 5);
    assert!(mail.decide("acme", 1).unwrap().admitted && mail.decide("acme", 1).unwrap().admitted);
    assert!(!mail.decide("acme", 1).unwrap().admitted);
    assert_eq!(run(&dir.url(), &["show", "mail", "--json"]).json(0)["limits"][0]["override"], json!("5/1h"));
    // The next request to the server shows it, too.
    assert_eq!(server.get("/api/snapshot?search=MAIL", &[]).json(200)["limits"][0]["override"], json!("5/1h"));
    post("/api/override", json!({ "limit": "mail", "policy": "9/1h", "key": "acme" })).json(200);
    wait_until("the key has an override", || {
        mail.peek("acme", 1).unwrap().limit == 9 && mail.peek("bob", 1).unwrap().limit == 5
    });
    post("/api/lift", json!({ "limit": "mail", "key": "acme" })).json(200);
    assert_eq!(post("/api/lift", json!({ "limit": "mail" })).json(200)["done"], json!("lift"));
    wait_until("both are lifted", || mail.peek("acme", 1).unwrap().limit == 3);
    assert_eq!(post("/api/pause", json!({ "limit": "openai", "duration": "1h" })).json(200)["duration"], json!(3600.0));
    let openai = store.find("openai").unwrap();
    wait_until("the limit is paused", || openai.peek("", 1).unwrap().retry_after > Duration::from_secs(3000));
    assert!(!openai.decide("", 1).unwrap().admitted);
    let part = server.get("/api/snapshot?search=openai/rate", &[]).json(200);
    assert!(part["limits"][0]["paused_for"].as_f64().unwrap() > 3000.0, "{part}");
    // Changes are logged, without keys and without the token.
    server.signal(libc::SIGTERM);
    let mut server = server;
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let mut log = String::new();
    server.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(
        log.contains("127.0.0.1: override mail 5 per hour")
            && log.contains("pause openai 1h")
            && log.contains("mail, one key"),
        "{log}"
    );
    assert!(!log.contains("acme") && !log.contains(&token), "{log}");
}

#[test]
fn responses_have_the_state_of_the_limits() {
    let dir = Dir::new("serve-answers");
    let _store = used(&dir.url());
    let server = Server::start(&dir.url(), &[]);
    let all = server.get("/api/snapshot?sort=name", &[]).json(200);
    let names = |all: &Value| {
        all["limits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|limit| limit["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&all), ["mail", "openai/concurrency", "openai/rate", "stripe"]);
    assert_eq!((&all["found"], &all["summary"]["limits"], &all["summary"]["full"]), (&json!(4), &json!(4), &json!(1)));
    let mail = &all["limits"][0];
    assert_eq!(
        (&mail["usage"][0]["used"], &mail["stats"]["admitted"], &mail["stats"]["denied"]),
        (&json!(3), &json!(4), &json!(1))
    );
    // Keys are ids by default.
    assert!(
        !all.to_string().contains("acme") && mail["hot_keys"][0]["key"].as_str().unwrap().starts_with('#'),
        "{mail}"
    );
    assert_eq!(names(&server.get("/api/snapshot?limit=1", &[]).json(200)), ["mail"]);
    assert_eq!(names(&server.get("/api/snapshot?sort=name&offset=2&limit=1", &[]).json(200)), ["openai/rate"]);
    assert_eq!(
        names(&server.get("/api/snapshot?search=O&sort=name&limit=9", &[]).json(200)),
        ["openai/concurrency", "openai/rate"]
    );
    assert_eq!(names(&server.get("/api/snapshot?search=nowhere", &[]).json(200)), [""; 0]);
    let metrics = server.get("/metrics", &[]).with(200);
    assert!(metrics.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"), "{metrics:?}");
    assert!(
        metrics.body.contains("workglow_limit_denied_total{limit=\"mail\"} 1") && !metrics.body.contains("acme"),
        "{}",
        metrics.body
    );
    let open =
        server.get("/metrics", &["Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"]).with(200);
    assert!(
        open.header("content-type").unwrap().starts_with("application/openmetrics-text")
            && open.body.ends_with("# EOF\n")
    );
    let series = server.get("/api/series?limit=mail", &[]).json(200);
    assert_eq!((&series["step"], &series["windows"][0]["window"]), (&json!(5.0), &json!(3600.0)));
    assert_eq!((&series["windows"][0]["used"][0], &series["windows"][0]["limit"][0]), (&json!(3), &json!(3)));
    let length = series["at"].as_array().unwrap().len();
    assert!(
        ["granted", "denied", "waiting"].iter().all(|name| series[name].as_array().unwrap().len() == length),
        "{series}"
    );
    let history = server.get("/api/history?limit=mail", &[]).json(200);
    assert_eq!(
        (&history["step"], &history["steps"][0]["units"], &history["steps"][0]["denied"]),
        (&json!(3600.0), &json!(4), &json!(1))
    );
    // With --show-keys, keys are text.
    let open = Server::start(&dir.url(), &["--show-keys", "--keys", "1"]);
    let mail = &open.get("/api/snapshot?search=mail", &[]).json(200)["limits"][0];
    assert_eq!(
        mail["hot_keys"].as_array().unwrap().iter().map(|key| &key["key"]).collect::<Vec<_>>(),
        [&json!("acme")]
    );
}

#[test]
fn event_streams_follow_the_store() {
    let dir = Dir::new("serve-events");
    let store = used(&dir.url());
    let server = Server::start(&dir.url(), &[]);
    let mut events = Events::open(&server, "?search=a&sort=name&limit=2&detail=stripe", &[]);
    assert_eq!(events.next().unwrap().0, "hello");
    let first = events.until("look", |_| true);
    assert_eq!(
        (&first["found"], &first["limits"][1]["name"], &first["detail"]["name"]),
        (&json!(3), &json!("openai/concurrency"), &json!("stripe"))
    );
    assert_eq!(first["sparks"].as_array().unwrap().len(), 2, "{first}");
    assert_eq!(first["detail"]["parts"], Value::Null, "it stands alone");
    assert!(first["limits"][0].get("hot_keys").is_none(), "{first}");
    for _ in 0..7 {
        assert!(store.find("stripe").unwrap().decide("", 1).unwrap().admitted);
    }
    Store::tell_counts();
    events.until("look", |look| look["detail"]["stats"]["admitted"] == json!(7));
    let mut other = Events::open(&server, "?detail=nothing", &[]);
    assert_eq!(other.until("look", |_| true)["detail"], Value::Null);
    store.limiter("nothing", "1/1s").unwrap().open().unwrap();
    other.until("look", |look| look["detail"]["name"] == json!("nothing"));
}

#[test]
fn a_part_is_shown_beside_the_others_of_its_limit() {
    let dir = Dir::new("serve-parts");
    let store = used(&dir.url());
    let llm = store.limiter("llm", "requests: 9/1h + tokens: 100/1h + tenant: 1/1h").unwrap();
    let start = |tokens, tenant| {
        let call = llm.joint("", &[Charge::of("tokens").weight(tokens), Charge::of("tenant").key(tenant)]).unwrap();
        llm.decide(&call, 1).unwrap().admitted
    };
    assert_eq!([start(60, "a"), start(50, "b"), start(50, "c"), start(1, "a")], [true, false, false, false]);
    // Its name begins alike, and it is no part.
    store.limiter("llm-2", "1/1s").unwrap().open().unwrap();
    store.flush().unwrap();
    Store::tell_counts();
    let server = Server::start(&dir.url(), &[]);
    let mut events = Events::open(&server, "?detail=llm/requests", &[]);
    let is_counted = |look: &Value| look["detail"]["parts"]["parts"][0]["denied"] == json!(2);
    let beside = events.until("look", is_counted)["detail"]["parts"].clone();
    assert_eq!(beside["of"], "llm");
    let short = |part: &Value| json!([part["part"], part["name"], part["denied"], part["usage"][0]["used"]]);
    let parts: Vec<Value> = beside["parts"].as_array().unwrap().iter().map(short).collect();
    let wanted = [
        json!(["tokens", "llm/tokens", 2, 60]),
        json!(["tenant", "llm/tenant", 1, 1]),
        json!(["requests", "llm/requests", 0, 1]),
    ];
    assert_eq!(parts, wanted);
}

#[test]
fn a_missing_store_is_reported_until_it_is_back() {
    let dir = Dir::new("serve-gone");
    let store = used(&dir.url());
    let server = Server::start(&dir.url(), &[]);
    let mut events = Events::open(&server, "", &[]);
    events.until("look", |_| true);
    drop(store);
    let files = ["limits.db", "limits.db-lane"].map(|name| (dir.file(name), dir.file(&format!("kept-{name}"))));
    files.iter().for_each(|(file, kept)| std::fs::rename(file, kept).unwrap());
    let trouble = events.until("trouble", |_| true);
    assert!(!trouble["error"]["message"].as_str().unwrap().is_empty(), "{trouble}");
    wait_until("all responses are 503", || {
        server.get("/metrics", &[]).status == 503 && server.get("/api/snapshot", &[]).status == 503
    });
    server.get("/api/snapshot", &[]).refusal(503);
    server.post("/api/lift", &json!({ "limit": "mail" })).refusal(503);
    server.get("/", &[]).with(200);
    files.iter().for_each(|(file, kept)| std::fs::rename(kept, file).unwrap());
    events.until("look", |look| look["summary"]["limits"] == json!(4));
    wait_until("metrics are back", || server.get("/metrics", &[]).status == 200);
    server.post("/api/lift", &json!({ "limit": "mail" })).json(200);
}

#[test]
fn many_and_slow_connections_do_not_block_others() {
    let dir = Dir::new("serve-many");
    let _store = used(&dir.url());
    let server = Server::start(&dir.url(), &[]);
    // Streams above the maximum are refused, and other requests still get responses.
    let mut streams: Vec<Events> = (0..32).map(|_| Events::open(&server, "", &[])).collect();
    assert_eq!(server.get("/api/events", &[]).refusal(503).0, "too_many_streams");
    streams.iter_mut().for_each(|stream| drop(stream.until("look", |_| true)));
    // Connections with half a request, or with none, are closed in time, so other requests get responses.
    let mut slow: Vec<_> = (0..80).map(|_| server.connect()).collect();
    for (i, stream) in slow.iter_mut().enumerate() {
        let _ = stream.write_all(if i % 2 == 0 { b"GET /api/sn" } else { b"" });
    }
    server.get("/api/snapshot", &[]).json(200);
    for mut stream in slow {
        let mut rest = Vec::new();
        // The server has closed the connection, with or without an error.
        let ended = stream.read_to_end(&mut rest);
        assert!(
            !ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock),
            "the connection is still open"
        );
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
    // A body that is announced but not sent.
    let mut stream = server.connect();
    let head = format!(
        "POST /api/lift HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n{JSON}\r\nContent-Length: 20\r\n\r\n{{",
        server.host()
    );
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(Answer::head(&mut BufReader::new(stream)).0, 408);
    // Closed streams free their places.
    drop(streams);
    wait_until("a new stream opens", || {
        server.get("/api/snapshot", &[]).status == 200 && {
            let mut stream = server.connect();
            stream.write_all(request("GET", "/api/events", &server.host(), &[], "").as_bytes()).unwrap();
            Answer::head(&mut BufReader::new(stream)).0 == 200
        }
    });
}

#[test]
fn signals_end_the_server_at_once_with_open_streams() {
    for (signal, code) in [(libc::SIGTERM, 0), (libc::SIGINT, 130)] {
        let dir = Dir::new("serve-signals");
        let _store = used(&dir.url());
        let mut server = Server::start(&dir.url(), &[]);
        let mut events = Events::open(&server, "", &[]);
        events.until("look", |_| true);
        let _idle = server.connect();
        server.signal(signal);
        assert_eq!(server.child.wait().unwrap().code(), Some(code));
        while events.next().is_some() {}
    }
}

#[test]
fn invalid_options_are_refused_at_the_start() {
    let dir = Dir::new("serve-start");
    let _store = used(&dir.url());
    let url = dir.url();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    run(&url, &["serve", "--listen", &address]).with(1).says(&[&format!("listen is {address}"), "in use", "--listen"]);
    run(&url, &["serve", "--listen", "192.0.2.1:9464", "--anyone-may-read"])
        .with(1)
        .says(&["192.0.2.1:9464", "no such address"]);
    for listen in ["nowhere", "9464", "127.0.0.1", "127.0.0.1:99999", "", "unix:", "http://127.0.0.1:1"] {
        run(&url, &["serve", "--listen", listen]).with(2).says(&["listen is", "expected"]);
    }
    // Reachable by other machines, without a token for reading.
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:9464"] {
        run(&url, &["serve", "--listen", listen]).with(2).says(&[
            "other machines can reach this address",
            "--read-token-file",
            "--anyone-may-read",
        ]);
    }
    let file = dir.file("token");
    for (token, part) in
        [("short", "16 to 1024"), ("with spaces in it, which is wrong", "visible ASCII"), ("", "16 to 1024")]
    {
        std::fs::write(&file, token).unwrap();
        let ran = run(&url, &["serve", "--token-file", file.to_str().unwrap()]).with(2);
        ran.says(&["token-file", part]);
        assert!(token.is_empty() || !ran.err.contains(token), "{ran:?}");
    }
    run(&url, &["serve", "--token-file", "/nowhere/token"]).with(2).says(&["token-file /nowhere/token"]);
    std::fs::write(&file, TOKEN).unwrap();
    let ran = command(&url, &["serve", "--read-token-file", file.to_str().unwrap()])
        .env("WORKGLOW_LIMIT_TOKEN", TOKEN)
        .output()
        .unwrap();
    assert!(ran.status.code() == Some(2) && String::from_utf8_lossy(&ran.stderr).contains("are the same"), "{ran:?}");
    run(&url, &["serve", "--allow-host", "a.example:80"]).with(2).says(&["allow-host", "without a port"]);
    run(&url, &["serve", "--keys", "1001"]).with(2).says(&["--keys", "1000"]);
    let nowhere = format!("sqlite:{}", dir.file("none.db").display());
    run(&nowhere, &["serve"]).with(1).says(&["none.db"]);
    assert!(!dir.names().iter().any(|name| name.starts_with("none")));
}

#[test]
fn on_all_addresses_any_ip_is_a_name_and_no_token_is_created() {
    let dir = Dir::new("serve-all");
    let _store = used(&dir.url());
    let server = Server::start_with(&dir.url(), &["--listen", "0.0.0.0:0", "--anyone-may-read"], &[]);
    assert_eq!((&server.said["token"], &server.said["read_only"]), (&Value::Null, &json!(true)));
    for host in ["192.168.7.7:9464", "10.0.0.1", "localhost"] {
        server.send(request("GET", "/api/snapshot", host, &[], "")).json(200);
    }
    server.send(request("GET", "/api/snapshot", "evil.example", &[], "")).refusal(421);
}

#[test]
fn a_unix_socket_is_private_and_replaces_a_stale_one() {
    // A path in the clone may be too long for a socket.
    let dir = Dir::in_memory("serve-socket");
    let _store = used(&dir.url());
    let path = dir.file("socket");
    let listen = format!("unix:{}", path.display());
    // The socket of a killed server is replaced; another file is not.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let mut server = Server::start(&dir.url(), &["--listen", &listen]);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut stream = std::os::unix::net::UnixStream::connect(&path).unwrap();
    stream.write_all(request("GET", "/api/snapshot", "localhost", &[], "").as_bytes()).unwrap();
    assert_eq!(Answer::read(&mut BufReader::new(stream)).json(200)["found"], json!(4));
    run(&dir.url(), &["serve", "--listen", &listen]).with(1).says(&["in use"]);
    server.signal(libc::SIGTERM);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(!path.exists());
    std::fs::write(&path, "mine").unwrap();
    run(&dir.url(), &["serve", "--listen", &listen]).with(1).says(&["in use"]);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn ten_thousand_limits_fit_in_bounded_memory_and_messages() {
    let dir = Dir::in_memory("serve-10000");
    let store = Store::new(&dir.url()).unwrap();
    let file = dir.file("limits.toml");
    let all: String = (0..10_000).map(|i| format!("[\"tenant-{i:05}\"]\nallowed = 100\nperiod = \"10m\"\n")).collect();
    std::fs::write(&file, all).unwrap();
    store.load(&file).unwrap();
    for i in 0..10_000 {
        let limiter = store.find(&format!("tenant-{i:05}")).unwrap();
        assert!(limiter.decide("", 1 + i % 90).unwrap().admitted);
    }
    store.flush().unwrap();
    let server = Server::start(&dir.url(), &[]);
    let mut events = Events::open(&server, "?limit=50", &[]);
    let look = events.until("look", |look| look["tick"].as_u64() > Some(2));
    assert_eq!((&look["found"], look["limits"].as_array().unwrap().len()), (&json!(10_000), 50));
    assert_eq!(look["limits"][0]["share"], json!(0.9));
    assert!(look.to_string().len() < 100_000, "{}", look.to_string().len());
    let found = server.get("/api/snapshot?search=tenant-0999&limit=1000&sort=name", &[]).json(200);
    assert_eq!((&found["found"], &found["limits"][9]["name"]), (&json!(10), &json!("tenant-09999")));
    assert_eq!(
        server.get("/metrics", &[]).with(200).body.matches("workglow_limit_admitted_total{limit=\"tenant-").count(),
        10_000
    );
    assert!(server.memory() < 100 << 10, "{} KiB", server.memory());
}
