//! Several processes on one key: this library, the usual script in Redis, and an exact log in one SQLite transaction.

use serde_json::json;
use std::time::Duration;
use workglow_limit_bench_peers::fleet::{Demand, Shared, be_a_child, hammered};
use workglow_limit_bench_peers::most::{LIMIT, WINDOW, most};
use workglow_limit_bench_peers::redis_server::{MISSING, RedisServer};
use workglow_limit_bench_peers::{Arguments, arguments, print, print_versions};

/// Long enough for a 99.9th percentile of calls that take a tenth of a millisecond.
const SPAN: Duration = Duration::from_millis(600);

fn main() {
    be_a_child();
    let Arguments { directory, filter, counts_most } = arguments();
    print_versions(&["redis", "rusqlite"]);
    let redis = RedisServer::start(&directory);
    match &redis {
        Some(server) => print(&json!({ "version": { "redis-server": server.version } })),
        None => eprintln!("{MISSING}\nIts rows are left out."),
    }
    let sharing = [
        ("ours", "workglow-limit", Shared::Ours),
        ("redis", "Redis", Shared::Redis),
        ("transaction", "SQLite", Shared::Transaction),
    ];
    let sharing: Vec<_> = sharing.into_iter().filter(|one| one.2 != Shared::Redis || redis.is_some()).collect();
    if counts_most {
        for (name, peer, shared) in sharing {
            let outcome = hammered(shared, Demand::Most, 4, SPAN, &directory);
            print(&json!({
                "case": format!("{name}, most starts, 4 processes"), "group": "processes", "peer": peer, "processes": 4,
                "limit": LIMIT, "most": most(&outcome.starts, WINDOW),
            }));
        }
        return;
    }
    let asked = [(Demand::Admitted, 1), (Demand::Admitted, 2), (Demand::Admitted, 4), (Demand::Denied, 4)];
    for (demand, processes) in asked {
        for &(name, peer, shared) in &sharing {
            let what = if demand == Demand::Admitted { "admit" } else { "deny" };
            let plural = if processes == 1 { "process" } else { "processes" };
            let case = format!("{name} {what}, {processes} {plural}");
            if !case.contains(&filter) {
                continue;
            }
            let outcome = hammered(shared, demand, processes, SPAN, &directory);
            let mut line = json!({
                "case": case, "group": "processes", "peer": peer, "processes": processes,
                "per_second": outcome.per_second.round(),
            });
            line.as_object_mut().expect("it is an object").extend(outcome.figures.line(processes));
            print(&line);
        }
    }
}
