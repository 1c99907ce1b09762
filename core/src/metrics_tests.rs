//! The whole text of one snapshot, and the metric names in the documentation.

use super::{MetricsFormat, MetricsOptions};
use crate::policy::Policy;
use crate::snapshot::{
    GrantSnapshot, KeySnapshot, LimitSnapshot, ProcessSnapshot, Snapshot, TenantSnapshot, Usage, WAIT_BOUNDS,
};
use crate::stats::Stats;
use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, UNIX_EPOCH};

const SECOND: Duration = Duration::from_secs(1);

fn stats(admitted: u64) -> Stats {
    Stats {
        admitted,
        denied: 2,
        units_wanted: admitted + 3,
        units_granted: admitted + 1,
        waited: 4,
        wait_time: Duration::from_micros(5_000_250),
        cancelled: 6,
        store_errors: 7,
        policy_changes: 8,
    }
}

fn usage(limit: u64, used: u64, seconds: f64) -> Usage {
    Usage { limit, used, window: Some(Duration::from_secs_f64(seconds)) }
}

fn key(text: &str, id: &str) -> KeySnapshot {
    KeySnapshot {
        key: text.into(),
        id: id.into(),
        overriding: None,
        usage: vec![usage(5, 4, 0.5), usage(100, 3, 60.0)],
        retry_after: Duration::ZERO,
        paused_for: Duration::ZERO,
        stats: stats(9),
    }
}

/// A snapshot in which no value is zero or empty.
fn everything() -> Snapshot {
    let mut waits = [0; WAIT_BOUNDS.len() + 1];
    (waits[0], waits[3], waits[8]) = (1, 2, 3);
    let rate = LimitSnapshot {
        name: "say \"hi\"\\\n".into(),
        kind: "rate",
        declared: Policy::rate_in(&[(100, 60 * SECOND), (5, SECOND / 2), (6, SECOND / 2)]).unwrap(),
        overriding: None,
        overridden_by: None,
        usage: vec![usage(5, 4, 0.5), usage(6, 4, 0.5), usage(100, 40, 60.0)],
        fullest: Some(("tenant".into(), "00000000000000aa".into())),
        peak: 5,
        retry_after: SECOND / 4,
        paused_for: 90 * SECOND,
        waiting: 10,
        waits,
        places_lost: 11,
        stats: stats(12),
        keys: 13,
        bytes: 17_408,
        spare_bytes: 18_432,
        hot_keys: vec![key("tenant", "00000000000000aa"), key("tenant", "00000000000000bb"), key("c", "cc")],
        tenants: vec![
            TenantSnapshot { key: "#dd".into(), id: "dd".into(), share: 1, waits: Some(SECOND / 8) },
            TenantSnapshot { key: "acme".into(), id: "ee".into(), share: 3, waits: None },
        ],
        grants: Some(GrantSnapshot { held: 14, requests: 15 }),
    };
    let jobs = LimitSnapshot {
        name: "jobs".into(),
        kind: "concurrency",
        declared: Policy::concurrency(2).unwrap(),
        overriding: Some(Policy::concurrency(10).unwrap()),
        overridden_by: Some("operator".into()),
        usage: vec![Usage { limit: 10, used: 9, window: None }],
        fullest: None,
        paused_for: Duration::ZERO,
        waits: [0; WAIT_BOUNDS.len() + 1],
        stats: Stats::default(),
        hot_keys: Vec::new(),
        tenants: Vec::new(),
        grants: None,
        ..rate.clone()
    };
    Snapshot {
        at: UNIX_EPOCH,
        url: "sqlite:limits.db".into(),
        limits: vec![rate, jobs],
        counts_all_processes: true,
        processes: vec![ProcessSnapshot { pid: 1, program: "python".into(), since: SECOND }],
        ledger_lag: Duration::from_millis(1500),
        lane_bytes: 262_144,
        used_bytes: 131_072,
        max_bytes: 67_108_864,
        failures: 16,
    }
}

/// An observer of a server has no counts, so its text has no counters.
#[test]
fn an_observer_of_a_server_has_no_counters() {
    let mut seen = Snapshot { counts_all_processes: false, ..everything() };
    let has =
        |seen: &Snapshot| seen.to_openmetrics(&MetricsOptions::default()).contains("workglow_limit_admitted_total{");
    assert!(has(&seen));
    seen.limits.iter_mut().for_each(|limit| limit.stats = Stats::default());
    assert!(!has(&seen));
    seen.counts_all_processes = true;
    assert!(has(&seen));
}

fn text(format: MetricsFormat, keys: usize, show_keys: bool) -> String {
    everything().to_openmetrics(&MetricsOptions { format, keys, show_keys })
}

#[test]
fn the_text_is_as_recorded() {
    for (format, expected) in [
        (MetricsFormat::OpenMetrics, include_str!("metrics_tests/openmetrics.txt")),
        (MetricsFormat::Prometheus, include_str!("metrics_tests/prometheus.txt")),
    ] {
        let text = text(format, 2, true).replace(env!("CARGO_PKG_VERSION"), "VERSION");
        if std::env::var_os("UPDATE_METRICS").is_some() {
            let name = format!("{format:?}.txt").to_lowercase();
            fs::write(format!("{}/src/metrics_tests/{name}", env!("CARGO_MANIFEST_DIR")), &text).unwrap();
        } else {
            assert_eq!(text, expected, "UPDATE_METRICS=1 records the text");
        }
    }
}

#[test]
fn keys_are_limited_in_number_and_shown_as_ids_by_default() {
    let ids = |text: &str| -> BTreeSet<String> {
        let of_line = |line: &str| Some(line.split_once("key=\"")?.1.split_once('"')?.0.to_owned());
        text.lines().filter_map(of_line).collect()
    };
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(ids(&text(MetricsFormat::OpenMetrics, 0, true)), set(&[]));
    assert_eq!(ids(&text(MetricsFormat::OpenMetrics, 1, false)), set(&["#00000000000000aa"]));
    let all = set(&["#00000000000000aa", "#00000000000000bb", "#cc"]);
    assert_eq!(ids(&text(MetricsFormat::Prometheus, 10, false)), all);
    let shown = set(&["tenant", "tenant#00000000000000bb", "c"]);
    assert_eq!(ids(&text(MetricsFormat::Prometheus, 10, true)), shown);
}

#[test]
fn every_series_is_unique() {
    for format in [MetricsFormat::OpenMetrics, MetricsFormat::Prometheus] {
        let text = text(format, 10, true);
        let series: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let different: BTreeSet<_> = series.iter().map(|line| line.rsplit_once(' ').unwrap().0).collect();
        assert_eq!(series.len(), different.len());
    }
}

#[test]
fn an_empty_store_has_metrics() {
    let nothing = Snapshot { limits: Vec::new(), processes: Vec::new(), ..everything() };
    let text = nothing.to_openmetrics(&MetricsOptions::default());
    let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(samples.len(), 6, "{samples:?}");
    assert!(text.ends_with("workglow_limit_failures_total 16\n# EOF\n"), "{text}");
}

/// All metric names in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words = text.split(|c| !is_of_name(c));
    words.filter(|word| word.starts_with("workglow_limit_")).collect()
}

#[test]
fn dashboard_alerts_and_documentation_use_existing_metrics() {
    let text = text(MetricsFormat::Prometheus, 10, false);
    let there = names(&text);
    let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/");
    for file in ["grafana/workglow-limit.json", "grafana/alerts.yml", "metrics.md"] {
        let page = fs::read_to_string(format!("{docs}{file}")).unwrap();
        let unknown: Vec<_> = names(&page).difference(&there).copied().collect();
        assert!(unknown.is_empty(), "{file} names metrics that do not exist: {unknown:?}");
    }
    // The table has all metrics: a histogram by its name, the others by the names of their series.
    let page = fs::read_to_string(format!("{docs}metrics.md")).unwrap();
    let rows: String = page.lines().filter(|line| line.starts_with("| `workglow_limit_")).collect();
    let in_table = names(&rows);
    let heads = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let missing: Vec<_> = heads.filter(|name| !in_table.contains(name)).collect();
    assert!(missing.is_empty(), "docs/metrics.md lacks {missing:?}");
}
