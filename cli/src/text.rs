//! Text for people: tables that fit their terminal, durations, colours.

use crate::context::Context;
use ratatui::crossterm::terminal;
use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use workglow_limit::observe::{LimitSnapshot, Usage};

/// The style of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    Plain,
    Heading,
    Faint,
    Good,
    Near,
    Bad,
}

impl Look {
    fn code(self) -> &'static str {
        match self {
            Look::Plain => "",
            Look::Heading => "1",
            Look::Faint => "2",
            Look::Good => "32",
            Look::Near => "33",
            Look::Bad => "31",
        }
    }

    /// The text in this style, if standard output is coloured.
    pub fn of(self, text: &str, context: &Context) -> String {
        match self.code() {
            code if context.color && !code.is_empty() && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// Returns whether a character could change a terminal, or display a name as another one.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// An untrusted text on one line, safe for a terminal: control characters and those that reverse the direction are escaped.
pub fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        match is_unsafe(c) {
            true => clean.extend(c.escape_unicode()),
            false => clean.push(c),
        }
    }
    clean
}

/// JSON on one line, safe for a terminal: what [`clean`] escapes is a `\u` escape here. (All of these characters are below U+10000,
/// and in JSON they occur in strings only.)
pub fn json(value: &serde_json::Value) -> String {
    let plain = value.to_string();
    let mut safe = String::with_capacity(plain.len());
    for c in plain.chars() {
        match is_unsafe(c) {
            true => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => safe.push(c),
        }
    }
    safe
}

/// Truncates a text to a number of columns.
pub fn cut(text: &str, columns: usize) -> String {
    if text.width() <= columns {
        return text.to_owned();
    }
    let mut left = columns.saturating_sub(1);
    let fits = |c: &char| {
        let width = c.width().unwrap_or(0);
        let fits = width <= left;
        left = left.saturating_sub(width);
        fits
    };
    let beginning: String = text.chars().take_while(fits).collect();
    beginning + if columns > 0 { "…" } else { "" }
}

/// The columns of the terminal on standard output; `None` if it is not a terminal.
pub fn columns() -> Option<usize> {
    let terminal = std::io::stdout().is_terminal().then(terminal::size)?.ok()?;
    (terminal.0 > 0).then_some(usize::from(terminal.0))
}

/// One column of a table.
pub struct Column {
    pub title: &'static str,
    pub is_number: bool,
    /// The fewest columns to which it may be truncated; `None`: never truncated.
    pub least: Option<usize>,
    /// On a narrow terminal columns are dropped, the highest value first; 0: never dropped.
    pub spare: u8,
}

impl Column {
    pub const fn text(title: &'static str, least: usize) -> Column {
        Column { title, is_number: false, least: Some(least), spare: 0 }
    }

    pub const fn number(title: &'static str) -> Column {
        Column { title, is_number: true, least: None, spare: 0 }
    }

    /// Marks the column as one that may be dropped.
    pub const fn spare(self, order: u8) -> Column {
        Column { spare: order, ..self }
    }
}

/// The cells of one row, each with its style.
pub type Row = Vec<(String, Look)>;

const GAP: usize = 2;

/// The lines of a table, indented, at most `width` columns wide (`None`: unlimited). Optional columns that are empty are dropped.
pub fn table(columns: &[Column], rows: &[Row], indent: usize, width: Option<usize>, context: &Context) -> Vec<String> {
    let widest = |i: usize| rows.iter().map(|row| row[i].0.width()).max().unwrap_or(0);
    let mut shown: Vec<(usize, usize)> = (0..columns.len())
        .filter(|&i| columns[i].spare == 0 || widest(i) > 0)
        .map(|i| (i, widest(i).max(columns[i].title.width())))
        .collect();
    let total = |shown: &[(usize, usize)]| indent + shown.iter().map(|(_, width)| width + GAP).sum::<usize>() - GAP;
    if let Some(width) = width {
        let least = |shown: &[(usize, usize)]| {
            let cut = |&(i, width): &(usize, usize)| (i, columns[i].least.map_or(width, |least| least.min(width)));
            total(&shown.iter().map(cut).collect::<Vec<_>>())
        };
        while least(&shown) > width {
            let Some(at) = (0..shown.len()).max_by_key(|&at| columns[shown[at].0].spare) else { break };
            if columns[shown[at].0].spare == 0 {
                break;
            }
            shown.remove(at);
        }
        // The widest text is truncated first.
        while total(&shown) > width {
            let can_give = |(i, width): &&mut (usize, usize)| columns[*i].least.is_some_and(|least| *width > least);
            let Some((_, widest)) = shown.iter_mut().filter(can_give).max_by_key(|(_, width)| *width) else { break };
            *widest -= 1;
        }
    }
    let line = |cells: &dyn Fn(usize) -> (String, Look)| {
        let mut line = " ".repeat(indent);
        for (at, &(i, width)) in shown.iter().enumerate() {
            let (text, look) = cells(i);
            let text = cut(&text, width);
            let padding = " ".repeat(width - text.width());
            let colored = look.of(&text, context);
            let is_last = at + 1 == shown.len();
            match columns[i].is_number {
                true => line.extend([padding.as_str(), &colored]),
                false if is_last => line.push_str(&colored),
                false => line.extend([colored.as_str(), &padding]),
            }
            if !is_last {
                line.push_str(&" ".repeat(GAP));
            }
        }
        line.truncate(line.trim_end().len());
        line
    };
    let heading = line(&|i| (columns[i].title.to_owned(), Look::Faint));
    std::iter::once(heading).chain(rows.iter().map(|row| line(&|i| row[i].clone()))).collect()
}

const UNITS: [(&str, u128); 6] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// A duration as policies write it: `1m`, `90s`.
pub fn exact(time: Duration) -> String {
    let us = time.as_micros();
    let (unit, size) =
        UNITS.iter().find(|(_, size)| us.is_multiple_of(*size)).expect("every time is whole microseconds");
    if us == 0 { "0s".to_owned() } else { format!("{}{unit}", us / size) }
}

/// The length of a window, exact if that is short. A bucket's window is the time that it takes to fill, which may be a long number.
pub fn window(time: Duration) -> String {
    let exact = exact(time);
    if exact.len() > 4 { about(time) } else { exact }
}

/// A duration rounded up: `350ms`, `3.2s`, `4m05s`, `2d03h`.
pub fn about(time: Duration) -> String {
    let us = time.as_micros();
    let up = |unit: u128| us.div_ceil(unit);
    match us {
        0 => "0s".to_owned(),
        1..=999 => format!("{us}us"),
        1_000..=999_000 => format!("{}ms", up(1_000)),
        999_001..=9_900_000 => format!("{}.{}s", up(100_000) / 10, up(100_000) % 10),
        9_900_001..=59_000_000 => format!("{}s", up(1_000_000)),
        59_000_001..=3_599_000_000 => format!("{}m{:02}s", up(1_000_000) / 60, up(1_000_000) % 60),
        3_599_000_001..=86_340_000_000 => format!("{}h{:02}m", up(60_000_000) / 60, up(60_000_000) % 60),
        _ => format!("{}d{:02}h", up(3_600_000_000) / 24, up(3_600_000_000) % 24),
    }
}

/// A size: `28.0 KiB`.
pub fn bytes(size: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let step = (0..units.len() - 1).find(|&step| size < 1024 << (10 * step)).unwrap_or(units.len() - 1);
    match step {
        0 => format!("{size} B"),
        _ => format!("{:.1} {}", size as f64 / (1u64 << (10 * step)) as f64, units[step]),
    }
}

/// Parses a size: `512MiB`, `1GiB`, or bytes.
pub fn size(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let units = ["", "kib", "mib", "gib"];
    let step = units.iter().position(|known| unit.trim_start().eq_ignore_ascii_case(known));
    let size = step.zip(number.parse::<u64>().ok()).and_then(|(step, size)| size.checked_mul(1 << (10 * step)));
    size.ok_or_else(|| "expected a size such as 512MiB or 1GiB, or bytes".to_owned())
}

/// A count with thousands separators: `1,234,567`.
pub fn count(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `1 limit`, `3 limits`, `2 processes`, `2 changes of the policy`.
pub fn several(count: u64, what: &str) -> String {
    let (word, rest) = what.split_once(" of ").map_or((what, String::new()), |(word, of)| (word, format!(" of {of}")));
    let plural = if word.ends_with('s') { "es" } else { "s" };
    format!("{} {word}{}{rest}", self::count(count), if count == 1 { "" } else { plural })
}

/// The share in use, in percent, rounded down: 100 only if the limit is full.
pub fn percent(usage: &Usage) -> u64 {
    (u128::from(usage.used) * 100 / u128::from(usage.limit.max(1))) as u64
}

pub fn look_of(usage: &Usage, is_near: bool) -> Look {
    match usage.used >= usage.limit {
        true => Look::Bad,
        false if is_near => Look::Near,
        false => Look::Plain,
    }
}

/// Whether less than a fifth of the memory that a limit may have is left for further keys. The alert of docs/grafana has the same bound.
pub fn is_nearly_full(limit: &LimitSnapshot) -> bool {
    limit.bytes > 0 && limit.spare_bytes < limit.bytes / 4
}

/// The state of a limit in a few words.
pub fn state(limit: &LimitSnapshot) -> (String, Look) {
    if !limit.paused_for.is_zero() {
        (format!("paused {}", about(limit.paused_for)), Look::Bad)
    } else if !limit.retry_after.is_zero() {
        (format!("next in {}", about(limit.retry_after)), Look::Bad)
    } else if limit.is_near() {
        ("near".to_owned(), Look::Near)
    } else {
        (String::new(), Look::Plain)
    }
}

/// A time in UTC, as `2026-11-24 03:04:05Z`.
pub fn utc(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    // SAFETY: a zeroed `tm` is valid.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid, and no other thread has them.
    unsafe { libc::gmtime_r(&(seconds as _), &mut tm) };
    format!(
        "{:04}-{:02}-{:02} {:02}:{:02}:{:02}Z",
        tm.tm_year + 1900,
        tm.tm_mon + 1,
        tm.tm_mday,
        tm.tm_hour,
        tm.tm_min,
        tm.tm_sec
    )
}

/// A text wrapped to the width of the terminal, with each line indented.
pub fn wrapped(text: &str, indent: usize) -> Vec<String> {
    let width = columns().unwrap_or(100).clamp(40, 100) - indent;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is one");
        if !last.is_empty() && last.width() + 1 + word.width() > width {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines.into_iter().map(|line| " ".repeat(indent) + &line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_are_safe_for_a_terminal() {
        let hostile = "a\x1b[2J\r\n\u{9b}31m\u{202e}b\u{61c}";
        assert_eq!(clean(hostile), r"a\u{1b}[2J\u{d}\u{a}\u{9b}31m\u{202e}b\u{61c}");
        let text = json(&serde_json::json!({ "key": hostile }));
        assert!(text.chars().all(|c| !is_unsafe(c)), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["key"], hostile);
    }
}
