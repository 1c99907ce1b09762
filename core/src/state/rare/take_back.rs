//! Which entries of a history are a start's, and how its units are taken out of them.

use crate::algorithm::log::{SETTLED, StartId, Window};
use crate::algorithm::{Forgotten, History, Start};
use crate::policy::{Policy, Shape};
use crate::time::{Now, Tick};
use std::ops::RangeBounds;

/// The indices of this start's entries. Where units are, or were, only counted, these are all entries of its slice, the
/// unlogged ones first.
///
/// Under another policy a start may count from a later time, at which other starts count, too. The first entry that is
/// no earlier than the start has its units, or such that count no longer than they do. (In windows of the clock, only the
/// one of the start, or of the change if its former window had not ended then. It may be no longer known.)
pub(crate) fn parts(policy: &Policy, history: &History, start: StartId) -> Vec<usize> {
    let History { starts, era, changed, .. } = history;
    let is_of_era = is_of_era(history, start);
    let (from, until) = match &policy.0 {
        Shape::Counter { window, .. } => (start.stamp.min(*changed), start.stamp.min(*changed) + window.length),
        _ => (start.stamp, Tick::MAX),
    };
    let is_counted = |s: &&Start| policy.is_counted() || s.id == u64::MAX;
    let at = match *era == start.ticket && policy.is_counted() {
        true => Some(start.stamp),
        false => starts.iter().filter(is_counted).map(|s| s.stamp).find(|stamp| (from..until).contains(stamp)),
    };
    let is_part = |s: &Start| match is_of_era {
        true => is_counted(&s) && (Some(s.stamp) == at || policy.is_bucket()),
        false if policy.is_counted() => false,
        false => is_named(s, start) && s.units <= start.weight && s.state != SETTLED,
    };
    let mut parts: Vec<usize> = (0..starts.len()).filter(|&i| is_part(&starts[i])).collect();
    parts.sort_by_key(|&i| starts[i].is_logged);
    parts
}

/// Returns whether this is a start of which only the units are, or were, counted.
fn is_of_era(history: &History, start: StartId) -> bool {
    history.era != 0 && (history.first_era..=history.era).contains(&start.ticket)
}

/// Settles a start that is not found, if there may be one: its units were left out, or it was copied without its ticket, where
/// there was no space for that. What it owes counts. Returns whether there may be one. (Starts that are only counted end once.)
pub(crate) fn settle_unknown(policy: &Policy, history: &mut History, start: StartId) -> bool {
    let is_it =
        |s: &&mut Start| s.id == u64::MAX && s.state != SETTLED && (s.stamp, s.units) == (start.stamp, start.weight);
    policy.has_origins() && history.starts.iter_mut().find(is_it).map(|s| s.state = SETTLED).is_some()
        || history.left_out > 0 && history.left_out >= start.stamp
        || policy.is_counted()
        || !history.starts.iter().any(|s| is_named(s, start))
            && (history.forgotten.iter().any(|some| may_hold(some, start.stamp..))
                || history.starts.iter().any(|s| s.id == u64::MAX && s.stamp >= start.stamp))
}

/// Adds what a start owes: it counts from now, however long ago the start was.
pub(crate) fn owe(policy: &Policy, history: &mut History, units: u64, now: Now) {
    history.add_unlogged(Start { stamp: now.ceil, units, state: SETTLED, id: u64::MAX, is_logged: false });
    // Where it fits, the policy could have admitted it. Otherwise none bounds what there is.
    let windows = policy.windows();
    let fits = |window: &Window| history.counting(now.floor.saturating_sub(window.length)) <= window.limit;
    history.is_mixed |= windows.is_empty() || !windows.iter().all(fits);
}

/// Returns whether this is what is known of a start.
fn is_named(known: &Start, start: StartId) -> bool {
    (known.id, known.stamp) == (start.ticket, start.stamp)
}

/// Returns whether these forgotten units may have been started at one of these moments: none is later than their stamp.
fn may_hold(some: &Forgotten, stamps: impl RangeBounds<Tick>) -> bool {
    some.units < Forgotten::MANY && stamps.contains(&some.stamp)
}

/// Takes a start out of a history, if it is there and not settled. Returns whether it did. `ahead`: see
/// `Taken::ahead`.
pub(crate) fn take_back(policy: &Policy, history: &mut History, start: StartId, ahead: u64) -> bool {
    let parts = parts(policy, history, start);
    start.weight > take_units(policy, history, &parts, (start, ahead), start.weight)
}

/// Takes this many units of a start from its parts, and removes starts that have none left. Returns how many were not
/// there.
///
/// Units that a key's cells could not hold were left out of them, the oldest first: a start's may be among those. They are no
/// earlier than the start, in whichever entry they are. So the earliest such entries give theirs: what remains counts for as long
/// as what should remain, or for longer.
pub(crate) fn take_units(
    policy: &Policy,
    history: &mut History,
    parts: &[usize],
    (start, ahead): (StartId, u64),
    mut units: u64,
) -> u64 {
    if let (Shape::Bucket(bucket), [_, ..]) = (&policy.0, parts) {
        bucket.take_back(history, start, ahead, units);
        return 0;
    }
    let may_be_left_out = !policy.windows().is_empty() && (!parts.is_empty() || is_of_era(history, start));
    let History { starts, forgotten, .. } = history;
    let known = parts.first().map_or(Tick::MAX, |&i| starts[i].stamp);
    let mut take = |from: &mut u64| {
        let taken = units.min(*from);
        *from -= taken;
        units -= taken;
    };
    // (The newest come first.)
    let earlier = forgotten.iter_mut().rev().filter(|some| may_be_left_out && may_hold(some, start.stamp..known));
    earlier.for_each(|some| take(&mut some.units));
    parts.iter().for_each(|&i| take(&mut starts[i].units));
    let others = forgotten.iter_mut().rev().filter(|some| may_be_left_out && may_hold(some, start.stamp..));
    others.for_each(|some| take(&mut some.units));
    starts.retain(|start| start.units > 0);
    forgotten.retain(|some| some.units > 0);
    units
}
