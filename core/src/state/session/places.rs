//! Where a server keeps limits, as far as this process knows. How a limit gets its place, and what its rows say:
//! `places.rs` of `names`.

use crate::fork;
use crate::server::Row;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The places that this process has found. A forked child inherits them.
#[derive(Debug, Default)]
pub(in crate::state) struct Places {
    /// Locked only by holders of [`fork::lists`].
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
pub(in crate::state) struct Found {
    /// By name.
    pub places: BTreeMap<String, String>,
    /// By the name that no limit has: the place to which it leads, where another limit is.
    pub taken: BTreeMap<String, String>,
}

impl Places {
    pub fn with<R>(&self, f: impl FnOnce(&mut Found) -> R) -> R {
        let _no_fork = fork::lists();
        f(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn find(&self, name: &str) -> Option<String> {
        self.with(|found| found.places.get(name).cloned())
    }

    /// The place of the limit with this name.
    pub fn of(&self, name: &str) -> String {
        self.find(name).unwrap_or_else(|| name.to_owned())
    }

    /// The name of the limit in this place, as far as this process knows.
    pub fn name_at(&self, place: &str) -> String {
        let is_there = |(name, at): &(&String, &String)| *at == place && *name != place;
        let name = self.with(|found| found.places.iter().find(is_there).map(|(name, _)| name.clone()));
        name.unwrap_or_else(|| place.to_owned())
    }

    /// Whether a name that a server lists is one by which a limit is found. Otherwise it is only the place of a limit with
    /// another name.
    pub fn is_name(&self, listed: &str) -> bool {
        self.find(listed).is_some_and(|place| place != listed) || self.name_at(listed) == listed
    }

    /// Reads the row of a name, and that of its place if it is elsewhere. `read` reads a row.
    pub fn read<E>(&self, name: &str, read: impl Fn(&str) -> Result<Row, E>) -> Result<Row, E> {
        let mut row = read(name)?;
        let (composite, leads_to) = match row.composite.take() {
            Some(text) => match text.strip_prefix('\n') {
                Some(place) => (None, Some(place.to_owned())),
                None => (Some(text), None),
            },
            None => (None, None),
        };
        let known = self.find(name);
        let is_known = known.is_some();
        let place = known.or(leads_to).unwrap_or_else(|| name.to_owned());
        if place != name {
            row = read(&place)?;
        }
        // Without a name behind its policy, the limit in a place has the name of the place.
        let other = row.policy.as_mut().map(|policy| cut_name(policy).unwrap_or_else(|| place.clone()));
        let other = other.filter(|other| other != name && !is_known);
        let is_taken = other.is_some();
        self.with(|found| match is_taken {
            true => drop(found.taken.insert(name.to_owned(), place)),
            false if row.policy.is_some() || place != name => drop(found.places.insert(name.to_owned(), place)),
            false => {}
        });
        Ok(if is_taken { Row { composite, ..Row::default() } } else { Row { composite, ..row } })
    }
}

/// Cuts off the name behind a policy.
fn cut_name(policy: &mut String) -> Option<String> {
    let at = policy.find('\n')?;
    let name = policy[at + 1..].to_owned();
    policy.truncate(at);
    Some(name)
}

/// The policy in a server's text, and the name behind it.
pub(in crate::state) fn policy_and_name(text: &str) -> (&str, Option<&str>) {
    text.split_once('\n').map_or((text, None), |(policy, name)| (policy, Some(name)))
}
