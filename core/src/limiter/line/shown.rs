//! What a line shows to those of other processes: its first waiter. Of all that are shown, the least has the turn.
//!
//! Nobody waits for a process that does not use its turn. Units that are free for the head, while nothing is admitted,
//! are a sign that its process is dead, which the kernel knows, or does not run. Then it is removed, or skipped until it
//! shows itself again.

use crate::algorithm::heads::{Head, Heads, Survey, tag};
use crate::hash::Hash;
use crate::state::{Blocked, Key, name_of};
use crate::time::Tick;

/// For how long units are free for a head before the kernel is asked whether its process is dead, in ticks.
const IS_LATE: Tick = 2_000;

/// For how long they are before it is skipped.
const IS_STOPPED: Tick = 50_000;

/// The interval at which a line looks that would notice the death or stop of the head. More time between two looks counts
/// as this: the one who looks was stopped itself.
const LOOK: Tick = 20_000;

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
    /// For how long the line that has the turn could have used it; `None`: it cannot.
    idle: Option<Tick>,
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

    /// Returns when to look again, if nobody calls before. (Those behind the second look ever more rarely: the first two
    /// notice what happens to one another.)
    pub fn look_in(self) -> Tick {
        match self.idle {
            Some(idle) if idle < IS_LATE => IS_LATE,
            Some(_) => LOOK,
            None => LOOK << self.ahead.saturating_sub(1).min(5),
        }
    }
}

/// The entry of a line, while it has waiters.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    entry: Option<Entry>,
    watched: Option<Watched>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// The lane and the process for which it is valid.
    instance: u64,
    member: u64,
    hash: Hash,
    at: usize,
    tag: u64,
}

/// A head that does not use its turn.
#[derive(Debug, Clone, Copy)]
struct Watched {
    head: Head,
    /// What was admitted before.
    position: u64,
    /// When this line looked last.
    at: Tick,
    idle: Tick,
}

impl Shown {
    /// Returns whether it is among the lines of all processes.
    pub fn is_some(&self) -> bool {
        self.entry.is_some()
    }

    /// The key's hash, to show another waiter.
    pub(crate) fn hash(&self) -> Option<Hash> {
        self.entry.map(|entry| entry.hash)
    }

    /// The calls that are for this line, as a sleeper at a bell names them.
    pub fn calls(&self) -> u32 {
        self.entry.map_or(u32::MAX, |entry| calls_of(entry.at))
    }

    /// Returns whether it shows another waiter than this one.
    pub(super) fn is_changed(&self, first: Option<First>) -> bool {
        self.entry.is_some_and(|entry| first.is_none_or(|first| entry.tag != tag(first.priority, first.since)))
    }

    /// Shows the first waiter, and returns where that is. `None`: there is no such line, or no space in it. `room`
    /// returns what was admitted so far, if so many units are free; `call` wakes who sleeps at an entry.
    pub(crate) fn look(
        &mut self,
        found: &Key,
        first: First,
        room: impl Fn(u64) -> Result<Option<u64>, Blocked>,
        call: impl Fn(usize),
    ) -> Result<Option<Turn>, Blocked> {
        let (heads, name) = (found.home().heads(), name_of(found.limit(), found.hash));
        let Some(at) = self.show(found, heads, first) else { return Ok(None) };
        loop {
            let Survey { least, ahead } = heads.survey(name, Some(at));
            let Some(head) = least.filter(|least| least.at != at) else {
                self.watched = None;
                return Ok(Some(Turn { ahead: 0, idle: None }));
            };
            let ahead = ahead.max(1);
            let Some(position) = room(head.units)? else {
                self.watched = None;
                return Ok(Some(Turn { ahead, idle: None }));
            };
            let now = found.home().clock.now().floor;
            let watched = self.watched.filter(|watched| (watched.head, watched.position) == (head, position));
            let idle = watched.map_or(0, |watched| watched.idle + now.saturating_sub(watched.at).min(LOOK));
            self.watched = Some(Watched { head, position, at: now, idle });
            match () {
                () if idle >= IS_LATE && found.home().is_dead(head.owner) => heads.remove(head),
                () if idle >= IS_STOPPED => heads.skip(head),
                () => {
                    if watched.is_none() {
                        call(head.at);
                    }
                    return Ok(Some(Turn { ahead, idle: Some(idle) }));
                }
            }
        }
    }

    /// Shows another first waiter, or none, and lets whoever has the turn then use it.
    pub(crate) fn change(
        &mut self,
        found: &Key,
        first: Option<First>,
        room: impl Fn(u64) -> Result<Option<u64>, Blocked>,
        call: impl Fn(usize),
    ) -> Result<(), Blocked> {
        let heads = found.home().heads();
        match first {
            Some(first) => _ = self.show(found, heads, first),
            None => {
                if let Some(entry) = self.entry.take().filter(|entry| entry.is_in(found)) {
                    heads.leave(entry.at, entry.member);
                }
            }
        }
        let least = heads.survey(name_of(found.limit(), found.hash), None).least;
        let others = least.filter(|head| self.entry.is_none_or(|entry| entry.at != head.at));
        if let Some(head) = others
            && room(head.units)?.is_some()
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
                self.entry = None;
                heads.join(name_of(found.limit(), found.hash), member, tag, units)?
            }
        };
        let instance = found.home().instance;
        self.entry = Some(Entry { instance, member, hash: found.hash, at, tag });
        Some(at)
    }
}

impl Entry {
    fn is_in(&self, found: &Key) -> bool {
        (self.instance, self.member, self.hash) == (found.home().instance, found.member(), found.hash)
    }
}

/// The calls for an entry. (Some entries share one.)
pub(crate) fn calls_of(at: usize) -> u32 {
    1 << (at % 32)
}
