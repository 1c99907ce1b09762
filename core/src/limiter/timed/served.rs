//! Limits that a server decides.

use super::{Timed, known};
use crate::algorithm::log::{Answer, Ask, Stage, Taken, View};
use crate::error::Result;
use crate::hash::Hash;
use crate::permit::TimedPermit;
use crate::policy::Shape;
use crate::server::number;
use crate::server::states::{BucketState, WindowState};
use crate::state::counts::ADMITTED;
use crate::state::{Blocked, Home, Key, Table, as_counted_place, is_granted_place, without_mark};
use crate::time::{Now, Tick, from_ticks};
use std::time::Duration;

/// Converts a number of a reply; -1 is endless.
fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// The result of presenting a place.
pub(super) enum Started {
    Yes(TimedPermit),
    TooEarly(Duration),
    /// It is late, used, or overtaken.
    No,
}

impl Timed {
    /// Decides and records, as cells here would.
    pub(super) fn take_from_server<const LOOK: bool>(
        &self,
        found: &Key,
        ask: &Ask,
        view: &mut View,
    ) -> Result<Answer, Blocked> {
        let now = found.home().clock.now().floor;
        let delay = if ask.gate > now { number(ask.gate - now) } else { 0 };
        // A plain question whether a start is possible now. (The time of a test belongs to its server.)
        let is_plain = delay == 0 && ask.patience == 0 && !(ask.reserve || ask.force || ask.again);
        let is_plain = is_plain && !found.home().clock.is_manual();
        if is_plain && let Some(known) = self.limit.known_denial(found, ask.weight, LOOK) {
            *view = known;
            return Ok(Answer { now: Now { floor: known.now, ceil: known.now }, ready: known.ready, taken: None });
        }
        let before = self.limit.before_denial();
        let flags = [ask.reserve, ask.force, ask.again, LOOK].map(i64::from);
        let arguments = [number(ask.weight), delay, number(ask.patience), number(ask.grace)];
        let arguments = [arguments, flags].concat();
        // The reported decision, and the state after it.
        let ([now, ready, is_taken, ticket, stamp, ahead, is_place], seen) = match &found.table.policy.0 {
            Shape::Bucket(_) => parts(self.limit.ask::<10>(found, "decide", &arguments)?),
            Shape::Counter { .. } => parts(self.limit.ask::<11>(found, "decide", &arguments)?),
            _ => parts(self.limit.ask::<9>(found, "decide", &arguments)?),
        };
        let (now, ready) = (unsigned(now), unsigned(ready));
        *view = view_of(found.home(), found.table, (now, ready), &seen);
        self.limit.look_after(found.home(), found.home().clock.now().floor)?;
        if is_taken == 1 {
            self.reset_backoff(found);
        } else if is_plain {
            self.limit.remember_denial(found, ask.weight, before, view, LOOK);
        }
        let stage = Stage::of(is_place == 1);
        // A limit that only counts units identifies a place by its own number, until it is started with.
        let is_counted_place = is_place == 1 && found.table.policy.is_counted();
        let ticket = if is_counted_place { as_counted_place(unsigned(ticket)) } else { unsigned(ticket) };
        let taken = Taken { ticket, end: 0, stamp: unsigned(stamp), ahead: unsigned(ahead), stage };
        // Where units were free all along, the place is ready now.
        let ready = if is_place == 1 { ready.max(now) } else { ready };
        Ok(Answer { now: Now { floor: now, ceil: now }, ready, taken: (is_taken == 1).then_some(taken) })
    }

    /// Returns the state of a key.
    pub(super) fn view_on_server(&self, home: &Home, table: &Table, key: Hash, weight: u64) -> Result<View, Blocked> {
        self.limit.check_weight_on_server(table, key, weight)?;
        let arguments = [number(weight)];
        let ([now, ready], seen) = match &table.policy.0 {
            Shape::Bucket(_) => parts(self.limit.ask_of::<5>(home, table, Some(key), "view", &arguments)?),
            Shape::Counter { .. } => parts(self.limit.ask_of::<6>(home, table, Some(key), "view", &arguments)?),
            _ => parts(self.limit.ask_of::<4>(home, table, Some(key), "view", &arguments)?),
        };
        Ok(view_of(home, table, (unsigned(now), unsigned(ready)), &seen))
    }

    /// Starts with a place.
    pub(super) fn start_on_server(&self, place: &TimedPermit) -> Result<Started> {
        if place.ticket == u64::MAX {
            return Ok(Started::No);
        }
        let TimedPermit { ticket, stamp, weight, grace, ready, .. } = *place;
        self.limit.with_hash(Hash(place.key), |found| {
            let arguments = [without_mark(ticket), stamp, weight, grace, ready].map(number);
            let [now, started, stamp, ticket] = self.limit.ask(found, "present", &arguments)?;
            Ok(match started {
                1 => {
                    found.decided(ADMITTED, weight);
                    Started::Yes(TimedPermit { stamp: unsigned(stamp), ticket: unsigned(ticket), ..*place })
                }
                // The server may have moved it.
                2 => Started::TooEarly(from_ticks(unsigned(stamp).max(ready).saturating_sub(unsigned(now)))),
                _ => Started::No,
            })
        })
    }

    /// Takes a start back, or only a place.
    pub(super) fn cancel_on_server(&self, permit: &TimedPermit, is_place: bool) -> Result<bool> {
        self.end_on_server(permit, "cancel", i64::from(is_place))
    }

    pub(super) fn settle_on_server(&self, permit: &TimedPermit, actual: u64) -> Result<()> {
        // A debt is at most the limit, so an actual amount can be capped the same way.
        self.end_on_server(permit, "settle", number(actual.min(u64::from(u32::MAX)))).map(drop)
    }

    fn end_on_server(&self, permit: &TimedPermit, op: &'static str, argument: i64) -> Result<bool> {
        if permit.ticket == u64::MAX {
            return Ok(false);
        }
        let is_place = is_granted_place(permit.ticket);
        if is_place || op == "cancel" && self.give_back_granted(permit, false)? {
            return if is_place { self.give_back_granted(permit, true) } else { Ok(true) };
        }
        // (Not a place: its line asks anew itself.)
        let is_returned = if op == "cancel" { argument == 0 } else { unsigned(argument) < permit.weight };
        let (hash, start) = known(permit);
        let start = [
            number(without_mark(start.ticket)),
            number(start.stamp),
            number(start.weight),
            number(permit.grace),
            argument,
        ];
        self.limit.with_hash(hash, |found| {
            let [_, was_there] = self.limit.ask(found, op, &start)?;
            if was_there == 1 && is_returned {
                self.limit.has_returned(found);
            }
            Ok(was_there == 1)
        })
    }
}

/// Splits the first numbers of a reply from the others.
fn parts<const N: usize, const M: usize>(answer: [i64; N]) -> ([i64; M], Vec<i64>) {
    let (first, others) = answer.split_at(M);
    (std::array::from_fn(|i| first[i]), others.to_vec())
}

/// Returns the state of a key from a script's reply.
fn view_of(home: &Home, table: &Table, (now, ready): (Tick, Tick), state: &[i64]) -> View {
    let state: Vec<u64> = state.iter().map(|n| unsigned(*n)).collect();
    let (remaining, empty, gate) = match (&table.policy.0, state.as_slice()) {
        (Shape::Bucket(bucket), &[tick, part, gate]) => {
            let state = BucketState::of(bucket, [tick, part]);
            (state.remaining(now), state.empty(), gate)
        }
        (Shape::Counter { window, is_smooth }, &[newest, units, before, gate]) => {
            let numbers = [window.limit, window.length, u64::from(*is_smooth)];
            let state = WindowState::by(numbers, [newest, units, before], home.phase_on_server());
            (state.remaining(now), state.empty(now), gate)
        }
        (_, &[remaining, empty]) => (remaining, empty, 0),
        _ => unreachable!("exactly these numbers were requested"),
    };
    let (remaining, empty) = (if gate > now { 0 } else { remaining }, empty.max(gate));
    View { now, ready, remaining, empty }
}
