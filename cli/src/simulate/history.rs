//! The history of a limit as a load: the units of each minute, spread evenly over it.

use super::request::{Keys, Request, SECOND, Source};
use crate::context::Context;
use crate::failure::Failure;
use crate::json;
use crate::names;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};
use workglow_limit::observe::Observer;

/// The most requests. If there are more units, a request asks for several.
const MAX: u64 = 1_000_000;

const MINUTE: u64 = 60 * SECOND;

/// The replay of a history.
pub struct History {
    /// The start and the units of each minute.
    minutes: Vec<(u64, u64)>,
    minute: usize,
    /// The units of this minute that were requested.
    asked: u64,
    weight: u64,
    duration: Option<u64>,
    made: u64,
}

impl History {
    /// Reads the history of a limit; `with_denied` adds a unit for each denied attempt. No request weighs more than `heaviest`.
    pub fn read(
        context: &Context,
        name: &str,
        since: Duration,
        with_denied: bool,
        heaviest: u64,
        duration: Option<u64>,
    ) -> Result<History, Failure> {
        let store = context.store()?;
        let all = names::check(name, &store)?;
        let since = SystemTime::now().checked_sub(since).unwrap_or(SystemTime::UNIX_EPOCH);
        let mut observer = Observer::new(&store, 0);
        let seen = observer.look()?;
        // A start is counted by all parts of a composite, a denial by one part.
        let mut minutes: BTreeMap<SystemTime, (u64, u64)> = BTreeMap::new();
        for part in names::parts(name, &seen, &all) {
            for minute in observer.history(&part.name, since)? {
                let (units, denied) = minutes.entry(minute.at).or_default();
                *units = minute.units.max(*units);
                *denied += minute.denied;
            }
        }
        let us = |at: SystemTime| (json::time(at) * SECOND as f64) as u64;
        let wanted = |units: u64, denied: u64| units + if with_denied { denied } else { 0 };
        let minutes: Vec<(u64, u64)> =
            minutes.into_iter().map(|(at, (units, denied))| (us(at), wanted(units, denied))).collect();
        let all: u64 = minutes.iter().map(|(_, units)| units).sum();
        if all == 0 {
            return Err(Failure::usage(format!("the store has no history of \"{name}\" in this time"))
                .hint("servers keep no history; pass a trace with --trace"));
        }
        Ok(History { minutes, minute: 0, asked: 0, weight: all.div_ceil(MAX).min(heaviest).max(1), duration, made: 0 })
    }
}

impl Source for History {
    fn next(&mut self, keys: &mut Keys) -> Result<Option<Request>, Failure> {
        while let Some(&(at, units)) = self.minutes.get(self.minute) {
            if self.asked < units {
                let weight = self.weight.min(units - self.asked);
                let at = at + (u128::from(MINUTE) * u128::from(self.asked) / u128::from(units)) as u64;
                self.asked += weight;
                self.made += 1;
                let (line, duration) = (self.made, self.duration);
                let key = keys.id("", line);
                return Ok(Some(Request { line, at, key, weight, duration, charges: Vec::new() }));
            }
            (self.minute, self.asked) = (self.minute + 1, 0);
        }
        Ok(None)
    }
}
