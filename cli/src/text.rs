//! Text for people: tables that fit their terminal, durations, colours.

use crate::context::Context;
use ratatui::crossterm::terminal;
use std::io::IsTerminal;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};
use workglow_limit::{LimitSnapshot, Usage};

/// What a text looks like.
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

    /// The text, coloured where it may be.
    pub fn of(self, text: &str, context: &Context) -> String {
        match self.code() {
            code if context.color && !code.is_empty() && !text.is_empty() => format!("\x1b[{code}m{text}\x1b[0m"),
            _ => text.to_owned(),
        }
    }
}

/// A text of others, on one line, which does nothing to a terminal.
pub fn clean(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    for c in text.chars() {
        // What turns the direction of writing would show another name than there is.
        match c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        {
            true => clean.extend(c.escape_unicode()),
            false => clean.push(c),
        }
    }
    clean
}

/// The text in so many columns, its end left out if it is longer.
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

/// The columns of the terminal that is written to; `None` where that is none.
pub fn columns() -> Option<usize> {
    let terminal = std::io::stdout().is_terminal().then(terminal::size)?.ok()?;
    (terminal.0 > 0).then_some(usize::from(terminal.0))
}

/// One column of a table.
pub struct Column {
    pub title: &'static str,
    pub is_number: bool,
    /// It may be cut to so many columns; `None`: never.
    pub least: Option<usize>,
    /// Where there is no room it is left out, the highest first; 0: never.
    pub spare: u8,
}

impl Column {
    pub const fn text(title: &'static str, least: usize) -> Column {
        Column { title, is_number: false, least: Some(least), spare: 0 }
    }

    pub const fn number(title: &'static str) -> Column {
        Column { title, is_number: true, least: None, spare: 0 }
    }

    /// May be left out.
    pub const fn spare(self, order: u8) -> Column {
        Column { spare: order, ..self }
    }
}

/// The cells of one row, with what they look like.
pub type Row = Vec<(String, Look)>;

const GAP: usize = 2;

/// The lines of a table, indented by so much, in so many columns (`None`: as many as it takes). Columns that say nothing are left out.
pub fn table(columns: &[Column], rows: &[Row], indent: usize, width: Option<usize>, context: &Context) -> Vec<String> {
    let widest = |i: usize| rows.iter().map(|row| row[i].0.width()).max().unwrap_or(0);
    let mut shown: Vec<(usize, usize)> = (0..columns.len())
        .filter(|&i| columns[i].spare == 0 || widest(i) > 0)
        .map(|i| (i, widest(i).max(columns[i].title.width())))
        .collect();
    let total = |shown: &[(usize, usize)]| indent + shown.iter().map(|(_, width)| width + GAP).sum::<usize>() - GAP;
    if let Some(room) = width {
        let least = |shown: &[(usize, usize)]| {
            let cut = |&(i, width): &(usize, usize)| (i, columns[i].least.map_or(width, |least| least.min(width)));
            total(&shown.iter().map(cut).collect::<Vec<_>>())
        };
        while least(&shown) > room {
            let Some(at) = (0..shown.len()).max_by_key(|&at| columns[shown[at].0].spare) else { break };
            if columns[shown[at].0].spare == 0 {
                break;
            }
            shown.remove(at);
        }
        // The widest text gives way first.
        while total(&shown) > room {
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

/// A time as policies' texts write it: `1m`, `90s`.
pub fn exact(time: Duration) -> String {
    let us = time.as_micros();
    let (unit, size) =
        UNITS.iter().find(|(_, size)| us.is_multiple_of(*size)).expect("every time is whole microseconds");
    if us == 0 { "0s".to_owned() } else { format!("{}{unit}", us / size) }
}

/// The time of a window, exact unless that is long: that of a bucket, which is as long as it takes to fill, may be.
pub fn window(time: Duration) -> String {
    let exact = exact(time);
    if exact.len() > 4 { about(time) } else { exact }
}

/// A time for people, rounded up: `350ms`, `3.2s`, `4m05s`, `2d3h`.
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

/// A count with its digits in groups of three: `1,234,567`.
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

/// How full something is, in percent; whole only if it is full.
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

/// What keeps a limit from starting more, in a few words.
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

/// The time of day in UTC, as `2026-11-24 03:04:05Z`.
pub fn utc(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() as libc::time_t;
    // SAFETY: a zeroed `tm` is a valid place for the answer.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are valid places; no other thread sees them.
    unsafe { libc::gmtime_r(&seconds, &mut tm) };
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

/// A text in lines that are indented by so much, as wide as the terminal.
pub fn wrapped(text: &str, indent: usize) -> Vec<String> {
    let room = columns().unwrap_or(100).clamp(40, 100) - indent;
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("there is one");
        if !last.is_empty() && last.width() + 1 + word.width() > room {
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
