//! What a line shows to those of other processes: its first waiter. Of all that are shown, the least has the turn.
//!
//! Nobody waits for a process that does not use its turn. The kernel knows whether it is dead. Units that are free for the
//! head, while nothing is admitted, are a sign that it does not run. So is a head that wants more than is free, and does not
//! answer when it is asked. Then it is skipped until it shows itself again.

use crate::algorithm::heads::{Head, Heads, Survey, tag};
use crate::hash::Hash;
use crate::limiter::line::key::LOOK_SOONER;
use crate::state::{Blocked, Key, Limit, name_of};
use crate::time::Tick;
use std::cell::Cell;

/// For how long units are free for a head before it is skipped, in ticks.
const IS_STOPPED: Tick = 50_000;

/// For how long a head does not answer before it is skipped, in ticks. Nobody looks less often than in half of it, unless
/// its loop waits for hundreds of keys.
const IS_SILENT: Tick = 2 * LOOK_SOONER;

/// The interval at which each line looks, and asks the kernel whether the head's process is dead. A longer time between two
/// looks counts as this one: the line that looks was stopped itself.
const LOOK: Tick = 20_000;

/// A waiter with a shorter timeout would not notice that the head does not run.
pub(super) const NOTICES: Tick = IS_STOPPED + LOOK;

/// Lines for a rate whose first waiters asked within so many ticks take places together. Otherwise two lines whose waiters
/// alternate would pass the turn for each single start, and wait for the next look each time.
pub(crate) const NEAR: Tick = LOOK;

/// Whether units are free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    /// They are, after what was admitted up to this position. (Where that is not known, any number.)
    Free { position: u64 },
    /// They are not, or nobody knows it who looks again before so many ticks.
    NotBefore(Tick),
}

/// The first waiter of a line.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct First {
    /// Less is sooner.
    pub priority: i32,
    /// When it asked, by the clock of the boot.
    pub since: Tick,
    /// What it wants to start.
    pub units: u64,
}

/// Where a line is among those of all processes.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Turn {
    /// The lines before it. With none, it has the turn.
    pub ahead: usize,
    /// What the first waiters of these lines want to start.
    pub units: u64,
    /// For how long the line that has the turn could have used it; `None`: it cannot.
    idle: Option<Tick>,
    /// How long it cannot.
    not_before: Tick,
}

impl Turn {
    /// Returns whether this line may claim.
    pub fn is_ours(self) -> bool {
        self.ahead == 0
    }

    /// For how long the line that has the turn could have used it. `None`: it cannot, or it is this one.
    pub fn idle(self) -> Option<Tick> {
        self.idle
    }

    /// How long the line that has the turn certainly cannot use it.
    pub fn not_before(self) -> Tick {
        self.not_before
    }

    /// Returns when to look again, if nobody calls before.
    pub fn look_in(self) -> Tick {
        LOOK.max(self.not_before.min(LOOK_SOONER))
    }
}

/// The entry of a line, while it has waiters.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    entry: Option<Entry>,
    watched: Option<Watched>,
    /// The process of which the kernel was asked last whether it is dead, and when.
    asked: Option<(u64, Tick)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// The lane and the process for which it is valid.
    instance: u64,
    member: u64,
    /// Of the limit and key.
    name: u64,
    hash: Hash,
    at: usize,
    tag: u64,
    /// Kept, because a shift that is computed ahead looks to memory checkers as if it used what is not there.
    calls: u32,
}

/// A head that does not use its turn, or does not answer.
#[derive(Debug, Clone, Copy)]
struct Watched {
    head: Head,
    /// What was admitted before. `None`: its units are not free, and it is asked for a sign.
    position: Option<u64>,
    /// When this line looked last, and until when it was to look again.
    at: Tick,
    within: Tick,
    idle: Tick,
}

impl Shown {
    /// Returns whether it is among the lines of all processes.
    pub fn is_some(&self) -> bool {
        self.entry.is_some()
    }

    /// The calls that are for this line, as a sleeper at a bell names them.
    pub fn calls(&self) -> u32 {
        self.entry.map_or(u32::MAX, |entry| entry.calls)
    }

    /// Returns whether it shows another waiter than this one.
    pub(super) fn is_changed(&self, first: Option<First>) -> bool {
        self.entry.is_some_and(|entry| first.is_none_or(|first| entry.tag != tag(first.priority, first.since)))
    }

    /// Shows the first waiter, and returns where that is. `None`: there is no such line. A head of the same priority that
    /// asked less than `near` before is not waited for. `room` returns whether so many units are free. `call` wakes the
    /// line that sleeps at an entry.
    pub(crate) fn look(
        &mut self,
        found: &Key,
        first: First,
        near: Tick,
        room: impl Fn(u64) -> Result<Room, Blocked>,
        call: impl Fn(usize),
    ) -> Result<Option<Turn>, Blocked> {
        let (heads, name) = (found.home().heads(), name_of(found.limit(), found.hash));
        let Some(at) = self.show(found, heads, first) else {
            // The table is full, and it cannot be called: it takes what is free.
            let others = heads.first(name);
            return Ok(others.map(|_| Turn { ahead: 0, units: 0, idle: None, not_before: 0 }));
        };
        loop {
            let Survey { least, ahead, units } = heads.survey(name, at, near);
            let turn = Turn { ahead, units, idle: None, not_before: 0 };
            let Some(head) = least.filter(|_| ahead > 0) else {
                self.watched = None;
                return Ok(Some(turn));
            };
            let now = found.home().clock.now().floor;
            if self.finds_dead(found, head, now) {
                heads.remove(head);
                continue;
            }
            let (turn, position, most) = match room(head.units)? {
                Room::Free { position } => (turn, Some(position), IS_STOPPED),
                Room::NotBefore(not_before) => {
                    let turn = Turn { not_before, ..turn };
                    // Only if units are free for this line does it matter whether the head's runs.
                    if head.units <= first.units || matches!(room(first.units)?, Room::NotBefore(_)) {
                        self.watched = None;
                        return Ok(Some(turn));
                    }
                    (turn, None, IS_SILENT)
                }
            };
            let has_answered = position.is_none() && !head.is_asked();
            let is_same = |watched: &Watched| (watched.head, watched.position) == (head.unasked(), position);
            let watched = self.watched.filter(is_same).filter(|_| !has_answered);
            let idle = watched.map_or(0, |seen| seen.idle + now.saturating_sub(seen.at).min(seen.within));
            self.watched = Some(Watched { head: head.unasked(), position, at: now, within: turn.look_in(), idle });
            if idle < most {
                if has_answered {
                    heads.ask(head);
                }
                if watched.is_none() {
                    call(head.at);
                }
                return Ok(Some(Turn { idle: position.map(|_| idle), ..turn }));
            }
            heads.skip(head);
        }
    }

    /// Asks the kernel whether the head's process is dead, whatever is free: once, and then at each [`LOOK`].
    fn finds_dead(&mut self, found: &Key, head: Head, now: Tick) -> bool {
        if self.asked.is_some_and(|(owner, at)| owner == head.owner && now.saturating_sub(at) < LOOK) {
            return false;
        }
        let is_dead = found.home().is_dead(head.owner);
        self.asked = (!is_dead).then_some((head.owner, now));
        is_dead
    }

    /// [Shows](Shown::change) another first waiter, or none. If it fails, the line leaves until it looks again: nobody waits
    /// for a waiter that may have gone.
    pub(crate) fn show_next(
        shown: &Cell<Shown>,
        limit: &Limit,
        change: impl Fn(&mut Shown, &Key) -> Result<(), Blocked>,
    ) {
        let Some(entry) = shown.get().entry else { return };
        let by_key = |found: &Key| {
            let mut own = shown.get();
            let changed = change(&mut own, found);
            shown.set(own);
            changed
        };
        if !limit.store().is_closed() && matches!(limit.with_known(entry.hash, by_key), Ok(Some(()))) {
            return;
        }
        // (It may have left before it failed.)
        if let Some(entry) = shown.take().entry
            && let Some((home, member)) = limit.last_membership()
            && (entry.instance, entry.member) == (home.instance, member)
        {
            home.heads().leave(entry.at, member);
        }
    }

    /// Shows another first waiter, or none, and lets whoever has the turn then use it.
    pub(crate) fn change(
        &mut self,
        found: &Key,
        first: Option<First>,
        room: impl Fn(u64) -> Result<Room, Blocked>,
        call: impl Fn(usize),
    ) -> Result<(), Blocked> {
        let heads = found.home().heads();
        match first {
            Some(first) => _ = self.show(found, heads, first),
            None => self.leave(found, heads),
        }
        let least = heads.first(name_of(found.limit(), found.hash));
        let others = least.filter(|head| self.entry.is_none_or(|entry| entry.at != head.at));
        if let Some(head) = others
            && matches!(room(head.units)?, Room::Free { .. })
        {
            call(head.at);
        }
        Ok(())
    }

    /// The number of the line's entry, which shows this waiter from now on.
    fn show(&mut self, found: &Key, heads: Heads, First { priority, since, units }: First) -> Option<usize> {
        let (tag, member) = (tag(priority, since), found.member());
        // (The lane may be another one by now, or this a forked child. An entry that others have removed is gone.)
        let kept = self.entry.filter(|entry| entry.is_in(found) && heads.is_of(entry.at, member));
        let at = match kept {
            Some(entry) => {
                if !heads.shows(entry.at, member, tag) {
                    heads.show(entry.at, tag, units);
                }
                entry.at
            }
            None => {
                self.leave(found, heads);
                heads.join(name_of(found.limit(), found.hash), member, tag, units)?
            }
        };
        let (instance, name) = (found.home().instance, name_of(found.limit(), found.hash));
        self.entry = Some(Entry { instance, member, name, hash: found.hash, at, tag, calls: calls_of(at) });
        Some(at)
    }

    fn leave(&mut self, found: &Key, heads: Heads) {
        if let Some(entry) = self.entry.take().filter(|entry| entry.is_valid(found)) {
            heads.leave(entry.at, entry.member);
        }
    }
}

impl Entry {
    /// Returns whether it is of this lane and process.
    fn is_valid(&self, found: &Key) -> bool {
        (self.instance, self.member) == (found.home().instance, found.member())
    }

    /// The same, and of this limit and key.
    fn is_in(&self, found: &Key) -> bool {
        self.is_valid(found) && (self.name, self.hash) == (name_of(found.limit(), found.hash), found.hash)
    }
}

/// Returns whether a caller that does not have the turn would pass others that wait.
#[inline]
pub(crate) fn is_awaited(found: &Key) -> bool {
    found.home().is_lane() && {
        let (heads, name) = (found.home().heads(), name_of(found.limit(), found.hash));
        heads.may_wait(name) && heads.first(name).is_some()
    }
}

/// The calls for an entry. (Some entries share one.)
pub(crate) fn calls_of(at: usize) -> u32 {
    1 << (at % 32)
}
