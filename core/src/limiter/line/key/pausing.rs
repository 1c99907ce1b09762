//! How long a line does not ask after a denial.

use super::queue::Wanted;
use super::{KeyLine, Pass, Quiet};
use crate::atomic::Relaxed;
use crate::decision::LOOK_AGAIN;
use crate::fork::jitter;
use crate::limiter::line::Rank;
use crate::time::Tick;

/// The interval at which a line checks whether its first place could be sooner, after a raised limit or a `clear`.
pub(in crate::limiter::line) const LOOK_SOONER: Tick = 250_000;

/// The longest such interval where a server has to be asked.
pub(super) const LOOK_SOONER_ON_A_SERVER: Tick = 4_000_000;

/// The least time between two such requests.
pub(super) const ASKS_APART: Tick = 16_000;

/// The longest interval at which an event loop looks whether it has the turn, in ticks.
const LEAST_OFTEN: Tick = 16_000;

/// The shortest one, and that at which a server is asked.
const LOOKS_OFTEN: Tick = 500;
const ASKS_OFTEN: Tick = 2_000;

/// How often the longest one is doubled where a server has to be asked, for who is further behind.
const MOST_DOUBLINGS: usize = 2;

impl KeyLine {
    /// Returns how long not to ask after a denial.
    pub(super) fn pause(&mut self, pass: &Pass, after: Tick, is_certain: bool, horizon: Tick) -> Tick {
        let (has_places, is_shared) = (pass.limiter.has_places(), pass.limiter.is_shared());
        if let Some((turn, since)) = self.turn.filter(|(turn, _)| !(turn.is_ours() && (has_places || is_certain))) {
            if pass.is_behind && !turn.is_ours() {
                return pass.among_keys(LOOK_SOONER);
            }
            if is_shared && pass.has_bell {
                return turn.look_in_by_rank();
            }
            // (Tenants pass the turn with each start.)
            let is_for_long = has_places && (!is_shared || turn.not_before() > 0);
            let is_on_server = pass.limiter.crew().is_some();
            if pass.has_bell && !is_on_server || is_for_long || turn.idle().is_some() {
                return pass.among_keys(turn.look_in());
            }
            // Nobody calls an event loop, or what waits for a server. The first two look often, for they are next: a
            // sixteenth of the time that it has taken so far. (Of tenants' lines, only the first here gets so far.) On a server
            // the second one begins with what it took the last time: if others were served first, that is so again. But at most half
            // of the time so far: that one may have waited for a long job, or for another key.
            let (least, doublings) = if is_on_server { (ASKS_OFTEN, MOST_DOUBLINGS) } else { (LOOKS_OFTEN, 0) };
            let ends = if turn.ahead == 1 { pass.limiter.ends_on_server(pass.key) } else { None };
            let stayed = ends.map_or(0, |ends| ends.stayed.load(Relaxed));
            let most = if turn.ahead > 1 && !is_shared {
                LEAST_OFTEN << (turn.ahead - 1).min(doublings)
            } else {
                let longest = if ends.is_some() { LEAST_OFTEN << 1 } else { LEAST_OFTEN };
                let waited = pass.now() - since;
                (waited.max(stayed.min(8 * waited)) / 16).clamp(least, longest)
            };
            return pass.among_keys(jitter(most / 2, most));
        }
        if has_places && !self.has_any_distance(is_shared) {
            let after = if is_certain { after.saturating_sub(horizon) } else { after };
            let after = if self.is_overtaken(pass) { after.min(pass.among_keys(LEAST_OFTEN)) } else { after };
            return after.clamp(
                1,
                match (is_certain, self.places.is_empty()) {
                    (true, false) if !self.shown.get().is_some() => Tick::MAX,
                    // No place is held that could be sooner, or others may ask whether this line runs.
                    (true, true) if pass.limiter.crew().is_some() => {
                        pass.among_keys((after / 8).clamp(LOOK_SOONER, LOOK_SOONER_ON_A_SERVER))
                    }
                    (true, _) => pass.among_keys(LOOK_SOONER),
                    (false, _) => LOOK_AGAIN.as_micros() as Tick,
                },
            );
        }
        if is_certain {
            // Another process may cancel a start of a concurrency limit, or open its gate. (A limiter of the program's own is asked
            // only when it said.)
            let may_change = (pass.limiter.limit().is_some() || is_shared) && !has_places;
            return after.clamp(1, if may_change { pass.among_keys(LOOK_SOONER) } else { Tick::MAX });
        }
        self.poll(pass)
    }

    /// Notes how many waiters of all processes come first. Returns since when no more do.
    pub(super) fn behind_since(&mut self, ahead: usize, now: Tick) -> Tick {
        for (most, since) in self.behind.iter_mut().enumerate() {
            *since = match *since {
                _ if ahead > most => 0,
                0 => now,
                since => since,
            };
        }
        self.behind.get(ahead).copied().unwrap_or(now)
    }

    /// Notes how long a waiter that starts was one of the first two.
    pub(super) fn note_stay(&self, pass: &Pass, wanted: &Wanted, now: Tick) {
        if let Some(ends) = pass.limiter.ends_on_server(wanted.key(pass.key)) {
            let stayed = if self.behind[1] > 0 { now.saturating_sub(self.behind[1]) } else { 0 };
            ends.stayed.store(stayed, Relaxed);
        }
    }

    /// The bell of a waiter's key, where a server is asked for it and there are no places.
    pub(super) fn bell_of(&self, pass: &Pass, wanted: &Wanted) -> Option<u64> {
        let is_on_server = !pass.limiter.has_places() && pass.limiter.crew().is_some();
        if is_on_server { pass.limiter.read_bell(wanted.key(pass.key)) } else { None }
    }

    /// Returns whether the server need not be asked for this waiter yet. Then the line looks whether the bell rings.
    pub(super) fn is_quiet(&mut self, pass: &Pass, rank: Rank) -> bool {
        let (now, key) = (pass.now(), pass.key);
        let is_quiet = |quiet: &Quiet| quiet.rank == rank && now < quiet.until;
        let rings = |quiet: &Quiet| pass.limiter.read_bell(key) != Some(quiet.bell);
        self.quiet = self.quiet.filter(|quiet| is_quiet(quiet) && !rings(quiet));
        let Some(quiet) = self.quiet else { return false };
        // (Nobody calls an event loop.)
        self.ask_at = quiet.until.min(now + pass.among_keys(LEAST_OFTEN));
        true
    }

    /// Returns how long not to ask, where another process may complete a start at any time: check soon at first, then less
    /// often, and never in step with other processes. (A completion in this process wakes the key.)
    pub(super) fn poll(&mut self, pass: &Pass) -> Tick {
        self.looks = (self.looks + 1).min(6);
        let most = pass.among_keys(500 << (self.looks - 1).min(5));
        jitter(most / 2, most)
    }

    /// Returns when a wake-up lets the line ask. (One end may wake the lines of all keys.)
    pub(super) fn soonest_ask(&self, now: Tick) -> Tick {
        if self.returned > 0 { now.max(self.ask_returned_at) } else { now }
    }
}
