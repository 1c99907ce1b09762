//! The text form of policies.
//!
//! ```text
//! policies  = part { "+" part }
//! part      = [ name ":" ] policy [ "shared" [ count ] ]
//! policy    = windows [ backoff ] | rate ( "burst" count | "queue" count | "fixed" | "counter" | "spaced" [ "strictly" ] )
//!           | count "concurrent" [ what ] [ "lease" time ] [ "cooldown" time ] | "delay" time
//! windows   = rate { "+" rate }
//! rate      = count [ what ] ( "/" | "per" ) time
//! backoff   = "backoff" time "x" number "max" time [ "scaled" | "full" | "equal" | "none" ]
//! time      = [ count ] ( "us" | "ms" | "s" | "m" | "h" | "d" | a word for it such as "sec", "min", "minutes" )
//! what      = "requests" | "calls" | "starts" | "jobs" | "tasks" | "executions" | "units" | "tokens", or one of them
//! ```
//!
//! `shared`: tenants share the limit. A count behind it is the share of the one tenant to which a policy applies. The
//! store keeps that, and programs do not declare it.
//!
//! A name is a letter, and then letters, digits, `-` and `_`. Windows with the same name, or without one, form one rate limit.
//!
//! Case does not matter, except in names, and that `M` is rejected: some read it as a month. Policies are always written in the
//! shortest form.

use super::named::{NamedPolicy, check_part, name_at};
use super::{Backoff, Jitter, Policy, Shape, Share, Spacing};
use crate::algorithm::bucket::Bucket;
use crate::algorithm::log::Window;
use crate::error::{Error, Result};
use crate::time::{self, Tick};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

const UNITS: [(&str, Tick); 6] =
    [("d", 86_400_000_000), ("h", 3_600_000_000), ("m", 60_000_000), ("s", 1_000_000), ("ms", 1_000), ("us", 1)];

/// Synonyms of the units.
const WORDS: [(&str, &[&str]); 6] = [
    ("d", &["day", "days"]),
    ("h", &["hr", "hrs", "hour", "hours"]),
    ("m", &["min", "mins", "minute", "minutes"]),
    ("s", &["sec", "secs", "second", "seconds"]),
    ("ms", &["millisecond", "milliseconds"]),
    ("us", &["microsecond", "microseconds"]),
];

/// Optional nouns for the counted thing. They have no effect.
const WHAT: [&str; 8] = ["request", "call", "start", "job", "task", "execution", "unit", "token"];

const JITTERS: [(&str, Jitter); 4] =
    [("scaled", Jitter::Scaled), ("full", Jitter::Full), ("equal", Jitter::Equal), ("none", Jitter::None)];

/// A time in the largest unit that divides it.
struct Time(Tick);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fits = |&&(_, size): &&(&str, Tick)| self.0.is_multiple_of(size);
        let (unit, size) = UNITS.iter().find(fits).expect("every time is whole microseconds");
        write!(f, "{}{unit}", self.0 / size)
    }
}

/// `100/1m`, `100/1m + 5/250ms`, `5 concurrent`, …
impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        match self.share() {
            0 => Ok(()),
            1 => write!(f, " shared"),
            share => write!(f, " shared {share}"),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shape::Rate(windows, backoff) => {
                for (i, Window { limit, length }) in windows.as_slice().iter().enumerate() {
                    write!(f, "{}{limit}/{}", if i > 0 { " + " } else { "" }, Time(*length))?;
                }
                let Backoff { initial, multiplier, max, jitter } = *backoff;
                if *backoff == Backoff::default() {
                    return Ok(());
                }
                let (name, _) = JITTERS.iter().find(|(_, j)| *j == jitter).expect("every jitter has a name");
                let multiplier = multiplier as f64 / 1e3;
                write!(f, " backoff {} x{multiplier} max {} {name}", Time(initial), Time(max))
            }
            Shape::Concurrency { max, lease, cooldown, .. } => {
                write!(f, "{max} concurrent")?;
                if *lease != Tick::MAX {
                    write!(f, " lease {}", Time(*lease))?;
                }
                if *cooldown != 0 { write!(f, " cooldown {}", Time(*cooldown)) } else { Ok(()) }
            }
            Shape::Delay(windows) => write!(f, "delay {}", Time(windows.longest())),
            Shape::EvenlySpaced(Spacing { max, window, is_adaptive, .. }) => {
                write!(f, "{max}/{} spaced{}", Time(*window), if *is_adaptive { "" } else { " strictly" })
            }
            Shape::Bucket(Bucket { rate, period, size, is_leaky, .. }) => {
                write!(f, "{rate}/{} {} {size}", Time(*period), if *is_leaky { "queue" } else { "burst" })
            }
            Shape::Counter { window: Window { limit, length }, is_smooth } => {
                write!(f, "{limit}/{} {}", Time(*length), if *is_smooth { "counter" } else { "fixed" })
            }
        }
    }
}

/// Reads the text that [`Policy`] writes.
impl FromStr for Policy {
    type Err = Error;

    fn from_str(text: &str) -> Result<Policy> {
        match parse_all(text)?.as_slice() {
            [one] => Ok(one.policy),
            all => {
                let expected = format!("one policy, not {}: \"{}\" and others", all.len(), all[0]);
                Err(Error::invalid("policy", format_args!("\"{text}\""), expected))
            }
        }
    }
}

/// Parses the policies of a text such as `100/1m + 5/1s + 5 concurrent`. A start needs free units in all of them. Plain
/// windows form one rate limit.
///
/// # Errors
/// [`Error::InvalidArgument`], with the position of the problem and the expected text.
pub fn parse_all(text: &str) -> Result<Vec<NamedPolicy>> {
    type Name = Option<Arc<str>>;
    type Rate = (usize, Name, Vec<(u64, Duration)>);
    let mut reader = Reader { text, at: 0 };
    let mut policies: Vec<(usize, NamedPolicy)> = Vec::new();
    // The windows of rate limits that may have more, by name.
    let mut rates: Vec<Rate> = Vec::new();
    loop {
        let name: Name = reader.name()?.map(Arc::from);
        let began = reader.begin();
        match reader.policy()? {
            Read::Window(limit, window, end) => {
                let at = rates.iter().position(|(_, other, _)| *other == name).unwrap_or(rates.len());
                if at == rates.len() {
                    rates.push((began, name.clone(), Vec::new()));
                }
                rates[at].2.push((limit, window));
                if let Some(End { backoff, share }) = end {
                    let (began, name, all) = rates.remove(at);
                    let rate = Policy::rate_in(&all).and_then(|rate| rate.with_backoff(backoff));
                    let policy = reader.checked(began, rate)?;
                    let policy = share.map_or(Ok(policy), |share| policy.with_share(share))?;
                    policies.push((began, NamedPolicy { name, policy }));
                }
            }
            Read::Policy(policy) => policies.push((began, NamedPolicy { name, policy })),
        }
        match reader.peek() {
            "" => break,
            "+" => drop(reader.next()),
            _ => return Err(reader.wrong("+ or the end")),
        }
    }
    for (began, name, all) in rates {
        policies.push((began, NamedPolicy { name, policy: reader.checked(began, Policy::rate_in(&all))? }));
    }
    policies.sort_by_key(|(began, _)| *began);
    for (i, (began, part)) in policies.iter().enumerate() {
        if part.name.is_some() && policies[..i].iter().any(|(_, other)| other.name == part.name) {
            let at = text[..*began].chars().count() + 1;
            let expected = format!("another name for the policy at character {at}, which is not a further window");
            return Err(Error::invalid("policy", format_args!("\"{text}\""), expected));
        }
    }
    Ok(policies.into_iter().map(|(_, policy)| policy).collect())
}

/// Parses the same, without the names of parts.
///
/// # Errors
/// [`Error::InvalidArgument`], with the position of the problem and the expected text.
pub fn parse_policies(text: &str) -> Result<Vec<Policy>> {
    Ok(parse_all(text)?.into_iter().map(|part| part.policy).collect())
}

/// Parses a time such as `90s` or `5 minutes`.
///
/// # Errors
/// [`Error::InvalidArgument`], with the position of the problem.
pub fn parse_time(text: &str) -> Result<Duration> {
    let mut reader = Reader { text, at: 0 };
    let time = reader.time()?;
    if reader.peek().is_empty() { Ok(time) } else { Err(reader.wrong("the end")) }
}

/// One part of a text.
enum Read {
    /// A window, which may be one of several of a rate limit, and what ends that limit.
    Window(u64, Duration, Option<End>),
    Policy(Policy),
}

/// What may follow the last window of a rate limit.
struct End {
    backoff: Backoff,
    share: Option<Share>,
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Reader<'t> {
    /// Skips white space and returns where the next word begins.
    fn begin(&mut self) -> usize {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
        self.at
    }

    /// Returns the next number, word or sign; empty at the end.
    fn peek(&mut self) -> &'t str {
        self.begin();
        let rest = &self.text[self.at..];
        let Some(first) = rest.chars().next() else { return "" };
        let class = |c: char| match c {
            '0'..='9' | '.' => 1,
            c if c.is_alphabetic() || c == '_' => 2,
            _ => 3,
        };
        let end = match class(first) {
            3 => first.len_utf8(),
            kind => rest.find(|c| class(c) != kind).unwrap_or(rest.len()),
        };
        &rest[..end]
    }

    fn next(&mut self) -> &'t str {
        let word = self.peek();
        self.at += word.len();
        word
    }

    fn is_next(&mut self, word: &str) -> bool {
        let is = self.peek().eq_ignore_ascii_case(word);
        if is {
            self.next();
        }
        is
    }

    /// Returns the error for the next word.
    fn wrong(&mut self, expected: &str) -> Error {
        let (found, at) = (self.peek(), self.text[..self.at].chars().count() + 1);
        let found = if found.is_empty() { "the end".to_owned() } else { format!("\"{found}\"") };
        let expected = format!("{expected} at character {at}, not {found}");
        Error::invalid("policy", format_args!("\"{}\"", self.text), expected)
    }

    /// Maps an error of a number that was read at `began` to its position.
    fn checked<T>(&self, began: usize, made: Result<T>) -> Result<T> {
        self.checked_each(|_| began, made)
    }

    /// The same, where each parameter has its own position.
    fn checked_each<T>(&self, began: impl Fn(&str) -> usize, made: Result<T>) -> Result<T> {
        made.map_err(|error| match error {
            Error::InvalidArgument { parameter, value, expected } => {
                let at = self.text[..began(parameter)].chars().count() + 1;
                let expected = format!("{parameter} at character {at} to be {expected}, not {value}");
                Error::invalid("policy", format_args!("\"{}\"", self.text), expected)
            }
            other => other,
        })
    }

    /// Reads the name of the next policy, if it has one.
    fn name(&mut self) -> Result<Option<&'t str>> {
        let began = self.begin();
        let Some((name, length)) = name_at(&self.text[began..]) else { return Ok(None) };
        self.checked(began, check_part(name))?;
        self.at += length;
        Ok(Some(name))
    }

    fn count(&mut self) -> Result<u64> {
        match self.peek().parse() {
            Ok(count) => {
                self.next();
                Ok(count)
            }
            Err(_) => Err(self.wrong("a whole number")),
        }
    }

    /// Skips the noun of the counted thing, if present.
    fn what(&mut self) {
        let word = self.peek().to_ascii_lowercase();
        if WHAT.contains(&word.strip_suffix('s').unwrap_or(&word)) {
            self.next();
        }
    }

    fn time(&mut self) -> Result<Duration> {
        let count = if self.peek().starts_with(|c: char| c.is_ascii_digit()) { self.count()? } else { 1 };
        let Some(size) = self.unit()? else {
            return Err(self.wrong("a unit of time (us, ms, s, m, h, d, or a word such as \"minutes\")"));
        };
        match count.checked_mul(size) {
            Some(ticks) => {
                self.next();
                Ok(time::from_ticks(ticks))
            }
            None => Err(self.wrong("a time of at most 366 days")),
        }
    }

    /// Reads the next word as a unit of time.
    fn unit(&mut self) -> Result<Option<Tick>> {
        let word = self.peek();
        let lower = word.to_ascii_lowercase();
        if word == "M" || ["mo", "month", "months", "y", "year", "years"].contains(&&*lower) {
            return Err(self.wrong("a unit of one length (such as 1m or \"minute\", 30d or \"30 days\")"));
        }
        let name = WORDS.iter().find(|(_, words)| words.contains(&&*lower)).map_or(&*lower, |(name, _)| name);
        Ok(UNITS.iter().find(|(unit, _)| *unit == name).map(|(_, size)| *size))
    }

    /// Reads whether tenants share the limit, and with which share.
    fn share(&mut self) -> Result<Option<Share>> {
        if !self.is_next("shared") {
            return Ok(None);
        }
        if !self.peek().starts_with(|c: char| c.is_ascii_digit()) {
            return Ok(Some(1));
        }
        let (at, share) = (self.begin(), self.count()?);
        self.checked(at, super::check_share(share))?;
        Ok(Some(share as Share))
    }

    fn policy(&mut self) -> Result<Read> {
        let began = self.begin();
        let read = self.unshared_policy()?;
        let Read::Policy(policy) = read else { return Ok(read) };
        let Some(share) = self.share()? else { return Ok(read) };
        self.checked(began, policy.with_share(share)).map(Read::Policy)
    }

    fn unshared_policy(&mut self) -> Result<Read> {
        let began = self.begin();
        if self.is_next("delay") {
            let delay = self.time()?;
            return self.checked(began, Policy::delay(delay)).map(Read::Policy);
        }
        if !self.peek().starts_with(|c: char| c.is_ascii_digit()) {
            return Err(
                self.wrong("a policy (such as 100/1m, \"5 per second\", 10/1s burst 20, 5 concurrent or delay 50ms)")
            );
        }
        let count = self.count()?;
        self.what();
        if self.is_next("concurrent") {
            self.what();
            let mut policy = self.checked(began, Policy::concurrency(count))?;
            if self.is_next("lease") {
                let (at, lease) = (self.begin(), self.time()?);
                policy = self.checked(at, policy.with_lease(lease))?;
            }
            if self.is_next("cooldown") {
                let (at, cooldown) = (self.begin(), self.time()?);
                policy = self.checked(at, policy.with_cooldown(cooldown))?;
            }
            return Ok(Read::Policy(policy));
        }
        if !self.is_next("/") && !self.is_next("per") {
            return Err(self.wrong("/, per or concurrent (such as 100/1m, \"5 per second\" or 5 concurrent)"));
        }
        let timed = self.begin();
        let time = self.time()?;
        let at = self.begin();
        let mut sized = began;
        let policy = match &*self.peek().to_ascii_lowercase() {
            "burst" => {
                self.next();
                sized = self.begin();
                Policy::token_bucket(count, time, self.count()?)
            }
            "queue" => {
                self.next();
                sized = self.begin();
                Policy::leaky_bucket(count, time, self.count()?)
            }
            "fixed" => {
                self.next();
                Policy::fixed_window(count, time)
            }
            "counter" => {
                self.next();
                Policy::sliding_window_counter(count, time)
            }
            "spaced" => {
                self.next();
                Policy::evenly_spaced(count, time, !self.is_next("strictly"))
            }
            "backoff" => {
                self.next();
                let backoff = self.backoff()?;
                let backoff = self.checked(at, backoff)?;
                return Ok(Read::Window(count, time, Some(End { backoff, share: self.share()? })));
            }
            word @ ("" | "+" | "shared") => {
                // Reports a number out of range here, not where all windows are combined.
                self.checked_each(|of| if of == "max_executions" { began } else { timed }, Policy::rate(count, time))?;
                let is_end = word == "shared";
                let backoff = Backoff::default();
                let end = if is_end { Some(End { backoff, share: self.share()? }) } else { None };
                return Ok(Read::Window(count, time, end));
            }
            _ => return Err(self.wrong("burst, queue, fixed, counter, spaced, backoff, shared, + or the end")),
        };
        let position = |parameter: &str| match parameter {
            "max_executions" | "rate" => began,
            "burst" | "queue" => sized,
            _ => timed,
        };
        self.checked_each(position, policy).map(Read::Policy)
    }

    fn backoff(&mut self) -> Result<Result<Backoff>> {
        let initial = self.time()?;
        if !self.is_next("x") {
            return Err(self.wrong("x and a multiplier"));
        }
        let Ok(multiplier) = self.peek().parse::<f64>() else {
            return Err(self.wrong("a multiplier, such as 2 or 1.5"));
        };
        self.next();
        if !self.is_next("max") {
            return Err(self.wrong("max and the longest backoff"));
        }
        let max = self.time()?;
        let word = self.peek();
        let jitter = match JITTERS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)) {
            Some((_, jitter)) => {
                self.next();
                *jitter
            }
            None => Jitter::Scaled,
        };
        Ok(Backoff::new(initial, multiplier, max, jitter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHRASES: [(&str, &str); 4] = [
        ("{POLICY}", "a policy (such as 100/1m, \"5 per second\", 10/1s burst 20, 5 concurrent or delay 50ms)"),
        ("{PER}", "/, per or concurrent (such as 100/1m, \"5 per second\" or 5 concurrent)"),
        ("{UNIT}", "a unit of time (us, ms, s, m, h, d, or a word such as \"minutes\")"),
        ("{ONE}", "a unit of one length (such as 1m or \"minute\", 30d or \"30 days\")"),
    ];

    fn second() -> Duration {
        Duration::from_secs(1)
    }

    #[test]
    fn a_policy_is_written_in_its_shortest_form() {
        let text = |n, us| Policy::rate(n, Duration::from_micros(us)).unwrap().to_string();
        assert_eq!(text(100, 60_000_000), "100/1m");
        assert_eq!(text(10, 500_000), "10/500ms");
        assert_eq!(text(7, 90_000_000), "7/90s");
        assert_eq!(text(1, 366 * 86_400_000_000), "1/366d");
        for same in ["5 concurrent", "5 concurrent lease 1m", "delay 50ms", "10/1s burst 20", "10/1s queue 100"] {
            assert_eq!(same.parse::<Policy>().unwrap().to_string(), same);
        }
        for same in ["60/1m spaced", "60/1m spaced strictly", "100/1m fixed", "100/1m counter"] {
            assert_eq!(same.parse::<Policy>().unwrap().to_string(), same);
        }
        let backoff = "100/1m + 5/1s backoff 2s x1.5 max 1m equal";
        assert_eq!(backoff.parse::<Policy>().unwrap().to_string(), backoff);
        assert_eq!("100/m + 5 / 10 s".parse(), Policy::rate_in(&[(100, 60 * second()), (5, 10 * second())]));
    }

    #[test]
    fn a_policy_may_be_shared_by_tenants() {
        for same in [
            "500/1m shared",
            "100/1m + 5/1s shared",
            "3/1m backoff 1s x2 max 10m full shared",
            "10/1s burst 20 shared",
            "5 concurrent lease 1m cooldown 1s shared",
            "delay 50ms shared",
            "60/1m spaced strictly shared",
            "100/1m counter shared 3",
        ] {
            let policy = same.parse::<Policy>().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!((policy.to_string(), policy.is_shared()), (same.to_owned(), true));
        }
        let all = parse_all("tokens: 9/1s Shared + tokens: 5/1s burst 7").unwrap_err().to_string();
        assert!(all.contains("another name for the policy at character 31"), "{all}");
        let parts = parse_all("9/1s shared + 5/1s").unwrap();
        assert_eq!(parts.iter().map(|part| part.kind()).collect::<Vec<_>>(), ["shared-rate", "rate"]);
        let error = |text: &str| text.parse::<Policy>().unwrap_err().to_string();
        assert_eq!(
            error("10/1s queue 5 shared"),
            "\"10/1s queue 5\" cannot be shared by tenants: the queue of a leaky bucket is in the order of asking"
        );
        let expected = "share at character 13 to be a whole number from 1 to 1000, not 5000";
        assert_eq!(error("9/1s shared 5000"), format!("policy is \"9/1s shared 5000\": expected {expected}"));
    }

    #[test]
    fn words_may_replace_signs() {
        for (words, text) in [
            ("100/minute", "100/1m"),
            ("5 per second", "5/1s"),
            ("10 requests / min", "10/1m"),
            ("100 per 5 minutes", "100/5m"),
            ("1000/hour", "1000/1h"),
            ("1 Request Per Day", "1/1d"),
            ("2 tokens/250 milliseconds", "2/250ms"),
            ("1 JOB/90SECS", "1/90s"),
            ("100 / minute + 5 calls per sec + 5 Concurrent jobs LEASE 2 Hours", "100/1m + 5/1s|5 concurrent lease 2h"),
            ("10 per second burst 20", "10/1s burst 20"),
            ("60 starts per minute Spaced Strictly", "60/1m spaced strictly"),
            ("3/min backoff 1 sec X2 max 10 mins FULL", "3/1m backoff 1s x2 max 10m full"),
            ("delay 50 microseconds", "delay 50us"),
            ("1/H", "1/1h"),
        ] {
            let read = parse_all(words).unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(read.iter().map(NamedPolicy::to_string).collect::<Vec<_>>().join("|"), text, "{words}");
        }
        for ((unit, size), (same, words)) in UNITS.iter().zip(WORDS) {
            assert_eq!(*unit, same);
            for word in words {
                assert_eq!(parse_time(&format!("3 {word}")), Ok(time::from_ticks(3 * size)), "{word}");
            }
        }
        for what in WHAT {
            assert_eq!(format!("7 {what}s/1s").parse::<Policy>(), format!("7 {what}/s").parse());
        }
    }

    #[test]
    fn several_policies_at_once() {
        let all = parse_all("100/1m + 10/1s burst 20 + 5/1s+5 concurrent").unwrap();
        let rate = Policy::rate_in(&[(100, 60 * second()), (5, second())]).unwrap();
        let bucket = Policy::token_bucket(10, second(), 20).unwrap();
        assert_eq!(all, [rate, bucket, Policy::concurrency(5).unwrap()].map(NamedPolicy::from));
        let error = "100/1m + 5 concurrent".parse::<Policy>().unwrap_err().to_string();
        assert!(error.ends_with("expected one policy, not 2: \"100/1m\" and others"), "{error}");
    }

    #[test]
    fn parts_have_names() {
        let text = "requests: 500/1m + requests: 9/1s + tokens-2 :200000/1m+ Slots_é: 5 concurrent + 3/1s + 2/1ms + x: 1/1s burst 2";
        let all = parse_all(text).unwrap();
        let names: Vec<&str> = all.iter().map(|part| part.name.as_deref().unwrap_or("-")).collect();
        assert_eq!(names, ["requests", "tokens-2", "Slots_é", "-", "x"]);
        assert_eq!(all[0].policy, Policy::rate_in(&[(500, 60 * second()), (9, second())]).unwrap());
        let written = all.iter().map(NamedPolicy::to_string).collect::<Vec<_>>().join(" + ");
        assert_eq!(parse_all(&written).unwrap(), all, "{written}");
        let backoff = "a: 5/1s + a: 9/1m backoff 2s x2 max 1m none + 7/1s";
        let all = parse_all(backoff).unwrap();
        assert_eq!(all.iter().map(NamedPolicy::to_string).collect::<Vec<_>>().join(" + "), backoff);
        for (text, expected) in [
            ("a: 5/1s + a: 5 concurrent", "another name for the policy at character 14, which is not a further window"),
            (
                "a: 5/1s + 1a: 5/1s",
                "name at character 11 to be a letter, and then letters, digits, - and _: at most 64 bytes, not \"1a\"",
            ),
            (
                ": 5/1s",
                "name at character 1 to be a letter, and then letters, digits, - and _: at most 64 bytes, not \"\"",
            ),
            ("a: ", "{POLICY} at character 4, not the end"),
            ("a: b: 5/1s", "{POLICY} at character 4, not \"b\""),
        ] {
            let error = parse_all(text).expect_err(text).to_string();
            let expected = PHRASES.iter().fold(expected.to_owned(), |text, (name, phrase)| text.replace(name, phrase));
            assert_eq!(error, format!("policy is \"{text}\": expected {expected}"));
        }
    }

    #[test]
    fn a_parse_error_has_its_position() {
        for (text, expected) in [
            ("", "{POLICY} at character 1, not the end"),
            ("5", "{PER} at character 2, not the end"),
            ("5 concurent", "{PER} at character 3, not \"concurent\""),
            ("5/", "{UNIT} at character 3, not the end"),
            ("5/1fortnight", "{UNIT} at character 4, not \"fortnight\""),
            ("5/1y", "{ONE} at character 4, not \"y\""),
            ("5/1M", "{ONE} at character 4, not \"M\""),
            ("5 per month", "{ONE} at character 7, not \"month\""),
            ("5 cats per minute", "{PER} at character 3, not \"cats\""),
            ("5 requests", "{PER} at character 11, not the end"),
            ("5 requests minute", "{PER} at character 12, not \"minute\""),
            ("five per minute", "{POLICY} at character 1, not \"five\""),
            (
                "5 per minute or so",
                "burst, queue, fixed, counter, spaced, backoff, shared, + or the end at character 14, not \"or\"",
            ),
            ("NaN/1s", "{POLICY} at character 1, not \"NaN\""),
            ("-5/1s", "{POLICY} at character 1, not \"-\""),
            ("1.5/1s", "a whole number at character 1, not \"1.5\""),
            ("0/1s", "max_executions at character 1 to be a whole number from 1 to 1000000000, not 0"),
            ("9/1s + 5/0s", "window at character 10 to be 1 µs to 366 days, not 0s"),
            ("9/1s +", "{POLICY} at character 7, not the end"),
            ("9/1s 5", "burst, queue, fixed, counter, spaced, backoff, shared, + or the end at character 6, not \"5\""),
            ("10/1s burst NaN", "a whole number at character 13, not \"NaN\""),
            ("10/0s spaced", "window at character 4 to be 1 µs to 366 days, not 0s"),
            ("0/1s burst 5", "rate at character 1 to be a whole number from 1 to 1000000000, not 0"),
            ("10/0s burst 5", "period at character 4 to be 1 µs to 366 days, not 0s"),
            ("10/1s queue 0", "queue at character 13 to be a whole number from 1 to 1000000000, not 0"),
            ("10/1s burst 0", "burst at character 13 to be a whole number from 1 to 1000000000, not 0"),
            ("5/99999999999999999999s", "a whole number at character 3, not \"99999999999999999999\""),
            ("é/1s", "{POLICY} at character 1, not \"é\""),
            ("1/1s backoff 2s", "x and a multiplier at character 16, not the end"),
            (
                "1/1s backoff 2s x1 max 3s",
                "backoff_multiplier at character 6 to be more than 1 (at least 1.001), at most 1000, not 1",
            ),
            (
                "1/1s backoff 2s x2 max 1s",
                "max_backoff_delay at character 6 to be at least initial_backoff_delay, not 1s",
            ),
            ("5000/1s spaced", "max_executions at character 1 to be a whole number from 1 to 4096, not 5000"),
            ("5 concurrent lease 0s", "lease at character 20 to be 1 µs to 366 days, not 0s"),
        ] {
            let error = parse_all(text).expect_err(text).to_string();
            let expected = PHRASES.iter().fold(expected.to_owned(), |text, (name, phrase)| text.replace(name, phrase));
            assert_eq!(error, format!("policy is \"{text}\": expected {expected}"));
        }
    }
}
