//! `doctor`: finds risks in a store's surroundings.

mod files;

use crate::context::{Context, Outcome, look};
use crate::failure::Failure;
use crate::json;
use crate::text::{self, Look};
use serde_json::json;
use std::cmp::Reverse;
use std::time::Instant;
use workglow_limit::admin::Severity;
use workglow_limit::observe::{Observer, Snapshot};

/// Check the store's surroundings: disk, files and clock, or the server's settings
///
/// The exit code is 5 if there is a warning or a danger.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// The number of limits whose memory is shown.
const LARGEST: usize = 3;

/// A risk that an operator should know about.
#[derive(Debug, Clone)]
pub struct Finding {
    pub severity: Severity,
    /// The consequence.
    pub what: String,
    /// The setting, by the name that the system or the server has for it.
    pub setting: String,
    /// The setting's value. Empty: it could not be read.
    pub value: String,
    /// The remedy. Empty: there is none.
    pub instead: String,
}

impl From<workglow_limit::admin::Finding> for Finding {
    fn from(found: workglow_limit::admin::Finding) -> Finding {
        let workglow_limit::admin::Finding { severity, what, setting, value, instead, .. } = found;
        Finding { severity, what, setting, value, instead }
    }
}

/// Facts and findings.
#[derive(Debug, Default)]
pub struct Report {
    /// The checked properties with their values.
    pub facts: Vec<(&'static str, String)>,
    pub findings: Vec<Finding>,
}

impl Report {
    fn fact(&mut self, what: &'static str, value: impl Into<String>) {
        self.facts.push((what, value.into()));
    }

    fn find(&mut self, severity: Severity, setting: &str, value: impl Into<String>, what: &str, instead: &str) {
        let (what, setting, instead) = (what.to_owned(), setting.to_owned(), instead.to_owned());
        self.findings.push(Finding { severity, what, setting, value: value.into(), instead });
    }
}

pub fn run(_args: Args, context: &Context) -> Result<Outcome, Failure> {
    let url = context.url()?;
    let mut report = Report::default();
    if url.starts_with("sqlite:") {
        // An invalid address is an error. A missing store is a finding.
        context.unopened(false)?;
        files::look(url, &mut report);
    } else {
        let findings = workglow_limit::admin::doctor(url).map_err(|error| Failure::of_store(error, url))?;
        report.findings.extend(findings.into_iter().map(Finding::from));
    }
    open(context, &mut report);
    report.findings.sort_by_key(|found| Reverse(found.severity));
    print(&report, context)
}

/// Opens the store, and adds the findings of a snapshot.
fn open(context: &Context, report: &mut Report) {
    let failed = |failure: Failure, report: &mut Report| {
        let instead = failure.hint.as_deref().unwrap_or_default();
        report.find(Severity::Danger, "opening the store", failure.code, &failure.message, instead);
    };
    let began = Instant::now();
    let store = match context.store() {
        Ok(store) => store,
        Err(failure) => return failed(failure, report),
    };
    let asked = Instant::now();
    let answered = store.names();
    match look(&mut Observer::new(&store, 0)) {
        Ok(seen) => seen_of(&seen, report),
        Err(error) => failed(Failure::of_store(error, store.url()), report),
    }
    if answered.is_ok() {
        report.fact("opened in", text::about(asked.duration_since(began)));
    }
}

fn seen_of(seen: &Snapshot, report: &mut Report) {
    report.fact("limits", text::count(seen.limits.len() as u64));
    if !seen.processes.is_empty() {
        report.fact("processes", text::count(seen.processes.len() as u64));
    }
    memory(seen, report);
    if seen.ledger_lag.as_secs() >= 60 {
        let (severity, instead) = match seen.processes.is_empty() {
            true => (Severity::Note, "nothing to do: the next process that uses the store writes it"),
            false => {
                (Severity::Warning, "check whether the disk is full, or whether a process holds a lock on the database")
            }
        };
        report.find(
            severity,
            "the ledger",
            format!("{} behind", text::about(seen.ledger_lag)),
            "recent starts are not in the database yet: after a reboot they count as used, up to 5 % of each limit",
            instead,
        );
    }
    for limit in &seen.limits {
        if limit.stats.store_errors > 0 {
            let value = format!("{} of \"{}\"", text::count(limit.stats.store_errors), limit.name);
            let what = "the store failed these decisions since it was created; the option on_error decided instead";
            report.find(Severity::Note, "failed decisions", value, what, "see the programs' logs");
        }
        if limit.places_lost > 0 {
            let value = format!("{} of \"{}\"", text::count(limit.places_lost), limit.name);
            let what = "these places were used too late and lost: the limit admits fewer starts than it could";
            report.find(Severity::Note, "lost places", value, what, "give waiters a longer grace");
        }
    }
}

/// How full the store is, and which limits take most of it.
fn memory(seen: &Snapshot, report: &mut Report) {
    if seen.max_bytes == 0 {
        return;
    }
    report.fact("memory", format!("{} of {} used", text::bytes(seen.used_bytes), text::bytes(seen.max_bytes)));
    let mut largest: Vec<_> = seen.limits.iter().collect();
    largest.sort_by_key(|limit| Reverse(limit.bytes));
    let shown = largest.iter().take(LARGEST).filter(|limit| limit.bytes > 0);
    let shown: Vec<_> = shown.map(|limit| format!("{} {}", limit.name, text::bytes(limit.bytes))).collect();
    if !shown.is_empty() {
        report.fact("largest", shown.join(", "));
    }
    for limit in largest.into_iter().filter(|limit| text::is_nearly_full(limit)) {
        let value = format!("{}, and {} are left", text::bytes(limit.bytes), text::bytes(limit.spare_bytes));
        report.find(
            Severity::Warning,
            &format!("the memory of \"{}\"", limit.name),
            value,
            "when nothing is left, a new key of this limit is the error store_full, and on_error decides",
            "raise max_size in the programs (--max-size tells this command), clear the limit, or give it keys that strangers cannot make up",
        );
    }
}

fn print(report: &Report, context: &Context) -> Result<Outcome, Failure> {
    let is_fine = report.findings.iter().all(|found| found.severity < Severity::Warning);
    let outcome = if is_fine { Outcome::Done } else { Outcome::Found };
    if context.json {
        let facts: serde_json::Map<_, _> =
            report.facts.iter().map(|(what, value)| (what.replace(' ', "_"), json!(value))).collect();
        let findings: Vec<_> = report.findings.iter().map(json::finding).collect();
        let store = text::clean(&report_url(context));
        context.print_json(&json!({ "store": store, "is_fine": is_fine, "facts": facts, "findings": findings }))?;
        return Ok(outcome);
    }
    for (what, value) in &report.facts {
        context.print(format!("{}{}", Look::Faint.of(&format!("{what:<13}"), context), text::clean(value)))?;
    }
    for found in &report.findings {
        let look = match found.severity {
            Severity::Note => Look::Faint,
            Severity::Warning => Look::Near,
            _ => Look::Bad,
        };
        let value = if found.value.is_empty() { String::new() } else { format!(": {}", found.value) };
        let head = format!("{}{value}", found.setting);
        context.print(format!(
            "\n{}  {}",
            look.of(&format!("{:<7}", found.severity.name()), context),
            text::clean(&head)
        ))?;
        for text in [&found.what, &found.instead].into_iter().filter(|text| !text.is_empty()) {
            for line in text::wrapped(&text::clean(text), 9) {
                context.print(line)?;
            }
        }
    }
    if report.findings.is_empty() {
        context.print(format!("\n{}", Look::Good.of("no problems found", context)))?;
    }
    Ok(outcome)
}

/// The store's address, without its password.
fn report_url(context: &Context) -> String {
    context.unopened(false).map(|store| store.url().to_owned()).unwrap_or_default()
}
