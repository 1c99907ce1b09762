//! Finds settings of a Redis server that endanger limits.

use super::link::{Node, info_of};
use super::{EPOCH, MARK, NAMES, Redis, losses, time};
use crate::error::Result;
use crate::server::doctor::{Finding, Severity, Severity::*, compare_clocks};
use crate::time::{Tick, from_ticks};
use redis::{RedisError, RedisResult, Script, ServerErrorKind, Value};
use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A key of no limit: in the names of limits, `%` is written as `%25`.
const KEY: &str = "wgl:{%}";

/// The settings that are checked.
const SETTINGS: [&str; 8] = [
    "appendfsync",
    "busy-reply-threshold",
    "cluster-require-full-coverage",
    "lua-time-limit",
    "maxclients",
    "min-replicas-to-write",
    "save",
    "timeout",
];

impl Redis {
    pub(super) fn look(&self, patience: Duration) -> Result<Vec<Finding>> {
        let began = Instant::now();
        let mut findings = self.look_at_settings(began, patience)?;
        // Without the right to read it, that has been found.
        let read = || self.query("", &redis::cmd("TIME"), patience).map(time);
        findings.extend(compare_clocks("TIME", read).unwrap_or_default());
        Ok(findings)
    }

    fn look_at_settings(&self, began: Instant, patience: Duration) -> Result<Vec<Finding>> {
        match self.links.with("", patience, |node| look(node, self.loses)) {
            // A new connection asks for it, too.
            Err(error) if is_missing(&error) => {
                let what =
                    "limits cannot be used: it is unknown which run of the server answers, and so what it has lost";
                Ok(vec![Finding::new(Danger, "acl", &error, what, "allow INFO to this user")])
            }
            findings => findings.map_err(|error| self.explain(&error, began.elapsed())),
        }
    }
}

/// The server's facts, and the findings.
struct Facts {
    info: String,
    settings: Option<HashMap<String, String>>,
    findings: Vec<Finding>,
}

impl Facts {
    fn info(&self, field: &str) -> &str {
        info_of(&self.info, field).unwrap_or_default()
    }

    fn number(&self, field: &str) -> u64 {
        self.info(field).parse().unwrap_or(0)
    }

    fn setting(&self, name: &str) -> Option<&str> {
        self.settings.as_ref()?.get(name).map(String::as_str)
    }

    fn add(&mut self, severity: Severity, setting: &str, value: impl ToString, what: &str, instead: &str) {
        self.findings.push(Finding::new(severity, setting, value, what, instead));
    }
}

fn look(node: &mut Node, loses: Option<Tick>) -> RedisResult<Vec<Finding>> {
    let info = node.query(redis::cmd("INFO").arg("all"))?;
    // Managed services have no CONFIG. Read one at a time, since some services support only some settings.
    let mut settings = HashMap::new();
    let mut is_permitted = true;
    for name in SETTINGS {
        match node.query::<HashMap<String, String>>(redis::cmd("CONFIG").arg("GET").arg(name)) {
            Ok(found) => settings.extend(found),
            Err(e) if matches!(e.kind(), redis::ErrorKind::Server(_)) => is_permitted = false,
            Err(e) => return Err(e),
        }
    }
    let mut findings = Vec::new();
    if !is_permitted {
        let what = "settings could not be read, because CONFIG is not permitted here";
        findings.push(Finding::new(Note, "CONFIG", "", what, "check them where the server is managed"));
    }
    let mut seen = Facts { info, settings: is_permitted.then_some(settings), findings };
    memory(&mut seen);
    persistence(&mut seen);
    promised(&mut seen, loses);
    replicas(&mut seen);
    limits(&mut seen);
    clock(node, &mut seen)?;
    commands(node, &mut seen)?;
    Ok(seen.findings)
}

fn memory(seen: &mut Facts) {
    let (policy, most) = (seen.info("maxmemory_policy:").to_owned(), seen.number("maxmemory:"));
    if !policy.is_empty() && policy != "noeviction" {
        let what = "starts are forgotten when memory is short, and as many may happen again";
        // Without a memory limit nothing is evicted yet.
        let severity = if most > 0 { Danger } else { Warning };
        seen.add(severity, "maxmemory-policy", policy, what, "noeviction, or a server for limits only");
    }
    let evicted = seen.number("evicted_keys:");
    if evicted > 0 {
        let what = "keys were evicted since the server was started; some may have been limits'";
        seen.add(Danger, "evicted_keys", evicted, what, "maxmemory-policy noeviction, and more memory");
    }
}

fn persistence(seen: &mut Facts) {
    let (aof, save) = (seen.info("aof_enabled:").to_owned(), seen.setting("save").map(str::to_owned));
    let fsync = seen.setting("appendfsync").unwrap_or_default().to_owned();
    match (aof.as_str(), save.as_deref()) {
        ("0", Some("")) => {
            let what = "a restarted server has forgotten everything; new processes cannot know that, and admit each limit's full \
                        amount again";
            seen.add(Danger, "appendonly", "no", what, "yes");
        }
        ("0", _) => {
            let what = "limits that were created since the last snapshot are forgotten when the server ends, and each of them \
                        may start its full amount again";
            seen.add(Warning, "appendonly", "no", what, "yes");
        }
        ("1", _) if fsync == "no" => {
            let what = "a power cut loses what the system has not written yet; no start is admitted for a window after it, but \
                        limits that were created in that time are forgotten";
            seen.add(Warning, "appendfsync", fsync, what, "everysec, or always");
        }
        ("1", _) if fsync == "everysec" => {
            let what = "a power cut loses a second; no start is admitted for a window after it, but limits that were created in \
                        that second are forgotten";
            seen.add(Note, "appendfsync", fsync, what, "always, if that matters");
        }
        _ => {}
    }
}

/// Compares the time in the address with what the settings promise.
fn promised(seen: &mut Facts, loses: Option<Tick>) {
    let Some(loses) = loses else { return };
    let value = format!("{:?}", from_ticks(loses));
    if seen.settings.is_none() {
        let what =
            "it is unknown whether the server loses no more by a restart, because its settings could not be read";
        seen.add(Note, "loses", &value, what, "the time that the service promises");
    } else {
        let is_appending = seen.info("aof_enabled:") == "1";
        let lost = losses::by_a_restart(is_appending, seen.setting("appendfsync"), seen.setting("save"));
        if lost.is_none_or(|lost| lost > loses) {
            let (what, instead) = match lost {
                Some(lost) => (
                    format!(
                        "a restart loses up to {:?}, so limits may be exceeded by what started before",
                        from_ticks(lost)
                    ),
                    format!("{:?} or more, or appendfsync always", from_ticks(lost)),
                ),
                None => (
                    "a restart may lose starts of any age, so limits may be exceeded by them".to_owned(),
                    "appendonly yes, with appendfsync everysec or always; or an address without it".to_owned(),
                ),
            };
            seen.add(Danger, "loses", &value, &what, &instead);
        }
    }
    if loses == 0 && seen.number("connected_slaves:") > 0 {
        let what = "a replica that takes over may lack the last starts, and limits may be exceeded by them";
        seen.add(Warning, "loses", &value, what, "a time longer than replicas may be behind, unless none takes over");
    }
}

fn replicas(seen: &mut Facts) {
    if seen.info("role:") == "slave" {
        let what = "this is a replica: it refuses to record starts, so every decision fails";
        seen.add(Danger, "role", "replica", what, "the primary's address, or redis+sentinel://");
        if seen.info("slave_read_only:") == "0" {
            let what = "this replica records starts that its primary never receives, and loses them";
            seen.add(Danger, "replica-read-only", "no", what, "yes, and the primary's address");
        }
    }
    let (count, least) =
        (seen.number("connected_slaves:"), seen.setting("min-replicas-to-write").unwrap_or("1").to_owned());
    if count > 0 && least == "0" {
        let what = "a primary that is cut off keeps deciding while a replica takes its place: each of them admits up to the \
                    limit";
        let instead = "1 or more, with min-replicas-max-lag below the failover's time";
        seen.add(Danger, "min-replicas-to-write", least, what, instead);
    }
    if seen.info("cluster_enabled:") == "1" {
        if seen.setting("cluster-require-full-coverage") == Some("yes") {
            let what = "while one node is lost, limits on all others fail, too";
            seen.add(Note, "cluster-require-full-coverage", "yes", what, "no");
        }
        let what = "only one node of the cluster was checked";
        seen.add(Note, "cluster_enabled", "yes", what, "check the others by their addresses, too");
    }
}

fn limits(seen: &mut Facts) {
    let version = seen.info("redis_version:").to_owned();
    if version.split('.').next().and_then(|major| major.parse::<u64>().ok()).is_some_and(|major| major < 6) {
        let what = "limits are not tested with a server this old, and it may replicate scripts in another way";
        seen.add(Danger, "redis_version", version, what, "6 or later, or Valkey");
    }
    for name in ["busy-reply-threshold", "lua-time-limit"] {
        let Some(ms) = seen.setting(name).and_then(|text| text.parse::<u64>().ok()) else { continue };
        if (1..100).contains(&ms) {
            let what =
                "other calls are refused (BUSY) while a script runs for longer than this, as it may on a busy machine";
            seen.add(Warning, name, ms, what, "5000");
            break;
        }
    }
    let idle = seen.setting("timeout").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    if (1..60).contains(&idle) {
        let what = "connections are closed so soon that most calls have to connect again";
        seen.add(Note, "timeout", idle, what, "0, or 60 and more");
    }
    let (clients, most) =
        (seen.number("connected_clients:"), seen.setting("maxclients").and_then(|text| text.parse().ok()));
    if let Some(most @ 1..) = most
        && clients * 10 >= most * 8u64
    {
        let what = "few connections are left; a process without one cannot decide";
        seen.add(Warning, "maxclients", most, what, "more than all processes need: one each");
    }
}

fn clock(node: &mut Node, seen: &mut Facts) -> RedisResult<()> {
    let before = SystemTime::now();
    let Ok(theirs) = node.query(&redis::cmd("TIME")) else { return Ok(()) };
    let ours = before.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
    let differs = (time(theirs) + EPOCH).abs_diff(ours);
    if differs > 5_000_000 {
        let what = "the server's clock and this machine's differ; limits use only the server's, so there is no danger unless it is \
                    set forward while limits are used";
        seen.add(Note, "TIME", format!("{} s", differs / 1_000_000), what, "let both follow the same time servers");
    }
    Ok(())
}

/// Returns whether this user lacks a right.
fn is_missing(error: &RedisError) -> bool {
    error.kind() == ServerErrorKind::NoPerm.into()
}

fn commands(node: &mut Node, seen: &mut Facts) -> RedisResult<()> {
    let script = Script::new(include_str!("examine.lua"));
    let mut eval = redis::cmd("EVALSHA");
    eval.arg(script.get_hash()).arg(1).arg(KEY);
    let loaded = script.load(&mut node.connection);
    let answer = loaded.and_then(|_| node.query::<Vec<String>>(&eval));
    let mut others = [MARK, NAMES].map(|key| redis::cmd("EXISTS").arg(key).to_owned()).to_vec();
    if node.is_cluster {
        others.extend([redis::cmd("CLUSTER").arg("NODES").to_owned(), redis::cmd("ASKING")]);
    }
    let others = others.iter().filter_map(|command| node.query::<Value>(command).err());
    let others: Vec<String> = others.filter(is_missing).map(|error| error.to_string()).collect();
    let answer = answer.map(|refused| refused.into_iter().chain(others).collect::<Vec<String>>());
    match answer {
        Ok(refused) if refused.is_empty() => {}
        Ok(refused) => {
            let what = "limits cannot be used: the server refuses commands that they need";
            seen.add(Danger, "commands", refused.join("; "), what, "the rights of docs/servers.md for this user");
        }
        // In a cluster, another node may own this key, which belongs to no limit.
        Err(e) if e.redirect_node().is_some() => {}
        Err(e) if matches!(e.kind(), redis::ErrorKind::Server(_)) => {
            // For a replica, this was reported above.
            if seen.info("role:") != "slave" {
                let what = "limits cannot be used: the server runs no scripts for this user";
                let instead = "allow EVALSHA, SCRIPT and ~wgl:* to this user, and let the server write";
                seen.add(Danger, "scripts", e, what, instead);
            }
        }
        Err(e) => return Err(e),
    }
    Ok(())
}
