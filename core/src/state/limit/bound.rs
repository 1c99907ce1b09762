//! Where a limiter found its limit. It is declared or attached at the first use, and one load away from then on.
//!
//! 1. *What was published stays.* Another thread may still use a finding or a table that was replaced. So each is
//!    published whole (`Release`, read with `Acquire`) and freed only with its limiter.
//! 2. *A table's words never change*, and never belong to another table. So what was read once is still right; the lookup
//!    of a key shows whether it is still the limit's table.
//! 3. *The life of the key "" is written first and read first.* So it is the block's life or an earlier one, in which no
//!    decision succeeds, and words of the block that are read afterwards belong to that life or a later one.
//! 4. *What belongs to a key is read before the decision.* If the life is still the same then, all of it was the key's.
//! 5. *A finding is valid for one epoch.* `fork::validity` changes after the epoch did. It is read before the epoch is
//!    checked, so a later change shows at the next call.

use super::{Key, Limit, STORE_ERRORS};
use crate::atomic::*;
use crate::error::{Error, Result};
use crate::hash::Hash;
use crate::state::cells::block::{gate_in, hash_in};
use crate::state::cells::home::{AtOnce, Blocked, Home, KeyAt, Table};
use crate::state::cells::layout::{BlockAt, LimitAt, TableAt, key_word};
use crate::state::cells::locked::Locked;
use crate::state::counts::Counts;
use crate::state::session::made::Made;
use crate::time::monotonic_ns;
use crate::{fault, fork, policy};
use siphasher::sip128::SipHasher13;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::time::Duration;

/// Where a limit was found, and the finding that this one replaced (1).
#[derive(Debug)]
pub(crate) struct Bound {
    home: *const Home,
    pub(super) limit: LimitAt,
    /// The hasher of its keys.
    hasher: SipHasher13,
    /// The gate of all its keys.
    gate: *const AtomicU64,
    /// The epoch for which this is valid: see `Session::epoch`.
    epoch: u64,
    /// The value of [`fork::validity`] at which the epoch was last checked.
    seen: AtomicU64,
    /// The table that applies to the limit. Never null.
    current: AtomicPtr<Decoded>,
    /// The number of this process there, for leases: see [`crate::algorithm::leases`].
    pub(super) member: u64,
    pub(super) counts: Arc<Counts>,
    /// Until when this process does not wait for the structure lock to let a ring grow, by the monotonic clock: see [`Busy`].
    rests_until: [AtomicU64; 2],
    before: *mut Bound,
}

/// For how long others held the structure lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Busy {
    /// For the store's timeout.
    Long,
    /// For longer than callers on an event loop wait.
    Briefly,
}

/// A table as it was read, and the one that it replaced (1). (A table in the store is larger, and is not reused either.)
#[derive(Debug)]
struct Decoded {
    table: Table,
    /// The words that hold the root of its index and the place of the block of the key "".
    index: *const AtomicU64,
    empty_key: *const AtomicU64,
    /// Where that block was found last, or 0, below the size of its ring, and in which life: see
    /// [`Bound::empty_at_once`].
    empty_at: AtomicU64,
    empty_life: AtomicU64,
    is_looking: AtomicBool,
    before: *mut Decoded,
}

impl Decoded {
    fn new(home: &Home, table: Table, before: *mut Decoded) -> *mut Decoded {
        let [empty_at, empty_life] = [const { AtomicU64::new(0) }; 2];
        let (index, empty_key): (*const _, *const _) = (home.index(&table).root_word(), home.of(&table).empty_key());
        Box::into_raw(Box::new(Decoded {
            table,
            index,
            empty_key,
            empty_at,
            empty_life,
            is_looking: AtomicBool::new(false),
            before,
        }))
    }
}

impl Bound {
    #[inline(always)]
    pub(super) fn home(&self) -> &Home {
        // SAFETY: a store keeps its homes for as long as it lives, and the limiter keeps its store.
        unsafe { &*self.home }
    }

    #[inline(always)]
    fn current(&self) -> &Decoded {
        // SAFETY: never null, and freed only by `drop` (1).
        unsafe { &*self.current.load(Acquire) }
    }

    /// Returns whether this process did not get the structure lock lately.
    #[cold]
    pub(super) fn rests(&self, after: Busy) -> bool {
        monotonic_ns() < self.rests_until[after as usize].load(Relaxed)
    }

    /// Notes that it did not, for a while.
    pub(super) fn rest(&self, after: Busy, during: Duration) {
        self.rests_until[after as usize].store(monotonic_ns() + during.as_nanos() as u64, Relaxed);
    }

    /// Changes the number of callers of this process that wait.
    pub(super) fn waits_more(&self, by: i64) {
        self.counts.waits_more(by);
        if self.home().is_lane() {
            self.home().members().waits_more(self.limit, self.member, by);
        }
    }

    /// The limit's table, as this limiter knows it (2).
    #[inline(always)]
    pub fn table(&self) -> &Table {
        &self.current().table
    }

    /// Runs a function with a key, if the key is in its usual place and nothing blocks it. With `or_before`, the key's
    /// previous policy may apply.
    #[inline(always)]
    pub(super) fn try_with<R>(
        &self,
        or_before: bool,
        find: &impl Fn(&Home, &Table) -> Result<KeyAt, Blocked>,
        f: &impl Fn(&Key) -> Result<R, Blocked>,
    ) -> Result<R, Stuck<'_>> {
        let (home, table) = (self.home(), self.table());
        let tried = || {
            fault::point("resolved");
            let key = find(home, table)?;
            let own = home.of(table).own_of(key);
            self.check_own(table, own.as_ref(), or_before)?;
            let table = own.as_ref().unwrap_or(table);
            f(&self.key(table, key, home.block(key.at).words(table)).with_gate_alone())
        };
        tried().map_err(|blocked| Stuck { bound: self, blocked, table: table.at })
    }

    /// Checks that the table of a key that is not on the limit's own may be used. With `or_before`, it may be an earlier one.
    #[inline(always)]
    pub(super) fn check_own(&self, table: &Table, own: Option<&Table>, or_before: bool) -> Result<(), Blocked> {
        match own {
            Some(own) if !or_before && self.home().of(table).is_left_behind(own) => Err(Blocked::Outdated),
            _ => Ok(()),
        }
    }

    /// Finds a key in the common case: it exists, its limit's table applies to it and decides [`AtOnce`], and a start
    /// may have that weight. Neither this nor the operations on the result unwind, whatever the lane holds: everything
    /// there that may unwind has a [door](Home::behind_door) of its own.
    #[inline(always)]
    pub fn find_at_once(&self, key: &str, weight: u64) -> Option<Key<'_>> {
        self.find_if(|at_once| !matches!(at_once, AtOnce::Nothing), key, weight)
    }

    /// The same, if it is decided on in this way. (Another table may have replaced the one that the caller read.)
    #[inline(always)]
    pub fn find_as(&self, kind: AtOnce, key: &str, weight: u64) -> Option<Key<'_>> {
        let is_late = |at_once| !matches!((kind, at_once), (AtOnce::Logs, _) | (_, AtOnce::Nothing));
        let is_wanted = |at_once| at_once as u8 == kind as u8 || fault::planted("any kind") && is_late(at_once);
        self.find_if(is_wanted, key, weight)
    }

    #[inline(always)]
    fn find_if(&self, is_wanted: impl Fn(AtOnce) -> bool, key: &str, weight: u64) -> Option<Key<'_>> {
        let decoded = self.current();
        let (home, table) = (self.home(), &decoded.table);
        // A weight is never 0.
        if !is_wanted(table.at_once) || weight.wrapping_sub(1) >= table.capacity {
            return None;
        }
        fault::point("resolved");
        let is_empty = key.is_empty();
        let (at, words) = match is_empty {
            true => self.empty_at_once(decoded)?,
            false => {
                policy::check_key(key).ok()?;
                // SAFETY: the words of a store stay in place for as long as the home lives.
                home.index(table).glance(unsafe { &*decoded.index }, Hash::of(&self.hasher, key))?
            }
        };
        Some(Key { is_empty, ..self.key(table, at, words) })
    }

    /// The key "". Either it is where it was found last, or a decision there finds sealed cells or another life. Then
    /// it must be [looked up again](Bound::look_again).
    #[inline(always)]
    fn empty_at_once<'b>(&'b self, decoded: &'b Decoded) -> Option<(KeyAt, &'b [AtomicU64])> {
        // (3): another thread may be writing both.
        let life = decoded.empty_life.load(Acquire);
        let place = decoded.empty_at.load(Acquire);
        let at = BlockAt::some(place & key_word::PLACE)?;
        // SAFETY: the block was there, with this ring, when it was found.
        let words =
            unsafe { self.home().arena.words_unchecked(at.offset(), key_word::RING + (place >> key_word::SIZE)) };
        let life = if fault::planted("any life") { words[key_word::LIFE as usize].load(Acquire) } else { life };
        Some((KeyAt { at, life, table: decoded.table.at }, words))
    }

    /// Looks up the present place of the key "".
    #[inline(never)]
    pub(super) fn look_again(&self) {
        let decoded = self.current();
        // One thread at a time, so that two results do not get mixed.
        if decoded.table.at_once == AtOnce::Nothing || decoded.is_looking.swap(true, Acquire) {
            return;
        }
        // SAFETY: the words of a store stay in place for as long as the home lives.
        let word = unsafe { &*decoded.empty_key };
        let found = self.home().index(&decoded.table).glance_at(word);
        // Slices begin their first life at their first start, and must be found with that life.
        let has_begun = |life| life != 0 || !decoded.table.is_sliced;
        if let Some((KeyAt { at, life, .. }, words)) = found.filter(|found| has_begun(found.0.life)) {
            // (3)
            decoded.empty_life.store(life, Release);
            let ring = words.len() as u64 - key_word::RING;
            decoded.empty_at.store(ring << key_word::SIZE | at.offset(), Release);
        }
        decoded.is_looking.store(false, Release);
    }

    /// A key that was found, and all words of its block.
    #[inline(always)]
    pub(super) fn key<'b>(&'b self, table: &'b Table, key: KeyAt, words: &'b [AtomicU64]) -> Key<'b> {
        // (4)
        let mut key = Key { bound: self, table, key, words, hash: Hash([0; 2]), is_empty: false, gate: 0 };
        key.gate = self.gate_of_all().max(gate_in(key.head()));
        key.hash = hash_in(key.head());
        key.is_empty = self.counts.is_of_no_key(key.hash);
        key
    }

    /// The gate of all keys.
    #[inline(always)]
    pub(super) fn gate_of_all(&self) -> u64 {
        // SAFETY: the words of a store stay in place for as long as the home lives.
        unsafe { &*self.gate }.load(Acquire)
    }

    /// The limit's current table.
    #[inline(always)]
    pub(super) fn latest(&self) -> &Table {
        if self.home().limit(self.limit).table_at() != self.table().at {
            self.follow();
        }
        self.table()
    }

    /// Switches to the limit's current table. Not to that of a limit that has lost its name: the previous one leads
    /// nowhere, so the next call finds out.
    pub(super) fn follow(&self) {
        let table = self.home().limit(self.limit).table();
        // After the table was read: a limit loses its name before it gets its last table.
        if self.home().limit(self.limit).is_retired() {
            return;
        }
        let mut before = self.current.load(Acquire);
        // SAFETY: as above.
        while unsafe { &*before }.table.at != table.at {
            let new = Decoded::new(self.home(), table, before);
            // (1)
            match self.current.compare_exchange(before, new, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => {
                    // SAFETY: no other thread has seen it.
                    drop(unsafe { Box::from_raw(new) });
                    before = now;
                }
            }
        }
    }
}

/// Why a call could not finish, and the limit's table at that time.
pub(crate) struct Stuck<'b> {
    pub(super) bound: &'b Bound,
    pub(super) blocked: Blocked,
    pub(super) table: TableAt,
}

impl Drop for Bound {
    fn drop(&mut self) {
        let mut at = *self.current.get_mut();
        while !at.is_null() {
            // SAFETY: made by `bind` or `follow`, and no longer in use.
            at = unsafe { Box::from_raw(at) }.before;
        }
    }
}

impl Limit {
    /// Ensures that the limit can be used, and returns where it is.
    #[inline(always)]
    pub(super) fn bound(&self) -> Result<&Bound> {
        match self.is_bound() {
            Some(bound) => Ok(bound),
            None => self.bind_again(),
        }
    }

    /// Returns where the limit is, if that is already known.
    #[inline(always)]
    pub fn is_bound(&self) -> Option<&Bound> {
        // SAFETY: null, or published by `bind` and freed only by `drop` (1).
        let bound = unsafe { self.bound.load(Acquire).as_ref() }?;
        (bound.seen.load(Relaxed) == fork::validity() || self.is_current(bound)).then_some(bound)
    }

    #[cold]
    fn is_current(&self, bound: &Bound) -> bool {
        // (5)
        let now = fork::validity_acquired();
        let is_it = bound.epoch == self.store.epoch();
        if is_it {
            bound.seen.store(now, Relaxed);
        }
        is_it
    }

    /// Finds the limit for the first time, or because its name belongs to another by now.
    #[cold]
    pub(super) fn bind_again(&self) -> Result<&Bound> {
        if self.store.is_closed()
            && let Some(bound) = self.bound_if_closed()?
        {
            return Ok(bound);
        }
        let names = self.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let bind = |locked: &Locked| {
            // A change of a policy or a name. Only the process that made it completes the rest.
            let before =
                (locked.generation(), locked.find_limit(&self.name).map(|limit| locked.limit(limit).table().at));
            let bound = self.bind(locked)?;
            let table = before.1.is_some_and(|before| before != locked.limit(bound.limit).table().at);
            Ok((bound, table || before.0 != locked.generation()))
        };
        let (bound, has_changed) = self.store.knowing(&self.name, || self.store.with_names(&names, bind))?;
        self.made.iter().for_each(|made| self.store.undeclared.remove(&made.name));
        if has_changed {
            self.store.settle(&[&self.name])?;
        }
        Ok(bound)
    }

    /// Returns where the limit of a closed store was, for a call that ends a start. `None`: it has to be found again.
    #[cold]
    fn bound_if_closed(&self) -> Result<Option<&Bound>> {
        self.store.check_open()?;
        if self.bound.load(Acquire).is_null() {
            // Nothing has started there.
            return Err(self.store.closed());
        }
        Ok(self.last_bound().filter(|bound| !bound.home().limit(bound.limit).is_retired()))
    }

    /// Returns where this process found the limit, whether or not the store is closed.
    pub(super) fn last_bound(&self) -> Option<&Bound> {
        // SAFETY: as in `bound`.
        let bound = unsafe { self.bound.load(Acquire).as_ref() };
        bound.filter(|bound| bound.epoch == self.store.epoch_if_open())
    }

    /// The names with which the limit is declared.
    fn names(&self) -> Vec<String> {
        self.made.as_ref().map_or_else(|| vec![self.name.to_string()], |made| made.names())
    }

    /// Finds the limit, or declares it. For the holder of the structure lock.
    #[cold]
    pub(super) fn bind(&self, locked: &Locked) -> Result<&Bound> {
        let epoch = self.store.epoch_if_open();
        let before = self.bound.load(Acquire);
        let home = self.store.home();
        // SAFETY: as in `bound`.
        let last = unsafe { before.as_ref() };
        // The place of a limit means something only in the home in which it was found.
        let limit = match last.filter(|bound| ptr::eq(bound.home, home) && !home.limit(bound.limit).is_retired()) {
            Some(bound) if bound.epoch == epoch => return Ok(bound),
            // A forked child of a process that used the limit has it already, and must not declare it again.
            Some(bound) => bound.limit,
            None => self.declare_or_attach(home, locked, last.is_some())?,
        };
        self.store.may_miss_starts(locked)?;
        let current = AtomicPtr::new(Decoded::new(home, home.limit(limit).table(), ptr::null_mut()));
        let (hasher, gate) = (home.hasher(b'k'), home.limit(limit).gate());
        let counts = self.store.counts(limit);
        counts.add(None, STORE_ERRORS, self.early_errors.swap(0, Relaxed));
        let member = self.store.member();
        let seen = AtomicU64::new(0);
        let rests_until = [const { AtomicU64::new(0) }; 2];
        let bound = Box::into_raw(Box::new(Bound {
            home,
            limit,
            hasher,
            gate,
            epoch,
            seen,
            current,
            member,
            counts,
            rests_until,
            before,
        }));
        // The waiters move with the limit.
        let waiting = self.waiting.lock();
        // (1)
        self.bound.store(bound, Release);
        last.into_iter().for_each(|last| last.waits_more(-(*waiting as i64)));
        // SAFETY: as in `bound`.
        let bound = unsafe { &*bound };
        bound.waits_more(*waiting as i64);
        Ok(bound)
    }

    /// With `again`, this limiter has declared it before, so the store's present policy applies.
    fn declare_or_attach(&self, home: &Home, locked: &Locked, again: bool) -> Result<LimitAt> {
        let is_declared = |made: &Arc<Made>| again || made.is_declared.load(Acquire);
        let theirs = if self.made.as_ref().is_none_or(is_declared) { self.store.declared(&self.name)? } else { None };
        if let (Some(made), None) = (&self.made, &theirs) {
            self.store.declare_all(&[(&made.name, &made.policies)], locked)?;
            made.is_declared.store(true, Release);
            return Ok(home.find_limit(&self.name).expect("it was declared"));
        }
        let mismatch = |declared| {
            let (name, requested) = (self.name.to_string(), self.kind);
            Err(Error::KindMismatch { name, declared, requested })
        };
        match theirs {
            Some(theirs) if theirs.declared.kind() != self.kind => mismatch(theirs.declared.kind()),
            Some(theirs) => self.store.apply_declared(&self.name, theirs.current(), locked),
            None if self.store.family(&self.name)?.composite.is_some() => mismatch("composite"),
            None => self.store.unknown(&self.name),
        }
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let mut at = *self.bound.get_mut();
        while !at.is_null() {
            // SAFETY: made by `bind`, and no longer in use.
            let bound = unsafe { Box::from_raw(at) };
            at = bound.before;
        }
    }
}
