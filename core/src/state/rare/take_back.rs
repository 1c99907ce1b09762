//! Which entries of a history are a start's, and how its units are taken out of them.

use crate::algorithm::log::{SETTLED, StartId};
use crate::algorithm::{History, Start};
use crate::policy::{Policy, Shape};
use crate::time::Tick;

/// The indices of this start's entries. Where units are, or were, only counted, these are all entries of its slice, the
/// unlogged ones first.
///
/// Under another policy a start may count from a later time, at which other starts count, too. The first entry that is
/// no earlier than the start has its units, or such that count no longer than they do. (In windows of the clock, only the
/// one of the start, or of the change if its former window had not ended then. It may be no longer known.)
pub(crate) fn parts(policy: &Policy, history: &History, start: StartId) -> Vec<usize> {
    let History { starts, era, first_era, changed, .. } = history;
    let is_of_era = *era != 0 && (*first_era..=*era).contains(&start.ticket);
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
        false => s.id == start.ticket && s.stamp == start.stamp && s.units == start.weight && s.state != SETTLED,
    };
    let mut parts: Vec<usize> = (0..starts.len()).filter(|&i| is_part(&starts[i])).collect();
    parts.sort_by_key(|&i| starts[i].is_logged);
    parts
}

/// Settles a start that is no longer known, if there may be one: its units were left out, or it was copied without its ticket, where
/// there was no space for that. Its units cannot be taken back, but what it owes counts. Returns whether there may be one.
pub(crate) fn settle_unknown(policy: &Policy, history: &mut History, start: StartId) -> bool {
    let is_it =
        |s: &&mut Start| s.id == u64::MAX && s.state != SETTLED && (s.stamp, s.units) == (start.stamp, start.weight);
    policy.has_origins() && history.starts.iter_mut().find(is_it).map(|s| s.state = SETTLED).is_some()
        || history.left_out > 0 && history.left_out >= start.stamp
}

/// Takes a start out of a history, if it is there and not settled. Returns whether it did. `ahead`: see
/// `Taken::ahead`.
pub(crate) fn take_back(policy: &Policy, history: &mut History, start: StartId, ahead: u64) -> bool {
    let parts = parts(policy, history, start);
    take_units(policy, history, &parts, (start, ahead), start.weight);
    !parts.is_empty()
}

/// Takes this many units from these starts, and removes starts that have none left.
pub(crate) fn take_units(
    policy: &Policy,
    history: &mut History,
    parts: &[usize],
    (start, ahead): (StartId, u64),
    mut units: u64,
) {
    if let (Shape::Bucket(bucket), [_, ..]) = (&policy.0, parts) {
        return bucket.take_back(history, start, ahead, units);
    }
    let History { starts, .. } = history;
    for &i in parts {
        let taken = units.min(starts[i].units);
        starts[i].units -= taken;
        units -= taken;
    }
    starts.retain(|start| start.units > 0);
}
