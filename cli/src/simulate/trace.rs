//! A recorded trace: CSV or JSON lines. What parts of the policy are charged is in columns of their own.

use super::request::{Keys, PartCharge, Request, SECOND, Source};
use crate::charges;
use crate::failure::Failure;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::time::Duration;
use workglow_limit::admin::parse_time;

/// The columns of a trace. `at` is another name of `time`; `weight.PART` and `key.PART` are those of a part of the policy.
const COLUMNS: [(&str, Column); 5] = [
    ("time", Column::Time),
    ("at", Column::Time),
    ("key", Column::Key),
    ("weight", Column::Weight),
    ("duration", Column::Duration),
];
const EXPECTED: &str =
    "a header with time, and optionally key, weight and duration, and key.PART and weight.PART of parts of the policy";

/// The latest time in seconds. A later one is in milliseconds by mistake.
const LATEST: f64 = 1e10;

/// The longest trace that a store's clock allows.
const MAX_TIME: u64 = 10 * 366 * 86_400 * SECOND;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Column {
    Time,
    Key,
    Weight,
    Duration,
    /// The key of the part with this index.
    KeyOf(u32),
    WeightOf(u32),
}

impl Column {
    /// The column of this name. Case does not matter, except in names of parts.
    fn of(name: &str, keys: &mut Keys) -> Option<Column> {
        if let Some((_, column)) = COLUMNS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)) {
            return Some(*column);
        }
        let (of, part) = name.split_once('.').filter(|(_, part)| !part.is_empty())?;
        match &*of.to_ascii_lowercase() {
            "key" => Some(Column::KeyOf(keys.part(part))),
            "weight" => Some(Column::WeightOf(keys.part(part))),
            _ => None,
        }
    }
}

/// The defaults of a line.
#[derive(Debug, Clone, Copy)]
pub struct Defaults {
    pub weight: u64,
    pub duration: Option<u64>,
}

/// A trace that is being read.
pub struct Trace {
    name: String,
    lines: Lines,
    defaults: Defaults,
    /// The time of the first line.
    began: Option<u64>,
    /// The time of the last line.
    last: u64,
}

enum Lines {
    Csv { reader: Box<csv::Reader<Box<dyn Read>>>, record: csv::StringRecord, columns: Vec<Column> },
    Json { reader: Box<dyn BufRead>, line: String, number: u64 },
    Sorted(std::vec::IntoIter<Request>),
}

/// The fields of a line, without defaults.
#[derive(Debug, Default)]
struct Fields<'l> {
    at: Option<u64>,
    key: &'l str,
    weight: Option<u64>,
    duration: Option<u64>,
    /// What parts are charged, by their indices.
    parts: BTreeMap<u32, (Option<&'l str>, Option<u64>)>,
}

impl Trace {
    /// Opens a file, or standard input (`-`).
    pub fn open(path: &str, defaults: Defaults, keys: &mut Keys) -> Result<Trace, Failure> {
        let (name, input): (_, Box<dyn Read>) = match path {
            "-" => ("standard input".to_owned(), Box::new(io::stdin())),
            _ => match File::open(path) {
                Ok(file) => (path.to_owned(), Box::new(file)),
                Err(error) => return Err(Failure::usage(format!("trace {path}: {error}"))),
            },
        };
        let mut input = BufReader::with_capacity(1 << 16, input);
        let is_json = match input.fill_buf() {
            Ok(begin) => begin.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'{'),
            Err(error) => return Err(Failure::usage(format!("trace {name}: {error}"))),
        };
        let lines = if is_json {
            Lines::Json { reader: Box::new(input), line: String::new(), number: 0 }
        } else {
            let mut reader = csv::ReaderBuilder::new()
                .trim(csv::Trim::All)
                .comment(Some(b'#'))
                .from_reader(Box::new(input) as Box<dyn Read>);
            let columns = columns(&mut reader, keys).map_err(|error| Failure::usage(format!("trace {name}{error}")))?;
            Lines::Csv { reader: Box::new(reader), record: csv::StringRecord::new(), columns }
        };
        Ok(Trace { name, lines, defaults, began: None, last: 0 })
    }

    /// Reads the whole trace and sorts it by time.
    pub fn sorted(mut self, keys: &mut Keys) -> Result<Trace, Failure> {
        let mut all = Vec::new();
        while let Some(request) = self.read(keys)? {
            all.push(request);
        }
        all.sort_by_key(|request| request.at);
        Ok(Trace { lines: Lines::Sorted(all.into_iter()), ..self })
    }

    fn wrong(&self, line: u64, what: impl std::fmt::Display) -> Failure {
        Failure::usage(format!("trace {}, line {line}: {what}", self.name))
    }

    /// Reads the next line. Does not check the order.
    fn read(&mut self, keys: &mut Keys) -> Result<Option<Request>, Failure> {
        let (defaults, name) = (self.defaults, &self.name);
        let wrong = |line: u64, what: String| Failure::usage(format!("trace {name}, line {line}: {what}"));
        let request = |line: u64, fields: Fields, keys: &mut Keys| {
            let at = fields.at.ok_or_else(|| wrong(line, "the time is missing".to_owned()))?;
            let weight = fields.weight.unwrap_or(defaults.weight);
            let duration = fields.duration.or(defaults.duration);
            let key = keys.id(fields.key, line);
            let charge = |(part, (key, weight)): (u32, (Option<&str>, Option<u64>))| {
                let key = key.map(|key| keys.id(key, line));
                PartCharge { part, key, weight }
            };
            let charges = fields.parts.into_iter().map(charge).collect();
            Ok(Some(Request { line, at, key, weight, duration, charges }))
        };
        match &mut self.lines {
            Lines::Sorted(all) => Ok(all.next()),
            Lines::Csv { reader, record, columns } => {
                match reader.read_record(record) {
                    Ok(false) => return Ok(None),
                    Ok(true) => {}
                    Err(error) => return Err(Failure::usage(format!("trace {name}{}", csv_error(&error)))),
                }
                let line = record.position().map_or(0, csv::Position::line);
                let mut fields = Fields::default();
                for (column, text) in columns.iter().zip(record.iter()).filter(|(_, text)| !text.is_empty()) {
                    fields.set(*column, text, keys).map_err(|what| wrong(line, what))?;
                }
                request(line, fields, keys)
            }
            Lines::Json { reader, line, number } => loop {
                line.clear();
                *number += 1;
                match reader.read_line(line) {
                    Ok(0) => return Ok(None),
                    Ok(_) if line.trim().is_empty() => {}
                    Ok(_) => {
                        let value = serde_json::from_str::<Value>(line)
                            .map_err(|error| wrong(*number, format!("invalid JSON: {error}")))?;
                        return request(*number, fields(&value, keys).map_err(|what| wrong(*number, what))?, keys);
                    }
                    Err(error) => return Err(wrong(*number, error.to_string())),
                }
            },
        }
    }
}

impl Source for Trace {
    fn next(&mut self, keys: &mut Keys) -> Result<Option<Request>, Failure> {
        let Some(request) = self.read(keys)? else { return Ok(None) };
        let Request { line, at, .. } = request;
        if at < self.last {
            let what = format!("the time {} is before that of the previous line, {}", seconds(at), seconds(self.last));
            return Err(self.wrong(line, what).hint("sort the trace by time, or pass --sort"));
        }
        let began = *self.began.get_or_insert(at);
        if at - began > MAX_TIME {
            return Err(self.wrong(line, "the time is more than ten years after that of the first line"));
        }
        self.last = at;
        Ok(Some(request))
    }
}

fn columns(reader: &mut csv::Reader<Box<dyn Read>>, keys: &mut Keys) -> Result<Vec<Column>, String> {
    let header = reader.headers().map_err(|error| csv_error(&error))?;
    if header.is_empty() {
        return Err(format!(" is empty: expected {EXPECTED}"));
    }
    let mut columns = Vec::new();
    for name in header {
        let Some(column) = Column::of(name.trim_start_matches('\u{feff}'), keys) else {
            return Err(format!(", line 1: unknown column \"{name}\": expected {EXPECTED}"));
        };
        if columns.contains(&column) {
            return Err(format!(", line 1: duplicate column \"{name}\""));
        }
        columns.push(column);
    }
    if !columns.contains(&Column::Time) {
        return Err(format!(", line 1: the column time is missing: expected {EXPECTED}"));
    }
    Ok(columns)
}

fn csv_error(error: &csv::Error) -> String {
    let at = error.position().map_or(String::new(), |position| format!(", line {}", position.line()));
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("{at}: {len} fields: expected {expected_len}, as in the header")
        }
        csv::ErrorKind::Utf8 { .. } => format!("{at}: invalid UTF-8"),
        csv::ErrorKind::Io(error) => format!(": {error}"),
        _ => format!("{at}: {error}"),
    }
}

impl<'l> Fields<'l> {
    fn set(&mut self, column: Column, text: &'l str, keys: &Keys) -> Result<(), String> {
        match column {
            Column::Key => self.key = text,
            Column::KeyOf(part) => self.parts.entry(part).or_default().0 = Some(text),
            _ => self.set_number(column, text, keys)?,
        }
        Ok(())
    }

    /// Sets a field that is not a key.
    fn set_number(&mut self, column: Column, text: &str, keys: &Keys) -> Result<(), String> {
        match column {
            Column::Key | Column::KeyOf(_) => {}
            Column::Time => self.at = Some(time(text)?),
            Column::Weight => self.weight = Some(weight("weight", text)?),
            Column::Duration => self.duration = Some(duration(text)?),
            Column::WeightOf(part) => {
                let weight = weight(&format!("weight.{}", keys.part_name(part)), text)?;
                self.parts.entry(part).or_default().1 = Some(weight);
            }
        }
        Ok(())
    }
}

/// The fields of a JSON object.
fn fields<'l>(value: &'l Value, keys: &mut Keys) -> Result<Fields<'l>, String> {
    let Value::Object(members) = value else { return Err("expected an object such as {\"at\": 0.5}".to_owned()) };
    let mut fields = Fields::default();
    for (name, value) in members.iter().filter(|(_, value)| !value.is_null()) {
        let Some(column) = Column::of(name, keys) else {
            let expected = "at, key, weight or duration, or key.PART or weight.PART of a part of the policy";
            return Err(format!("unknown field \"{name}\": expected {expected}"));
        };
        match (column, value) {
            (_, Value::String(text)) => fields.set(column, text, keys)?,
            (Column::Key | Column::KeyOf(_), other) => return Err(format!("{name} is {other}: expected a string")),
            (_, other) => fields.set_number(column, &other.to_string(), keys)?,
        }
    }
    Ok(fields)
}

fn seconds(us: u64) -> f64 {
    us as f64 / SECOND as f64
}

fn us(seconds: f64) -> u64 {
    (seconds * SECOND as f64).round() as u64
}

fn weight(name: &str, text: &str) -> Result<u64, String> {
    charges::weight(text).ok_or_else(|| format!("{name} is \"{text}\": expected a whole number from 1"))
}

fn duration(text: &str) -> Result<u64, String> {
    let parsed = text.parse::<f64>().ok().filter(|seconds| (0.0..=LATEST).contains(seconds)).map(us);
    let parsed = parsed.or_else(|| parse_time(text).ok().map(|time: Duration| time.as_micros() as u64));
    parsed.ok_or_else(|| format!("duration is \"{text}\": expected seconds, such as 0.25, or a time such as 250ms"))
}

/// Parses seconds or RFC 3339 to microseconds.
fn time(text: &str) -> Result<u64, String> {
    if let Ok(seconds) = text.parse::<f64>() {
        return match (0.0..=LATEST).contains(&seconds) {
            true => Ok(us(seconds)),
            false if seconds > LATEST => {
                Err(format!("time is {text}: expected seconds, not milliseconds or less (at most {LATEST})"))
            }
            false => Err(format!("time is {text}: expected 0 or more seconds")),
        };
    }
    rfc3339(text).ok_or_else(|| {
        format!("time is \"{text}\": expected seconds, such as 12.5, or RFC 3339, such as 2026-11-24T03:04:05Z")
    })
}

/// Parses `2026-11-24T03:04:05.678+01:00` to microseconds since 1970. Earlier times are invalid.
fn rfc3339(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = text.get(from..to)?;
        digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let is = |at: usize, signs: &[u8]| text.as_bytes().get(at).is_some_and(|byte| signs.contains(byte));
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let days = days(year, month, day)?;
    let has_signs = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    // A leap second counts as the second after it.
    if !has_signs || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let (mut at, mut fraction) = (19, 0);
    if is(at, b".,") {
        let digits = text[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
        let six: String = text[at + 1..].chars().take(digits.min(6)).collect();
        fraction = format!("{six:0<6}").parse().ok().filter(|_| digits > 0)?;
        at += 1 + digits;
    }
    let offset = match &text[at..] {
        "Z" | "z" => 0,
        _ if is(at, b"+-") && is(at + 3, b":") && text.len() == at + 6 => {
            let minutes = number(at + 1, at + 3)? * 60 + number(at + 4, at + 6)?;
            if is(at, b"-") { -minutes } else { minutes }
        }
        _ => return None,
    };
    let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second - offset * 60;
    u64::try_from(seconds * SECOND as i64 + fraction).ok()
}

/// The number of days from 1970 to a Gregorian date.
fn days(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let lengths = [31, 28 + i64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = lengths.get(..usize::try_from(month - 1).ok()?)?;
    let length = lengths.get(before.len())?;
    let leaps = |year: i64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    (1..=*length).contains(&day).then(|| years + before.iter().sum::<i64>() + day - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_seconds_or_rfc_3339() {
        for (text, expected) in [
            ("12.5", 12_500_000),
            ("1764000000.123456", 1_764_000_000_123_456),
            ("1970-01-01T00:00:00Z", 0),
            ("2026-11-24T03:04:05.678Z", 1_795_489_445_678_000),
            ("2026-11-24 04:04:05.6789999+01:00", 1_795_489_445_678_999),
            ("2000-02-29t23:59:60z", 951_868_800_000_000),
        ] {
            assert_eq!(time(text), Ok(expected), "{text}");
        }
        let bad = ["", "-1", "1764000000123", "NaN", "inf", "now", "2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z"];
        for text in bad.into_iter().chain(["2026-11-24T03:04:05", "2026-11-24T03:04:05.Z", "2026-11-24T24:00:00Z"]) {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
