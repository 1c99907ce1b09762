//! Finds settings of a Postgres server that endanger limits.

use super::value::{int, text};
use super::{EPOCH, Postgres};
use crate::error::Result;
use crate::server::doctor::{Finding, Severity, Severity::*, compare_clocks};
use crate::time::Tick;
use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The facts: names and values. The query only reads, so a standby answers too.
const FACTS: &str = "
    SELECT name, setting FROM pg_settings WHERE name IN ('autovacuum', 'default_transaction_isolation', 'fsync',
        'full_page_writes', 'max_connections', 'server_version_num', 'statement_timeout', 'synchronous_standby_names',
        'transaction_read_only')
    UNION ALL SELECT 'time', (date_part('epoch', clock_timestamp()) * 1000000)::bigint::text
    UNION ALL SELECT 'is standby', pg_is_in_recovery()::text
    UNION ALL SELECT 'standbys', count(*)::text FROM pg_stat_replication
    UNION ALL SELECT 'connections', count(*)::text FROM pg_stat_activity WHERE backend_type = 'client backend'
    UNION ALL SELECT 'sees its cluster', has_function_privilege('pg_control_system()', 'EXECUTE')::text
    UNION ALL SELECT 'may create', has_database_privilege(current_database(), 'CREATE')::text
    UNION ALL SELECT 'may use', has_schema_privilege(oid, 'USAGE')::text FROM pg_namespace WHERE nspname = 'workglow_limit'
    UNION ALL SELECT 'refused', string_agg(relname, ', ' ORDER BY relname) FROM pg_class
        WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'workglow_limit') AND NOT CASE relkind
            WHEN 'r' THEN has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT')
                AND has_table_privilege(oid, 'UPDATE') AND has_table_privilege(oid, 'DELETE')
            WHEN 'S' THEN has_sequence_privilege(oid, 'USAGE')
            ELSE true END
    UNION ALL SELECT 'unlogged', string_agg(relname, ', ' ORDER BY relname) FROM pg_class
        WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'workglow_limit') AND relpersistence = 'u'
            -- Who waits may be lost: see leases.sql.
            AND relname NOT IN ('waiters', 'waiters_pkey', 'waiters_till')";

/// The server's facts, and the findings.
struct Facts {
    facts: HashMap<String, String>,
    findings: Vec<Finding>,
}

impl Facts {
    fn fact(&self, name: &str) -> &str {
        self.facts.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> u64 {
        self.fact(name).parse().unwrap_or(0)
    }

    fn add(&mut self, severity: Severity, setting: &str, value: impl ToString, what: &str, instead: &str) {
        self.findings.push(Finding::new(severity, setting, value, what, instead));
    }

    /// Adds a finding if a setting has a bad value.
    fn add_if(&mut self, bad: &str, severity: Severity, setting: &str, what: &str, instead: &str) {
        if self.fact(setting) == bad {
            self.add(severity, setting, bad, what, instead);
        }
    }
}

impl Postgres {
    pub(super) fn look(&self, patience: Duration) -> Result<Vec<Finding>> {
        let before = SystemTime::now();
        // Without creating a missing schema.
        let rows = self.ask(FACTS, Vec::new(), patience)?;
        let facts = rows.iter().filter_map(|row| Some((text(row.first()?.as_ref()?)?, text(row.get(1)?.as_ref()?)?)));
        let mut seen = Facts { facts: facts.collect(), findings: Vec::new() };
        disk(&mut seen);
        standbys(&mut seen);
        role(&mut seen);
        limits(&mut seen);
        clock(&mut seen, before);
        // (The library's own function of the time may be missing.)
        let now = "SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint";
        let read = || {
            let row = self.one(self.read(now, Vec::new(), patience)?)?;
            row.first()
                .and_then(|cell| int(cell.as_ref()?))
                .map(|now| now as Tick)
                .ok_or_else(|| self.makes_no_sense(row))
        };
        seen.findings.extend(compare_clocks("clock_timestamp()", read)?);
        Ok(seen.findings)
    }
}

fn disk(seen: &mut Facts) {
    let what = "a power cut may damage the tables; no start is admitted for a window after each start of the server";
    seen.add_if("off", Danger, "fsync", what, "on");
    let what = "a power cut may damage the tables";
    seen.add_if("off", Danger, "full_page_writes", what, "on, unless the file system writes pages whole");
    let unlogged = seen.fact("unlogged").to_owned();
    if !unlogged.is_empty() {
        let what = "a crash empties these tables, and each limit may start its full amount again";
        seen.add(Danger, "UNLOGGED", unlogged, what, "ALTER TABLE … SET LOGGED");
    }
    let what = "rows of unused keys take up space for ever, and decisions get slower";
    seen.add_if("off", Warning, "autovacuum", what, "on");
}

fn standbys(seen: &mut Facts) {
    if seen.fact("is standby") == "true" {
        let what = "this is a standby: it refuses to record starts, so every decision fails";
        let instead = "the primary's address, or all addresses and target_session_attrs=read-write";
        return seen.add(Danger, "pg_is_in_recovery", "true", what, instead);
    }
    let what = "limits cannot be used: this server, database or role only reads";
    seen.add_if("on", Danger, "transaction_read_only", what, "default_transaction_read_only = off");
    if seen.number("standbys") > 0 && seen.fact("synchronous_standby_names").is_empty() {
        let what = "a primary that is cut off keeps deciding while a standby takes its place: each of them admits up to the limit, \
                    unless the primary is stopped before the standby is promoted";
        seen.add(Warning, "synchronous_standby_names", "", what, "the standby's name");
    }
}

fn role(seen: &mut Facts) {
    match (seen.fact("may use"), seen.fact("may create")) {
        ("", "false") => {
            let what = "limits cannot be used: the schema workglow_limit is missing, and this role may not create it";
            seen.add(Danger, "schema", "missing", what, "run the SQL that postgres_schema() prints as a role that may");
        }
        ("false", _) => {
            let what = "limits cannot be used: this role may not use the schema workglow_limit";
            seen.add(Danger, "schema", "USAGE is not granted", what, "what the head of postgres_schema() says");
        }
        _ => {}
    }
    let refused = seen.fact("refused").to_owned();
    if !refused.is_empty() && seen.fact("may use") == "true" {
        let what = "limits cannot be used: this role may not read and write all of the schema workglow_limit";
        seen.add(Danger, "privileges", refused, what, "what the head of postgres_schema() says");
    }
    let what =
        "it is unknown which server answers, so no start is admitted for a window after each start of the server";
    if seen.fact("sees its cluster") == "false" {
        seen.add(Note, "pg_control_system()", "EXECUTE is not granted", what, "grant it to this role");
    }
}

fn limits(seen: &mut Facts) {
    let version = seen.number("server_version_num");
    if version < 130_000 {
        let what = "limits need Postgres 13 or later";
        seen.add(Danger, "server_version_num", version, what, "13 or later");
    }
    let isolation = seen.fact("default_transaction_isolation").to_owned();
    if isolation != "read committed" {
        let what = "concurrent calls fail and are repeated, which costs a round trip each time";
        seen.add(Note, "default_transaction_isolation", isolation, what, "read committed for this role");
    }
    let ms = seen.number("statement_timeout");
    if (1..1_000).contains(&ms) {
        let what = "a call that waits longer than this for locks or for the disk fails";
        seen.add(Warning, "statement_timeout", format!("{ms} ms"), what, "0, or some seconds, for this role");
    }
    let (connections, most) = (seen.number("connections"), seen.number("max_connections"));
    if connections * 10 >= most * 8 {
        let what = "few connections are left; a process without one cannot decide";
        seen.add(Warning, "max_connections", most, what, "more than all processes need (2 each), or a pooler");
    }
}

fn clock(seen: &mut Facts, before: SystemTime) {
    let ours = before.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
    let differs = seen.number("time").max(EPOCH).abs_diff(ours);
    if differs > 5_000_000 {
        let what = "the server's clock and this machine's differ; limits go by the server's only, so nothing is endangered unless it is \
                    set forward while limits are used";
        let instead = "let both follow the same time servers";
        seen.add(Note, "clock_timestamp()", format!("{} s", differs / 1_000_000), what, instead);
    }
}
