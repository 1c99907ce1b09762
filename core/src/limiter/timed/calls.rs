//! The limiter interface, with the store's failure policy applied.

use super::{InStore, Timed};
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::limiter::internal::{Awaited, Nested, Quiet};
use crate::limiter::line::{Ahead, Claim, First, LineTurn, Shown, Terms};
use crate::limiter::{Limiter, Places, Presented};
use crate::permit::RawPermit;
use crate::state::STORE_AGAIN;
use crate::time::{Tick, from_ticks};
use std::cell::Cell;
use std::time::{Duration, SystemTime};

impl<T: InStore> Limiter for T {
    fn complete(&self, permit: &RawPermit) -> Result<()> {
        let timed = self.timed();
        timed.is_own(permit)?;
        if !timed.limit.may_adapt() {
            return Ok(());
        }
        let completed = || timed.own(permit).and_then(|permit| timed.do_complete(&permit));
        timed.limit.or_instead(|| timed.limit.ending(completed), |_| ())
    }

    fn cancel(&self, permit: &RawPermit) -> Result<()> {
        self.timed().count_cancelled(permit, Timed::do_cancel)
    }

    fn settle(&self, permit: &RawPermit, actual: u64) -> Result<()> {
        let timed = self.timed();
        let settled = || timed.own(permit).and_then(|permit| timed.do_settle(&permit, actual));
        timed.limit.or_instead(|| timed.limit.ending_once(settled), |_| ())
    }
}

impl<T: InStore> Places for T {
    fn has_places(&self) -> bool {
        true
    }

    fn cancel_place(&self, place: &RawPermit) -> Result<()> {
        self.timed().count_cancelled(place, Timed::do_cancel_place)
    }

    fn ready_in(&self, permit: &RawPermit) -> Option<Duration> {
        self.timed().ready(permit).map(|(home, ready)| from_ticks(ready.saturating_sub(home.clock.now().floor)))
    }

    fn ready_at(&self, permit: &RawPermit) -> Option<SystemTime> {
        self.timed().ready(permit).map(|(home, ready)| home.clock.to_system(ready))
    }

    fn ready_at_monotonic_ns(&self, permit: &RawPermit) -> Option<u64> {
        self.timed().ready(permit).map(|(home, ready)| home.clock.to_monotonic_ns(ready))
    }

    fn window(&self, key: &str) -> Result<Option<Duration>> {
        Ok(Some(from_ticks(self.timed().table_of(key)?.policy.shortest())))
    }

    fn to_text(&self, permit: &RawPermit) -> Result<String> {
        self.timed().do_to_text(permit)
    }

    fn permit_from_text(&self, text: &str) -> Result<RawPermit> {
        self.timed().do_permit_from_text(text)
    }
}

impl<T: InStore> Awaited for T {
    fn prepare(&self, key: &str) -> Result<()> {
        self.timed().limit.with_key(key, |_| Ok(()))
    }

    fn claim(&self, key: &str, weight: u64, terms: Terms) -> Result<Claim> {
        let claimed = || self.timed().do_claim((key, weight), terms);
        self.timed().limit.or_instead(claimed, |is_admitted| match is_admitted {
            true => Claim::Started(self.timed().uncounted(weight)),
            false => Claim::Denied { after: STORE_AGAIN, is_certain: true },
        })
    }

    fn line_up(&self, key: &str, first: First, shown: &Cell<Shown>) -> Result<Option<LineTurn>> {
        self.timed().do_line_up(key, first, shown)
    }

    fn position(&self, key: &str, weight: u64) -> Option<(u64, bool)> {
        self.timed().do_position(key, weight)
    }

    fn show_next(&self, first: Option<First>, shown: &Cell<Shown>) {
        self.timed().do_show_next(first, shown);
    }

    fn counts_places(&self) -> bool {
        self.timed().limit.table().is_ok_and(|table| table.policy.is_log())
    }

    fn returned(&self) -> u64 {
        self.timed().limit.returned()
    }

    fn return_promises(&self, key: &str) {
        self.timed().do_return_promises(key);
    }

    fn start(&self, place: &RawPermit) -> Result<Presented> {
        let started = || self.timed().own(place).and_then(|place| self.timed().do_start(&place));
        self.timed().limit.or_instead(started, |is_admitted| self.timed().instead_of_a_place(place, is_admitted))
    }

    fn look_ahead(&self, place: &RawPermit) -> Result<Option<Ahead>> {
        self.timed().own(place).and_then(|place| self.timed().do_look_ahead(&place)).map(Some)
    }

    fn soonest(&self, key: &str, units: u64) -> Duration {
        self.timed().table_of(key).map_or(Duration::ZERO, |table| from_ticks(table.policy.soonest(units)))
    }

    fn closed(&self, key: &str) -> Result<Duration> {
        let left = |gate: Tick, now: Tick| from_ticks(gate.saturating_sub(now));
        let closed = || self.timed().limit.look(key, |home, _, _, gate| Ok(left(gate, home.clock.now().floor)));
        self.timed().limit.or_instead(closed, |_| Duration::ZERO)
    }

    fn is_late(&self, place: &RawPermit) -> bool {
        let now = || Ok(self.timed().limit.home()?.clock.now().floor);
        matches!((self.timed().own(place), now()), (Ok(place), Ok::<_, Error>(now)) if place.stamp < now)
    }

    fn has_bounded_queue(&self) -> bool {
        // Known once the limit is open; a composite has asked for a place before this.
        self.timed().limit.table().is_ok_and(|table| table.policy.has_queue())
    }
}

impl<T: InStore> Nested for T {
    fn admits(&self, key: &str, weight: u64) -> Result<bool> {
        match self.timed().surely_admits(key, weight) {
            true => Ok(true),
            // Unless that could not be determined.
            false => Ok(self.quiet_peek(key, weight)?.admitted),
        }
    }

    fn is_over(&self, permit: &RawPermit) -> bool {
        self.timed().own(permit).and_then(|permit| self.timed().is_over(&permit)).unwrap_or(false)
    }

    fn permit_of_name(&self, text: &str, name: &str) -> Result<RawPermit> {
        self.timed().permit_of_name(text, name)
    }

    fn key_of(&self, permit: &RawPermit) -> Result<Option<String>> {
        self.timed().limit.key_text(Hash(self.timed().own(permit)?.key))
    }
}
