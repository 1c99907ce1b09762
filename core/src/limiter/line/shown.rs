//! What a line shows to those of other processes: its first waiter. Of all that are shown, the least has the turn.
//!
//! Nobody waits for a process that does not use its turn. The kernel knows whether it is dead. Units that are free for the
//! head, while nothing is admitted, are a sign that it does not run. So is a head that wants more than is free, and does not
//! answer when it is asked. Then it is skipped until it shows itself again.

use crate::algorithm::heads::{Head, Heads, Survey, tag};
use crate::fork::PerProcess;
use crate::hash::Hash;
use crate::limiter::line::key::LOOK_SOONER;
use crate::policy::Share;
use crate::state::{Blocked, Key, Limit, LimitAt, name_of};
use crate::time::Tick;
use crate::waiting::InLine;
use std::cell::Cell;
use std::collections::HashMap;

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

/// How many lines calls that do not wait watch at the same time.
const MOST_WATCHED: usize = 1_024;

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
    /// They are not, and others hold places further ahead than lines take them: joint starts do. The line that has the turn
    /// takes one behind these as soon as it is overtaken, so it has to run.
    Beyond,
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
    /// The share of its tenant, if it is not the one that is kept.
    pub share: Option<Share>,
}

/// Where the lines are shown that form one line, and the name of one of them there.
#[doc(hidden)]
#[derive(Clone, Copy)]
pub struct Lines<'a> {
    pub(crate) heads: Heads<'a>,
    pub(crate) name: u64,
    /// A head of the same priority that asked less than this before is not waited for.
    pub(crate) near: Tick,
}

impl<'a> Lines<'a> {
    /// The lines of a limit's key in all processes.
    pub(crate) fn of(found: &Key<'a>, near: Tick) -> Lines<'a> {
        Lines { heads: found.home().heads(), name: name_of(found.limit(), found.hash), near }
    }

    /// The lines of all tenants of a shared limit, of which `name` is one. Their order has to be exact.
    pub(crate) fn of_tenant(found: &Key<'a>, name: u64) -> Option<Lines<'a>> {
        found.tenants().map(|tenants| Lines { heads: tenants.heads, name, near: 0 })
    }

    /// What is shown that a caller of usual priority who asks now would start after.
    pub(crate) fn units_before(&self, found: &Key) -> u64 {
        self.heads.units_before(self.name, tag(0, found.home().clock.now().floor))
    }
}

/// The number of this process among those that show lines. (A store of one process has no numbers.)
fn owner(found: &Key) -> u64 {
    found.member().max(1)
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
    /// Where a server says that a line is.
    pub(super) fn behind(ahead: usize) -> Turn {
        Turn { ahead, units: 0, idle: None, not_before: 0 }
    }

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
        look_in(self.not_before)
    }

    /// The same where the turn is passed from line to line, with a call: the first two look if a call was lost. Each further
    /// one looks half as often.
    pub fn look_in_by_rank(self) -> Tick {
        self.look_in().max(LOOK << self.ahead.saturating_sub(1).min(8)).min(LOOK_SOONER)
    }
}

/// When to look again where the turn cannot be used so long.
fn look_in(not_before: Tick) -> Tick {
    LOOK.max(not_before.min(LOOK_SOONER))
}

/// The entry of a line, while it has waiters.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Shown {
    entry: Option<Entry>,
    watched: Option<Watched>,
    /// Where tenants share the limit: who is charged for the places that the line holds, and with which share.
    charged: Option<(u64, Share)>,
    /// The process of which the kernel was asked last whether it is dead, and when.
    asked: Option<(u64, Tick)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    /// The lane and the process for which it is valid.
    instance: u64,
    member: u64,
    /// The limit, if its tenants' lines are shown in a table of their own.
    limit: Option<LimitAt>,
    /// Of the limit and key, or of the tenant.
    name: u64,
    hash: Hash,
    at: usize,
    tag: u64,
    units: u64,
    /// Kept, because a shift that is computed ahead looks to memory checkers as if it used what is not there.
    calls: u32,
}

/// What a line makes of its turn.
#[derive(Debug, Clone, Copy)]
enum Use {
    /// It cannot use it so long.
    NotBefore(Tick),
    /// It could have used it for so long.
    Not(Tick),
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

    /// The name of the line where it is shown.
    pub(crate) fn name(&self) -> u64 {
        self.entry.map_or(0, |entry| entry.name)
    }

    /// Where it is shown.
    pub(super) fn at(&self) -> Option<usize> {
        self.entry.map(|entry| entry.at)
    }

    /// Notes who is charged for its places.
    pub(crate) fn charge_to(&mut self, lines: Lines, share: Share) {
        self.charged = Some((lines.name, share));
    }

    pub(crate) fn charged(&self) -> Option<(u64, Share)> {
        self.charged
    }

    /// The calls that are for this line, as a sleeper at a bell names them.
    pub fn calls(&self) -> u32 {
        self.entry.map_or(u32::MAX, |entry| entry.calls)
    }

    /// Returns whether it shows another waiter than this one.
    pub(super) fn is_changed(&self, first: Option<First>) -> bool {
        self.entry.is_some_and(|entry| {
            first.is_none_or(|first| (entry.tag, entry.units) != (tag(first.priority, first.since), first.units))
        })
    }

    /// Shows the first waiter, and returns where that is. `None`: there is no such line. `room` returns whether so many units
    /// are free. `call` wakes the line that sleeps at an entry.
    pub(crate) fn look(
        &mut self,
        found: &Key,
        lines: Lines,
        first: First,
        room: impl Fn(u64) -> Result<Room, Blocked>,
        call: impl Fn(usize),
    ) -> Result<Option<Turn>, Blocked> {
        let Some(at) = self.show(found, lines, first) else {
            // The table is full, and it cannot be called: it takes what is free.
            let others = lines.heads.first(lines.name);
            return Ok(others.map(|_| Turn { ahead: 0, units: 0, idle: None, not_before: 0 }));
        };
        self.look_from(found, lines, (at, first.units), room, call)
    }

    /// The same for a line that is shown there, or a caller that is not.
    fn look_from(
        &mut self,
        found: &Key,
        Lines { heads, name, near }: Lines,
        (at, units): (usize, u64),
        room: impl Fn(u64) -> Result<Room, Blocked>,
        call: impl Fn(usize),
    ) -> Result<Option<Turn>, Blocked> {
        loop {
            let Survey { least, ahead, units: before } = heads.survey(name, at, near);
            let turn = Turn { ahead, units: before, idle: None, not_before: 0 };
            let Some(head) = least.filter(|_| ahead > 0) else {
                self.watched = None;
                return Ok(Some(turn));
            };
            match self.watch(found, heads, head, units, &room, &call)? {
                Some(Use::NotBefore(not_before)) => return Ok(Some(Turn { not_before, ..turn })),
                Some(Use::Not(idle)) => return Ok(Some(Turn { idle: Some(idle), ..turn })),
                None => {}
            }
        }
    }

    /// Returns who comes before a caller that is not shown, with this tag. `None`: nobody.
    pub(crate) fn who_is_before(
        &mut self,
        found: &Key,
        Lines { heads, name, .. }: Lines,
        (tag, units): (u64, u64),
        room: impl Fn(u64) -> Result<Room, Blocked>,
        call: impl Fn(usize),
    ) -> Result<Option<Head>, Blocked> {
        loop {
            let Some(head) = heads.first(name).filter(|head| !heads.is_before((name, tag), head)) else {
                return Ok(None);
            };
            if self.watch(found, heads, head, units, &room, &call)?.is_some() {
                return Ok(Some(head));
            }
        }
    }

    /// Returns what the line that has the turn makes of it, for one that waits for so many units. `None`: it is dead or stopped,
    /// and no longer there.
    fn watch(
        &mut self,
        found: &Key,
        heads: Heads,
        head: Head,
        units: u64,
        room: impl Fn(u64) -> Result<Room, Blocked>,
        call: impl Fn(usize),
    ) -> Result<Option<Use>, Blocked> {
        let now = found.home().clock.now().floor;
        if self.finds_dead(found, head, now) {
            heads.remove(head);
            return Ok(None);
        }
        let (position, not_before, most) = match room(head.units)? {
            Room::Free { position } => (Some(position), 0, IS_STOPPED),
            Room::NotBefore(not_before) => {
                // Only if units are free for this line does it matter whether the head's runs. (It may have been asked for a
                // sign for another caller, with fewer units: it still owes that.)
                if head.units <= units || !matches!(room(units)?, Room::Free { .. }) {
                    self.watched = self.watched.filter(|watched| watched.position.is_none());
                    return Ok(Some(Use::NotBefore(not_before)));
                }
                (None, not_before, IS_SILENT)
            }
            Room::Beyond => (None, 0, IS_SILENT),
        };
        let has_answered = position.is_none() && !head.is_asked();
        let is_same = |watched: &Watched| (watched.head, watched.position) == (head.unasked(), position);
        let watched = self.watched.filter(is_same).filter(|_| !has_answered);
        let idle = watched.map_or(0, |seen| seen.idle + now.saturating_sub(seen.at).min(seen.within));
        self.watched = Some(Watched { head: head.unasked(), position, at: now, within: look_in(not_before), idle });
        if idle < most {
            if has_answered {
                heads.ask(head);
            }
            if watched.is_none() {
                call(head.at);
            }
            return Ok(Some(position.map_or(Use::NotBefore(not_before), |_| Use::Not(idle))));
        }
        heads.skip(head);
        Ok(None)
    }

    /// Asks the kernel whether the head's process is dead, whatever is free: once, and then at each [`LOOK`].
    fn finds_dead(&mut self, found: &Key, head: Head, now: Tick) -> bool {
        if self.asked.is_some_and(|(owner, at)| owner == head.owner && now.saturating_sub(at) < LOOK) {
            return false;
        }
        let is_dead = head.owner != owner(found) && found.home().is_dead(head.owner);
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
            && (entry.instance, entry.member) == (home.instance, member.max(1))
        {
            let shared = entry.limit.and_then(|limit| home.tenants(limit, 1)).map(|tenants| tenants.heads);
            shared.unwrap_or_else(|| home.heads()).leave(entry.at, entry.member);
        }
    }

    /// Shows another first waiter, or none, and lets whoever has the turn then use it.
    pub(crate) fn change(
        &mut self,
        found: &Key,
        lines: Lines,
        first: Option<First>,
        room: impl Fn(u64) -> Result<Room, Blocked>,
        call: impl Fn(usize),
    ) -> Result<(), Blocked> {
        match first {
            Some(first) => _ = self.show(found, lines, first),
            None => self.leave(found, lines.heads),
        }
        let least = lines.heads.first(lines.name);
        let others = least.filter(|head| self.entry.is_none_or(|entry| entry.at != head.at));
        if let Some(head) = others
            && matches!(room(head.units)?, Room::Free { .. })
        {
            call(head.at);
        }
        Ok(())
    }

    /// The number of the line's entry, which shows this waiter from now on.
    fn show(&mut self, found: &Key, lines: Lines, First { priority, since, units, .. }: First) -> Option<usize> {
        let Lines { heads, name, .. } = lines;
        let (tag, member) = (tag(priority, since), owner(found));
        // (The lane may be another one by now, or this a forked child. An entry that others have removed is gone.)
        let kept = self.entry.filter(|entry| entry.is_in(found, name) && heads.is_of(entry.at, member));
        let at = match kept {
            Some(entry) => {
                if !heads.shows(entry.at, member, tag, units) {
                    heads.show(entry.at, tag, units);
                }
                entry.at
            }
            None => {
                self.leave(found, heads);
                heads.join(name, member, tag, units)?
            }
        };
        let instance = found.home().instance;
        let limit = heads.shares().map(|_| found.limit());
        self.entry =
            Some(Entry { instance, member, limit, name, hash: found.hash, at, tag, units, calls: calls_of(at) });
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
        (self.instance, self.member) == (found.home().instance, owner(found))
    }

    /// The same, and of this limit and key.
    fn is_in(&self, found: &Key, name: u64) -> bool {
        self.is_valid(found) && (self.name, self.hash) == (name, found.hash)
    }
}

/// What calls that do not wait have seen of the lines that come before them, by the lines' names. So they skip a process that does
/// not run, as lines do.
#[derive(Debug, Default)]
pub(crate) struct Passers(PerProcess<HashMap<u64, Shown>>);

impl Passers {
    /// Returns what the waiters want to start that come before a start of this weight now, which does not wait, and who are not
    /// known to be dead or stopped. `None`: there are none.
    pub(crate) fn units_before(
        &self,
        found: &Key,
        weight: u64,
        room: impl Fn(u64) -> Result<Room, Blocked>,
        call: impl Fn(usize),
    ) -> Result<Option<u64>, Blocked> {
        if !may_have_line(found) || InLine::is_here() {
            return Ok(None);
        }
        let (lines, now) = (Lines::of(found, 0), found.home().clock.now().floor);
        let mut seen = self.0.lock().get(&lines.name).copied().unwrap_or_default();
        if seen.who_is_before(found, lines, (tag(0, now), weight), room, call)?.is_none() {
            self.0.lock().remove(&lines.name);
            return Ok(None);
        }
        let mut all = self.0.lock();
        if all.len() >= MOST_WATCHED {
            all.clear();
        }
        all.insert(lines.name, seen);
        Ok(Some(lines.units_before(found)))
    }
}

/// Returns whether a caller that does not have the turn would pass others that wait.
#[inline]
pub(crate) fn is_awaited(found: &Key) -> bool {
    may_have_line(found) && Lines::of(found, 0).heads.first(name_of(found.limit(), found.hash)).is_some()
}

/// Returns whether a line for the key may be shown. It costs one load where none is.
#[inline]
pub(crate) fn may_have_line(found: &Key) -> bool {
    found.home().is_lane() && found.home().heads().may_wait(name_of(found.limit(), found.hash))
}

/// Returns what the lines of all processes show that a caller of usual priority who asks now would start after.
pub(crate) fn units_before(found: &Key) -> u64 {
    match found.home().is_lane() {
        true => Lines::of(found, 0).units_before(found),
        false => 0,
    }
}

/// The calls for an entry. (Some entries share one.)
pub(crate) fn calls_of(at: usize) -> u32 {
    1 << (at % 32)
}
