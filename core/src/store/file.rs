//! Limits from a TOML file.
//!
//! ```toml
//! openai = "100/1m + 5 concurrent"
//!
//! [stripe]
//! allowed = 100
//! period = "1m"
//! burst = 20          # a token bucket; without burst, a sliding window
//! concurrency = 5     # at the same time
//! shared = true       # by tenants: all keys have one budget
//!
//! [mail]
//! policy = "50/1m + 5/1s"
//! ```

use super::named::policies_of;
use crate::error::{Error, Result};
use crate::policy::{self, NamedPolicy, Policy};
use crate::state::{Store, check_names, part_names};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const KEYS: [&str; 6] = ["allowed", "period", "burst", "concurrency", "shared", "policy"];

impl Store {
    /// Declares the limits of a TOML file now, all or none, and returns their names.
    ///
    /// ```toml
    /// openai = "100/1m + 5 concurrent"
    ///
    /// [stripe]
    /// allowed = 100
    /// period = "1m"
    /// burst = 20          # a token bucket; without burst, a sliding window
    /// concurrency = 5     # at the same time
    ///
    /// [gemini]
    /// allowed = 500
    /// period = "1m"
    /// shared = true       # by tenants: all keys have one budget
    /// ```
    ///
    /// Otherwise every key has the policy of its limit, and its own capacity. A key that needs another policy is put on another
    /// limit.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] with the place at which the file is wrong, [`Error::KindMismatch`] if it would change
    /// the kind of a name's limiter, or as for [`Store::open`].
    pub fn load(&self, file: &Path) -> Result<Vec<String>> {
        let text = std::fs::read_to_string(file).map_err(|e| Error::InvalidArgument {
            parameter: "file",
            value: file.display().to_string(),
            expected: format!("a TOML file ({e})"),
        })?;
        let limits = Source { path: file, text: &text }.limits()?;
        let all: Vec<(&str, &[NamedPolicy])> =
            limits.iter().map(|(name, all)| (name.as_str(), all.as_slice())).collect();
        self.session().report("", self.session().declare_now(&all))?;
        Ok(limits.into_iter().map(|(name, _)| name).collect())
    }
}

/// A file in the course of being parsed.
struct Source<'s> {
    path: &'s Path,
    text: &'s str,
}

/// The table of one limit.
struct Entry<'s> {
    source: &'s Source<'s>,
    name: &'s str,
    table: &'s DeTable<'s>,
    at: Range<usize>,
}

impl Source<'_> {
    fn wrong(&self, at: &Range<usize>, what: impl std::fmt::Display, expected: impl Into<String>) -> Error {
        let line = self.text[..at.start].matches('\n').count() + 1;
        let value = format!("{}, line {line}: {what}", self.path.display());
        Error::InvalidArgument { parameter: "file", value, expected: expected.into() }
    }

    /// The error for a value, with what its parser expected.
    fn wrong_value(&self, what: &str, value: &Spanned<DeValue>, error: Error) -> Error {
        let (at, Error::InvalidArgument { expected, .. }) = (value.span(), &error) else { return error };
        let shown = match value.get_ref() {
            DeValue::Table(_) => "a table",
            _ => self.text[at.clone()].lines().next().unwrap_or_default(),
        };
        self.wrong(&at, format_args!("{what} = {shown}"), expected)
    }

    /// The names of the file's limits, in order, and their policies.
    fn limits(&self) -> Result<Vec<(String, Vec<NamedPolicy>)>> {
        let parsed = DeTable::parse(self.text);
        let parsed = parsed.map_err(|e| self.wrong(&e.span().unwrap_or(0..0), "not TOML", e.message()))?;
        let mut limits = Vec::new();
        let mut taken = BTreeSet::new();
        for (key, value) in parsed.get_ref() {
            let name: &str = key.get_ref();
            let policies = match value.get_ref() {
                DeValue::Table(table) => Entry { source: self, name, table, at: key.span() }.policies()?,
                DeValue::String(text) => policies_of(text).map_err(|e| self.wrong_value(name, value, e))?,
                _ => return Err(self.wrong_value(name, value, expecting("a policy such as \"100/1m\", or a table"))),
            };
            check_names(name, &policies).map_err(|e| match e {
                Error::InvalidArgument { value, expected, .. } => {
                    self.wrong(&key.span(), format_args!("the name is {value}"), expected)
                }
                other => other,
            })?;
            let parts = part_names(name, &policies).into_iter().filter(|part| part != name);
            for name in parts.chain([name.to_owned()]) {
                if let Some(name) = taken.replace(name) {
                    let what = format_args!("\"{name}\" is two limits");
                    return Err(self.wrong(
                        &key.span(),
                        what,
                        "another name, since a part of a composite has this one",
                    ));
                }
            }
            limits.push((name.to_owned(), policies));
        }
        Ok(limits)
    }
}

impl Entry<'_> {
    fn get(&self, key: &str) -> Option<&Spanned<DeValue<'_>>> {
        self.table.get(key)
    }

    /// The error for a key's value, with what its parser expected.
    fn wrong(&self, key: &str, error: Error) -> Error {
        let what = format!("[{}] {key}", self.name);
        self.get(key).map_or(error.clone(), |value| self.source.wrong_value(&what, value, error))
    }

    /// The error for missing or excess keys.
    fn wrong_set(&self, what: &str, expected: &str) -> Error {
        self.source.wrong(&self.at, format_args!("[{}] {what}", self.name), expected)
    }

    fn count(&self, key: &str) -> Result<Option<u64>> {
        let count = |value: &Spanned<DeValue>| {
            let DeValue::Integer(digits) = value.get_ref() else { return None };
            u64::from_str_radix(digits.as_str(), digits.radix()).ok()
        };
        let expected = || self.wrong(key, expecting("a whole number of at least 1"));
        self.get(key).map(|value| count(value).ok_or_else(expected)).transpose()
    }

    fn flag(&self, key: &str) -> Result<bool> {
        let expected = || self.wrong(key, expecting("true or false"));
        self.get(key).map_or(Ok(false), |value| value.get_ref().as_bool().ok_or_else(expected))
    }

    fn text(&self, key: &str, expected: &str) -> Result<Option<&str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.get_ref().as_str().map(Some).ok_or_else(|| self.wrong(key, expecting(expected)))
    }

    fn policies(&self) -> Result<Vec<NamedPolicy>> {
        if let Some(key) = self.table.keys().map(|key| key.get_ref().as_ref()).find(|key| !KEYS.contains(key)) {
            let expected = match key {
                "partitions" => format!(
                    "none: every key has a budget of its own, and one that needs another policy than \"{}\" gets it by an \
                     override of that key",
                    self.name
                ),
                _ => "one of the keys allowed, period, burst, concurrency, shared and policy".to_owned(),
            };
            return Err(self.wrong(key, expecting(&expected)));
        }
        if let Some(text) = self.text("policy", "a policy such as \"100/1m\"")? {
            if self.table.len() > 1 {
                return Err(self.wrong_set("has policy and other keys", "policy alone"));
            }
            return policies_of(text).map_err(|e| self.wrong("policy", e));
        }
        let (allowed, burst, concurrency) = (self.count("allowed")?, self.count("burst")?, self.count("concurrency")?);
        let period = self.text("period", "a time such as \"1m\"")?;
        let period = period.map(policy::parse_time).transpose().map_err(|e| self.wrong("period", e))?;
        let rate = match (allowed, period, burst) {
            (Some(allowed), Some(period), None) => Some(Policy::rate(allowed, period)),
            (Some(allowed), Some(period), Some(burst)) => Some(Policy::token_bucket(allowed, period, burst)),
            (None, None, None) => None,
            (None, ..) => return Err(self.wrong_set("has no allowed", "allowed, which goes with period and burst")),
            (_, None, _) => return Err(self.wrong_set("has no period", "period, which goes with allowed and burst")),
        };
        let shared = self.flag("shared")?;
        let share = |policy: Result<Policy>| if shared { policy.and_then(Policy::shared) } else { policy };
        let all =
            rate.into_iter().chain(concurrency.map(Policy::concurrency)).map(share).collect::<Result<Vec<Policy>>>();
        let all = all.map_err(|e| match &e {
            Error::InvalidArgument { parameter, .. } => {
                let key = match *parameter {
                    "max_executions" | "rate" => "allowed",
                    "window" => "period",
                    "max_concurrent_jobs" => "concurrency",
                    same => same,
                };
                self.wrong(key, e)
            }
            _ => e,
        })?;
        match all.as_slice() {
            [] => Err(self.wrong_set("is empty", "allowed and period, concurrency, or policy")),
            _ => Ok(all.into_iter().map(NamedPolicy::from).collect()),
        }
    }
}

fn expecting(expected: &str) -> Error {
    Error::invalid("file", "", expected)
}
