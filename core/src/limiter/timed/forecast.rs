//! When more starts will have begun.
//!
//! Single starts, each as soon as it can be: a window with limit `n` has the start `n` tickets later at the end of the window that
//! began with the earlier one. So the first `n` are what the log says, and each further `n` take one window more.

use super::Timed;
use crate::algorithm::log::{Ask, View};
use crate::error::Result;
use crate::limiter::line::units_before;
use crate::policy::Shape;
use crate::state::Blocked;
use crate::time::Tick;

impl Timed {
    pub(super) fn do_forecast(&self, key: &str, units: u64) -> Result<Tick> {
        self.limit.look(key, |home, table, found, gate| {
            // (A start may charge this part nothing.)
            if units == 0 {
                return Ok(0);
            }
            let is_served = self.limit.is_served();
            let units = units.saturating_add(found.map_or(0, units_before));
            let all = table.windows.as_slice();
            let view = |windows: &[_], weight: u64| -> Result<View, Blocked> {
                if is_served {
                    return match found.filter(|_| Self::is_granted(table)) {
                        Some(found) => self.view_granted(found, weight),
                        None => self.view_on_server(home, table, home.hash(b'k', key), weight),
                    };
                }
                let cells = found.map_or_else(|| home.untouched(table), |found| found.cells());
                Ok(cells.view(&Ask::now(windows, weight, gate), || home.clock.now())?)
            };
            let left = |View { ready, now, .. }: View| ready.saturating_sub(now);
            let rounds = |most: u64| ((units - 1) / most, (units - 1) % most + 1);
            match &table.policy.0 {
                Shape::Bucket(bucket) => {
                    let first = if bucket.is_leaky { 1 } else { units.min(bucket.size) };
                    let later = u128::from(units - first) * u128::from(bucket.period);
                    let later = later.div_ceil(u128::from(bucket.rate)).try_into().unwrap_or(Tick::MAX);
                    Ok(left(view(all, first)?).saturating_add(later))
                }
                // (A start at once with all others would be later than they are one by one.)
                Shape::Counter { is_smooth: true, .. } => Ok(left(view(all, 1)?).max(table.policy.soonest(units))),
                Shape::Counter { window, .. } => {
                    let seen = view(all, units.min(window.limit))?;
                    // (Nobody knows when an untouched window ends.)
                    let free = if gate > seen.now { window.limit } else { seen.remaining };
                    let more = units.saturating_sub(free).saturating_sub(1) / window.limit;
                    Ok(left(seen).saturating_add(more.saturating_mul(window.length)))
                }
                // One question to the server.
                _ if is_served => {
                    let (more, first) = rounds(table.capacity);
                    let least = all.iter().map(|window| window.length).min().unwrap_or(0);
                    let after = left(view(all, first)?).saturating_add(more.saturating_mul(least));
                    Ok(after.max(table.policy.soonest(units)))
                }
                _ => all.iter().try_fold(0, |most, window| {
                    let (more, first) = rounds(window.limit);
                    let left = |units| view(std::slice::from_ref(window), units).map(left);
                    let after = left(first)?.saturating_add(more.saturating_mul(window.length));
                    // No start is before the last one of the round before.
                    let before = match more.checked_sub(1) {
                        Some(more) => left(window.limit)?.saturating_add(more.saturating_mul(window.length)),
                        None => 0,
                    };
                    Ok(after.max(before).max(most))
                }),
            }
        })
    }
}
