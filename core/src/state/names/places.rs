//! Where a server keeps a limit: under the first name that it had.
//!
//! Processes that were started before a rename use the earlier name until they end. So a limit that gets another name
//! stays in its place, to which the new name leads. Processes that know it by either name count together, for as long as
//! both run. (In `memory:` and `sqlite:` stores, processes find a renamed limit by its number.)
//!
//! * The row of the name has a line feed and the place, where that of a composite has its policies.
//! * The row of the place has a line feed and the name behind its declared policy. So observers show that name, and
//!   nobody takes the limit for one that is called like its place.
//! * A new limit that is called like another one's place gets a place of its own.
//! * A process stays with the place that it has found for a name, as those do that were started earlier, unless it
//!   declares another limit under that name itself.
//!
//! These are rows of several slots, so no step writes all of them. The names are written first, then the composite, and
//! then the places. So a process that reads in between finds each limit, under either name. All processes that make the same
//! change choose the same places.

use crate::fork;
use crate::server::{Row, RowChange};
use crate::state::ledger::declared::{Change, Part, text_of};
use crate::state::session::Rare;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

/// The places that this process has found. A forked child inherits them.
#[derive(Debug, Default)]
pub(in crate::state) struct Places {
    /// Locked only by holders of [`fork::lists`].
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    /// By name.
    places: BTreeMap<String, String>,
    /// By the name that no limit has: the place to which it leads, where another limit is.
    taken: BTreeMap<String, String>,
}

impl Places {
    fn with<R>(&self, f: impl FnOnce(&mut Found) -> R) -> R {
        let _no_fork = fork::lists();
        f(&mut self.found.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn find(&self, name: &str) -> Option<String> {
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
        let other = row.policy.as_mut().and_then(cut_name).filter(|other| other != name && !is_known);
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

impl Rare {
    /// Has changes sent to the server.
    pub(super) fn send(&mut self, changes: &[Change]) {
        let used = self.place(changes);
        for Change { name, composite, was_composite, parts, dropped } in changes {
            // (A single limit's row may lead elsewhere by now.)
            if composite != was_composite && (composite.is_some() || self.places.of(name) == *name) {
                self.enqueue(name, RowChange::Composite(composite.as_ref().map(|policies| text_of(policies))));
            }
            for part in parts.iter().filter(|part| part.is_new() || part.is_renamed()) {
                let place = self.places.of(&part.name);
                let named = (place != part.name).then(|| part.name.clone());
                self.enqueue(&place, RowChange::Policy(Some(part.policy), named));
            }
            let is_part = |row: &String| parts.iter().any(|part| part.name == *row);
            let gone: Vec<String> = dropped.iter().map(|name| self.places.of(name)).collect();
            for place in gone.iter().filter(|place| !used.contains(*place)) {
                match is_part(place) || place == name && !parts.is_empty() {
                    // The row also says what this name means.
                    true => {
                        self.enqueue(place, RowChange::Policy(None, None));
                        self.enqueue(place, RowChange::Override(None));
                    }
                    false => self.forgotten(place),
                }
            }
            // The rows of names that only led there, or to a limit that has another name now.
            let renamed = parts.iter().filter(|part| part.is_renamed()).map(|part| &part.from);
            let led = dropped.iter().chain(renamed).filter(|of| !used.contains(*of) && !is_part(of) && *of != name);
            led.for_each(|name| self.forgotten(name));
            if parts.is_empty() {
                // A server lists the name of a composite beside those of its parts.
                self.forgotten(name);
            }
        }
    }

    /// Gives each limit of these changes its place, and each name that leads elsewhere a row that says so. Returns the
    /// places that are in use.
    fn place(&mut self, changes: &[Change]) -> BTreeSet<String> {
        let parts = || changes.iter().flat_map(|change| &change.parts);
        let stays = |part: &&Part| part.before.is_some();
        let places = self.places.clone();
        let mut all: Vec<(&Part, String)> = parts().filter(stays).map(|part| (part, places.of(&part.from))).collect();
        let mut used: BTreeSet<String> = all.iter().map(|(_, place)| place.clone()).collect();
        for part in parts().filter(|part| !stays(part)) {
            let taken = places.with(|found| found.taken.get(&part.name).cloned());
            let mut place = taken.map_or_else(|| places.of(&part.name), |taken| taken + "\n2");
            while !used.insert(place.clone()) {
                place += "\n2";
            }
            all.push((part, place));
        }
        for (part, place) in all {
            let is_elsewhere = place != part.name;
            if part.is_renamed() || is_elsewhere && (part.before.is_none() || places.of(&part.name) != place) {
                let leads_to = is_elsewhere.then(|| format!("\n{place}"));
                self.enqueue(&part.name, RowChange::Composite(leads_to));
            }
            places.with(|found| {
                found.taken.remove(&part.name);
                found.places.insert(part.name.clone(), place);
            });
        }
        used
    }
}
