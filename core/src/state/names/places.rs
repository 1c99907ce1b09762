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

use crate::server::RowChange;
use crate::state::ledger::declared::{Change, Part, text_of};
use crate::state::session::Rare;
use std::collections::BTreeSet;

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
                        self.enqueue(place, RowChange::Override(None, None));
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
