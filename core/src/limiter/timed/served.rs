//! Limits whose server decides.

use super::{Timed, known};
use crate::algorithm::log::{Answer, Ask, Stage, Taken, View};
use crate::error::Result;
use crate::permit::TimedPermit;
use crate::server::number;
use crate::state::counts::ADMITTED;
use crate::state::{Blocked, Hash, Home, Key, Table};
use crate::time::Now;

/// A number of an answer that may be endless.
fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

fn answered(us: i64) -> Now {
    let now = unsigned(us);
    Now { floor: now, ceil: now }
}

fn nonsense<R>(answer: &[i64]) -> R {
    crate::state::damage::nonsense(format_args!("a script's answer {answer:?}"))
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
        let flags = [ask.reserve, ask.force, ask.again, LOOK].map(i64::from);
        let arguments = [number(ask.weight), delay, number(ask.patience), number(ask.grace)];
        let answer = self.limit.ask(found, "decide", &[arguments, flags].concat())?;
        let &[now, ready, is_taken, ticket, stamp, ahead, is_place, remaining, empty] = answer.as_slice() else {
            return nonsense(&answer);
        };
        let (now, ready) = (answered(now), unsigned(ready));
        *view = View { now: now.floor, ready, remaining: unsigned(remaining), empty: unsigned(empty) };
        let stage = Stage::of(is_place == 1);
        let taken = Taken { ticket: unsigned(ticket), end: 0, stamp: unsigned(stamp), ahead: unsigned(ahead), stage };
        let answer = Answer { now, ready, taken: (is_taken == 1).then_some(taken) };
        self.limit.look_after(found.home(), found.home().clock.now().floor)?;
        if answer.taken.is_some() {
            self.reset_backoff(found);
        }
        Ok(answer)
    }

    /// What a key holds.
    pub(super) fn view_on_server(&self, home: &Home, table: &Table, key: Hash, weight: u64) -> Result<View, Blocked> {
        let answer = self.limit.ask_of(home, table, Some(key), "view", &[number(weight)])?;
        let &[now, ready, remaining, empty] = answer.as_slice() else { return nonsense(&answer) };
        Ok(View { now: unsigned(now), ready: unsigned(ready), remaining: unsigned(remaining), empty: unsigned(empty) })
    }

    /// Starts with a place whose time has come; `None`: it is gone.
    pub(super) fn start_on_server(&self, place: &TimedPermit) -> Result<Option<TimedPermit>> {
        if place.ticket == u64::MAX {
            return Ok(None);
        }
        let TimedPermit { ticket, stamp, weight, grace, ready, .. } = *place;
        self.limit.with_hash(Hash(place.key), |found| {
            let answer = self.limit.ask(found, "present", &[ticket, stamp, weight, grace, ready].map(number))?;
            let &[_, started, stamp, ticket] = answer.as_slice() else { return nonsense(&answer) };
            if started == 1 {
                found.decided(ADMITTED, weight);
            }
            let start = TimedPermit { stamp: unsigned(stamp), ticket: unsigned(ticket), ..*place };
            Ok((started == 1).then_some(start))
        })
    }

    /// Takes a start back, or only a place.
    pub(super) fn cancel_on_server(&self, permit: &TimedPermit, is_place: bool) -> Result<bool> {
        self.end_on_server(permit, "cancel", i64::from(is_place))
    }

    pub(super) fn settle_on_server(&self, permit: &TimedPermit, actual: u64) -> Result<()> {
        self.end_on_server(permit, "settle", number(actual.min(i64::MAX as u64 >> 12))).map(drop)
    }

    fn end_on_server(&self, permit: &TimedPermit, op: &'static str, argument: i64) -> Result<bool> {
        if permit.ticket == u64::MAX {
            return Ok(false);
        }
        let (hash, start) = known(permit);
        let start = [number(start.ticket), number(start.stamp), number(start.weight), number(permit.grace), argument];
        self.limit.with_hash(hash, |found| {
            let answer = self.limit.ask(found, op, &start)?;
            let &[_, was_there] = answer.as_slice() else { return nonsense(&answer) };
            Ok(was_there == 1)
        })
    }
}
