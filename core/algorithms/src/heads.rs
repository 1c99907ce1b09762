//! The heads of lines: who waits first in each line of a limit and key, so that the lines of all processes are one.
//! Lock-free.
//!
//! Each line is sorted by itself. So the least of the heads is the least of all waiters, and its line has the *turn*: it
//! alone claims. This admits nothing. It makes lines hold back. So whatever these words hold, no limit is exceeded; a
//! wrong word costs order, or time.
//!
//! # Shape
//!
//! A table of entries, four words each. The entries of one name are in the *reach* of the name's bucket: so many entries
//! from the bucket's first one on, round the end of the table.
//!
//! ```text
//! entry   [ owner ] [ name ] [ tag ] [ units ]
//! tag     [ priority, 12 ][ tick of asking, 50 ][ asked, 1 ][ skipped, 1 ]    less is sooner; 0: nobody waits
//! reach   [ joins, 32 ][ entries, 32 ]
//! ```
//!
//! * `owner`: the process, by a number that no other process ever has. 0: the entry is free.
//! * `name`: of the limit and key.
//! * `units`: what the head wants to start.
//! * `asked`: another line asks for a sign that this one runs. It gives it by showing its head again.
//! * `joins` grows with each line that joins.
//!
//! A limit that tenants share has a table of its own: [`Heads::of_tenants`]. Each name in it is a tenant, and has its lines.
//! All of them are one line, in the order of what their tenants have had ([`shares`](crate::shares)), and then of their tags.
//!
//! # Correctness
//!
//! 1. *An entry has one owner.* It is taken by a compare-and-swap from 0. Only its owner frees it, or whoever knows
//!    that its owner is dead and has removed its tag.
//! 2. *A tag is published last and removed first.* A reader trusts a head if its tag is the same before and after its
//!    other words.
//! 3. *Published is no later than true.* A line shows its first waiter before it asks for a start. Its tag is changed by
//!    its owner, or marked or removed by a compare-and-swap from the tag that was judged. An owner whose tag was changed
//!    by others shows it again when it looks.
//! 4. *Reaches cover their entries.* A line that joins raises the reach, and the number of joins, before its tag is
//!    published. A reach shrinks by a compare-and-swap from the word that was read before its entries were. So a line
//!    that joined in between makes it fail; one that joins later raises it again.
//! 5. *No ring is lost.* A line shows its tag, then asks for units ([`Heads::show`] has a fence). Whoever returns units
//!    then looks for the least head ([`Heads::first`] has the other fence). One of the two sees the other's store.
//! 6. *A death is harmless.* What it leaves belongs to its owner, and is removed by whoever finds it in the way, or by
//!    the next process that arrives.
//!
//! `heads_search.rs` visits everything that three processes can do with these words, of which one dies or is stopped at any step.
//!
//! # Orderings
//!
//! Tags are changed with `AcqRel`, after the other words of their entry, and read with `Acquire`, before them and, after
//! another fence, again. Owners and reaches are changed with `AcqRel`. The two fences of (5) are `SeqCst`: nothing less
//! keeps the order of a store and a later load of another word.

use crate::atomic::{AtomicU64, *};
use crate::fault;
use crate::shares::Shares;
use crate::time::Tick;

/// The words of an entry.
pub const ENTRY_WORDS: u64 = 4;

/// The number of entries for each bucket.
const BUCKET: usize = 8;

/// The priorities that are told apart.
const MOST_URGENT: i32 = -2_047;
const LEAST_URGENT: i32 = 2_047;

const SKIPPED: u64 = 1;
const ASKED: u64 = 2;
const SINCE: u32 = 2;
const PRIORITY: u32 = 52;
const ANY_SINCE: u64 = (1 << (PRIORITY - SINCE)) - 1;
const JOINS: u32 = 32;
const ANY_REACH: u64 = (1 << JOINS) - 1;

/// The order of a waiter among all: less is sooner. Never 0.
pub fn tag(priority: i32, since: Tick) -> u64 {
    let priority = (priority.clamp(MOST_URGENT, LEAST_URGENT) - MOST_URGENT + 1) as u64;
    priority << PRIORITY | (since & ANY_SINCE) << SINCE
}

/// The table of heads, in cells that live elsewhere.
#[derive(Clone, Copy)]
pub struct Heads<'a> {
    /// [`ENTRY_WORDS`] for each entry.
    entries: &'a [[AtomicU64; ENTRY_WORDS as usize]],
    /// One for each bucket.
    reaches: &'a [AtomicU64],
    /// Where the names are tenants of one limit.
    shares: Option<Shares<'a>>,
}

/// The first waiter of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The number of its entry.
    pub at: usize,
    /// Its order.
    pub tag: u64,
    /// The limit and key of the line, or its tenant.
    pub name: u64,
    /// The process of the line.
    pub owner: u64,
    /// What it wants to start.
    pub units: u64,
}

impl Head {
    /// Returns whether it was [asked](Heads::ask) for a sign, and has not given it.
    pub fn is_asked(&self) -> bool {
        self.tag & ASKED != 0
    }

    /// The same, before it was asked.
    pub fn unasked(self) -> Head {
        Head { tag: self.tag & !ASKED, ..self }
    }
}

/// The heads of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Survey {
    /// The least head: its line has the turn. `None`: nobody waits who is not skipped.
    pub least: Option<Head>,
    /// The number of heads before the one that was asked about.
    pub ahead: usize,
    /// What these want to start.
    pub units: u64,
}

impl Head {
    /// When its waiter asked.
    pub fn since(&self) -> Tick {
        self.tag >> SINCE & ANY_SINCE
    }

    /// Its waiter's priority, among those that are told apart.
    pub fn priority(&self) -> i32 {
        (self.tag >> PRIORITY) as i32 - 1 + MOST_URGENT
    }

    /// Returns whether it is [skipped](Heads::skip).
    pub fn is_skipped(&self) -> bool {
        self.tag & SKIPPED != 0
    }
}

impl<'a> Heads<'a> {
    /// The number of words of a table of so many entries.
    pub const fn words(entries: u64) -> u64 {
        entries * ENTRY_WORDS + entries / BUCKET as u64
    }

    /// The table in these words. Fewer words than two buckets are a table without entries.
    pub fn new(words: &'a [AtomicU64]) -> Heads<'a> {
        let buckets = words.len() / (BUCKET * ENTRY_WORDS as usize + 1);
        let (entries, reaches) = words.split_at(words.len() - buckets);
        let entries = &entries.as_chunks().0[..buckets * BUCKET];
        Heads { entries, reaches, shares: None }
    }

    /// The number of words of a table of the tenants of one limit.
    pub const fn words_of_tenants(entries: u64) -> u64 {
        entries * ENTRY_WORDS + 1
    }

    /// The table of a limit's tenants in these words. No words are a table without entries.
    pub fn of_tenants(words: &'a [AtomicU64], shares: Shares<'a>) -> Heads<'a> {
        let (entries, reaches) = words.split_at(words.len().saturating_sub(1));
        Heads { entries: entries.as_chunks().0, reaches, shares: Some(shares) }
    }

    /// What the tenants have had, where the names are those of tenants.
    pub fn shares(&self) -> Option<Shares<'a>> {
        self.shares
    }

    /// The entries of a bucket, from its first one on, and their numbers.
    fn from(&self, bucket: usize) -> impl Iterator<Item = (usize, &'a [AtomicU64; 4])> {
        let (count, entries) = (self.entries.len(), self.entries);
        (0..count).map(move |i| {
            let at = (bucket * BUCKET + i) % count;
            (at, &entries[at])
        })
    }

    fn bucket(&self, name: u64) -> usize {
        (name % self.reaches.len() as u64) as usize
    }

    /// Joins a line, with its head. Returns the number of its entry; `None`: the table is full.
    pub fn join(&self, name: u64, owner: u64, tag: u64, units: u64) -> Option<usize> {
        if self.reaches.is_empty() {
            return None;
        }
        let bucket = self.bucket(name);
        let is_taken = |[cell, ..]: &[AtomicU64; 4]| {
            // (1)
            cell.load(Relaxed) == 0 && cell.compare_exchange(0, owner, AcqRel, Relaxed).is_ok()
        };
        let (distance, (at, entry)) = self.from(bucket).enumerate().find(|(_, (_, e))| is_taken(e))?;
        fault::point("head-taken");
        entry[1].store(name, Release);
        // (4)
        let raised = |word: u64| {
            let joins = (word >> JOINS).wrapping_add(1);
            Some(joins << JOINS | (word & ANY_REACH).max(distance as u64 + 1))
        };
        let _ = self.reaches[bucket].fetch_update(AcqRel, Acquire, raised);
        fault::point("head-reached");
        self.show(at, tag, units);
        Some(at)
    }

    /// Shows another head of a line that has joined.
    pub fn show(&self, at: usize, tag: u64, units: u64) {
        let Some([_, _, shown, wants]) = self.entries.get(at) else { return };
        wants.store(units, Relaxed);
        // (2), and no mark of an earlier tag comes after it.
        shown.swap(tag, AcqRel);
        // (5)
        fence(SeqCst);
    }

    /// Returns whether an entry still shows this head of this process, and nobody skips it.
    pub fn shows(&self, at: usize, owner: u64, tag: u64, units: u64) -> bool {
        self.entries.get(at).is_some_and(|[cell, _, shown, wants]| {
            shown.load(Acquire) == tag && wants.load(Relaxed) == units && cell.load(Relaxed) == owner
        })
    }

    /// Returns whether an entry is this process's.
    pub fn is_of(&self, at: usize, owner: u64) -> bool {
        self.entries.get(at).is_some_and(|[cell, ..]| cell.load(Acquire) == owner)
    }

    /// Leaves: nobody waits in this line any more.
    pub fn leave(&self, at: usize, owner: u64) {
        if let Some([cell, _, shown, _]) = self.entries.get(at).filter(|_| self.is_of(at, owner)) {
            // (2)
            shown.swap(0, AcqRel);
            fault::point("head-hidden");
            // (1)
            let _ = cell.compare_exchange(owner, 0, AcqRel, Relaxed);
        }
    }

    /// Returns whether a line of this name may wait. It costs one load where none does.
    #[inline]
    pub fn may_wait(&self, name: u64) -> bool {
        !self.reaches.is_empty() && self.reaches[self.bucket(name)].load(Acquire) & ANY_REACH != 0
    }

    /// The least head of a name.
    pub fn first(&self, name: u64) -> Option<Head> {
        self.survey(name, usize::MAX, 0).least
    }

    /// The units that the heads want which come before a waiter of this name with this tag, that is not shown.
    pub fn units_before(&self, name: u64, tag: u64) -> u64 {
        if self.reaches.is_empty() {
            return 0;
        }
        let bucket = self.bucket(name);
        let reach = (self.reaches[bucket].load(Acquire) & ANY_REACH) as usize;
        let order = self.order();
        let own = order(&Head { at: usize::MAX, tag, name, owner: 0, units: 0 });
        let heads = self.from(bucket).take(reach).filter_map(|(at, entry)| self.read(at, entry, name));
        let before = heads.filter(|head| head.tag & SKIPPED == 0 && order(head) < own);
        before.fold(0, |units, head| units.saturating_add(head.units))
    }

    /// Looks at all heads of a name, from an entry of it. Those of the same priority that asked less than `near` before are
    /// not counted. Without that entry all are.
    pub fn survey(&self, name: u64, mine: usize, near: Tick) -> Survey {
        let order = self.order();
        let own = self.entries.get(mine).and_then(|entry| self.read(mine, entry, name)).map(|own| order(&own));
        let (mut all, mut least) = (Survey { least: None, ahead: 0, units: 0 }, None);
        self.each(name, |head| {
            let its @ (lead, tag, at) = order(&head);
            if own.is_none_or(|own| (lead, tag.saturating_add(near << SINCE), at) < own) {
                (all.ahead, all.units) = (all.ahead + 1, all.units.saturating_add(head.units));
            }
            if least.is_none_or(|least| its < least) {
                (all.least, least) = (Some(head), Some(its));
            }
        });
        all
    }

    /// The least head of a name among these entries, and whether it is the least of all.
    pub fn first_of(&self, name: u64, mut is_among: impl FnMut(usize) -> bool) -> Option<(Head, bool)> {
        let order = self.order();
        let (mut first, mut least) = (None, None);
        self.each(name, |head| {
            let its = order(&head);
            if least.is_none_or(|least| its < least) {
                least = Some(its);
            }
            if first.is_none_or(|(_, first)| its < first) && is_among(head.at) {
                first = Some((head, its));
            }
        });
        first.map(|(head, its)| (head, Some(its) == least))
    }

    /// Shows all heads of a name that are not skipped.
    fn each(&self, name: u64, mut see: impl FnMut(Head)) {
        // (5)
        fence(SeqCst);
        if self.reaches.is_empty() {
            return;
        }
        let bucket = self.bucket(name);
        let seen = self.reaches[bucket].load(Acquire);
        fault::surveyed();
        let mut last = 0;
        for (i, (at, entry)) in self.from(bucket).take((seen & ANY_REACH) as usize).enumerate() {
            let [owner, other, ..] = entry;
            if owner.load(Acquire) == 0 || self.bucket(other.load(Acquire)) != bucket {
                continue;
            }
            last = i as u64 + 1;
            self.read(at, entry, name).filter(|head| head.tag & SKIPPED == 0).into_iter().for_each(&mut see);
        }
        if last < seen & ANY_REACH {
            // (4)
            let _ = self.reaches[bucket].compare_exchange(seen, seen & !ANY_REACH | last, AcqRel, Relaxed);
        }
    }

    /// The order of heads, as of now: by the lead of the tenant, where there are some, and then by tag. Less is sooner.
    fn order(&self) -> impl Fn(&Head) -> (u64, u64, usize) {
        let shares = self.shares.map(|shares| (shares, shares.now()));
        move |head| (shares.map_or(0, |(shares, now)| shares.lead(head.name, now)), head.tag & !ASKED, head.at)
    }

    /// The heads of a name, or of all tenants, the next one first, and those that are skipped last: for observers.
    pub fn in_order(&self, name: u64) -> Vec<Head> {
        let entries = self.entries.iter().enumerate();
        let mut all: Vec<Head> = entries.filter_map(|(at, entry)| self.read(at, entry, name)).collect();
        let order = self.order();
        all.sort_by_key(|head| (head.tag & SKIPPED, order(head)));
        all
    }

    /// Returns whether a waiter of this name with this tag, which may be its line's head, comes before a head or is it.
    pub fn is_before(&self, (name, tag): (u64, u64), head: &Head) -> bool {
        let order = self.order();
        order(&Head { name, tag, ..*head }) <= order(head)
    }

    /// The head that an entry shows, if it is of this name, or of any tenant.
    fn read(&self, at: usize, [owner, own, shown, wants]: &[AtomicU64; 4], name: u64) -> Option<Head> {
        let tag = shown.load(Acquire);
        let own = own.load(Acquire);
        if tag == 0 || own != name && self.shares.is_none() {
            return None;
        }
        let head = Head { at, tag, name: own, owner: owner.load(Acquire), units: wants.load(Acquire) };
        // (2)
        fence(Acquire);
        (shown.load(Relaxed) == tag).then_some(head)
    }

    /// Asks the line of a head for a sign that it runs: it shows itself again.
    pub fn ask(&self, head: Head) {
        self.mark(head, ASKED);
    }

    /// Skips a head whose process does not run. It comes first again when it does.
    pub fn skip(&self, head: Head) {
        self.mark(head, SKIPPED);
    }

    fn mark(&self, head: Head, mark: u64) {
        if let Some([_, _, shown, _]) = self.entries.get(head.at) {
            // (3)
            let _ = shown.compare_exchange(head.tag, head.tag | mark, AcqRel, Relaxed);
        }
    }

    /// Removes a head whose process is dead.
    pub fn remove(&self, head: Head) {
        if let Some([cell, _, shown, _]) = self.entries.get(head.at)
            // (3)
            && shown.compare_exchange(head.tag, 0, AcqRel, Relaxed).is_ok()
        {
            fault::point("head-removed");
            // (1)
            let _ = cell.compare_exchange(head.owner, 0, AcqRel, Relaxed);
        }
    }

    /// Frees what dead processes have left (6).
    pub fn sweep(&self, is_dead: impl Fn(u64) -> bool) {
        for [cell, _, shown, _] in self.entries {
            let owner = cell.load(Acquire);
            if owner != 0 && is_dead(owner) {
                let tag = shown.load(Acquire);
                // (1), (3)
                if tag == 0 || shown.compare_exchange(tag, 0, AcqRel, Relaxed).is_ok() {
                    let _ = cell.compare_exchange(owner, 0, AcqRel, Relaxed);
                }
            }
        }
    }
}

#[cfg(all(test, model))]
#[path = "heads_models.rs"]
mod models;

#[cfg(all(test, not(model)))]
#[path = "heads_search.rs"]
mod search;

#[cfg(all(test, not(model)))]
mod tests {
    use super::*;

    fn table(entries: u64) -> Vec<AtomicU64> {
        (0..Heads::words(entries)).map(|_| AtomicU64::new(0)).collect()
    }

    #[test]
    fn the_least_head_is_the_most_urgent_and_then_the_oldest() {
        let words = table(16);
        let heads = Heads::new(&words);
        assert_eq!((heads.first(7), heads.may_wait(7)), (None, false));
        let late = heads.join(7, 1, tag(0, 30), 1).unwrap();
        let early = heads.join(7, 2, tag(0, 20), 3).unwrap();
        let other = heads.join(8, 2, tag(0, 10), 1).unwrap();
        let least = heads.survey(7, late, 0);
        let expected = Head { at: early, tag: tag(0, 20), name: 7, owner: 2, units: 3 };
        assert_eq!(least, Survey { least: Some(expected), ahead: 1, units: 3 });
        assert_eq!([25, 35].map(|since| heads.units_before(7, tag(0, since))), [3, 4]);
        let urgent = heads.join(7, 1, tag(-1, 90), 1).unwrap();
        assert_eq!((heads.units_before(7, tag(0, 10)), heads.units_before(9, tag(0, 99))), (1, 0));
        assert_eq!(heads.survey(7, early, 0).least.map(|head| head.at), Some(urgent));
        assert_eq!(heads.survey(7, late, 0).ahead, 2);
        heads.show(urgent, tag(i32::MAX, 1), 1);
        assert_eq!((heads.survey(7, late, 0).ahead, heads.survey(7, urgent, 0).ahead), (1, 2));
        heads.leave(early, 2);
        heads.leave(late, 1);
        heads.leave(urgent, 1);
        assert_eq!((heads.first(7), heads.first(8).map(|h| h.at)), (None, Some(other)));
        assert!(!heads.may_wait(7) && heads.may_wait(8), "a bucket that nobody uses costs nothing");
    }

    #[test]
    fn whoever_is_skipped_or_removed_is_not_waited_for_and_an_owner_shows_its_head_again() {
        let words = table(16);
        let heads = Heads::new(&words);
        let first = heads.join(7, 1, tag(0, 10), 1).unwrap();
        let second = heads.join(7, 2, tag(0, 20), 1).unwrap();
        let head = heads.survey(7, second, 0).least.unwrap();
        heads.skip(head);
        assert!(!heads.shows(first, 1, head.tag, head.units) && heads.is_of(first, 1));
        assert_eq!(heads.survey(7, second, 0).ahead, 0);
        heads.skip(head);
        heads.remove(head);
        assert!(heads.is_of(first, 1), "it was judged before it changed");
        heads.show(first, head.tag, 1);
        assert_eq!(heads.survey(7, second, 0), Survey { least: Some(head), ahead: 1, units: 1 });
        heads.remove(head);
        assert!(!heads.is_of(first, 1));
        assert_eq!(heads.first(7).map(|head| head.at), Some(second));
        heads.sweep(|owner| owner == 2);
        assert_eq!((heads.first(7), heads.may_wait(7)), (None, false));
    }

    #[test]
    fn whoever_is_asked_for_a_sign_keeps_its_turn_and_gives_it_by_showing_itself() {
        let words = table(16);
        let heads = Heads::new(&words);
        let first = heads.join(7, 1, tag(0, 10), 3).unwrap();
        let second = heads.join(7, 2, tag(0, 10), 1).unwrap();
        let head = heads.first(7).unwrap();
        heads.ask(head);
        let asked = heads.first(7).unwrap();
        assert_eq!((asked.at, asked.is_asked(), asked.unasked()), (first, true, head));
        assert_eq!((heads.survey(7, second, 0).ahead, heads.survey(7, first, 0).ahead), (1, 0));
        assert!(!heads.shows(first, 1, head.tag, head.units), "its line sees that it is asked");
        heads.show(first, head.tag, 3);
        assert_eq!(heads.first(7), Some(head));
        heads.skip(asked);
        assert_eq!(heads.first(7), Some(head), "it gave the sign");
    }

    #[test]
    fn a_full_table_and_any_words_are_no_harm() {
        let words = table(16);
        let heads = Heads::new(&words);
        let joined: Vec<usize> = (0..16).map(|i| heads.join(i % 3, 1 + i, tag(0, i), 1).unwrap()).collect();
        assert_eq!(heads.join(5, 1, tag(0, 1), 1), None);
        joined.iter().zip(1..).for_each(|(at, owner)| heads.leave(*at, owner));
        (0..3).for_each(|name| assert_eq!(heads.first(name), None));
        for value in [1, u64::MAX, 1 << 63, 77] {
            words.iter().for_each(|word| word.store(value, Relaxed));
            let least = heads.survey(value, 99, 0).least;
            least.into_iter().for_each(|head| (heads.skip(head), heads.remove(head)).0);
            heads.leave(1 << 40, 1);
        }
        assert_eq!(Heads::new(&[]).join(1, 1, 1, 1), None);
        assert_eq!(Heads::new(&[]).first(1), None);
    }
}
