//! The report of a simulation as text and as a picture. `json.rs` has the report as JSON.

mod json;

use super::guarantee::{Guarantee, Kind};
use super::measure::{Bin, Counts};
use super::request::{Keys, SECOND};
use super::subject::{Callers, Group, Subject};
use crate::context::Context;
use crate::picture::terminal::{self, Terminal};
use crate::picture::{Layer, Merged, Panel, Picture, Time, Tone};
use crate::text::{self, Look, clean, count, exact};
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// The results of all policies.
pub struct Report<'r, 't> {
    pub subjects: &'r [Subject<'t>],
    pub keys: &'r Keys,
    pub callers: Callers,
    /// The number of keys to list.
    pub top: usize,
}

/// A rounded duration.
fn about(us: u64) -> String {
    text::about(Duration::from_micros(us))
}

fn seconds(us: u64) -> f64 {
    crate::json::seconds(Duration::from_micros(us))
}

fn percent(part: u64, of: u64) -> String {
    if of == 0 { String::new() } else { format!(" ({:.1} %)", part as f64 * 100.0 / of as f64) }
}

/// The time to which a guarantee applies: `in any 1m`.
fn over(guarantee: &Guarantee) -> String {
    let window = exact(Duration::from_micros(guarantee.window));
    match guarantee.kind {
        Kind::AtOnce { .. } => "at once".to_owned(),
        Kind::Aligned => format!("in a {window} of the clock"),
        _ => format!("in any {window}"),
    }
}

/// A label, and a text for each policy. A row of empty texts is not shown.
type Row = (String, Vec<String>);

impl Report<'_, '_> {
    /// Returns whether each limiter kept its policy's guarantees.
    pub fn is_kept(&self) -> bool {
        self.subjects.iter().flat_map(|subject| &subject.bounds).all(|bound| bound.most <= bound.allowed())
    }

    /// The number of the requests' keys. (All policies get the same requests.)
    fn keys(&self) -> usize {
        self.subjects.first().map_or(0, |subject| subject.groups[0].counts.len())
    }

    /// Whether the limit is more than one budget, because requests or parts have keys.
    fn has_keys(&self) -> bool {
        let groups = self.subjects.iter().flat_map(|subject| &subject.groups);
        groups.into_iter().any(|group| group.counts.len() > 1)
    }

    fn waits(&self) -> bool {
        self.callers != Callers::GoAway
    }

    /// The load in a few words.
    fn load(&self) -> String {
        let Some(first) = self.subjects.first() else { return String::new() };
        let (found, total) = (&first.found, &first.found.total);
        let units = if total.units_wanted == total.requests {
            String::new()
        } else {
            format!(" for {} units", count(total.units_wanted))
        };
        let keys = if self.keys() > 1 { format!(" by {} keys", count(self.keys() as u64)) } else { String::new() };
        let callers = match self.callers {
            Callers::GoAway => "callers go away".to_owned(),
            Callers::Wait(None) => "callers wait".to_owned(),
            Callers::Wait(Some(most)) => format!("callers wait at most {}", exact(most)),
        };
        let requests = text::several(total.requests, "request");
        format!("{requests}{units}{keys} in {}; {callers}", about(found.to - found.from))
    }

    /// The lines for a terminal.
    pub fn lines(&self, context: &Context, terminal: Terminal) -> Vec<String> {
        let mut lines = vec![self.load(), String::new()];
        lines.extend(self.table(context));
        for subject in self.subjects {
            for group in subject.groups.iter().filter(|group| group.counts.len() > 1 && self.top > 0) {
                lines.push(String::new());
                lines.extend(self.key_table(subject, group, context));
            }
        }
        lines.push(String::new());
        lines.extend(terminal::draw(&self.picture(), terminal));
        lines
    }

    /// The table of figures, with a column for each policy.
    fn table(&self, context: &Context) -> Vec<String> {
        let rows = self.rows();
        let label = rows.iter().map(|(label, _)| label.width()).max().unwrap_or(0);
        let width = |i: usize| rows.iter().map(|(_, texts)| texts[i].width()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.subjects.len()).map(width).collect();
        let line = |(i, (name, texts)): (usize, &Row)| {
            let mut line = format!("  {name}{}", " ".repeat(label - name.width()));
            for (text, width) in texts.iter().zip(&widths) {
                let look = if i == 0 { Look::Heading } else { Look::Plain };
                line += &format!("  {}{}", look.of(text, context), " ".repeat(width - text.width()));
            }
            line.truncate(line.trim_end().len());
            line
        };
        rows.iter().enumerate().map(line).collect()
    }

    fn rows(&self) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        let mut put = |label: &str, text: &dyn Fn(&Subject) -> String| {
            let texts: Vec<String> = self.subjects.iter().map(text).collect();
            if texts.iter().any(|text| !text.is_empty()) {
                rows.push((label.to_owned(), texts));
            }
        };
        let some = |shown: bool, text: String| if shown { text } else { String::new() };
        put("policy", &|subject| subject.policy.clone());
        put("admitted", &|subject| {
            let total = &subject.found.total;
            count(total.admitted) + &percent(total.admitted, total.requests)
        });
        put("denied", &|subject| {
            let total = &subject.found.total;
            count(total.denied) + &percent(total.denied, total.requests)
        });
        let parts: std::collections::BTreeSet<&String> =
            self.subjects.iter().flat_map(|subject| subject.found.denied_by.keys()).collect();
        for part in parts {
            put(&format!("  by {part}"), &|subject| {
                subject.found.denied_by.get(part).map_or(String::new(), |by| count(*by))
            });
        }
        put("too heavy", &|subject| {
            let total = &subject.found.total;
            some(total.too_heavy > 0, count(total.too_heavy) + &percent(total.too_heavy, total.requests))
        });
        put("units", &|subject| {
            let total = &subject.found.total;
            let of = format!("{} of {}", count(total.units), count(total.units_wanted));
            some(total.units_wanted != total.requests, of + &percent(total.units, total.units_wanted))
        });
        if self.waits() {
            put("waited", &|subject| {
                let total = &subject.found.total;
                count(total.waited) + &percent(total.waited, total.admitted)
            });
            for (label, part) in [("  median", 0.5), ("  95 %", 0.95), ("  99 %", 0.99)] {
                put(label, &|subject| about(subject.found.waits.quantile(part)));
            }
            put("  longest", &|subject| about(subject.found.waits.longest()));
            put("most in line", &|subject| count(subject.found.most_waiting));
            put("in line at the end", &|subject| {
                let found = &subject.found;
                let after = match found.never {
                    0 if found.backlog > 0 => format!(", none after {}", about(found.cleared_after)),
                    0 => String::new(),
                    never => format!(", {} never start", count(never)),
                };
                count(found.backlog) + &after
            });
        }
        let most = self.subjects.iter().map(|subject| subject.bounds.len()).max().unwrap_or(0);
        for i in 0..most {
            put(
                match i {
                    0 if self.has_keys() => "most of a key",
                    0 => "most",
                    _ => "",
                },
                &|subject| {
                    let Some(bound) = subject.bounds.get(i) else { return String::new() };
                    let (allowed, limit) = (bound.allowed(), bound.guarantee.limit);
                    let may = if allowed == limit { String::new() } else { format!(", at most {}", count(allowed)) };
                    let is_broken = bound.most > allowed;
                    let broken = if is_broken { ": MORE THAN GUARANTEED, please report this bug" } else { "" };
                    let part = subject.parts.get(bound.part).map_or_else(String::new, |part| format!("{part}: "));
                    let (units, of) = (count(bound.most), count(limit));
                    format!("{part}{units} {} (of {of}{may}){broken}", over(&bound.guarantee))
                },
            );
        }
        let percent = |used: Option<f64>| used.map_or(String::new(), |used| format!("{:.1} %", used * 100.0));
        put("utilisation", &|subject| percent(subject.utilisation(None)));
        let parts: std::collections::BTreeSet<&String> =
            self.subjects.iter().flat_map(|subject| &subject.parts).collect();
        for part in parts {
            put(&format!("  {part}"), &|subject| {
                let at = subject.parts.iter().position(|name| name == part);
                at.map_or(String::new(), |at| percent(subject.utilisation(Some(at))))
            });
        }
        rows
    }

    /// The keys with the most requests, with their counts.
    fn top_keys(&self, group: &Group) -> Vec<(u32, Counts)> {
        let mut all: Vec<(u32, Counts)> = group.counts.iter().map(|(id, counts)| (*id, *counts)).collect();
        all.sort_by_key(|(id, counts)| (std::cmp::Reverse(counts.requests), *id));
        all.truncate(self.top);
        all
    }

    /// A key, or the first line that has it, because keys may be secrets.
    fn key(&self, id: u32, keys: crate::json::Keys) -> String {
        match keys {
            crate::json::Keys::Shown if self.keys.text(id).is_empty() => "(none)".to_owned(),
            crate::json::Keys::Shown => clean(self.keys.text(id)),
            crate::json::Keys::Hidden => format!("of line {}", self.keys.line(id)),
        }
    }

    fn key_table(&self, subject: &Subject, group: &Group, context: &Context) -> Vec<String> {
        use text::Column;
        let columns = [
            Column::text("key", 12),
            Column::number("requests"),
            Column::number("admitted"),
            Column::number("denied"),
            Column::number("waited"),
            Column::number("units"),
        ];
        let row = |(id, counts): &(u32, Counts)| {
            let numbers = [counts.requests, counts.admitted, counts.denied, counts.waited, counts.units];
            let numbers = numbers.into_iter().map(|number| (count(number), Look::Plain));
            std::iter::once((self.key(*id, context.keys), Look::Plain)).chain(numbers).collect()
        };
        let rows: Vec<text::Row> = self.top_keys(group).iter().map(row).collect();
        let mut lines = text::table(&columns, &rows, 2, text::columns(), context);
        let keys = count(group.counts.len() as u64);
        let part = group.part.map_or_else(String::new, |part| format!(" of {}", clean(self.keys.part_name(part))));
        let all = format!("the {} of {keys} keys{part} with the most requests", rows.len());
        let of = if self.subjects.len() > 1 { format!(" ({})", subject.policy) } else { String::new() };
        lines.insert(0, all + &of);
        lines
    }

    /// The picture of the load and of each policy.
    pub fn picture(&self) -> Picture {
        let mut picture = Picture { is_comparison: true, ..Picture::default() };
        let mut about = vec![self.load()];
        for subject in self.subjects {
            let total = &subject.found.total;
            let waits = if self.waits() {
                format!(", {} waited, at most {}", count(total.waited), self::about(subject.found.waits.longest()))
            } else {
                String::new()
            };
            about.push(format!(
                "{}: {} admitted{}, {} denied{waits}",
                subject.policy,
                count(total.admitted),
                percent(total.admitted, total.requests),
                count(total.denied)
            ));
        }
        picture.title = match self.subjects {
            [one] => one.policy.clone(),
            all => format!("{} policies under one load", all.len()),
        };
        picture.about = about;
        // Panels of the same kind are next to each other.
        let panels: Vec<Vec<Panel>> = self.subjects.iter().map(|subject| self.panels(subject)).collect();
        let kinds = panels.iter().map(Vec::len).max().unwrap_or(0);
        picture.panels = (0..kinds).flat_map(|i| panels.iter().filter_map(move |of| of.get(i).cloned())).collect();
        picture
    }

    fn panels(&self, subject: &Subject) -> Vec<Panel> {
        let Some(series) = subject.series() else { return Vec::new() };
        let time = Time::new(seconds(series.begins()), seconds(series.ends()));
        let layer = |name, tone, merged, value: &dyn Fn(&Bin) -> f64| Layer {
            name,
            tone,
            values: series.bins().map(value).collect(),
            merged,
        };
        // Rates are shown in the unit of the policy.
        let guarantees = || subject.bounds.iter().map(|bound| &bound.guarantee);
        let rate = guarantees()
            .filter(|guarantee| guarantee.window > 0)
            .min_by(|a, b| a.rate().unwrap_or(f64::MAX).total_cmp(&b.rate().unwrap_or(f64::MAX)));
        let units = [(86_400 * SECOND, "day"), (3_600 * SECOND, "hour"), (60 * SECOND, "minute"), (SECOND, "second")];
        // All policies use the same unit, so that they can be compared.
        let windows = self.subjects.iter().flat_map(|subject| &subject.bounds).map(|bound| bound.guarantee.window);
        let window = windows.max().unwrap_or(SECOND);
        let (per, unit) = units.into_iter().find(|(size, _)| *size <= window).unwrap_or((SECOND, "second"));
        let factor = per as f64 / series.length() as f64;
        let of = if self.subjects.len() > 1 { subject.policy.clone() } else { String::new() };
        // With several keys, the limit does not apply to their sum.
        let line = rate.filter(|_| !self.has_keys()).and_then(|guarantee| {
            let line = guarantee.rate()? * per as f64 / SECOND as f64;
            Some((line, format!("limit {}", crate::picture::value(line))))
        });
        let mut layers = vec![layer("admitted", Tone::Started, Merged::Mean, &|bin| bin.admitted as f64 * factor)];
        layers.push(layer("denied", Tone::Denied, Merged::Mean, &|bin| bin.denied as f64 * factor));
        let unit = format!("units per {unit}");
        let mut panels = vec![Panel { title: "requests", of: of.clone(), unit, time, layers, line }];
        if self.waits() {
            let layers = vec![layer("in line", Tone::Waiting, Merged::Most, &|bin| bin.waiting as f64)];
            panels.push(Panel {
                title: "in line",
                of: of.clone(),
                unit: "callers".to_owned(),
                time,
                layers,
                line: None,
            });
        }
        // A single policy is shown in units, if these are the units of its text.
        let units = match &guarantees().collect::<Vec<_>>()[..] {
            [one] if self.subjects.len() == 1 && !matches!(one.kind, Kind::Burst(_) | Kind::Queue) => Some(one.limit),
            _ => None,
        };
        let whole = units.map_or(100.0, |limit| limit as f64);
        let unit = if units.is_some() { "units" } else { "% of the limit" };
        let name = units.map_or("limit".to_owned(), |limit| format!("limit {}", crate::picture::value(limit as f64)));
        let layers = vec![layer("in use", Tone::Used, Merged::Most, &|bin| bin.used * whole)];
        panels.push(Panel {
            title: if self.has_keys() { "in use by the fullest key" } else { "in use" },
            of,
            unit: unit.to_owned(),
            time,
            layers,
            line: Some((whole, name)),
        });
        panels
    }
}
