//! A key of a concurrency limit: the starts that hold units. One instance decides, so they are a list.

use crate::algorithm::log::View;
use crate::algorithm::time::{Now, Tick};
use crate::policy::{Policy, Shape};

/// How long a denied caller stays away where nobody knows when a unit becomes free: 10 ms, as in the core.
const LOOK_AGAIN: Tick = 10_000;

/// A start that holds units until then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Hold {
    id: u64,
    units: u64,
    /// `Tick::MAX`: until it ends.
    until: Tick,
    /// Whether it has ended, and cools down.
    has_ended: bool,
}

pub struct Holds {
    pub policy: Policy,
    all: Vec<Hold>,
}

impl Holds {
    pub fn new(policy: Policy) -> Holds {
        Holds { policy, all: Vec::new() }
    }

    /// Its words, from which it can be made again.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.all.iter().flat_map(|hold| [hold.id, hold.units, hold.until, hold.has_ended.into()])
    }

    pub fn from_words(policy: Policy, words: &[u64]) -> Option<Holds> {
        let hold = |&[id, units, until, has_ended]: &[u64; 4]| Hold { id, units, until, has_ended: has_ended != 0 };
        let (all, rest) = words.as_chunks();
        rest.is_empty().then(|| Holds { policy, all: all.iter().map(hold).collect() })
    }

    /// From when on the units of a start are free, if it does not end before its deadline.
    fn free_at(&self, hold: &Hold) -> Tick {
        if hold.has_ended { hold.until } else { hold.until.saturating_add(self.policy.cooldown()) }
    }

    fn used(&self, now: Now) -> u64 {
        self.all.iter().filter(|hold| self.free_at(hold) > now.floor).map(|hold| hold.units).sum()
    }

    /// The state, for a start of this weight.
    pub fn view(&self, weight: u64, gate: Tick, now: Now) -> View {
        let (max, used) = (self.policy.capacity(), self.used(now));
        let ready = if used + weight <= max { now.floor } else { self.room_at(used + weight - max, now) };
        let remaining = if gate > now.floor { 0 } else { max.saturating_sub(used) };
        // At a gate, units may become free until then.
        View {
            now: now.floor,
            ready: if gate > now.floor { gate } else { ready },
            remaining,
            empty: gate.max(now.floor),
        }
    }

    /// Whether units for a start of this weight become free only when a start ends: nobody knows when.
    pub fn awaits_end(&self, weight: u64, gate: Tick, now: Now) -> bool {
        let missing = (self.used(now) + weight).saturating_sub(self.policy.capacity());
        gate <= now.floor && missing > 0 && self.freed_at(missing, now) == Tick::MAX
    }

    /// From when on so many more units may be free, if no start ends before its deadline.
    fn room_at(&self, units: u64, now: Now) -> Tick {
        let free = self.freed_at(units, now);
        match self.policy.cooldown() {
            0 if free == Tick::MAX => now.floor + LOOK_AGAIN,
            0 => free,
            // No start that ends from now on frees its units before that.
            cooldown => free.min(now.ceil + cooldown),
        }
    }

    /// When the deadlines of starts will have freed so many units. `Tick::MAX`: they will not.
    fn freed_at(&self, mut units: u64, now: Now) -> Tick {
        let mut ends: Vec<(Tick, u64)> = self.all.iter().map(|hold| (self.free_at(hold), hold.units)).collect();
        ends.retain(|(at, _)| *at > now.floor);
        ends.sort_unstable();
        let mut free = Tick::MAX;
        for (at, some) in ends {
            if units > 0 {
                (free, units) = (at, units.saturating_sub(some));
            }
        }
        free
    }

    /// Records a start, for which there is room.
    pub fn add(&mut self, id: u64, units: u64, now: Now) {
        let Shape::Concurrency { lease, .. } = self.policy.0 else { return };
        self.all.push(Hold { id, units, until: now.ceil.saturating_add(lease), has_ended: false });
        self.forget(now);
    }

    /// Ends a start. The units that it used cool down; what it used beyond its weight is owed, up to one whole capacity.
    /// `None`: as many as it weighs.
    pub fn end(&mut self, id: u64, used: Option<u64>, now: Now) {
        let (cooldown, max) = (self.policy.cooldown(), self.policy.capacity());
        for hold in self.all.iter_mut().filter(|hold| hold.id == id && !hold.has_ended && hold.until > now.floor) {
            hold.units = used.map_or(hold.units, |used| used.min(hold.units + max));
            (hold.until, hold.has_ended) = (if cooldown == 0 { 0 } else { now.ceil + cooldown }, true);
        }
        self.all.retain(|hold| hold.units > 0);
        self.forget(now);
    }

    /// Adds a start that was recorded then, unless it is there.
    pub fn restore(&mut self, id: u64, units: u64, stamp: Tick) {
        let Shape::Concurrency { lease, .. } = self.policy.0 else { return };
        if self.all.iter().all(|hold| hold.id != id) {
            self.all.push(Hold { id, units, until: stamp.saturating_add(lease), has_ended: false });
        }
    }

    /// Until when at the latest units are held.
    pub fn matter_until(&self) -> Tick {
        self.all.iter().map(|hold| self.free_at(hold)).max().unwrap_or(0)
    }

    fn forget(&mut self, now: Now) {
        let all = std::mem::take(&mut self.all);
        self.all = all.into_iter().filter(|hold| self.free_at(hold) > now.floor).collect();
    }

    pub fn is_idle(&self, now: Now) -> bool {
        self.used(now) == 0
    }
}
