//! What a key's starts count for under another policy.

use crate::algorithm::History;
use crate::algorithm::counter::Frame;
use crate::algorithm::log::{PLACE, Window};
use crate::policy::{Policy, Shape};
use crate::time::Now;

/// Converts a history to another policy of the same kind. Places are not converted: they were taken under the previous
/// policy, and are exchanged when they are presented. `frame`: how windows of the clock are divided. Returns whether the old
/// bucket is the fastest so far, which the next conversion has to know.
pub(crate) fn carry_over(
    old: &Policy,
    new: &Policy,
    frame: impl Fn(Window, bool) -> Frame,
    history: &mut History,
    now: Now,
) -> bool {
    let mut is_fastest = false;
    history.starts.retain(|start| start.state != PLACE);
    match (&old.0, &new.0) {
        (Shape::Bucket(bucket), Shape::Bucket(next)) => {
            next.take_over(bucket, history, now);
            is_fastest = history.rest.before.is_none_or(|before| bucket.is_faster(&before));
            history.changed = now.ceil;
        }
        (Shape::Counter { window, is_smooth }, Shape::Counter { window: next, .. }) => {
            let old = frame(*window, *is_smooth);
            // The first change, as long as any start before it is known.
            let is_after = |tick| old.window_of(tick) > old.window_of(history.changed);
            if history.starts.iter().all(|start| is_after(start.stamp)) {
                history.changed = 0;
            }
            history.changed = if history.changed == 0 { now.ceil } else { history.changed };
            history.end_windows(&old, now);
            history.excess = u64::MAX;
            history.recall(&old, &frame(*next, *is_smooth), now);
        }
        _ => {
            let mut windows = old.certain_windows().to_vec();
            windows.extend(history.held.take().map(|limit| Window { limit, length: old.longest_window() }));
            history.remember(&windows, new.largest(), new.counts_since(now));
            if old.longest() != new.longest() {
                // They are of another length now.
                history.slice = 0;
            }
            if new.is_counted() && !old.is_counted() {
                // From here on, the tickets of the log are eras.
                let tickets = history.starts.iter().map(|start| start.id).filter(|id| *id != u64::MAX);
                let eras = Some(history.first_era).filter(|_| history.era != 0);
                history.first_era = tickets.chain(eras).min().unwrap_or(history.end);
            }
        }
    }
    history.is_mixed = !history.starts.is_empty() || !history.forgotten.is_empty();
    is_fastest
}
